//! Which ranges of a region are free: first fit with coalescing. Pure bookkeeping.

use std::collections::BTreeMap;

/// The free ranges of a region, by offset.
#[derive(Debug, Clone)]
pub(crate) struct Ranges {
    free: BTreeMap<usize, usize>,
    free_bytes: usize,
}

impl Ranges {
    /// A region of `len` free bytes.
    pub(crate) fn new(len: usize) -> Self {
        let free = if len == 0 { BTreeMap::new() } else { BTreeMap::from([(0, len)]) };
        Self { free, free_bytes: len }
    }

    /// Bytes that are free, in however many pieces.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Takes `len` bytes at a multiple of `align` (a power of two); `len` is not zero.
    pub(crate) fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let (start, size, at) = self.free.iter().find_map(|(&start, &size)| {
            let at = start.checked_next_multiple_of(align)?;
            let end = at.checked_add(len)?;
            (end <= start + size).then_some((start, size, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let (end, region_end) = (at + len, start + size);
        if region_end > end {
            self.free.insert(end, region_end - end);
        }
        self.free_bytes -= len;
        Some(at)
    }

    /// Gives back what `take` gave.
    pub(crate) fn give(&mut self, at: usize, len: usize) {
        self.free_bytes += len;
        let (mut start, mut size) = (at, len);
        if let Some((&before, &before_len)) = self.free.range(..at).next_back()
            && before + before_len == at
        {
            self.free.remove(&before);
            (start, size) = (before, before_len + size);
        }
        if let Some(after_len) = self.free.remove(&(at + len)) {
            size += after_len;
        }
        self.free.insert(start, size);
    }
}
