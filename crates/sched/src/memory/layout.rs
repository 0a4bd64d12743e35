//! Who lies where, and what that costs.

use alloc::vec;
use alloc::vec::Vec;

use super::expected::slot_milli;
use super::{Demand, EVERY_ROUND, Problem};
use crate::key::VgpuKey;

/// Slots that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// Where one vGPU lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose.
    pub vgpu: VgpuKey,
    /// Its slots, in the order of its own memory: one run, or several where they are scattered.
    pub runs: Vec<Run>,
}

impl Place {
    /// Its slots, in the order of its own memory.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.runs.iter().flat_map(|run| run.start..run.start + run.len)
    }

    /// Whether a slot is among them.
    pub fn has(&self, slot: usize) -> bool {
        self.runs.iter().any(|run| (run.start..run.start + run.len).contains(&slot))
    }
}

/// Where everybody lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Slots of the region.
    pub region: usize,
    /// In the order of the demands.
    pub places: Vec<Place>,
    /// The order of turns that suits it, as indices of `places`.
    pub order: Vec<usize>,
}

impl Layout {
    /// Everybody in one run that begins there, turns in the order of the demands.
    pub(super) fn contiguous(problem: &Problem<'_>, starts: &[usize]) -> Self {
        let place = |(demand, start): (&Demand, &usize)| Place {
            vgpu: demand.vgpu,
            runs: vec![Run { start: *start, len: demand.slots }],
        };
        let places: Vec<Place> = problem.demands.iter().zip(starts).map(place).collect();
        Self { region: problem.region, order: (0..places.len()).collect(), places }
    }

    /// Side by side from the left, for those that all fit.
    pub(super) fn side_by_side(problem: &Problem<'_>) -> Self {
        let mut next = 0;
        let mut starts = Vec::with_capacity(problem.demands.len());
        for demand in problem.demands {
            starts.push(next);
            next += demand.slots;
        }
        Self::contiguous(problem, &starts)
    }

    /// The place of a vGPU.
    pub fn place(&self, vgpu: VgpuKey) -> Option<&Place> {
        self.places.iter().find(|place| place.vgpu == vgpu)
    }

    /// How many vGPUs have each slot.
    pub fn occupants(&self) -> Vec<usize> {
        let one = |_: usize| 1;
        self.sums(one).into_iter().map(|sum| usize::try_from(sum).unwrap_or(usize::MAX)).collect()
    }

    /// Slots of each vGPU that others have too, in the order of the places.
    pub fn shared(&self) -> Vec<usize> {
        // How many shared slots lie before each one, so that a run costs two look-ups.
        let mut before = Vec::with_capacity(self.region + 1);
        let mut sum = 0;
        before.push(0);
        for count in self.occupants() {
            sum += usize::from(count > 1);
            before.push(sum);
        }
        let of_run = |run: &Run| before[run.start + run.len] - before[run.start];
        self.places.iter().map(|place| place.runs.iter().map(of_run).sum()).collect()
    }

    /// Copies per round if everybody has one turn in each: a slot that others have too is copied at
    /// every turn, however many they are (DymGPU §2.3).
    pub fn copies_per_round(&self) -> usize {
        self.shared().into_iter().sum()
    }

    /// Copies per 1,000 rounds at the demands' rates if between two turns of a vGPU somebody else
    /// always used what it shares. That is so in a round of busy vGPUs, and never too few.
    pub fn copies_at_most(&self, demands: &[Demand]) -> u64 {
        let rates = demands.iter().map(|demand| u64::from(demand.rate.min(EVERY_ROUND)));
        self.shared().into_iter().zip(rates).map(|(shared, rate)| shared as u64 * rate).sum()
    }

    /// Copies per 1,000 rounds at the demands' rates, in thousandths, if in each round each vGPU
    /// has a turn with its rate as the chance, whatever the others do (`expected`). For busy vGPUs
    /// it is [`Layout::copies_at_most`], and never more.
    pub fn copies_expected_milli(&self, demands: &[Demand]) -> u64 {
        let mut changes: Vec<(usize, usize)> = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            let of_run = |run: &Run| [(run.start, index), (run.start + run.len, index)];
            changes.extend(place.runs.iter().flat_map(of_run));
        }
        changes.sort_unstable_by_key(|(slot, _)| *slot);
        // In order, with the rate of each.
        let (mut here, mut rates): (Vec<usize>, Vec<u32>) = Default::default();
        let (mut from, mut sum) = (0, 0);
        for group in changes.chunk_by(|a, b| a.0 == b.0) {
            let slot = group[0].0;
            sum += slot_milli(&rates) * (slot - from) as u64;
            from = slot;
            for (_, index) in group {
                // Who comes was not here; whose one run ends where another begins stays.
                match here.binary_search(index) {
                    Ok(at) => {
                        here.remove(at);
                        rates.remove(at);
                    }
                    Err(at) => {
                        here.insert(at, *index);
                        rates.insert(at, demands[*index].rate.min(EVERY_ROUND));
                    }
                }
            }
        }
        sum
    }

    /// The same if each turn is drawn from all vGPUs by their rates, in thousandths: a turn copies
    /// a slot unless the last of its occupants to run was the same. This is the limit of
    /// [`Layout::copies_expected_milli`] for rare turns.
    pub fn copies_if_rare_milli(&self, demands: &[Demand]) -> u64 {
        let rate = |index: usize| u64::from(demands[index].rate.min(EVERY_ROUND));
        let sums = self.sums(rate);
        let squares = self.sums(|index| rate(index) * rate(index));
        let of_slot = |(sum, square): (u64, u64)| (sum * sum - square) * 1_000 / sum.max(1);
        sums.into_iter().zip(squares).map(of_slot).sum()
    }

    /// For each slot the sum over those that have it.
    fn sums(&self, value: impl Fn(usize) -> u64) -> Vec<u64> {
        let (mut rise, mut fall) = (vec![0; self.region + 1], vec![0; self.region + 1]);
        for (index, place) in self.places.iter().enumerate() {
            for run in &place.runs {
                rise[run.start] += value(index);
                fall[run.start + run.len] += value(index);
            }
        }
        let mut sum: u64 = 0;
        let step = |slot: usize| {
            sum = sum + rise[slot] - fall[slot];
            sum
        };
        (0..self.region).map(step).collect()
    }
}
