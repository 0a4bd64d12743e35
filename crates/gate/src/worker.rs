//! The gate as the worker (or the interposed shim) passes it.

use core::sync::atomic::fence;
use std::time::{Duration, Instant};

use weft_ring::{Ordering, Patience, Unready, WakeFlag};

use crate::due::Due;
use crate::node::NodePage;
use crate::page::{Abandoned, ControlPage, Demand, Grant, GrantKind};

/// How long a holder or named successor polls before it sleeps (design: 100 µs before a vGPU
/// yields).
pub const HOLDER_SPIN: Duration = Duration::from_micros(100);

/// How long a named successor polls for its grant before it sleeps again.
pub const PREPARED_SPIN: Duration = Duration::from_micros(300);

/// Whether a device operation may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may; a longer one should be cut after `left_ns` if it can be.
    Admitted {
        /// Device time left to the turn, in ns; `u64::MAX` when nothing limits it.
        left_ns: u64,
    },
    /// Not yet.
    Wait(WaitFor),
}

/// What a refused operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The session's next grant.
    Grant,
    /// Completions: the budget in flight is used up.
    Completion,
    /// The end of its turn: what is in flight drains, then [`GateWorker::try_release`] succeeds.
    Handover,
}

/// The turn that the worker has.
#[derive(Debug, Clone, Copy)]
struct Turn {
    grant: Grant,
    /// Device time admitted in this turn, estimates replaced by what was charged; in ns. Estimates
    /// of grids that would run for centuries must come out again as they went in: a sum that
    /// saturates forgets what was spent before.
    spent_ns: u128,
    /// Estimates of what was in flight when the turn began and has not completed. Operations
    /// complete in the order of their admission, so this much is charged before the turn's own.
    carried_ns: u128,
}

/// The worker's side of a control page.
#[derive(Debug)]
pub struct GateWorker {
    page: ControlPage,
    node: NodePage,
    session: u32,
    turn: Option<Turn>,
    /// The last epoch seen, whether in use or over.
    epoch: u64,
    /// The last revocation seen.
    revoke_seen: u64,
    /// The last preparation seen.
    prepare_seen: u64,
    demand: Demand,
    used_ns: u64,
    /// What the page shows as used: at a release, also the elapsed part of what is in flight.
    shown_used_ns: u64,
    in_flight_ns: u128,
    sync_calls: u64,
    /// What the page shows as due.
    due: u64,
}

impl GateWorker {
    /// Takes the worker's side of `page`; `session` is its number in the node page.
    #[must_use]
    pub fn new(page: ControlPage, node: NodePage, session: u32) -> Self {
        // A restarted worker continues the counts; a grant from before it is over.
        let epoch = page.released.load(Ordering::Acquire);
        let used_ns = page.used.load(Ordering::Acquire);
        let demand = page.load_demand();
        let sync_calls = page.sync_calls.load(Ordering::Relaxed);
        Self {
            page,
            node,
            session,
            turn: None,
            epoch,
            revoke_seen: 0,
            prepare_seen: 0,
            demand,
            used_ns,
            shown_used_ns: used_ns,
            in_flight_ns: 0,
            sync_calls,
            due: 0,
        }
    }

    /// Asks to start an operation of about `estimate_ns` device time.
    ///
    /// An admitted operation must be charged when it completes, with the same estimate.
    pub fn admit(&mut self, estimate_ns: u64) -> Admission {
        if self.is_unmanaged() {
            self.start(estimate_ns);
            return Admission::Admitted { left_ns: u64::MAX };
        }
        self.observe();
        let Some(turn) = &mut self.turn else {
            return Admission::Wait(WaitFor::Grant);
        };
        if turn.grant.epoch <= self.page.revoke.load(Ordering::Acquire) {
            return Admission::Wait(WaitFor::Handover);
        }
        let (bounded_ns, wait) = match turn.grant.kind {
            GrantKind::Turn => (turn.spent_ns, WaitFor::Handover),
            GrantKind::Renewing => (self.in_flight_ns, WaitFor::Completion),
        };
        let left_ns = turn.grant.budget_ns.saturating_sub(shown(bounded_ns));
        if left_ns == 0 {
            return Admission::Wait(wait);
        }
        turn.spent_ns += u128::from(estimate_ns);
        self.start(estimate_ns);
        Admission::Admitted { left_ns }
    }

    fn start(&mut self, estimate_ns: u64) {
        self.in_flight_ns += u128::from(estimate_ns);
        self.page.in_flight.store(self.in_flight_ns(), Ordering::Release);
    }

    /// The operation admitted last will take `less_ns` less than its estimate: it is cut. Charge it
    /// with the shortened estimate.
    pub fn shorten(&mut self, less_ns: u64) {
        if less_ns == 0 {
            return;
        }
        if let Some(turn) = &mut self.turn {
            turn.spent_ns = turn.spent_ns.saturating_sub(less_ns.into());
        }
        self.in_flight_ns = self.in_flight_ns.saturating_sub(less_ns.into());
        self.page.in_flight.store(self.in_flight_ns(), Ordering::Release);
    }

    /// The oldest operation in flight is in no counter from `since_ns` of the device's clock on: it
    /// began then, or its predecessor was charged up to there. For whoever charges a session that
    /// ends.
    pub fn set_front(&mut self, since_ns: u64) {
        self.page.front_since.store(since_ns, Ordering::Relaxed);
    }

    /// Device time that the session owes for what is in flight should it end at `now_ns` of the
    /// device's clock.
    #[must_use]
    pub fn abandoned_ns(&self, now_ns: u64, abandoned: Abandoned) -> u64 {
        self.page.abandoned_ns(now_ns, abandoned)
    }

    /// Charges the oldest operation in flight, that was admitted with `estimate_ns` and took
    /// `actual_ns`.
    pub fn charge(&mut self, estimate_ns: u64, actual_ns: u64) {
        if let Some(turn) = &mut self.turn {
            if turn.carried_ns > 0 {
                turn.carried_ns = turn.carried_ns.saturating_sub(estimate_ns.into());
            } else {
                let others_ns = turn.spent_ns.saturating_sub(estimate_ns.into());
                turn.spent_ns = others_ns + u128::from(actual_ns);
            }
        }
        self.used_ns = self.used_ns.saturating_add(actual_ns);
        // `used` first: a reader that adds both never counts less than was admitted.
        self.shown_used_ns = self.shown_used_ns.max(self.used_ns);
        self.page.used.store(self.shown_used_ns, Ordering::Release);
        let was_in_flight = self.in_flight_ns > 0;
        self.in_flight_ns = self.in_flight_ns.saturating_sub(estimate_ns.into());
        self.page.in_flight.store(self.in_flight_ns(), Ordering::Release);
        // What was in flight at the release has drained: until the daemon looks, the tags go by the
        // prediction, and the errors of a vGPU's sessions add up.
        if was_in_flight && self.in_flight_ns == 0 && self.turn.is_none() && !self.is_unmanaged() {
            self.node.ring(self.session);
        }
    }

    /// Charges time in which the session held its turn with nothing to do, in ns: it counts
    /// against the turn, not as use.
    pub fn charge_idle(&mut self, idle_ns: u64) {
        if let Some(turn) = &mut self.turn {
            turn.spent_ns += u128::from(idle_ns);
        }
        let before = self.page.idle.load(Ordering::Relaxed);
        self.page.idle.store(before.saturating_add(idle_ns), Ordering::Relaxed);
    }

    /// The session has unexecuted device commands, of about `demand_ns` in all.
    ///
    /// Rings the daemon only when this is news and the device is not already the session's.
    pub fn set_runnable(&mut self, demand_ns: u64) {
        self.page.demand.store(demand_ns, Ordering::Relaxed);
        if self.demand == Demand::Runnable {
            return;
        }
        self.demand = Demand::Runnable;
        self.page.store_demand(Demand::Runnable);
        // SYNC: the demand is ordered before the look at `revoke`; pairs with the fence in
        // `GateDaemon::revoke`. Either this side sees the revocation or the daemon sees that the
        // session uses its grant.
        fence(Ordering::SeqCst);
        self.observe();
        if self.is_revoked() {
            self.release();
        } else if self.turn.is_none() {
            self.node.ring(self.session);
        } else {
            self.node.mark(self.session);
        }
    }

    /// The session has no unexecuted device command. A turn ends; a renewing grant is kept until
    /// revoked.
    pub fn set_idle(&mut self) {
        if self.demand == Demand::Idle {
            return;
        }
        self.demand = Demand::Idle;
        self.page.demand.store(0, Ordering::Relaxed);
        self.page.store_demand(Demand::Idle);
        // SYNC: as in `set_runnable`.
        fence(Ordering::SeqCst);
        self.observe();
        match self.turn.map(|turn| turn.grant.kind) {
            Some(GrantKind::Renewing) if !self.is_revoked() => self.node.mark(self.session),
            Some(_) => self.release(),
            None => self.node.ring(self.session),
        }
    }

    /// Ends a turn whose budget is used up or that was revoked, once no more than the daemon's lead
    /// of device time is still to run; `backlog_ns` is that time. True when the turn ended now.
    ///
    /// The successor starts while the rest drains, so a switch leaves no gap.
    pub fn try_release(&mut self, backlog_ns: u64) -> bool {
        self.observe();
        let Some(turn) = self.turn else {
            return false;
        };
        if !self.is_over(&turn) || backlog_ns > self.page.lead.load(Ordering::Relaxed) {
            return false;
        }
        self.show_elapsed(backlog_ns);
        self.release();
        true
    }

    /// How long until [`Self::try_release`] would end the turn, in ns, if the turn is over and
    /// `backlog_ns` of it are still to run.
    #[must_use]
    pub fn release_in_ns(&self, backlog_ns: u64) -> Option<u64> {
        let _over = self.turn.filter(|turn| self.is_over(turn))?;
        Some(backlog_ns.saturating_sub(self.page.lead.load(Ordering::Relaxed)))
    }

    fn is_over(&self, turn: &Turn) -> bool {
        let is_spent =
            turn.grant.kind == GrantKind::Turn && turn.spent_ns >= turn.grant.budget_ns.into();
        is_spent || self.is_revoked()
    }

    /// Shows the elapsed part of what is in flight as used, so that the daemon knows when the rest
    /// will have drained: a successor waits for that.
    fn show_elapsed(&mut self, backlog_ns: u64) {
        let elapsed_ns = self.in_flight_ns().saturating_sub(backlog_ns);
        self.shown_used_ns = self.shown_used_ns.max(self.used_ns.saturating_add(elapsed_ns));
        self.page.used.store(self.shown_used_ns, Ordering::Release);
        self.page.in_flight.store(backlog_ns, Ordering::Release);
    }

    /// Gives the turn back at once, whatever is left of it.
    pub fn release(&mut self) {
        let Some(turn) = self.turn.take() else {
            return;
        };
        // SYNC: publishes used, in flight and demand to a daemon that sees the release.
        self.page.released.store(turn.grant.epoch, Ordering::Release);
        self.node.ring(self.session);
    }

    /// Counts a wait for a result: how the daemon tells interactive sessions.
    pub fn count_sync_call(&mut self) {
        self.sync_calls = self.sync_calls.wrapping_add(1);
        self.page.sync_calls.store(self.sync_calls, Ordering::Relaxed);
    }

    /// Counts a piece that was cut off a kernel: for whoever watches.
    pub fn count_piece(&mut self) {
        let pieces = self.page.pieces.load(Ordering::Relaxed).wrapping_add(1);
        self.page.pieces.store(pieces, Ordering::Relaxed);
    }

    /// Whether the daemon wants to hear before a result comes.
    #[must_use]
    pub fn is_coscheduled(&self) -> bool {
        self.page.coscheduled.load(Ordering::Relaxed) != 0
    }

    /// Shows whose result is due first. Rings the daemon, once per call, when it comes soon and the
    /// daemon wants to hear that.
    pub fn set_due(&mut self, due: Option<Due>) {
        let word = Due::pack(due);
        if word == self.due {
            return;
        }
        self.due = word;
        self.page.due.store(word, Ordering::Release);
        if due.is_some_and(|due| due.soon) && self.is_coscheduled() {
            self.node.ring(self.session);
        }
    }

    /// Takes notice of what the daemon wrote.
    fn observe(&mut self) {
        self.revoke_seen = self.page.revoke.load(Ordering::Acquire);
        self.prepare_seen = self.page.prepare.load(Ordering::Relaxed);
        if self.page.grant_epoch.load(Ordering::Relaxed) == self.epoch {
            return;
        }
        let grant = self.page.load_grant();
        self.epoch = grant.epoch;
        self.turn = Some(Turn { grant, spent_ns: 0, carried_ns: self.in_flight_ns });
    }

    /// Whether the session has the device now.
    pub fn is_holder(&mut self) -> bool {
        self.observe();
        self.turn.is_some()
    }

    /// Whether the turn was revoked and not yet released.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        let revoked = self.page.revoke.load(Ordering::Acquire);
        self.turn.is_some_and(|turn| turn.grant.epoch <= revoked)
    }

    /// Whether the daemon named this session as the next one.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.page.prepare.load(Ordering::Relaxed) > self.epoch
    }

    /// Whether no gate applies.
    #[must_use]
    pub fn is_unmanaged(&self) -> bool {
        self.page.unmanaged.load(Ordering::Relaxed) != 0
    }

    /// Whether the daemon wrote something that this side has not acted on: a grant, a revocation,
    /// or that a grant comes soon. For the condition of a wait.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.page.grant_epoch.load(Ordering::Acquire) != self.epoch
            || self.page.revoke.load(Ordering::Acquire) != self.revoke_seen
            || self.page.prepare.load(Ordering::Relaxed) != self.prepare_seen
    }

    /// How long to poll before sleeping: only a holder and a named successor poll.
    #[must_use]
    pub fn spin(&self) -> Duration {
        if self.is_prepared() {
            PREPARED_SPIN
        } else if self.turn.is_some() {
            HOLDER_SPIN
        } else {
            Duration::ZERO
        }
    }

    /// Sleeps on the session's `doorbell` until the daemon has news (`None`) or `other` gives
    /// something.
    ///
    /// News are over once any method that takes `&mut self` has looked at them.
    ///
    /// # Errors
    /// [`Unready::TimedOut`] when `limit` passed.
    pub fn wait<T>(
        &self,
        doorbell: &WakeFlag,
        limit: Option<Duration>,
        mut other: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Unready> {
        /// A second look even if somebody forgot to ring: rare enough to cost nothing.
        const SAFETY_NET: Duration = Duration::from_secs(2);

        let deadline = limit.map(|limit| Instant::now() + limit);
        let check_every = SAFETY_NET;
        let (spin, peer_alive, may_poll) = (self.spin(), &|| true, &|_| true);
        let announced = spin;
        let patience = Patience { spin, announced, deadline, check_every, peer_alive, may_poll };
        doorbell.wait(&patience, || other().map(Some).or_else(|| self.has_news().then_some(None)))
    }

    /// Device time that completed so far, in ns.
    #[must_use]
    pub fn used_ns(&self) -> u64 {
        self.used_ns
    }

    /// Estimated device time admitted and not completed, in ns.
    #[must_use]
    pub fn in_flight_ns(&self) -> u64 {
        shown(self.in_flight_ns)
    }

    /// The grant in use, if any.
    #[must_use]
    pub fn grant(&self) -> Option<Grant> {
        self.turn.map(|turn| turn.grant)
    }
}

/// As much of a sum as a word of the page can show.
fn shown(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}
