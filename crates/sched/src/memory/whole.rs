//! A model of whole-vGPU swapping (nvshare's way): everybody begins at the first slot, so whoever
//! gets the turn takes the place of those before, slot by slot.

use alloc::vec;

use super::Problem;
use super::layout::Layout;

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    Layout::contiguous(problem, &vec![0; problem.demands.len()])
}
