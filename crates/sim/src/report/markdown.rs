//! The summary as Markdown.

use std::fmt::Write as _;

use super::{Report, headline, number, real};

const HEAD: &str = "\
# Evaluation

FairGV's evaluation section, re-run in a simulator around the scheduling core that the daemon runs, and
what goes past it. `index.html` has the plots, `report.json` every figure. This folder is made by the
command below and by nothing else; change the experiments in `crates/sim`, not these files.

";

pub(super) fn render(report: &Report) -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(
        text,
        "Made by `{}` at commit `{}`, seed {}. All figures are *simulated* unless a row says real or \
         paced; costs are those of `crates/sim/calibration.toml`; competitors are *models* of what the \
         paper describes.",
        report.command, report.commit, report.seed
    );
    if report.quick {
        text.push_str("\n**A quick run: short windows, so the figures mean little.**\n");
    }
    text.push_str("\n| figure | value |\n|---|---|\n");
    for (name, value) in &report.summary.figures {
        let _ = writeln!(text, "| `{name}` | {} |", number(*value));
    }
    text.push_str(
        "\n## The paper beside ours\n\n| experiment | what | paper | here |\n|---|---|---|---|\n",
    );
    for outcome in &report.outcomes {
        for row in &outcome.comparisons {
            let name = &outcome.name;
            let _ = writeln!(text, "| {name} | {} | {} | {} |", row.what, row.paper, row.ours);
        }
    }
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
            "\n## Real and paced runs\n\n| figure (window) | mode | measured | simulated |\n",
        );
        text.push_str("|---|---|---|---|\n");
        for [what, mode, measured, simulated] in rows {
            let _ = writeln!(text, "| {what} | {mode} | {measured} | {simulated} |");
        }
    }
    text
}
