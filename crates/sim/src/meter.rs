//! What finished work is charged: a model of the worker's sampled accounting (FairGV §3.3).

use std::collections::BTreeMap;

/// Requests that are timed singly at the start of a turn.
const TIMED_PER_TURN: u32 = 5;
/// A tenant that keeps its turn is settled this often, in device time.
const SETTLE_NS: u64 = 6_000_000;

/// How device time becomes charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// Every operation is timed by the device.
    Every,
    /// The first five of a turn are timed, the others predicted, the turn settled exactly.
    Sampled,
    /// As FairGV times: on the host, around a synchronisation that takes this long.
    HostTimed {
        /// What the synchronisation adds to each charge, in ns.
        sync_ns: u64,
    },
}

/// Turns what operations took into charges.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    accounting: Accounting,
    requests: u32,
    turn_ns: u64,
    charged_ns: u64,
    credit_ns: u64,
    means: BTreeMap<u32, u64>,
}

impl Meter {
    pub(crate) fn new(accounting: Accounting) -> Self {
        Self {
            accounting,
            requests: 0,
            turn_ns: 0,
            charged_ns: 0,
            credit_ns: 0,
            means: BTreeMap::new(),
        }
    }

    /// The charge for an operation that took `took_ns`.
    pub(crate) fn charge_ns(&mut self, key: u32, took_ns: u64) -> u64 {
        match self.accounting {
            Accounting::Every => return took_ns,
            Accounting::HostTimed { sync_ns } => return took_ns + sync_ns,
            Accounting::Sampled => {}
        }
        self.requests += 1;
        self.turn_ns += took_ns;
        let known = self.means.get(&key).copied();
        let ns = match known {
            Some(mean_ns) if self.requests > TIMED_PER_TURN => mean_ns,
            _ => {
                let mean_ns = known.map_or(took_ns, |mean_ns| mean_ns - mean_ns / 4 + took_ns / 4);
                self.means.insert(key, mean_ns);
                took_ns
            }
        };
        self.charged_ns += ns;
        let more_ns = if self.turn_ns >= SETTLE_NS { self.correct() } else { 0 };
        self.less_credit(ns + more_ns)
    }

    /// The charge for a part of an operation, which the device timed when it stopped or ended it.
    pub(crate) fn charge_part_ns(&mut self, took_ns: u64) -> u64 {
        match self.accounting {
            Accounting::Every => return took_ns,
            Accounting::HostTimed { sync_ns } => return took_ns + sync_ns,
            Accounting::Sampled => {}
        }
        self.turn_ns += took_ns;
        self.charged_ns += took_ns;
        self.less_credit(took_ns)
    }

    /// By how much the charges since the last settlement are off.
    pub(crate) fn unsettled_ns(&self) -> u64 {
        self.charged_ns.abs_diff(self.turn_ns) + self.credit_ns
    }

    /// The turn is over: what it was charged too little.
    pub(crate) fn settle(&mut self) -> u64 {
        let ns = self.correct();
        self.less_credit(ns)
    }

    fn correct(&mut self) -> u64 {
        let (exact_ns, charged_ns) = (self.turn_ns, self.charged_ns);
        (self.turn_ns, self.charged_ns, self.requests) = (0, 0, 0);
        self.credit_ns += charged_ns.saturating_sub(exact_ns);
        exact_ns.saturating_sub(charged_ns)
    }

    fn less_credit(&mut self, ns: u64) -> u64 {
        let taken_ns = ns.min(self.credit_ns);
        self.credit_ns -= taken_ns;
        ns - taken_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_charges_sum_up_to_the_truth() {
        let mut meter = Meter::new(Accounting::Sampled);
        let (mut charged, mut truth) = (0, 0);
        for launch in 0..20_000_u64 {
            let took_ns = if launch / 97 % 2 == 0 { 51_000 } else { 391_000 };
            charged += meter.charge_ns(1, took_ns);
            truth += took_ns;
        }
        charged += meter.settle();
        assert!(charged.abs_diff(truth) <= 10 * SETTLE_NS, "{charged} against {truth}");
    }
}
