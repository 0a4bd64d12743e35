//! How much of a processor boosted threads may take.

use std::time::Duration;

/// Boosted threads of a node together run for at most this part of one processor's time, whatever
/// tenants do: other work there keeps nine tenths of its fair share.
const PART: u64 = 10;

/// What may be saved up for a burst, in ns of boosted running.
const DEPTH_NS: u64 = 2_000_000;

/// A session's threads run boosted for at most this long in a turn.
pub(crate) const TURN_LIMIT: Duration = Duration::from_millis(1);

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
}
