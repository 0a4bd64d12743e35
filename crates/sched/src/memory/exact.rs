//! The least expected copies for the rates there are, each vGPU in one run (Weft).
//!
//! Layouts are ranked by [`Layout::copies_expected_milli`]. The best layouts with *one shared run*
//! (`shapes`), Algorithms 1 and 2 are where it begins. Up to [`SEARCHED_MAX`] vGPUs the search
//! improves each of them by moving one vGPU or two until nothing helps (`search`). That is a local
//! optimum and no proof. Up to [`PROVED_MAX`] vGPUs all layouts are then tried, without those that
//! cannot be better; where that ends within its bound of steps, no layout of contiguous runs has
//! fewer expected copies, and [`is_proven`] says so.

mod search;
mod shapes;

use alloc::vec::Vec;

use super::layout::Layout;
use super::{Problem, size, utilization};
use search::Search;

/// The most vGPUs that are moved about in search of something better.
pub const SEARCHED_MAX: usize = 16;
/// The most vGPUs for which a proof is tried.
pub const PROVED_MAX: usize = 8;

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    find(problem, true).0
}

/// Whether no contiguous layout has fewer expected copies than what `exact` finds. False means
/// that this was not shown within the bound, not that there is one. Takes as long as placing.
pub fn is_proven(problem: &Problem<'_>) -> bool {
    find(problem, true).1
}

/// What `exact` finds before it tries to prove anything, for measuring the search.
pub fn searched(problem: &Problem<'_>) -> Layout {
    find(problem, false).0
}

fn find(problem: &Problem<'_>, prove: bool) -> (Layout, bool) {
    if problem.total() <= problem.region {
        return (Layout::side_by_side(problem), true);
    }
    let begins = [shapes::place(problem), utilization::place(problem), size::place(problem)];
    let begins = begins.map(|layout| (layout.copies_expected_milli(problem.demands), layout));
    if problem.demands.len() <= SEARCHED_MAX {
        let mut search = Search::new(problem);
        for (_, layout) in &begins {
            search.improve(&starts(layout));
        }
        let is_proven = prove && problem.demands.len() <= PROVED_MAX && search.prove();
        return (Layout::contiguous(problem, search.best()), is_proven);
    }
    let best = begins.into_iter().min_by_key(|(cost, _)| *cost);
    (best.map_or_else(Layout::default, |(_, layout)| layout), false)
}

/// Where the runs begin, for layouts that have one for each vGPU.
fn starts(layout: &Layout) -> Vec<usize> {
    layout.places.iter().filter_map(|place| place.runs.first()).map(|run| run.start).collect()
}
