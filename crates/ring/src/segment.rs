//! The layout of a session's segment.
//!
//! The layout follows from the segment's size and the constants here alone. The header repeats it
//! so that a peer built from another version notices; no offset is ever taken from shared memory.

use std::sync::Arc;

use thiserror::Error;

use crate::answer::{ANSWER_SLOTS, AnswerWords, MAX_ANSWER};
use crate::cells::{Cell, Cells};
use crate::lane::{LANE_SLOTS, LaneWords, SLOT_WORDS};
use crate::map::{Access, MapError, MemoryFile, PAGE, SharedMemory};
use crate::serial;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wait::WakeFlag;

/// Lanes of a session.
pub const LANES: usize = 16;
/// Progress words of a session: one per stream or event.
pub const PROGRESS_WORDS: usize = 4096;
/// Notice words of a session.
pub const NOTICE_WORDS: usize = 16;
/// Blocks of the arena that may be in use at once.
pub const ARENA_BLOCKS: u32 = 4096;
/// The arena's size in bytes unless the daemon is configured otherwise.
pub const ARENA_BYTES: usize = 64 << 20;

/// "weftring" in ASCII, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"weftring");
/// Raised with every change of the layout.
pub const LAYOUT_VERSION: u32 = 3;

const LINE: usize = 64;

// The header page. Words with different writers lie in different lines.
const TICKET: usize = LINE;
const LANES_USED: usize = 2 * LINE;
const DOORBELL: usize = 3 * LINE;
const WORKER_LOST: usize = 4 * LINE;
// Beside it, because a client looks at both before it submits.
/// Which session of a reused place the segment is.
const SERIAL: usize = WORKER_LOST + 4;
const BOOSTED: usize = WORKER_LOST + 8;
const WAKING: usize = WORKER_LOST + 12;
const WORKER_PROCESSOR: usize = WORKER_LOST + 16;
// Beside the count of lanes, which the worker looks at anyway.
const CLIENT_PROCESSOR: usize = LANES_USED + 8;
const ARENA_ROOM: usize = 5 * LINE;
const NOTICES: usize = 6 * LINE;
const NEWS: usize = 8 * LINE;
/// Written once, before the worker opens the segment.
const RELAYED: usize = 9 * LINE;
/// The page's second half: a word per answer slot.
const WAITING: usize = PAGE - ANSWER_SLOTS as usize * 8;
const _: () = assert!(NOTICES + NOTICE_WORDS * 8 <= NEWS && RELAYED + LINE <= WAITING);

/// Head and room flag, a line each.
const LANE_CONTROL: usize = 2 * LINE;
const LANE_BYTES: usize = LANE_SLOTS * SLOT_WORDS * 8;
/// 16 bytes of control words before the answer's bytes, rounded up to lines.
const ANSWER_CONTROL: usize = 16;
const ANSWER_STRIDE: usize = (ANSWER_CONTROL + MAX_ANSWER).next_multiple_of(LINE);

const LANE_CONTROLS: usize = PAGE;
const ANSWERS: usize = (LANE_CONTROLS + LANES * LANE_CONTROL).next_multiple_of(PAGE);
const PROGRESS: usize = (ANSWERS + ANSWER_SLOTS as usize * ANSWER_STRIDE).next_multiple_of(PAGE);
const RELEASES: usize = (PROGRESS + PROGRESS_WORDS * 8).next_multiple_of(PAGE);
const LANE_SLOTS_AT: usize = (RELEASES + ARENA_BLOCKS as usize * 4).next_multiple_of(PAGE);
const ARENA: usize = (LANE_SLOTS_AT + LANES * LANE_BYTES).next_multiple_of(PAGE);

/// Why a segment could not be used.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// Its memory could not be created or mapped.
    #[error("segment memory")]
    Map(#[from] MapError),
    /// It is not a segment, or one of another layout.
    #[error("segment has layout version {found}, expected {LAYOUT_VERSION}")]
    Layout {
        /// The version found; 0 when it is no segment at all.
        found: u32,
    },
    /// It is too small to hold an arena.
    #[error("segment of {0} bytes has no arena")]
    TooSmall(usize),
}

/// Why a session is over, as its client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Loss {
    /// Its worker is gone.
    Worker = 1,
    /// An administrator stopped the node.
    NodeStopped = 2,
    /// Its vGPU was removed.
    VgpuRemoved = 3,
    /// Its device was taken out of service.
    DeviceWithdrawn = 4,
    /// Its device failed.
    DeviceFailed = 5,
}

/// A mapped segment: hands out its parts to the two sides.
#[derive(Debug, Clone)]
pub struct Segment {
    memory: Arc<SharedMemory>,
}

impl Segment {
    /// The size in bytes of a segment with an arena of `arena_bytes`.
    #[must_use]
    pub fn size(arena_bytes: usize) -> usize {
        ARENA.saturating_add(arena_bytes)
    }

    /// Creates the memory file of a session. The daemon does this and passes the file to both
    /// sides.
    ///
    /// # Errors
    /// [`SegmentError::Map`] when the system refuses.
    pub fn create(arena_bytes: usize) -> Result<MemoryFile, SegmentError> {
        let file = MemoryFile::create("weft-segment", Self::size(arena_bytes.max(PAGE)))?;
        let memory = file.map(Access::ReadWrite)?;
        Self::format(&memory)?;
        Ok(file)
    }

    /// Makes zeroed memory a segment: a part of a larger file, say. Where segments of other
    /// sessions were before, `serial` is not theirs: a client that was left over takes its session
    /// for lost.
    ///
    /// # Errors
    /// [`SegmentError`] when it is too small or read-only.
    pub fn create_in(memory: Arc<SharedMemory>, serial: u32) -> Result<Self, SegmentError> {
        Self::renew(&memory, serial)?;
        Self::format(&memory)?;
        Self::open(memory)
    }

    /// Says, before memory is zeroed for another session, that it is no longer the earlier one's: a
    /// client that was left over takes nothing that it finds there for its own.
    ///
    /// # Errors
    /// [`MapError`] when it is too small or read-only.
    pub fn renew(memory: &Arc<SharedMemory>, serial: u32) -> Result<(), MapError> {
        serial::renew(&*memory.cell::<AtomicU32>(SERIAL)?, serial);
        Ok(())
    }

    /// A segment in this process's anonymous memory: for tests and benchmarks.
    ///
    /// # Errors
    /// [`SegmentError::Map`] when the system refuses.
    pub fn anonymous(arena_bytes: usize) -> Result<Self, SegmentError> {
        Self::create_in(SharedMemory::anonymous(Self::size(arena_bytes.max(PAGE)))?, 0)
    }

    /// Views mapped memory as a segment.
    ///
    /// # Errors
    /// [`SegmentError`] when it is too small or has another layout.
    pub fn open(memory: Arc<SharedMemory>) -> Result<Self, SegmentError> {
        if memory.len() <= ARENA {
            return Err(SegmentError::TooSmall(memory.len()));
        }
        let segment = Self { memory };
        let magic = segment.memory.cell::<AtomicU64>(0)?.load(Ordering::Acquire);
        let version = segment.memory.cell::<AtomicU32>(8)?.load(Ordering::Acquire);
        let found = if magic == MAGIC { version } else { 0 };
        if found == LAYOUT_VERSION { Ok(segment) } else { Err(SegmentError::Layout { found }) }
    }

    fn format(memory: &Arc<SharedMemory>) -> Result<(), SegmentError> {
        memory.cell::<AtomicU32>(8)?.store(LAYOUT_VERSION, Ordering::Relaxed);
        memory.cell::<AtomicU64>(0)?.store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// The memory that the segment lies in.
    #[must_use]
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// The worker's sleeping flag: whoever has something for the worker wakes it here.
    ///
    /// # Errors
    /// Never for an opened segment.
    pub fn doorbell(&self) -> Result<WakeFlag, MapError> {
        Ok(WakeFlag::new(self.memory.cell(DOORBELL)?))
    }

    /// Says, before the worker opens the segment, that its client is elsewhere and a
    /// [`crate::RelayOut`] carries on what the worker publishes.
    ///
    /// # Errors
    /// Never for an opened segment.
    pub fn mark_relayed(&self) -> Result<(), MapError> {
        self.memory.cell::<AtomicU32>(RELAYED)?.store(1, Ordering::Release);
        Ok(())
    }

    /// The relay's sleeping flag, if the session is relayed: rung with everything published.
    pub(crate) fn news(&self) -> Result<Option<WakeFlag>, MapError> {
        let relayed = self.memory.cell::<AtomicU32>(RELAYED)?.load(Ordering::Acquire) != 0;
        relayed.then(|| self.memory.cell(NEWS).map(WakeFlag::new)).transpose()
    }

    /// Tells the client that its worker is gone and wakes every caller. The daemon does this, as
    /// does a worker that gives up.
    ///
    /// # Errors
    /// Never for an opened segment.
    pub fn declare_worker_lost(&self) -> Result<(), MapError> {
        self.declare_lost(Loss::Worker)
    }

    /// Tells the client that its session is over, and why; what was said first stays. Wakes every
    /// caller.
    ///
    /// # Errors
    /// Never for an opened segment.
    pub fn declare_lost(&self, loss: Loss) -> Result<(), MapError> {
        let word = self.worker_lost()?;
        // Whoever came first has said why.
        let _said = word.compare_exchange(0, loss as u32, Ordering::AcqRel, Ordering::Acquire);
        for slot in 0..ANSWER_SLOTS {
            self.answer(slot)?.flag.wake();
        }
        for lane in 0..LANES {
            self.room_flag(lane)?.wake();
        }
        self.arena_room()?.wake();
        if let Some(news) = self.news()? {
            news.wake();
        }
        Ok(())
    }

    /// Whether the worker was declared lost.
    ///
    /// # Errors
    /// Never for an opened segment.
    pub fn is_worker_lost(&self) -> Result<bool, MapError> {
        Ok(self.worker_lost()?.load(Ordering::Acquire) != 0)
    }

    /// Why the session is over, if it is.
    ///
    /// # Errors
    /// Never for an opened segment.
    pub fn loss(&self) -> Result<Option<Loss>, MapError> {
        Ok(match self.worker_lost()?.load(Ordering::Acquire) {
            0 => None,
            2 => Some(Loss::NodeStopped),
            3 => Some(Loss::VgpuRemoved),
            4 => Some(Loss::DeviceWithdrawn),
            5 => Some(Loss::DeviceFailed),
            _ => Some(Loss::Worker),
        })
    }

    pub(crate) fn worker_lost(&self) -> Result<Cell<AtomicU32>, MapError> {
        self.memory.cell(WORKER_LOST)
    }

    pub(crate) fn serial(&self) -> Result<Cell<AtomicU32>, MapError> {
        self.memory.cell(SERIAL)
    }

    /// The id of the boosted thread, 0 while there is none.
    pub(crate) fn boosted(&self) -> Result<Cell<AtomicU32>, MapError> {
        self.memory.cell(BOOSTED)
    }

    /// How waiting threads are woken ([`crate::Waking`]).
    pub(crate) fn waking(&self) -> Result<Cell<AtomicU32>, MapError> {
        self.memory.cell(WAKING)
    }

    /// The processor that the worker was last seen on, from 1.
    pub(crate) fn worker_processor(&self) -> Result<Cell<AtomicU32>, MapError> {
        self.memory.cell(WORKER_PROCESSOR)
    }

    /// The processor that the last caller was seen on, from 1.
    pub(crate) fn client_processor(&self) -> Result<Cell<AtomicU32>, MapError> {
        self.memory.cell(CLIENT_PROCESSOR)
    }

    /// Per answer slot, the thread that waits there.
    pub(crate) fn waiting(&self) -> Result<Cells<AtomicU64>, MapError> {
        self.memory.cells(WAITING, usize::from(ANSWER_SLOTS))
    }

    pub(crate) fn tickets(&self) -> Result<Cell<AtomicU64>, MapError> {
        self.memory.cell(TICKET)
    }

    pub(crate) fn lanes_used(&self) -> Result<Cell<AtomicU32>, MapError> {
        self.memory.cell(LANES_USED)
    }

    pub(crate) fn arena_room(&self) -> Result<WakeFlag, MapError> {
        Ok(WakeFlag::new(self.memory.cell(ARENA_ROOM)?))
    }

    pub(crate) fn notices(&self) -> Result<Cells<AtomicU64>, MapError> {
        self.memory.cells(NOTICES, NOTICE_WORDS)
    }

    pub(crate) fn lane(&self, lane: usize) -> Result<LaneWords, MapError> {
        let control = LANE_CONTROLS + lane * LANE_CONTROL;
        Ok(LaneWords {
            head: self.memory.cell(control)?,
            slots: self.memory.cells(LANE_SLOTS_AT + lane * LANE_BYTES, LANE_BYTES / 8)?,
        })
    }

    pub(crate) fn room_flag(&self, lane: usize) -> Result<WakeFlag, MapError> {
        let control = LANE_CONTROLS + lane * LANE_CONTROL;
        Ok(WakeFlag::new(self.memory.cell(control + LINE)?))
    }

    pub(crate) fn answer(&self, slot: u16) -> Result<AnswerWords, MapError> {
        let at = ANSWERS + usize::from(slot) * ANSWER_STRIDE;
        Ok(AnswerWords {
            done: self.memory.cell(at)?,
            flag: WakeFlag::new(self.memory.cell(at + 4)?),
            result: self.memory.cell(at + 8)?,
            bytes: self.memory.cells(at + ANSWER_CONTROL, MAX_ANSWER / 8)?,
        })
    }

    pub(crate) fn progress(&self) -> Result<Cells<AtomicU64>, MapError> {
        self.memory.cells(PROGRESS, PROGRESS_WORDS)
    }

    pub(crate) fn releases(&self) -> Result<Cells<AtomicU32>, MapError> {
        self.memory.cells(RELEASES, ARENA_BLOCKS as usize)
    }

    pub(crate) fn arena_offset() -> usize {
        ARENA
    }

    /// The arena's size in bytes.
    #[must_use]
    pub fn arena_len(&self) -> usize {
        self.memory.len().saturating_sub(ARENA)
    }
}
