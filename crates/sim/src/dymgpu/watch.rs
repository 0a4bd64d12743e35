//! The monitor at work: vGPUs that come and go, and what placing them anew brings.

use weft_sched::VgpuKey;
use weft_sched::memory::contents::Contents;
use weft_sched::memory::{Manager, MonitorConfig, Replaced, Rule, Step};

use super::{MANAGED, QUANTUM_NS, REGION, SIZES, SLOT_NS, Setup, manager};
use crate::outcome::Outcome;
use crate::random::Random;

const S: u64 = 1_000_000_000;
/// VMs that are there all the time.
const COUNT: u32 = 12;

/// One manager with a device that has contents, and what happened to it.
struct Watched {
    manager: Manager,
    device: Contents,
    steps: Vec<Step>,
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
    let fixed = run(manager("scores", Rule::Gain, never, REGION), seconds, &mut random());
    let per_turn = |watched: &Watched| watched.copies as f64 / watched.turns.max(1) as f64;
    for (label, name, rule) in MANAGED.into_iter().filter(|(label, _, _)| *label != "pipelined") {
        let watched = manager(name, rule, MonitorConfig::default(), REGION);
        let ran = run(watched, seconds, &mut random());
        let over = per_turn(&ran) / per_turn(&fixed);
        outcome.figure(format!("watched_copies_{label}_over_fixed"), over);
        let moves = ran.moved as f64 * 60.0 / seconds as f64;
        outcome.figure(format!("watched_moves_{label}_per_minute"), moves);
        outcome.other_violations += ran.violations;
        outcome.first_violation = outcome.first_violation.or(ran.broken);
    }
    outcome.baseline("fixed_copies_per_turn", per_turn(&fixed));
    outcome.note(
        "Copies include those that moving a vGPU makes necessary; who is placed when it wakes up has \
         not moved. The baseline is `scores` with no monitor: everybody keeps the place of their \
         creation. `dymgpu_size` and `dymgpu_utilization` are models of the paper's own rules of when \
         to move (§3.2); the others move where Weft's manager finds that it pays.",
    );
    outcome
}

fn run(manager: Manager, seconds: u64, random: &mut Random) -> Watched {
    let device = Contents::new(REGION);
    let (steps, broken) = (Vec::new(), None);
    let mut watched =
        Watched { manager, device, steps, turns: 0, copies: 0, moved: 0, violations: 0, broken };
    let (mut now, mut until) = (0, Vec::new());
    for key in 0..COUNT {
        let slots = SIZES[key as usize % 3].1;
        let created = watched.manager.create(now, VgpuKey(key), slots, &mut watched.steps);
        created.expect("sizes are of the paper");
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
                now = watched.turn(VgpuKey(key), now);
            } else {
                watched.manager.rest(now, VgpuKey(key));
            }
        }
        if next_look <= now {
            next_look = now + S;
            let replaced = watched.manager.handle_timeout(now, &mut watched.steps);
            watched.moved(replaced.unwrap_or_default());
        }
    }
    watched
}

impl Watched {
    /// A turn of one vGPU; the result is when it ends.
    fn turn(&mut self, vgpu: VgpuKey, now: u64) -> u64 {
        let woken = self.manager.wake(now, vgpu, &mut self.steps);
        self.moved(woken.unwrap_or_default());
        let switched = self.manager.switch_to(vgpu, &mut self.steps);
        self.device.carry_out(&mut self.steps);
        let place = self.manager.layout().place(vgpu);
        let judged = match place.filter(|_| switched.is_some()) {
            None => Err(format!("{vgpu:?} has work and no place")),
            Some(place) => self.device.run(place).map_err(|lost| lost.to_string()),
        };
        let rules = self.manager.table().check().map_err(|broken| broken.to_string());
        if let Err(words) = judged.and(rules) {
            self.violations += 1;
            self.broken.get_or_insert(words);
        }
        let copies = switched.unwrap_or(0) as u64;
        self.turns += 1;
        self.copies += copies;
        let end = now + copies * SLOT_NS + QUANTUM_NS;
        self.manager.charge(end, vgpu, QUANTUM_NS);
        let held_back = self.manager.end_turn(&mut self.steps);
        self.moved(held_back.unwrap_or_default());
        end
    }

    fn moved(&mut self, replaced: Replaced) {
        self.moved += replaced.moved as u64;
        self.device.carry_out(&mut self.steps);
    }
}
