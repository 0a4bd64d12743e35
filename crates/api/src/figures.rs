//! What a service's benchmark says: one document, which other programs read, or lines for people.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Serialize;

/// Figures by name, with what they are compared with.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// What was measured.
    pub name: &'static str,
    /// The commit in whose folder it was measured.
    pub commit: String,
    /// `real`, `paced` or `simulated`, and what in it is not.
    pub mode: String,
    /// Of how many windows, how long each.
    pub window: String,
    /// The machine's processors.
    pub machine: String,
    /// The part of the processors' time that a hypervisor gave to others meanwhile, 0 to 1.
    pub stolen: Option<f64>,
    /// Seeds of what was drawn.
    pub seeds: Vec<u64>,
    /// The figures.
    pub figures: BTreeMap<String, f64>,
    /// The same of others.
    pub baselines: BTreeMap<String, f64>,
    /// The same of what must be worse, or must fail.
    pub controls: BTreeMap<String, f64>,
}

impl Figures {
    /// Figures of this commit.
    #[must_use]
    pub fn new(
        name: &'static str,
        mode: String,
        window: String,
        figures: BTreeMap<String, f64>,
    ) -> Self {
        let (commit, seeds) = (commit(), Vec::new());
        let (baselines, controls) = (BTreeMap::new(), BTreeMap::new());
        let (machine, stolen) = (machine(), None);
        Self { name, commit, mode, window, machine, stolen, seeds, figures, baselines, controls }
    }

    /// One of them.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// As JSON or as lines.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn text(&self, json: bool) -> serde_json::Result<String> {
        if json {
            return serde_json::to_string_pretty(self);
        }
        let mut lines = vec![format!("{} ({}, {})", self.name, self.mode, self.window)];
        let parts =
            [("", &self.figures), ("baseline ", &self.baselines), ("control ", &self.controls)];
        for (kind, values) in parts {
            lines.extend(values.iter().map(|(name, value)| format!("{kind}{name}: {value:.2}")));
        }
        Ok(lines.join("\n"))
    }
}

/// The standard error of the median of `count` values with these quartiles, as of normal noise,
/// which one odd value does not move.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "some hundred values")]
pub fn median_error(lower: f64, upper: f64, count: usize) -> f64 {
    /// A median's standard error is 1.25 standard deviations over the root of the number, and
    /// quartiles are 1.35 standard deviations apart.
    const OF_QUARTILES: f64 = 0.93;

    OF_QUARTILES * (upper - lower) / (count as f64).sqrt()
}

/// The commit of the folder that this runs in.
fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let head = output.ok().filter(|output| output.status.success());
    head.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// The machine, as a document names it.
#[must_use]
pub fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = text.lines().filter(|line| line.starts_with("processor")).count();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_start_matches([':', ' ', '\t']));
    format!("{cores} cores of {model}")
}
