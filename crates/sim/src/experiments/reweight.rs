//! Weights that change under load.

use super::lab::{Lab, RunError, min_max_ratio};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::worker::Source;
use crate::world::World;

/// Weights, one row per phase.
const PHASES: [[u32; 3]; 4] = [[1, 2, 3], [3, 2, 1], [1, 1, 1], [10, 1, 5]];
const SIZES_US: [u64; 3] = [285, 46, 803];
const BIN_NS: u64 = 100 * MS;

pub(super) fn reweight(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let phase_ns = lab.seconds(10, 2);
    let window = format!("{} s per phase, shares in bins of 100 ms", phase_ns / SECOND);
    let mut outcome = Outcome::new("reweight", "Weights that change under load", window);
    let mut setup = lab.setup("fair");
    setup.bin_ns = BIN_NS;
    let mut world = World::new(setup)?;
    for (weight, us) in PHASES[0].into_iter().zip(SIZES_US) {
        let vgpu = world.vgpu(weight);
        let kernels = vec![Kernel::new(0, us * US)];
        world.session(vgpu, Source::Endless { kernels, jitter_permille: 100 });
    }
    let (mut least, mut before) = (f64::MAX, vec![0; PHASES[0].len()]);
    for (phase, weights) in PHASES.into_iter().enumerate() {
        if phase > 0 {
            for (vgpu, weight) in weights.into_iter().enumerate() {
                world.reweight(vgpu, weight);
            }
        }
        world.run_for(phase_ns);
        let after = world.work_ns();
        let shares: Vec<f64> = after
            .iter()
            .zip(&before)
            .zip(weights)
            .map(|((after, before), weight)| (after - before) as f64 / f64::from(weight))
            .collect();
        let mmr = min_max_ratio(&shares);
        outcome.figure(format!("mmr_phase_{}", phase + 1), mmr);
        least = least.min(mmr);
        before = after;
    }
    outcome.figure("mmr_min", least);
    lab.close(&mut world, "reweight");
    draw(&mut outcome, world.bins(), phase_ns);
    outcome.note("Every phase counts from the very instant of the change.");
    Ok(outcome)
}

/// Share against weight over time.
fn draw(outcome: &mut Outcome, bins: &[Vec<u64>], phase_ns: u64) {
    let plot = outcome.plot(
        PlotKind::Lines,
        "Share against weight over time",
        "time, s",
        "share of the device",
    );
    let seconds = |ns: u64| ns as f64 / SECOND as f64;
    for vgpu in 0..SIZES_US.len() {
        let points = (0_u64..).zip(bins).map(|(bin, row)| {
            let share = row[vgpu] as f64 / row.iter().sum::<u64>().max(1) as f64;
            (seconds(bin * BIN_NS + BIN_NS / 2), share)
        });
        plot.series(format!("vGPU {}", vgpu + 1), points);
    }
    for vgpu in 0..SIZES_US.len() {
        let steps = (0_u64..).zip(PHASES).flat_map(|(phase, weights)| {
            let share = f64::from(weights[vgpu]) / f64::from(weights.iter().sum::<u32>());
            [(seconds(phase * phase_ns), share), (seconds((phase + 1) * phase_ns), share)]
        });
        plot.dashed(format!("weight {}", vgpu + 1), steps);
    }
}
