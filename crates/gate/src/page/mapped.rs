//! Where the words of a control page lie in its memory.

use std::sync::Arc;

use thiserror::Error;
use weft_ring::{
    Access, AtomicU32, AtomicU64, MapError, MemoryFile, Ordering, PAGE, SharedMemory, WakeFlag,
};

use super::{ControlPage, PAGE_VERSION};

/// "weftgate" in ASCII, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"weftgate");

// Written once, at creation.
const VERSION: usize = 8;
// Written by the daemon.
const GRANT_EPOCH: usize = 64;
const GRANT_BUDGET: usize = 72;
const GRANT_KIND: usize = 80;
const REVOKE: usize = 88;
const PREPARE: usize = 96;
const UNMANAGED: usize = 104;
const EARNED: usize = 108;
const LEAD: usize = 112;
const TELLING: usize = 120;
// Written by the worker.
const STATE: usize = 128;
const RELEASED: usize = 136;
const USED: usize = 144;
const IN_FLIGHT: usize = 152;
const DEMAND: usize = 160;
const SYNC_CALLS: usize = 168;
const IDLE_TIME: usize = 176;
const DUE: usize = 184;
const PIECES: usize = 192;
// The sleeping flag of a session without lanes (interposed); others sleep on their segment's.
const DOORBELL: usize = 200;
const FRONT_SINCE: usize = 208;
// Written by the daemon, on a line of its own: it changes rarely.
const SLICE: usize = 256;
const PAUSE: usize = 264;

/// Why a page could not be used.
#[derive(Debug, Error)]
pub enum PageError {
    /// Its memory could not be created or mapped.
    #[error("control page memory")]
    Map(#[from] MapError),
    /// It is not a page of this kind, or one of another layout.
    #[error("page has layout version {found}, expected {PAGE_VERSION}")]
    Layout {
        /// The version found; 0 when it is no such page at all.
        found: u32,
    },
}

impl ControlPage {
    /// Creates the memory file of a control page. The daemon does this.
    ///
    /// # Errors
    /// [`PageError::Map`] when the system refuses.
    pub fn create() -> Result<MemoryFile, PageError> {
        let file = MemoryFile::create("weft-control", PAGE)?;
        Self::format(&file.map(Access::ReadWrite)?)?;
        Ok(file)
    }

    /// A page in this process's anonymous memory: for tests.
    ///
    /// # Errors
    /// [`PageError::Map`] when the system refuses.
    pub fn anonymous() -> Result<Self, PageError> {
        let memory = SharedMemory::anonymous(PAGE)?;
        Self::format(&memory)?;
        Self::open(&memory)
    }

    fn format(memory: &Arc<SharedMemory>) -> Result<(), PageError> {
        memory.cell::<AtomicU32>(VERSION)?.store(PAGE_VERSION, Ordering::Relaxed);
        memory.cell::<AtomicU64>(0)?.store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Views mapped memory as a control page.
    ///
    /// # Errors
    /// [`PageError`] when it has another layout.
    pub fn open(memory: &Arc<SharedMemory>) -> Result<Self, PageError> {
        let magic = memory.cell::<AtomicU64>(0)?.load(Ordering::Acquire);
        let version = memory.cell::<AtomicU32>(VERSION)?.load(Ordering::Acquire);
        let found = if magic == MAGIC { version } else { 0 };
        if found != PAGE_VERSION {
            return Err(PageError::Layout { found });
        }
        Ok(Self {
            grant_epoch: memory.cell(GRANT_EPOCH)?,
            grant_budget: memory.cell(GRANT_BUDGET)?,
            grant_kind: memory.cell(GRANT_KIND)?,
            revoke: memory.cell(REVOKE)?,
            prepare: memory.cell(PREPARE)?,
            unmanaged: memory.cell(UNMANAGED)?,
            earned: memory.cell(EARNED)?,
            lead: memory.cell(LEAD)?,
            telling: memory.cell(TELLING)?,
            slice: memory.cell(SLICE)?,
            pause: memory.cell(PAUSE)?,
            state: memory.cell(STATE)?,
            released: memory.cell(RELEASED)?,
            used: memory.cell(USED)?,
            in_flight: memory.cell(IN_FLIGHT)?,
            demand: memory.cell(DEMAND)?,
            sync_calls: memory.cell(SYNC_CALLS)?,
            idle: memory.cell(IDLE_TIME)?,
            due: memory.cell(DUE)?,
            pieces: memory.cell(PIECES)?,
            front_since: memory.cell(FRONT_SINCE)?,
            doorbell: WakeFlag::new(memory.cell(DOORBELL)?),
        })
    }
}
