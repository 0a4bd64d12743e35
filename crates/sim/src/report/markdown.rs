//! The summary as Markdown.

use std::fmt::Write as _;

use super::{Report, headline, number, real};

const HEAD: &str = "\
# Evaluation

FairGV's evaluation section, re-run in a simulator around the scheduling core that the daemon runs, and
what goes past it. `index.html` has the plots, `report.json` every figure. This folder is made by the
command below and by nothing else; change the experiments in `crates/sim`, not these files.

";

const DIFFERENCES: &str = "
## Where ours differ, and why

- **Overheads** are against a baseline whose calls cost what they cost where the device is in the
  program's own process (`native_call`): less than any driver's, so ours are rather too high. The
  profiles' periods already contain their calls, so both sides pay for those once more.
- **Coscheduling** changes little in Figures 8 and 9: tenants that wait block, so the holder's vCPU finds
  its core free. It matters beside processor hogs, which the paper does not deploy (`weft bench
  cosched`; `crates/sim/tests/fairness.rs` has the simulated case).
- **Credit's run times in Figure 11** depend on how many kernels stand in the hardware's queue when a
  slice ends. The paper does not say; the model has two.
- **Table 4** is a model with one fitted number. It meets the first percents and falls short where a
  piece no longer fills the device.
- **Table 3** does not add up for SRD1, HG and NW (kernel size times asynchronous calls exceeds 10 ms):
  only so many calls launch kernels as fit.
- **A woken vGPU waits up to a quantum itself** (`own_wait_quanta_max`): for the rest of the turn that goes
  on. Others do not wait longer than beside a tenant that never slept.
- **The lag bound** is that of `docs/scheduling.md` with a turn of quantum, overlap, yield time, release
  lead and the measured costs of a change of hands; predictions and samples that are off widen it by
  what they are off. It is checked between tenants, between a tenant's vGPUs and between a vGPU's
  sessions.
- **`preemption`** is a model throughout: no device here stops a kernel. What a stop costs is varied, not
  measured.

## What the simulator found in the node's worker

Four faults broke the bound in simulation first, and were corrected in `gate` and `node`: a budget could
be filled with kernels of which nothing was known, at a guess of 50 µs each; a worker gave its turn back
when a kernel's *estimate* had passed while the kernel went on for seconds; it did so at once when the
estimate was a guess, so that at quanta below half a millisecond the first kernels of a tenant's vGPUs
piled up; and what drained after a release was reported only with the session's next turn, so that a vGPU
with many sessions added their errors up. `Setup::careful = false` shows the old worker.
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
    text.push_str(DIFFERENCES);
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
