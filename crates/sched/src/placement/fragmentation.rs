//! Where expected fragmentation on the observed mix of requests grows least (the measure of Weng et
//! al., USENIX ATC '23), and of hosts where it does not grow the fullest. That fragmentation
//! *shrinks* says only that the host was of little use already: to seek that out leaves fuller
//! hosts with room that nobody needs (`docs/adr/0026-placement.md` has the figures).

use super::host::{Change, View};
use super::mix::Mix;
use super::policy::signed;

pub(super) fn pick(host: &View, memory: u64, mix: &Mix) -> Option<usize> {
    let growth = |gpu: usize| {
        let mut after = *host;
        after.take(gpu, memory);
        (mix.fragmentation(&after), after.rooms()[gpu])
    };
    let is_first = |gpu: usize| !host.rooms()[..gpu].contains(&host.rooms()[gpu]);
    // GPUs of equal room come out equal unless their capacities differ.
    let capacities = host.capacities();
    let uniform = capacities.iter().all(|capacity| *capacity == capacities[0]);
    let candidates = host.with_room(memory).filter(|gpu| !uniform || is_first(*gpu));
    candidates.min_by_key(|gpu| growth(*gpu))
}

/// In memory times parts per million.
pub(super) fn growth(change: &Change<'_>) -> i64 {
    let of = |host: &View| signed(change.mix.fragmentation(host));
    of(change.after) - of(change.before)
}

pub(super) fn rank(change: &Change<'_>) -> (i64, i64) {
    (growth(change).max(0), signed(change.after.room()))
}
