//! The gate as the daemon keeps it, one per session.

use core::sync::atomic::fence;

use weft_ring::{Ordering, WakeFlag};

use crate::due::Due;
use crate::page::{Abandoned, ControlPage, Demand, Grant, GrantKind};

/// What a session says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Whether it wants the device.
    pub demand: Demand,
    /// About how much device time it wants, in ns.
    pub demand_ns: u64,
    /// Device time of its completed operations, in ns; only grows.
    pub used_ns: u64,
    /// Estimated device time of operations that were admitted and have not completed, in ns.
    pub in_flight_ns: u64,
    /// Time that it held a grant with nothing to do, in ns; only grows.
    pub idle_ns: u64,
    /// The last grant that it gave back.
    pub released: u64,
    /// Its synchronous calls so far.
    pub sync_calls: u64,
    /// Pieces of longer kernels that it has cut off so far.
    pub pieces: u64,
}

impl Report {
    /// Device time admitted so far, completed or not, in ns: what a turn took is the growth of
    /// this.
    #[must_use]
    pub fn admitted_ns(&self) -> u64 {
        self.used_ns.saturating_add(self.in_flight_ns)
    }
}

/// What became of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revocation {
    /// The session held nothing, or held the device idly: the device is free now.
    Free,
    /// The session is using its grant and will release it.
    Asked,
}

/// The daemon's side of a control page.
#[derive(Debug)]
pub struct GateDaemon {
    page: ControlPage,
    doorbell: WakeFlag,
    /// The last grant and what had been used before it.
    last: Option<(Grant, u64)>,
    /// A grant taken back from an idle session without its help.
    reclaimed: u64,
}

impl GateDaemon {
    /// Takes the daemon's side of `page`; the session sleeps on `doorbell`.
    #[must_use]
    pub fn new(page: ControlPage, doorbell: WakeFlag) -> Self {
        let last = page.load_grant();
        let used = page.used.load(Ordering::Acquire);
        // A restarted daemon adopts the session with whatever grant it has.
        let last = (last.epoch != 0).then_some((last, used));
        Self { page, doorbell, last, reclaimed: 0 }
    }

    /// Grants the device. The session must not hold it; the grant is returned.
    pub fn grant(&mut self, budget_ns: u64, kind: GrantKind) -> Grant {
        let epoch = self.last.map_or(0, |(last, _)| last.epoch) + 1;
        let grant = Grant { epoch, budget_ns, kind };
        self.last = Some((grant, self.page.used.load(Ordering::Acquire)));
        self.page.store_grant(&grant);
        self.doorbell.wake();
        grant
    }

    /// Asks for the device back.
    pub fn revoke(&mut self) -> Revocation {
        let Some((grant, _)) = self.last else {
            return Revocation::Free;
        };
        if !self.is_held() {
            return Revocation::Free;
        }
        self.page.revoke.store(grant.epoch, Ordering::Release);
        // SYNC: the revocation is ordered before the look at the demand; pairs with
        // `GateWorker::set_runnable`.
        fence(Ordering::SeqCst);
        if self.page.load_demand() == Demand::Idle && grant.kind == GrantKind::Renewing {
            self.reclaimed = grant.epoch;
            return Revocation::Free;
        }
        self.doorbell.wake();
        Revocation::Asked
    }

    /// Names the session as the next one, so that its worker is awake when its turn comes.
    pub fn prepare(&self) {
        let next = self.last.map_or(0, |(last, _)| last.epoch) + 1;
        self.page.prepare.store(next, Ordering::Release);
        self.doorbell.wake();
    }

    /// Whether the session has a grant that it has not given back.
    #[must_use]
    pub fn is_held(&self) -> bool {
        // SYNC: acquires what the session wrote before its release.
        let released = self.page.released.load(Ordering::Acquire);
        self.last.is_some_and(|(last, _)| last.epoch > released.max(self.reclaimed))
    }

    /// What the session says.
    #[must_use]
    pub fn report(&self) -> Report {
        // The release first: what was used before it is then visible below.
        let released = self.page.released.load(Ordering::Acquire);
        Report {
            released: released.max(self.reclaimed),
            demand: self.page.load_demand(),
            demand_ns: self.page.demand.load(Ordering::Relaxed),
            // In flight before used: an operation that completes in between counts twice rather
            // than never.
            in_flight_ns: self.page.in_flight.load(Ordering::Acquire),
            used_ns: self.page.used.load(Ordering::Acquire),
            idle_ns: self.page.idle.load(Ordering::Relaxed),
            sync_calls: self.page.sync_calls.load(Ordering::Relaxed),
            pieces: self.page.pieces.load(Ordering::Relaxed),
        }
    }

    /// Whether the session claims more device time since its grant than the wall clock allows,
    /// beyond `slack_ns` (what was in flight before, and the clocks' grain). Such a worker lies.
    #[must_use]
    pub fn is_overdue(&self, wall_ns: u64, slack_ns: u64) -> bool {
        let used = self.page.used.load(Ordering::Acquire);
        let allowed = wall_ns.saturating_add(slack_ns);
        self.last.is_some_and(|(_, before)| used.saturating_sub(before) > allowed)
    }

    /// The last report of a session whose worker is dead since `now_ns` of the device's clock, and
    /// how much of it is for what was in flight. Nobody reported that, so it is bounded by what the
    /// device could do since `granted_ns`, when the session's last grant was given.
    #[must_use]
    pub fn final_report(
        &self,
        now_ns: u64,
        granted_ns: u64,
        abandoned: Abandoned,
    ) -> (Report, u64) {
        let mut report = self.report();
        let owed_ns = self.page.abandoned_ns(now_ns, abandoned);
        let passed_ns = now_ns.saturating_sub(granted_ns);
        let most_ns = match abandoned {
            Abandoned::Ends => passed_ns,
            Abandoned::Stays => report.in_flight_ns.max(passed_ns),
        };
        let owed_ns = owed_ns.min(most_ns);
        report.used_ns = report.used_ns.saturating_add(owed_ns);
        report.in_flight_ns = 0;
        (report, owed_ns)
    }

    /// Switches the gate off or on for this session.
    pub fn set_unmanaged(&self, unmanaged: bool) {
        self.page.unmanaged.store(u32::from(unmanaged), Ordering::Release);
        self.doorbell.wake();
    }

    /// Sets the device time that may still be in flight when a turn is released, in ns.
    pub fn set_lead(&self, lead_ns: u64) {
        self.page.lead.store(lead_ns, Ordering::Release);
    }

    /// Asks the session to tell when a result comes soon, or no more.
    pub fn set_coscheduled(&self, coscheduled: bool) {
        self.page.coscheduled.store(u32::from(coscheduled), Ordering::Relaxed);
    }

    /// The caller whose result is due first; `None` while nobody waits for one.
    #[must_use]
    pub fn due(&self) -> Option<Due> {
        Due::unpack(self.page.due.load(Ordering::Acquire))
    }

    /// Wakes the session's worker.
    pub fn ring(&self) {
        self.doorbell.wake();
    }

    /// The last grant, if any.
    #[must_use]
    pub fn last_grant(&self) -> Option<Grant> {
        self.last.map(|(grant, _)| grant)
    }
}
