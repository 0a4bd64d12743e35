//! What exchanges leave of the device at the paper's proportions: fifteen vGPUs of 6, 11 and 16
//! slots on 54 of them, 1.22 ms for a slot, turns of 16 ms. Slots are smaller here, and an entry
//! takes as much longer.

use anyhow::Result;

use super::super::document::Document;
use super::super::{Context, median};
use super::{Size, Windows, mebibytes, row, together};

/// Slots of the device, of 1 MiB each.
const SLOTS: u64 = 54;
/// Slots of the vGPUs, in turn, and how many vGPUs there are.
const SIZES: [u64; 3] = [6, 11, 16];
const VGPUS: usize = 15;
/// Of a slot's 256 entries: 1.22 ms together.
const ENTRY_NS: u64 = 4_766;
const QUANTUM_US: &str = "16000";
/// The paper's baseline, Weft's placement without hidden copies, and the one that hides them.
const WAYS: [&str; 3] = ["scores", "exact", "pipelined"];

const fn windows(context: &Context) -> Windows {
    match context.quick {
        true => Windows { rounds: 1, before: 2, count: 4, seconds: 0.5 },
        false => Windows { rounds: 3, before: 2, count: 8, seconds: 1.0 },
    }
}

/// How long is looked.
pub(super) fn in_words(context: &Context) -> String {
    let Windows { rounds, count, seconds, .. } = windows(context);
    format!("{VGPUS} vGPUs on {SLOTS} slots, {rounds} x {} s", f64::from(count) * seconds)
}

pub(super) fn run(context: &Context, document: &mut Document) -> Result<()> {
    let windows = windows(context);
    let sizes: Vec<Size> = SIZES.into_iter().cycle().take(VGPUS).map(Size::all_worked_on).collect();
    // Of each way, by round: what exchanges left, what kernels had, and had of both.
    let mut parts = WAYS.map(|_| [const { Vec::new() }; 3]);
    for step in 0..windows.rounds * WAYS.len() {
        let index = (step + step / WAYS.len()) % WAYS.len();
        let seen = together(context, &sizes, &settings(WAYS[index]), windows)?;
        document.row(row("efficiency", WAYS[index], &seen));
        let passed = seen.passed;
        let figures =
            [passed.efficiency(ENTRY_NS), passed.busy(), passed.work_of_occupied(ENTRY_NS)];
        parts[index].iter_mut().zip(figures).for_each(|(part, figure)| part.push(figure));
    }
    for (way, parts) in WAYS.iter().zip(&parts) {
        for (what, part) in ["efficiency", "busy", "work_of_occupied"].iter().zip(parts) {
            document.figure(format!("{way}_{what}_real_modelled"), median(part));
        }
    }
    Ok(())
}

fn settings(way: &str) -> Vec<(&'static str, String)> {
    let most = SIZES.into_iter().max().unwrap_or_default();
    vec![
        ("device.memory", mebibytes(SLOTS)),
        ("device.slot", mebibytes(1)),
        ("device.oversubscribe", "4".to_owned()),
        ("device.placement", way.to_owned()),
        ("device.switch_entry_ns", ENTRY_NS.to_string()),
        ("defaults.memory", mebibytes(most)),
        ("scheduling.quantum_us", QUANTUM_US.to_owned()),
        ("scheduling.slack_us", "0".to_owned()),
    ]
}
