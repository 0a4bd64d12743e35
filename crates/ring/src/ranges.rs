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

// Plain bookkeeping: nothing for Miri to find, and hours for it to run.
#[cfg(all(test, not(miri)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Take {
            len: usize,
            align: usize,
        },
        /// Gives the allocation of this rank back.
        Give(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let take =
            (1..600_usize, 0..8_u32).prop_map(|(len, bits)| Step::Take { len, align: 1 << bits });
        let give = (0..64_usize).prop_map(Step::Give);
        prop::collection::vec(prop_oneof![take, give], 0..200)
    }

    proptest! {
        #[test]
        fn allocations_are_disjoint_and_everything_returns(steps in steps()) {
            const LEN: usize = 4000;
            let mut ranges = Ranges::new(LEN);
            let mut live: Vec<(usize, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take { len, align } => {
                        let Some(at) = ranges.take(len, align) else { continue };
                        prop_assert!(at % align == 0 && at + len <= LEN);
                        let apart = |&(other, size): &(usize, usize)| other + size <= at || at + len <= other;
                        prop_assert!(live.iter().all(apart));
                        live.push((at, len));
                    }
                    Step::Give(rank) if !live.is_empty() => {
                        let (at, len) = live.swap_remove(rank % live.len());
                        ranges.give(at, len);
                    }
                    Step::Give(_) => {}
                }
                let used: usize = live.iter().map(|(_, len)| len).sum();
                prop_assert_eq!(ranges.free_bytes(), LEN - used);
            }
            for (at, len) in live {
                ranges.give(at, len);
            }
            // Coalesced again: the whole region can be had at once.
            prop_assert_eq!(ranges.take(LEN, 1), Some(0));
        }
    }
}
