//! What finished work is charged: the time that each operation took, or samples of it and an exact
//! settlement per turn (FairGV §3.3.1: timing every request costs a device that is not ours).

use weft_gate::account::{Account, RequestKey, Timing};

use crate::config::AccountingConfig;

/// A tenant that never gives up its turn is settled this often, in device time: a usual quantum.
const SETTLE_NS: u64 = 6_000_000;

/// Turns what operations took into charges.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Absent when every operation is timed.
    sampled: Option<Sampled>,
}

#[derive(Debug, Default)]
struct Sampled {
    account: Account,
    /// What the turn took so far: a total of the device, which it reads at the turn's end.
    turn_ns: u64,
    /// Charged too much: taken off what is charged next.
    credit_ns: u64,
}

impl Meter {
    /// A meter of this kind.
    pub(crate) fn new(accounting: AccountingConfig) -> Self {
        let sampled = match accounting {
            AccountingConfig::Every => None,
            AccountingConfig::Sampled => Some(Sampled::default()),
        };
        Self { sampled }
    }

    /// The charge for an operation of this kind and size that took `took_ns`.
    pub(crate) fn charge_ns(&mut self, key: u64, units: u64, took_ns: u64) -> u64 {
        let Some(sampled) = &mut self.sampled else { return took_ns };
        let request = RequestKey(key.rotate_left(17) ^ units);
        sampled.turn_ns = sampled.turn_ns.saturating_add(took_ns);
        let ns = match sampled.account.next_request(request) {
            Timing::Timed => {
                sampled.account.timed(request, took_ns);
                took_ns
            }
            Timing::Predicted(predicted_ns) => predicted_ns,
        };
        let settled_ns = if sampled.turn_ns >= SETTLE_NS { sampled.settle() } else { 0 };
        sampled.less_credit(ns.saturating_add(settled_ns))
    }

    /// The turn is over: what it was charged too little.
    pub(crate) fn settle(&mut self) -> u64 {
        let Some(sampled) = &mut self.sampled else { return 0 };
        let settled_ns = sampled.settle();
        sampled.less_credit(settled_ns)
    }
}

impl Sampled {
    /// Settles the turn; a charge that was too high becomes credit.
    fn settle(&mut self) -> u64 {
        if self.turn_ns == 0 {
            return 0;
        }
        let correction_ns = self.account.settle(std::mem::take(&mut self.turn_ns)).correction_ns();
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
        let (charged, truth) = charged_and_truth(&mut Meter::new(AccountingConfig::Sampled));
        // What is left is credit of the last turn, at most a quantum of one kernel for another.
        assert!(charged.abs_diff(truth) <= 10 * SETTLE_NS, "{charged} against {truth}");
        let (exact, truth) = charged_and_truth(&mut Meter::new(AccountingConfig::Every));
        assert_eq!(exact, truth);
    }
}
