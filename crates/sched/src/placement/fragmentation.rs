//! Where expected fragmentation grows least on the observed mix of requests: a model of Weng et al.,
//! *Beware of Fragmentation* (USENIX ATC '23), whose published scorer rounds to 101 steps and draws
//! among equals. Here the growth is exact, and of equals the tighter fit is taken.

use super::host::{Change, View};
use super::mix::Mix;
use super::policy::signed;

pub(super) fn pick(host: &View, memory: u64, mix: &Mix) -> Option<usize> {
    let growth = |gpu: usize| {
        let mut after = *host;
        after.take(gpu, memory, mix);
        (mix.fragmentation(&after), after.rooms()[gpu])
    };
    let is_first = |gpu: usize| !host.rooms()[..gpu].contains(&host.rooms()[gpu]);
    // GPUs of equal room come out equal unless their capacities differ.
    let capacities = host.capacities();
    let uniform = capacities.iter().all(|capacity| *capacity == capacities[0]);
    let candidates = host.with_room(memory).filter(|gpu| !uniform || is_first(*gpu));
    candidates.min_by_key(|gpu| growth(*gpu))
}

pub(super) fn rank(change: &Change<'_>) -> (i64, i64) {
    let (before, after) = (change.before, change.after);
    let growth = signed(change.mix.fragmentation(after)) - signed(change.mix.fragmentation(before));
    let left = change.first.map_or(after.cpu_milli, |gpu| after.rooms()[gpu]);
    (growth, signed(left))
}
