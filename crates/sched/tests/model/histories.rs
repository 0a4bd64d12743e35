//! Histories out of any source of numbers: a seed for a soak, a fuzzer's bytes.

use weft_sched::invariants::{LevelLag, audit};
use weft_sched::{Cap, Class, Config, policy};

use super::steps::{Step, take};
use super::{Habits, Load, MS, Model, Random, US};

/// Where the choices come from.
pub(crate) trait Source {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64;

    /// Whether it has run dry.
    fn is_empty(&self) -> bool;
}

impl Source for Random {
    fn below(&mut self, limit: u64) -> u64 {
        Self::below(self, limit)
    }

    fn is_empty(&self) -> bool {
        false
    }
}

/// What a history went through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Played {
    /// Events handled: each ends with a decision who holds the device.
    pub(crate) decisions: u64,
    /// Turns granted.
    pub(crate) turns: u64,
    /// Simulated time, in ns.
    pub(crate) simulated_ns: u64,
    /// The lag that came closest to its bound, in millionths of it.
    pub(crate) worst_ppm: i128,
}

impl Played {
    /// Counts another history.
    pub(crate) fn add(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.turns += other.turns;
        self.simulated_ns += other.simulated_ns;
        self.worst_ppm = self.worst_ppm.max(other.worst_ppm);
    }
}

/// A lone session's short commands need no decisions, but time to play: a history that has so many
/// steps for each decision that it may make ends.
const STEPS_PER_DECISION: u64 = 500;

/// No command is shorter.
const SIZE_MIN_NS: u64 = 100;

/// Plays one history until the source is empty or so many decisions were made. Every invariant is
/// checked on the way; a broken one panics.
pub(crate) fn play(source: &mut impl Source, decisions: u64) -> Played {
    let (config, habits) = settings(source);
    let mut model = Model::with_config(config, habits);
    model.audits = false;
    for _ in 0..1 + source.below(4) {
        populate(&mut model, source);
    }
    let steps = decisions.saturating_mul(STEPS_PER_DECISION);
    while model.decisions < decisions && model.steps < steps && !source.is_empty() {
        take(&mut model, &step(source));
        if let Err(broken) = audit(&model.node) {
            panic!("{broken} at {}", model.now);
        }
    }
    model.run_for(MS);
    model.check_bills();
    assert!(model.kills.is_empty(), "nobody was overdue");
    let worst = model.lag.worst().map_or(0, |worst: LevelLag| worst.lag.share_of_bound());
    let Model { decisions, turns, now, .. } = model;
    Played { decisions, turns, simulated_ns: now, worst_ppm: worst }
}

fn settings(source: &mut impl Source) -> (Config, Habits) {
    // Half of all histories are of `fair`, whose bound is checked at every level.
    let names = policy::NAMES;
    let choice = usize::try_from(source.below(2 * names.len() as u64)).unwrap();
    let policy = policy::by_name(names.get(choice).unwrap_or(&names[0])).unwrap();
    let quantum_ns = [6 * MS, 6 * MS, MS, 200 * US][usize::try_from(source.below(4)).unwrap()];
    let config = Config {
        policy,
        quantum_ns,
        sleeper_credit_ns: [0, 0, quantum_ns / 2, quantum_ns]
            [usize::try_from(source.below(4)).unwrap()],
        slack_ns: [0, 0, MS, 100 * MS][usize::try_from(source.below(4)).unwrap()],
        borrow_ns: [0, MS, 10 * MS, 100 * MS][usize::try_from(source.below(4)).unwrap()],
        ..Config::default()
    };
    let pipelined = source.below(2) == 0;
    let error_permille = if pipelined && source.below(4) == 0 { 200 } else { 0 };
    let habits = Habits {
        pipelined,
        window_ns: 200 * US + source.below(6 * MS),
        error_permille,
        settle_delay_ns: source.below(2) * source.below(MS),
        switch_ns: source.below(2) * source.below(4 * MS),
    };
    let reach_ns = source.below(2) * source.below(2 * quantum_ns);
    let config = Config { slack_switches: source.below(2) * 8, reach_ns, ..config };
    (config, habits)
}

/// A tenant with up to three vGPUs.
fn populate(model: &mut Model, source: &mut impl Source) {
    let group = model.group(weight(source));
    for _ in 0..1 + source.below(3) {
        let vgpu = model.vgpu_of(group, weight(source));
        model.session(vgpu, load(source));
    }
}

fn step(source: &mut impl Source) -> Step {
    let any = usize::try_from(source.below(1 << 16)).unwrap();
    match source.below(35) {
        0 => Step::AddGroup { weight: weight(source) },
        1 => Step::RemoveGroup { group: any },
        2 => Step::ReweightGroup { group: any, weight: weight(source) },
        3 | 4 => {
            let owner = u32::try_from(source.below(8)).ok().filter(|owner| *owner < 3);
            Step::AddVgpu { group: any, weight: weight(source), owner }
        }
        5 => Step::SetCap { vgpu: any, cap: cap(source) },
        6 => Step::ReweightSession { session: any, weight: weight(source) },
        7..=9 => Step::AddSession { vgpu: any, load: load(source) },
        10..=13 => {
            let commands = (0..1 + source.below(12)).map(|_| size(source)).collect();
            Step::Burst { session: any, commands }
        }
        14 | 15 => Step::Kill { session: any },
        16 => Step::RemoveVgpu { vgpu: any },
        17 => Step::Reweight { vgpu: any, weight: weight(source) },
        18 => Step::Settle,
        19 => Step::Pass { ns: source.below(200 * US) },
        20..32 => Step::Pass { ns: source.below(200 * MS) },
        32 | 33 => Step::SetClass { vgpu: any, class: class(source) },
        _ => Step::SetGroupCap { group: any, cap: cap(source) },
    }
}

fn weight(source: &mut impl Source) -> u32 {
    let most = if source.below(8) == 0 { 10_000 } else { 4 };
    u32::try_from(1 + source.below(most)).unwrap()
}

fn size(source: &mut impl Source) -> u64 {
    match source.below(8) {
        0 => SIZE_MIN_NS + source.below(2_000),
        1 => 2 * MS + source.below(38 * MS),
        _ => US + source.below(2 * MS),
    }
}

fn load(source: &mut impl Source) -> Load {
    match source.below(3) {
        0 => Load::Saturating((0..1 + source.below(4)).map(|_| size(source)).collect()),
        1 => Load::Pausing { size_ns: size(source), pause_ns: US + source.below(5 * MS) },
        _ => Load::Manual,
    }
}

fn class(source: &mut impl Source) -> Class {
    if source.below(3) == 0 { Class::Batch } else { Class::UserFacing { sla_ns: 200 * MS } }
}

fn cap(source: &mut impl Source) -> Option<Cap> {
    let share_ppm = 10_000 + u32::try_from(source.below(990_001)).unwrap();
    let period_ns = MS + source.below(200 * MS);
    (source.below(5) > 0).then_some(Cap { share_ppm, period_ns })
}
