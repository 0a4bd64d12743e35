//! The report: a page, tables for people who read the repository, and all figures as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::json;
use weft_sched::memory::paper::{REDERIVED, REDERIVED_NAMES};

use super::slots::Slots;
use super::{Setup, mixed, place, real};
use crate::outcome::{MadeOn, Outcome};
use crate::report::page::{TEMPLATE, section, table};
use crate::report::svg::escape;
use crate::report::{RealRun, number};

const ABOUT: &str = "\
DymGPU's evaluation (Gu et al., Cluster Computing 2019) re-run on the placement core that \
`weft_sched::memory` has, and what goes past it. All figures are *simulated* with *modelled* costs \
unless a row or a section says real; competitors are *models* of what the paper describes.";

/// What a figure should be.
#[derive(Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Told, not judged.
    Told,
}

use Goal::{AtLeast, AtMost, Told};

/// A figure, what it is, and its goal.
const GOALS: [(&str, &str, Goal); 15] = [
    ("copies_over_scores_15", "copies over gScale's, 15 vGPUs, least by placement", AtMost(0.77)),
    ("pipelined_efficiency", "efficiency with hidden copies, 15 vGPUs", AtLeast(0.90)),
    ("scores_efficiency", "efficiency of gScale's model there", Told),
    ("lag_quanta_over", "quanta of lag more for it", AtMost(1.0)),
    ("exact_mismatches", "cases in which `exact` is not the best of all layouts", AtMost(0.0)),
    ("exact_searched_mismatches", "the same without its proof", Told),
    (
        "decision_us_max",
        "decision, 1,000 vGPUs on 10,000 slots, µs, largest median",
        AtMost(1_000.0),
    ),
    ("decision_us_worst", "the longest decision, µs", Told),
    ("search_us_exact", "search for a better layout there, which nobody waits for, µs", Told),
    (
        "switch_time_saved_size_max",
        "switch time saved, Algorithm 1: the paper's 53 %",
        AtLeast(0.53),
    ),
    ("switch_time_saved_pipelined_max", "the same, `pipelined`", AtLeast(0.53)),
    (
        "copies_size_over_scores_least",
        "copies over gScale's, at best: the paper's 65 %",
        AtMost(0.65),
    ),
    (
        "speedup_size_max",
        "programs over gScale's, Algorithm 1, at best: the paper's 1.39",
        AtLeast(1.39),
    ),
    ("speedup_pipelined_max", "the same, `pipelined`", AtLeast(1.39)),
    ("invariant_violations", "turns in which a vGPU did not find its memory", AtMost(0.0)),
];

/// Everything that the report shows.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// The commit of the checkout.
    pub commit: String,
    /// The machine, and how much of it was there.
    pub made_on: MadeOn,
    /// What makes this run differ from others.
    pub seed: u64,
    /// Seeds of the experiments that draw anything, from the first on.
    pub seeds: u64,
    /// The run was a quick one.
    pub quick: bool,
    /// What all experiments together say.
    pub summary: Outcome,
    /// The experiments, and what was measured on a node.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Of a run.
    pub fn new(
        command: String,
        commit: String,
        made_on: MadeOn,
        setup: Setup,
        seeds: u64,
        summary: Outcome,
        outcomes: Vec<Outcome>,
    ) -> Self {
        let Setup { seed, quick } = setup;
        Self { command, commit, made_on, seed, seeds, quick, summary, outcomes }
    }

    /// With a document of `weft bench memory`.
    #[must_use]
    pub fn beside(mut self, run: &RealRun) -> Self {
        self.outcomes.push(real::beside(run, &self.summary));
        self
    }

    /// The figures, without what is drawn.
    pub fn json(&self) -> serde_json::Value {
        json!({
            "command": self.command,
            "commit": self.commit,
            "mode": "simulated",
            "machine": self.made_on.machine,
            "stolen": self.made_on.stolen,
            "seed": self.seed,
            "seeds": self.seeds,
            "quick": self.quick,
            "figures": self.summary.figures,
            "baselines": self.summary.baselines,
            "controls": self.summary.controls,
            "intervals": self.summary.intervals,
        })
    }

    /// Tables.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Memory placement: DymGPU\n\n{ABOUT}\n\nThis folder is made by `{}` and by nothing \
             else, at commit `{}`. Where anything is drawn, figures are medians of {} seeds, with the \
             least and the largest. `index.html` has the plots.\n",
            self.command, self.commit, self.seeds
        );
        if self.quick {
            text.push_str("\n**A quick run: short windows, so the figures mean little.**\n");
        }
        text.push_str("\n## Goals\n");
        markdown_table(&mut text, &["what", "figure", "value", "goal", "met"], &self.goals());
        text.push_str("\n## The paper beside ours\n");
        markdown_table(&mut text, &["what", "paper", "here"], &self.comparisons());
        text.push_str("\n## Copies per round, re-derived beside ours\n");
        let header: Vec<&str> = ["vGPUs"].into_iter().chain(REDERIVED_NAMES).collect();
        markdown_table(&mut text, &header, &self.rederived());
        for outcome in &self.outcomes {
            let _ = write!(text, "\n## {}\n\n{}.\n", outcome.title, outcome.window);
            for note in &outcome.notes {
                let _ = write!(text, "\n{note}\n");
            }
            markdown_table(&mut text, &["figure", "value", "least to largest"], &rows(outcome));
        }
        text
    }

    /// The page. It loads nothing.
    pub fn html(&self) -> String {
        let mut body = format!(
            "<h1>Memory placement: DymGPU</h1>\n<p>{}</p>\n<p><code>{}</code>, commit {}{}</p>\n",
            escape(ABOUT),
            escape(&self.command),
            escape(&self.commit),
            if self.quick { ", a quick run: its figures mean little" } else { "" }
        );
        table(&mut body, &["what", "figure", "value", "goal", "met"], &self.goals(), true);
        table(&mut body, &["what", "paper", "here"], &self.comparisons(), true);
        body.push_str(
            "<h2>Who has the slots: 15 vGPUs of 384, 704 and 1,024 MiB after two rounds</h2>\n\
             <div class=\"plots\">",
        );
        for name in weft_sched::memory::NAMES {
            body.push_str(&Slots::after_two_rounds(&place(name, &mixed(15))).drawn(name));
        }
        body.push_str("</div>\n<h2>Copies per round, re-derived beside ours</h2>\n");
        let header: Vec<&str> = ["vGPUs"].into_iter().chain(REDERIVED_NAMES).collect();
        table(&mut body, &header, &self.rederived(), false);
        for outcome in &self.outcomes {
            section(&mut body, outcome, &[]);
        }
        let title = "<title>Weft: memory placement</title>";
        let old = "<title>Weft: FairGV's evaluation and past it</title>";
        TEMPLATE.replace(old, title).replace("<!--BODY-->", &body)
    }

    /// What was to be reached. A figure that was not measured is missed.
    fn goals(&self) -> Vec<Vec<String>> {
        let row = |(name, what, goal): (&str, &str, Goal)| {
            let value = self.summary.figures.get(name).copied();
            let (goal, met) = match goal {
                AtMost(most) => (format!("≤ {most}"), Some(value.is_some_and(|one| one <= most))),
                AtLeast(least) => {
                    (format!("≥ {least}"), Some(value.is_some_and(|one| one >= least)))
                }
                Told => (String::new(), None),
            };
            let value = value.map_or_else(|| "not measured".to_owned(), number);
            let met = met.map_or("", |met| if met { "yes" } else { "no" });
            vec![what.to_owned(), name.to_owned(), value, goal, met.to_owned()]
        };
        GOALS.into_iter().map(row).collect()
    }

    fn comparisons(&self) -> Vec<Vec<String>> {
        let all = self.outcomes.iter().flat_map(|outcome| &outcome.comparisons);
        all.map(|row| vec![row.what.clone(), row.paper.clone(), row.ours.clone()]).collect()
    }

    /// Ours, with what was expected where it differs.
    fn rederived(&self) -> Vec<Vec<String>> {
        let cell = |count: usize, name: &str, expected: usize| {
            let found = self.summary.figures.get(&format!("copies_{name}_{count}"));
            match found {
                Some(found) if (found - expected as f64).abs() < 1e-9 => format!("{found}"),
                Some(found) => format!("{found} (expected {expected})"),
                None => "not run".to_owned(),
            }
        };
        let row = |(count, expected): (usize, [usize; 5])| {
            let cells =
                REDERIVED_NAMES.iter().zip(expected).map(|(name, one)| cell(count, name, one));
            [count.to_string()].into_iter().chain(cells).collect()
        };
        REDERIVED.into_iter().map(row).collect()
    }
}

/// Figures, baselines and controls with their intervals.
pub(crate) fn rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let kinds = [
        ("", "", &outcome.figures),
        ("baseline ", "", &outcome.baselines),
        ("control ", "control:", &outcome.controls),
    ];
    let row = |kind: &str, prefix: &str, name: &String, value: &f64| {
        let interval = outcome.intervals.get(&format!("{prefix}{name}"));
        let interval = interval.filter(|_| outcome.seeds > 1);
        let interval =
            interval.map_or(String::new(), |(a, b)| format!("{} to {}", number(*a), number(*b)));
        vec![format!("{kind}{name}"), number(*value), interval]
    };
    let of_kind = |(kind, prefix, values): (&'static str, &'static str, &'_ _)| {
        let values: &std::collections::BTreeMap<String, f64> = values;
        values.iter().map(|(name, value)| row(kind, prefix, name, value)).collect::<Vec<_>>()
    };
    kinds.into_iter().flat_map(of_kind).collect()
}

pub(crate) fn markdown_table(text: &mut String, header: &[&str], rows: &[Vec<String>]) {
    let _ = write!(text, "\n| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}
