//! When DymGPU moves vGPUs: a model of §3.2's text beside Algorithms 1 and 2.
//!
//! *Size (§3.2.1).* A new vGPU with at most L slots is put on P_K, where the shared slots are.
//! For a larger one the shared slots with it there and with everybody placed anew are compared.
//! When a vGPU ends, or is idle, everybody is placed anew if it had slots of its own.
//!
//! *Utilization (§3.2.2).* Everybody is placed anew every period. What happens to a new vGPU until
//! then is unsaid; here it is the least used so far, so it gets free slots or the region's end.

use alloc::vec;

use super::layout::{Layout, Place, Run};
use super::size::{self, Pile};
use super::{Problem, utilization};
use crate::key::VgpuKey;

/// What a rule is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The last one is new, or woke up.
    Joined,
    /// Some ended or are idle, or none and it is time to look.
    Left {
        /// One of them had slots that nobody else had.
        had_own: bool,
        /// A period is over.
        due: bool,
    },
    /// The turn is over in which somebody could not be moved.
    HeldBack,
}

/// Whether somebody of those has slots that nobody else has.
pub(super) fn had_own(layout: &Layout, gone: &[VgpuKey]) -> bool {
    if gone.is_empty() {
        return false;
    }
    let occupants = layout.occupants();
    let mut places = layout.places.iter().filter(|place| gone.contains(&place.vgpu));
    places.any(|place| place.slots().any(|slot| occupants[slot] == 1))
}

/// What is remembered between changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dynamic {
    /// Of the last time that everybody was placed.
    pile: Option<Pile>,
}

impl Dynamic {
    /// Puts whoever joined where it lies if nobody old moves; the layout to take instead if there
    /// is one.
    pub(super) fn by_size(
        &mut self,
        problem: &Problem<'_>,
        kept: &mut Layout,
        change: Change,
    ) -> Option<Layout> {
        let anew = size::place(problem);
        let is_anew = match (change, self.pile) {
            (Change::Joined, Some(pile)) => {
                let slots = last_slots(problem);
                put_last(kept, pile.start.min(problem.region - slots));
                slots > pile.overlap && shared_slots(&anew) < shared_slots(kept)
            }
            (Change::Joined, None) | (Change::HeldBack, _) => true,
            (Change::Left { had_own, .. }, _) => had_own,
        };
        if !is_anew {
            return None;
        }
        self.pile = size::pile(problem);
        Some(anew)
    }
}

/// As [`Dynamic::by_size`].
pub(super) fn by_utilization(
    problem: &Problem<'_>,
    kept: &mut Layout,
    change: Change,
) -> Option<Layout> {
    match change {
        Change::Joined => {
            let slots = last_slots(problem);
            let newcomer = kept.places.pop();
            let start = free_run(kept, slots).unwrap_or(problem.region - slots);
            kept.places.extend(newcomer);
            put_last(kept, start);
            None
        }
        Change::Left { due: false, .. } => None,
        Change::Left { due: true, .. } | Change::HeldBack => Some(utilization::place(problem)),
    }
}

fn last_slots(problem: &Problem<'_>) -> usize {
    problem.demands.last().map_or(0, |demand| demand.slots)
}

fn put_last(layout: &mut Layout, start: usize) {
    if let Some(Place { runs, .. }) = layout.places.last_mut() {
        let len = runs.iter().map(|run| run.len).sum();
        *runs = vec![Run { start, len }];
    }
}

fn shared_slots(layout: &Layout) -> usize {
    layout.occupants().into_iter().filter(|count| *count > 1).count()
}

/// The leftmost run of so many slots that nobody has.
fn free_run(layout: &Layout, slots: usize) -> Option<usize> {
    let mut free = 0;
    for (slot, count) in layout.occupants().into_iter().enumerate() {
        free = if count == 0 { free + 1 } else { 0 };
        if free == slots {
            return Some(slot + 1 - slots);
        }
    }
    None
}
