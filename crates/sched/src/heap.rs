//! A priority queue of dense keys with changeable order: a 4-ary heap that knows where each key is.
//!
//! Four children share a cache line or two, so a heap of 65,536 is 8 levels deep. `reserve` on
//! arrival of a key; after that nothing allocates.

use crate::codec::{Codec, Malformed, Reader};
use crate::key::KEY_LIMIT;

use alloc::vec;
use alloc::vec::Vec;

const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

/// Keys ordered by `(rank, key)`, smallest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap<R> {
    /// The first of all, here to be found without a look elsewhere. A heap with room for one key
    /// consists of it.
    top: Option<(R, u32)>,
    entries: Vec<(R, u32)>,
    /// Where a key stands in `entries`.
    places: Vec<u32>,
}

impl<R: Copy + Ord> Heap<R> {
    /// Makes room for `key` and for all keys below it.
    pub(crate) fn reserve(&mut self, key: u32) {
        let len = key as usize + 1;
        let was_one = self.is_one();
        if self.places.len() < len {
            self.places.resize(len, ABSENT);
        }
        if self.is_one() {
            return;
        }
        self.entries.reserve(self.places.len() - self.entries.len());
        if was_one && let Some((rank, key)) = self.top {
            self.set(key, rank);
        }
    }

    /// Whether there is room for key 0 alone.
    fn is_one(&self) -> bool {
        self.places.len() <= 1
    }

    pub(crate) fn peek(&self) -> Option<(R, u32)> {
        self.top
    }

    /// The first of all but `key`.
    pub(crate) fn peek_beside(&self, key: u32) -> Option<(R, u32)> {
        let (rank, first) = self.top?;
        if first != key {
            return Some((rank, first));
        }
        // Those that are second in their branches; one that is alone has no entry or is the first.
        self.entries.iter().skip(1).take(ARITY).copied().min()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.top.is_none()
    }

    /// How many keys are in.
    pub(crate) fn len(&self) -> usize {
        if self.is_one() { usize::from(self.top.is_some()) } else { self.entries.len() }
    }

    /// Puts `key` in, or moves it to its new rank.
    pub(crate) fn set(&mut self, key: u32, rank: R) {
        if self.is_one() {
            self.top = Some((rank, key));
            return;
        }
        let place = self.places[key as usize];
        if place == ABSENT {
            self.entries.push((rank, key));
            self.sift_up(self.entries.len() - 1);
        } else {
            let place = place as usize;
            self.entries[place].0 = rank;
            self.restore(place);
        }
        self.top = self.entries.first().copied();
    }

    /// Takes `key` out, if it is in.
    pub(crate) fn remove(&mut self, key: u32) {
        if self.is_one() {
            self.top = None;
            return;
        }
        let place = self.places[key as usize];
        if place == ABSENT {
            return;
        }
        self.places[key as usize] = ABSENT;
        let place = place as usize;
        self.entries.swap_remove(place);
        if place < self.entries.len() {
            self.restore(place);
        }
        self.top = self.entries.first().copied();
    }

    fn restore(&mut self, place: usize) {
        if place > 0 && is_before(&self.entries[place], &self.entries[(place - 1) / ARITY]) {
            self.sift_up(place);
        } else {
            self.sift_down(place);
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        let entry = self.entries[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            let above = self.entries[parent];
            if is_before(&above, &entry) {
                break;
            }
            self.put(place, above);
            place = parent;
        }
        self.put(place, entry);
    }

    fn sift_down(&mut self, mut place: usize) {
        let entry = self.entries[place];
        while let Some(least) = self.least_child(place) {
            let below = self.entries[least];
            if is_before(&entry, &below) {
                break;
            }
            self.put(place, below);
            place = least;
        }
        self.put(place, entry);
    }

    /// Which of an entry's children is first.
    #[inline]
    fn least_child(&self, place: usize) -> Option<usize> {
        let first = place * ARITY + 1;
        let children = self.entries.get(first..)?;
        let least_of = |one: usize, other: usize| {
            if is_before(&children[other], &children[one]) { other } else { one }
        };
        // Which one it is cannot be foreseen: two pairs and their winners need no branches.
        if children.len() >= ARITY {
            return Some(first + least_of(least_of(0, 1), least_of(2, 3)));
        }
        (0..children.len()).reduce(least_of).map(|least| first + least)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a place is below the number of u32 keys")]
    fn put(&mut self, place: usize, entry: (R, u32)) {
        self.places[entry.1 as usize] = place as u32;
        self.entries[place] = entry;
    }
}

/// Whether one goes before another: without a branch for each half of a rank.
#[inline]
fn is_before<R: Copy + Ord>(one: &(R, u32), other: &(R, u32)) -> bool {
    (one.0 < other.0) | ((one.0 == other.0) & (one.1 < other.1))
}

impl<R: Codec + Copy> Codec for Heap<R> {
    fn put(&self, out: &mut Vec<u8>) {
        self.places.len().put(out);
        self.top.put(out);
        self.entries.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let room = u32::take(input)?;
        let top = Codec::take(input)?;
        let taken: Vec<(R, u32)> = Vec::take(input)?;
        if room > KEY_LIMIT || taken.iter().any(|(_, key)| *key >= room) {
            return Err(input.malformed("queue"));
        }
        let mut places = vec![ABSENT; room as usize];
        for (place, (_, key)) in (0..).zip(&taken) {
            places[*key as usize] = place;
        }
        let mut entries = Vec::with_capacity(places.len());
        entries.extend(taken);
        Ok(Self { top, entries, places })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(
            steps in prop::collection::vec((0u32..40, prop::option::weighted(0.7, 0u64..20)), 0..400)
        ) {
            let mut heap = Heap::default();
            heap.reserve(39);
            let mut model = BTreeSet::new();
            for (key, rank) in steps {
                model.retain(|(_, other)| *other != key);
                if let Some(rank) = rank {
                    heap.set(key, rank);
                    model.insert((rank, key));
                } else {
                    heap.remove(key);
                }
                prop_assert_eq!(heap.peek(), model.first().copied());
            }
        }

        #[test]
        fn grows_with_its_keys(steps in prop::collection::vec((0u32..6, 0u64..9, any::<bool>()), 0..60)) {
            let mut heap = Heap::default();
            let (mut model, mut room) = (BTreeSet::new(), 0);
            for (key, rank, add) in steps {
                if add {
                    heap.reserve(key);
                    room = room.max(key + 1);
                }
                if key >= room {
                    continue;
                }
                model.retain(|(_, other)| *other != key);
                if rank == 0 {
                    heap.remove(key);
                } else {
                    heap.set(key, rank);
                    model.insert((rank, key));
                }
                prop_assert_eq!(heap.peek(), model.first().copied());
            }
        }
    }
}
