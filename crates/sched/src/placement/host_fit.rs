//! A model of the best fit that Weng et al. (USENIX ATC '23) compare with: the host with the least
//! left over, half of it processors and half GPUs, and there the tightest GPU.

use super::host::{Change, Choice, View};
use super::mix::Mix;
use super::policy::signed;

/// What the published scorer divides by: 128 processors and 8 GPUs are the largest host.
const CPU_MILLI: u64 = 128_000;
const GPUS: u64 = 8;

pub(super) fn pick(host: &View, memory: u64, mix: &Mix) -> Option<Choice> {
    super::best_fit::pick(host, memory, mix)
}

/// The published score has 101 steps; this one is exact, in millionths.
pub(super) fn rank(change: &Change<'_>) -> (i64, i64) {
    let after = change.after;
    let largest = after.capacities().iter().copied().max().unwrap_or(0).max(1);
    let cpu = after.cpu_milli.saturating_mul(500_000) / CPU_MILLI;
    let gpu = after.room().saturating_mul(500_000) / (GPUS * largest);
    (signed(cpu + gpu), 0)
}
