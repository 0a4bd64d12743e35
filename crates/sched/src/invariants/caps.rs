//! Caps, seen from the device.

use crate::cap::Cap;

/// A cap holds: over any run of whole periods a vGPU gets their allowances and at most `slack_ns`
/// more (one quantum that was in flight, one command that cannot be cut).
#[derive(Clone, Copy, Debug)]
pub struct CapCheck {
    cap: Cap,
    slack_ns: u64,
    period_end_ns: u64,
    /// Service in the current period.
    used_ns: u64,
    /// The largest excess over the allowances of a run that ends with the last period.
    excess_ns: i128,
    worst_ns: i128,
}

/// How far a run of periods went beyond its allowances, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cap was exceeded by {excess_ns} ns, {slack_ns} are allowed")]
pub struct CapBroken {
    /// The excess.
    pub excess_ns: i128,
    /// What is allowed.
    pub slack_ns: u64,
}

impl CapCheck {
    /// A check of a cap that was set at `now_ns`.
    pub fn new(cap: Cap, slack_ns: u64, now_ns: u64) -> Self {
        let period_end_ns = now_ns.saturating_add(cap.period_ns);
        Self { cap, slack_ns, period_end_ns, used_ns: 0, excess_ns: 0, worst_ns: 0 }
    }

    /// The device served the vGPU from `from_ns` to `to_ns`.
    pub fn served(&mut self, from_ns: u64, to_ns: u64) -> Result<(), CapBroken> {
        let mut from_ns = from_ns;
        self.pass_to(from_ns);
        while from_ns < to_ns {
            let until_ns = to_ns.min(self.period_end_ns);
            self.used_ns += until_ns - from_ns;
            from_ns = until_ns;
            self.worst_ns = self.worst_ns.max(self.current_ns());
            self.pass_to(from_ns);
        }
        if self.worst_ns <= i128::from(self.slack_ns) {
            return Ok(());
        }
        Err(CapBroken { excess_ns: self.worst_ns, slack_ns: self.slack_ns })
    }

    /// The largest excess so far, in ns.
    pub fn worst_ns(&self) -> i128 {
        self.worst_ns
    }

    /// The excess of the worst run that ends with the current period.
    fn current_ns(&self) -> i128 {
        let own_ns = i128::from(self.used_ns) - i128::from(self.cap.allowance_ns());
        self.excess_ns.max(0) + own_ns
    }

    fn pass_to(&mut self, now_ns: u64) {
        if now_ns < self.period_end_ns {
            return;
        }
        self.excess_ns = self.current_ns();
        let periods = (now_ns - self.period_end_ns) / self.cap.period_ns;
        // Periods without service.
        let unused_ns = i128::from(periods) * i128::from(self.cap.allowance_ns());
        self.excess_ns = (self.excess_ns - unused_ns).max(0);
        self.used_ns = 0;
        self.period_end_ns += (periods + 1) * self.cap.period_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Cap = Cap { share_ppm: 250_000, period_ns: 4_000_000 };

    #[test]
    fn an_allowance_in_each_period_is_right_and_the_slack_comes_once() {
        let mut check = CapCheck::new(CAP, 500_000, 0);
        for period in 0..5 {
            let from_ns = period * 4_000_000 + 3_000_000;
            check.served(from_ns, from_ns + 1_000_000).unwrap();
        }
        check.served(20_000_000, 21_500_000).unwrap();
        assert_eq!(check.worst_ns(), 500_000);
        let error = check.served(24_000_000, 25_000_001).unwrap_err();
        assert_eq!(error.excess_ns, 500_001);
    }

    #[test]
    fn what_is_not_used_pays_an_overrun_back() {
        let mut check = CapCheck::new(CAP, 500_000, 0);
        check.served(0, 1_500_000).unwrap();
        check.served(8_000_000, 9_500_000).unwrap();
    }
}
