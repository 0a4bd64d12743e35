//! How much of a processor boosted threads may take.

/// Boosted threads of a node together run for at most this part of one processor's time, whatever
/// tenants do: other work there keeps nine tenths of its fair share.
const PART: u64 = 10;

/// What may be saved up for a burst, in ns of boosted running.
const DEPTH_NS: u64 = 2_000_000;

/// A session's threads run boosted for at most this long, in ns, in a turn, and in each quantum of
/// a turn that nobody ends.
const TURN_LIMIT_NS: u64 = 1_000_000;

/// A bucket of boosted running time that fills as time passes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// May be overdrawn by one boost.
    left_ns: i64,
    at_ns: u64,
}

impl Budget {
    /// A full one.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { left_ns: as_signed(DEPTH_NS), at_ns: now_ns }
    }

    /// Whether another boost may begin.
    pub(crate) fn allows(&mut self, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        // What is too little to count stays for the next look.
        let filled_ns = passed_ns / PART;
        self.at_ns = self.at_ns.saturating_add(filled_ns * PART);
        let left_ns = self.left_ns.saturating_add(as_signed(filled_ns));
        self.left_ns = left_ns.min(as_signed(DEPTH_NS));
        self.left_ns > 0
    }

    /// A boosted thread has run for `ran_ns`.
    pub(crate) fn spend(&mut self, ran_ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(as_signed(ran_ns));
    }
}

/// What a session's threads ran boosted in its turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TurnBudget {
    began_ns: u64,
    quantum_ns: u64,
    ran_ns: u64,
}

impl TurnBudget {
    /// Of a turn that begins.
    pub(crate) fn begin(now_ns: u64, quantum_ns: u64) -> Self {
        Self { began_ns: now_ns, quantum_ns, ran_ns: 0 }
    }

    /// Whether another boost may begin. The turn of a lone tenant has no end: it counts as a turn
    /// per quantum.
    pub(crate) fn allows(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.began_ns) >= self.quantum_ns {
            *self = Self::begin(now_ns, self.quantum_ns);
        }
        self.ran_ns < TURN_LIMIT_NS
    }

    /// A boosted thread has run for `ran_ns`.
    pub(crate) fn spend(&mut self, ran_ns: u64) {
        self.ran_ns = self.ran_ns.saturating_add(ran_ns);
    }
}

fn as_signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_time_may_be_spent_and_no_more() {
        let (mut budget, mut spent_ns) = (Budget::new(0), 0);
        let second = 1_000_000_000;
        // A tenant that runs as long as it is let, 100 µs at a time.
        for now_ns in (0..second).step_by(100_000) {
            if budget.allows(now_ns) {
                budget.spend(100_000);
                spent_ns += 100_000;
            }
        }
        assert!(spent_ns <= second / PART + DEPTH_NS + 100_000, "{spent_ns}");
        assert!(spent_ns >= second / PART, "{spent_ns}");
    }

    #[test]
    fn looking_often_loses_nothing_and_idleness_saves_no_more_than_the_depth() {
        let mut budget = Budget::new(0);
        budget.spend(DEPTH_NS);
        for now_ns in 0..=1_000 {
            budget.allows(now_ns);
        }
        assert_eq!(budget.left_ns, 100);
        assert!(budget.allows(u64::MAX));
        assert_eq!(budget.left_ns, as_signed(DEPTH_NS));
    }

    #[test]
    fn a_turn_without_end_is_allotted_by_the_quantum() {
        const QUANTUM_NS: u64 = 6_000_000;
        let mut turn = TurnBudget::begin(5, QUANTUM_NS);
        turn.spend(TURN_LIMIT_NS - 1);
        assert!(turn.allows(5));
        turn.spend(1);
        assert!(!turn.allows(5) && !turn.allows(5 + QUANTUM_NS - 1));
        assert!(turn.allows(5 + QUANTUM_NS));
        turn.spend(TURN_LIMIT_NS);
        assert!(!turn.allows(5 + 2 * QUANTUM_NS - 1), "a quantum from the last look");
        assert!(turn.allows(5 + 2 * QUANTUM_NS));
    }
}
