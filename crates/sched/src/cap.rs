//! Hard caps: the most of a device that a vGPU, or all of a tenant together, may use even when
//! nobody else wants it.

use crate::codec::codec;

/// A share of device time over a period.
///
/// In each period, counted from when the cap was set, its bearer may use `share_ppm` millionths of
/// it, at once or spread. What a command that cannot be cut uses beyond is owed to the following
/// periods; what is left over is not saved. So over any run of `k` whole periods it gets at most
/// `k` allowances, and what was in flight (at most one quantum and one command).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cap {
    /// Millionths of the device's time, 1 to 1,000,000.
    pub share_ppm: u32,
    /// The period in ns, 1 ms to 1 hour.
    pub period_ns: u64,
}

impl Cap {
    const WHOLE: u32 = 1_000_000;
    const PERIOD_MIN_NS: u64 = 1_000_000;
    const PERIOD_MAX_NS: u64 = 3_600_000_000_000;

    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), CapError> {
        let share = (1..=Self::WHOLE).contains(&self.share_ppm);
        let period = (Self::PERIOD_MIN_NS..=Self::PERIOD_MAX_NS).contains(&self.period_ns);
        if share && period { Ok(()) } else { Err(CapError { cap: *self }) }
    }

    /// What may be used in one period, in ns; at least 1.
    pub fn allowance_ns(&self) -> u64 {
        // 2⁴² ns times 2²⁰ fits.
        (self.period_ns * u64::from(self.share_ppm) / u64::from(Self::WHOLE)).max(1)
    }
}

/// A cap outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a cap of {} ppm over {} ns is not allowed: the share is 1 to 1000000 ppm, \
     the period 1000000 to 3600000000000 ns", cap.share_ppm, cap.period_ns
)]
pub struct CapError {
    /// The cap refused.
    pub cap: Cap,
}

/// What is left of the current period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapMeter {
    pub(crate) cap: Cap,
    /// When the current period began.
    since_ns: u64,
    /// Use counted to the current period, work in flight and debts of earlier ones included.
    used_ns: i64,
}

impl CapMeter {
    /// A cap from now on, of somebody who owes so many ns of an earlier one.
    pub(crate) fn new(cap: Cap, now_ns: u64, owed_ns: i64) -> Self {
        Self { cap, since_ns: now_ns, used_ns: owed_ns }
    }

    /// What was used and time has not made up for yet, in ns.
    pub(crate) fn owed_ns(mut self, now_ns: u64) -> i64 {
        self.roll(now_ns);
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        let allowed = u128::from(self.cap.allowance_ns()) * u128::from(passed_ns)
            / u128::from(self.cap.period_ns.max(1));
        self.used_ns.saturating_sub(i64::try_from(allowed).unwrap_or(i64::MAX)).max(0)
    }

    /// Counts use; negative when a prediction is corrected.
    pub(crate) fn count(&mut self, now_ns: u64, ns: i64) {
        self.roll(now_ns);
        self.used_ns = self.used_ns.saturating_add(ns);
    }

    /// What is left of the current period's allowance, in ns.
    pub(crate) fn left_ns(&mut self, now_ns: u64) -> u64 {
        self.roll(now_ns);
        u64::try_from(self.allowance().saturating_sub(self.used_ns)).unwrap_or(0)
    }

    /// When there will be something left if nothing more is used.
    pub(crate) fn refill_ns(&self) -> u64 {
        let debts = u64::try_from(self.used_ns / self.allowance()).unwrap_or(0).max(1);
        self.since_ns.saturating_add(self.cap.period_ns.saturating_mul(debts))
    }

    fn allowance(&self) -> i64 {
        i64::try_from(self.cap.allowance_ns()).unwrap_or(i64::MAX)
    }

    fn roll(&mut self, now_ns: u64) {
        let periods = now_ns.saturating_sub(self.since_ns) / self.cap.period_ns;
        if periods > 0 {
            self.since_ns += periods * self.cap.period_ns;
            let allowed =
                self.allowance().saturating_mul(i64::try_from(periods).unwrap_or(i64::MAX));
            self.used_ns = self.used_ns.saturating_sub(allowed).max(0);
        }
    }
}

/// What a tenant with a cap has left of one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantCap {
    pub(crate) meter: CapMeter,
    /// How many of its vGPUs have work and are held back because nothing is left: all that have
    /// work, or none.
    pub(crate) waiting: u32,
}

impl TenantCap {
    pub(crate) fn new(meter: CapMeter) -> Self {
        Self { meter, waiting: 0 }
    }
}

codec!(struct Cap { share_ppm, period_ns });
codec!(struct CapMeter { cap, since_ns, used_ns });
codec!(struct TenantCap { meter, waiting });

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Cap = Cap { share_ppm: 250_000, period_ns: 4_000_000 };

    #[test]
    fn an_overrun_is_owed_and_leftovers_are_lost() {
        let mut meter = CapMeter::new(CAP, 0, 0);
        assert_eq!(meter.left_ns(0), 1_000_000);
        meter.count(100, 2_500_000);
        assert_eq!(meter.left_ns(100), 0);
        // 2.5 allowances were used: half of one is left in the third period.
        assert_eq!(meter.refill_ns(), 8_000_000);
        assert_eq!(meter.left_ns(7_999_999), 0);
        assert_eq!(meter.left_ns(8_000_000), 500_000);
        assert_eq!(meter.left_ns(40_000_000), 1_000_000);
    }

    #[test]
    fn another_cap_begins_with_what_is_owed_of_the_one_before() {
        let mut meter = CapMeter::new(CAP, 0, 0);
        meter.count(0, 1_000_000);
        // A quarter of the period has passed, and with it a quarter of the allowance.
        assert_eq!(meter.owed_ns(1_000_000), 750_000);
        let mut again = CapMeter::new(CAP, 1_000_000, meter.owed_ns(1_000_000));
        assert_eq!(again.left_ns(1_000_000), 250_000);
        assert_eq!(meter.owed_ns(4_000_000), 0);
        // What is in flight may turn out to be less than nothing; that is no credit.
        meter.count(4_000_000, -500_000);
        assert_eq!(meter.owed_ns(4_000_000), 0);
    }

    #[test]
    fn ranges_are_checked() {
        CAP.validate().unwrap();
        let error = Cap { share_ppm: 0, ..CAP }.validate().unwrap_err();
        assert!(error.to_string().starts_with("a cap of 0 ppm over 4000000 ns is not allowed"));
        Cap { period_ns: 1, ..CAP }.validate().unwrap_err();
    }
}
