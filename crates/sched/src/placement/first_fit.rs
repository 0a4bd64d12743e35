//! The first GPU with enough room (GSaaS §III-B): few GPUs are in use, and those by many.

use super::host::{Change, Choice, View};
use super::mix::Mix;

pub(super) fn pick(host: &View, memory: u64, _mix: &Mix) -> Option<Choice> {
    host.with_room(memory).next().map(Choice::from)
}

/// All hosts are equal; of equals the first is taken.
pub(super) fn rank(_change: &Change<'_>) -> (i64, i64) {
    (0, 0)
}
