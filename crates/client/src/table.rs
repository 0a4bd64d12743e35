//! Tables of live objects by handle.
//!
//! A look-up takes one uncontended read lock and no table-wide lock; slots are reused oldest first,
//! each time with the next generation, so that a stale handle is noticed.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::handle::{Handle, INDEX_MAX, Parts};

/// Slots of the first chunk; each further chunk has twice as many.
const FIRST_CHUNK: u32 = 64;
/// 64 · (2¹⁸ − 1) slots: more than any table may have.
const CHUNKS: usize = 18;

/// Index and generation of a slot's present owner: what the worker knows the object by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The table is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

#[derive(Debug)]
struct Slot<T> {
    generation: AtomicU32,
    value: RwLock<Option<Arc<T>>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { generation: AtomicU32::new(1), value: RwLock::new(None) }
    }
}

#[derive(Debug)]
struct Free {
    /// Slots at and above this were never used.
    fresh: u32,
    /// Slots to use again, oldest first.
    used: VecDeque<u32>,
}

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    limit: u32,
    free: Mutex<Free>,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
}

impl<T> Table<T> {
    /// A table for slots `1..limit`. Slot 0 stays free: the wire gives it a meaning of its own.
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit: limit.min(INDEX_MAX),
            free: Mutex::new(Free { fresh: 1, used: VecDeque::new() }),
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// Puts in what `make` builds from its own slot and handle.
    pub(crate) fn insert<H: Handle>(
        &self,
        ordinal: u8,
        make: impl FnOnce(SlotId, H) -> T,
    ) -> Result<(H, Arc<T>), Full> {
        let index = self.take_slot().ok_or(Full)?;
        let slot = self.slot_or_create(index).ok_or(Full)?;
        let generation = slot.generation.load(Ordering::Relaxed);
        let parts = Parts { kind: H::KIND as u8, ordinal, index, generation };
        let handle = H::from_raw(parts.raw());
        let value = Arc::new(make(SlotId { index, generation }, handle));
        *slot.value.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&value));
        Ok((handle, value))
    }

    /// The live object of `handle`.
    #[inline]
    pub(crate) fn get<H: Handle>(&self, handle: H) -> Option<Arc<T>> {
        self.with(handle, Arc::clone)
    }

    /// Looks at the live object of `handle` without taking a share of it.
    #[inline]
    pub(crate) fn with<H: Handle, R>(
        &self,
        handle: H,
        look: impl FnOnce(&Arc<T>) -> R,
    ) -> Option<R> {
        let parts = Parts::of(handle.raw());
        if parts.kind != H::KIND as u8 {
            return None;
        }
        let slot = self.slot(parts.index)?;
        let value = slot.value.read().unwrap_or_else(PoisonError::into_inner);
        if slot.generation.load(Ordering::Relaxed) != parts.generation {
            return None;
        }
        value.as_ref().map(look)
    }

    /// Takes the object out; its handle is stale from here on. The slot is used again only when the
    /// result is dropped: tell the worker before that, or it sees the next owner first.
    pub(crate) fn remove<H: Handle>(&self, handle: H) -> Option<Removed<'_, T>> {
        let parts = Parts::of(handle.raw());
        if parts.kind != H::KIND as u8 {
            return None;
        }
        let slot = self.slot(parts.index)?;
        let taken = {
            let mut value = slot.value.write().unwrap_or_else(PoisonError::into_inner);
            if slot.generation.load(Ordering::Relaxed) != parts.generation {
                return None;
            }
            let taken = value.take()?;
            slot.generation.store(next_generation(parts.generation), Ordering::Relaxed);
            taken
        };
        Some(Removed { value: taken, index: parts.index, free: &self.free })
    }

    /// Puts another object under a live handle.
    pub(crate) fn replace<H: Handle>(&self, handle: H, value: Arc<T>) {
        let parts = Parts::of(handle.raw());
        if let Some(slot) = self.slot(parts.index) {
            let mut held = slot.value.write().unwrap_or_else(PoisonError::into_inner);
            if held.is_some() && slot.generation.load(Ordering::Relaxed) == parts.generation {
                *held = Some(value);
            }
        }
    }

    /// All live objects, by slot.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let fresh = self.free.lock().unwrap_or_else(PoisonError::into_inner).fresh;
        (0..fresh)
            .filter_map(|index| {
                let slot = self.slot(index)?;
                slot.value.read().unwrap_or_else(PoisonError::into_inner).clone()
            })
            .collect()
    }

    fn take_slot(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.fresh < self.limit && free.used.len() < REUSE_AFTER {
            free.fresh += 1;
            return Some(free.fresh - 1);
        }
        free.used.pop_front()
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, offset, _) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    fn slot_or_create(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, offset, length) = place(index);
        let slots = self.chunks.get(chunk)?;
        slots.get_or_init(|| (0..length).map(|_| Slot::default()).collect()).get(offset)
    }
}

/// An object that was taken out. Its slot is free when this is dropped.
#[derive(Debug)]
pub(crate) struct Removed<'a, T> {
    value: Arc<T>,
    index: u32,
    free: &'a Mutex<Free>,
}

impl<T> Deref for Removed<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Removed<'_, T> {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).used.push_back(self.index);
    }
}

/// A freed slot waits behind this many others before it is used again.
const REUSE_AFTER: usize = 32;

/// Generations are 1 to 2³¹ − 1, so that a handle stays positive as a signed number.
fn next_generation(generation: u32) -> u32 {
    if generation >= u32::MAX >> 1 { 1 } else { generation + 1 }
}

/// Chunk of a slot, its offset in the chunk, and the chunk's length.
fn place(index: u32) -> (usize, usize, u32) {
    let shifted = index.saturating_add(FIRST_CHUNK);
    let chunk = shifted.ilog2() - FIRST_CHUNK.ilog2();
    let length = FIRST_CHUNK << chunk;
    let offset = shifted - length;
    (widen(chunk), widen(offset), length)
}

fn widen(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::handle::{Event, Stream};

    #[test]
    fn places_fill_the_chunks_without_gaps() {
        let mut expected = (0, 0);
        for index in 0..10_000 {
            let (chunk, offset, length) = place(index);
            if offset == 0 && index > 0 {
                expected = (expected.0 + 1, 0);
            }
            assert_eq!((chunk, offset), expected);
            assert!(offset < widen(length));
            expected.1 += 1;
        }
    }

    #[test]
    fn a_stale_handle_and_one_of_another_kind_find_nothing() {
        let table = Table::new(100);
        let (handle, _) = table.insert::<Event>(0, |_, _| 7).unwrap();
        assert_eq!(table.get(handle).as_deref(), Some(&7));
        assert_eq!(table.get(Stream::from_raw(handle.raw())), None);
        assert!(table.remove(handle).is_some());
        assert_eq!(table.get(handle), None);
        assert!(table.remove(handle).is_none());
    }

    #[test]
    fn a_full_table_says_so_and_recovers() {
        let table = Table::new(3);
        let (first, _) = table.insert::<Event>(0, |_, _| 1).unwrap();
        let _second = table.insert::<Event>(0, |_, _| 2).unwrap();
        assert_eq!(table.insert::<Event>(0, |_, _| 3).unwrap_err(), Full);
        table.remove(first).unwrap();
        let (third, _) = table.insert::<Event>(0, |_, _| 4).unwrap();
        assert_ne!(first, third);
        assert_eq!(table.get(first), None);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0_usize..50), 0..300)) {
            let table = Table::new(40);
            let mut model: BTreeMap<u64, usize> = BTreeMap::new();
            let mut dead: Vec<Event> = Vec::new();
            for (add, pick) in steps {
                if add {
                    match table.insert::<Event>(3, |_, _| pick) {
                        Ok((handle, _)) => { prop_assert!(model.insert(handle.raw(), pick).is_none()); }
                        Err(Full) => prop_assert_eq!(model.len(), 39),
                    }
                } else if let Some(&raw) = model.keys().nth(pick) {
                    let handle = Event::from_raw(raw);
                    let removed = table.remove(handle).map(|value| *value);
                    prop_assert_eq!(removed, model.remove(&raw));
                    dead.push(handle);
                }
                for (raw, value) in &model {
                    let found = table.get(Event::from_raw(*raw)).map(|value| *value);
                    prop_assert_eq!(found, Some(*value));
                }
                for handle in &dead {
                    prop_assert_eq!(table.get(*handle), None);
                }
            }
            prop_assert_eq!(table.all().len(), model.len());
        }
    }
}
