//! Device addresses: which are in use. A freed range is used again as late as possible, so that a
//! use after free meets an unmapped page.

use std::collections::BTreeMap;

/// Allocator of address ranges inside one reserved range.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    end: u64,
    /// Everything from here on was never used.
    fresh: u64,
    /// Freed ranges by start, coalesced.
    free: BTreeMap<u64, u64>,
    /// Where the last reuse ended.
    rover: u64,
}

impl AddressSpace {
    /// Manages `base..base + len`.
    #[must_use]
    pub(crate) fn new(base: u64, len: u64) -> Self {
        Self { end: base.saturating_add(len), fresh: base, free: BTreeMap::new(), rover: base }
    }

    /// A range of `len` bytes, or `None` when no gap is that long.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        if self.end - self.fresh >= len {
            let start = self.fresh;
            self.fresh += len;
            return Some(start);
        }
        let fits = |(start, free): (&u64, &u64)| (*free >= len).then_some((*start, *free));
        let (start, free) = self
            .free
            .range(self.rover..)
            .find_map(fits)
            .or_else(|| self.free.range(..self.rover).find_map(fits))?;
        self.free.remove(&start);
        if free > len {
            self.free.insert(start + len, free - len);
        }
        self.rover = start + len;
        Some(start)
    }

    /// Gives a range back.
    pub(crate) fn give_back(&mut self, start: u64, len: u64) {
        let mut start = start;
        let mut len = len;
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
            len += length;
        }
        if let Some(length) = self.free.remove(&(start + len)) {
            len += length;
        }
        self.free.insert(start, len);
    }
}
