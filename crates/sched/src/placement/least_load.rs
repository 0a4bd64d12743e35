//! The GPU with the most free memory (GSaaS §III-B, in words): cGPUs have GPUs to themselves as
//! long as there are any.
//!
//! Algorithm 1 of the paper, as printed, compares `avail_mem + req_mem` with the total: it refuses
//! an empty GPU and accepts a full one. The words are what is implemented.

use core::cmp::Reverse;

use super::host::{Change, Choice, View};
use super::mix::Mix;
use super::policy::signed;

pub(super) fn pick(host: &View, memory: u64, _mix: &Mix) -> Option<Choice> {
    host.with_room(memory).min_by_key(|gpu| Reverse(host.rooms()[*gpu])).map(Choice::from)
}

pub(super) fn rank(change: &Change<'_>) -> (i64, i64) {
    let host = change.before;
    let most = change.first.map_or(0, |gpu| host.rooms()[gpu]);
    (-signed(most), -signed(host.room()))
}
