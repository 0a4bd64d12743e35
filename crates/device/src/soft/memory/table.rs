//! The private page table: device page → frame.

use std::collections::BTreeMap;

use crate::PAGE;

const PAGES_PER_CHUNK: u64 = 512;
const FRAME_BITS: u64 = (1 << 40) - 1;
const BYTES_SHIFT: u32 = 41;
const VALID: u64 = 1 << 63;

/// What a page translates to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The frame.
    pub(crate) frame: u64,
    /// Bytes from the start of the page that belong to the allocation.
    pub(crate) bytes: u64,
}

impl Entry {
    fn pack(self) -> u64 {
        VALID | (self.bytes << BYTES_SHIFT) | (self.frame & FRAME_BITS)
    }

    fn unpack(raw: u64) -> Option<Self> {
        (raw & VALID != 0)
            .then_some(Self { frame: raw & FRAME_BITS, bytes: (raw >> BYTES_SHIFT) & 0x1fff })
    }
}

/// A sparse table of 8-byte entries, in chunks of 512 pages (one page of table).
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    chunks: BTreeMap<u64, Box<[u64; 512]>>,
}

impl PageTable {
    /// The 512 aligned pages around `page`, if any of them was ever mapped.
    #[must_use]
    pub(crate) fn chunk(&self, page: u64) -> Option<Chunk<'_>> {
        let number = page / PAGES_PER_CHUNK;
        self.chunks.get(&number).map(|entries| Chunk { first: number * PAGES_PER_CHUNK, entries })
    }

    /// Maps a page.
    pub(crate) fn set(&mut self, page: u64, entry: Entry) {
        debug_assert!(entry.bytes <= PAGE, "an entry covers one page");
        let chunk = self.chunks.entry(page / PAGES_PER_CHUNK).or_insert_with(|| Box::new([0; 512]));
        chunk[index(page)] = entry.pack();
    }

    /// Unmaps pages.
    pub(crate) fn clear(&mut self, first: u64, count: u64) {
        for page in first..first.saturating_add(count) {
            if let Some(chunk) = self.chunks.get_mut(&(page / PAGES_PER_CHUNK)) {
                chunk[index(page)] = 0;
            }
        }
    }
}

/// A chunk of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    first: u64,
    entries: &'a [u64; 512],
}

impl Chunk<'_> {
    /// The entry of a page of this chunk.
    #[must_use]
    pub(crate) fn get(&self, page: u64) -> Option<Entry> {
        let index = usize::try_from(page.checked_sub(self.first)?).ok()?;
        self.entries.get(index).copied().and_then(Entry::unpack)
    }
}

fn index(page: u64) -> usize {
    usize::try_from(page % PAGES_PER_CHUNK).unwrap_or(0)
}
