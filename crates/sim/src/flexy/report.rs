//! The report of Flexy's evaluation: a page, a summary in Markdown and the figures as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::experiments::Evaluation;
use super::paced::Paced;
use crate::outcome::{Comparison, MadeOn, Outcome};
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
    /// The machine, and how much of it was there.
    pub made_on: MadeOn,
    /// The run was a quick one.
    pub quick: bool,
    /// What was found.
    pub evaluation: Evaluation,
}

/// A figure, what it is, and its goal with whether more is better.
type Goal = (&'static str, &'static str, Option<(f64, bool)>);

const GOALS: [Goal; 19] = [
    (
        "deadline_sla_min",
        "deadline: in time at ≥ 85 % utilisation, worst column",
        Some((0.99, true)),
    ),
    ("deadline_sla_of_ceiling_min", "the same over the ceiling's", Some((0.99, true))),
    ("deadline_utilization", "utilisation there, least column", Some((0.85, true))),
    ("gap_to_ceiling_points", "points below the ceiling there, largest", Some((0.5, false))),
    (
        "sensitivity_gap_to_ceiling_points_max",
        "the same in the grid, at any of its loads",
        Some((0.5, false)),
    ),
    (
        "gap_to_ceiling_points_identical_jitter",
        "the same at f = 0.275 when times vary by 10 %",
        Some((0.5, false)),
    ),
    (
        "gap_to_ceiling_points_mixed_plain",
        "the same when the tasks of a job differ",
        Some((0.5, false)),
    ),
    (
        "gap_to_ceiling_points_mixed_noisy",
        "the same with both and estimates off by 30 %",
        Some((0.5, false)),
    ),
    ("deadline_resets", "resets of deadline", Some((0.0, false))),
    (
        "batch_wait_over_bound_max",
        "service of batch while one of its vGPUs waited, over the bound",
        Some((1.0, false)),
    ),
    ("batch_wait_max_s", "s that a batch task waited, its vGPU's others included", None),
    ("batch_dry_max_s", "s in which batch waited and none ran anywhere", Some((1.2, false))),
    ("deadline_not_best", "utilisations × policies ahead of deadline", Some((0.0, false))),
    ("sensitivity_cells_deadline_not_best", "cells of the grid with one", Some((0.0, false))),
    ("pool_mmr_min", "least MMR of weights 1:2:3 inside a pool", Some((0.95, true))),
    ("user_lag_over_bound_max", "user-facing lag over its bound", Some((1.0, false))),
    ("decision_ns_p50", "ns a task costs the core, real, 64 devices", Some((1_000.0, false))),
    ("decision_ns_p50_by_tenant", "the same where tenants share", Some((1_000.0, false))),
    ("invariant_violations", "runs that broke an invariant", Some((0.0, false))),
];

/// How the model reads the paper; says nothing of results.
const READING: &str = "\
- Columns of Table II are named by their user-facing to batch *job counts*, which follow from the
  paper's durations; its labels 20-80 and 60-40 contradict them. W1, W2, W3 are 80:20, 40:60, 20:80.
- Policies other than `deadline` are *models* of what the paper describes. `flexy` follows Algorithm 1
  to the letter (idle devices sort first); `flexy_packed` counts devices that serve in U. `adaptive` has
  K from a PID controller, which the paper names as future work.
- `clairvoyant_edf` is the core of `deadline` with exact times; it stops batch work at once and owes
  nobody anything. `ceiling` is of each seed the best of that and of three orders that know all times
  and are written without the core (earliest deadline, shortest, Moore and Hodgson's), for user-facing
  tasks alone. None is a proof that nothing better exists: to maximise tasks in time on several devices
  is NP-hard. On small cases a test holds them against exhaustive search.
- `deadline` and all models estimate a task by the last run of the same kernel. Every run of a kernel
  takes Table I's time, so that this estimate is exact after the first run; `jitter` and `noisy` are not.
- Utilisation is busy device time over device time until the last job arrives; a killed run was busy, a
  reset is not. A user-facing task counts if its SLA ends by then. Between two measured loads the curve
  is a straight line; policies are compared at every whole percent of utilisation that both reach.
- `batch_wait_max_s` is the longest time that one batch task waited without service, at any load and
  until all work is done, also for earlier tasks of its own vGPU, which nothing bounds. What `deadline`
  bounds is two things: `batch_dry_max_s`, the longest in which batch work waited and *no* device ran
  any; and what batch vGPUs have together while one of them waits without a device, by which each has
  its turn. The most of that over its bound is `batch_wait_over_bound_max`, and above it a run breaks
  an invariant. `batch_turnaround_max_s` is the longest from submission to end.
";

impl Report {
    /// With what was measured on nodes: on the policies' curves, and in a section of its own.
    #[must_use]
    pub fn beside(mut self, paced: &Paced) -> Self {
        paced.beside(&mut self.evaluation.sections);
        self
    }

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
            section(&mut body, outcome, &[]);
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
            machine: self.made_on.machine.clone(),
            stolen: self.made_on.stolen,
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
    machine: String,
    stolen: f64,
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

/// The figures of a policy in a column's table.
const COLUMNS: [&str; 10] = [
    "at_50",
    "at_70",
    "at_85",
    "user_p999_at_goal_s",
    "user_longest_at_goal_s",
    "batch_wait_at_goal_s",
    "batch_wait_max_s",
    "batch_turnaround_max_s",
    "batch_dry_max_s",
    "resets_per_run_max",
];
const TABLE: &str = "\n| | in time, % (± half the 95 % interval), at 50 % | at 70 % | at 85 % | \
    user latency, P99.9 at the goal's load, s | longest there | longest wait of a batch task there, s | at any load | longest turnaround \
    | no batch anywhere | resets a run |\n|---|---|---|---|---|---|---|---|---|---|---|\n";

fn markdown_section(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(text, "\n## {}: {}\n\n{}.", outcome.name, outcome.title, outcome.window);
    if !outcome.comparisons.is_empty() {
        text.push_str("\n| | paper | here |\n|---|---|---|\n");
        for row in &outcome.comparisons {
            let _ = writeln!(text, "| {} | {} | {} |", row.what, row.paper, row.ours);
        }
    }
    let names = super::study::ENTRIES.map(|entry| entry.name);
    let has = |name: &&str| outcome.figures.contains_key(&format!("{name}_batch_wait_max_s"));
    if !names.iter().any(has) {
        if outcome.comparisons.is_empty() && !outcome.figures.is_empty() {
            text.push_str("\n| figure | value |\n|---|---|\n");
            for (name, value) in &outcome.figures {
                let _ = writeln!(text, "| {name} | {} |", number(*value));
            }
        }
    } else {
        text.push_str(TABLE);
        for name in names {
            let figure = |end: &str| outcome.figures.get(&format!("{name}_{end}"));
            let of = |end: &str| {
                let Some(value) = figure(end) else { return "–".to_owned() };
                // Parts in time have an interval.
                let half = end.starts_with("at_").then(|| figure(&format!("half_{end}"))).flatten();
                half.map_or_else(|| format!("{value:.1}"), |half| format!("{value:.1} ± {half:.1}"))
            };
            let cells: Vec<String> = COLUMNS.iter().map(|column| of(column)).collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "\n{note}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut summary = Outcome::new("flexy", "", "means of 10 seeds");
        summary.figure("deadline_sla_min", 0.98);
        summary.figure("deadline_resets", 0.0);
        summary.control("fifo_sla_80_20", 0.3);
        let mut column = Outcome::new("80:20 within 200 ms", "<jobs>", "no backlog");
        column.figure("deadline_at_50", 98.24);
        column.figure("deadline_half_at_50", 0.31);
        column.figure("deadline_batch_wait_max_s", 58.1);
        column.compare("Where flexy is behind", "–", "nowhere".to_owned());
        let evaluation = Evaluation { summary, sections: vec![column] };
        let (command, commit) = ("weft sim flexy".to_owned(), "c0ffee".to_owned());
        let made_on = MadeOn { machine: "two cores".to_owned(), stolen: 0.25 };
        Report { command, commit, made_on, quick: false, evaluation }
    }

    #[test]
    fn a_goal_says_whether_it_is_met_and_a_part_in_time_has_its_interval() {
        let text = report().markdown();
        assert!(text.contains("`weft sim flexy` at commit `c0ffee`"), "{text}");
        assert!(text.contains("(`deadline_sla_min`) | 0.9800 | ≥ 0.99 | **no** |"), "{text}");
        assert!(text.contains("(`deadline_resets`) | 0 | ≤ 0 | yes |"), "{text}");
        // What was not found is not judged.
        assert!(!text.contains("pool_mmr_min"), "{text}");
        assert!(text.contains("| deadline | 98.2 ± 0.3 | – | – |"), "{text}");
        assert!(text.contains("| Where flexy is behind | – | nowhere |"), "{text}");
        assert!(text.contains("| control fifo_sla_80_20 | 0.3000 |"), "{text}");
        assert!(!text.contains("quick run"), "{text}");
    }

    #[test]
    fn a_quick_run_and_names_with_marks_are_shown_as_what_they_are() {
        let report = Report { quick: true, ..report() };
        assert!(report.markdown().contains("**A quick run: the figures mean little.**"));
        let page = report.html();
        assert!(page.contains("a quick run") && page.contains("&lt;jobs&gt;"), "{page}");
        assert!(!page.contains("<jobs>") && page.contains("<b class=\"bad\">0.9800</b>"), "{page}");
    }

    #[test]
    fn the_figures_of_all_sections_are_in_the_json() {
        let json: serde_json::Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        assert_eq!(json["figures"]["deadline_sla_min"], 0.98);
        assert_eq!(json["controls"]["fifo_sla_80_20"], 0.3);
        assert_eq!(json["sections"][0]["figures"]["deadline_half_at_50"], 0.31);
        assert_eq!(json["sections"][0]["comparisons"][0]["ours"], "nowhere");
        assert_eq!(json["machine"], "two cores");
        assert_eq!(json["stolen"], 0.25);
    }
}
