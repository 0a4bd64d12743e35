//! The core's invariants, checked at every step from what the device executed.

use weft_sched::invariants::{LagBound, PAIRS_MAX, WorkConservation};
use weft_sched::{Config, Tag, Weight};

use crate::world::{RELEASE_LEAD_NS, Setup};

/// What the invariants are held against in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Time of one turn in the lag bound.
    turn_ns: u64,
    /// The longest that the device may be idle while somebody has work.
    idle_ns: u64,
    /// The policy promises the lag bound.
    lag: bool,
    /// The policy promises work conservation.
    waste: bool,
}

impl Limits {
    pub(crate) fn of(config: &Config, setup: &Setup) -> Self {
        let costs = &setup.costs;
        // What a change of hands takes when nobody was prepared: the worker tells the daemon, the
        // daemon, by its timer if it has to, tells the next worker.
        let handover_ns = costs.daemon_wake.ns
            + costs.timer_late.ns
            + costs.worker_wake.ns
            + costs.worker_notice.ns
            + costs.launch.ns
            + costs.device_switch.ns
            + costs.slice.ns;
        Self {
            // A worker gives its turn back before its last work has drained, and knows what is left
            // of it no better than its lead: work may have waited behind another's.
            turn_ns: config.quantum_ns
                + config.overlap_ns
                + RELEASE_LEAD_NS
                + config.yield_ns
                + handover_ns,
            idle_ns: config.yield_ns + config.overlap_ns + 2 * handover_ns,
            lag: setup.policy == "fair" && !setup.hold_idle,
            waste: matches!(setup.policy, "fair" | "unmanaged") && !setup.hold_idle,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Checks {
    limits: Limits,
    lag: LagBound,
    waste: WorkConservation,
    virtual_time: Tag,
    pub(crate) decisions: u64,
    pub(crate) lag_violations: u64,
    pub(crate) other_violations: u64,
    pub(crate) first: Option<String>,
}

impl Checks {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            lag: LagBound::new(limits.turn_ns, 0),
            waste: WorkConservation::new(limits.idle_ns),
            virtual_time: Tag::ZERO,
            decisions: 0,
            lag_violations: 0,
            other_violations: 0,
            first: None,
        }
    }

    /// vGPUs beyond the largest number that is tracked are not.
    pub(crate) fn add(&mut self, weight: Weight) {
        self.lag.add(weight);
    }

    pub(crate) fn reweight(&mut self, tenant: usize, weight: Weight) {
        if tenant < PAIRS_MAX {
            self.lag.reweight(tenant, weight);
        }
    }

    pub(crate) fn set_backlogged(&mut self, tenant: usize, backlogged: bool) {
        if tenant < PAIRS_MAX {
            self.lag.set_backlogged(tenant, backlogged);
        }
    }

    pub(crate) fn submitted(&mut self, tenant: usize, piece_ns: u64) {
        if tenant < PAIRS_MAX {
            self.lag.submitted(tenant, piece_ns);
        }
    }

    pub(crate) fn served(&mut self, now_ns: u64, tenant: usize, ns: u64) {
        if tenant < PAIRS_MAX
            && self.limits.lag
            && let Err(lag) = self.lag.served(tenant, ns)
        {
            self.lag_violations += 1;
            self.note(|| format!("at {now_ns} ns: {lag}"));
        }
    }

    pub(crate) fn device(&mut self, now_ns: u64, busy: bool, wanted: bool) {
        if let Err(wasted_ns) = self.waste.observe(now_ns, busy, wanted)
            && self.limits.waste
        {
            self.other_violations += 1;
            self.note(|| format!("at {now_ns} ns: idle for {wasted_ns} ns with work waiting"));
        }
    }

    pub(crate) fn decided(&mut self, now_ns: u64, virtual_time: Option<Tag>) {
        self.decisions += 1;
        let virtual_time = virtual_time.unwrap_or(Tag::ZERO);
        if virtual_time < self.virtual_time {
            self.other_violations += 1;
            self.note(|| format!("at {now_ns} ns: the virtual time fell"));
        }
        self.virtual_time = virtual_time;
    }

    /// Something that must not happen did.
    pub(crate) fn violated(&mut self, what: impl FnOnce() -> String) {
        self.other_violations += 1;
        self.note(what);
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.first.is_none() {
            self.first = Some(what());
        }
    }

    pub(crate) fn lag_share(&self) -> f64 {
        let millionths = self.lag.worst().map_or(0, |lag| lag.share_of_bound());
        millionths as f64 / 1e6
    }

    pub(crate) fn idle_max_ns(&self) -> u64 {
        self.waste.longest_ns()
    }
}
