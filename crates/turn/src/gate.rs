//! The gate of a session as the daemon keeps it: its grants and their end.

use crate::page::{DaemonPage, Demand, Grant, GrantKind, Report};

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
pub struct Gate<P> {
    page: P,
    /// The last grant and what had been used before it, in ns.
    last: Option<(Grant, u64)>,
    /// A grant taken back from an idle session without its help.
    reclaimed: u64,
}

impl<P: DaemonPage> Gate<P> {
    /// Takes the daemon's side of `page`.
    #[must_use]
    pub fn new(page: P) -> Self {
        let (last, used_ns) = (page.grant(), page.used_ns());
        // A restarted daemon adopts the session with whatever grant it has.
        let last = (last.epoch != 0).then_some((last, used_ns));
        Self { page, last, reclaimed: 0 }
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> &P {
        &self.page
    }

    /// Bounds the device time that the session may have in flight, in ns, or no more.
    pub fn set_slice(&self, ns: Option<u64>) {
        self.page.store_slice(ns);
    }

    /// Grants the device. The session must not hold it; the grant is returned.
    pub fn grant(&mut self, budget_ns: u64, kind: GrantKind) -> Grant {
        self.grant_after(budget_ns, kind, false)
    }

    /// The same; whether it `follows` a turn of the same vGPU ([`Grant::follows`]).
    pub fn grant_after(&mut self, budget_ns: u64, kind: GrantKind, follows: bool) -> Grant {
        let grant = Grant { epoch: self.next_epoch(), budget_ns, kind, follows };
        self.last = Some((grant, self.page.used_ns()));
        self.page.store_grant(&grant);
        self.page.wake();
        grant
    }

    /// Asks for the device back. Who wants nothing has it at most because the grant came just then:
    /// it would give that back, but may not look for as long as it compiles, and finds the
    /// revocation before it uses the grant ([`DaemonPage::revoke`]).
    pub fn revoke(&mut self) -> Revocation {
        let Some((grant, _)) = self.last.filter(|_| self.is_held()) else {
            return Revocation::Free;
        };
        self.page.revoke(grant.epoch);
        if self.page.demand() == Demand::Idle {
            self.reclaimed = grant.epoch;
            return Revocation::Free;
        }
        self.page.wake();
        Revocation::Asked
    }

    /// Names the session as the next one, so that its worker is awake when its turn comes.
    pub fn prepare(&self) {
        self.page.prepare(self.next_epoch());
        self.page.wake();
    }

    fn next_epoch(&self) -> u64 {
        self.last.map_or(0, |(last, _)| last.epoch) + 1
    }

    /// Whether the session has a grant that it has not given back.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let released = self.page.released().max(self.reclaimed);
        self.last.is_some_and(|(last, _)| last.epoch > released)
    }

    /// What the session says.
    #[must_use]
    pub fn report(&self) -> Report {
        let report = self.page.report();
        Report { released: report.released.max(self.reclaimed), ..report }
    }

    /// Whether the session claims more device time since its grant than the wall clock allows,
    /// beyond `slack_ns` (what was in flight before, and the clocks' grain). Such a worker lies.
    #[must_use]
    pub fn is_overdue(&self, wall_ns: u64, slack_ns: u64) -> bool {
        let allowed_ns = wall_ns.saturating_add(slack_ns);
        let used_ns = self.page.used_ns();
        self.last.is_some_and(|(_, before_ns)| used_ns.saturating_sub(before_ns) > allowed_ns)
    }

    /// The last grant, if any.
    #[must_use]
    pub fn last_grant(&self) -> Option<Grant> {
        self.last.map(|(grant, _)| grant)
    }
}
