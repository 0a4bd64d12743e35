//! DymGPU's Algorithm 2 (§3.2.2): the most used first, alone while there is room; all others end at
//! the region's end. Like Algorithm 1 it ends with the last vGPU when all fit.

use alloc::vec;

use super::Problem;
use super::layout::Layout;

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    let mut starts = vec![0; problem.demands.len()];
    let mut sum = 0;
    for index in problem.largest_first(|demand| u64::from(demand.rate)) {
        let slots = problem.demands[index].slots;
        // The printed loop adds each size to the sum and compares; once one had no room, none has.
        starts[index] = if sum + slots < problem.region { sum } else { problem.region - slots };
        sum = (sum + slots).min(2 * problem.region);
    }
    Layout::contiguous(problem, &starts)
}
