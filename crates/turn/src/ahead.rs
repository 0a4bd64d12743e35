//! How many operations of predicted length fly at once on a device that runs ahead.
//!
//! Each end that is told costs a GPU some microseconds and who feeds it a round trip, so short
//! operations fly by the dozen. But a prediction can be gamed: what was short under a key turns out
//! long, and all of it that flies has to be waited for. So few fly of a session that has not shown
//! anything yet, more the longer its predictions hold, and few again after one that did not. From
//! then on it takes twice as long, up to a bound: whoever games them is waited for ever more
//! rarely. And fewer fly while others wait.

/// Operations that fly at once of a session of which nothing is known: one executes, the next one
/// is at hand.
pub const PREDICTED_DEPTH: usize = 2;

/// The most that do of a session that has the device to itself, and of one for which others wait.
const DEPTH_ALONE: usize = 32;
const DEPTH_BESIDE: usize = 8;

/// What flies beyond [`PREDICTED_DEPTH`] takes no longer than this by prediction, in ns: a twelfth
/// of the shortest usual quantum.
const AHEAD_NS: u64 = 500_000;

/// So many operations that kept their predictions let one more fly, at first and at most.
const STEP: u32 = 64;
const STEP_MAX: u32 = 1 << 20;

/// Operations that were told together broke their predictions if they took twice as long and this
/// much more, in ns.
const BROKEN_NS: u64 = 50_000;

/// What a session's predictions were worth so far.
#[derive(Debug, Clone)]
pub struct Ahead {
    /// Operations that kept theirs since the last one that did not.
    kept: u32,
    /// So many let one more fly.
    step: u32,
    /// The most that fly, whatever predictions were worth.
    most: usize,
    /// More is started; otherwise half of what flies has to end first.
    fills: bool,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { kept: 0, step: STEP, most: DEPTH_BESIDE, fills: true }
    }
}

impl Ahead {
    fn deepest(&self) -> usize {
        let more = usize::try_from(self.kept / self.step).unwrap_or(self.most);
        self.most.min(PREDICTED_DEPTH.saturating_add(more))
    }

    /// How many operations may fly at once if one of `estimate_ns` comes to the `flying` ones,
    /// which take `flies_ns` in all, by prediction; whether the session `is_alone` on the device.
    /// As many as may are started in a row, and then no more until half of them have ended: one
    /// for one they would each be told by itself.
    #[must_use]
    pub fn depth(
        &mut self,
        is_alone: bool,
        flying: usize,
        flies_ns: u64,
        estimate_ns: u64,
    ) -> usize {
        self.most = if is_alone { DEPTH_ALONE } else { DEPTH_BESIDE };
        let deepest = self.deepest();
        if flying >= deepest || flies_ns.saturating_add(estimate_ns) > AHEAD_NS {
            self.fills = false;
        } else if flying <= deepest / 2 && flies_ns <= AHEAD_NS / 2 {
            self.fills = true;
        }
        if self.fills { deepest } else { PREDICTED_DEPTH }
    }

    /// Whether the end of an operation of `estimate_ns` that starts now may be told together with
    /// that of the next one: what is told at once is at most half of what may fly, so that the
    /// device has the other half to do while more is started. So many that were started last are
    /// `open` already, and take `open_ns` by prediction.
    #[must_use]
    pub fn may_stay_open(&self, open: usize, open_ns: u64, estimate_ns: u64) -> bool {
        let next_ns = estimate_ns.saturating_mul(2);
        open + 2 <= self.deepest() / 2 && Self::may_close(open_ns, next_ns)
    }

    /// Whether the end of an operation of `estimate_ns` that starts now may be that of all that are
    /// open, which take `open_ns` by prediction; otherwise they are told first.
    #[must_use]
    pub fn may_close(open_ns: u64, estimate_ns: u64) -> bool {
        open_ns.saturating_add(estimate_ns) <= AHEAD_NS / 2
    }

    /// So many operations, of which all were predicted and which together were to take
    /// `estimate_ns`, took `took_ns`.
    pub fn ended(&mut self, operations: u32, estimate_ns: u64, took_ns: u64) {
        if took_ns <= estimate_ns.saturating_mul(2).saturating_add(BROKEN_NS) {
            self.kept = self.kept.saturating_add(operations);
        } else {
            self.kept = 0;
            self.step = self.step.saturating_mul(2).min(STEP_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(ahead: &mut Ahead, operations: u32) {
        (0..operations).for_each(|_| ahead.ended(1, 3_000, 3_100));
    }

    #[test]
    fn more_fly_the_longer_predictions_hold() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.depth(true, 0, 0, 3_000), PREDICTED_DEPTH);
        keep(&mut ahead, STEP);
        assert_eq!(ahead.depth(true, 0, 0, 3_000), PREDICTED_DEPTH + 1);
        keep(&mut ahead, 100 * STEP);
        assert_eq!(ahead.depth(true, 0, 0, 3_000), DEPTH_ALONE);
        assert_eq!(ahead.depth(true, 5, AHEAD_NS, 3_000), PREDICTED_DEPTH, "too long altogether");
        assert_eq!(ahead.depth(false, 0, 0, 3_000), DEPTH_BESIDE, "others wait");
    }

    /// Half of what may fly ends before any of it is replaced.
    #[test]
    fn what_flies_is_replaced_by_the_half() {
        let mut ahead = Ahead::default();
        keep(&mut ahead, 100 * STEP);
        for (operation_ns, most) in [(3_000, DEPTH_ALONE), (21_000, 23), (102_000, 4)] {
            let (mut flying, mut started) = (0_usize, Vec::new());
            for _ in 0..3 {
                let before = flying;
                while ahead.depth(true, flying, flying as u64 * operation_ns, operation_ns) > flying
                {
                    flying += 1;
                }
                assert_eq!(flying, most);
                started.push(flying - before);
                flying = most / 2 + 1;
                let flies_ns = flying as u64 * operation_ns;
                assert!(ahead.depth(true, flying, flies_ns, operation_ns) <= flying, "too early");
                flying = most / 2;
            }
            assert_eq!(started[1..], [most - most / 2; 2]);
        }
    }

    #[test]
    fn whoever_breaks_them_waits_twice_as_long_each_time() {
        let mut ahead = Ahead::default();
        let mut needed = Vec::new();
        for _ in 0..6 {
            let mut operations = 0;
            while ahead.depth(true, 0, 0, 3_000) < DEPTH_ALONE {
                ahead.ended(1, 3_000, 3_000);
                operations += 1;
            }
            needed.push(operations);
            ahead.ended(1, 3_000, 1_000_000);
            assert_eq!(ahead.depth(true, 0, 0, 3_000), PREDICTED_DEPTH);
        }
        assert!(needed.windows(2).all(|pair| pair[1] == 2 * pair[0]), "{needed:?}");
    }

    #[test]
    fn what_is_told_at_once_is_half_of_what_flies() {
        let mut ahead = Ahead::default();
        assert!(!ahead.may_stay_open(0, 0, 3_000), "two fly, and each end is told");
        keep(&mut ahead, 100 * STEP);
        assert_eq!(ahead.depth(true, 0, 0, 3_000), DEPTH_ALONE);
        let may = |open: usize| ahead.may_stay_open(open, open as u64 * 3_000, 3_000);
        assert!((0..DEPTH_ALONE / 2 - 1).all(may) && !may(DEPTH_ALONE / 2 - 1));
        assert!(!ahead.may_stay_open(0, 0, AHEAD_NS / 4 + 1), "long ones are told by themselves");
        assert!(Ahead::may_close(3_000, 3_000) && !Ahead::may_close(3_000, AHEAD_NS / 2));
    }
}
