//! Payloads that do not fit into a record.
//!
//! The client allocates blocks; the allocator's state is private to it. A block that a command
//! hands to the worker comes back through its release word. The worker trusts nothing of a block
//! but what it checks: the range lies in the arena, the release word exists.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::cells::Cells;
use crate::lane::Violation;
use crate::map::{MapError, SharedMemory};
use crate::ranges::Ranges;
use crate::segment::{ARENA_BLOCKS, Segment};
use crate::span::SharedSpan;
use crate::sync::{AtomicU32, Ordering};
use crate::wait::{Patience, Unready, WakeFlag};

/// Blocks start at multiples of this, in bytes.
const BLOCK_ALIGN: usize = 64;

/// How a command names a block of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaRef {
    /// The block's release word, below [`ARENA_BLOCKS`].
    pub block: u32,
    /// Where the bytes start, from the start of the arena.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Why a block could not be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// No block of that size can ever be had.
    #[error("block of {0} bytes is larger than the arena")]
    TooLarge(usize),
    /// The arena stayed full until the deadline.
    #[error("arena is full")]
    Full,
    /// The worker died while the arena was full.
    #[error("worker died while the arena was full")]
    PeerLost,
}

/// The client's allocator over the arena.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memory: Arc<SharedMemory>,
    base: usize,
    len: usize,
    /// Written 0 by the client before it hands a block over, 1 by the worker when it is done with
    /// it.
    releases: Cells<AtomicU32>,
    room: WakeFlag,
    state: Mutex<State>,
    /// At most one thread sleeps on `room`; the others queue here.
    turn: Mutex<()>,
    /// How many wait for room, queued or asleep.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct State {
    ranges: Ranges,
    spare: Vec<u32>,
    handed_over: Vec<Taken>,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    block: u32,
    offset: usize,
    /// Rounded up to the alignment.
    len: usize,
}

impl State {
    fn give(&mut self, taken: Taken) {
        self.ranges.give(taken.offset, taken.len);
        self.spare.push(taken.block);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back what the worker released.
    fn reap(&self, state: &mut State) {
        let mut i = 0;
        while let Some(&taken) = state.handed_over.get(i) {
            // SYNC: acquires the worker's last use of the block.
            let released = self.releases[taken.block as usize].load(Ordering::Acquire) != 0;
            if released {
                state.handed_over.swap_remove(i);
                state.give(taken);
            } else {
                i += 1;
            }
        }
    }

    fn try_take(&self, len: usize) -> Option<Taken> {
        let mut state = self.state();
        if state.spare.is_empty() {
            self.reap(&mut state);
        }
        let offset = state.ranges.take(len, BLOCK_ALIGN).or_else(|| {
            self.reap(&mut state);
            state.ranges.take(len, BLOCK_ALIGN)
        })?;
        let Some(block) = state.spare.pop() else {
            state.ranges.give(offset, len);
            return None;
        };
        self.releases[block as usize].store(0, Ordering::Relaxed);
        Some(Taken { block, offset, len })
    }
}

impl Arena {
    pub(crate) fn new(segment: &Segment) -> Result<Self, MapError> {
        let len = segment.arena_len();
        let state = State {
            ranges: Ranges::new(len),
            spare: (0..ARENA_BLOCKS).rev().collect(),
            handed_over: Vec::new(),
        };
        Ok(Self(Arc::new(Shared {
            memory: Arc::clone(segment.memory()),
            base: Segment::arena_offset(),
            len,
            releases: segment.releases()?,
            room: segment.arena_room()?,
            state: Mutex::new(state),
            turn: Mutex::new(()),
            waiting: AtomicUsize::new(0),
        })))
    }

    /// The arena's size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Never: a segment has an arena.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Bytes that are free or were released, in however many pieces.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        let mut state = self.0.state();
        self.0.reap(&mut state);
        state.ranges.free_bytes()
    }

    /// Allocates a block of `len` bytes, waiting while the arena is full. Its content is arbitrary.
    ///
    /// # Errors
    /// [`ArenaError`] when it cannot be had within `patience`.
    pub fn alloc(&self, len: usize, patience: &Patience<'_>) -> Result<Block, ArenaError> {
        let rounded = self.rounded(len)?;
        let taken = self.0.try_take(rounded).map_or_else(|| self.wait(rounded, patience), Ok)?;
        Ok(Block { arena: Arc::clone(&self.0), taken, len, handed_over: false })
    }

    /// Allocates a block if there is room now: for whoever holds other blocks and must not wait.
    ///
    /// # Errors
    /// [`ArenaError::TooLarge`] or [`ArenaError::Full`].
    pub fn try_alloc(&self, len: usize) -> Result<Block, ArenaError> {
        let taken = self.0.try_take(self.rounded(len)?).ok_or(ArenaError::Full)?;
        Ok(Block { arena: Arc::clone(&self.0), taken, len, handed_over: false })
    }

    fn rounded(&self, len: usize) -> Result<usize, ArenaError> {
        len.max(1)
            .checked_next_multiple_of(BLOCK_ALIGN)
            .filter(|rounded| *rounded <= self.0.len)
            .ok_or(ArenaError::TooLarge(len))
    }

    fn wait(&self, rounded: usize, patience: &Patience<'_>) -> Result<Taken, ArenaError> {
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        // Whoever sleeps for a block of its own gives its place up.
        self.0.room.wake();
        let turn = self.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.0.room.wait(patience, || self.0.try_take(rounded));
        drop(turn);
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        taken.map_err(|unready| match unready {
            Unready::TimedOut => ArenaError::Full,
            Unready::PeerLost => ArenaError::PeerLost,
        })
    }
}

/// A block of the arena that the client owns. Dropping it frees it.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Shared>,
    taken: Taken,
    len: usize,
    handed_over: bool,
}

impl Block {
    /// The size asked for, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes were asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block's bytes.
    ///
    /// # Errors
    /// Never for a block of an arena.
    pub fn span(&self) -> Result<SharedSpan, MapError> {
        self.arena.memory.span(self.arena.base + self.taken.offset, self.len)
    }

    /// How a command names the block while the client keeps it, to read the answer from it.
    #[must_use]
    pub fn reference(&self) -> ArenaRef {
        ArenaRef { block: self.taken.block, offset: self.taken.offset as u64, len: self.len as u64 }
    }

    /// Whether the worker has released the block that a command named by [`Block::reference`]; then
    /// the worker's bytes can be read.
    #[must_use]
    pub fn is_released(&self) -> bool {
        // SYNC: acquires the worker's last use of the block, as in `Shared::reap`.
        let word = self.arena.releases.get(self.taken.block as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Sleeps until the worker has released it, within `patience`; whether it has. Gives up where
    /// another thread sleeps or waits for room in the arena: one alone is woken by releases.
    #[must_use]
    pub fn await_release(&self, patience: &Patience<'_>) -> bool {
        let Ok(_turn) = self.arena.turn.try_lock() else { return self.is_released() };
        let is_wanted = || self.arena.waiting.load(Ordering::SeqCst) > 0;
        let ready = || (self.is_released() || is_wanted()).then_some(());
        self.arena.room.wait(patience, ready).is_ok() && self.is_released()
    }

    /// Hands the block to the worker, which releases it. The command that names it must follow.
    #[must_use]
    pub fn hand_over(mut self) -> ArenaRef {
        self.handed_over = true;
        self.reference()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = self.arena.state();
        if self.handed_over {
            state.handed_over.push(self.taken);
            return;
        }
        state.give(self.taken);
        drop(state);
        self.arena.room.wake();
    }
}

/// The worker's view of the arena.
#[derive(Debug, Clone)]
pub struct WorkerArena {
    memory: Arc<SharedMemory>,
    base: usize,
    len: usize,
    releases: Cells<AtomicU32>,
    room: WakeFlag,
    /// Of a session whose client is elsewhere.
    news: Option<WakeFlag>,
}

impl WorkerArena {
    pub(crate) fn new(segment: &Segment) -> Result<Self, MapError> {
        Ok(Self {
            memory: Arc::clone(segment.memory()),
            base: Segment::arena_offset(),
            len: segment.arena_len(),
            releases: segment.releases()?,
            room: segment.arena_room()?,
            news: segment.news()?,
        })
    }

    /// The bytes that a command names. The client may write them at any time: copy, then look.
    ///
    /// # Errors
    /// [`Violation::Arena`] when they do not all lie in the arena.
    pub fn span(&self, named: &ArenaRef) -> Result<SharedSpan, Violation> {
        let offset = usize::try_from(named.offset).map_err(|_| Violation::Arena)?;
        let len = usize::try_from(named.len).map_err(|_| Violation::Arena)?;
        let end = offset.checked_add(len).ok_or(Violation::Arena)?;
        if end > self.len || named.block as usize >= self.releases.len() {
            return Err(Violation::Arena);
        }
        self.memory.span(self.base + offset, len).map_err(|_| Violation::Arena)
    }

    /// Gives a block back that the client handed over.
    ///
    /// # Errors
    /// [`Violation::Arena`] when there is no such block.
    pub fn release(&self, named: &ArenaRef) -> Result<(), Violation> {
        let word = self.releases.get(named.block as usize).ok_or(Violation::Arena)?;
        // SYNC: the worker is done with the block; pairs with the acquire in `Shared::reap`.
        word.store(1, Ordering::Release);
        self.room.wake();
        if let Some(news) = &self.news {
            news.wake();
        }
        Ok(())
    }

    /// Notes that a block is handed over: its word is 0 until the worker has released it.
    pub(crate) fn lend(&self, block: u32) -> Result<(), Violation> {
        let word = self.releases.get(block as usize).ok_or(Violation::Arena)?;
        word.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the worker has released a block, acquiring what it did with it.
    pub(crate) fn is_released(&self, block: u32) -> bool {
        let word = self.releases.get(block as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }
}
