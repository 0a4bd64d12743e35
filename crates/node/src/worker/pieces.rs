//! Where a kernel that is longer than what is left of a turn is cut.
//!
//! A piece has a cost that the kernel in one go has not: it is started, and its end is noticed. So
//! a piece is at least 50 times as long as that, by measurement; a turn may end later by one such
//! piece, which is charged like anything else. FairGV found 1,500 thread blocks to be such a
//! length on its device (§5.5.2); its rule is a preset.

use weft_exec::{Ready, Work};

use crate::config::SlicingConfig;

/// A kernel whose rest exceeds the budget by less than this is not cut.
const OVERRUN_NS: u64 = 500_000;

/// A piece costs at most a fiftieth of its own time.
const COST_FACTOR: u64 = 50;

/// Bounds of the shortest piece, in ns, whatever was measured: the lower one is 50 times the least
/// that a start and a completion take; the upper one keeps a turn from growing without limit on a
/// machine where the worker is often descheduled.
const PIECE_NS: (u64, u64) = (50_000, 1_000_000);

/// FairGV §5.5.2: a kernel is very long when it has more blocks than this …
const FAIRGV_LONG_BLOCKS: u64 = 600 * 600;
/// … and then its pieces have at least so many.
const FAIRGV_PIECE_BLOCKS: u64 = 1_500;

/// Decides where kernels are cut.
#[derive(Debug)]
pub(crate) struct Pieces {
    slicing: SlicingConfig,
    /// Median of what pieces cost so far, in ns.
    cost_ns: u64,
}

impl Pieces {
    pub(crate) fn new(slicing: SlicingConfig) -> Self {
        Self { slicing, cost_ns: PIECE_NS.0 / COST_FACTOR }
    }

    /// The device time after which an operation should stop, if it should: it is known to take
    /// `known_ns`, and `left_ns` are left of the turn.
    pub(crate) fn cut_ns(&self, ready: &Ready, known_ns: Option<u64>, left_ns: u64) -> Option<u64> {
        let fits = known_ns.is_some_and(|known_ns| known_ns <= left_ns.saturating_add(OVERRUN_NS));
        if !ready.sliceable || ready.work != Work::Kernel || fits || left_ns == u64::MAX {
            return None;
        }
        match self.slicing {
            SlicingConfig::Never => None,
            SlicingConfig::Time => Some(left_ns.max(self.shortest_ns())),
            SlicingConfig::Fairgv => {
                let per_block = |ns: u64| u128::from(ns) * u128::from(FAIRGV_PIECE_BLOCKS);
                let least = per_block(known_ns?) / u128::from(ready.units.max(1));
                let least_ns = u64::try_from(least).unwrap_or(u64::MAX);
                (ready.units > FAIRGV_LONG_BLOCKS).then_some(left_ns.max(least_ns))
            }
        }
    }

    /// A piece cost this much beside its device time.
    pub(crate) fn learn(&mut self, cost_ns: u64) {
        // A step of a sixteenth towards each sample ends at their median, which ignores how far
        // away the few are during which the worker was descheduled.
        let step = (self.cost_ns / 16).max(1);
        if cost_ns > self.cost_ns {
            self.cost_ns += step;
        } else {
            self.cost_ns = self.cost_ns.saturating_sub(step);
        }
    }

    fn shortest_ns(&self) -> u64 {
        (self.cost_ns * COST_FACTOR).clamp(PIECE_NS.0, PIECE_NS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_NS: u64 = 1_900_000_000;

    fn kernel(blocks: u64) -> Ready {
        let estimate_ns = Some(LONG_NS);
        Ready { key: 1, work: Work::Kernel, units: blocks, estimate_ns, sliceable: true }
    }

    #[test]
    fn long_kernels_are_cut_at_the_end_of_the_turn() {
        let pieces = Pieces::new(SlicingConfig::Time);
        assert_eq!(pieces.cut_ns(&kernel(100), Some(LONG_NS), 6_000_000), Some(6_000_000));
        assert_eq!(pieces.cut_ns(&kernel(100), None, 6_000_000), Some(6_000_000));
        assert_eq!(pieces.cut_ns(&kernel(100), Some(6_400_000), 6_000_000), None);
        assert_eq!(pieces.cut_ns(&kernel(100), Some(LONG_NS), u64::MAX), None);
        let whole = Ready { sliceable: false, ..kernel(100) };
        assert_eq!(pieces.cut_ns(&whole, Some(LONG_NS), 6_000_000), None);
        let never = Pieces::new(SlicingConfig::Never);
        assert_eq!(never.cut_ns(&kernel(100), Some(LONG_NS), 6_000_000), None);
    }

    #[test]
    fn a_piece_is_fifty_times_its_cost() {
        let mut pieces = Pieces::new(SlicingConfig::Time);
        assert_eq!(pieces.cut_ns(&kernel(100), None, 10), Some(PIECE_NS.0));
        for sample in 0..2000 {
            pieces.learn(if sample % 10 == 0 { 5_000_000 } else { 8_000 });
        }
        let shortest_ns = pieces.cut_ns(&kernel(100), None, 10).unwrap();
        assert!((350_000..500_000).contains(&shortest_ns), "{shortest_ns}");
        (0..2000).for_each(|_| pieces.learn(5_000_000));
        assert_eq!(pieces.cut_ns(&kernel(100), None, 10), Some(PIECE_NS.1));
    }

    #[test]
    fn fairgvs_rule_counts_blocks() {
        let pieces = Pieces::new(SlicingConfig::Fairgv);
        let cut = |blocks, left_ns| pieces.cut_ns(&kernel(blocks), Some(LONG_NS), left_ns);
        assert_eq!(cut(360_000, 6_000_000), None);
        assert_eq!(cut(1_900_000, 6_000_000), Some(6_000_000));
        assert_eq!(cut(1_900_000, 1_000_000), Some(1_500_000));
    }
}
