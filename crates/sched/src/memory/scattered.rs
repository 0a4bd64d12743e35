//! The fewest copies where a vGPU's slots need not lie together (Weft).
//!
//! With `h` shared slots a vGPU has at least `slots - h` of its own, and `region - h` are there for
//! all. What is left of them goes to those that run most. For a given `h` that is the best there
//! is, and the best over all `h` is concave in `h` (a linear program whose limits are linear in
//! it), so bisection finds it.

use alloc::vec::Vec;

use super::Problem;
use super::layout::{Layout, Place, Run};

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    if problem.total() <= problem.region {
        return Layout::side_by_side(problem);
    }
    let order = problem.largest_first(|demand| u64::from(demand.rate));
    let (mut low, mut high) = (1, problem.region);
    while low < high {
        let middle = usize::midpoint(low, high);
        // Too few shared slots are no solution at all, which is worse than any.
        let here = value(problem, &order, middle);
        if here.is_none() || here < value(problem, &order, middle + 1) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    lay(problem, &own(problem, &order, low).unwrap_or_default(), low)
}

/// Copies saved per 1,000 rounds with so many shared slots.
fn value(problem: &Problem<'_>, order: &[usize], shared: usize) -> Option<u64> {
    let own = own(problem, order, shared)?;
    let saved = |(demand, own): (&super::Demand, &usize)| u64::from(demand.rate) * *own as u64;
    Some(problem.demands.iter().zip(&own).map(saved).sum())
}

/// Slots of each one's own, `None` where there is not enough room.
fn own(problem: &Problem<'_>, order: &[usize], shared: usize) -> Option<Vec<usize>> {
    let least = |demand: &super::Demand| demand.slots.saturating_sub(shared);
    let mut own: Vec<usize> = problem.demands.iter().map(least).collect();
    let room = problem.region.checked_sub(shared)?;
    let mut left = room.checked_sub(own.iter().sum())?;
    for &index in order {
        let more = (problem.demands[index].slots - own[index]).min(left);
        own[index] += more;
        left -= more;
    }
    Some(own)
}

/// The shared slots come first and are dealt out in turn, so that they are used evenly.
fn lay(problem: &Problem<'_>, own: &[usize], shared: usize) -> Layout {
    let (mut next_own, mut next_shared) = (shared, 0);
    let mut places = Vec::with_capacity(own.len());
    for (demand, &own) in problem.demands.iter().zip(own) {
        let rest = demand.slots - own;
        let first = rest.min(shared - next_shared);
        let runs = [
            Run { start: next_own, len: own },
            Run { start: next_shared, len: first },
            Run { start: 0, len: rest - first },
        ];
        next_own += own;
        next_shared = (next_shared + rest) % shared.max(1);
        let runs = runs.into_iter().filter(|run| run.len > 0).collect();
        places.push(Place { vgpu: demand.vgpu, runs });
    }
    Layout { region: problem.region, order: (0..places.len()).collect(), places }
}
