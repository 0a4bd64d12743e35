//! The GPU that has the least room left afterwards; of equal ones that on the fuller host.

use super::host::{Change, Choice, View};
use super::mix::Mix;
use super::policy::signed;

pub(super) fn pick(host: &View, memory: u64, _mix: &Mix) -> Option<Choice> {
    host.with_room(memory).min_by_key(|gpu| host.rooms()[*gpu]).map(Choice::from)
}

pub(super) fn rank(change: &Change<'_>) -> (i64, i64) {
    let left = change.first.map_or(0, |gpu| change.after.rooms()[gpu]);
    (signed(left), signed(change.after.room()))
}
