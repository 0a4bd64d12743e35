//! The report: one self-contained page, the same data as JSON, and a Markdown summary.

mod markdown;
mod paced;
pub(crate) mod page;
mod paper;
mod real;
pub(crate) mod svg;
mod timeline;

use serde::{Deserialize, Serialize};

use crate::claims::{Row, rows, trap_cost};
use crate::experiments::claims;
use crate::outcome::Outcome;
pub(crate) use real::VOID;
pub use real::{RealError, RealRun, Void};

/// Everything that the report shows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// The commit of the checkout.
    pub commit: String,
    /// The first seed.
    pub seed: u64,
    /// Seeds of the paper's experiments, from the first on.
    pub seeds: u64,
    /// The run was a quick one, for checking that it works.
    pub quick: bool,
    /// Costs and their sources.
    pub calibration: Vec<(String, u64, String)>,
    /// What all experiments together say.
    pub summary: Outcome,
    /// The experiments.
    pub outcomes: Vec<Outcome>,
    /// Real and paced runs of `weft bench`, to stand beside.
    pub real: Vec<RealRun>,
}

impl Report {
    /// The paper's claims, each with its verdict.
    pub fn claims(&self) -> Vec<Row> {
        let trap = trap_cost(&self.calibration, &self.real);
        rows(&claims(), &self.outcomes, &self.real, &trap)
    }

    /// The page.
    pub fn html(&self) -> String {
        page::render(self)
    }

    /// The summary for people who read the repository.
    pub fn markdown(&self) -> String {
        markdown::render(self)
    }
}

/// A figure as people read it.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if size >= 10_000.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 0.01 {
        format!("{value:.4}")
    } else {
        format!("{value:.1e}")
    }
}

/// The figures that a reader looks for first: not those of single runs.
fn headline(outcome: &Outcome) -> impl Iterator<Item = (&String, &f64)> {
    let few = outcome.figures.len() <= 12;
    let names = ["_min", "_max", "mmr_0_2ms", "mmr_1ms", "mmr_6ms"];
    outcome
        .figures
        .iter()
        .filter(move |(name, _)| few || names.iter().any(|end| name.ends_with(end)))
}
