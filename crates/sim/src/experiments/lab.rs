//! What experiments share: seeds, costs, progress, measuring.

use weft_sched::policy;

use crate::calibration::Calibration;
use crate::cpu::CpuScheduler;
use crate::kernel::SECOND;
use crate::outcome::Outcome;
use crate::program::Transport;
use crate::seeds::median;
use crate::world::{Setup, SetupError, Verdict, World};

/// An experiment that could not run.
pub type RunError = SetupError;

/// Where experiments run.
pub struct Lab<'a> {
    /// What makes this run differ from others.
    pub seed: u64,
    /// Shorter and coarser.
    pub quick: bool,
    /// What things cost.
    pub costs: Calibration,
    progress: &'a mut dyn FnMut(&str),
    name: String,
    totals: Verdict,
}

impl std::fmt::Debug for Lab<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").field("seed", &self.seed).field("quick", &self.quick).finish()
    }
}

impl<'a> Lab<'a> {
    /// A lab that tells `progress` what it is doing.
    pub fn new(
        seed: u64,
        quick: bool,
        costs: Calibration,
        progress: &'a mut dyn FnMut(&str),
    ) -> Self {
        Self { seed, quick, costs, progress, name: String::new(), totals: Verdict::default() }
    }

    pub(super) fn begin(&mut self, name: &str) {
        name.clone_into(&mut self.name);
        self.totals = Verdict::default();
        self.say("");
    }

    pub(super) fn end(&mut self, outcome: &mut Outcome) {
        outcome.lag_bound_violations = self.totals.lag_violations;
        outcome.lag_share_max = self.totals.lag_share_max;
        outcome.other_violations = self.totals.other_violations;
        outcome.first_violation = self.totals.first.take();
        outcome.decisions = self.totals.decisions;
    }

    /// What is being done.
    pub(super) fn say(&mut self, what: &str) {
        let text =
            if what.is_empty() { self.name.clone() } else { format!("{}: {what}", self.name) };
        (self.progress)(&text);
    }

    /// `full` seconds, or fewer in a quick run.
    pub(super) fn seconds(&self, full: u64, quick: u64) -> u64 {
        SECOND * if self.quick { quick } else { full }
    }

    /// A node of this policy with this lab's costs.
    pub(super) fn setup(&self, policy: &'static str) -> Setup {
        Setup { costs: self.costs.clone(), ..Setup::new(policy, self.seed) }
    }

    /// The same on a device whose launches and switches cost what they do on the real clock.
    pub(super) fn real_setup(&self, policy: &'static str) -> Setup {
        let mut setup = self.setup(policy);
        setup.costs.launch = setup.costs.real_launch.clone();
        setup.costs.device_switch = setup.costs.real_switch.clone();
        setup
    }

    /// A node of a competitor.
    pub(super) fn system(&self, system: &System) -> Setup {
        Setup {
            coscheduling: system.coscheduling,
            spin_ns: if system.polls { None } else { Some(50_000) },
            cpu: system.cpu,
            ..self.setup(system.policy)
        }
    }

    /// Ends a run and keeps what its checks found; `what` tells it from the experiment's others.
    pub(super) fn close(&mut self, world: &mut World, what: &str) -> Verdict {
        let verdict = world.finish();
        let totals = &mut self.totals;
        totals.lag_violations += verdict.lag_violations;
        totals.lag_share_max = totals.lag_share_max.max(verdict.lag_share_max);
        self.totals.other_violations += verdict.other_violations;
        self.totals.decisions += verdict.decisions;
        if self.totals.first.is_none()
            && let Some(first) = &verdict.first
        {
            let (name, seed) = (&self.name, self.seed);
            let quick = if self.quick { " --quick" } else { "" };
            let text = format!("{what}: {first}; replay with weft sim {name} --seed {seed}{quick}");
            self.totals.first = Some(text);
        }
        verdict
    }

    /// The program's own driver in its own process. A submission costs as much as on the rings: the
    /// in-process device's own queue is slower, and to count that would flatter them.
    pub(super) fn native(&self) -> Transport {
        Transport {
            submit_ns: self.costs.submit.ns,
            round_trip_ns: self.costs.native_call.ns,
            lock_step: false,
        }
    }

    /// Shared-memory rings: this project's transport.
    pub(super) fn rings(&self) -> Transport {
        Transport {
            submit_ns: self.costs.submit.ns,
            round_trip_ns: self.costs.round_trip.ns,
            lock_step: false,
        }
    }

    /// A model of GVirtuS: four system calls a request, nothing queued ahead. That they cost no
    /// more than an echo of them is an assumption.
    pub(super) fn trapping(&self) -> Transport {
        let ns = self.costs.trapping_call.ns;
        Transport { submit_ns: ns, round_trip_ns: ns, lock_step: true }
    }

    /// A model of rCUDA: requests over TCP, asynchronous ones queued.
    pub(super) fn tcp(&self) -> Transport {
        Transport {
            submit_ns: self.costs.tcp_send.ns,
            round_trip_ns: self.costs.tcp_round_trip.ns,
            lock_step: false,
        }
    }
}

/// A scheduler to compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct System {
    pub(super) name: &'static str,
    pub(super) policy: &'static str,
    pub(super) coscheduling: bool,
    /// vCPUs poll for answers and never block.
    pub(super) polls: bool,
    pub(super) cpu: CpuScheduler,
}

const fn system(name: &'static str, policy: &'static str) -> System {
    System { name, policy, coscheduling: false, polls: false, cpu: CpuScheduler::Cfs }
}

/// Weft's, on today's CPU scheduler.
pub(super) const FAIR: System =
    System { coscheduling: true, cpu: CpuScheduler::Eevdf, ..system("fair", "fair") };

/// Everything that is compared, Weft's first. The last two are the negative controls.
pub(super) const SYSTEMS: [System; 7] = [
    FAIR,
    System { cpu: CpuScheduler::Eevdf, ..system("fair, no cosched", "fair") },
    System { polls: true, ..system("credit_poll", "credit_poll") },
    system("credit_hs", "credit_hs"),
    system("strict_co", "strict_co"),
    system("round_robin", "round_robin"),
    system("unmanaged", "unmanaged"),
];

/// The systems whose policy the core has.
pub(super) fn systems() -> impl Iterator<Item = System> {
    SYSTEMS.into_iter().filter(|system| policy::by_name(system.policy).is_ok())
}

/// How a run's work was shared out.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    /// Per window: smallest over largest normalised throughput.
    pub(super) mmr: Vec<f64>,
    /// Ideal over measured aggregated throughput, over all windows.
    pub(super) overhead: f64,
    /// Device time per second of each vGPU, over all windows.
    pub(super) rates: Vec<f64>,
}

impl Shares {
    pub(super) fn median(&self) -> f64 {
        median(&self.mmr)
    }

    pub(super) fn least(&self) -> f64 {
        self.mmr.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }
}

/// Runs `windows` windows and measures each: `xᵢ = Tᵢ / Oᵢ`, where `Oᵢ` is what the vGPU would get
/// of an ideally shared device, its weight's part of the throughput `alone` that it has by itself.
pub(super) fn measure(
    world: &mut World,
    weights: &[u32],
    alone: f64,
    windows: usize,
    window_ns: u64,
) -> Shares {
    let total: f64 = weights.iter().copied().map(f64::from).sum();
    let begin = world.work_ns();
    let mut before = begin.clone();
    let mut mmr = Vec::new();
    for _ in 0..windows {
        world.run_for(window_ns);
        let after = world.work_ns();
        let shares = after.iter().zip(&before).zip(weights).map(|((after, before), weight)| {
            let ideal = alone * window_ns as f64 * f64::from(*weight) / total;
            (after - before) as f64 / ideal
        });
        mmr.push(min_max_ratio(&shares.collect::<Vec<_>>()));
        before = after;
    }
    let span_ns = (windows as u64 * window_ns) as f64;
    let rates: Vec<f64> =
        before.iter().zip(&begin).map(|(after, begin)| (after - begin) as f64 / span_ns).collect();
    let overhead = alone / rates.iter().sum::<f64>().max(1e-12);
    Shares { mmr, overhead, rates }
}

pub(crate) fn min_max_ratio(values: &[f64]) -> f64 {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    if high > 0.0 { low / high } else { 0.0 }
}
