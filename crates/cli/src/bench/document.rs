//! The document that every benchmark prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use weft_api::figures::machine;

use super::tenant::Kept;
use super::void::Void;
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
    /// How programs reached their vGPU, if not as programs of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<&'static str>,
    /// Whether the device had a processor of its own.
    #[serde(skip_serializing_if = "is_not")]
    apart: bool,
    /// Parts that were asked for; all of them, if nothing is here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    only: Vec<String>,
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
    /// What is not among all these, because it is void.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    void: Vec<Absent>,
    /// Runs that were void and are in no figure, for another one of the same was not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repeated: Vec<Repeated>,
}

/// How the device kept to its model in a run that was done again.
#[derive(Debug, Serialize)]
struct Repeated {
    /// The part of the executions that began late.
    late_share: f64,
    /// The part that overran.
    overrun_share: f64,
}

/// Figures that a document has not, because the measurement that they are of is void.
#[derive(Debug, Serialize)]
struct Absent {
    /// Their names.
    figures: Vec<String>,
    /// Of each run, the part of the executions that began late.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late_share: Vec<f64>,
    /// Of each run, the part that overran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrun_share: Vec<f64>,
    why: String,
}

/// Whether something is not said, because it is as usual.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_not(said: &bool) -> bool {
    !said
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
            void: Vec::new(),
            via: None,
            apart: false,
            only: Vec::new(),
            repeated: Vec::new(),
        }
    }

    /// Says whether it was a quick run.
    pub(crate) fn set_quick(&mut self, quick: bool) {
        self.quick = quick;
    }

    /// Says how programs reached their vGPU.
    pub(crate) fn set_via(&mut self, via: Option<&'static str>) {
        self.via = via;
    }

    /// Says whether the device had a processor of its own.
    pub(crate) fn set_apart(&mut self, apart: bool) {
        self.apart = apart;
    }

    /// Says which parts were asked for.
    pub(crate) fn set_only(&mut self, only: &[String]) {
        only.clone_into(&mut self.only);
    }

    /// Says which runs were void and done again. That whoever measures chooses so among runs is to
    /// be seen.
    pub(crate) fn set_repeated(&mut self, runs: &[Kept]) {
        let repeated =
            |kept: &Kept| Repeated { late_share: kept.late, overrun_share: kept.overruns };
        self.repeated = runs.iter().map(repeated).collect();
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

    /// What was measured; nothing if all runs of it were void, which then stands in the place of
    /// these figures, baselines and controls.
    ///
    /// # Errors
    /// When it failed otherwise.
    pub(crate) fn held<T>(
        &mut self,
        measured: Result<T>,
        figures: impl IntoIterator<Item = String>,
    ) -> Result<Option<T>> {
        let void = match measured {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error.downcast::<Void>()?,
        };
        let figures: Vec<String> = figures.into_iter().collect();
        note(&format!("void: {}: {void}", figures.join(", ")));
        self.void.push(Absent {
            figures,
            late_share: void.runs.iter().map(|kept| kept.late).collect(),
            overrun_share: void.runs.iter().map(|kept| kept.overruns).collect(),
            why: void.to_string(),
        });
        Ok(None)
    }

    /// A figure of several rows. With one of them void it is void, too: nobody knows what it would
    /// be.
    pub(crate) fn figure_of(&mut self, name: &str, rows: &[Option<f64>], of: fn(&[f64]) -> f64) {
        if let Some(value) = self.of_rows(name, rows, of) {
            self.figure(name, value);
        }
    }

    /// The same of a control.
    pub(crate) fn control_of(&mut self, name: &str, rows: &[Option<f64>], of: fn(&[f64]) -> f64) {
        if let Some(value) = self.of_rows(name, rows, of) {
            self.control(name, value);
        }
    }

    fn of_rows(&mut self, name: &str, rows: &[Option<f64>], of: fn(&[f64]) -> f64) -> Option<f64> {
        let Some(held) = rows.iter().copied().collect::<Option<Vec<f64>>>() else {
            self.void_with_rows([name]);
            return None;
        };
        (!held.is_empty()).then(|| of(&held))
    }

    /// Figures of several rows, of which one is void: so are these.
    pub(crate) fn void_with_rows<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.leave_out(names, "something that it is of is void");
    }

    /// Figures that this document has not.
    pub(crate) fn leave_out<'a>(&mut self, names: impl IntoIterator<Item = &'a str>, why: &str) {
        let figures: Vec<String> = names.into_iter().map(str::to_owned).collect();
        for name in &figures {
            for part in [&mut self.figures, &mut self.baselines, &mut self.controls] {
                part.remove(name);
            }
        }
        self.void.push(Absent {
            figures,
            late_share: Vec::new(),
            overrun_share: Vec::new(),
            why: why.to_owned(),
        });
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
        line(table(&["FIGURE", "VALUE"], &self.table_rows()).trim_end());
        for Absent { figures, why, .. } in &self.void {
            line(&format!("void: {}: {why}", figures.join(", ")));
        }
        Ok(())
    }

    /// Every figure and its value, or that it is void.
    fn table_rows(&self) -> Vec<Vec<String>> {
        let parts =
            [("", &self.figures), ("baseline ", &self.baselines), ("control ", &self.controls)];
        let held = parts.iter().flat_map(|(kind, values)| {
            values
                .iter()
                .map(move |(name, value)| vec![format!("{kind}{name}"), format!("{value:.4}")])
        });
        let void = self.void.iter().flat_map(|absent| &absent.figures);
        held.chain(void.map(|name| vec![name.clone(), "void".to_owned()])).collect()
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
    use crate::bench::{least, most};

    #[test]
    fn a_quick_run_is_told() {
        let mut document = Document::new("call", "real", "w");
        assert_eq!(serde_json::to_value(&document).unwrap()["quick"], false);
        document.set_quick(true);
        assert_eq!(serde_json::to_value(&document).unwrap()["quick"], true);
    }

    /// Of a device of whose executions 5 % began late, in two runs.
    fn late() -> Void {
        let kept = Kept { overruns: 0.0, late: 0.05, unmanaged: false, paced: true };
        Void { runs: vec![kept, Kept { late: 0.0625, ..kept }] }
    }

    #[test]
    fn what_is_void_is_void_by_itself_and_says_how_late_it_was() {
        let mut document = Document::new("fairgv", "paced", "w");
        let plain = serde_json::to_value(&document).unwrap();
        assert!(plain.get("void").is_none(), "{plain}");
        let name = |us: u64| format!("overhead_{us}us");
        let small: Result<f64> = Err(late().into());
        assert_eq!(document.held(small, [name(21)]).unwrap(), None);
        // The control: another row stands, and is no void's.
        let large = document.held(Ok(1.01), [name(391)]).unwrap().unwrap();
        document.figure(name(391), large);
        let told = serde_json::to_value(&document).unwrap();
        assert_eq!(told["figures"], serde_json::json!({"overhead_391us": 1.01}));
        assert_eq!(told["void"].as_array().unwrap().len(), 1);
        assert_eq!(told["void"][0]["figures"], serde_json::json!(["overhead_21us"]));
        assert_eq!(told["void"][0]["late_share"], serde_json::json!([0.05, 0.0625]));
        assert!(told["void"][0]["why"].as_str().unwrap().contains("6.25 % began late"));
        let rows = document.table_rows();
        assert_eq!(rows, [["overhead_391us", "1.0100"], ["overhead_21us", "void"]]);
    }

    #[test]
    fn what_failed_is_not_void() {
        let mut document = Document::new("fairgv", "paced", "w");
        let failed: Result<f64> = Err(anyhow::anyhow!("a program is missing"));
        let error = document.held(failed, ["mmr_min".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "a program is missing");
        assert!(document.void.is_empty());
    }

    #[test]
    fn a_figure_of_several_rows_is_void_with_one_of_them() {
        let mut document = Document::new("fairgv", "paced", "w");
        document.figure_of("overhead_max", &[Some(1.5), None], most);
        document.figure_of("mmr_min", &[Some(0.5), Some(0.25)], least);
        document.control_of("mmr_control", &[Some(0.5), Some(0.75)], most);
        document.figure_of("of_nothing", &[], most);
        document.figure("lost", 0.0);
        document.void_with_rows(["lost"]);
        let told = serde_json::to_value(&document).unwrap();
        assert_eq!(told["figures"], serde_json::json!({"mmr_min": 0.25}));
        assert_eq!(told["controls"], serde_json::json!({"mmr_control": 0.75}));
        let void: Vec<&Value> =
            told["void"].as_array().unwrap().iter().map(|absent| &absent["figures"][0]).collect();
        assert_eq!(void, ["overhead_max", "lost"]);
        assert!(told["void"][0].get("late_share").is_none(), "{told}");
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
