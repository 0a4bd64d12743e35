//! The worker's side of a control page: a model of `weft_gate::GateWorker`, word for word but for
//! the shared memory.

/// The daemon's grant to a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// Names it; rises with each grant of the session.
    pub(crate) epoch: u64,
    pub(crate) budget_ns: u64,
    /// When it was given.
    pub(crate) at_ns: u64,
    /// A lone tenant's: the budget bounds what is in flight.
    pub(crate) renewing: bool,
}

/// What both sides see.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) grant: Option<Grant>,
    pub(crate) released: u64,
    /// The grant that the daemon took back from an idle worker.
    pub(crate) reclaimed: u64,
    pub(crate) revoked: u64,
    pub(crate) prepared: u64,
    pub(crate) runnable: bool,
    pub(crate) demand_ns: u64,
    pub(crate) used_ns: u64,
    pub(crate) in_flight_ns: u64,
    pub(crate) idle_ns: u64,
    pub(crate) sync_calls: u64,
}

impl Page {
    /// The daemon's view: a grant is out.
    pub(crate) fn is_held(&self) -> bool {
        self.grant.is_some_and(|grant| grant.epoch > self.released.max(self.reclaimed))
    }

    /// Device time admitted so far, completed or not.
    pub(crate) fn admitted_ns(&self) -> u64 {
        self.used_ns + self.in_flight_ns
    }
}

/// Whether an operation may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may; this much of the turn is left.
    Admitted(u64),
    /// Not before a grant, a completion or the end of the turn.
    Wait,
}

/// What the daemon must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Nothing.
    None,
    /// It finds out when it wakes anyway.
    Mark,
    /// It is woken.
    Ring,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    grant: Grant,
    spent_ns: u64,
    /// Estimates in flight from before the turn that are not charged yet.
    carried_ns: u64,
}

/// The worker's view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    pub(crate) page: Page,
    turn: Option<Turn>,
    epoch: u64,
    used_ns: u64,
    in_flight_ns: u64,
    pub(crate) unmanaged: bool,
    /// Turns are slices of wall time, whatever the device executes meanwhile: the competitors that
    /// know nothing of device time.
    pub(crate) by_wall: bool,
    /// The worker's clock.
    pub(crate) now_ns: u64,
    pub(crate) lead_ns: u64,
}

impl Gate {
    pub(crate) fn observe(&mut self) {
        if let Some(grant) = self.page.grant
            && grant.epoch != self.epoch
        {
            self.epoch = grant.epoch;
            self.turn = Some(Turn { grant, spent_ns: 0, carried_ns: self.in_flight_ns });
        }
    }

    pub(crate) fn admit(&mut self, estimate_ns: u64) -> Admission {
        if self.unmanaged {
            self.start(estimate_ns);
            return Admission::Admitted(u64::MAX);
        }
        let left_ns = self.left_ns();
        let Some(turn) = self.turn.as_mut().filter(|_| left_ns > 0) else { return Admission::Wait };
        turn.spent_ns = turn.spent_ns.saturating_add(estimate_ns);
        self.start(estimate_ns);
        Admission::Admitted(left_ns)
    }

    /// What is left of the turn, if there is one.
    pub(crate) fn left_ns(&mut self) -> u64 {
        self.observe();
        let Some(turn) = self.turn.filter(|_| !self.is_revoked()) else { return 0 };
        let bounded_ns = match (turn.grant.renewing, self.by_wall) {
            (true, _) => self.in_flight_ns,
            (false, true) => self.now_ns - turn.grant.at_ns,
            (false, false) => turn.spent_ns,
        };
        turn.grant.budget_ns.saturating_sub(bounded_ns)
    }

    /// How much later than foreseen the turn ends, since what it started took less than estimated;
    /// negative when that took more.
    pub(crate) fn unspent_ns(&self) -> i64 {
        let Some(turn) = self.turn.filter(|turn| !turn.grant.renewing) else { return 0 };
        let signed = |ns| i64::try_from(ns).unwrap_or(i64::MAX);
        signed(turn.grant.budget_ns) - signed(turn.spent_ns)
    }

    /// The turn of a lone tenant, which nothing ends but a revocation.
    pub(crate) fn is_renewing(&self) -> bool {
        self.turn.is_some_and(|turn| turn.grant.renewing)
    }

    fn start(&mut self, estimate_ns: u64) {
        self.in_flight_ns += estimate_ns;
        self.page.in_flight_ns = self.in_flight_ns;
    }

    /// The piece that starts is shorter than what was admitted.
    pub(crate) fn cut(&mut self, estimate_ns: u64, piece_ns: u64) {
        let less_ns = estimate_ns.saturating_sub(piece_ns);
        self.in_flight_ns -= less_ns;
        self.page.in_flight_ns = self.in_flight_ns;
        if let Some(turn) = &mut self.turn {
            turn.spent_ns = turn.spent_ns.saturating_sub(less_ns);
        }
    }

    /// Charges the oldest operation in flight. The daemon is told when what was in flight at a
    /// release has drained: until then the core goes by the prediction.
    pub(crate) fn charge(&mut self, estimate_ns: u64, actual_ns: u64) -> Signal {
        if let Some(turn) = &mut self.turn {
            // Of one that was prolonged, only what the turn added to it is the turn's.
            let carried_ns = turn.carried_ns.min(estimate_ns);
            turn.carried_ns -= carried_ns;
            if carried_ns == 0 || carried_ns < estimate_ns {
                turn.spent_ns = turn.spent_ns.saturating_sub(estimate_ns - carried_ns)
                    + actual_ns.saturating_sub(carried_ns);
            }
        }
        self.used_ns += actual_ns;
        self.page.used_ns = self.page.used_ns.max(self.used_ns);
        let was_in_flight = self.in_flight_ns > 0;
        self.in_flight_ns = self.in_flight_ns.saturating_sub(estimate_ns);
        self.page.in_flight_ns = self.in_flight_ns;
        let drained = was_in_flight && self.in_flight_ns == 0;
        if drained && self.turn.is_none() && !self.unmanaged { Signal::Ring } else { Signal::None }
    }

    /// An operation in flight was taken back before it began.
    pub(crate) fn withdraw(&mut self, estimate_ns: u64) {
        if let Some(turn) = &mut self.turn {
            let carried_ns = turn.carried_ns.min(estimate_ns);
            turn.carried_ns -= carried_ns;
            turn.spent_ns = turn.spent_ns.saturating_sub(estimate_ns - carried_ns);
        }
        self.in_flight_ns = self.in_flight_ns.saturating_sub(estimate_ns);
        self.page.in_flight_ns = self.in_flight_ns;
    }

    /// Tells the daemon how long the oldest operation in flight has executed.
    pub(crate) fn tell_elapsed(&mut self, estimate_ns: u64, elapsed_ns: u64) {
        self.page.used_ns = self.page.used_ns.max(self.used_ns + elapsed_ns);
        self.page.in_flight_ns = self.in_flight_ns.saturating_sub(elapsed_ns.min(estimate_ns));
    }

    pub(crate) fn charge_idle(&mut self, idle_ns: u64) {
        if let Some(turn) = &mut self.turn {
            turn.spent_ns += idle_ns;
        }
        self.page.idle_ns += idle_ns;
    }

    pub(crate) fn set_runnable(&mut self, demand_ns: u64) -> Signal {
        self.page.demand_ns = demand_ns;
        if std::mem::replace(&mut self.page.runnable, true) {
            return Signal::None;
        }
        self.observe();
        if self.is_revoked() {
            return self.release();
        }
        if self.turn.is_none() { Signal::Ring } else { Signal::Mark }
    }

    pub(crate) fn set_idle(&mut self) -> Signal {
        if !std::mem::replace(&mut self.page.runnable, false) {
            return Signal::None;
        }
        self.page.demand_ns = 0;
        self.observe();
        match self.turn {
            Some(turn) if turn.grant.renewing && !self.is_revoked() => Signal::Mark,
            Some(_) => self.release(),
            None => Signal::Ring,
        }
    }

    /// Ends a turn that is over once no more than the lead of it is still to run.
    pub(crate) fn try_release(&mut self, backlog_ns: u64) -> Signal {
        self.observe();
        if !self.is_over() || (backlog_ns > self.lead_ns && !self.by_wall) {
            return Signal::None;
        }
        let backlog_ns = backlog_ns.min(self.in_flight_ns);
        let elapsed_ns = self.in_flight_ns - backlog_ns;
        self.page.used_ns = self.page.used_ns.max(self.used_ns + elapsed_ns);
        self.page.in_flight_ns = backlog_ns;
        self.release()
    }

    /// How long until [`Self::try_release`] would end a turn that is over.
    pub(crate) fn release_in_ns(&self, backlog_ns: u64) -> Option<u64> {
        if self.by_wall {
            let turn = self.turn.filter(|turn| !turn.grant.renewing)?;
            let end_ns = turn.grant.at_ns.saturating_add(turn.grant.budget_ns);
            return Some(end_ns.saturating_sub(self.now_ns));
        }
        self.is_over().then(|| backlog_ns.saturating_sub(self.lead_ns))
    }

    fn is_over(&self) -> bool {
        let spent = |turn: Turn| {
            let ns = if self.by_wall { self.now_ns - turn.grant.at_ns } else { turn.spent_ns };
            !turn.grant.renewing && ns >= turn.grant.budget_ns
        };
        self.turn.is_some_and(spent) || self.is_revoked()
    }

    pub(crate) fn release(&mut self) -> Signal {
        let Some(turn) = self.turn.take() else { return Signal::None };
        self.page.released = turn.grant.epoch;
        Signal::Ring
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.turn.is_some_and(|turn| turn.grant.epoch <= self.page.revoked)
    }

    pub(crate) fn is_prepared(&self) -> bool {
        self.page.prepared > self.epoch
    }

    /// The worker knows that it holds the device.
    pub(crate) fn knows_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// It holds a turn that it gives back by itself.
    pub(crate) fn has_turn(&mut self) -> bool {
        self.observe();
        self.turn.is_some_and(|turn| !turn.grant.renewing)
    }

    pub(crate) fn in_flight_ns(&self) -> u64 {
        self.in_flight_ns
    }
}
