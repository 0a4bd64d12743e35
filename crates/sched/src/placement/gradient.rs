//! A model of Weng et al.'s *fragmentation gradient descent* (USENIX ATC '23) to the letter: the
//! host whose expected fragmentation grows least, be it by shrinking most. Their published scorer
//! rounds to 101 steps and draws among equals; here growth is exact and the tighter GPU goes first.

use super::host::{Change, Choice, View};
use super::mix::Mix;
use super::policy::signed;

pub(super) fn pick(host: &View, memory: u64, mix: &Mix) -> Option<Choice> {
    super::fragmentation::pick(host, memory, mix)
}

pub(super) fn rank(change: &Change<'_>) -> (i64, i64) {
    let after = change.after;
    let left = change.first.map_or(after.cpu_milli, |gpu| after.rooms()[gpu]);
    (super::fragmentation::growth(change), signed(left))
}
