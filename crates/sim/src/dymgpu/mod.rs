//! DymGPU's evaluation, re-run on the placement core, and what goes past it.
//!
//! All of it is a model of a device with a translation table: each copy costs a stated time. Plans
//! are carried out on a device that has contents (`weft_sched::memory::contents`), and in each turn
//! the vGPU must find all of its memory; what it does not find is a violation.

mod copies;
mod machine;
mod optimal;
mod performance;
mod pipeline;
mod real;
pub(crate) mod report;
mod sets;
mod slots;
mod speed;
#[cfg(test)]
mod tests;
mod watch;

use weft_sched::memory::paper::{
    HIDDEN, QUANTUM_NS, REGION, SIZES, SLOT_ENTRIES, SLOT_NS, demands, mixed,
};
use weft_sched::memory::{
    self, Demand, Layout, Manager, ManagerConfig, MonitorConfig, Problem, Rule,
};

use crate::outcome::Outcome;
use crate::seeds;
pub use report::Report;

/// What a switch costs beside copies, in ns: Figure 3a has 84 % in the low region's slot.
const OTHER_NS: u64 = SLOT_NS * 16 / 84;
/// The numbers of VMs of Figures 8 and 10.
const COUNTS: [usize; 5] = [3, 6, 9, 12, 15];
/// An experiment for one seed.
type Run = fn(&Setup) -> Outcome;

/// What makes a run differ from others.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The seed of all that is drawn.
    pub seed: u64,
    /// Shorter and coarser, for checking that it works.
    pub quick: bool,
}

struct Experiment {
    run: Run,
    /// Something in it is drawn, so that it runs with several seeds.
    draws: bool,
    /// Puts the paper's figures beside the medians.
    compare: fn(&mut Outcome),
}

const EXPERIMENTS: [Experiment; 7] = [
    Experiment { run: copies::copies, draws: false, compare: |_| () },
    Experiment { run: optimal::optimal, draws: true, compare: optimal::compare },
    Experiment { run: pipeline::pipeline, draws: false, compare: |_| () },
    Experiment { run: performance::performance, draws: false, compare: |_| () },
    Experiment { run: sets::sets, draws: true, compare: sets::compare },
    Experiment { run: watch::watch, draws: true, compare: |_| () },
    Experiment { run: speed::speed, draws: false, compare: |_| () },
];

/// Runs all experiments: of those that draw the medians of so many seeds.
pub fn run(setup: Setup, seeds: u64, progress: &mut dyn FnMut(&str)) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for Experiment { run, draws, compare } in EXPERIMENTS {
        let count = if draws { seeds.max(1) } else { 1 };
        let of_seed = |seed| run(&Setup { seed: setup.seed + seed, ..setup });
        let mut several: Vec<Outcome> = (0..count).map(of_seed).collect();
        let one = if draws { seeds::merge(several) } else { several.pop() };
        if let Some(mut outcome) = one {
            compare(&mut outcome);
            progress(&outcome.name);
            outcomes.push(outcome);
        }
    }
    outcomes
}

/// What all of them together say: the figures of `weft sim dymgpu`.
pub fn summary(outcomes: &[Outcome]) -> Outcome {
    let mut all = Outcome::new("dymgpu", "DymGPU's placement and past it", "see each experiment");
    for outcome in outcomes {
        for (name, value) in &outcome.figures {
            all.figure(name.clone(), *value);
        }
        for (name, value) in &outcome.baselines {
            all.baseline(name.clone(), *value);
        }
        for (name, value) in &outcome.controls {
            all.control(name.clone(), *value);
        }
        all.intervals.extend(outcome.intervals.clone());
        all.other_violations += outcome.other_violations;
        all.first_violation = all.first_violation.or_else(|| outcome.first_violation.clone());
        all.seeds = all.seeds.max(outcome.seeds);
    }
    all.figure("invariant_violations", all.other_violations as f64);
    all
}

/// Managers that are compared: a label, the placement, and when it moves somebody.
const MANAGED: [(&str, &str, Rule); 8] = [
    ("scores", "scores", Rule::Gain),
    ("size", "size", Rule::Gain),
    ("utilization", "utilization", Rule::Gain),
    ("exact", "exact", Rule::Gain),
    ("scattered", "scattered", Rule::Gain),
    ("pipelined", "pipelined", Rule::Gain),
    ("dymgpu_size", "size", Rule::Dymgpu),
    ("dymgpu_utilization", "utilization", Rule::Dymgpu),
];

/// A device's manager with the paper's times.
fn manager(placement: &str, rule: Rule, monitor: MonitorConfig, region: usize) -> Manager {
    Manager::new(settings(placement, rule, monitor, region))
}

fn settings(placement: &str, rule: Rule, monitor: MonitorConfig, region: usize) -> ManagerConfig {
    ManagerConfig {
        placement: memory::by_name(placement).expect("a name of the registry"),
        rule,
        region,
        hidden: HIDDEN,
        monitor,
        period_ns: memory::PERIOD_NS,
        quantum_ns: QUANTUM_NS,
        defers: false,
    }
}

fn problem(demands: &[Demand]) -> Problem<'_> {
    Problem { region: REGION, demands, hidden: HIDDEN }
}

/// Where a placement puts them.
fn place(name: &str, demands: &[Demand]) -> Layout {
    let placement = memory::by_name(name).expect("the name is one of the registry");
    placement.place(&problem(demands)).expect("sizes are of the paper and fit")
}

/// A part of 1.
fn part(value: f64, whole: f64) -> f64 {
    if whole == 0.0 { 1.0 } else { value / whole }
}
