//! The document that every benchmark prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use weft_api::figures::machine;

use crate::output::{line, note, table};

/// Less than this part of the time stolen is not worth a word.
const STOLEN_MIN: f64 = 0.001;

/// Figures of one benchmark, and what they must be read with.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    name: &'static str,
    commit: String,
    /// `real`, `paced` or `simulated`.
    mode: &'static str,
    window: String,
    /// Shorter and coarser, for checking that it works: its figures mean little.
    quick: bool,
    seeds: Vec<u64>,
    machine: String,
    /// The part of the processors' time that a hypervisor gave to others meanwhile, 0 to 1.
    stolen: f64,
    figures: BTreeMap<String, f64>,
    /// What the figures are compared with.
    baselines: BTreeMap<String, f64>,
    /// What must fail, and by how much it did.
    controls: BTreeMap<String, f64>,
    /// What the figures were made of, where that says more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rows: Vec<Value>,
}

impl Document {
    pub(crate) fn new(name: &'static str, mode: &'static str, window: &str) -> Self {
        Self {
            name,
            commit: commit(),
            mode,
            window: window.to_owned(),
            quick: false,
            seeds: Vec::new(),
            machine: machine(),
            stolen: 0.0,
            figures: BTreeMap::new(),
            baselines: BTreeMap::new(),
            controls: BTreeMap::new(),
            rows: Vec::new(),
        }
    }

    /// Says whether it was a quick run.
    pub(crate) fn set_quick(&mut self, quick: bool) {
        self.quick = quick;
    }

    /// The part of the processors' time that was not this machine's while it measured.
    pub(crate) fn set_stolen(&mut self, part: f64) {
        self.stolen = part;
    }

    /// The machine's GPU, if something ran on it.
    pub(crate) fn set_gpu(&mut self, name: &str) {
        self.machine = format!("{name}, {}", self.machine);
    }

    /// What replays the run.
    pub(crate) fn seed(&mut self, seed: u64) {
        self.seeds.push(seed);
    }

    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    pub(crate) fn baseline(&mut self, name: impl Into<String>, value: f64) {
        self.baselines.insert(name.into(), value);
    }

    pub(crate) fn control(&mut self, name: impl Into<String>, value: f64) {
        self.controls.insert(name.into(), value);
    }

    pub(crate) fn row(&mut self, row: Value) {
        self.rows.push(row);
    }

    pub(crate) fn print(&self, json: bool) -> Result<()> {
        if json {
            line(&serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        let quick = if self.quick { "quick, " } else { "" };
        line(&format!("{} ({}, {quick}{})", self.name, self.mode, self.window));
        note(&format!("{}, commit {}", self.machine, self.commit));
        if self.stolen >= STOLEN_MIN {
            let percent = self.stolen * 100.0;
            note(&format!("{percent:.1} % of the processors' time were taken away meanwhile"));
        }
        let parts =
            [("", &self.figures), ("baseline ", &self.baselines), ("control ", &self.controls)];
        let rows: Vec<_> = parts
            .iter()
            .flat_map(|(kind, values)| {
                values
                    .iter()
                    .map(move |(name, value)| vec![format!("{kind}{name}"), format!("{value:.4}")])
            })
            .collect();
        line(table(&["FIGURE", "VALUE"], &rows).trim_end());
        Ok(())
    }
}

/// What measuring writes: another run of the same code may find it changed.
const WRITTEN: [&str; 3] = [
    ":(exclude,top)bench/results",
    ":(exclude,top)docs/benchmarks.md",
    ":(exclude,top)docs/evaluation",
];

/// The commit of the checkout that this runs in, with `+` if it was changed, but for what measuring
/// writes.
pub(crate) fn commit() -> String {
    commit_of(Path::new("."))
}

fn commit_of(checkout: &Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(checkout).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let mut status = vec!["status", "--porcelain", "--untracked-files=no", "--", ":/"];
    status.extend(WRITTEN);
    let dirty = git(&status).is_some_and(|changes| !changes.is_empty());
    if dirty { format!("{head}+") } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_is_told() {
        let mut document = Document::new("call", "real", "w");
        assert_eq!(serde_json::to_value(&document).unwrap()["quick"], false);
        document.set_quick(true);
        assert_eq!(serde_json::to_value(&document).unwrap()["quick"], true);
    }

    #[test]
    fn a_changed_checkout_is_told_from_one_with_new_figures() {
        let checkout = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = checkout.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(checkout.path());
            git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments);
            let output = git.output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        write("crates/code.rs", "old");
        write("docs/benchmarks.md", "old");
        git(&["init", "--quiet"]);
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", "all"]);
        let clean = commit_of(checkout.path());
        assert_eq!(clean.len(), 12, "{clean}");
        write("docs/benchmarks.md", "new");
        assert_eq!(commit_of(checkout.path()), clean);
        assert_eq!(commit_of(&checkout.path().join("crates")), clean);
        write("crates/code.rs", "new");
        assert_eq!(commit_of(checkout.path()), format!("{clean}+"));
        assert_eq!(commit_of(&checkout.path().join("docs")), format!("{clean}+"));
    }
}
