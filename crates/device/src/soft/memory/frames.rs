//! Physical memory: frames of 4 KiB, who hands them out, and whose they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_ring::{MemoryFile, ReadCells, SharedMemory};

use crate::{DeviceError, MemoryUse};

/// Bytes of a frame and of a page.
pub const PAGE: u64 = 4096;

/// Adjacent frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRun {
    /// Number of the first frame.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl FrameRun {
    /// Their numbers.
    pub fn frames(&self) -> std::ops::Range<u64> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// Hands out frames of the device: the daemon's ledger, or a local list.
pub trait FrameSource: std::fmt::Debug + Send {
    /// Takes that many frames, zeroed, in as few runs as possible.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] when the quota or the device is exhausted.
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError>;

    /// Gives frames back. Their contents are already zeroed.
    fn give_back(&mut self, runs: &[FrameRun]);

    /// What the vGPU has and may have, in bytes.
    fn usage(&self) -> MemoryUse;

    /// Lets other sessions of the vGPU learn of these frames, which hold `bytes`; the key for it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where there is nobody to tell, or for too many runs;
    /// [`DeviceError::OutOfMemory`] beyond a bound.
    fn export(&mut self, _bytes: u64, _runs: &[FrameRun]) -> Result<[u8; 16], DeviceError> {
        Err(DeviceError::Unsupported("memory that several sessions use"))
    }

    /// The frames that another session exported under this key.
    ///
    /// # Errors
    /// [`DeviceError::NotExported`], [`DeviceError::Unsupported`].
    fn import(&mut self, _key: [u8; 16]) -> Result<ForeignFrames, DeviceError> {
        Err(DeviceError::Unsupported("memory that several sessions use"))
    }
}

/// Frames of another session of the vGPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignFrames {
    /// Whose they are in the physical table.
    pub owner: u32,
    /// Bytes that they hold.
    pub bytes: u64,
    /// Which.
    pub runs: Vec<FrameRun>,
    /// How often they were imported, this time included.
    pub number: u32,
}

/// A frame source for a device that one process has to itself.
#[derive(Debug)]
pub struct LocalFrames {
    free: Vec<FrameRun>,
    total: u64,
    taken: u64,
}

impl LocalFrames {
    /// A device of `bytes` of memory (rounded down to frames).
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let total = bytes / PAGE;
        Self { free: vec![FrameRun { first: 0, count: total }], total, taken: 0 }
    }
}

impl FrameSource for LocalFrames {
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError> {
        if frames > self.total - self.taken {
            return Err(DeviceError::OutOfMemory { requested: frames.saturating_mul(PAGE) });
        }
        self.taken += frames;
        if let Some(run) = self.free.iter_mut().find(|r| r.count >= frames) {
            let first = run.first;
            run.first += frames;
            run.count -= frames;
            self.free.retain(|r| r.count > 0);
            return Ok(vec![FrameRun { first, count: frames }]);
        }
        let mut rest = frames;
        let mut runs = Vec::new();
        while rest > 0 {
            let Some(run) = self.free.pop() else { break };
            let count = run.count.min(rest);
            runs.push(FrameRun { first: run.first, count });
            if run.count > count {
                self.free.push(FrameRun { first: run.first + count, count: run.count - count });
            }
            rest -= count;
        }
        Ok(runs)
    }

    fn give_back(&mut self, runs: &[FrameRun]) {
        for run in runs {
            self.taken -= run.count;
            self.free.push(*run);
        }
        self.free.sort_by_key(|r| r.first);
        self.free.dedup_by(|next, run| {
            let adjacent = run.first + run.count == next.first;
            if adjacent {
                run.count += next.count;
            }
            adjacent
        });
    }

    fn usage(&self) -> MemoryUse {
        MemoryUse { free: (self.total - self.taken) * PAGE, total: self.total * PAGE }
    }
}

/// Entries of the physical translation table.
pub mod physical {
    /// Set in the entry of a frame that has an owner.
    pub const VALID: u64 = 1 << 63;

    /// Keys of owners are less than this: there are 4096 places for sessions.
    pub const OWNERS: u32 = 1 << 16;

    /// Bits of an entry that name the owner and nothing else.
    const OWNER: u64 = VALID | (OWNERS as u64 - 1);

    /// The entry of a frame that `owner` has.
    #[must_use]
    pub const fn entry(owner: u32) -> u64 {
        debug_assert!(owner < OWNERS, "a key of a session");
        VALID | owner as u64
    }

    /// The entry of a frame that `owner` got by its request of this number (31 bits count): what a
    /// request that is repeated gets again. Keys are used again, and so are frames, so the session
    /// also has a number (16 bits count) by which its entries are not those of an earlier session
    /// with its key, which somebody may have imported.
    #[must_use]
    pub const fn requested(owner: u32, number: u64, request: u32) -> u64 {
        entry(owner) | (number & 0xffff) << 16 | (request as u64 & 0x7fff_ffff) << 32
    }

    /// Whether the entry's frame is `owner`'s, whichever request it came by.
    #[must_use]
    pub const fn is_owned(raw: u64, owner: u32) -> bool {
        owner < OWNERS && raw & OWNER == entry(owner)
    }
}

/// The physical translation table as a worker sees it: read-only, with the worker's own identity.
#[derive(Debug)]
pub struct PhysicalTable {
    /// One entry per frame of the device.
    pub entries: ReadCells<std::sync::atomic::AtomicU64>,
    /// Key of the session whose frames this worker may touch.
    pub owner: u32,
}

impl PhysicalTable {
    /// Whether the frame belongs to this worker's session.
    #[must_use]
    pub fn owns(&self, frame: u64) -> bool {
        self.entry(frame).is_some_and(|e| physical::is_owned(e, self.owner))
    }

    fn entry(&self, frame: u64) -> Option<u64> {
        self.entries.load(usize::try_from(frame).ok()?)
    }
}

/// The memory that frames lie in: frame `f` at byte `f × 4096` of one file.
#[derive(Debug)]
pub struct FrameStore {
    file: MemoryFile,
    memory: Arc<SharedMemory>,
    table: Option<PhysicalTable>,
    /// Frames of other sessions that this one may use as long as their entries are these.
    foreign: BTreeMap<u64, u64>,
}

impl FrameStore {
    /// Maps a frame file.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when it cannot be mapped.
    pub fn map(file: MemoryFile, table: Option<PhysicalTable>) -> Result<Self, DeviceError> {
        let memory = file
            .map(weft_ring::Access::ReadWrite)
            .map_err(|e| DeviceError::Lost(format!("mapping the frames: {e}")))?;
        Ok(Self { file, memory, table, foreign: BTreeMap::new() })
    }

    /// A new sparse file of `bytes` for one process.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when the system refuses.
    pub fn local(bytes: u64) -> Result<Self, DeviceError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let file = MemoryFile::create("weft-frames", len)
            .map_err(|e| DeviceError::Lost(format!("creating the frames: {e}")))?;
        Self::map(file, None)
    }

    /// The mapping.
    #[must_use]
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Whether a physical table guards the frames.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the frame exists and is this session's, or another's who lets it be used.
    #[must_use]
    pub fn usable(&self, frame: u64) -> bool {
        let inside = (frame + 1)
            .checked_mul(PAGE)
            .and_then(|end| usize::try_from(end).ok())
            .is_some_and(|end| end <= self.memory.len());
        let allowed = |t: &PhysicalTable| t.owns(frame) || self.borrows(t, frame);
        inside && self.table.as_ref().is_none_or(allowed)
    }

    /// Whether the frame is still what was imported: not freed, nor handed out again.
    fn borrows(&self, table: &PhysicalTable, frame: u64) -> bool {
        let entry = self.foreign.get(&frame);
        entry.is_some() && table.entry(frame) == entry.copied()
    }

    /// Takes frames of another session into use.
    ///
    /// # Errors
    /// [`DeviceError::NotExported`] when the physical table does not say that they are its.
    pub fn borrow(&mut self, foreign: &ForeignFrames) -> Result<(), DeviceError> {
        let table = self.table.as_ref().ok_or(DeviceError::NotExported)?;
        let frames = foreign.runs.iter().flat_map(FrameRun::frames);
        let entry = |frame| {
            let entry = table.entry(frame).filter(|e| physical::is_owned(*e, foreign.owner));
            entry.map(|entry| (frame, entry)).ok_or(DeviceError::NotExported)
        };
        let entries: Vec<(u64, u64)> = frames.map(entry).collect::<Result<_, _>>()?;
        self.foreign.extend(entries);
        Ok(())
    }

    /// Ends that.
    pub fn return_borrowed(&mut self, runs: &[FrameRun]) {
        for frame in runs.iter().flat_map(FrameRun::frames) {
            self.foreign.remove(&frame);
        }
    }

    /// Makes frames read as zero and gives their memory back to the system.
    pub fn clear(&self, run: FrameRun) {
        let offset = usize::try_from(run.first * PAGE).unwrap_or(usize::MAX);
        let len = usize::try_from(run.count * PAGE).unwrap_or(usize::MAX);
        if self.file.punch(offset, len).is_err()
            && let Ok(span) = self.memory.span(offset, len)
        {
            let filled = span.fill(0);
            debug_assert!(filled.is_ok(), "frames are writable");
        }
    }
}
