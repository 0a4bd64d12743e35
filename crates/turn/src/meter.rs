//! What finished work is charged: the time that each operation took, or samples of it and an exact
//! settlement per turn (FairGV §3.3.1: timing every request costs a device that is not ours).

use crate::account::{Account, RequestKey, Timing};

/// A tenant that never gives up its turn is settled this often, in ns of device time: a usual
/// quantum.
pub const SETTLE_NS: u64 = 6_000_000;

/// How device time becomes charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Accounting {
    /// Every operation is timed by the device.
    #[default]
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
#[derive(Debug, Default)]
pub struct Meter {
    accounting: Accounting,
    account: Account,
    /// What the turn took so far: a total of the device, which it reads at the turn's end.
    turn_ns: u64,
    /// What the turn was charged so far.
    charged_ns: u64,
    /// Charged too much: taken off what is charged next.
    credit_ns: u64,
}

impl Meter {
    /// A meter of this kind.
    #[must_use]
    pub fn new(accounting: Accounting) -> Self {
        Self { accounting, ..Self::default() }
    }

    /// The charge for an operation of this kind and size that took `took_ns`, in ns.
    pub fn charge_ns(&mut self, key: u64, units: u64, took_ns: u64) -> u64 {
        match self.accounting {
            Accounting::Every => return took_ns,
            Accounting::HostTimed { sync_ns } => return took_ns.saturating_add(sync_ns),
            Accounting::Sampled => {}
        }
        let request = RequestKey(key.rotate_left(17) ^ units);
        self.turn_ns = self.turn_ns.saturating_add(took_ns);
        let ns = match self.account.next_request(request) {
            Timing::Timed => {
                self.account.timed(request, took_ns);
                took_ns
            }
            Timing::Predicted(predicted_ns) => predicted_ns,
        };
        self.charged_ns = self.charged_ns.saturating_add(ns);
        let settled_ns = if self.turn_ns >= SETTLE_NS { self.correct() } else { 0 };
        self.less_credit(ns.saturating_add(settled_ns))
    }

    /// The charge for a part of an operation, in ns: the device timed it when it stopped or ended
    /// it, and it says nothing of the whole.
    pub fn charge_part_ns(&mut self, took_ns: u64) -> u64 {
        match self.accounting {
            Accounting::Every => return took_ns,
            Accounting::HostTimed { sync_ns } => return took_ns.saturating_add(sync_ns),
            Accounting::Sampled => {}
        }
        self.account.timed_part(took_ns);
        self.turn_ns = self.turn_ns.saturating_add(took_ns);
        self.charged_ns = self.charged_ns.saturating_add(took_ns);
        self.less_credit(took_ns)
    }

    /// The turn is over: what it was charged too little, in ns.
    pub fn settle(&mut self) -> u64 {
        let settled_ns = self.correct();
        self.less_credit(settled_ns)
    }

    /// By how much the charges since the last settlement are off, in ns.
    #[must_use]
    pub fn unsettled_ns(&self) -> u64 {
        self.charged_ns.abs_diff(self.turn_ns).saturating_add(self.credit_ns)
    }

    /// Settles the turn; a charge that was too high becomes credit.
    fn correct(&mut self) -> u64 {
        let took_ns = core::mem::take(&mut self.turn_ns);
        self.charged_ns = 0;
        if took_ns == 0 {
            return 0;
        }
        let correction_ns = self.account.settle(took_ns).correction_ns();
        let size_ns = u64::try_from(correction_ns.unsigned_abs()).unwrap_or(u64::MAX);
        if correction_ns >= 0 {
            return size_ns;
        }
        self.credit_ns = self.credit_ns.saturating_add(size_ns);
        0
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

    /// Charges of a tenant whose kernel changes its time every 97 launches.
    fn charged_and_truth(meter: &mut Meter) -> (u64, u64) {
        let (mut charged, mut truth) = (0, 0);
        for launch in 0..20_000_u64 {
            let took_ns = if launch / 97 % 2 == 0 { 51_000 } else { 391_000 };
            charged += meter.charge_ns(1, 1, took_ns);
            truth += took_ns;
        }
        (charged + meter.settle(), truth)
    }

    #[test]
    fn samples_and_settlements_sum_up_to_the_truth() {
        let (charged, truth) = charged_and_truth(&mut Meter::new(Accounting::Sampled));
        // What is left is credit of the last turn, at most a quantum of one kernel for another.
        assert!(charged.abs_diff(truth) <= 10 * SETTLE_NS, "{charged} against {truth}");
        let (exact, truth) = charged_and_truth(&mut Meter::new(Accounting::Every));
        assert_eq!(exact, truth);
    }

    #[test]
    fn parts_are_charged_what_they_took_and_change_no_prediction() {
        let mut meter = Meter::new(Accounting::Sampled);
        let mut charged = 0;
        for _ in 0..1_000 {
            charged += meter.charge_ns(1, 1, 100_000) + meter.charge_part_ns(7_000);
        }
        assert_eq!(charged + meter.settle(), 107_000_000);
        assert_eq!(meter.unsettled_ns(), 0);
    }

    #[test]
    fn a_synchronisation_is_added_to_each_charge() {
        let mut meter = Meter::new(Accounting::HostTimed { sync_ns: 20 });
        assert_eq!(
            (meter.charge_ns(1, 1, 5), meter.charge_part_ns(6), meter.settle()),
            (25, 26, 0)
        );
    }
}
