//! Free ranges of addresses, and the sub-allocator over them. Pure: what backs a chunk is the
//! caller's.

use std::collections::BTreeMap;

/// Every allocation starts at a multiple of this, in bytes.
const ALIGNMENT: u64 = 512;

/// Disjoint free ranges, coalesced: start → bytes.
#[derive(Debug, Default)]
pub(super) struct Extents(BTreeMap<u64, u64>);

impl Extents {
    /// One free range.
    pub(super) fn of(start: u64, bytes: u64) -> Self {
        Self(BTreeMap::from([(start, bytes)]))
    }

    /// Takes `bytes` from the first range that has them.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&start, &length) = self.0.iter().find(|(_, length)| **length >= bytes)?;
        self.0.remove(&start);
        if length > bytes {
            self.0.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Puts a range back that is disjoint from the free ones.
    pub(super) fn put(&mut self, start: u64, bytes: u64) {
        let (mut start, mut bytes) = (start, bytes);
        if let Some((&before, &length)) = self.0.range(..start).next_back() {
            debug_assert!(before + length <= start, "ranges are disjoint");
            if before + length == start {
                self.0.remove(&before);
                (start, bytes) = (before, length + bytes);
            }
        }
        if let Some(length) = self.0.remove(&(start + bytes)) {
            bytes += length;
        }
        self.0.insert(start, bytes);
    }
}

/// A piece of device memory that the driver gave, cut into allocations.
#[derive(Debug)]
struct Chunk<T> {
    bytes: u64,
    free: Extents,
    used_bytes: u64,
    backing: T,
}

/// Allocations in chunks, each backed by a `T`.
#[derive(Debug)]
pub(super) struct Heap<T> {
    chunks: BTreeMap<u64, Chunk<T>>,
    allocations: BTreeMap<u64, u64>,
}

impl<T> Heap<T> {
    /// Without memory.
    pub(super) fn new() -> Self {
        Self { chunks: BTreeMap::new(), allocations: BTreeMap::new() }
    }

    /// Allocates in the chunks that are there.
    pub(super) fn alloc(&mut self, bytes: u64) -> Option<u64> {
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT)?;
        for chunk in self.chunks.values_mut() {
            if chunk.bytes - chunk.used_bytes < rounded {
                continue;
            }
            if let Some(address) = chunk.free.take(rounded) {
                chunk.used_bytes += rounded;
                self.allocations.insert(address, bytes);
                return Some(address);
            }
        }
        None
    }

    /// Adds an empty chunk.
    pub(super) fn add(&mut self, base: u64, bytes: u64, backing: T) {
        let free = Extents::of(base, bytes);
        self.chunks.insert(base, Chunk { bytes, free, used_bytes: 0, backing });
    }

    /// Frees an allocation. `None`: there is none at this address; else the chunk that became
    /// empty by it, which leaves the heap.
    pub(super) fn free(&mut self, address: u64) -> Option<Option<(u64, u64, T)>> {
        let bytes = self.allocations.remove(&address)?;
        let rounded = bytes.next_multiple_of(ALIGNMENT);
        let (&base, chunk) = self.chunks.range_mut(..=address).next_back()?;
        chunk.free.put(address, rounded);
        chunk.used_bytes -= rounded;
        if chunk.used_bytes > 0 {
            return Some(None);
        }
        let chunk = self.chunks.remove(&base)?;
        Some(Some((base, chunk.bytes, chunk.backing)))
    }

    /// What backs each chunk, in the order of their addresses.
    pub(super) fn backings(&self) -> impl Iterator<Item = &T> {
        self.chunks.values().map(|chunk| &chunk.backing)
    }

    /// The same, to change it, with where each chunk begins.
    pub(super) fn backings_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.chunks.iter_mut().map(|(base, chunk)| (*base, &mut chunk.backing))
    }

    /// Where the chunk begins that holds an address, and what backs it.
    pub(super) fn backing_at(&self, address: u64) -> Option<(u64, &T)> {
        let (start, chunk) = self.chunks.range(..=address).next_back()?;
        (address - start < chunk.bytes).then_some((*start, &chunk.backing))
    }

    /// The same, to change it.
    pub(super) fn backing_at_mut(&mut self, address: u64) -> Option<(u64, &mut T)> {
        let (start, chunk) = self.chunks.range_mut(..=address).next_back()?;
        (address - start < chunk.bytes).then_some((*start, &mut chunk.backing))
    }

    /// Takes all chunks out, with everything that is allocated in them.
    pub(super) fn take_chunks(&mut self) -> impl Iterator<Item = (u64, u64, T)> + use<T> {
        self.allocations.clear();
        let chunks = std::mem::take(&mut self.chunks);
        chunks.into_iter().map(|(base, chunk)| (base, chunk.bytes, chunk.backing))
    }

    /// Whether a range lies in one allocation.
    pub(super) fn contains(&self, address: u64, bytes: u64) -> bool {
        let below = self.allocations.range(..=address).next_back();
        address
            .checked_add(bytes)
            .is_some_and(|end| below.is_some_and(|(start, length)| end <= start + length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_allocations_share_a_chunk_and_the_last_takes_it_along() {
        let mut heap = Heap::new();
        assert_eq!(heap.alloc(1), None);
        heap.add(0x1000, 4096, 'a');
        let first = heap.alloc(1).unwrap();
        let second = heap.alloc(513).unwrap();
        assert_eq!((first, second), (0x1000, 0x1200));
        assert!(heap.contains(second, 513) && !heap.contains(second, 514));
        assert!(!heap.contains(second, u64::MAX));
        assert_eq!(heap.free(first), Some(None));
        assert_eq!(heap.free(first), None, "freed twice");
        assert_eq!(heap.alloc(512), Some(first), "a hole is used again");
        assert_eq!(heap.free(first), Some(None));
        assert_eq!(heap.free(second), Some(Some((0x1000, 4096, 'a'))));
        assert_eq!(heap.alloc(1), None);
    }

    #[test]
    fn taken_chunks_leave_nothing() {
        let mut heap = Heap::new();
        heap.add(0x1000, 4096, 'a');
        let address = heap.alloc(8).unwrap();
        assert_eq!(heap.take_chunks().collect::<Vec<_>>(), [(0x1000, 4096, 'a')]);
        assert!(!heap.contains(address, 8) && heap.alloc(8).is_none());
    }

    #[test]
    fn allocations_never_overlap() {
        let mut heap = Heap::new();
        heap.add(0, 64 << 10, ());
        heap.add(1 << 20, 64 << 10, ());
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut seed = 1_u64;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = seed >> 33;
            if draw.is_multiple_of(3) && live.len() > 1 {
                let at = usize::try_from(draw / 3).unwrap() % live.len();
                let (address, _) = live.swap_remove(at);
                if let Some((base, bytes, ())) = heap.free(address).unwrap() {
                    heap.add(base, bytes, ());
                }
                continue;
            }
            let bytes = draw % 9000 + 1;
            let Some(address) = heap.alloc(bytes) else { continue };
            assert_eq!(address % ALIGNMENT, 0);
            let apart = |(other, length): &(u64, u64)| {
                address + bytes <= *other || other + length <= address
            };
            assert!(live.iter().all(apart), "{address:#x}+{bytes} overlaps");
            live.push((address, bytes));
        }
        for (address, _) in live {
            assert!(heap.free(address).is_some());
        }
        assert!(heap.chunks.is_empty());
    }
}
