//! Layouts with fewer expected copies than a given one, and the proof that there is none.

use alloc::vec;
use alloc::vec::Vec;

use super::super::expected::slot_milli;
use super::super::{EVERY_ROUND, Problem};

/// Slots looked at by one improvement, and by the proof; some ns each.
const STEPS_MAX: usize = 1_000_000;
/// A set whose cost is not computed yet.
const UNKNOWN: u64 = u64::MAX;

/// vGPUs that have a slot, a bit for each.
type Set = u32;

/// Costs are expected copies per 1,000 rounds in thousandths.
pub(super) struct Search<'a> {
    problem: &'a Problem<'a>,
    /// What a slot costs, for each set of occupants.
    costs: Vec<u64>,
    /// Who has each slot at the moment.
    sets: Vec<Set>,
    /// The first slot of each vGPU that lies somewhere at the moment.
    starts: Vec<usize>,
    best: Vec<usize>,
    best_cost: u64,
    steps: usize,
}

impl<'a> Search<'a> {
    /// Nothing is known of these vGPUs yet, of which there are at most
    /// [`SEARCHED_MAX`](super::SEARCHED_MAX).
    pub(super) fn new(problem: &'a Problem<'a>) -> Self {
        let count = problem.demands.len();
        Self {
            problem,
            costs: vec![UNKNOWN; 1 << count],
            sets: vec![0; problem.region],
            starts: vec![0; count],
            best: vec![0; count],
            best_cost: u64::MAX,
            steps: 0,
        }
    }

    /// The best starts found.
    pub(super) fn best(&self) -> &[usize] {
        &self.best
    }

    /// Moves one vGPU or two, as long as that helps, and keeps the result if it is the best.
    pub(super) fn improve(&mut self, from: &[usize]) {
        self.sets.fill(0);
        for (index, start) in from.iter().enumerate() {
            self.put(index, *start);
        }
        self.steps = 0;
        let mut cost = (0..self.sets.len()).map(|slot| self.cost(self.sets[slot])).sum();
        while self.pass(&mut cost) {}
        if cost < self.best_cost {
            self.best_cost = cost;
            self.best.clone_from(&self.starts);
        }
    }

    /// One try of each vGPU and each pair. Whether something helped.
    fn pass(&mut self, cost: &mut u64) -> bool {
        let before = *cost;
        let count = self.starts.len();
        for first in 0..count {
            for second in 0..count {
                if self.steps > STEPS_MAX {
                    return false;
                }
                let old = (self.starts[first], self.starts[second]);
                let mut left = *cost - self.take(first);
                if second != first {
                    left = left - self.take(second) + self.put_best(second);
                }
                left += self.put_best(first);
                if left < *cost {
                    *cost = left;
                    continue;
                }
                self.take(first);
                if second != first {
                    self.take(second);
                    self.put(second, old.1);
                }
                self.put(first, old.0);
            }
        }
        *cost < before
    }

    /// Tries all layouts, less those that cannot be better than the best so far: a slot's cost
    /// never falls when somebody joins. False if that takes too many steps.
    pub(super) fn prove(&mut self) -> bool {
        self.sets.fill(0);
        self.steps = 0;
        let order = self.problem.largest_first(|demand| demand.slots as u64);
        self.place_rest(&order, 0, true)
    }

    fn place_rest(&mut self, order: &[usize], cost: u64, is_first: bool) -> bool {
        let Some((&index, rest)) = order.split_first() else {
            self.best_cost = cost;
            self.best.clone_from(&self.starts);
            return true;
        };
        let mut added: Vec<(u64, usize)> = self.added(index).into_iter().zip(0..).collect();
        if is_first {
            // A layout and its mirror image cost the same.
            added.truncate(added.len().div_ceil(2));
        }
        added.sort_unstable();
        for (more, start) in added {
            if self.steps > STEPS_MAX {
                return false;
            }
            if cost + more >= self.best_cost {
                return true;
            }
            self.put(index, start);
            let done = self.place_rest(rest, cost + more, false);
            self.take(index);
            if !done {
                return false;
            }
        }
        true
    }

    /// What a vGPU would add at each start.
    fn added(&mut self, index: usize) -> Vec<u64> {
        self.steps += self.sets.len();
        let bit = 1 << index;
        let of_slot = |search: &mut Self, slot: usize| {
            let set = search.sets[slot];
            search.cost(set | bit) - search.cost(set)
        };
        let each: Vec<u64> = (0..self.sets.len()).map(|slot| of_slot(self, slot)).collect();
        let slots = self.problem.demands[index].slots;
        let mut sum = each[..slots].iter().sum();
        let mut all = vec![sum];
        for start in 1..=self.sets.len() - slots {
            sum = sum + each[start + slots - 1] - each[start - 1];
            all.push(sum);
        }
        all
    }

    /// Puts a vGPU where it adds least; the result is how much.
    fn put_best(&mut self, index: usize) -> u64 {
        let (more, start) = self.added(index).into_iter().zip(0..).min().unwrap_or((0, 0));
        self.put(index, start);
        more
    }

    fn put(&mut self, index: usize, start: usize) {
        let slots = self.problem.demands[index].slots;
        for set in &mut self.sets[start..start + slots] {
            *set |= 1 << index;
        }
        self.starts[index] = start;
    }

    /// Takes a vGPU away; the result is how much less that costs.
    fn take(&mut self, index: usize) -> u64 {
        let slots = self.problem.demands[index].slots;
        let start = self.starts[index];
        let mut less = 0;
        for slot in start..start + slots {
            let with = self.sets[slot];
            self.sets[slot] &= !(1 << index);
            less += self.cost(with) - self.cost(self.sets[slot]);
        }
        self.steps += slots;
        less
    }

    fn cost(&mut self, set: Set) -> u64 {
        let known = self.costs[set as usize];
        if known != UNKNOWN {
            return known;
        }
        let demands = self.problem.demands.iter().enumerate();
        let members = demands.filter(|(index, _)| set & (1 << index) != 0);
        let rates: Vec<u32> = members.map(|(_, demand)| demand.rate.min(EVERY_ROUND)).collect();
        let cost = slot_milli(&rates);
        self.costs[set as usize] = cost;
        cost
    }
}
