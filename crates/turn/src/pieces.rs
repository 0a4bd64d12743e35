//! Where an operation that is longer than what is left of a turn is cut.
//!
//! A piece has a cost that the kernel in one go has not: it is started, and its end is noticed. So
//! a piece is at least 50 times as long as that, by measurement; a turn may end later by one such
//! piece, which is charged like anything else. FairGV found 1,500 thread blocks to be such a
//! length on its device (§5.5.2); its rule is a preset.

/// How operations that are longer than a turn are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slicing {
    /// At the turn's end, in pieces of at least 50 times what a piece costs, by measurement.
    Time,
    /// FairGV §5.5.2: kernels of more than 600 × 600 blocks, in pieces of at least 1,500.
    Fairgv,
    /// Not at all: a control.
    Never,
}

/// How much is left of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A kernel: thread blocks.
    Blocks(u64),
    /// A copy or a fill: bytes.
    Bytes(u64),
}

/// An operation that could start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// How much is left of it.
    pub size: Size,
    /// The device's own estimate of the time it takes, in ns.
    pub estimate_ns: Option<u64>,
    /// Whether it may stop at a limit and go on later.
    pub sliceable: bool,
    /// Of a kernel: thread blocks that execute together, none of which is cut from the others.
    pub wave: u64,
}

impl Operation {
    /// What of `blocks` blocks in `estimate_ns` is not cut, in ns.
    fn wave_ns(&self, blocks: u64, estimate_ns: u64) -> u64 {
        let blocks = blocks.max(1);
        let wave = u128::from(estimate_ns) * u128::from(self.wave.clamp(1, blocks));
        u64::try_from(wave / u128::from(blocks)).unwrap_or(u64::MAX)
    }
}

/// Where an operation stops, to go on later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// After about this much device time in ns, where the device can stop it: a kernel between
    /// thread blocks.
    pub after_ns: u64,
    /// A copy or a fill: at the latest after about this many bytes.
    pub after_bytes: u64,
}

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

/// What a device can stop may take so many times what is predicted; then it is a piece.
const TRUST_FACTOR: u64 = 4;

/// A copy or fill whose time is predicted has at most so many bytes, where the device cannot stop
/// it at a time.
const PREDICTED_BYTES: u64 = 16 << 20;

/// How much of an operation starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Where it stops to go on later, if it should.
    pub cut: Option<Cut>,
    /// What it is expected to take up to there, in ns.
    pub expected_ns: u64,
}

/// Decides where kernels, copies and fills are cut.
#[derive(Debug)]
pub struct Pieces {
    slicing: Slicing,
    /// Median of what pieces cost so far, in ns.
    cost_ns: u64,
}

impl Pieces {
    /// Decisions by that rule.
    #[must_use]
    pub fn new(slicing: Slicing) -> Self {
        Self { slicing, cost_ns: PIECE_NS.0 / COST_FACTOR }
    }

    /// Where an operation should stop that is predicted, or guessed, to take `estimate_ns`; `known`
    /// of an operation of which something is known. `left_ns` are left of the turn. `stops` says
    /// that the device stops operations by itself: then a limit costs nothing, and none outlives
    /// its turn because its prediction was wrong.
    #[must_use]
    pub fn limit(
        &self,
        operation: &Operation,
        known: Option<u64>,
        estimate_ns: u64,
        left_ns: u64,
        stops: bool,
    ) -> Limit {
        let whole = Limit { cut: None, expected_ns: estimate_ns };
        if !operation.sliceable || left_ns == u64::MAX || self.slicing == Slicing::Never {
            return whole;
        }
        let room_ns = left_ns.saturating_add(OVERRUN_NS);
        let fits = known.is_some_and(|known_ns| known_ns <= room_ns);
        let exact = operation.estimate_ns.is_some();
        match operation.size {
            _ if fits && stops && !exact => {
                // Those that fly fit the turn together only if each keeps to what is known of it.
                let known_ns = estimate_ns.saturating_mul(TRUST_FACTOR).min(room_ns);
                let cut = Cut { after_ns: known_ns.max(self.shortest_ns()), after_bytes: u64::MAX };
                Limit { cut: Some(cut), expected_ns: estimate_ns }
            }
            Size::Blocks(_) if fits => whole,
            Size::Blocks(blocks) => self.cut_ns(blocks, known, left_ns).map_or(whole, |after_ns| {
                let cut = Cut { after_ns, after_bytes: u64::MAX };
                // Blocks that have begun are not cut.
                let wave_ns = operation.wave_ns(blocks, estimate_ns);
                Limit { cut: Some(cut), expected_ns: estimate_ns.min(after_ns.max(wave_ns)) }
            }),
            Size::Bytes(bytes) => self.bytes_limit(bytes, known, left_ns, exact || stops),
        }
    }

    /// The part of an operation of about `estimate_ns` that is not cut, in ns.
    #[must_use]
    pub fn least_ns(&self, operation: &Operation, estimate_ns: u64) -> u64 {
        if !operation.sliceable {
            return estimate_ns;
        }
        match (self.slicing, operation.size) {
            (Slicing::Never, _) => estimate_ns,
            (_, Size::Bytes(_)) => 0,
            (Slicing::Fairgv, Size::Blocks(blocks)) if blocks <= FAIRGV_LONG_BLOCKS => estimate_ns,
            (_, Size::Blocks(blocks)) => operation.wave_ns(blocks, estimate_ns),
        }
    }

    /// Copies and fills: as many bytes as should fit; few of a kind of which nothing is known, and
    /// never many where that is a prediction that nothing but their number bounds.
    fn bytes_limit(&self, bytes: u64, known: Option<u64>, left_ns: u64, bounded: bool) -> Limit {
        let piece_ns = left_ns.max(self.shortest_ns());
        let most = if bounded { u64::MAX } else { PREDICTED_BYTES };
        let known_ns = known.unwrap_or(u64::MAX).max(1);
        let fitting = u128::from(bytes) * u128::from(piece_ns) / u128::from(known_ns);
        let after_bytes = u64::try_from(fitting).unwrap_or(u64::MAX).min(most);
        let cut = (after_bytes < bytes).then_some(Cut { after_ns: piece_ns, after_bytes });
        let expected = u128::from(known_ns) * u128::from(after_bytes.min(bytes));
        let expected_ns = expected / u128::from(bytes.max(1));
        Limit { cut, expected_ns: u64::try_from(expected_ns).unwrap_or(u64::MAX) }
    }

    /// The device time after which a kernel stops that does not fit.
    fn cut_ns(&self, blocks: u64, known_ns: Option<u64>, left_ns: u64) -> Option<u64> {
        match self.slicing {
            Slicing::Never => None,
            Slicing::Time => Some(left_ns.max(self.shortest_ns())),
            Slicing::Fairgv => {
                let per_block = |ns: u64| u128::from(ns) * u128::from(FAIRGV_PIECE_BLOCKS);
                let least = per_block(known_ns?) / u128::from(blocks.max(1));
                let least_ns = u64::try_from(least).unwrap_or(u64::MAX);
                (blocks > FAIRGV_LONG_BLOCKS).then_some(left_ns.max(least_ns))
            }
        }
    }

    /// A piece cost this much beside its device time.
    pub fn learn(&mut self, cost_ns: u64) {
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

    fn kernel(blocks: u64) -> Operation {
        let (size, estimate_ns) = (Size::Blocks(blocks), Some(LONG_NS));
        Operation { size, estimate_ns, sliceable: true, wave: 1 }
    }

    fn copy(bytes: u64) -> Operation {
        Operation { size: Size::Bytes(bytes), estimate_ns: None, sliceable: true, wave: 1 }
    }

    impl Pieces {
        fn stop_ns(&self, operation: &Operation, known: Option<u64>, left_ns: u64) -> Option<u64> {
            self.limit(operation, known, known.unwrap_or(50_000), left_ns, false)
                .cut
                .map(|cut| cut.after_ns)
        }
    }

    #[test]
    fn long_kernels_are_cut_at_the_end_of_the_turn() {
        let pieces = Pieces::new(Slicing::Time);
        assert_eq!(pieces.stop_ns(&kernel(100), Some(LONG_NS), 6_000_000), Some(6_000_000));
        assert_eq!(pieces.stop_ns(&kernel(100), None, 6_000_000), Some(6_000_000));
        assert_eq!(pieces.stop_ns(&kernel(100), Some(6_400_000), 6_000_000), None);
        assert_eq!(pieces.stop_ns(&kernel(100), Some(LONG_NS), u64::MAX), None);
        let whole = Operation { sliceable: false, ..kernel(100) };
        assert_eq!(pieces.stop_ns(&whole, Some(LONG_NS), 6_000_000), None);
        let never = Pieces::new(Slicing::Never);
        assert_eq!(never.stop_ns(&kernel(100), Some(LONG_NS), 6_000_000), None);
    }

    /// A kernel that was short so far, and may not be this time.
    #[test]
    fn a_device_that_stops_kernels_stops_those_that_outlive_their_turn() {
        let pieces = Pieces::new(Slicing::Time);
        let predicted = Operation { estimate_ns: None, ..kernel(100) };
        let limit = |stops| pieces.limit(&predicted, Some(20_000), 20_000, 6_000_000, stops);
        assert_eq!(limit(false), Limit { cut: None, expected_ns: 20_000 });
        let cut = Cut { after_ns: 80_000, after_bytes: u64::MAX };
        assert_eq!(limit(true), Limit { cut: Some(cut), expected_ns: 20_000 });
        let exact = pieces.limit(&kernel(100), Some(20_000), 20_000, 6_000_000, true);
        assert_eq!(exact.cut, None);
    }

    /// On a device that executes many blocks together, none of them ends before the others.
    #[test]
    fn a_kernel_of_one_wave_and_a_block_is_not_cut_within_the_wave() {
        let pieces = Pieces::new(Slicing::Time);
        let kernel = Operation { wave: 4224, estimate_ns: None, ..kernel(4225) };
        assert_eq!(pieces.least_ns(&kernel, 100_000_000), 99_976_331);
        let limit = pieces.limit(&kernel, Some(100_000_000), 100_000_000, 2_000_000, false);
        assert_eq!(limit.expected_ns, 99_976_331);
        let rest = Operation { size: Size::Blocks(1), ..kernel };
        assert_eq!(pieces.least_ns(&rest, 50_000_000), 50_000_000, "what is left is one wave");
    }

    #[test]
    fn a_kernel_of_few_blocks_takes_as_long_as_one_of_them() {
        let pieces = Pieces::new(Slicing::Time);
        let expected_ns = |blocks| {
            pieces.limit(&kernel(blocks), Some(LONG_NS), LONG_NS, 6_000_000, true).expected_ns
        };
        assert_eq!(expected_ns(1), LONG_NS);
        assert_eq!(expected_ns(10), LONG_NS / 10);
        assert_eq!(expected_ns(10_000), 6_000_000);
    }

    #[test]
    fn copies_are_cut_by_bytes() {
        let pieces = Pieces::new(Slicing::Time);
        let bytes = |operation: &Operation, known, left_ns| {
            pieces.limit(operation, known, 50_000, left_ns, false).cut.map(|cut| cut.after_bytes)
        };
        let exact = Operation { estimate_ns: Some(40_000_000), ..copy(400 << 20) };
        assert_eq!(bytes(&exact, exact.estimate_ns, 6_000_000), Some(60 << 20));
        assert_eq!(bytes(&exact, exact.estimate_ns, 40_000_000), None);
        assert_eq!(bytes(&copy(400 << 20), Some(40_000_000), 6_000_000), Some(PREDICTED_BYTES));
        assert_eq!(bytes(&copy(1 << 20), Some(100_000), 6_000_000), None);
        assert_eq!(bytes(&copy(1 << 20), None, 6_000_000), Some(0));
    }

    /// Memory that is touched for the first time takes a hundred times as long.
    #[test]
    fn a_device_that_stops_copies_bounds_their_time() {
        let pieces = Pieces::new(Slicing::Time);
        let limit = |operation: &Operation, known: u64, left_ns| {
            pieces.limit(operation, Some(known), known, left_ns, true)
        };
        let short = Cut { after_ns: 400_000, after_bytes: u64::MAX };
        assert_eq!(limit(&copy(1 << 20), 100_000, 6_000_000).cut, Some(short));
        let long = limit(&copy(400 << 20), 40_000_000, 6_000_000);
        assert_eq!(long.cut, Some(Cut { after_ns: 6_000_000, after_bytes: 60 << 20 }));
        assert_eq!(long.expected_ns, 6_000_000);
        let exact = Operation { estimate_ns: Some(100_000), ..copy(1 << 20) };
        assert_eq!(limit(&exact, 100_000, 6_000_000).cut, None);
    }

    #[test]
    fn a_piece_is_fifty_times_its_cost() {
        let mut pieces = Pieces::new(Slicing::Time);
        assert_eq!(pieces.stop_ns(&kernel(100), None, 10), Some(PIECE_NS.0));
        for sample in 0..2000 {
            pieces.learn(if sample % 10 == 0 { 5_000_000 } else { 8_000 });
        }
        let shortest_ns = pieces.stop_ns(&kernel(100), None, 10).unwrap();
        assert!((350_000..500_000).contains(&shortest_ns), "{shortest_ns}");
        (0..2000).for_each(|_| pieces.learn(5_000_000));
        assert_eq!(pieces.stop_ns(&kernel(100), None, 10), Some(PIECE_NS.1));
    }

    #[test]
    fn fairgvs_rule_counts_blocks() {
        let pieces = Pieces::new(Slicing::Fairgv);
        let cut = |blocks, left_ns| pieces.stop_ns(&kernel(blocks), Some(LONG_NS), left_ns);
        assert_eq!(cut(360_000, 6_000_000), None);
        assert_eq!(cut(1_900_000, 6_000_000), Some(6_000_000));
        assert_eq!(cut(1_900_000, 1_000_000), Some(1_500_000));
    }
}
