//! GSaaS' production environment around the placement core, and packing on a real trace.
//!
//! [`Lublin`] generates jobs as GSaaS §V does and [`swf`] reads logs of real machines;
//! [`queue::run`] has them compete for cGPUs. [`trace`] reads Alibaba's GPU trace or makes a
//! stand-in, and the packing policies of `weft_sched::placement` are held against what is published
//! for it. Everything is simulated but the cost of a decision.

mod gamma;
mod lublin;
mod packing;
mod production;
pub mod queue;
mod report;
mod small;
mod speed;
pub mod swf;
#[cfg(test)]
mod tests;
pub mod trace;

use crate::outcome::Outcome;
use crate::seeds;
pub use lublin::{Limit, Lublin};
pub use report::Report;
pub use swf::Job;
pub use trace::Trace;

/// What makes a run differ from others.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The seed of all that is drawn.
    pub seed: u64,
    /// Smaller and shorter, for checking that it works.
    pub quick: bool,
}

/// What the user brought.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Hosts and requests for packing.
    pub trace: Trace,
    /// What they are.
    pub trace_name: String,
    /// They are those that the published figures are of.
    pub is_alibaba: bool,
    /// Logs of jobs with their names.
    pub logs: Vec<(String, Vec<Job>)>,
}

/// Hosts of the stand-in for the trace.
const STAND_IN_HOSTS: usize = 400;
const STAND_IN_HOSTS_QUICK: usize = 30;
/// Hosts, GPUs and requests of Alibaba's trace of 2023, by which it is known.
const ALIBABA: (usize, u64, usize) = (1_213, 6_212, 8_152);

impl Inputs {
    /// A stand-in for the trace, and no logs.
    #[must_use]
    pub fn stand_in(setup: &Setup) -> Self {
        let hosts = if setup.quick { STAND_IN_HOSTS_QUICK } else { STAND_IN_HOSTS };
        Self {
            trace: trace::synthetic(hosts, setup.seed),
            trace_name: "a made-up stand-in for Alibaba's trace".to_owned(),
            is_alibaba: false,
            logs: Vec::new(),
        }
    }

    /// The same with a trace that was read.
    #[must_use]
    pub fn with_trace(mut self, trace: Trace) -> Self {
        let gpus = trace.capacity() / trace::GPU_MILLI;
        self.is_alibaba = (trace.nodes.len(), gpus, trace.requests.len()) == ALIBABA;
        let name = if self.is_alibaba { "Alibaba's GPU trace of 2023" } else { "a trace" };
        name.clone_into(&mut self.trace_name);
        self.trace = trace;
        self
    }
}

/// Runs all experiments: of those that draw the medians of so many seeds.
pub fn run(
    setup: Setup,
    inputs: &Inputs,
    seeds: u64,
    progress: &mut dyn FnMut(&str),
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut several = |name: &str, one: &dyn Fn(&Setup) -> Outcome, compare: fn(&mut Outcome)| {
        let of_seed = |seed| one(&Setup { seed: setup.seed + seed, ..setup });
        if let Some(mut outcome) = seeds::merge((0..seeds.max(1)).map(of_seed).collect()) {
            compare(&mut outcome);
            outcomes.push(outcome);
        }
        progress(name);
    };
    several("sharing", &production::sharing, production::compare);
    several("backfilling", &production::backfilling, |_| ());
    several("packing", &|setup| packing::packing(setup, inputs), packing::compare);
    several("small", &small::small, |_| ());
    outcomes.extend(production::logs(&setup, inputs));
    progress("logs");
    outcomes.push(speed::speed(&setup));
    progress("speed");
    outcomes
}

/// Figures of `weft sim gsaas` beside those of single readings and policies.
pub const HEADLINES: [&str; 6] = [
    "speedup_1x",
    "speedup_1_5x",
    "speedup_2x",
    "frag_over_best_fit",
    "decision_ms_100k",
    "invariant_violations",
];

/// What all of them together say: the figures of `weft sim gsaas`.
pub fn summary(outcomes: &[Outcome]) -> Outcome {
    let windows: Vec<String> =
        outcomes.iter().map(|outcome| format!("{}: {}", outcome.name, outcome.window)).collect();
    let mut all =
        Outcome::new("gsaas", "GSaaS' production environment and packing", windows.join("; "));
    for outcome in outcomes {
        let pairs = |values: &std::collections::BTreeMap<String, f64>| {
            values.iter().map(|(name, value)| (name.clone(), *value)).collect::<Vec<_>>()
        };
        pairs(&outcome.figures).into_iter().for_each(|(name, value)| all.figure(name, value));
        pairs(&outcome.baselines).into_iter().for_each(|(name, value)| all.baseline(name, value));
        pairs(&outcome.controls).into_iter().for_each(|(name, value)| all.control(name, value));
        all.intervals.extend(outcome.intervals.clone());
        all.other_violations += outcome.other_violations;
        all.first_violation = all.first_violation.or_else(|| outcome.first_violation.clone());
        all.decisions += outcome.decisions;
        all.seeds = all.seeds.max(outcome.seeds);
    }
    all.figure("invariant_violations", all.other_violations as f64);
    all
}
