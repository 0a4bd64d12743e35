//! What `weft bench` measured, to stand beside what was simulated.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// One document of `weft bench NAME --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RealRun {
    /// The benchmark.
    pub name: String,
    /// `real` or `paced`.
    pub mode: String,
    /// Over what time.
    pub window: String,
    /// The commit that was measured.
    pub commit: String,
    /// The machine.
    #[serde(default)]
    pub machine: String,
    /// The part of the processors' time that a hypervisor gave to others meanwhile, if somebody
    /// looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// How programs reached their vGPU, if not as programs of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// It was a quick run, for checking that it works.
    #[serde(default)]
    pub quick: bool,
    /// Its figures.
    pub figures: BTreeMap<String, f64>,
    /// What they are compared with.
    #[serde(default)]
    pub baselines: BTreeMap<String, f64>,
    /// What had to fail.
    #[serde(default)]
    pub controls: BTreeMap<String, f64>,
    /// What is not among these, because it is void.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub void: Vec<Void>,
}

/// Figures that a document has not: in every run of them the machine was too busy for the paced
/// device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Void {
    /// Their names.
    pub figures: Vec<String>,
    /// What happened in each run.
    pub why: String,
}

/// A file that is no such document.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// It is not JSON of that shape.
    #[error("this is no document of weft bench: {0}")]
    Json(#[from] serde_json::Error),
}

/// Stands in the place of a figure that is void.
pub(crate) const VOID: &str = "void";

/// Why the rows of Table 4 have nothing beside them.
pub(super) const TABLE4: &str = "Table 4 has no counterpart row by row. The paper and its model \
    cut a grid into a number of pieces of many blocks that execute side by side, and a piece waits \
    for its last block. On the paced device a piece lasts for a quantum and its blocks execute one \
    after the other, so what shows there is what starting a piece costs.";

/// Benchmark and figure, and the experiment and figure that simulate the same; empty if none does.
const COUNTERPARTS: [(&str, &str, &str, &str); 19] = [
    ("fairness", "mmr_min", "", ""),
    ("fairness", "overhead_max", "", ""),
    ("fairgv", "figure8_mmr_min", "figure8", "mmr_min"),
    ("fairgv", "figure9_mmr_min", "figure9", "mmr_min"),
    ("fairgv", "figure11_deviation_max", "figure11", "deviation_max"),
    ("fairgv", "table4_slowdown_pieces_of_500us", "", ""),
    ("fairgv", "table4_slowdown_pieces_of_1000us", "", ""),
    ("fairgv", "table4_slowdown_pieces_of_2000us", "", ""),
    ("fairgv", "table4_slowdown_pieces_of_6000us", "", ""),
    ("overhead", "overhead_21us", "figure2", "overhead_rings_21us"),
    ("overhead", "overhead_sync_21us", "figure2", "overhead_rings_sync_21us"),
    ("overhead", "trap_21us", "figure2", "overhead_trap_21us"),
    ("conserve", "utilization_min", "figure10", "utilization_min"),
    ("accounting", "error_max", "table2", "error_max"),
    ("accounting", "closure", "closure", "closure_max"),
    ("decision", "ns_p50_1024", "", ""),
    ("decision", "ns_p50_65536", "", ""),
    ("cosched", "wake_p99_over_plain", "", ""),
    ("cosched", "hog_share_error", "", ""),
];

impl RealRun {
    /// Reads one document.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, RealError> {
        Ok(serde_json::from_str(text)?)
    }

    /// A figure or a control.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).or_else(|| self.controls.get(name)).copied()
    }

    /// Why a figure is void, if it is.
    pub(crate) fn why_void(&self, figure: &str) -> Option<&str> {
        let lists = |void: &&Void| void.figures.iter().any(|name| name == figure);
        self.void.iter().find(lists).map(|void| void.why.as_str())
    }
}

/// A row of the comparison: what, mode, measured, simulated where something simulates it.
pub(super) fn rows(runs: &[RealRun], outcomes: &[Outcome]) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    for run in runs {
        for (name, figure, experiment, simulated) in COUNTERPARTS {
            if run.name != name {
                continue;
            }
            let measured = match (run.figure(figure), run.why_void(figure)) {
                (Some(value), _) => super::number(value),
                (None, Some(_)) => VOID.to_owned(),
                (None, None) => continue,
            };
            let outcome = outcomes.iter().find(|outcome| outcome.name == experiment);
            let beside = outcome
                .and_then(|outcome| outcome.figures.get(simulated))
                .map_or_else(|| "–".to_owned(), |value| super::number(*value));
            let what = format!("{name}: {figure} ({})", run.window);
            let quick = if run.quick { ", quick" } else { "" };
            rows.push([what, format!("{}{quick}", run.mode), measured, beside]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_the_benchmark_finds_its_counterpart() {
        let text = r#"{"name": "fairgv", "commit": "c", "mode": "paced", "window": "w",
            "seeds": [], "machine": "m", "figures": {"figure8_mmr_min": 0.996}, "baselines": {},
            "controls": {"mmr_unmanaged": 0.3}}"#;
        let run = RealRun::parse(text).unwrap();
        let mut outcome = Outcome::new("figure8", "", "");
        outcome.figure("mmr_min", 0.991);
        let rows = rows(&[run], &[outcome]);
        assert_eq!(rows, [["fairgv: figure8_mmr_min (w)", "paced", "0.9960", "0.9910"]]);
    }

    #[test]
    fn what_is_void_is_told_and_what_was_not_measured_is_not() {
        let text = r#"{"name": "fairness", "commit": "c", "mode": "paced", "window": "w",
            "figures": {"overhead_max": 1.5}, "void": [{"figures": ["mmr_min"],
            "late_share": [0.05], "overrun_share": [0.0], "why": "too busy"}]}"#;
        let run = RealRun::parse(text).unwrap();
        assert_eq!(
            (run.why_void("mmr_min"), run.why_void("overhead_max")),
            (Some("too busy"), None)
        );
        let told = rows(&[run], &[]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0][2], "void");
        assert_eq!(told[1][2], "1.5000");
        let plain = text.replace("mmr_min", "mmr_max");
        assert_eq!(rows(&[RealRun::parse(&plain).unwrap()], &[]).len(), 1);
    }

    #[test]
    fn pieces_of_a_kernel_stand_alone_and_a_quick_run_is_told() {
        let text = r#"{"name": "fairgv", "commit": "c", "mode": "paced", "window": "w",
            "quick": true, "figures": {"table4_slowdown_pieces_of_1000us": 2.5}}"#;
        let rows = rows(&[RealRun::parse(text).unwrap()], &[Outcome::new("table4", "", "")]);
        let what = "fairgv: table4_slowdown_pieces_of_1000us (w)";
        assert_eq!(rows, [[what, "paced, quick", "2.5000", "–"]]);
    }
}
