//! Where expected fragmentation on the observed mix of requests grows least (the measure of Weng et
//! al., USENIX ATC '23), and of hosts where it does not grow the fullest. That fragmentation
//! *shrinks* says only that the host was of little use already: to seek that out leaves fuller
//! hosts with room that nobody needs (`docs/adr/0026-placement.md` has the figures).

use super::host::{Change, Choice, View};
use super::mix::Mix;
use super::policy::signed;
use super::types::GPUS_OF_HOST_MAX;

/// The GPU that leaves the least fragmentation; of equal ones the tightest, of those the smallest.
pub(super) fn pick(host: &View, memory: u64, mix: &Mix) -> Option<Choice> {
    let (rooms, capacities) = (host.rooms(), host.capacities());
    // Which of GPUs with one room and capacity it is makes no difference.
    let is_first = |gpu: &usize| {
        let mut earlier = rooms[..*gpu].iter().zip(&capacities[..*gpu]);
        !earlier.any(|other| other == (&rooms[*gpu], &capacities[*gpu]))
    };
    let (mut list, mut count) = ([0; GPUS_OF_HOST_MAX], 0);
    for (choice, gpu) in list.iter_mut().zip(host.with_room(memory).filter(is_first)) {
        *choice = gpu;
        count += 1;
    }
    let choices = &list[..count];
    let after = mix.once_given(host, memory, choices);
    let best = choices.iter().min_by_key(|gpu| (after[**gpu], rooms[**gpu], capacities[**gpu]));
    best.map(|gpu| Choice { gpu: *gpu, fragmentation: Some(after[*gpu]) })
}

/// In memory times parts per million.
pub(super) fn growth(change: &Change<'_>) -> i64 {
    let of = |host: &View| change.mix.fragmentation(host);
    let after = change.fragmentation.unwrap_or_else(|| of(change.after));
    signed(after) - signed(of(change.before))
}

pub(super) fn rank(change: &Change<'_>) -> (i64, i64) {
    (growth(change).max(0), signed(change.after.room()))
}

/// The least rank that a host can have on which at least so much room is left.
pub(super) fn least(left: i64) -> (i64, i64) {
    (0, left)
}
