//! The core's invariants, checked at every step from what the device executed.

use weft_sched::invariants::{CapCheck, LagTree, WorkConservation};
use weft_sched::{Cap, Config, Tag, TenantKey, Weight};
use weft_turn::{Accounting, lead_ns};

use crate::world::{Setup, session_key, tenant_key, vgpu_key};

/// What the invariants are held against in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// What may be in flight beyond a cap: a turn, with all that a pipelined driver adds to it.
    turn_ns: u64,
    /// Time of one turn in the lag bound: the quantum, and σ and the sleeper credit, as the design
    /// has it.
    lag_turn_ns: u64,
    /// The longest that the device may be idle while somebody has work.
    idle_ns: u64,
    /// The policy promises the lag bound.
    lag: bool,
    /// The policy promises work conservation.
    waste: bool,
    /// The policy accounts for work in flight, so caps hold.
    caps: bool,
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
            + costs.slice.ns
            + setup.preemption.map_or(0, |preemption| preemption.cost_ns());
        // The design's: the quantum, σ and the sleeper credit.
        let plain_ns = config.quantum_ns + config.sleeper_credit_ns + config.sigma_ns();
        // A worker gives its turn back before its last work has drained, and knows what is left
        // of it no better than its lead: work may have waited behind another's.
        let pipelined_ns = plain_ns + lead_ns(config) + config.yield_ns + handover_ns;
        Self {
            turn_ns: pipelined_ns,
            // A stop is asked for when a turn's end was noticed, and a kernel that would end sooner
            // than it takes is left to end (ADR 13). Of samples a worker knows what is left of its
            // turn no better than its lead.
            lag_turn_ns: match (setup.preemption, setup.accounting) {
                (Some(_), _) => pipelined_ns,
                (None, Accounting::Sampled) => plain_ns + lead_ns(config),
                (None, _) => plain_ns,
            },
            idle_ns: config.yield_ns + config.overlap_ns + 2 * handover_ns,
            lag: config.policy.promises_lag_bound() && !setup.hold_idle,
            waste: config.policy.promises_no_waste() && !setup.hold_idle,
            caps: config.policy.promises_caps(),
        }
    }
}

/// Whose cap it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bearer {
    /// One vGPU's own.
    Vgpu(usize),
    /// All vGPUs of a tenant have it together.
    Tenant(usize),
}

/// A cap that somebody is held against.
#[derive(Debug)]
struct Watched {
    bearer: Bearer,
    check: CapCheck,
}

#[derive(Debug)]
pub(crate) struct Checks {
    limits: Limits,
    lag: LagTree,
    waste: WorkConservation,
    caps: Vec<Watched>,
    /// Each vGPU's tenant.
    tenants: Vec<usize>,
    /// Each vGPU's longest command that could not be cut.
    pieces_ns: Vec<u64>,
    virtual_time: Tag,
    pub(crate) decisions: u64,
    pub(crate) lag_violations: u64,
    pub(crate) other_violations: u64,
    pub(crate) first: Option<String>,
}

impl Checks {
    pub(crate) fn new(limits: Limits) -> Self {
        let mut lag = LagTree::new(limits.lag_turn_ns);
        lag.add_tenant(TenantKey::DEFAULT, Weight::ONE);
        Self {
            limits,
            lag,
            waste: WorkConservation::new(limits.idle_ns),
            caps: Vec::new(),
            tenants: Vec::new(),
            pieces_ns: Vec::new(),
            virtual_time: Tag::ZERO,
            decisions: 0,
            lag_violations: 0,
            other_violations: 0,
            first: None,
        }
    }

    pub(crate) fn add_tenant(&mut self, tenant: usize, weight: Weight) {
        self.lag.add_tenant(tenant_key(tenant), weight);
    }

    pub(crate) fn add_vgpu(&mut self, vgpu: usize, tenant: usize, weight: Weight) {
        self.lag.add_vgpu(vgpu_key(vgpu), tenant_key(tenant), weight);
        self.tenants.push(tenant);
        self.pieces_ns.push(0);
    }

    pub(crate) fn add_session(&mut self, session: usize, vgpu: usize) {
        self.lag.add_session(session_key(session), vgpu_key(vgpu), Weight::ONE);
    }

    pub(crate) fn reweight_tenant(&mut self, tenant: usize, weight: Weight) {
        self.lag.reweight_tenant(tenant_key(tenant), weight);
    }

    pub(crate) fn reweight_vgpu(&mut self, vgpu: usize, weight: Weight) {
        self.lag.reweight_vgpu(vgpu_key(vgpu), weight);
    }

    pub(crate) fn reweight_session(&mut self, session: usize, weight: Weight) {
        self.lag.reweight_session(session_key(session), weight);
    }

    /// Whether a session has an unexecuted command, and whether it holds the device.
    pub(crate) fn observe(&mut self, session: usize, works: bool, holds: bool) {
        self.lag.observe(session_key(session), works, holds);
    }

    /// From now on the vGPU may go before others for so much service.
    pub(crate) fn may_borrow(&mut self, vgpu: usize, ns: u64) {
        self.lag.may_borrow(vgpu_key(vgpu), ns);
    }

    /// Whether its cap holds a vGPU back.
    pub(crate) fn set_throttled(&mut self, vgpu: usize, throttled: bool) {
        self.lag.set_throttled(vgpu_key(vgpu), throttled);
    }

    /// From now on the bearer is held against this cap, or against none.
    pub(crate) fn watch_cap(&mut self, now_ns: u64, bearer: Bearer, cap: Option<Cap>) {
        self.caps.retain(|watched| watched.bearer != bearer);
        // The slack grows with the commands that are seen, so it is compared here.
        let check = cap.map(|cap| CapCheck::new(cap, 0, now_ns));
        self.caps.extend(check.map(|check| Watched { bearer, check }));
    }

    pub(crate) fn submitted(&mut self, session: usize, vgpu: usize, piece_ns: u64) {
        self.lag.submitted(session_key(session), piece_ns);
        self.pieces_ns[vgpu] = self.pieces_ns[vgpu].max(piece_ns);
    }

    pub(crate) fn served(&mut self, now_ns: u64, session: usize, vgpu: usize, ns: u64) {
        if self.limits.lag
            && let Err(lag) = self.lag.served(session_key(session), ns)
        {
            self.lag_violations += 1;
            self.note(|| format!("at {now_ns} ns: {lag}"));
        }
        for bearer in [Bearer::Vgpu(vgpu), Bearer::Tenant(self.tenants[vgpu])] {
            self.count_to_cap(now_ns, bearer, ns);
        }
    }

    fn count_to_cap(&mut self, now_ns: u64, bearer: Bearer, ns: u64) {
        let Some(watched) = self.caps.iter_mut().find(|watched| watched.bearer == bearer) else {
            return;
        };
        let _ = watched.check.served(now_ns - ns, now_ns);
        let Some((excess_ns, slack_ns)) = self.cap_excess(bearer) else { return };
        if excess_ns > i128::from(slack_ns) && self.limits.caps {
            self.other_violations += 1;
            self.note(|| {
                let over = format!("exceeds its cap by {excess_ns} ns");
                format!("at {now_ns} ns: {bearer:?} {over}, {slack_ns} are allowed")
            });
        }
    }

    /// The largest excess of a bearer over the allowances of any run of periods, and how large it
    /// may be, in ns.
    pub(crate) fn cap_excess(&self, bearer: Bearer) -> Option<(i128, u64)> {
        let watched = self.caps.iter().find(|watched| watched.bearer == bearer)?;
        let piece_ns = match bearer {
            Bearer::Vgpu(vgpu) => self.pieces_ns[vgpu],
            Bearer::Tenant(tenant) => {
                let all = self.tenants.iter().zip(&self.pieces_ns);
                all.filter(|(of, _)| **of == tenant).map(|(_, ns)| *ns).max().unwrap_or(0)
            }
        };
        // What is in flight may be served in a period after the one that it was counted to: a turn,
        // and the command that used it up.
        let slack_ns = self.limits.turn_ns + 2 * piece_ns;
        Some((watched.check.worst_ns(), slack_ns))
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
        let millionths = self.lag.worst().map_or(0, |worst| worst.lag.share_of_bound());
        millionths as f64 / 1e6
    }

    pub(crate) fn idle_max_ns(&self) -> u64 {
        self.waste.longest_ns()
    }
}
