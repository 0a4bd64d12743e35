//! The report: a page, tables for people who read the repository, and all figures as JSON.

use std::fmt::Write as _;

use serde_json::json;

use super::Setup;
use crate::dymgpu::report::{markdown_table, rows};
use crate::outcome::{MadeOn, Outcome};
use crate::report::number;
use crate::report::page::{TEMPLATE, section, table};
use crate::report::svg::escape;

const ABOUT: &str = "\
GSaaS' production environment (Iserte et al., IEEE Access 2019, §V) and packing on a GPU trace, on \
the placement core that `weft_sched::placement` has. All figures are *simulated*, but for the cost \
of a decision, which is real time on the machine that made this page; competitors are *models* of \
what is described or published.";

/// How the model reads the paper; says nothing of results.
const READING: &str = "\
- \"At most 4 nodes\" is read in three ways: `parameter` (the model draws sizes up to 4), `clamp`
  (larger jobs are made 4) and `reject` (they are drawn again). The paper does not say which.
- Jobs are `queued` all at once or `arriving` as the model says. The number of jobs is not in the
  paper.
- The text on Table 3 has parts of 1 GB (32 cGPUs), Figure 13 parts of 2 GB (16 cGPUs): both are here.
- The sharing factor makes every job of a shared machine longer, whether it shares a GPU or not, as in
  the paper.
- Table 3 and Figure 13 have no numbers in the paper's text but \"50 %\" and \"2-4X\".
- Algorithm 1 of the paper, as printed, refuses an empty GPU; the words beside it are implemented.
- Published figures for the trace are means of ten seeds from the results that Weng et al.'s simulator
  ships; here are medians of other random orders of the same requests.
";

/// A figure, what it is, and its goal with whether more is better.
type Goal = (&'static str, &'static str, Option<(f64, bool)>);

const GOALS: [Goal; 16] = [
    ("speedup_1x", "times as fast with 16 cGPUs on 4 GPUs, no overhead", None),
    ("speedup_1_5x", "the same at a sharing factor of 1.5", None),
    ("speedup_2x", "the same at a sharing factor of 2", None),
    (
        "easy_wait_over_fcfs",
        "mean wait with EASY over first come first served, 16 cGPUs",
        Some((1.0, false)),
    ),
    (
        "frag_over_best_fit",
        "GPUs allocated by fragmentation over the better best fit",
        Some((1.0, true)),
    ),
    ("frag_over_host_fit", "the same over the model of the published best fit", Some((1.0, true))),
    ("frag_unallocated_over_best_fit", "GPUs left over, the same", Some((1.0, false))),
    ("frag_gpus_gained", "GPUs more than the better best fit", None),
    (
        "frag_online_over_best_fit",
        "GPUs allocated, where the mix is learnt on the way",
        Some((1.0, true)),
    ),
    ("of_optimum_fragmentation", "of the optimum on small clusters", None),
    (
        "decision_ms_100k",
        "ms for 99 of 100 decisions among 100,000 GPUs, slowest policy",
        Some((1.0, false)),
    ),
    (
        "decision_ms_75_remote_100k_fragmentation",
        "ms for 75 cGPUs on any hosts, 100,000 GPUs",
        None,
    ),
    (
        "decision_ms_first_100k_fragmentation_mixed",
        "ms for the first decision for a shape, 100,000 GPUs of several sizes in each host",
        Some((1.0, false)),
    ),
    (
        "decision_ms_p99_100k_fragmentation_mixed",
        "ms for 99 of 100 decisions there by the default policy",
        Some((1.0, false)),
    ),
    ("decision_ms_100k_mixed", "ms for 99 of 100 decisions there, slowest policy", None),
    ("invariant_violations", "broken rules of placement", Some((0.0, false))),
];

/// Everything that the report shows.
#[derive(Debug)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// The commit of the checkout.
    pub commit: String,
    /// The machine, and how much of it was there.
    pub made_on: MadeOn,
    /// What makes this run differ from others.
    pub setup: Setup,
    /// Seeds of the experiments that draw anything, from the first on.
    pub seeds: u64,
    /// What all experiments together say.
    pub summary: Outcome,
    /// The experiments.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// The figures, without what is drawn.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        json!({
            "name": "gsaas",
            "command": self.command,
            "commit": self.commit,
            "mode": "simulated",
            "machine": self.made_on.machine,
            "stolen": self.made_on.stolen,
            "window": self.summary.window,
            "seed": self.setup.seed,
            "seeds": self.seeds,
            "quick": self.setup.quick,
            "figures": self.summary.figures,
            "baselines": self.summary.baselines,
            "controls": self.summary.controls,
            "intervals": self.summary.intervals,
        })
    }

    /// Tables.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Sharing GPUs as a cloud service: GSaaS\n\n{ABOUT}\n\nThis folder is made by `{}` and by \
             nothing else, at commit `{}`. Figures are medians of {} seeds, with the least and the \
             largest. `index.html` has the plots.\n",
            self.command, self.commit, self.seeds
        );
        if self.setup.quick {
            text.push_str("\n**A quick run: few jobs and hosts, so the figures mean little.**\n");
        }
        markdown_table(
            &mut text,
            &["what", "value", "least to largest", "goal", "met"],
            &self.goals(),
        );
        let _ = write!(text, "\n## How the paper is read\n\n{READING}");
        text.push_str("\n## What is published beside ours\n");
        markdown_table(&mut text, &["what", "published", "here"], &self.comparisons());
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
    #[must_use]
    pub fn html(&self) -> String {
        let quick = if self.setup.quick { ", a quick run: its figures mean little" } else { "" };
        let mut body = format!(
            "<h1>Sharing GPUs as a cloud service: GSaaS</h1>\n<p>{}</p>\n<p><code>{}</code>, commit \
             {}{quick}. Hover over a point for its value.</p>\n<div class=\"tiles\">",
            escape(ABOUT),
            escape(&self.command),
            escape(&self.commit)
        );
        for (name, what, goal) in GOALS {
            let Some(value) = self.summary.figures.get(name) else { continue };
            let class = match goal.map(|goal| meets(*value, goal)) {
                Some(true) => " class=\"good\"",
                Some(false) => " class=\"bad\"",
                None => "",
            };
            let tile = format!("<b{class}>{}</b><span>{what}</span>", number(*value));
            let _ = write!(body, "<div class=\"tile\">{tile}</div>");
        }
        body.push_str("</div>\n<h2>How the paper is read</h2><ul>");
        for line in READING.replace("\n  ", " ").lines() {
            let _ = write!(body, "<li>{}</li>", escape(line.trim_start_matches("- ")));
        }
        body.push_str("</ul>\n<h2>What is published beside ours</h2>\n");
        table(&mut body, &["what", "published", "here"], &self.comparisons(), true);
        for outcome in &self.outcomes {
            section(&mut body, outcome, &[]);
        }
        let old = "<title>Weft: FairGV's evaluation and past it</title>";
        TEMPLATE.replace(old, "<title>Weft: GSaaS</title>").replace("<!--BODY-->", &body)
    }

    fn goals(&self) -> Vec<Vec<String>> {
        let row = |(name, what, goal): Goal| {
            let value = self.summary.figures.get(name)?;
            let (low, high) = self.summary.intervals.get(name).copied().unwrap_or((*value, *value));
            let shown = |(goal, more)| format!("{} {goal}", if more { "≥" } else { "≤" });
            let met = |goal| if meets(*value, goal) { "yes" } else { "**no**" };
            Some(vec![
                format!("{what} (`{name}`)"),
                number(*value),
                format!("{} to {}", number(low), number(high)),
                goal.map_or(String::new(), shown),
                goal.map_or(String::new(), |goal| met(goal).to_owned()),
            ])
        };
        GOALS.into_iter().filter_map(row).collect()
    }

    fn comparisons(&self) -> Vec<Vec<String>> {
        let all = self.outcomes.iter().flat_map(|outcome| &outcome.comparisons);
        all.map(|row| vec![row.what.clone(), row.paper.clone(), row.ours.clone()]).collect()
    }
}

fn meets(value: f64, (goal, more): (f64, bool)) -> bool {
    if more { value >= goal } else { value <= goal }
}
