//! The lag bound of one level: of any two members that share something by weight.

use alloc::vec::Vec;
use core::fmt;

use crate::key::Weight;

/// All pairs are tracked up to this many members; the ones added later are not.
pub const PAIRS_MAX: usize = 32;

/// The lag bound (design of the fair policy): over any interval in which two members (tenants of a
/// device, vGPUs of a tenant, sessions of a vGPU) are both backlogged — each has an unexecuted
/// device command — and keep their weights, their service per weight differs by at most
/// `(q + lᵢ)/wᵢ + (q + lⱼ)/wⱼ + 2σ`. `q` is the time of one turn, `l` a member's longest command
/// that cannot be cut, by which a turn may overrun. A member that has been user-facing is allowed
/// what it may borrow on top of its turn.
///
/// For each pair it keeps the difference of weighted service since the joint backlog began, and the
/// least and largest value it had: the largest lag over *any* sub-interval is their difference.
/// Everything is an exact integer: both sides are multiplied by `wᵢ·wⱼ`.
#[derive(Clone, Debug)]
pub struct LagBound {
    turn_ns: u64,
    slack_ns: u64,
    members: Vec<Backlog>,
    free: Vec<usize>,
    /// The pair (i, j), i < j, at `j(j − 1)/2 + i`.
    pairs: Vec<Pair>,
    worst: Option<Lag>,
}

#[derive(Clone, Copy, Debug)]
struct Backlog {
    weight: Weight,
    longest_piece_ns: u64,
    borrow_ns: u64,
    backlogged: bool,
}

/// `served(i)·w(j) − served(j)·w(i)` since the joint backlog began.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    now: i128,
    least: i128,
    largest: i128,
}

/// The lag of two members over the worst interval so far, in ns of weighted service.
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
        write!(f, "{one} and {other} differ by {lag}, the bound is {bound} (times weights)")
    }
}

impl LagBound {
    /// A bound for turns of `turn_ns` (the quantum, plus the overlap where releases are pipelined)
    /// and a slack σ of weighted service, by which either one may be ahead.
    pub fn new(turn_ns: u64, slack_ns: u64) -> Self {
        Self {
            turn_ns,
            slack_ns,
            members: Vec::new(),
            free: Vec::new(),
            pairs: Vec::new(),
            worst: None,
        }
    }

    /// Adds a member; the result is its number here. `None` once [`PAIRS_MAX`] are tracked.
    pub fn add(&mut self, weight: Weight) -> Option<usize> {
        let (longest_piece_ns, borrow_ns) = (0, 0);
        let fresh = Backlog { weight, longest_piece_ns, borrow_ns, backlogged: false };
        if let Some(number) = self.free.pop() {
            self.members[number] = fresh;
            self.begin_intervals(number);
            return Some(number);
        }
        let number = self.members.len();
        if number == PAIRS_MAX {
            return None;
        }
        self.members.push(fresh);
        self.pairs.extend((0..number).map(|_| Pair::default()));
        Some(number)
    }

    /// A member is gone; its number is used again.
    pub fn remove(&mut self, number: usize) {
        self.set_backlogged(number, false);
        self.free.push(number);
    }

    /// A member has, or no longer has, an unexecuted device command. While a session of it holds
    /// the device, that session's commands count alone: the turn was spent on it, pauses
    /// included.
    pub fn set_backlogged(&mut self, number: usize, backlogged: bool) {
        if self.members[number].backlogged != backlogged {
            self.members[number].backlogged = backlogged;
            self.begin_intervals(number);
        }
    }

    /// A member's weight changed: its intervals end.
    pub fn reweight(&mut self, number: usize, weight: Weight) {
        self.members[number].weight = weight;
        self.begin_intervals(number);
    }

    /// A command of the member that cannot be cut is this long. Say so before it is served.
    pub fn submitted(&mut self, number: usize, piece_ns: u64) {
        let longest_ns = &mut self.members[number].longest_piece_ns;
        *longest_ns = piece_ns.max(*longest_ns);
    }

    /// A member may go before others for this much service from now on; it owes that still when it
    /// may no more.
    pub fn may_borrow(&mut self, number: usize, ns: u64) {
        let borrow_ns = &mut self.members[number].borrow_ns;
        *borrow_ns = ns.max(*borrow_ns);
    }

    /// The device reports service; the result is the worst lag of the member if it breaks the
    /// bound.
    pub fn served(&mut self, number: usize, ns: u64) -> Result<(), Lag> {
        let mut broken = Ok(());
        for other in 0..self.members.len() {
            if other == number
                || !self.members[number].backlogged
                || !self.members[other].backlogged
            {
                continue;
            }
            let bound = self.bound(number, other);
            let step = i128::from(ns) * i128::from(self.members[other].weight.get());
            let pair = &mut self.pairs[pair_index(number, other)];
            pair.now += if number < other { step } else { -step };
            if (pair.least..=pair.largest).contains(&pair.now) {
                continue;
            }
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
        let (one, other) = (self.members[one], self.members[other]);
        let (w_one, w_other) = (i128::from(one.weight.get()), i128::from(other.weight.get()));
        let turn = |member: Backlog| {
            let own_ns = i128::from(member.longest_piece_ns) + i128::from(member.borrow_ns);
            i128::from(self.turn_ns) + own_ns
        };
        turn(one) * w_other + turn(other) * w_one + 2 * i128::from(self.slack_ns) * w_one * w_other
    }

    fn begin_intervals(&mut self, number: usize) {
        for other in (0..self.members.len()).filter(|other| *other != number) {
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
    fn a_number_is_used_again_without_a_past() {
        let mut bound = two([1, 2]);
        bound.served(0, 9).unwrap();
        bound.remove(0);
        assert_eq!(bound.add(Weight::ONE), Some(0));
        bound.set_backlogged(0, true);
        bound.served(0, 12).unwrap_err();
        bound.reweight(0, Weight::ONE);
        bound.served(0, 9).unwrap();
    }

    #[test]
    fn borrowing_widens_the_bound() {
        let mut bound = two([1, 2]);
        bound.may_borrow(0, 4);
        bound.served(0, 13).unwrap();
        bound.served(0, 1).unwrap_err();
    }

    #[test]
    fn a_long_command_widens_the_bound() {
        let mut bound = two([1, 2]);
        bound.submitted(0, 4);
        bound.served(0, 13).unwrap();
        bound.served(0, 1).unwrap_err();
    }
}
