//! What a program said about its managed memory: kept to be told again, and obeyed by nobody but
//! for prefetching to a device.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;

use crate::Client;
use crate::client::lock;

/// A device's ordinal, or the host's number.
pub type Location = i32;

/// What was said about some memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// It is mostly read.
    pub read_mostly: bool,
    /// Where it is best.
    pub preferred: Option<Location>,
    /// Who uses it.
    pub accessed_by: BTreeSet<Location>,
    /// Where it was prefetched to last.
    pub prefetched: Option<Location>,
}

impl Advice {
    /// What was said of both.
    fn common(&self, other: &Self) -> Self {
        let same = |one: Option<Location>, other| one.filter(|_| one == other);
        Self {
            read_mostly: self.read_mostly && other.read_mostly,
            preferred: same(self.preferred, other.preferred),
            accessed_by: &self.accessed_by & &other.accessed_by,
            prefetched: same(self.prefetched, other.prefetched),
        }
    }
}

/// Advice by addresses: pieces of which each lies in one allocation, by their beginnings, with
/// their ends. No two overlap; of what lies between them nothing was said.
#[derive(Debug, Default)]
pub(crate) struct Advised(Mutex<BTreeMap<u64, (u64, Advice)>>);

impl Advised {
    /// Says something about a range.
    fn change(&self, range: Range<u64>, change: impl Fn(&mut Advice)) {
        let mut pieces = lock(&self.0);
        split(&mut pieces, range.start);
        split(&mut pieces, range.end);
        let mut at = range.start;
        while at < range.end {
            let next = pieces.range(at..range.end).next().map_or(range.end, |(begin, _)| *begin);
            if at < next {
                pieces.insert(at, (next, Advice::default()));
            }
            if let Some((end, advice)) = pieces.get_mut(&at) {
                change(advice);
                at = *end;
            }
        }
    }

    /// What was said of all of a range.
    fn common(&self, range: Range<u64>) -> Advice {
        let pieces = lock(&self.0);
        let before =
            pieces.range(..range.start).next_back().filter(|(_, piece)| piece.0 > range.start);
        let within = before.into_iter().chain(pieces.range(range.clone()));
        let (mut at, mut common) = (range.start, None);
        for (begin, (end, advice)) in within {
            if *begin > at {
                return Advice::default();
            }
            at = *end;
            common = Some(common.map_or_else(|| advice.clone(), |one: Advice| one.common(advice)));
        }
        common.filter(|_| at >= range.end).unwrap_or_default()
    }

    /// The memory is gone.
    pub(crate) fn forget(&self, range: Range<u64>) {
        lock(&self.0).retain(|begin, _| !range.contains(begin));
    }
}

/// Makes pieces end at an address, and others begin there.
fn split(pieces: &mut BTreeMap<u64, (u64, Advice)>, at: u64) {
    let Some((_, piece)) = pieces.range_mut(..at).next_back().filter(|(_, piece)| piece.0 > at)
    else {
        return;
    };
    let rest = piece.clone();
    piece.0 = at;
    pieces.insert(at, rest);
}

impl Client {
    /// Notes what was said about managed memory.
    pub fn advise(&self, range: Range<u64>, change: impl Fn(&mut Advice)) {
        self.advised.change(range, change);
    }

    /// What was said of all of some managed memory.
    pub fn advice(&self, range: Range<u64>) -> Advice {
        self.advised.common(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_a_part_is_not_said_of_the_whole() {
        let advised = Advised::default();
        advised.change(0..100, |advice| advice.preferred = Some(0));
        advised.change(40..60, |advice| advice.read_mostly = true);
        advised.change(50..120, |advice| advice.preferred = Some(-1));
        let of = |range| {
            let Advice { read_mostly, preferred, .. } = advised.common(range);
            (read_mostly, preferred)
        };
        assert_eq!(of(0..50), (false, Some(0)));
        assert_eq!(of(40..50), (true, Some(0)));
        assert_eq!(of(45..55), (true, None));
        assert_eq!(of(60..120), (false, Some(-1)));
        assert_eq!((of(0..120), of(100..121)), ((false, None), (false, None)));
        assert_eq!(of(200..300), (false, None));
    }

    #[test]
    fn users_are_those_of_every_part_and_what_is_freed_is_forgotten() {
        let advised = Advised::default();
        for location in [0, 1, -1] {
            advised.change(0..10, |advice| advice.accessed_by.extend([location]));
        }
        advised.change(0..5, |advice| advice.accessed_by.retain(|location| *location != 1));
        assert_eq!(advised.common(0..10).accessed_by, BTreeSet::from([-1, 0]));
        assert_eq!(advised.common(5..10).accessed_by.len(), 3);
        advised.forget(0..10);
        assert_eq!(advised.common(0..10), Advice::default());
    }
}
