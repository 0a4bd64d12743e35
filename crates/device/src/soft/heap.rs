//! The heap of kernels: what their `malloc` and `free` manage.
//!
//! Small objects come from chunks of one size each, large ones are allocations of their own. All of
//! it counts in the vGPU's memory, and what stands in the books lies outside of the reach of
//! kernels. As on a GPU the heap lives as long as the session; chunks are used again, not returned.

use std::collections::BTreeMap;

use super::memory::Memory;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = 64 << 10;
/// Sizes of small objects are powers of two from this one on; also the alignment of all.
const OBJECT_BYTES_MIN: u64 = 16;
/// The largest small object in bytes.
const OBJECT_BYTES_MAX: u64 = 8 << 10;
/// How many sizes of small objects there are.
const SIZES: usize = (OBJECT_BYTES_MAX / OBJECT_BYTES_MIN).ilog2() as usize + 1;

/// What lies at an address that the heap got from the device's memory.
#[derive(Debug)]
enum Piece {
    /// Small objects of one size.
    Chunk(Chunk),
    /// One object.
    Large,
}

#[derive(Debug)]
struct Chunk {
    object_bytes: u64,
    /// A bit for each object that is in use.
    used: Vec<u64>,
    free: u64,
}

impl Chunk {
    fn new(object_bytes: u64) -> Self {
        let objects = CHUNK_BYTES / object_bytes;
        let mut used = vec![0; usize::try_from(objects.div_ceil(64)).unwrap_or(0)];
        // Bits behind the last object are never free.
        if objects < 64 {
            used.fill(u64::MAX << objects);
        }
        Self { object_bytes, used, free: objects }
    }

    /// The offset of an object that is free no more.
    fn take(&mut self) -> Option<u64> {
        let (word, bits) = self.used.iter_mut().enumerate().find(|(_, bits)| **bits != u64::MAX)?;
        let bit = bits.trailing_ones();
        *bits |= 1 << bit;
        self.free -= 1;
        Some((word as u64 * 64 + u64::from(bit)) * self.object_bytes)
    }

    /// Frees the object at an offset; false if there is none.
    fn give_back(&mut self, offset: u64) -> bool {
        let object = offset / self.object_bytes;
        let word = usize::try_from(object / 64).unwrap_or(usize::MAX);
        let bit = 1 << (object % 64);
        let Some(bits) = self.used.get_mut(word) else { return false };
        if !offset.is_multiple_of(self.object_bytes) || *bits & bit == 0 {
            return false;
        }
        *bits &= !bit;
        self.free += 1;
        true
    }
}

/// The heap of a session's kernels.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    pieces: BTreeMap<u64, Piece>,
    /// Chunks with a free object, by size.
    open: [Vec<u64>; SIZES],
}

/// What freeing an address did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// An object is free.
    Object,
    /// A mapping is gone, and with it every cached translation.
    Mapping,
    /// The heap has no such object.
    Unknown,
}

impl Heap {
    /// The address of `bytes` (at least one object's), aligned to 16; `None` if there is no memory.
    pub(crate) fn take(&mut self, memory: &mut Memory, bytes: u64) -> Option<u64> {
        if bytes > OBJECT_BYTES_MAX {
            let address = memory.alloc(bytes).ok()?;
            self.pieces.insert(address, Piece::Large);
            return Some(address);
        }
        let object_bytes = bytes.max(OBJECT_BYTES_MIN).next_power_of_two();
        let size = (object_bytes / OBJECT_BYTES_MIN).ilog2() as usize;
        let open = self.open.get_mut(size)?;
        while let Some(base) = open.last() {
            if let Some(Piece::Chunk(chunk)) = self.pieces.get_mut(base)
                && let Some(offset) = chunk.take()
            {
                let address = base + offset;
                if chunk.free == 0 {
                    open.pop();
                }
                return Some(address);
            }
            open.pop();
        }
        let base = memory.alloc(CHUNK_BYTES).ok()?;
        let mut chunk = Chunk::new(object_bytes);
        let offset = chunk.take()?;
        open.push(base);
        self.pieces.insert(base, Piece::Chunk(chunk));
        Some(base + offset)
    }

    /// Frees what [`Self::take`] gave.
    pub(crate) fn give_back(&mut self, memory: &mut Memory, address: u64) -> Freed {
        let Some((&base, piece)) = self.pieces.range_mut(..=address).next_back() else {
            return Freed::Unknown;
        };
        match piece {
            Piece::Chunk(chunk) => {
                let was_full = chunk.free == 0;
                if !chunk.give_back(address - base) {
                    return Freed::Unknown;
                }
                let size = (chunk.object_bytes / OBJECT_BYTES_MIN).ilog2() as usize;
                if let Some(open) = self.open.get_mut(size).filter(|_| was_full) {
                    open.push(base);
                }
                Freed::Object
            }
            Piece::Large if base == address => {
                self.pieces.remove(&base);
                // The program may have freed it by a call of the driver already.
                if memory.free(base).is_ok() { Freed::Mapping } else { Freed::Unknown }
            }
            Piece::Large => Freed::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalFrames;
    use crate::soft::memory::{FrameStore, MemoryConfig};

    #[test]
    fn a_chunk_that_fills_again_and_again_is_listed_once() {
        let bytes = 4 << 20;
        let mut memory = Memory::new(MemoryConfig {
            store: FrameStore::local(bytes).unwrap(),
            source: Box::new(LocalFrames::new(bytes)),
            base: 1 << 40,
            len: 1 << 30,
            window: None,
            exact_bounds: false,
        });
        let mut heap = Heap::default();
        let mut objects: Vec<u64> =
            (0..8).map(|_| heap.take(&mut memory, OBJECT_BYTES_MAX).unwrap()).collect();
        let open = |heap: &Heap| heap.open.iter().map(Vec::len).sum::<usize>();
        assert_eq!(open(&heap), 0, "the chunk is full");
        for _ in 0..100 {
            let freed = objects.pop().unwrap();
            assert_eq!(heap.give_back(&mut memory, freed), Freed::Object);
            assert_eq!(open(&heap), 1);
            assert_eq!(heap.take(&mut memory, OBJECT_BYTES_MAX), Some(freed));
            objects.push(freed);
        }
        for object in objects {
            assert_eq!(heap.give_back(&mut memory, object), Freed::Object);
        }
        assert_eq!(open(&heap), 1);
    }
}
