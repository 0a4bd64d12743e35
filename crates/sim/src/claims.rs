//! What the FairGV paper claims, claim by claim, held against figures.
//!
//! A verdict is computed: a claim is reproduced if it holds at every seed. What stands under `why`
//! is what differs between the paper's set-up and ours; it is shown where the verdict is negative
//! and says nothing of how a run went.

use serde::Serialize;

use crate::outcome::Outcome;
use crate::report::RealRun;

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
    why: &'static str,
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
    /// What differs from the paper's set-up, if the verdict is negative.
    pub why: String,
}

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
        Self { experiment, what, paper, rule, figures: Vec::new(), real: None, why: "" }
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

    /// What the paper says and how that is tested, if the claim is about this figure alone.
    pub(crate) fn says_of(&self, experiment: &str, figure: &str) -> Option<(&str, Rule)> {
        let is_about = self.experiment == experiment && self.figures == [figure];
        is_about.then_some((self.paper.as_str(), self.rule))
    }

    fn row(&self, outcome: &Outcome, runs: &[RealRun]) -> Row {
        let found: Option<Vec<Interval>> =
            self.figures.iter().map(|name| interval(outcome, name)).collect();
        let found = found.filter(|found| !found.is_empty());
        let verdict = match &found {
            None => "not measured",
            Some(figures) if self.rule.holds(figures) => "reproduced",
            Some(_) => "not reproduced",
        };
        let why = match (verdict, self.why) {
            ("reproduced", _) => "",
            (_, "") => "no known reason",
            (_, why) => why,
        };
        Row {
            experiment: self.experiment.to_owned(),
            what: self.what.clone(),
            paper: format!("{} ({})", self.paper, self.rule.shown()),
            simulated: found.map_or_else(|| "–".to_owned(), |figures| shown(&figures)),
            verdict,
            paced: self.paced(runs),
            why: why.to_owned(),
        }
    }

    fn paced(&self, runs: &[RealRun]) -> String {
        let Some((benchmark, names)) = &self.real else { return "–".to_owned() };
        let Some(run) = runs.iter().find(|run| run.name == *benchmark) else {
            return "not run".to_owned();
        };
        let value = |name: &String| run.figures.get(name).or_else(|| run.controls.get(name));
        let found: Option<Vec<Interval>> =
            names.iter().map(|name| value(name).map(|value| (*value, *value))).collect();
        let Some(figures) = found else { return "not measured".to_owned() };
        let verdict = if self.rule.holds(&figures) { "reproduced" } else { "not reproduced" };
        format!("{}: {verdict}", shown(&figures))
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

/// The rows of all claims whose experiment ran.
pub(crate) fn rows(claims: &[Claim], outcomes: &[Outcome], runs: &[RealRun]) -> Vec<Row> {
    let of = |claim: &Claim| {
        if matches!(claim.rule, Rule::Unmeasured) {
            return Some(claim.row(&Outcome::default(), runs));
        }
        let outcome = outcomes.iter().find(|outcome| outcome.name == claim.experiment)?;
        Some(claim.row(outcome, runs))
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
        rows(&[claim], &[outcome(low, high)], &[])[0].verdict
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
        let rows =
            rows(&[claim(Rule::AtMost(1.0)), claim(Rule::Above(1.0))], &[outcome(0.5, 0.5)], &[]);
        assert_eq!((rows[0].why.as_str(), rows[1].why.as_str()), ("", "z"));
    }

    #[test]
    fn the_least_must_be_below_all_others_at_every_seed() {
        assert!(Rule::Least.holds(&[(0.9, 1.0), (1.1, 1.2)]));
        assert!(!Rule::Least.holds(&[(0.9, 1.1), (1.0, 1.2)]));
    }
}
