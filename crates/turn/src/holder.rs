//! The holder's half: what may start in a turn, what it is charged, when the turn is given back.

use core::time::Duration;

use crate::page::{Demand, Grant, GrantKind, HolderPage};

/// How long a holder or named successor polls before it sleeps (design: 100 µs before a vGPU
/// yields).
pub const HOLDER_SPIN: Duration = Duration::from_micros(100);

/// How long a named successor polls for its grant before it sleeps again.
pub const PREPARED_SPIN: Duration = Duration::from_micros(300);

/// Operations of up to this part of a slice start whenever less than a slice is in flight.
const SHORT_PART: u64 = 8;

/// What is known of how long an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Its device tells.
    Told,
    /// Its like took as long before.
    Predicted,
    /// Nothing.
    Guessed,
}

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
    /// The end of its turn: what is in flight drains, then [`Holder::try_release`] succeeds.
    Handover,
}

/// The turn that the session has.
#[derive(Debug, Clone, Copy)]
struct Held {
    grant: Grant,
    /// Device time admitted in this turn, estimates replaced by what was charged; in ns. Estimates
    /// of grids that would run for centuries must come out again as they went in: a sum that
    /// saturates forgets what was spent before.
    spent_ns: u128,
    /// Estimates of what was in flight when the turn began and has not completed. Operations
    /// complete in the order of their admission, so this much is charged before the turn's own.
    carried_ns: u128,
}

/// A session's side of its control page.
#[derive(Debug)]
pub struct Holder<P> {
    page: P,
    turn: Option<Held>,
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
}

impl<P: HolderPage> Holder<P> {
    /// Takes the session's side of `page`.
    #[must_use]
    pub fn new(page: P) -> Self {
        // A restarted worker continues the counts; a grant from before it is over.
        let report = page.report();
        Self {
            page,
            turn: None,
            epoch: report.released,
            revoke_seen: 0,
            prepare_seen: 0,
            demand: report.demand,
            used_ns: report.used_ns,
            shown_used_ns: report.used_ns,
            in_flight_ns: 0,
            sync_calls: report.sync_calls,
        }
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> &P {
        &self.page
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
        let (left_ns, wait) = self.left();
        let Some(turn) = self.turn.as_mut().filter(|_| left_ns > 0) else {
            return Admission::Wait(wait);
        };
        turn.spent_ns += u128::from(estimate_ns);
        self.start(estimate_ns);
        Admission::Admitted { left_ns }
    }

    /// Whether an operation may start beside `flying` others, of which one `is_guess`. Where a
    /// device tells how long operations take, the budget bounds them. Where that is predicted,
    /// short ones can turn out long, all of those that fly, so they are no more than `depth`: a
    /// tenant that waits, or comes to wait, waits for that many. [`Ahead`](crate::Ahead) says how
    /// many; one where a device does not run ahead, because then the next is begun by who starts
    /// it. One of which nothing is known executes alone: a budget full of guesses would let the
    /// turn last as long as they really take.
    #[must_use]
    pub fn may_join(&self, flying: usize, is_guess: bool, length: Length, depth: usize) -> bool {
        let beside = match length {
            Length::Guessed => 0,
            Length::Predicted if self.is_unmanaged() => usize::MAX,
            Length::Predicted => depth.saturating_sub(1),
            Length::Told => usize::MAX,
        };
        !is_guess && flying <= beside
    }

    /// In how many ns an operation may start of which `least_ns` cannot be cut, by a session that
    /// may have only a slice in flight, because a request may come that goes first; 0 is now. The
    /// oldest operation in flight has run for `ran_ns` of its estimate. A slice and a long kernel
    /// behind it would be a slice too many, but one operation alone may be as long as it is.
    #[must_use]
    pub fn room_in_ns(&self, least_ns: u64, ran_ns: u64) -> u64 {
        let Some(slice_ns) = self.page.slice_ns() else { return 0 };
        if least_ns <= slice_ns / SHORT_PART {
            // It goes beyond the slice by little, and waking up for each of many costs processors.
            return 0;
        }
        let flies_ns = self.in_flight_ns().saturating_sub(ran_ns);
        let room_ns = slice_ns.saturating_sub(least_ns);
        flies_ns.saturating_sub(room_ns)
    }

    /// Device time left to the turn, in ns; 0 without one.
    pub fn left_ns(&mut self) -> u64 {
        self.observe();
        self.left().0
    }

    /// What is left of the turn, and what to wait for if that is nothing.
    fn left(&self) -> (u64, WaitFor) {
        let Some(turn) = &self.turn else { return (0, WaitFor::Grant) };
        if self.is_revoked() {
            return (0, WaitFor::Handover);
        }
        let (bounded_ns, wait) = match turn.grant.kind {
            GrantKind::Turn => (self.spent_ns(turn), WaitFor::Handover),
            GrantKind::Renewing => (self.in_flight_ns, WaitFor::Completion),
        };
        let left_ns = turn.grant.budget_ns.saturating_sub(shown(bounded_ns));
        match self.page.slice_ns().map(|ns| ns.saturating_sub(self.in_flight_ns())) {
            Some(room_ns) if room_ns < left_ns => (room_ns, WaitFor::Completion),
            _ => (left_ns, wait),
        }
    }

    /// What a turn has used of its budget.
    fn spent_ns(&self, turn: &Held) -> u128 {
        self.page.passed_ns(&turn.grant).map_or(turn.spent_ns, u128::from)
    }

    /// How much later than foreseen the turn ends since what it started took less than estimated,
    /// in ns; negative when that took more; 0 of a turn without end.
    #[must_use]
    pub fn unspent_ns(&self) -> i64 {
        let Some(turn) = self.turn.filter(|turn| turn.grant.kind == GrantKind::Turn) else {
            return 0;
        };
        let signed = |ns| i64::try_from(ns).unwrap_or(i64::MAX);
        signed(u128::from(turn.grant.budget_ns)) - signed(turn.spent_ns)
    }

    fn start(&mut self, estimate_ns: u64) {
        self.in_flight_ns += u128::from(estimate_ns);
        self.page.show_in_flight(self.in_flight_ns());
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
        self.end(less_ns);
    }

    /// An operation in flight, the latest, was taken back before it began.
    pub fn withdraw(&mut self, estimate_ns: u64) {
        if let Some(turn) = &mut self.turn {
            let own_ns = turn.take_carried(estimate_ns);
            turn.spent_ns = turn.spent_ns.saturating_sub(own_ns);
        }
        self.end(estimate_ns);
    }

    fn end(&mut self, estimate_ns: u64) {
        self.in_flight_ns = self.in_flight_ns.saturating_sub(estimate_ns.into());
        self.page.show_in_flight(self.in_flight_ns());
    }

    /// Charges the oldest operation in flight, that was admitted with `estimate_ns` and took
    /// `actual_ns`.
    pub fn charge(&mut self, estimate_ns: u64, actual_ns: u64) {
        if let Some(turn) = &mut self.turn {
            turn.charge(estimate_ns, actual_ns);
        }
        self.used_ns = self.used_ns.saturating_add(actual_ns);
        // `used` first: a reader that adds both never counts less than was admitted.
        self.shown_used_ns = self.shown_used_ns.max(self.used_ns);
        self.page.show_used(self.shown_used_ns);
        let was_in_flight = self.in_flight_ns > 0;
        self.end(estimate_ns);
        // What was in flight at the release has drained: until the daemon looks, the tags go by the
        // prediction, and the errors of a vGPU's sessions add up.
        if was_in_flight && self.in_flight_ns == 0 && self.turn.is_none() && !self.is_unmanaged() {
            self.page.ring();
        }
    }

    /// Charges time in which the session held its turn with nothing to do, in ns: it counts
    /// against the turn, not as use.
    pub fn charge_idle(&mut self, idle_ns: u64) {
        if let Some(turn) = &mut self.turn {
            turn.spent_ns += u128::from(idle_ns);
        }
        self.page.add_idle(idle_ns);
    }

    /// The session has unexecuted device commands, of about `demand_ns` in all.
    ///
    /// Rings the daemon only when this is news and the device is not already the session's.
    pub fn set_runnable(&mut self, demand_ns: u64) {
        self.page.show_demand(demand_ns);
        if self.demand == Demand::Runnable {
            return;
        }
        self.demand = Demand::Runnable;
        self.page.announce(Demand::Runnable);
        self.observe();
        if self.is_revoked() {
            self.release();
        } else if self.turn.is_none() {
            self.page.ring();
        } else {
            self.page.mark();
        }
    }

    /// The session has no unexecuted device command. A turn ends; a renewing grant is kept until
    /// revoked.
    pub fn set_idle(&mut self) {
        if self.demand == Demand::Idle {
            return;
        }
        self.demand = Demand::Idle;
        self.page.show_demand(0);
        self.page.announce(Demand::Idle);
        self.observe();
        match self.turn.map(|turn| turn.grant.kind) {
            Some(GrantKind::Renewing) if !self.is_revoked() => self.page.mark(),
            Some(_) => self.release(),
            None => self.page.ring(),
        }
    }

    /// Ends a turn whose budget is used up or that was revoked, once no more than the daemon's lead
    /// of device time is still to run; `backlog_ns` is that time. True when the turn ended now.
    ///
    /// The successor starts while the rest drains, so a switch leaves no gap.
    pub fn try_release(&mut self, backlog_ns: u64) -> bool {
        self.observe();
        if self.release_in_ns(backlog_ns) != Some(0) {
            return false;
        }
        // The daemon then knows when the rest will have drained: a successor waits for that.
        let in_flight_ns = self.in_flight_ns();
        let backlog_ns = backlog_ns.min(in_flight_ns);
        self.show_elapsed(in_flight_ns - backlog_ns, backlog_ns);
        self.release();
        true
    }

    /// How long until [`Self::try_release`] would end the turn, in ns, if the turn is over and
    /// `backlog_ns` of it are still to run.
    #[must_use]
    pub fn release_in_ns(&self, backlog_ns: u64) -> Option<u64> {
        let turn = self.turn.as_ref()?;
        if let Some(passed_ns) = self.page.passed_ns(&turn.grant) {
            // A slice of wall time ends when it does, whatever drains, or at its revocation.
            let left_ns = turn.grant.budget_ns.saturating_sub(passed_ns);
            let revoked = self.is_revoked();
            let slice = turn.grant.kind == GrantKind::Turn;
            return (slice || revoked).then_some(if revoked { 0 } else { left_ns });
        }
        let is_spent =
            turn.grant.kind == GrantKind::Turn && turn.spent_ns >= turn.grant.budget_ns.into();
        let is_over = is_spent || self.is_revoked();
        is_over.then(|| backlog_ns.saturating_sub(self.page.lead_ns()))
    }

    /// Shows the elapsed part of what is in flight as used, and the rest of it; both in ns.
    pub fn show_elapsed(&mut self, elapsed_ns: u64, rest_ns: u64) {
        self.shown_used_ns = self.shown_used_ns.max(self.used_ns.saturating_add(elapsed_ns));
        self.page.show_used(self.shown_used_ns);
        self.page.show_in_flight(rest_ns);
    }

    /// Gives the turn back at once, whatever is left of it.
    pub fn release(&mut self) {
        let Some(turn) = self.turn.take() else {
            return;
        };
        self.page.show_released(turn.grant.epoch);
        self.page.ring();
    }

    /// Gives a turn back in which the session has nothing to do, and says that first: who gives one
    /// back and has more to do goes on, if it may. The demand may have been idle before the turn
    /// came.
    pub fn release_idle(&mut self) {
        self.set_idle();
        self.release();
    }

    /// Counts a wait for a result: how the daemon tells interactive sessions.
    pub fn count_sync_call(&mut self) {
        self.sync_calls = self.sync_calls.wrapping_add(1);
        self.page.show_sync_calls(self.sync_calls);
    }

    /// Takes notice of what the daemon wrote.
    fn observe(&mut self) {
        self.revoke_seen = self.page.revoked();
        self.prepare_seen = self.page.prepared();
        if self.page.grant_epoch() == self.epoch {
            return;
        }
        let grant = self.page.grant();
        self.epoch = grant.epoch;
        self.turn = Some(Held { grant, spent_ns: 0, carried_ns: self.in_flight_ns });
    }

    /// Whether the session has the device now.
    pub fn is_holder(&mut self) -> bool {
        self.observe();
        self.turn.is_some()
    }

    /// Whether the turn was revoked and not yet released.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        let revoked = self.page.revoked();
        self.turn.is_some_and(|turn| turn.grant.epoch <= revoked)
    }

    /// Whether nobody else wants the device, as far as the grant in use tells. Whoever has given
    /// a turn back before what flies in it has drained has a successor behind that.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        let is_renewed = |turn: Held| turn.grant.kind == GrantKind::Renewing;
        let without = self.is_unmanaged() || self.in_flight_ns == 0;
        !self.is_revoked() && self.turn.map_or(without, is_renewed)
    }

    /// Whether the daemon named this session as the next one.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.page.prepared() > self.epoch
    }

    /// Whether no gate applies.
    #[must_use]
    pub fn is_unmanaged(&self) -> bool {
        self.page.is_unmanaged()
    }

    /// Whether the session has to earn the time for which it keeps a turn without work.
    #[must_use]
    pub fn is_grace_earned(&self) -> bool {
        self.page.is_grace_earned()
    }

    /// Whether the daemon wrote something that this side has not acted on: a grant, a revocation,
    /// or that a grant comes soon. For the condition of a wait. News are over once any method that
    /// takes `&mut self` has looked at them.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.page.grant_epoch() != self.epoch
            || self.page.revoked() != self.revoke_seen
            || self.page.prepared() != self.prepare_seen
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

impl Held {
    /// Takes an operation's estimate off what was in flight before the turn; what is left of it is
    /// the turn's own.
    fn take_carried(&mut self, estimate_ns: u64) -> u128 {
        let estimate_ns = u128::from(estimate_ns);
        let carried_ns = self.carried_ns.min(estimate_ns);
        self.carried_ns -= carried_ns;
        estimate_ns - carried_ns
    }

    /// Of an operation that was prolonged, only what the turn added to it is the turn's.
    fn charge(&mut self, estimate_ns: u64, actual_ns: u64) {
        let own_ns = self.take_carried(estimate_ns);
        let carried_ns = u128::from(estimate_ns) - own_ns;
        if carried_ns == 0 || own_ns > 0 {
            let others_ns = self.spent_ns.saturating_sub(own_ns);
            self.spent_ns = others_ns + u128::from(actual_ns).saturating_sub(carried_ns);
        }
    }
}

/// As much of a sum as a word of the page can show.
fn shown(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}
