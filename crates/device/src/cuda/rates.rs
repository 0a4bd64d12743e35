//! How many thread blocks of a kernel fit a time, from what its earlier pieces took.

use std::collections::HashMap;

use crate::ModuleId;

/// A kernel of a module.
pub(super) type KernelKey = (ModuleId, u32);

/// Blocks of a piece of an unknown kernel, per multiprocessor: enough to fill each, few enough to
/// be over soon.
const UNKNOWN_PER_PROCESSOR: u64 = 32;

/// Nor more than this part of a launch.
const UNKNOWN_PARTS: u64 = 8;

/// Device time per block of each kernel, in 2⁻¹⁶ ns, as a moving average.
#[derive(Debug)]
pub(super) struct Rates {
    per_block: HashMap<KernelKey, u64>,
    unknown: u64,
}

impl Rates {
    /// Of a device with this many multiprocessors.
    pub(super) fn new(multiprocessors: u64) -> Self {
        Self { per_block: HashMap::new(), unknown: multiprocessors.max(1) * UNKNOWN_PER_PROCESSOR }
    }

    /// Blocks, of `total`, that take about `max_ns`; at least one. Of an unknown kernel a part,
    /// from which its time is learned.
    pub(super) fn blocks_within(&self, key: KernelKey, max_ns: u64, total: u64) -> u64 {
        let Some(rate) = self.per_block.get(&key) else {
            return self.unknown.min(total.div_ceil(UNKNOWN_PARTS)).max(1);
        };
        let blocks = (u128::from(max_ns) << 16) / u128::from((*rate).max(1));
        u64::try_from(blocks).unwrap_or(u64::MAX).max(1)
    }

    /// `blocks` blocks took `ns`.
    pub(super) fn learn(&mut self, key: KernelKey, blocks: u64, ns: u64) {
        let per_block = (u128::from(ns) << 16) / u128::from(blocks.max(1));
        let per_block = u64::try_from(per_block).unwrap_or(u64::MAX).max(1);
        let rate = self.per_block.entry(key).or_insert(per_block);
        *rate = *rate - *rate / 4 + per_block / 4;
    }

    /// Forgets the kernels of a module.
    pub(super) fn forget(&mut self, module: ModuleId) {
        self.per_block.retain(|(of, _), _| *of != module);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_a_time_is_what_fits_it() {
        let mut rates = Rates::new(4);
        let key = (ModuleId(1), 0);
        assert_eq!(rates.blocks_within(key, 1_000_000, 5000), 128);
        rates.learn(key, 100, 50_000);
        assert_eq!(rates.blocks_within(key, 100_000, 5000), 200);
        assert_eq!(rates.blocks_within(key, 1, 5000), 1);
        for _ in 0..40 {
            rates.learn(key, 100, 100_000);
        }
        assert!((99..=101).contains(&rates.blocks_within(key, 100_000, 5000)));
        assert_eq!(rates.blocks_within((ModuleId(2), 0), 1, 100), 13);
        rates.forget(ModuleId(1));
        assert_eq!(rates.blocks_within(key, 1, 5000), 128);
    }
}
