//! Long kernels: what slicing costs (FairGV Table 4) and what it buys.

use super::lab::{Lab, RunError, Shares, measure};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::random::Random;
use crate::worker::Source;
use crate::world::World;

/// Table 4 for one grid: blocks, time in ms, (pieces, slowdown in %).
struct Grid {
    name: &'static str,
    blocks: u64,
    ms: u64,
    rows: [(u64, f64); 9],
}

const GRIDS: [Grid; 2] = [
    Grid {
        name: "600x600",
        blocks: 360_000,
        ms: 19_506,
        rows: [
            (1, 0.0),
            (64, 0.0),
            (128, 1.0),
            (256, 4.3),
            (512, 11.8),
            (1_024, 23.9),
            (2_048, 47.8),
            (3_072, 71.1),
            (4_096, 94.6),
        ],
    },
    Grid {
        name: "900x900",
        blocks: 810_000,
        ms: 81_030,
        rows: [
            (1, 0.0),
            (64, 0.0),
            (128, 0.0),
            (256, 0.0),
            (512, 0.2),
            (1_024, 6.2),
            (2_048, 17.5),
            (3_072, 30.7),
            (4_096, 44.5),
        ],
    },
];
/// Thread blocks that the model's device executes at a time. Fitted: the paper does not say how
/// many of MM's blocks its 24 multiprocessors hold.
const RESIDENT: usize = 96;

/// A row of the paper's table that cuts the kernel.
pub(super) struct PaperRow {
    pub(super) grid: &'static str,
    pub(super) pieces: u64,
    /// Blocks per piece.
    pub(super) blocks: u64,
    /// In percent.
    pub(super) slowdown: f64,
}

/// The paper's table.
pub(super) fn paper_rows() -> impl Iterator<Item = PaperRow> {
    GRIDS.iter().flat_map(|grid| {
        grid.rows[1..].iter().map(|&(pieces, slowdown)| {
            let blocks = grid.blocks.div_ceil(pieces);
            PaperRow { grid: grid.name, pieces, blocks, slowdown }
        })
    })
}

pub(super) fn table4(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let mut outcome = Outcome::new("table4", "Slowdown by slicing", "one kernel per row");
    let costs = lab.costs.slice.ns;
    for grid in &GRIDS {
        lab.say(grid.name);
        // A quick run takes a tenth of the grid: the same pieces, a tenth as many.
        let part = if lab.quick { 10 } else { 1 };
        let whole = execute(lab.seed, grid, grid.blocks, 1, part, costs);
        let mut line = Vec::new();
        for (pieces, _) in grid.rows {
            let blocks = grid.blocks.div_ceil(pieces);
            let time = execute(lab.seed, grid, blocks, pieces, part, costs);
            let slowdown = 100.0 * (time / whole - 1.0);
            outcome.figure(format!("slowdown_{}_{pieces}", grid.name), slowdown);
            line.push((blocks as f64, slowdown));
        }
        let title = format!("Slowdown of a sliced kernel, {}", grid.name);
        let plot =
            outcome.plot(PlotKind::LogLines, &title, "thread blocks per piece", "slowdown, %");
        plot.series("model", line[1..].iter().copied());
        let paper = grid.rows[1..]
            .iter()
            .map(|(pieces, paper)| (grid.blocks.div_ceil(*pieces) as f64, *paper));
        plot.dashed("paper", paper).line_at(5.0, "paper: below 5 % from 1,500 blocks");
    }
    outcome.figure("piece_min_us", (50 * costs) as f64 / 1e3);
    outcome.note(
        "A model of the block scheduler: 96 resident thread blocks (fitted), block times that vary \
         by half, and each piece ends with its last block, so a piece costs about one wave of \
         blocks. Weft bounds pieces by time (50 times what \
         starting one costs), not by a number of blocks.",
    );
    Ok(outcome)
}

/// The time of a grid in pieces of so many blocks, in ns: list scheduling on resident blocks.
fn execute(seed: u64, grid: &Grid, piece: u64, pieces: u64, part: u64, cost_ns: u64) -> f64 {
    let block_ns = grid.ms * MS * RESIDENT as u64 / grid.blocks;
    let mut random = Random::part(seed, pieces);
    let (mut left, mut now_ns) = (grid.blocks / part, 0_u64);
    let mut ends: std::collections::BinaryHeap<std::cmp::Reverse<u64>> =
        std::collections::BinaryHeap::with_capacity(RESIDENT);
    while left > 0 {
        let count = piece.min(left);
        left -= count;
        let mut last_ns = now_ns;
        for _ in 0..count {
            let start_ns =
                if ends.len() < RESIDENT { now_ns } else { ends.pop().map_or(now_ns, |end| end.0) };
            let end_ns = start_ns + random.jitter(block_ns, 500);
            last_ns = last_ns.max(end_ns);
            ends.push(std::cmp::Reverse(end_ns));
        }
        ends.clear();
        now_ns = last_ns + cost_ns;
    }
    now_ns as f64
}

pub(super) const WEIGHTS: [u32; 6] = [1, 2, 2, 3, 3, 4];
pub(super) const LONG_NS: u64 = 1_908_357_000;

pub(super) fn long_kernels(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let windows = if lab.quick { 1 } else { 5 };
    let window_ns = lab.seconds(10, 10);
    let window = format!("{windows} windows of 10 s after 4 s, for each tenant as the long one");
    let mut outcome = Outcome::new("long_kernels", "One tenant with kernels of 1.9 s", window);
    let longs: &[usize] = if lab.quick { &[0] } else { &[0, 2, 5] };
    let mut line = Vec::new();
    for (name, quantum_ns) in [("6ms", 6 * MS), ("1ms", MS), ("0_2ms", 200 * US)] {
        lab.say(&format!("quantum {name}"));
        let (mut mmr, mut least, mut overhead) = (f64::MAX, f64::MAX, 0.0_f64);
        for &long in longs {
            let shares = run(lab, "fair", quantum_ns, long, true, (windows, window_ns))?;
            mmr = mmr.min(shares.median());
            least = least.min(shares.least());
            overhead = overhead.max(shares.overhead);
        }
        outcome.figure(format!("mmr_{name}"), mmr);
        outcome.figure(format!("mmr_least_{name}"), least);
        outcome.figure(format!("overhead_{name}"), overhead);
        line.push(mmr);
    }
    let unsliced = run(lab, "fair", 6 * MS, 0, false, (windows, window_ns))?.median();
    let unmanaged = run(lab, "unmanaged", 6 * MS, 0, true, (windows, window_ns))?.median();
    outcome.control("mmr_unsliced", unsliced);
    outcome.control("mmr_unmanaged", unmanaged);
    outcome.compare(
        "MMR over 10 s with a tenant of 1.9-s kernels",
        "not measured",
        format!("{:.4} at 0.2 ms, {:.4} at 6 ms; unsliced {unsliced:.3}", line[2], line[0]),
    );
    let plot =
        outcome.plot(PlotKind::Bars, "MMR over 10 s, one tenant of 1.9-s kernels", "", "MMR");
    plot.groups(["6 ms", "1 ms", "0.2 ms", "unsliced", "unmanaged"]).line_at(0.999, "goal");
    plot.bars("MMR", line.into_iter().chain([unsliced, unmanaged]));
    outcome.note("The others execute kernels of 207 µs; the ideal is a fluid share by weight.");
    Ok(outcome)
}

fn run(
    lab: &mut Lab<'_>,
    policy: &'static str,
    quantum_ns: u64,
    long: usize,
    sliced: bool,
    (windows, window_ns): (usize, u64),
) -> Result<Shares, RunError> {
    let mut world = World::new(lab.setup(policy).quantum(quantum_ns))?;
    for (number, weight) in WEIGHTS.into_iter().enumerate() {
        let vgpu = world.vgpu(weight);
        let kernel = if number == long {
            Kernel { sliceable: sliced, ..Kernel::new(0, LONG_NS) }
        } else {
            Kernel::new(0, 207 * US)
        };
        world.session(vgpu, Source::Endless { kernels: vec![kernel], jitter_permille: 0 });
    }
    world.run_for(4 * SECOND);
    let shares = measure(&mut world, &WEIGHTS, 1.0, windows, window_ns);
    lab.close(&mut world, &format!("{policy}, quantum {} µs, long {long}", quantum_ns / US));
    Ok(shares)
}
