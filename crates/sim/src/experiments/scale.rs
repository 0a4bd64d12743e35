//! Very many vGPUs on one device.

use super::lab::{Lab, RunError};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::Outcome;
use crate::worker::Source;
use crate::world::World;

const QUANTUM_NS: u64 = MS;

pub(super) fn scale(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let (vgpus, rounds) = if lab.quick { (2_000, 4) } else { (100_000, 4) };
    // A turn of kernels of 250 µs is a quantum.
    let duration_ns = vgpus * rounds * QUANTUM_NS;
    let window = format!("{rounds} rounds of {vgpus} vGPUs, quantum 1 ms");
    let mut outcome = Outcome::new("scale", "Very many vGPUs on one device", window);
    let mut world = World::new(lab.setup("fair").quantum(QUANTUM_NS))?;
    for _ in 0..vgpus {
        let vgpu = world.vgpu(1);
        let kernels = vec![Kernel::new(0, 250 * US)];
        world.session(vgpu, Source::Endless { kernels, jitter_permille: 0 });
    }
    world.run_for(duration_ns);
    let work_ns = world.work_ns();
    let (least, most) = work_ns
        .iter()
        .fold((u64::MAX, 0), |(least, most), work_ns| (least.min(*work_ns), most.max(*work_ns)));
    let verdict = lab.close(&mut world, "scale");
    outcome.figure("vgpus", vgpus as f64);
    outcome.figure("simulated_s", duration_ns as f64 / SECOND as f64);
    outcome.figure("spread_quanta", (most - least) as f64 / QUANTUM_NS as f64);
    outcome.figure("utilization", world.busy_ns() as f64 / duration_ns as f64);
    outcome.figure("closure", verdict.closure);
    outcome.note("The spread is the most served vGPU minus the least served, in quanta.");
    Ok(outcome)
}
