//! What the FairGV paper claims, claim by claim, held against figures.
//!
//! A verdict is computed: a claim is reproduced if it holds at every seed. What stands under `why`
//! is what differs between the paper's set-up and the simulation's, under `why_paced` between the
//! paper's and the paced device's; each is shown where its verdict is negative and says nothing of
//! how a run went.

use serde::Serialize;

use crate::outcome::Outcome;
use crate::report::{RealRun, VOID};

/// A statement of the paper.
pub(crate) struct Claim {
    experiment: &'static str,
    /// Of what the paper says it.
    what: String,
    /// What it says.
    paper: String,
    rule: Rule,
    /// Figures that it is about; `control:` before the name of a control.
    figures: Vec<String>,
    /// Benchmark and its figures that measure the same on a real daemon.
    real: Option<(&'static str, Vec<String>)>,
    /// Its figures follow from what a request over the trapping transport is assumed to cost.
    assumes_trap: bool,
    why: &'static str,
    why_paced: String,
}

/// When a claim holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Every figure is at least this.
    AtLeast(f64),
    /// Every figure is at most this.
    AtMost(f64),
    /// Every figure is above this.
    Above(f64),
    /// Every figure is below this.
    Below(f64),
    /// Every figure is this, give or take the second.
    Near(f64, f64),
    /// More than half of the figures are at most this.
    MostAtMost(f64),
    /// The first figure is below each of the others.
    Least,
    /// Nothing here measures it.
    Unmeasured,
}

/// A row of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Where the paper shows it.
    pub experiment: String,
    /// Of what.
    pub what: String,
    /// What the paper says.
    pub paper: String,
    /// What the simulation says.
    pub simulated: String,
    /// `reproduced`, `not reproduced` or `not measured`.
    pub verdict: &'static str,
    /// What the real daemon on the paced device says, and its verdict.
    pub paced: String,
    /// That verdict: as `verdict`, `void` where the machine was too busy for the paced device, or
    /// `not run` without a document. Empty where no benchmark measures the claim.
    pub verdict_paced: &'static str,
    /// What differs from the paper's set-up, if the verdict is negative.
    pub why: String,
    /// The same of the paced device, if it does not reproduce the claim.
    pub why_paced: String,
}

impl Row {
    /// Why a verdict is negative, of the simulation and of the paced device.
    pub(crate) fn reasons(&self) -> String {
        match (self.why.as_str(), self.why_paced.as_str()) {
            (why, "") => why.to_owned(),
            ("", paced) => format!("paced: {paced}"),
            (why, paced) => format!("{why}; paced: {paced}"),
        }
    }
}

/// How many claims have which verdict, simulated and on the paced device.
pub(crate) fn counts(rows: &[Row]) -> String {
    let simulated = |verdict: &str| rows.iter().filter(|row| row.verdict == verdict).count();
    let paced = |verdict: &str| rows.iter().filter(|row| row.verdict_paced == verdict).count();
    format!(
        "Simulated: {} reproduced, {} not reproduced, {} not measured. On the paced device: {} \
         reproduced, {} not reproduced, {} void or not measured.",
        simulated(REPRODUCED),
        simulated(NOT_REPRODUCED),
        simulated(NOT_MEASURED),
        paced(REPRODUCED),
        paced(NOT_REPRODUCED),
        [VOID, NOT_MEASURED, NOT_RUN, QUICK].map(paced).iter().sum::<usize>()
    )
}

const REPRODUCED: &str = "reproduced";
const NOT_REPRODUCED: &str = "not reproduced";
const NOT_MEASURED: &str = "not measured";
const NOT_RUN: &str = "not run";
const QUICK: &str = "a quick run";
/// Stands where a verdict is negative and nobody knows why.
const NO_REASON: &str = "no known reason";

/// Smallest and largest value of a figure over the seeds.
type Interval = (f64, f64);

impl Rule {
    fn holds(self, figures: &[Interval]) -> bool {
        let all = |test: &dyn Fn(&Interval) -> bool| figures.iter().all(test);
        match self {
            Self::AtLeast(least) => all(&|(low, _)| *low >= least),
            Self::Above(least) => all(&|(low, _)| *low > least),
            Self::AtMost(most) => all(&|(_, high)| *high <= most),
            Self::Below(most) => all(&|(_, high)| *high < most),
            Self::Near(value, tolerance) => {
                all(&|(low, high)| *low >= value - tolerance && *high <= value + tolerance)
            }
            Self::MostAtMost(most) => {
                2 * figures.iter().filter(|(_, high)| *high <= most).count() > figures.len()
            }
            Self::Least => figures
                .split_first()
                .is_some_and(|((_, first), others)| others.iter().all(|(low, _)| first < low)),
            Self::Unmeasured => false,
        }
    }

    /// The test in signs.
    fn shown(self) -> String {
        match self {
            Self::AtLeast(value) => format!("≥ {value}"),
            Self::Above(value) => format!("> {value}"),
            Self::AtMost(value) => format!("≤ {value}"),
            Self::Below(value) => format!("< {value}"),
            Self::Near(value, tolerance) => format!("{value} ± {tolerance:.2}"),
            Self::MostAtMost(value) => format!("more than half ≤ {value}"),
            Self::Least => "the first is the least".to_owned(),
            Self::Unmeasured => "–".to_owned(),
        }
    }
}

impl Claim {
    pub(crate) fn new(
        experiment: &'static str,
        what: impl Into<String>,
        paper: impl Into<String>,
        rule: Rule,
    ) -> Self {
        let (what, paper) = (what.into(), paper.into());
        Self {
            experiment,
            what,
            paper,
            rule,
            figures: Vec::new(),
            real: None,
            assumes_trap: false,
            why: "",
            why_paced: String::new(),
        }
    }

    pub(crate) fn of<N: Into<String>>(mut self, figures: impl IntoIterator<Item = N>) -> Self {
        self.figures = figures.into_iter().map(Into::into).collect();
        self
    }

    pub(crate) fn real<N: Into<String>>(
        mut self,
        benchmark: &'static str,
        figures: impl IntoIterator<Item = N>,
    ) -> Self {
        self.real = Some((benchmark, figures.into_iter().map(Into::into).collect()));
        self
    }

    pub(crate) fn why(mut self, why: &'static str) -> Self {
        self.why = why;
        self
    }

    /// What differs from the paper's set-up on the paced device.
    pub(crate) fn why_paced(mut self, why: impl Into<String>) -> Self {
        self.why_paced = why.into();
        self
    }

    /// Its row says what a request over the trapping transport is assumed to cost.
    pub(crate) fn assumes_trap(mut self) -> Self {
        self.assumes_trap = true;
        self
    }

    /// What the paper says and how that is tested, if the claim is about this figure alone.
    pub(crate) fn says_of(&self, experiment: &str, figure: &str) -> Option<(&str, Rule)> {
        let is_about = self.experiment == experiment && self.figures == [figure];
        is_about.then_some((self.paper.as_str(), self.rule))
    }

    /// `trap` is [`trap_cost`].
    fn row(&self, outcome: &Outcome, runs: &[RealRun], trap: &str) -> Row {
        let found: Option<Vec<Interval>> =
            self.figures.iter().map(|name| interval(outcome, name)).collect();
        let found = found.filter(|found| !found.is_empty());
        let verdict = match &found {
            None => NOT_MEASURED,
            Some(figures) => self.verdict(figures),
        };
        let why = match (verdict, self.why) {
            (REPRODUCED, _) => "",
            (_, "") => NO_REASON,
            (_, why) => why,
        };
        let (paced, verdict_paced) = self.paced(runs);
        // Where there is no figure the row says so itself.
        let why_paced = match (verdict_paced, self.why_paced.as_str()) {
            (NOT_REPRODUCED, "") => NO_REASON,
            (NOT_REPRODUCED, why) => why,
            _ => "",
        };
        let what =
            if self.assumes_trap { format!("{} ({trap})", self.what) } else { self.what.clone() };
        Row {
            experiment: self.experiment.to_owned(),
            what,
            paper: format!("{} ({})", self.paper, self.rule.shown()),
            simulated: found.map_or_else(|| "–".to_owned(), |figures| shown(&figures)),
            verdict,
            paced,
            verdict_paced,
            why: why.to_owned(),
            why_paced: why_paced.to_owned(),
        }
    }

    fn verdict(&self, figures: &[Interval]) -> &'static str {
        if self.rule.holds(figures) { REPRODUCED } else { NOT_REPRODUCED }
    }

    /// What the paced device says, and its verdict alone.
    fn paced(&self, runs: &[RealRun]) -> (String, &'static str) {
        let Some((benchmark, names)) = &self.real else { return ("–".to_owned(), "") };
        let Some(run) = runs.iter().find(|run| run.name == *benchmark) else {
            return (NOT_RUN.to_owned(), NOT_RUN);
        };
        let found: Option<Vec<Interval>> =
            names.iter().map(|name| run.figure(name).map(|value| (value, value))).collect();
        let Some(figures) = found else {
            let is_void = names.iter().any(|name| run.why_void(name).is_some());
            let verdict = if is_void { VOID } else { NOT_MEASURED };
            return (verdict.to_owned(), verdict);
        };
        // A quick run counts however late its device was.
        let verdict = if run.quick { QUICK } else { self.verdict(&figures) };
        (format!("{}: {verdict}", shown(&figures)), verdict)
    }
}

/// What a request over the trapping transport is assumed to cost, and what one costs that was
/// measured, in words. `calibration` has names, ns and sources.
pub(crate) fn trap_cost(calibration: &[(String, u64, String)], runs: &[RealRun]) -> String {
    let Some((_, assumed_ns, _)) = calibration.iter().find(|cost| cost.0 == "trapping_call") else {
        return "assumed: four bare system calls a request".to_owned();
    };
    let assumed_us = *assumed_ns as f64 / 1e3;
    let assumed = format!("assumed: {assumed_us:.1} µs a request, four bare system calls");
    let measured = runs
        .iter()
        .filter(|run| run.name == "call")
        .find_map(|run| Some((*run.baselines.get("trap_sync_us_p50")?, run.commit.as_str())));
    match measured {
        Some((us, commit)) => {
            let times = us / assumed_us;
            format!("{assumed}; measured: {us:.1} µs, {times:.1} times that, call at {commit}")
        }
        None => assumed,
    }
}

/// The figure of a claim over all seeds.
fn interval(outcome: &Outcome, name: &str) -> Option<Interval> {
    let Some(control) = name.strip_prefix("control:") else { return outcome.interval(name) };
    let value = *outcome.controls.get(control)?;
    Some(outcome.intervals.get(name).copied().unwrap_or((value, value)))
}

fn shown(figures: &[Interval]) -> String {
    let one = |(low, high): &Interval| {
        let text = format!("{low:.3}");
        if format!("{high:.3}") == text { text } else { format!("{text} … {high:.3}") }
    };
    let mut text: Vec<String> = figures.iter().take(4).map(one).collect();
    if figures.len() > 4 {
        let low = figures.iter().map(|figure| figure.0).fold(f64::INFINITY, f64::min);
        let high = figures.iter().map(|figure| figure.1).fold(f64::NEG_INFINITY, f64::max);
        text = vec![format!("{} of {}", one(&(low, high)), figures.len())];
    }
    text.join(", ")
}

/// The rows of all claims whose experiment ran; `trap` is [`trap_cost`].
pub(crate) fn rows(
    claims: &[Claim],
    outcomes: &[Outcome],
    runs: &[RealRun],
    trap: &str,
) -> Vec<Row> {
    let of = |claim: &Claim| {
        if matches!(claim.rule, Rule::Unmeasured) {
            return Some(claim.row(&Outcome::default(), runs, trap));
        }
        let outcome = outcomes.iter().find(|outcome| outcome.name == claim.experiment)?;
        Some(claim.row(outcome, runs, trap))
    };
    claims.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(low: f64, high: f64) -> Outcome {
        let mut outcome = Outcome::new("figure8", "", "");
        outcome.figure("mmr", f64::midpoint(low, high));
        outcome.intervals.insert("mmr".to_owned(), (low, high));
        outcome
    }

    fn verdict(rule: Rule, low: f64, high: f64) -> &'static str {
        let claim = Claim::new("figure8", "x", "y", rule).of(["mmr"]);
        rows(&[claim], &[outcome(low, high)], &[], "")[0].verdict
    }

    #[test]
    fn the_worst_seed_decides() {
        assert_eq!(verdict(Rule::AtLeast(0.99), 0.99, 0.999), "reproduced");
        assert_eq!(verdict(Rule::AtLeast(0.99), 0.98, 0.999), "not reproduced");
        assert_eq!(verdict(Rule::Below(0.9), 0.8, 0.95), "not reproduced");
        assert_eq!(verdict(Rule::Near(1.0, 0.05), 0.96, 1.04), "reproduced");
        assert_eq!(verdict(Rule::Near(1.0, 0.05), 0.96, 1.06), "not reproduced");
    }

    #[test]
    fn why_is_said_only_where_it_is_asked() {
        let claim = |rule| Claim::new("figure8", "x", "y", rule).of(["mmr"]).why("z");
        let claims = [claim(Rule::AtMost(1.0)), claim(Rule::Above(1.0))];
        let rows = rows(&claims, &[outcome(0.5, 0.5)], &[], "");
        assert_eq!((rows[0].why.as_str(), rows[1].why.as_str()), ("", "z"));
    }

    /// A document of `benchmark` in which `part` has this one figure.
    fn run(benchmark: &str, part: &str, figure: &str, value: f64) -> RealRun {
        let mut document = serde_json::json!({"name": benchmark, "mode": "paced", "window": "w",
            "commit": "c", "figures": {}});
        document[part] = serde_json::json!({(figure): value});
        RealRun::parse(&document.to_string()).unwrap()
    }

    #[test]
    fn the_paced_device_has_a_verdict_and_a_reason_of_its_own() {
        let claim = || {
            let claim = Claim::new("figure8", "x", "y", Rule::AtLeast(0.9)).of(["mmr"]);
            claim.real("fairgv", ["paced_mmr"]).why("z")
        };
        let simulated = [outcome(0.95, 0.95)];
        let rows_of = |claim, value| {
            rows(&[claim], &simulated, &[run("fairgv", "figures", "paced_mmr", value)], "")
        };
        let good = rows_of(claim().why_paced("p"), 0.91);
        assert_eq!((good[0].verdict_paced, good[0].reasons().as_str()), ("reproduced", ""));
        let bad = rows_of(claim().why_paced("p"), 0.8);
        assert_eq!((bad[0].verdict, bad[0].verdict_paced), ("reproduced", "not reproduced"));
        assert_eq!((bad[0].paced.as_str(), bad[0].why.as_str()), ("0.800: not reproduced", ""));
        assert_eq!(bad[0].reasons(), "paced: p");
        assert!(counts(&bad).contains("1 reproduced, 0 not reproduced, 0 not measured"));
        assert!(
            counts(&bad)
                .ends_with("paced device: 0 reproduced, 1 not reproduced, 0 void or not measured.")
        );
        assert_eq!(rows_of(claim(), 0.8)[0].why_paced, "no known reason");
        // Without a figure there is nothing to explain.
        let unrun = rows(&[claim()], &simulated, &[], "");
        assert_eq!((unrun[0].verdict_paced, unrun[0].why_paced.as_str()), ("not run", ""));
        let both = rows(
            &[claim().why_paced("p")],
            &[outcome(0.5, 0.5)],
            &[run("fairgv", "figures", "paced_mmr", 0.8)],
            "",
        );
        assert_eq!(both[0].reasons(), "z; paced: p");
    }

    #[test]
    fn a_void_figure_has_no_verdict() {
        let claim = || {
            let claim = Claim::new("figure8", "x", "y", Rule::AtLeast(0.9)).of(["mmr"]);
            claim.real("fairgv", ["paced_mmr"]).why_paced("p")
        };
        let verdict = |document: serde_json::Value| {
            let run = RealRun::parse(&document.to_string()).unwrap();
            rows(&[claim()], &[outcome(0.95, 0.95)], &[run], "")[0].clone()
        };
        let document = |void: &str| {
            serde_json::json!({"name": "fairgv", "mode": "paced", "window": "w", "commit": "c",
                "figures": {}, "void": [{"figures": [void], "why": "too busy"}]})
        };
        let row = verdict(document("paced_mmr"));
        assert_eq!(
            (row.verdict_paced, row.paced.as_str(), row.why_paced.as_str()),
            ("void", "void", "")
        );
        assert_eq!(verdict(document("another")).verdict_paced, "not measured");
    }

    #[test]
    fn a_row_of_the_trapping_transport_says_what_it_assumes_and_what_was_measured() {
        let costs = [("trapping_call".to_owned(), 9_200, "a test".to_owned())];
        let measured = run("call", "baselines", "trap_sync_us_p50", 46.0);
        let text = trap_cost(&costs, &[measured]);
        assert!(text.contains("9.2 µs") && text.contains("46.0 µs, 5.0 times that"), "{text}");
        assert!(!trap_cost(&costs, &[]).contains("measured"));
        let claim = Claim::new("figure8", "x", "y", Rule::AtLeast(0.9)).of(["mmr"]);
        let rows = rows(&[claim.assumes_trap()], &[outcome(1.0, 1.0)], &[], &text);
        assert_eq!(rows[0].what, format!("x ({text})"));
    }

    #[test]
    fn the_least_must_be_below_all_others_at_every_seed() {
        assert!(Rule::Least.holds(&[(0.9, 1.0), (1.1, 1.2)]));
        assert!(!Rule::Least.holds(&[(0.9, 1.1), (1.0, 1.2)]));
    }
}
