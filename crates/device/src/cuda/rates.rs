//! How many thread blocks of a kernel fit a time, from what its earlier pieces took.
//!
//! A GPU executes as many blocks at a time as its multiprocessors have room for: a *wave*. Part of a
//! wave takes as long as all of it, so a launch is cut between waves, and one that is a single wave
//! is not cut.

use std::collections::HashMap;

use crate::ModuleId;

/// A kernel of a module.
pub(super) type KernelKey = (ModuleId, u32);

/// Waves of a piece of an unknown kernel: enough to learn its time from, few enough to be over soon.
const UNKNOWN_WAVES: u64 = 2;

/// Device time per wave of each kernel in ns, as a moving average.
#[derive(Debug, Default)]
pub(super) struct Rates {
    per_wave: HashMap<KernelKey, u64>,
}

impl Rates {
    /// Blocks that take about `max_ns` and are whole waves of `wave` blocks; at least one. Of an
    /// unknown kernel some, from which its time is learned.
    pub(super) fn blocks_within(&self, key: KernelKey, max_ns: u64, wave: u64) -> u64 {
        let waves = match self.per_wave.get(&key) {
            Some(wave_ns) => max_ns / (*wave_ns).max(1),
            None => UNKNOWN_WAVES,
        };
        waves.max(1).saturating_mul(wave.max(1))
    }

    /// `blocks` blocks took `ns`.
    pub(super) fn learn(&mut self, key: KernelKey, (blocks, wave): (u64, u64), ns: u64) {
        let wave_ns = ns / blocks.div_ceil(wave.max(1)).max(1);
        let known = self.per_wave.entry(key).or_insert(wave_ns);
        *known = *known - *known / 4 + wave_ns / 4;
    }

    /// Forgets the kernels of a module.
    pub(super) fn forget(&mut self, module: ModuleId) {
        self.per_wave.retain(|(of, _), _| *of != module);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_a_time_is_what_fits_it() {
        let mut rates = Rates::default();
        let key = (ModuleId(1), 0);
        assert_eq!(rates.blocks_within(key, 1_000_000, 64), 128);
        rates.learn(key, (640, 64), 1_000_000);
        assert_eq!(rates.blocks_within(key, 500_000, 64), 320);
        assert_eq!(rates.blocks_within(key, 599_999, 64), 320, "whole waves");
        assert_eq!(rates.blocks_within(key, 1, 64), 64, "at least one");
        for _ in 0..40 {
            // The last wave is not full.
            rates.learn(key, (580, 64), 2_000_000);
        }
        assert!((4..=5).contains(&(rates.blocks_within(key, 1_000_000, 64) / 64)));
        assert_eq!(rates.blocks_within((ModuleId(2), 0), 1, 100), 200);
        rates.forget(ModuleId(1));
        assert_eq!(rates.blocks_within(key, 1, 64), 128);
    }
}
