//! Every layout there is: the oracle of small cases.

use alloc::vec;
use alloc::vec::Vec;

use super::layout::Layout;
use super::{Demand, Problem};

/// The fewest copies per 1,000 rounds over all layouts in which each vGPU lies in one run, by
/// [`Layout::copies_at_most`]. Takes time exponential in the number of vGPUs.
pub fn contiguous(problem: &Problem<'_>) -> u64 {
    least(problem, |layout| layout.copies_at_most(problem.demands))
}

/// The same by [`Layout::copies_expected_milli`].
pub fn contiguous_expected_milli(problem: &Problem<'_>) -> u64 {
    least(problem, |layout| layout.copies_expected_milli(problem.demands))
}

/// The same by [`Layout::copies_if_rare_milli`].
pub fn contiguous_if_rare_milli(problem: &Problem<'_>) -> u64 {
    least(problem, |layout| layout.copies_if_rare_milli(problem.demands))
}

fn least(problem: &Problem<'_>, cost: impl Fn(&Layout) -> u64) -> u64 {
    let mut starts = vec![0; problem.demands.len()];
    let mut best = u64::MAX;
    loop {
        best = best.min(cost(&Layout::contiguous(problem, &starts)));
        // Counts through all starts, the first vGPU's fastest.
        let ends = problem.demands.iter().map(|demand| problem.region - demand.slots);
        let Some(place) = starts.iter().zip(ends).position(|(start, end)| *start < end) else {
            return best;
        };
        starts[place] += 1;
        starts[..place].fill(0);
    }
}

/// The fewest copies per 1,000 rounds over all layouts, contiguous or not, by
/// [`Layout::copies_at_most`]. The region has at most 16 slots.
pub fn scattered(problem: &Problem<'_>) -> u64 {
    let region = problem.region.min(16);
    let sets =
        |slots: usize| (0..1_u32 << region).filter(move |set| set.count_ones() as usize == slots);
    let choices: Vec<Vec<u32>> =
        problem.demands.iter().map(|demand| sets(demand.slots).collect()).collect();
    search(problem.demands, &choices, &mut Vec::new())
}

fn search(demands: &[Demand], choices: &[Vec<u32>], chosen: &mut Vec<u32>) -> u64 {
    let Some(sets) = choices.get(chosen.len()) else {
        let cost = |(index, set): (usize, &u32)| {
            let others = chosen.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.fold(0, |all, (_, set)| all | set);
            u64::from((set & others).count_ones()) * u64::from(demands[index].rate)
        };
        return chosen.iter().enumerate().map(cost).sum();
    };
    let mut best = u64::MAX;
    for set in sets {
        chosen.push(*set);
        best = best.min(search(demands, choices, chosen));
        chosen.pop();
    }
    best
}
