//! How long a holder without work keeps its turn.

use weft_sched::Config;

use crate::page::Grant;

/// Who worked, or came back in time, may keep its turns in vain for so many yield limits in a row.
const CREDIT: u64 = 2;

/// A holder that pauses for a moment keeps its turn for the yield limit, as far as it has earned
/// that: each time that it waits in vain costs it as much time as it waited, and it earns what the
/// device works for it. So who has next to no work keeps the device for next to nothing, and who
/// waits for each of its short kernels pays nothing as long as its next one comes in time. Who gave
/// its turn up and is back within the limit, so that waiting would have paid, earns a whole one.
///
/// A turn that began with an exchange of memory was dear: given up, it would soon begin with
/// another. So it is kept for as long as that took, at most for its budget, earned or not: waiting
/// then costs at most twice what was best (Karlin et al., *Competitive snoopy caching*, 1988: rent
/// for as long as buying costs). A turn that follows its own one is as dear to give up: what was
/// brought is still there.
#[derive(Debug)]
pub struct Grace {
    yield_ns: u64,
    /// For how long it may still keep turns in vain, in ns; nothing where that need not be earned.
    credit_ns: Option<u64>,
    /// Since when the holder has nothing to do.
    idle_since_ns: Option<u64>,
    /// Since when the session has nothing to do, if it gave its turn up for that.
    gone_since_ns: Option<u64>,
    /// The last grant that is known.
    epoch: Option<u64>,
    /// What exchanges had taken when it began, and at the last look.
    before_ns: u64,
    exchanged_ns: u64,
}

/// What a holder without work does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// It keeps its turn.
    Lasts {
        /// For so much longer, in ns.
        left_ns: u64,
    },
    /// It gives its turn back.
    Ends {
        /// For so long it had nothing to do, in ns: the turn's expense.
        idled_ns: u64,
    },
}

impl Grace {
    /// With this yield limit, in ns, which need not be earned.
    #[must_use]
    pub fn new(yield_ns: u64) -> Self {
        Self {
            yield_ns,
            credit_ns: None,
            idle_since_ns: None,
            gone_since_ns: None,
            epoch: None,
            before_ns: 0,
            exchanged_ns: 0,
        }
    }

    /// Whether holders earn it on a device that is shared so: where the policy promises that the
    /// device is not left idle, but not where they may keep a whole turn without work.
    #[must_use]
    pub fn is_earned(config: &Config) -> bool {
        config.policy.promises_no_waste() && config.yield_ns < config.quantum_ns
    }

    /// Whether it has to be earned, from now on: at first there is all that can be.
    pub fn set_earned(&mut self, is_earned: bool) {
        if is_earned != self.credit_ns.is_some() {
            self.credit_ns = is_earned.then(|| most_ns(self.yield_ns));
        }
    }

    /// Before anything is done for a grant, if there is one: all exchanges of the session's memory
    /// so far took so long.
    pub fn look(&mut self, grant: Option<Grant>, exchanged_ns: u64) {
        if let Some(Grant { epoch, follows, .. }) = grant
            && self.epoch != Some(epoch)
        {
            self.epoch = Some(epoch);
            if !follows {
                // The exchange with which a turn begins comes after the look at which it was not
                // known.
                self.before_ns = self.exchanged_ns;
            }
        }
        self.exchanged_ns = exchanged_ns;
    }

    /// The device worked for the session for so long, in ns.
    pub fn worked(&mut self, ns: u64) {
        if let Some(credit_ns) = &mut self.credit_ns {
            *credit_ns = credit_ns.saturating_add(ns).min(most_ns(self.yield_ns));
        }
    }

    /// For how long a holder keeps a turn of this budget that has nothing to do, in ns.
    #[must_use]
    pub fn ns(&self, budget_ns: u64) -> u64 {
        let earned_ns = self.credit_ns.unwrap_or(u64::MAX).min(self.yield_ns);
        let exchange_ns = self.exchanged_ns.saturating_sub(self.before_ns);
        earned_ns.max(exchange_ns.min(budget_ns))
    }

    /// The holder has nothing to do, in a turn of this budget.
    pub fn pause(&mut self, now_ns: u64, budget_ns: u64, is_revoked: bool) -> Pause {
        let since_ns = *self.idle_since_ns.get_or_insert(now_ns);
        let idled_ns = now_ns.saturating_sub(since_ns);
        let left_ns = self.ns(budget_ns).saturating_sub(idled_ns);
        if is_revoked {
            // Whether waiting would have paid nobody knows.
            self.idle_since_ns = None;
        } else if left_ns > 0 {
            return Pause::Lasts { left_ns };
        } else {
            self.give_up(now_ns);
        }
        Pause::Ends { idled_ns }
    }

    /// Until when a holder without work keeps a turn of this budget, in ns; nothing of one with
    /// work.
    #[must_use]
    pub fn until_ns(&self, budget_ns: u64) -> Option<u64> {
        self.idle_since_ns.map(|since_ns| since_ns.saturating_add(self.ns(budget_ns)))
    }

    /// Whether a holder has nothing to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.idle_since_ns.is_some()
    }

    /// Whether [`Self::resume`] is worth a look at the clock.
    #[must_use]
    pub fn is_pausing(&self) -> bool {
        self.is_idle() || self.gone_since_ns.is_some()
    }

    /// The session has work: for how long it had none in its turn, in ns, if it had none.
    pub fn resume(&mut self, now_ns: u64) -> Option<u64> {
        let gone_ns = self.gone_since_ns.take().map(|since_ns| now_ns.saturating_sub(since_ns));
        if gone_ns.is_some_and(|gone_ns| gone_ns < self.yield_ns) {
            self.worked(self.yield_ns);
        }
        self.end(now_ns)
    }

    /// The holder gives its turn up for want of work: for how long it had none, in ns, if it had
    /// none.
    pub fn give_up(&mut self, now_ns: u64) -> Option<u64> {
        self.gone_since_ns = self.gone_since_ns.or(self.idle_since_ns);
        let idled_ns = self.end(now_ns)?;
        if let Some(credit_ns) = &mut self.credit_ns {
            // What it waited beyond the limit was for its memory.
            *credit_ns = credit_ns.saturating_sub(idled_ns.min(self.yield_ns));
        }
        Some(idled_ns)
    }

    /// The turn ends by itself: for how long its holder had nothing to do, in ns, if it had
    /// nothing.
    pub fn end(&mut self, now_ns: u64) -> Option<u64> {
        let since_ns = self.idle_since_ns.take()?;
        Some(now_ns.saturating_sub(since_ns))
    }

    /// The session has no turn that it could lose.
    pub fn forget(&mut self) {
        self.idle_since_ns = None;
    }
}

/// The most that a session may have earned, in ns.
fn most_ns(yield_ns: u64) -> u64 {
    yield_ns.saturating_mul(CREDIT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::page::GrantKind;

    const US: u64 = 1_000;
    const YIELD_NS: u64 = 100 * US;
    const BUDGET_NS: u64 = 6_000 * US;

    fn grant(epoch: u64, follows: bool) -> Option<Grant> {
        Some(Grant { epoch, budget_ns: BUDGET_NS, kind: GrantKind::Turn, follows })
    }

    fn earned(yield_ns: u64) -> Grace {
        let mut grace = Grace::new(yield_ns);
        grace.set_earned(true);
        grace
    }

    /// A session whose commands all find the device free.
    #[derive(Debug)]
    struct Program {
        grace: Grace,
        now_ns: u64,
        /// For how long it kept turns that it then gave up.
        in_vain_ns: u64,
        given_up: u64,
        back_in_time: u64,
    }

    impl Program {
        fn new() -> Self {
            let grace = earned(YIELD_NS);
            Self { grace, now_ns: 0, in_vain_ns: 0, given_up: 0, back_in_time: 0 }
        }

        /// A kernel, and then nothing for a while.
        fn step(&mut self, kernel_ns: u64, pause_ns: u64) {
            self.now_ns += kernel_ns;
            self.grace.worked(kernel_ns);
            let since_ns = self.now_ns;
            let next_ns = since_ns + pause_ns;
            while let Pause::Lasts { left_ns } = self.grace.pause(self.now_ns, BUDGET_NS, false) {
                if self.now_ns + left_ns >= next_ns {
                    self.now_ns = next_ns;
                    assert_eq!(self.grace.resume(next_ns), Some(pause_ns));
                    return;
                }
                self.now_ns += left_ns;
            }
            self.in_vain_ns += self.now_ns - since_ns;
            self.given_up += 1;
            self.back_in_time += u64::from(pause_ns < YIELD_NS);
            self.now_ns = next_ns;
            assert_eq!(self.grace.resume(next_ns), None, "it holds nothing");
        }
    }

    #[test]
    fn who_waits_for_each_of_its_short_kernels_keeps_the_whole_grace() {
        let mut program = Program::new();
        for _ in 0..10_000 {
            program.step(2 * US, 90 * US);
            assert_eq!(program.grace.ns(BUDGET_NS), YIELD_NS);
        }
        assert_eq!(program.given_up, 0);
        // It is slow now and then, and has the whole grace again at once, or after a kernel that
        // comes in time though its turn is gone.
        for _ in 0..100 {
            program.step(2 * US, 10_000 * US);
            (0..9).for_each(|_| program.step(2 * US, 90 * US));
        }
        assert!(program.given_up < 200, "{program:?}");
    }

    #[test]
    fn who_has_next_to_no_work_keeps_the_device_for_next_to_nothing() {
        let mut program = Program::new();
        for _ in 0..1_000 {
            program.step(2 * US, 1_000 * US);
        }
        assert!(program.in_vain_ns <= CREDIT * YIELD_NS + 1_000 * 2 * US, "{program:?}");
        assert!(program.grace.ns(BUDGET_NS) <= 2 * US);
        // The control: where it need not be earned the device stands still for all of the limit.
        program.grace = Grace::new(YIELD_NS);
        program.in_vain_ns = 0;
        for _ in 0..1_000 {
            program.step(2 * US, 1_000 * US);
        }
        assert_eq!(program.in_vain_ns, 1_000 * YIELD_NS);
    }

    /// Who comes back just in time to earn the next grace has given its turn up at once before
    /// that: each second turn is kept in vain at most.
    #[test]
    fn who_comes_back_in_time_for_a_next_grace_keeps_half_of_it() {
        let mut program = Program::new();
        for _ in 0..1_000 {
            program.step(2 * US, 99 * US);
            program.step(2 * US, 1_000 * US);
        }
        assert!(program.in_vain_ns <= 1_050 * YIELD_NS, "{program:?}");
    }

    #[test]
    fn work_earns_the_whole_grace_again() {
        let mut program = Program::new();
        (0..10).for_each(|_| program.step(2 * US, 1_000 * US));
        assert!(program.grace.ns(BUDGET_NS) < 3 * US);
        program.step(400 * US, 50 * US);
        assert_eq!(program.grace.ns(BUDGET_NS), YIELD_NS);
    }

    #[test]
    fn a_turn_that_ends_by_itself_costs_nothing() {
        let mut grace = earned(YIELD_NS);
        for turn in 0..10 {
            let now_ns = turn * BUDGET_NS;
            assert_eq!(grace.pause(now_ns, BUDGET_NS, false), Pause::Lasts { left_ns: YIELD_NS });
            assert_eq!(grace.end(now_ns + 60 * US), Some(60 * US));
            assert_eq!(grace.pause(now_ns + 70 * US, BUDGET_NS, true), Pause::Ends { idled_ns: 0 });
            assert!(!grace.is_pausing());
        }
    }

    #[test]
    fn it_is_earned_where_the_device_must_not_stand_still() {
        let config = Config::default();
        assert!(Grace::is_earned(&config));
        assert!(!Grace::is_earned(&Config { yield_ns: config.quantum_ns, ..config }));
        let policy = weft_sched::policy::by_name("round_robin").unwrap();
        assert!(!Grace::is_earned(&Config { policy, ..config }));
    }

    #[test]
    fn a_turn_that_was_dear_is_kept_for_as_long_as_that_took() {
        let mut grace = earned(YIELD_NS);
        grace.look(None, 0);
        assert_eq!(grace.ns(BUDGET_NS), YIELD_NS);
        grace.look(grant(1, false), 2_000 * US);
        grace.look(grant(1, false), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), 3_000 * US);
        // What was brought is still there in a turn that follows, with or without a pause.
        grace.look(grant(2, true), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), 3_000 * US);
        grace.look(None, 3_000 * US);
        grace.look(grant(3, true), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), 3_000 * US);
        // It need not be earned, and costs no more than the limit when it was in vain.
        assert_eq!(grace.pause(0, BUDGET_NS, false), Pause::Lasts { left_ns: 3_000 * US });
        let ends = Pause::Ends { idled_ns: 3_000 * US };
        assert_eq!(grace.pause(3_000 * US, BUDGET_NS, false), ends);
        // After another one's turn, what was taken of it has to be brought first. The session's
        // grants are numbered one after the other all the same.
        grace.look(grant(4, false), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), YIELD_NS);
        grace.look(grant(4, false), 90_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), BUDGET_NS);
    }

    proptest! {
        #[test]
        fn it_is_never_above_the_limit_and_keeps_in_vain_no_more_than_was_earned(
            steps in proptest::collection::vec((0..400 * US, 0..400 * US), 1..200),
        ) {
            let (mut program, mut worked_ns) = (Program::new(), 0);
            for (kernel_ns, pause_ns) in steps {
                program.step(kernel_ns, pause_ns);
                worked_ns += kernel_ns;
                prop_assert!(program.grace.ns(BUDGET_NS) <= YIELD_NS);
                let earned_ns = worked_ns + (CREDIT + program.back_in_time) * YIELD_NS;
                prop_assert!(program.in_vain_ns <= earned_ns, "{program:?}");
            }
        }

        /// Whatever is called in whatever order, at whatever times.
        #[test]
        fn no_order_of_calls_takes_it_beyond_its_limits(
            calls in proptest::collection::vec((0..7_u8, any::<u64>()), 1..100),
            yield_ns: u64,
        ) {
            let mut grace = earned(yield_ns);
            for (call, ns) in calls {
                match call {
                    0 => grace.worked(ns),
                    1 => { grace.pause(ns, BUDGET_NS, false); }
                    2 => { grace.pause(ns, BUDGET_NS, true); }
                    3 => { grace.resume(ns); }
                    4 => { grace.give_up(ns); }
                    5 => { grace.end(ns); }
                    _ => grace.forget(),
                }
                prop_assert!(grace.ns(BUDGET_NS) <= yield_ns);
                prop_assert!(grace.credit_ns.is_some_and(|ns| ns <= most_ns(yield_ns)));
            }
        }
    }
}
