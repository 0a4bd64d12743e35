//! How many thread blocks of a kernel fit a time, from what its earlier pieces took.
//!
//! A GPU executes as many blocks at a time as its multiprocessors have room for: a *wave*. Part of
//! a wave takes as long as all of it, so a launch is cut between waves, and one that is a single
//! wave is not cut.

use std::collections::HashMap;

use crate::ModuleId;

/// A kernel of a module.
pub(super) type KernelKey = (ModuleId, u32);

/// Most shapes of launches whose waves are kept: a tenant makes as many as it likes.
const SHAPES_MAX: usize = 4096;

/// Waves of a piece of an unknown kernel: enough to learn its time from, few enough to be over
/// soon.
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

/// A kernel, the threads of a block and its dynamic shared memory in bytes.
pub(super) type Shape = (KernelKey, u64, u32);

/// Blocks that the device executes at a time, by the shape of a launch.
#[derive(Debug, Default)]
pub(super) struct Waves(HashMap<Shape, u64>);

impl Waves {
    /// The wave of a shape; what `ask` answers is kept, nothing else.
    pub(super) fn of(&mut self, shape: Shape, ask: impl FnOnce() -> Option<u64>) -> Option<u64> {
        if let Some(known) = self.0.get(&shape) {
            return Some(*known);
        }
        let asked = ask()?;
        if self.0.len() >= SHAPES_MAX {
            self.0.clear();
        }
        self.0.insert(shape, asked);
        Some(asked)
    }

    /// Forgets the kernels of a module.
    pub(super) fn forget(&mut self, module: ModuleId) {
        self.0.retain(|((of, _), ..), _| *of != module);
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

    #[test]
    fn however_many_shapes_there_are_few_are_kept() {
        let mut waves = Waves::default();
        let key = (ModuleId(1), 0);
        assert_eq!(waves.of((key, 64, 0), || None), None);
        assert_eq!(waves.of((key, 64, 0), || Some(7)), Some(7));
        assert_eq!(waves.of((key, 64, 0), || Some(8)), Some(7));
        for bytes in 0..2 * u32::try_from(SHAPES_MAX).unwrap() {
            waves.of((key, 64, bytes), || Some(1));
        }
        assert!(waves.0.len() <= SHAPES_MAX);
        waves.forget(ModuleId(1));
        assert!(waves.0.is_empty());
    }
}
