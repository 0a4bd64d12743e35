//! The report of Flexy's evaluation: a page, a summary in Markdown and the figures as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::experiments::Evaluation;
use crate::outcome::{Comparison, Outcome};
use crate::report::number;
use crate::report::page::{TEMPLATE, section, table};
use crate::report::svg::escape;

/// Everything that the report shows.
#[derive(Debug)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// The commit of the checkout.
    pub commit: String,
    /// The run was a quick one.
    pub quick: bool,
    /// What was found.
    pub evaluation: Evaluation,
}

/// A figure, what it is, and its goal with whether more is better.
type Goal = (&'static str, &'static str, Option<(f64, bool)>);

const GOALS: [Goal; 10] = [
    (
        "deadline_sla_min",
        "deadline: in time at ≥ 85 % utilisation, worst column",
        Some((0.99, true)),
    ),
    ("deadline_sla_of_feasible_min", "the same over the ceiling's", Some((0.99, true))),
    ("deadline_utilization", "utilisation there, least column", Some((0.85, true))),
    ("gap_to_ceiling_points", "points below the clairvoyant ceiling, largest", Some((0.5, false))),
    ("deadline_resets", "resets of deadline", Some((0.0, false))),
    ("batch_wait_max_s", "s in which batch waited and had no device, longest", Some((1.2, false))),
    ("deadline_not_best", "utilisations × policies ahead of deadline", Some((0.0, false))),
    ("pool_mmr_min", "least MMR of weights 1:2:3 inside a pool", Some((0.95, true))),
    ("decision_ns_p50", "ns a task costs the core, real, 64 devices", Some((1_000.0, false))),
    ("invariant_violations", "runs that broke an invariant", Some((0.0, false))),
];

/// How the model reads the paper; says nothing of results.
const READING: &str = "\
- Columns of Table II are named by their user-facing to batch *job counts*, which follow from the
  paper's durations; its labels 20-80 and 60-40 contradict them. W1, W2, W3 are 80:20, 40:60, 20:80.
- Policies other than `deadline` are *models* of what the paper describes. `flexy` follows Algorithm 1
  to the letter (idle devices sort first); `flexy_packed` counts devices that serve in U. `adaptive` has
  K from a PID controller, which the paper names as future work.
- `ceiling` knows task times exactly, stops batch work at once and owes nobody anything: what an online
  order can reach. It is not a proof that nothing better exists.
- `deadline` and all models but the ceiling estimate a task by the last run of the same kernel.
- Utilisation is busy device time over device time until the last job arrives; a killed run was busy, a
  reset is not. Between two measured loads the curve is a straight line.
- Batch wait is the longest time in which batch work waited and *no* device ran any; how long single
  batch tasks took from submission to end is `batch_task_longest_s` in report.json.
- Feasible tasks are those that the ceiling served in time, as a share; that a queue holds more work than
  the devices can do within the SLA makes the rest late under any order.
";

impl Report {
    /// The page; it loads nothing.
    pub fn html(&self) -> String {
        let mut body = String::new();
        let _ = write!(
            body,
            "<h1>Flexy's evaluation and past it</h1>\n<p>Simulated around the pool core: \
             <code>{}</code>, commit {}{}. Competitors are models. Hover over a point for its value.\
             </p>\n<div class=\"tiles\">",
            escape(&self.command),
            escape(&self.commit),
            if self.quick { ", a quick run: its figures mean little" } else { "" }
        );
        for (name, what, goal) in GOALS {
            let Some(value) = self.evaluation.summary.figures.get(name) else { continue };
            let class = match goal.map(|goal| meets(*value, goal)) {
                Some(true) => " class=\"good\"",
                Some(false) => " class=\"bad\"",
                None => "",
            };
            let goal = goal.map_or(String::new(), spell);
            let number = number(*value);
            let tile = format!("<b{class}>{number}</b><span>{what}{goal}</span>");
            let _ = write!(body, "<div class=\"tile\">{tile}</div>");
        }
        body.push_str("</div>\n<h2>How the paper is read</h2><ul>");
        for line in READING.replace("\n  ", " ").lines() {
            let _ = write!(body, "<li>{}</li>", escape(line.trim_start_matches("- ")));
        }
        body.push_str("</ul>\n");
        for outcome in &self.evaluation.sections {
            section(&mut body, outcome);
        }
        body.push_str("<h2>All figures</h2>");
        table(&mut body, &["figure", "value"], &self.rows(), false);
        TEMPLATE.replace("<!--BODY-->", &body).replace("FairGV's evaluation", "Flexy's evaluation")
    }

    /// The summary for people who read the repository.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Flexy's evaluation and past it\n\nMade by `{}` at commit `{}` and by nothing else; change \
             `crates/sim/src/flexy`, not these files. All figures are *simulated*, but for the cost of a \
             decision; {}.\n",
            self.command, self.commit, self.evaluation.summary.window
        );
        if self.quick {
            text.push_str("\n**A quick run: the figures mean little.**\n");
        }
        text.push_str("\n| goal | value | goal | met |\n|---|---|---|---|\n");
        for (name, what, goal) in GOALS {
            let Some(value) = self.evaluation.summary.figures.get(name) else { continue };
            let met = goal.map_or("", |goal| if meets(*value, goal) { "yes" } else { "**no**" });
            let goal = goal.map_or(String::new(), spell);
            let goal = goal.trim_start_matches(", goal ");
            let _ = writeln!(text, "| {what} (`{name}`) | {} | {goal} | {met} |", number(*value));
        }
        let _ = write!(text, "\n## How the paper is read\n\n{READING}");
        for outcome in &self.evaluation.sections {
            markdown_section(&mut text, outcome);
        }
        text.push_str("\n## All figures of the summary\n\n| figure | value |\n|---|---|\n");
        for row in self.rows() {
            let _ = writeln!(text, "| {} | {} |", row[0], row[1]);
        }
        text
    }

    /// The figures, without the points of the plots.
    ///
    /// # Errors
    /// Never for data of this shape; the encoder's signature has one.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        let of = |outcome: &Outcome| Section {
            name: outcome.name.clone(),
            window: outcome.window.clone(),
            figures: outcome.figures.clone().into_iter().collect(),
            comparisons: outcome.comparisons.clone(),
        };
        let all = &self.evaluation.summary;
        serde_json::to_string_pretty(&Document {
            command: self.command.clone(),
            commit: self.commit.clone(),
            mode: "simulated",
            figures: all.figures.clone().into_iter().collect(),
            baselines: all.baselines.clone().into_iter().collect(),
            controls: all.controls.clone().into_iter().collect(),
            sections: self.evaluation.sections.iter().map(of).collect(),
        })
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let all = &self.evaluation.summary;
        let parts =
            [("", &all.figures), ("baseline ", &all.baselines), ("control ", &all.controls)];
        let rows = parts.into_iter().flat_map(|(kind, values)| {
            values.iter().map(move |(name, value)| vec![format!("{kind}{name}"), number(*value)])
        });
        rows.collect()
    }
}

type Values = std::collections::BTreeMap<String, f64>;

#[derive(Serialize)]
struct Document {
    command: String,
    commit: String,
    mode: &'static str,
    figures: Values,
    baselines: Values,
    controls: Values,
    sections: Vec<Section>,
}

#[derive(Serialize)]
struct Section {
    name: String,
    window: String,
    figures: Values,
    comparisons: Vec<Comparison>,
}

fn meets(value: f64, (goal, more): (f64, bool)) -> bool {
    if more { value >= goal } else { value <= goal }
}

fn spell((goal, more): (f64, bool)) -> String {
    format!(", goal {} {goal}", if more { "≥" } else { "≤" })
}

fn markdown_section(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(text, "\n## {}: {}\n\n{}.", outcome.name, outcome.title, outcome.window);
    if !outcome.comparisons.is_empty() {
        text.push_str("\n| | paper | here |\n|---|---|---|\n");
        for row in &outcome.comparisons {
            let _ = writeln!(text, "| {} | {} | {} |", row.what, row.paper, row.ours);
        }
    }
    let at = |name: &str, end: &str| {
        let value = outcome.figures.get(&format!("{name}_at_{end}"));
        value.map_or_else(|| "–".to_owned(), |value| format!("{value:.1}"))
    };
    let names = super::study::ENTRIES.map(|entry| entry.name);
    let has = |name: &&str| outcome.figures.contains_key(&format!("{name}_batch_wait_max_s"));
    let lines: Vec<&str> = names.into_iter().filter(has).collect();
    if lines.is_empty() {
        if outcome.comparisons.is_empty() && !outcome.figures.is_empty() {
            text.push_str("\n| figure | value |\n|---|---|\n");
            for (name, value) in &outcome.figures {
                let _ = writeln!(text, "| {name} | {} |", number(*value));
            }
        }
    } else {
        text.push_str(
            "\n| in time, % | at 50 % | at 70 % | at 85 % | batch without a device, s | resets a run |\n\
             |---|---|---|---|---|---|\n",
        );
    }
    for name in lines {
        let wait = outcome.figures[&format!("{name}_batch_wait_max_s")];
        let resets = outcome.figures.get(&format!("{name}_resets_per_run_max"));
        let resets = resets.map_or_else(|| "0".to_owned(), |value| number(*value));
        let (half, seventy, goal) = (at(name, "50"), at(name, "70"), at(name, "85"));
        let _ = writeln!(text, "| {name} | {half} | {seventy} | {goal} | {wait:.1} | {resets} |");
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "\n{note}");
    }
}
