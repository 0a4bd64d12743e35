//! Tags: weighted service in units of 2⁻²⁰ ns, so that one nanosecond at weight 10,000 still
//! counts.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use crate::codec::{Codec, Malformed, Reader};
use crate::key::Weight;

/// A point on a policy's virtual time axis, or a distance along it.
///
/// A u128 in units of 2⁻²⁰ ns: a vGPU of weight 1 would use 10²⁰ years of device time to overflow
/// it, so sums saturate only in theory. A charge is rounded down to a whole unit: 10⁹ charges lose
/// less than 1 µs.
///
/// In two halves, because a u128 begins at a multiple of 16 bytes, and a quarter of each array of
/// tags would be gaps.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u128", into = "u128"))]
pub struct Tag {
    high: u64,
    low: u64,
}

impl Tag {
    /// The beginning.
    pub const ZERO: Self = Self { high: 0, low: 0 };
    const FRACTION_BITS: u32 = 20;

    #[inline]
    fn units(self) -> u128 {
        u128::from(self.high) << u64::BITS | u128::from(self.low)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each half is one")]
    fn of_units(units: u128) -> Self {
        Self { high: (units >> u64::BITS) as u64, low: units as u64 }
    }

    /// The distance that `ns` of service moves a vGPU of `weight`: `ns / weight`.
    #[inline]
    pub fn from_service(ns: u64, weight: Weight) -> Self {
        let weight = u64::from(weight.get());
        // A u128 division is slow; charges below 2⁴⁴ ns (4.8 hours) do without.
        if ns >> (u64::BITS - Self::FRACTION_BITS) == 0 {
            return Self { high: 0, low: (ns << Self::FRACTION_BITS) / weight };
        }
        Self::of_units((u128::from(ns) << Self::FRACTION_BITS) / u128::from(weight))
    }

    /// The point `distance` further.
    #[must_use]
    #[inline]
    pub fn plus(self, distance: Self) -> Self {
        Self::of_units(self.units().saturating_add(distance.units()))
    }

    /// The point `distance` back, zero at the least.
    #[must_use]
    #[inline]
    pub fn minus(self, distance: Self) -> Self {
        Self::of_units(self.units().saturating_sub(distance.units()))
    }

    /// The last point before this one, zero at the least.
    #[must_use]
    pub(crate) fn just_before(self) -> Self {
        Self::of_units(self.units().saturating_sub(1))
    }

    /// The distance that the same service moves a vGPU of weight `new` instead of `old`.
    #[must_use]
    pub fn rescaled(self, old: Weight, new: Weight) -> Self {
        let service = self.units().saturating_mul(u128::from(old.get()));
        Self::of_units(service / u128::from(new.get()))
    }

    /// The service that moves a vGPU of `weight` this far, in whole ns.
    pub(crate) fn to_service_ns(self, weight: Weight) -> u64 {
        let service = self.units().saturating_mul(u128::from(weight.get()));
        u64::try_from(Self::of_units(service).to_ns()).unwrap_or(u64::MAX)
    }

    /// Whole ns of service at weight 1, rounded down.
    pub fn to_ns(self) -> u128 {
        self.units() >> Self::FRACTION_BITS
    }
}

/// As numbers: compared half by half, it would take branches.
impl PartialOrd for Tag {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Tag {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.units().cmp(&other.units())
    }
}

#[cfg(feature = "serde")]
impl From<u128> for Tag {
    fn from(units: u128) -> Self {
        Self::of_units(units)
    }
}

#[cfg(feature = "serde")]
impl From<Tag> for u128 {
    fn from(tag: Tag) -> Self {
        tag.units()
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.to_ns())
    }
}

impl Codec for Tag {
    fn put(&self, out: &mut Vec<u8>) {
        self.units().put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        u128::take(input).map(Self::of_units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_divisions_agree() {
        let weight = Weight::new(7).unwrap();
        let below = (1 << 44) - 1;
        assert_eq!(Tag::from_service(below, weight).units(), (u128::from(below) << 20) / 7);
        assert_eq!(Tag::from_service(below + 1, weight).units(), (u128::from(below + 1) << 20) / 7);
    }

    #[test]
    fn one_nanosecond_counts_at_the_largest_weight() {
        assert!(Tag::from_service(1, Weight::MAX) > Tag::ZERO);
    }
}
