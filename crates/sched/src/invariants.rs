//! What must hold, as predicates that property tests, the simulator and the fuzzer share.
//!
//! They are fed from outside the core: from what a device says it executed and from what tenants
//! have outstanding, never from tags. A wrong tag cannot hide a wrong share.

use alloc::vec::Vec;
use core::fmt;

use crate::key::Weight;

/// All pairs are tracked up to this many vGPUs; the ones added later are not.
pub const PAIRS_MAX: usize = 32;

/// The lag bound (design of the fair policy): over any interval in which two vGPUs are both
/// backlogged — each has an unexecuted device command — and keep their weights, their service per
/// weight differs by at most `(q + lᵢ)/wᵢ + (q + lⱼ)/wⱼ + σ`. `q` is the time of one turn, `l` a
/// vGPU's longest command that cannot be cut, by which a turn may overrun.
///
/// For each pair it keeps the difference of weighted service since the joint backlog began, and the
/// least and largest value it had: the largest lag over *any* sub-interval is their difference.
/// Everything is an exact integer: both sides are multiplied by `wᵢ·wⱼ`.
#[derive(Clone, Debug)]
pub struct LagBound {
    turn_ns: u64,
    slack_ns: u64,
    vgpus: Vec<Backlog>,
    /// The pair (i, j), i < j, at `j(j − 1)/2 + i`.
    pairs: Vec<Pair>,
    worst: Option<Lag>,
}

#[derive(Clone, Copy, Debug)]
struct Backlog {
    weight: Weight,
    longest_piece_ns: u64,
    backlogged: bool,
}

/// `served(i)·w(j) − served(j)·w(i)` since the joint backlog began.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    now: i128,
    least: i128,
    largest: i128,
}

/// The lag of two vGPUs over the worst interval so far, in ns of weighted service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The one served when it was found.
    pub one: usize,
    /// The other.
    pub other: usize,
    /// The lag times both weights.
    pub lag: i128,
    /// The bound times both weights.
    pub bound: i128,
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { one, other, lag, bound } = self;
        write!(f, "vGPUs {one} and {other} differ by {lag}, the bound is {bound} (times weights)")
    }
}

impl LagBound {
    /// A bound for turns of `turn_ns` (the quantum, plus the overlap where releases are pipelined)
    /// and a slack σ of weighted service.
    pub fn new(turn_ns: u64, slack_ns: u64) -> Self {
        Self { turn_ns, slack_ns, vgpus: Vec::new(), pairs: Vec::new(), worst: None }
    }

    /// Adds a vGPU; the result is its number here. `None` once [`PAIRS_MAX`] are tracked.
    pub fn add(&mut self, weight: Weight) -> Option<usize> {
        let number = self.vgpus.len();
        if number == PAIRS_MAX {
            return None;
        }
        self.vgpus.push(Backlog { weight, longest_piece_ns: 0, backlogged: false });
        self.pairs.extend((0..number).map(|_| Pair::default()));
        Some(number)
    }

    /// A vGPU has, or no longer has, an unexecuted device command. While a session of it holds the
    /// device, that session's commands count alone: the vGPU spent its turn on it, pauses included.
    pub fn set_backlogged(&mut self, number: usize, backlogged: bool) {
        if self.vgpus[number].backlogged != backlogged {
            self.vgpus[number].backlogged = backlogged;
            self.begin_intervals(number);
        }
    }

    /// A vGPU's weight changed: its intervals end.
    pub fn reweight(&mut self, number: usize, weight: Weight) {
        self.vgpus[number].weight = weight;
        self.begin_intervals(number);
    }

    /// A command of the vGPU that cannot be cut is this long. Say so before it is served.
    pub fn submitted(&mut self, number: usize, piece_ns: u64) {
        let longest_ns = &mut self.vgpus[number].longest_piece_ns;
        *longest_ns = piece_ns.max(*longest_ns);
    }

    /// The device reports service; the result is the worst lag of the vGPU if it breaks the bound.
    pub fn served(&mut self, number: usize, ns: u64) -> Result<(), Lag> {
        let mut broken = Ok(());
        for other in 0..self.vgpus.len() {
            if other == number || !self.vgpus[number].backlogged || !self.vgpus[other].backlogged {
                continue;
            }
            let bound = self.bound(number, other);
            let step = i128::from(ns) * i128::from(self.vgpus[other].weight.get());
            let pair = &mut self.pairs[pair_index(number, other)];
            pair.now += if number < other { step } else { -step };
            pair.least = pair.least.min(pair.now);
            pair.largest = pair.largest.max(pair.now);
            let lag = Lag { one: number, other, lag: pair.largest - pair.least, bound };
            if lag.lag > bound {
                broken = Err(lag);
            }
            if self.worst.is_none_or(|worst| lag.share_of_bound() > worst.share_of_bound()) {
                self.worst = Some(lag);
            }
        }
        broken
    }

    /// The lag that came closest to its bound.
    pub fn worst(&self) -> Option<Lag> {
        self.worst
    }

    fn bound(&self, one: usize, other: usize) -> i128 {
        let (one, other) = (self.vgpus[one], self.vgpus[other]);
        let (w_one, w_other) = (i128::from(one.weight.get()), i128::from(other.weight.get()));
        let turn = |vgpu: Backlog| i128::from(self.turn_ns) + i128::from(vgpu.longest_piece_ns);
        turn(one) * w_other + turn(other) * w_one + i128::from(self.slack_ns) * w_one * w_other
    }

    fn begin_intervals(&mut self, number: usize) {
        for other in (0..self.vgpus.len()).filter(|other| *other != number) {
            self.pairs[pair_index(number, other)] = Pair::default();
        }
    }
}

impl Lag {
    /// The lag in millionths of its bound.
    pub fn share_of_bound(&self) -> i128 {
        self.lag.saturating_mul(1_000_000) / self.bound.max(1)
    }
}

fn pair_index(one: usize, other: usize) -> usize {
    let (low, high) = (one.min(other), one.max(other));
    high * (high - 1) / 2 + low
}

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

/// Metering closes: every nanosecond that the device was busy is billed to one vGPU, once. The
/// result is the difference, positive when too much was billed.
pub fn billing_gap_ns(device_busy_ns: u64, billed_ns: impl IntoIterator<Item = u64>) -> i128 {
    billed_ns.into_iter().map(i128::from).sum::<i128>() - i128::from(device_busy_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(weights: [u32; 2]) -> LagBound {
        let mut bound = LagBound::new(6, 0);
        for (number, weight) in weights.into_iter().enumerate() {
            assert_eq!(bound.add(Weight::new(weight).unwrap()), Some(number));
            bound.set_backlogged(number, true);
        }
        bound
    }

    #[test]
    fn the_bound_itself_is_allowed_and_one_more_is_not() {
        // Weights 1 and 2, turns of 6: 6/1 + 6/2 = 9 of weighted service.
        let mut bound = two([1, 2]);
        assert_eq!(bound.served(0, 9), Ok(()));
        let lag = bound.served(0, 1).unwrap_err();
        assert_eq!((lag.lag, lag.bound), (20, 18));
    }

    #[test]
    fn a_sub_interval_counts() {
        // +5 and then −10 never leaves ±9 seen from the start, but the second interval is −10.
        let mut bound = two([1, 2]);
        bound.served(0, 5).unwrap();
        bound.served(1, 18).unwrap();
        assert_eq!(bound.served(1, 2).unwrap_err().lag, 20);
    }

    #[test]
    fn sleeping_and_new_weights_begin_a_new_interval() {
        let mut bound = two([1, 2]);
        bound.served(0, 9).unwrap();
        bound.set_backlogged(1, false);
        bound.served(0, 1_000).unwrap();
        bound.set_backlogged(1, true);
        bound.served(0, 9).unwrap();
        bound.reweight(1, Weight::ONE);
        bound.served(0, 12).unwrap();
        bound.served(0, 1).unwrap_err();
    }

    #[test]
    fn a_long_command_widens_the_bound() {
        let mut bound = two([1, 2]);
        bound.submitted(0, 4);
        bound.served(0, 13).unwrap();
        bound.served(0, 1).unwrap_err();
    }

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
    fn equals_wait_for_two_turns_of_each_other_one() {
        let equal = (Weight::ONE, 0);
        assert_eq!(wait_limit_ns(6, equal, &[equal, equal]), 24);
    }
}
