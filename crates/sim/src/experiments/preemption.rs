//! Long kernels on a device that can stop them: what preemption buys, beside slicing, and where its
//! cost eats it.

use super::lab::{Lab, RunError, measure};
use super::slicing::{LONG_NS, WEIGHTS};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::preempt::Preemption;
use crate::worker::Source;
use crate::world::World;

/// A kernel that was started executes so long before it is stopped.
const SLICE_MIN_NS: u64 = 100 * US;
/// Time slices of a driver that nobody manages: of the order of what is reported for NVIDIA's.
const DRIVER_SLICE_NS: u64 = 2 * MS;
const QUANTA: [(&str, u64); 3] = [("6ms", 6 * MS), ("1ms", MS), ("0_2ms", 200 * US)];

/// How the device and its workers deal with a long kernel.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It executes to its end.
    Whole,
    /// Its blocks are executed in ranges.
    Sliced,
    /// Workers stop it; saving and restoring take so long together, in ns.
    Stopped(u64),
    /// Nobody manages the device; the driver slices its time, a stop takes so long, in ns.
    TimeSliced(u64),
}

const COSTS: [(&str, u64); 3] = [("0us", 0), ("100us", 100 * US), ("1ms", MS)];

pub(super) fn preemption(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let windows = if lab.quick { 1 } else { 3 };
    let window = format!("{windows} windows of 10 s after 4 s, the lightest and the heaviest long");
    let mut outcome = Outcome::new("preemption", "Kernels of 1.9 s that can be stopped", window);
    let managed: Vec<(String, Way)> = std::iter::once(("sliced".to_owned(), Way::Sliced))
        .chain(COSTS.map(|(name, ns)| (format!("stopped_{name}"), Way::Stopped(ns))))
        .collect();
    let (mut table, mut mmr_min, mut overhead_max) = (Vec::new(), f64::MAX, 0.0_f64);
    for (name, way) in &managed {
        let mut row = Vec::new();
        for (quantum, quantum_ns) in QUANTA {
            lab.say(&format!("{name}, quantum {quantum}"));
            let Run { mmr, overhead, lost } = worst(lab, *way, quantum_ns, windows)?;
            outcome.figure(format!("mmr_{name}_{quantum}"), mmr);
            outcome.figure(format!("overhead_{name}_{quantum}"), overhead);
            if matches!(way, Way::Stopped(_)) {
                outcome.figure(format!("lost_{name}_{quantum}"), lost);
                (mmr_min, overhead_max) = (mmr_min.min(mmr), overhead_max.max(overhead));
            }
            row.push((mmr, overhead));
        }
        table.push((name.as_str(), row));
    }
    outcome.figure("mmr_stopped_min", mmr_min);
    outcome.figure("overhead_stopped_max", overhead_max);
    let whole = run(lab, Way::Whole, 6 * MS, 0, windows)?.mmr;
    outcome.control("mmr_unsliced", whole);
    let driver = run(lab, Way::TimeSliced(100 * US), 6 * MS, 0, windows)?;
    outcome.control("mmr_driver", driver.mmr);
    outcome.control("overhead_driver", driver.overhead);
    let ours = format!(
        "MMR {:.4} at 6 ms and 100 µs a stop, {:.4} at 0.2 ms and no cost; whole kernels {whole:.3}",
        outcome.figures["mmr_stopped_100us_6ms"], outcome.figures["mmr_stopped_0us_0_2ms"]
    );
    outcome.compare("kernels of 1.9 s, a preemptive device", "30-ms quantum, not measured", ours);
    for (what, value) in [("MMR over 10 s", 0), ("aggregated overhead", 1)] {
        let title = format!("{what}, one tenant of 1.9-s kernels");
        let plot = outcome.plot(PlotKind::Bars, &title, "quantum", what);
        plot.groups(["6 ms", "1 ms", "0.2 ms"]).mark(1.0);
        for (name, row) in &table {
            let values = row.iter().map(|pair| if value == 0 { pair.0 } else { pair.1.min(3.0) });
            plot.bars(name.replace('_', ", "), values);
        }
    }
    outcome.note(
        "The long kernels cannot be sliced in the stopped runs: their worker stops them when its \
         turn ends. Saving and restoring (half of the cost each) is device time that nobody is \
         charged for: lost_* is its part of the time, which shows as overhead and not in the \
         shares. A kernel executes at least \
         0.1 ms before it is stopped, and one that would end sooner than stopping it takes is left \
         to end.",
    );
    outcome.note(
        "overhead_driver and mmr_driver: nobody manages the device and its driver gives each \
         process 2 ms in turn (assumed; 100 µs a stop), as unmanaged GPUs do for processes, whatever \
         the weights.",
    );
    Ok(outcome)
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
struct Run {
    mmr: f64,
    overhead: f64,
    /// The part of the device's time that went to saving and restoring.
    lost: f64,
}

/// The worst of the lightest and the heaviest tenant as the long one.
fn worst(lab: &mut Lab<'_>, way: Way, quantum_ns: u64, windows: usize) -> Result<Run, RunError> {
    let mut worst = run(lab, way, quantum_ns, 0, windows)?;
    if !lab.quick {
        let other = run(lab, way, quantum_ns, WEIGHTS.len() - 1, windows)?;
        worst.mmr = worst.mmr.min(other.mmr);
        worst.overhead = worst.overhead.max(other.overhead);
        worst.lost = worst.lost.max(other.lost);
    }
    Ok(worst)
}

fn run(
    lab: &mut Lab<'_>,
    way: Way,
    quantum_ns: u64,
    long: usize,
    windows: usize,
) -> Result<Run, RunError> {
    let policy = if matches!(way, Way::TimeSliced(_)) { "unmanaged" } else { "fair" };
    let mut setup = lab.setup(policy).quantum(quantum_ns);
    setup.preemption = match way {
        Way::Whole | Way::Sliced => None,
        Way::Stopped(cost_ns) => Some(Preemption::by_worker(cost_ns, SLICE_MIN_NS)),
        Way::TimeSliced(cost_ns) => Some(Preemption::by_driver(cost_ns, DRIVER_SLICE_NS)),
    };
    let mut world = World::new(setup)?;
    for (number, weight) in WEIGHTS.into_iter().enumerate() {
        let vgpu = world.vgpu(weight);
        let kernel = if number == long {
            Kernel { sliceable: matches!(way, Way::Sliced), ..Kernel::new(0, LONG_NS) }
        } else {
            Kernel::new(0, 207 * US)
        };
        world.session(vgpu, Source::Endless { kernels: vec![kernel], jitter_permille: 0 });
    }
    world.run_for(4 * SECOND);
    let shares = measure(&mut world, &WEIGHTS, 1.0, windows, 10 * SECOND);
    let lost = world.preempting_ns() as f64 / world.now_ns() as f64;
    lab.close(&mut world, &format!("{way:?}, quantum {} µs, long {long}", quantum_ns / US));
    Ok(Run { mmr: shares.median(), overhead: shares.overhead, lost })
}
