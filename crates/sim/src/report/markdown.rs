//! The summary as Markdown.

use std::fmt::Write as _;

use super::{Report, headline, number, real};
use crate::claims::counts;

const HEAD: &str = "\
# Evaluation

FairGV's evaluation section, re-run in a simulator around the scheduling core that the daemon runs, and
what goes past it. `index.html` has the plots, `report.json` every figure. This folder is made by the
command below and by nothing else; change the experiments in `crates/sim`, not these files.

";

/// What the models are, and what they leave out.
const MODELS: &str = "
## What is modelled, and how

- **Overheads** are against a native baseline that polls for its answers and whose calls cost what they
  cost where the device is in the program's own process (`native_call`). The profiles' periods already
  contain their calls, so both sides pay for those once more.
- **GVirtuS** (Figures 2 and 7) costs what an echo of four bare system calls took (`trapping_call`). That is
  an assumption: what a transport of four system calls costs that was measured stands in its rows, and
  *reproduced* there is of the assumption.
- **Figures 8 and 9**: vCPUs that wait for an answer block after 50 µs, but for Credit-poll's.
- **Figure 11**: two kernels stand in the hardware's queue when a slice of Credit ends. The paper does not
  say how many.
- **Table 3** does not add up for SRD1, HG and NW (kernel size times asynchronous calls exceeds 10 ms):
  only so many calls launch kernels as fit.
- **The lag bound** is the design's, `(q + l)/w + (q + l)/w` with `q` the quantum (and σ and the sleeper
  credit where they are set) and nothing that a driver adds to a turn, but for devices that stop kernels
  ([ADR 13](../adr/0013-the-plain-lag-bound.md)). It is checked at every report of service, between
  tenants, between a tenant's vGPUs and between a vGPU's sessions (`lag_bound_share_max`).
- **`preemption`** is a model throughout: no device here stops a kernel. What a stop costs is varied, not
  measured.
";

pub(super) fn render(report: &Report) -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(
        text,
        "Made by `{}` at commit `{}`. Figures of the paper's experiments are medians of {} seeds from {} \
         on, with the least and the largest of them; the others are of seed {}. All figures are *simulated* unless a row says real or \
         paced; costs are those of `crates/sim/calibration.toml`; competitors are *models* of what the \
         paper describes.",
        report.command, report.commit, report.seeds, report.seed, report.seed
    );
    if report.quick {
        text.push_str("\n**A quick run: short windows, so the figures mean little.**\n");
    }
    text.push_str("\n| figure | value |\n|---|---|\n");
    for (name, value) in &report.summary.figures {
        let _ = writeln!(text, "| `{name}` | {} |", number(*value));
    }
    claims(&mut text, report);
    past(&mut text, report);
    text.push_str(MODELS);
    text.push_str(
        "\n## Controls that must fail\n\n| experiment | control | value |\n|---|---|---|\n",
    );
    for outcome in &report.outcomes {
        for (name, value) in &outcome.controls {
            let _ = writeln!(text, "| {} | `{name}` | {} |", outcome.name, number(*value));
        }
    }
    text.push_str("\n## Experiments\n");
    for outcome in &report.outcomes {
        let _ = writeln!(text, "\n**{}**: {} ({}).", outcome.name, outcome.title, outcome.window);
        let figures: Vec<String> =
            headline(outcome).map(|(name, value)| format!("`{name}` {}", number(*value))).collect();
        if !figures.is_empty() {
            let _ = writeln!(text, "{}.", figures.join(", "));
        }
        for note in &outcome.notes {
            let _ = writeln!(text, "- {note}");
        }
        if let Some(first) = &outcome.first_violation {
            let _ = writeln!(
                text,
                "- **{} steps beyond the lag bound, {} other violations**; the first: {first}",
                outcome.lag_bound_violations, outcome.other_violations
            );
        }
    }
    let rows = real::rows(&report.real, &report.outcomes);
    if !rows.is_empty() {
        text.push_str(
            "\n## Real and paced runs\n\nWindows and kernel mixes differ, so what is simulated is the \
             nearest, not the same.\n\n| figure (window) | mode | measured | simulated |\n",
        );
        text.push_str("|---|---|---|---|\n");
        for [what, mode, measured, simulated] in rows {
            let _ = writeln!(text, "| {what} | {mode} | {measured} | {simulated} |");
        }
        let _ = writeln!(text, "\n{}", real::TABLE4);
    }
    text
}

fn claims(text: &mut String, report: &Report) {
    let rows = report.claims();
    let _ = write!(
        text,
        "\n## The paper's claims\n\n{} A claim is reproduced if it holds at every seed; the test is \
         in brackets.\n\n\
         | | claim | paper | simulated | verdict | paced device | why |\n\
         |---|---|---|---|---|---|---|\n",
        counts(&rows)
    );
    for row in rows {
        let verdict = match row.verdict {
            "reproduced" => "reproduced".to_owned(),
            other => format!("**{other}**"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {verdict} | {} | {} |",
            row.experiment,
            row.what,
            row.paper,
            row.simulated,
            row.paced,
            row.reasons()
        );
    }
}

fn past(text: &mut String, report: &Report) {
    text.push_str(
        "\n## Past the paper\n\n| experiment | what | paper | here |\n|---|---|---|---|\n",
    );
    for outcome in &report.outcomes {
        for row in &outcome.comparisons {
            let name = &outcome.name;
            let _ = writeln!(text, "| {name} | {} | {} | {} |", row.what, row.paper, row.ours);
        }
    }
}
