//! DymGPU's Algorithm 1 (§3.2.1): the largest first, alone while there is room; the first that has
//! none ends at the region's end, and all others begin where it does.
//!
//! As printed, its first loop runs past the last vGPU when all fit; here it ends. An exact fit
//! counts as "no room": the last one lies where it fits, and is what later ones are put on.

use alloc::vec;

use super::Problem;
use super::layout::Layout;

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    let mut starts = vec![0; problem.demands.len()];
    let mut order = problem.largest_first(|demand| demand.slots as u64).into_iter();
    let (mut sum, mut pile) = (0, 0);
    for index in order.by_ref() {
        let slots = problem.demands[index].slots;
        if sum + slots < problem.region {
            starts[index] = sum;
            sum += slots;
        } else {
            starts[index] = problem.region - slots;
            pile = starts[index];
            break;
        }
    }
    for index in order {
        starts[index] = pile;
    }
    Layout::contiguous(problem, &starts)
}

pub(super) fn cost(problem: &Problem<'_>, layout: &Layout) -> u64 {
    layout.copies_at_most(problem.demands)
}
