//! The pinned window: shared memory at the same address on both sides.
//!
//! The client allocates from it; its pointers mean the same bytes to the worker, so copies from and
//! to pinned memory cross no border. The allocator's state is private to the client.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::map::{MapError, PAGE, SharedMemory};
use crate::ranges::Ranges;
use crate::span::SharedSpan;

/// The client's allocator over the pinned window.
#[derive(Debug)]
pub struct Window {
    memory: Arc<SharedMemory>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ranges: Ranges,
    /// Length asked for, by offset.
    live: BTreeMap<usize, usize>,
}

impl Window {
    /// An empty window over the whole of `memory`.
    #[must_use]
    pub fn new(memory: Arc<SharedMemory>) -> Self {
        let all = 0..memory.len();
        Self::of(memory, all)
    }

    /// An empty window over these bytes of `memory`, from one page's start to another's or the end.
    #[must_use]
    pub fn of(memory: Arc<SharedMemory>, bytes: Range<usize>) -> Self {
        debug_assert!(bytes.start.is_multiple_of(PAGE), "a page's start");
        let mut ranges = Ranges::new(0);
        if !bytes.is_empty() {
            ranges.give(bytes.start, bytes.len());
        }
        Self { memory, state: Mutex::new(State { ranges, live: BTreeMap::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates `len` zeroed bytes in pages of their own; their address, or `None` when there is
    /// no room.
    #[must_use]
    pub fn alloc(&self, len: usize) -> Option<usize> {
        let rounded = len.checked_next_multiple_of(PAGE).filter(|len| *len > 0)?;
        let mut state = self.state();
        let offset = state.ranges.take(rounded, PAGE)?;
        state.live.insert(offset, len);
        Some(self.memory.address() + offset)
    }

    /// Frees the allocation at `address` and gives its pages back; its length, or `None` when there
    /// is none.
    #[must_use]
    pub fn free(&self, address: usize) -> Option<usize> {
        let offset = address.checked_sub(self.memory.address())?;
        let mut state = self.state();
        let len = state.live.remove(&offset)?;
        let rounded = len.next_multiple_of(PAGE);
        // Pages that the system keeps would be handed out again with their old content.
        let discarded = self.memory.discard(offset, rounded);
        if discarded.is_err() {
            let cleared = self.memory.span(offset, rounded).and_then(|span| span.fill(0));
            debug_assert!(cleared.is_ok(), "an allocation lies in its writable window");
        }
        state.ranges.give(offset, rounded);
        Some(len)
    }

    /// The allocation that contains `address`: its start address and length.
    #[must_use]
    pub fn find(&self, address: usize) -> Option<(usize, usize)> {
        let offset = address.checked_sub(self.memory.address())?;
        let state = self.state();
        let (&start, &len) = state.live.range(..=offset).next_back()?;
        (offset < start + len).then(|| (self.memory.address() + start, len))
    }

    /// Whether `address` lies in the window at all: one comparison, no lock.
    #[must_use]
    pub fn contains(&self, address: usize) -> bool {
        address.checked_sub(self.memory.address()).is_some_and(|offset| offset < self.memory.len())
    }

    /// Bytes that are free, in however many pieces.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.state().ranges.free_bytes()
    }

    /// The window's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }
}

impl SharedMemory {
    /// The bytes at `address` of this process, when they all lie in this mapping: how a worker
    /// turns a pinned pointer of its client into bytes.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when they do not.
    pub fn span_at(self: &Arc<Self>, address: usize, len: usize) -> Result<SharedSpan, MapError> {
        let offset = address.checked_sub(self.address()).ok_or(MapError::OutOfBounds)?;
        self.span(offset, len)
    }
}
