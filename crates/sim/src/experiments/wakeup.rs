//! A vGPU that wakes after a long sleep must not starve the others (FairGV §3.2.1).

use super::lab::{Lab, RunError};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::program::{Behaviour, Step, View};
use crate::random::Random;
use crate::worker::Source;
use crate::world::World;

const OTHERS: [u32; 5] = [1, 2, 2, 3, 4];
/// Of the one that sleeps.
const WEIGHT: u32 = 4;
const QUANTUM_NS: u64 = 6 * MS;

/// Sleeps for two seconds and a bit, then has 60 ms of work at once.
#[derive(Clone, Debug)]
struct Waker {
    random: Random,
    place: u64,
}

const BURST: u64 = 200;

impl Behaviour for Waker {
    fn next(&mut self, _view: &View) -> Step {
        let place = self.place;
        self.place = (place + 1) % (BURST + 2);
        match place {
            0 => Step::Sleep(2 * SECOND + self.random.below(50 * MS)),
            place if place <= BURST => Step::Launch(Kernel::new(0, 300 * US)),
            _ => Step::Sync,
        }
    }
}

/// The same work without a sleep.
#[derive(Clone, Debug)]
struct Steady;

impl Behaviour for Steady {
    fn next(&mut self, _view: &View) -> Step {
        Step::Launch(Kernel::new(0, 300 * US))
    }
}

pub(super) fn wakeup(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let rounds = if lab.quick { 3 } else { 30 };
    let window = format!("{rounds} sleeps of 2 s, quantum 6 ms");
    let mut outcome = Outcome::new("wakeup", "What others lose when a sleeper wakes", window);
    let waker = Waker { random: Random::part(lab.seed, 77), place: 0 };
    let (world, sleeping) = gaps(lab, Some(Box::new(waker)), rounds)?;
    let (_, without) = gaps(lab, None, rounds)?;
    let (_, steady) = gaps(lab, Some(Box::new(Steady)), rounds)?;
    let sleeper = OTHERS.len();
    let quanta = |ns: u64| ns as f64 / QUANTUM_NS as f64;
    let more = |than: &[u64]| -> Vec<f64> {
        sleeping.iter().zip(than).map(|(with, than)| quanta(*with) - quanta(*than)).collect()
    };
    let most = |each: Vec<f64>| each.into_iter().fold(f64::NEG_INFINITY, f64::max);
    // While it is awake, so many turns of it lie between two of another's.
    let fair = OTHERS.map(|weight| f64::from(WEIGHT) / f64::from(weight));
    let over_fair = more(&without).into_iter().zip(fair).map(|(more, fair)| more - fair).collect();
    outcome.figure("wake_delay_quanta_max", most(more(&without)));
    outcome.figure("wake_delay_over_fair_quanta_max", most(over_fair));
    outcome.figure("wake_delay_over_steady_quanta_max", most(more(&steady)));
    let own = world.wait_max_ns(sleeper) as f64 / QUANTUM_NS as f64;
    outcome.figure("own_wait_quanta_max", own);
    let plot = outcome.plot(
        PlotKind::Lines,
        "Service in bins of 20 ms around wake-ups",
        "time, s",
        "share of the device",
    );
    let bins = world.bins();
    let from = bins.len().saturating_sub(260);
    for (vgpu, weight) in OTHERS.iter().chain([&WEIGHT]).enumerate().filter(|(vgpu, _)| *vgpu > 2) {
        let name = if vgpu == sleeper { "sleeper".into() } else { format!("weight {weight}") };
        let points = bins[from..].iter().enumerate().map(|(bin, row)| {
            let served = row.get(vgpu).copied().unwrap_or(0);
            (bin as f64 * 0.02, served as f64 / (20 * MS) as f64)
        });
        plot.series(name, points);
    }
    outcome.note(
        "For each other vGPU: its longest time without service beside one that sleeps 2 s between \
         bursts of 60 ms, less the longest of the same run without that one \
         (wake_delay_quanta_max; negative if it waits less). Of that its share while it is awake is \
         due to the sleeper, weight over weight in quanta: wake_delay_over_fair_quanta_max is what \
         goes past it, and wake_delay_over_steady_quanta_max compares with one that never sleeps.",
    );
    Ok(outcome)
}

/// The longest time that each of the others waits for service beside a sixth program, or without
/// one, in ns.
fn gaps(
    lab: &mut Lab<'_>,
    sixth: Option<Box<dyn Behaviour>>,
    rounds: u64,
) -> Result<(World, Vec<u64>), RunError> {
    let mut setup = lab.setup("fair");
    setup.bin_ns = 20 * MS;
    let mut world = World::new(setup)?;
    for weight in OTHERS {
        let vgpu = world.vgpu(weight);
        let kernels = vec![Kernel::new(0, 285 * US)];
        world.session(vgpu, Source::Endless { kernels, jitter_permille: 50 });
    }
    if let Some(behaviour) = sixth {
        let vgpu = world.vgpu(WEIGHT);
        world.program(vgpu, behaviour, lab.rings(), None, 1_024);
    }
    world.run_for(SECOND);
    for vgpu in 0..OTHERS.len() {
        world.take_gap_max_ns(vgpu);
    }
    world.run_for(rounds * 2_100 * MS);
    let gaps = (0..OTHERS.len()).map(|vgpu| world.take_gap_max_ns(vgpu)).collect();
    lab.close(&mut world, "wakeup");
    Ok((world, gaps))
}
