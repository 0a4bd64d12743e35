//! FairGV's evaluation and what goes past it, as named experiments.

mod accounting;
mod adversary;
mod attacks;
mod caps;
mod claims;
mod conserve;
mod decisions;
mod hierarchy;
mod lab;
mod mixed;
mod preemption;
mod profiles;
mod reweight;
mod scale;
mod sharing;
mod slicing;
mod standalone;
mod wakeup;

use crate::outcome::Outcome;
pub(crate) use claims::claims;
pub use decisions::{BATCH, decision_ns};
pub(crate) use lab::min_max_ratio;
pub use lab::{Lab, RunError};
pub use profiles::profiles;

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub summary: &'static str,
    run: fn(&mut Lab<'_>) -> Result<Outcome, RunError>,
}

impl Experiment {
    /// Whether it is of the paper, so that its figures are published of several seeds.
    pub fn is_of_paper(&self) -> bool {
        self.name.starts_with("figure") || self.name.starts_with("table") || self.name == "wakeup"
    }

    /// Whether it measures real time, so that nothing may run beside it.
    pub fn is_real(&self) -> bool {
        self.name == "decisions"
    }

    /// Runs it.
    ///
    /// # Errors
    /// If the core refuses the set-up of a run.
    pub fn run(&self, lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
        lab.begin(self.name);
        let mut outcome = (self.run)(lab)?;
        lab.end(&mut outcome);
        Ok(outcome)
    }
}

macro_rules! experiments {
    ($($name:literal: $run:path, $summary:literal;)+) => {
        /// All experiments, in the order of the report.
        pub const EXPERIMENTS: &[Experiment] =
            &[$(Experiment { name: $name, summary: $summary, run: $run }),+];
    };
}

experiments! {
    "figure2": standalone::figure2, "overhead of a transport against the kernel's size";
    "figure7": standalone::figure7, "twelve programs alone, three transports";
    "figure8": sharing::figure8, "three VMs on one core, weights 1:2:3";
    "figure9": sharing::figure9, "six VMs on three cores, weights 1:2:2:3:3:4";
    "figure10": conserve::figure10, "utilisation beside a co-runner that sleeps";
    "figure11": mixed::figure11, "run time beside kernels of another size";
    "table2": accounting::table2, "charges against the truth";
    "table4": slicing::table4, "slowdown by slicing";
    "long_kernels": slicing::long_kernels, "six weights, one tenant with kernels of 1.9 s";
    "preemption": preemption::preemption, "the same on a device that stops kernels";
    "wakeup": wakeup::wakeup, "what others lose when a sleeper wakes";
    "adversary": adversary::adversary, "what cheating gains";
    "scale": scale::scale, "very many vGPUs on one device";
    "decisions": decisions::decisions, "cost of a decision against the number of vGPUs";
    "closure": accounting::closure, "the sum of all charges against the device's busy time";
    "reweight": reweight::reweight, "weights that change under load";
    "hierarchy": hierarchy::hierarchy, "weights of tenants, vGPUs and sessions";
    "caps": caps::caps, "the most that a vGPU gets, on idle and busy devices";
}

/// The experiment of that name.
pub fn by_name(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

/// What all experiments together say: the figures of `weft sim fairgv`.
pub fn summary(outcomes: &[Outcome]) -> Outcome {
    let mut all = Outcome::new("fairgv", "FairGV's evaluation and past it", "see each experiment");
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.name == name);
    let pick = |name: &str, figure: &str| of(name)?.figures.get(figure).copied();
    // Of several seeds the worst.
    let low = |name: &str, figure: &str| Some(of(name)?.interval(figure)?.0);
    let high = |name: &str, figure: &str| Some(of(name)?.interval(figure)?.1);
    let least = [low("figure8", "mmr_min"), low("figure9", "mmr_min")];
    let most = [high("figure8", "overhead_max"), high("figure9", "overhead_max")];
    let figures = [
        ("mmr_min", least.into_iter().flatten().reduce(f64::min)),
        ("overhead_max", most.into_iter().flatten().reduce(f64::max)),
        ("long_kernel_mmr", pick("long_kernels", "mmr_0_2ms")),
        ("wake_delay_quanta_max", high("wakeup", "wake_delay_quanta_max")),
        ("wake_delay_over_fair_quanta_max", high("wakeup", "wake_delay_over_fair_quanta_max")),
        ("adversary_gain_max", pick("adversary", "gain_max")),
        ("victim_loss_max", pick("adversary", "victim_loss_max")),
        ("attacked_utilization_min", pick("adversary", "utilization_min")),
        ("preemption_mmr", pick("preemption", "mmr_stopped_100us_6ms")),
        ("hierarchy_mmr_min", pick("hierarchy", "mmr_min")),
        ("share_over_cap_max", pick("caps", "share_over_cap_max")),
        ("closure_max", pick("closure", "closure_max")),
        ("alone_overhead_max", high("figure7", "overhead_max")),
    ];
    for (name, value) in figures {
        if let Some(value) = value {
            all.figure(name, value);
        }
    }
    for outcome in outcomes {
        all.lag_bound_violations += outcome.lag_bound_violations;
        all.lag_share_max = all.lag_share_max.max(outcome.lag_share_max);
        all.other_violations += outcome.other_violations;
        all.decisions += outcome.decisions;
        all.first_violation = all.first_violation.or_else(|| outcome.first_violation.clone());
        for (name, value) in &outcome.controls {
            all.control(format!("{}_{name}", outcome.name), *value);
        }
    }
    all.figure("lag_bound_share_max", all.lag_share_max);
    all.figure("lag_bound_violations", all.lag_bound_violations as f64);
    all.figure("other_violations", all.other_violations as f64);
    all.figure("decisions", all.decisions as f64);
    all
}
