//! The monitor at work: vGPUs that come and go, and what placing them anew brings.

use weft_sched::VgpuKey;
use weft_sched::memory::{self, Manager, ManagerConfig, MonitorConfig, Step};

use super::{HIDDEN, QUANTUM_NS, REGION, SIZES, SLOT_NS, Setup};
use crate::outcome::Outcome;
use crate::random::Random;

const S: u64 = 1_000_000_000;
/// VMs that are there all the time.
const COUNT: u32 = 12;

/// What happened to one manager.
#[derive(Default)]
struct Watched {
    turns: u64,
    copies: u64,
    moved: u64,
    violations: u64,
    broken: Option<String>,
}

pub(super) fn watch(setup: &Setup) -> Outcome {
    let seconds = if setup.quick { 60 } else { 600 };
    let window = format!("{seconds} s; {COUNT} vGPUs that work for 10 to 60 s and sleep as long");
    let mut outcome = Outcome::new("watch", "The monitor, idle vGPUs and moving", window);
    let random = || Random::part(setup.seed, 7);
    // Nobody is ever idle and nobody is moved: what gScale does.
    let never = MonitorConfig { idle_ns: u64::MAX / 2, ..MonitorConfig::default() };
    let fixed = run("scores", never, seconds, &mut random());
    for name in memory::NAMES.iter().filter(|name| **name != "pipelined") {
        let ran = run(name, MonitorConfig::default(), seconds, &mut random());
        let of = |watched: &Watched| watched.copies as f64 / watched.turns.max(1) as f64;
        outcome.figure(format!("watched_copies_{name}_over_fixed"), of(&ran) / of(&fixed));
        outcome.figure(format!("watched_moves_{name}_per_minute"), {
            ran.moved as f64 * 60.0 / seconds as f64
        });
        outcome.other_violations += ran.violations;
        outcome.first_violation = outcome.first_violation.or(ran.broken);
    }
    outcome.baseline("fixed_copies_per_turn", fixed.copies as f64 / fixed.turns.max(1) as f64);
    outcome.note(
        "Copies include those that moving a vGPU makes necessary. The baseline is `scores` with no \
         monitor: everybody keeps the place of their creation.",
    );
    outcome
}

fn run(name: &str, monitor: MonitorConfig, seconds: u64, random: &mut Random) -> Watched {
    let placement = memory::by_name(name).expect("a name of the registry");
    let mut manager = Manager::new(ManagerConfig {
        placement,
        region: REGION,
        hidden: HIDDEN,
        monitor,
        period_ns: 20 * S,
        quantum_ns: QUANTUM_NS,
    });
    let (mut now, mut steps, mut watched) = (0, Vec::new(), Watched::default());
    let mut until = Vec::new();
    for key in 0..COUNT {
        let slots = SIZES[key as usize % 3].1;
        manager.create(now, VgpuKey(key), slots, &mut steps).expect("sizes are of the paper");
        until.push((random.below(2) == 0, random.between(1, 60) * S));
    }
    let mut next_look = 0;
    while now < seconds * S {
        // A round without anybody passes in a quantum.
        now += QUANTUM_NS;
        for key in 0..COUNT {
            let (works, end) = &mut until[key as usize];
            if *end <= now {
                *works = !*works;
                *end = now + random.between(10, 60) * S;
            }
            if *works {
                now = watched.turn(&mut manager, VgpuKey(key), now, &mut steps);
            }
        }
        if next_look <= now {
            next_look = now + S;
            let replaced = manager.handle_timeout(now, &mut steps).unwrap_or_default();
            watched.moved += replaced.moved as u64;
        }
    }
    watched
}

impl Watched {
    /// A turn of one vGPU; the result is when it ends.
    fn turn(
        &mut self,
        manager: &mut Manager,
        vgpu: VgpuKey,
        now: u64,
        steps: &mut Vec<Step>,
    ) -> u64 {
        let replaced = manager.wake(now, vgpu, steps).unwrap_or_default();
        self.moved += replaced.moved as u64;
        let copies = manager.switch_to(vgpu, steps).unwrap_or(0) as u64;
        steps.clear();
        if let Err(broken) = manager.table().check() {
            self.violations += 1;
            self.broken.get_or_insert_with(|| broken.to_string());
        }
        self.turns += 1;
        self.copies += copies;
        let end = now + copies * SLOT_NS + QUANTUM_NS;
        manager.charge(end, vgpu, QUANTUM_NS);
        end
    }
}
