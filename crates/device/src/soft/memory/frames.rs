//! Physical memory: where frames lie, and whose they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_ring::{MemoryFile, SharedMemory};

use super::slots::Translation;
use crate::{DeviceError, ForeignFrames, FrameRun, PAGE};

/// Entries of the translation tables.
///
/// | bits | what |
/// |---|---|
/// | 63 | the page has an owner |
/// | 49–62 | the part of the vGPU's memory that it lies in |
/// | 29–48 | the session's request that it came by |
/// | 13–28 | the session's number |
/// | 0–12 | the session's key |
pub mod physical {
    /// Set in the entry of a page that has an owner.
    pub const VALID: u64 = 1 << 63;

    /// Keys of owners are less than this: there are 4096 places for sessions.
    pub const OWNERS: u32 = 1 << 13;

    /// Parts of a vGPU's memory are less than this.
    pub const PARTS: u64 = 1 << 14;

    /// Bits of an entry that name the owner and nothing else.
    const OWNER: u64 = VALID | (OWNERS as u64 - 1);

    const NUMBER: u32 = 13;
    const REQUEST: u32 = 29;
    const PART: u32 = 49;

    /// The entry of a page of the first part that `owner` has.
    #[must_use]
    pub const fn entry(owner: u32) -> u64 {
        debug_assert!(owner < OWNERS, "a key of a session");
        VALID | owner as u64
    }

    /// The entry of a page that `owner` got by its request of this number (20 bits count): what a
    /// request that is repeated gets again. Keys are used again, and so are pages, so the session
    /// also has a number (16 bits count) by which its entries are not those of an earlier session
    /// with its key, which somebody may have imported.
    #[must_use]
    pub const fn requested(owner: u32, number: u64, request: u32) -> u64 {
        entry(owner) | (number & 0xffff) << NUMBER | (request as u64 & 0xf_ffff) << REQUEST
    }

    /// The same of a page in this part; 0 stays 0.
    #[must_use]
    pub const fn at(claim: u64, part: usize) -> u64 {
        if claim & VALID == 0 {
            return claim;
        }
        claim_of(claim) | (part as u64 & (PARTS - 1)) << PART
    }

    /// Who has the page and by which request, wherever it lies.
    #[must_use]
    pub const fn claim_of(entry: u64) -> u64 {
        entry & !((PARTS - 1) << PART)
    }

    /// The part that the entry's page lies in.
    #[must_use]
    pub(crate) const fn part(entry: u64) -> usize {
        (entry >> PART & (PARTS - 1)) as usize
    }

    /// Whose the entry's page is.
    #[must_use]
    pub(crate) fn owner(raw: u64) -> Option<u32> {
        let owner = u32::try_from(raw & (u64::from(OWNERS) - 1)).ok()?;
        is_owned(raw, owner).then_some(owner)
    }

    /// Whether the entry's page is `owner`'s, whichever request it came by.
    #[must_use]
    pub const fn is_owned(raw: u64, owner: u32) -> bool {
        owner < OWNERS && raw & OWNER == entry(owner)
    }
}

/// The memory that frames lie in: frame `f` at byte `f × 4096` of one file.
#[derive(Debug)]
pub struct FrameStore {
    pub(super) file: MemoryFile,
    pub(super) memory: Arc<SharedMemory>,
    pub(super) table: Option<Translation>,
    /// Frames of other sessions that this one may use as long as their entries are these.
    pub(super) foreign: BTreeMap<u64, u64>,
}

impl FrameStore {
    /// Maps a frame file.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when it cannot be mapped.
    pub fn map(file: MemoryFile, table: Option<Translation>) -> Result<Self, DeviceError> {
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

    /// Whether the page exists and is this session's, or another's who lets it be used, as the
    /// private table says.
    #[must_use]
    pub fn usable(&self, page: u64) -> bool {
        let allowed =
            |t: &Translation| t.entry(page).is_some_and(|entry| self.is_allowed(t, page, entry));
        self.has(page) && self.table.as_ref().is_none_or(allowed)
    }

    /// Whether the mapping has this frame.
    pub(super) fn has(&self, frame: u64) -> bool {
        let end = frame.checked_add(1).and_then(|next| next.checked_mul(PAGE));
        end.and_then(|end| usize::try_from(end).ok()).is_some_and(|end| end <= self.memory.len())
    }

    /// Whether an entry for this page names the session, or is what it imported.
    pub(super) fn is_allowed(&self, table: &Translation, page: u64, entry: u64) -> bool {
        physical::is_owned(entry, table.owner) || self.foreign.get(&page) == Some(&entry)
    }

    /// Whether the page is still what was imported: not freed, nor handed out again.
    pub(super) fn borrows(&self, table: &Translation, page: u64) -> bool {
        let entry = self.foreign.get(&page);
        entry.is_some() && table.entry(page) == entry.copied()
    }

    /// Takes frames of another session into use.
    ///
    /// # Errors
    /// [`DeviceError::NotExported`] when the private table does not say that they are its.
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
