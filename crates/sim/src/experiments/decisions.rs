//! What a decision costs on this machine, and how many can be made without a violation.

use std::hint::black_box;
use std::time::Instant;

use weft_sched::bench_support::Saturated;
use weft_sched::{PolicyId, policy};

use super::lab::{Lab, RunError};
use crate::outcome::{Outcome, PlotKind};
use crate::seeds::median;

/// Decisions of one batch.
pub const BATCH: u32 = 200;

/// What a decision costs on this machine while that many vGPUs compete, in ns of real time: the
/// median over batches of [`BATCH`].
#[must_use]
pub fn decision_ns(policy: PolicyId, vgpus: u32, batches: u32) -> f64 {
    let mut device = Saturated::new(policy, vgpus);
    for _ in 0..2 * vgpus {
        black_box(device.decide());
    }
    let costs: Vec<f64> = (0..batches)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..BATCH {
                black_box(device.decide());
            }
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    median(&costs)
}

pub(super) fn decisions(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let batches = if lab.quick { 51 } else { 501 };
    let window = format!("real time: median of {batches} batches of {BATCH} decisions");
    let mut outcome = Outcome::new("decisions", "Cost of a decision", window);
    let mut line = Vec::new();
    for exponent in 1..=16 {
        let vgpus = 1_u32 << exponent;
        let cost = decision_ns(policy::by_name("fair")?, vgpus, batches);
        outcome.figure(format!("ns_p50_{vgpus}"), cost);
        line.push((f64::from(vgpus), cost));
    }
    let plot = outcome.plot(PlotKind::LogLines, "Cost of a decision", "vGPUs", "ns, median");
    plot.series("fair", line);
    outcome.note("The one figure here that is real time on this machine and not simulated.");
    Ok(outcome)
}
