//! DymGPU's Algorithm 1 (§3.2.1): the largest first, alone while there is room; the first that has
//! none ends at the region's end, and all others begin where it does.
//!
//! As printed, its first loop runs past the last vGPU when all fit; here it ends. An exact fit
//! counts as "no room": the last one lies where it fits, and is what later ones are put on.

use alloc::vec;
use alloc::vec::Vec;

use super::Problem;
use super::layout::Layout;

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    let (starts, _) = starts(problem);
    Layout::contiguous(problem, &starts)
}

/// Where later vGPUs are put on, and how many slots the two have in common that lie there: the
/// paper's P_K and L. `None` where nobody shares anything and there is room.
pub(super) fn pile(problem: &Problem<'_>) -> Option<Pile> {
    starts(problem).1
}

/// The paper's P_K and L.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pile {
    pub(super) start: usize,
    pub(super) overlap: usize,
}

fn starts(problem: &Problem<'_>) -> (Vec<usize>, Option<Pile>) {
    let mut starts = vec![0; problem.demands.len()];
    let mut order = problem.largest_first(|demand| demand.slots as u64).into_iter();
    let (mut sum, mut pile) = (0, None);
    for index in order.by_ref() {
        let slots = problem.demands[index].slots;
        if sum + slots < problem.region {
            starts[index] = sum;
            sum += slots;
        } else {
            let start = problem.region - slots;
            starts[index] = start;
            pile = Some(Pile { start, overlap: sum - start });
            break;
        }
    }
    for index in order {
        starts[index] = pile.map_or(0, |pile| pile.start);
    }
    (starts, pile)
}
