//! What an operation will take, from what its like took.

use alloc::collections::BTreeMap;

/// Kinds of operation that are remembered.
const KINDS_MAX: usize = 4096;

/// An operation of which nothing is known.
const UNKNOWN_NS: u64 = 50_000;

/// Remembers device time per unit (thread block or byte) of each kind.
#[derive(Debug, Default)]
pub struct Predictor {
    kinds: BTreeMap<u64, Rate>,
}

/// A moving average: ns per unit, in 2⁻¹⁶ ns.
#[derive(Debug, Clone, Copy)]
struct Rate {
    per_unit: u64,
}

impl Predictor {
    /// The time of an operation of this kind and size; `None` if nothing is known of the kind.
    #[must_use]
    pub fn predict(&self, key: u64, units: u64) -> Option<u64> {
        let rate = self.kinds.get(&key)?;
        let ns = (u128::from(rate.per_unit) * u128::from(units.max(1))) >> 16;
        Some(u64::try_from(ns).unwrap_or(u64::MAX).max(1))
    }

    /// The same, with a guess for the unknown.
    #[must_use]
    pub fn guess(&self, key: u64, units: u64) -> u64 {
        self.predict(key, units).unwrap_or(UNKNOWN_NS)
    }

    /// An operation, or a piece of one, of `units` took `ns`.
    pub fn learn(&mut self, key: u64, units: u64, ns: u64) {
        let per_unit = u128::from(ns) << 16;
        let per_unit = u64::try_from(per_unit / u128::from(units.max(1))).unwrap_or(u64::MAX);
        if let Some(rate) = self.kinds.get_mut(&key) {
            // A quarter of the news each time: settles within some ten operations.
            rate.per_unit = rate.per_unit - rate.per_unit / 4 + per_unit / 4;
            return;
        }
        if self.kinds.len() == KINDS_MAX {
            self.kinds.pop_first();
        }
        self.kinds.insert(key, Rate { per_unit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_kind_is_predicted_within_a_percent() {
        let mut predictor = Predictor::default();
        assert_eq!(predictor.predict(1, 100), None);
        for _ in 0..20 {
            predictor.learn(1, 100, 21_000);
        }
        let predicted = predictor.predict(1, 100).unwrap();
        assert!(predicted.abs_diff(21_000) < 210, "{predicted}");
        assert!(predictor.predict(1, 200).unwrap().abs_diff(42_000) < 420);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut predictor = Predictor::default();
        for key in 0..KINDS_MAX as u64 + 10 {
            predictor.learn(key, 1, 1);
        }
        assert_eq!(predictor.kinds.len(), KINDS_MAX);
    }
}
