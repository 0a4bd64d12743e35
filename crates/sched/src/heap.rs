//! A priority queue of dense keys with changeable order: a 4-ary heap that knows where each key is.
//!
//! Four children share a cache line or two, so a heap of 65,536 is 8 levels deep. `reserve` on
//! arrival of a key; after that nothing allocates.

use crate::codec::{Codec, Malformed, Reader};
use crate::key::KEY_LIMIT;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

/// Keys ordered by `(rank, key)`, smallest first. Each has a mark that says nothing of its order.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Heap<R, M = ()> {
    /// The first of all, here to be found without a look elsewhere: its key is [`ABSENT`] if there
    /// is none. A heap with room for one key consists of it.
    top: Entry<R, M>,
    many: Option<Box<Many<R, M>>>,
    /// For how many keys there is room.
    room: u32,
}

/// A heap with room for more than one key.
#[derive(Clone, Debug)]
struct Many<R, M> {
    entries: Vec<Entry<R, M>>,
    /// Where a key stands in `entries`.
    places: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<R, M> {
    rank: R,
    key: u32,
    mark: M,
}

impl<R: Copy + Ord, M> Entry<R, M> {
    /// Whether it goes before another: without a branch for each half of a rank.
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        (self.rank < other.rank) | ((self.rank == other.rank) & (self.key < other.key))
    }
}

impl<R: Default, M: Default> Default for Heap<R, M> {
    fn default() -> Self {
        Self { top: Entry::none(), many: None, room: 0 }
    }
}

impl<R: Default, M: Default> Entry<R, M> {
    fn none() -> Self {
        Self { rank: R::default(), key: ABSENT, mark: M::default() }
    }
}

impl<R: Copy + Default + Ord> Heap<R> {
    /// Puts `key` in, or moves it to its new rank.
    pub(crate) fn set(&mut self, key: u32, rank: R) {
        self.set_marked(key, rank, ());
    }
}

impl<R: Copy + Default + Ord, M: Copy + Default> Heap<R, M> {
    /// Makes room for `key` and for all keys below it.
    pub(crate) fn reserve(&mut self, key: u32) {
        let room = key + 1;
        if room > self.room {
            self.room = room;
        }
        if self.room <= 1 {
            return;
        }
        let was_one = self.many.is_none();
        let many = self.many.get_or_insert_default();
        many.places.resize(self.room as usize, ABSENT);
        many.entries.reserve(many.places.len() - many.entries.len());
        let Entry { rank, key, mark } = self.top;
        if was_one && key != ABSENT {
            self.set_marked(key, rank, mark);
        }
    }

    pub(crate) fn peek(&self) -> Option<(R, u32)> {
        (!self.is_empty()).then_some((self.top.rank, self.top.key))
    }

    /// The mark of the first of all.
    pub(crate) fn first_mark(&self) -> M {
        self.top.mark
    }

    /// The first of all but `key`.
    pub(crate) fn peek_beside(&self, key: u32) -> Option<(R, u32)> {
        let (rank, first) = self.peek()?;
        if first != key {
            return Some((rank, first));
        }
        // Those that are second in their branches; one that is alone has no entry or is the first.
        let second = self.many.as_ref()?.entries.iter().skip(1).take(ARITY);
        second.map(|entry| (entry.rank, entry.key)).min()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.top.key == ABSENT
    }

    /// For how many keys there is room.
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// How many keys are in.
    pub(crate) fn len(&self) -> usize {
        match &self.many {
            None => usize::from(!self.is_empty()),
            Some(many) => many.entries.len(),
        }
    }

    /// Puts `key` in, or moves it to its new rank.
    pub(crate) fn set_marked(&mut self, key: u32, rank: R, mark: M) {
        let entry = Entry { rank, key, mark };
        match &mut self.many {
            None => self.top = entry,
            Some(many) => self.top = many.set(entry),
        }
    }

    /// Gives each key the mark that it should have.
    pub(crate) fn mark_all(&mut self, mark: impl Fn(u32) -> M) {
        if !self.is_empty() {
            self.top.mark = mark(self.top.key);
        }
        let entries = self.many.iter_mut().flat_map(|many| &mut many.entries);
        entries.for_each(|entry| entry.mark = mark(entry.key));
    }

    /// Takes `key` out, if it is in.
    pub(crate) fn remove(&mut self, key: u32) {
        match &mut self.many {
            None => self.top = Entry::none(),
            Some(many) => {
                many.remove(key);
                self.top = many.entries.first().copied().unwrap_or_else(Entry::none);
            }
        }
    }
}

impl<R, M> Default for Many<R, M> {
    fn default() -> Self {
        Self { entries: Vec::new(), places: Vec::new() }
    }
}

impl<R: Copy + Ord, M: Copy> Many<R, M> {
    /// The result is the first of all.
    fn set(&mut self, entry: Entry<R, M>) -> Entry<R, M> {
        let place = self.places[entry.key as usize];
        if place == ABSENT {
            self.entries.push(entry);
            self.sift_up(self.entries.len() - 1);
        } else {
            let place = place as usize;
            self.entries[place] = entry;
            self.restore(place);
        }
        self.entries[0]
    }

    fn remove(&mut self, key: u32) {
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
    }

    fn restore(&mut self, place: usize) {
        if place > 0 && self.entries[place].is_before(&self.entries[(place - 1) / ARITY]) {
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
            if above.is_before(&entry) {
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
            if entry.is_before(&below) {
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
            if children[other].is_before(&children[one]) { other } else { one }
        };
        // Which one it is cannot be foreseen: two pairs and their winners need no branches.
        if children.len() >= ARITY {
            return Some(first + least_of(least_of(0, 1), least_of(2, 3)));
        }
        (0..children.len()).reduce(least_of).map(|least| first + least)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a place is below the number of u32 keys")]
    fn put(&mut self, place: usize, entry: Entry<R, M>) {
        self.places[entry.key as usize] = place as u32;
        self.entries[place] = entry;
    }
}

/// The marks are their owner's to write.
impl<R: Codec + Copy + Default + Ord, M: Copy + Default> Codec for Heap<R, M> {
    fn put(&self, out: &mut Vec<u8>) {
        self.room.put(out);
        self.peek().put(out);
        let entries = self.many.as_ref().map_or(&[][..], |many| &many.entries);
        entries.len().put(out);
        entries.iter().for_each(|entry| (entry.rank, entry.key).put(out));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let room = u32::take(input)?;
        let top: Option<(R, u32)> = Codec::take(input)?;
        let taken: Vec<(R, u32)> = Vec::take(input)?;
        let is_known = |(_, key): &(R, u32)| *key < room;
        let is_one = room <= 1 && !taken.is_empty();
        if room > KEY_LIMIT || is_one || !taken.iter().chain(&top).all(is_known) {
            return Err(input.malformed("queue"));
        }
        let entry = |(rank, key)| Entry { rank, key, mark: M::default() };
        let mut heap = Self { top: top.map_or_else(Entry::none, entry), many: None, room };
        if room > 1 {
            let mut places = vec![ABSENT; room as usize];
            for (place, (_, key)) in (0..).zip(&taken) {
                places[*key as usize] = place;
            }
            let mut entries = Vec::with_capacity(places.len());
            entries.extend(taken.into_iter().map(entry));
            heap.many = Some(Box::new(Many { entries, places }));
        }
        Ok(heap)
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
                    heap.set_marked(key, rank, 2 * key);
                    model.insert((rank, key));
                } else {
                    heap.remove(key);
                }
                prop_assert_eq!(heap.peek(), model.first().copied());
                prop_assert!(heap.peek().is_none_or(|(_, key)| heap.first_mark() == 2 * key));
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
