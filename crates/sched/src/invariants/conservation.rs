//! Work conservation, the longest wait, and bills that close.

use alloc::vec::Vec;

use crate::codec::{Codec, Malformed, Reader};
use crate::key::Weight;

/// Work conservation: the device is never idle for longer than `limit_ns` (the yield time plus a
/// switch) while somebody has work.
#[derive(Clone, Copy, Debug)]
pub struct WorkConservation {
    limit_ns: u64,
    wasted_since_ns: Option<u64>,
    longest_ns: u64,
}

impl WorkConservation {
    /// A check with that limit.
    pub fn new(limit_ns: u64) -> Self {
        Self { limit_ns, wasted_since_ns: None, longest_ns: 0 }
    }

    /// How things stand from `now_ns` on. `Err` is how long the device had been wasted.
    pub fn observe(&mut self, now_ns: u64, busy: bool, somebody_has_work: bool) -> Result<(), u64> {
        if let Some(since_ns) = self.wasted_since_ns {
            let wasted_ns = now_ns.saturating_sub(since_ns);
            self.longest_ns = self.longest_ns.max(wasted_ns);
            if wasted_ns > self.limit_ns {
                return Err(wasted_ns);
            }
        }
        let wasted = !busy && somebody_has_work;
        self.wasted_since_ns = wasted.then(|| self.wasted_since_ns.unwrap_or(now_ns));
        Ok(())
    }

    /// The longest time that the device was idle while somebody had work.
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }
}

/// No starvation: the longest that vGPU `me` may stay backlogged without service among `others`,
/// in ns. It follows from the lag bound: in that time each other one gets at most
/// `wⱼ·((q + lᵢ)/wᵢ + (q + lⱼ)/wⱼ)`, and the device is not idle. Entries are (weight, longest piece
/// in ns).
pub fn wait_limit_ns(turn_ns: u64, me: (Weight, u64), others: &[(Weight, u64)]) -> u128 {
    let mine = u128::from(turn_ns) + u128::from(me.1);
    let waits = others.iter().map(|(weight, piece_ns)| {
        let theirs = u128::from(turn_ns) + u128::from(*piece_ns);
        (mine * u128::from(weight.get())).div_ceil(u128::from(me.0.get())) + theirs
    });
    waits.sum()
}

/// No starvation in the hierarchy: the longest that a vGPU may stay backlogged without service
/// among its tenant's other vGPUs and the other tenants. The siblings get at most what
/// [`wait_limit_ns`] says of the tenant's part; while the tenant gets that, each other tenant
/// gets at most its share of it and the lag. Entries are (weight, longest piece in ns).
pub fn nested_wait_limit_ns(
    turn_ns: u64,
    me: (Weight, u64),
    siblings: &[(Weight, u64)],
    tenant: (Weight, u64),
    tenants: &[(Weight, u64)],
) -> u128 {
    let inside = wait_limit_ns(turn_ns, me, siblings);
    let behind = inside + u128::from(turn_ns) + u128::from(tenant.1);
    let waits = tenants.iter().map(|(weight, piece_ns)| {
        let theirs = u128::from(turn_ns) + u128::from(*piece_ns);
        (behind * u128::from(weight.get())).div_ceil(u128::from(tenant.0.get())) + theirs
    });
    inside + waits.sum::<u128>()
}

/// Something that never falls: the virtual time, the epochs of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rising<T>(T);

impl<T: Copy + PartialOrd> Rising<T> {
    /// The value is `now`; an error has the earlier, larger one.
    pub fn observe(&mut self, now: T) -> Result<(), T> {
        if now < self.0 {
            return Err(self.0);
        }
        self.0 = now;
        Ok(())
    }
}

impl<T: Codec> Codec for Rising<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::take(input).map(Self)
    }
}

/// Metering closes: every nanosecond that the device was busy is billed to one vGPU, once. The
/// result is the difference, positive when too much was billed.
pub fn billing_gap_ns(device_busy_ns: u64, billed_ns: impl IntoIterator<Item = u64>) -> i128 {
    billed_ns.into_iter().map(i128::from).sum::<i128>() - i128::from(device_busy_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_is_measured_from_its_beginning() {
        let mut check = WorkConservation::new(10);
        check.observe(0, false, true).unwrap();
        check.observe(5, false, true).unwrap();
        check.observe(10, true, true).unwrap();
        check.observe(20, false, false).unwrap();
        check.observe(50, false, true).unwrap();
        assert_eq!(check.observe(61, true, true), Err(11));
    }

    #[test]
    fn what_rises_may_stand_still() {
        let mut rising = Rising::default();
        rising.observe(3).unwrap();
        rising.observe(3).unwrap();
        assert_eq!(rising.observe(2), Err(3));
    }

    #[test]
    fn another_tenant_adds_its_part_to_the_wait() {
        let equal = (Weight::ONE, 0);
        assert_eq!(nested_wait_limit_ns(6, equal, &[equal], equal, &[]), 12);
        // While the tenant gets 12, and its lag of 6, the other one gets as much and a turn.
        assert_eq!(nested_wait_limit_ns(6, equal, &[equal], equal, &[equal]), 12 + 18 + 6);
    }

    #[test]
    fn equals_wait_for_two_turns_of_each_other_one() {
        let equal = (Weight::ONE, 0);
        assert_eq!(wait_limit_ns(6, equal, &[equal, equal]), 24);
    }
}
