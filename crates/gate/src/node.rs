//! The node page: one doorbell for the daemon and the sessions that changed.
//!
//! Workers of different tenants write to it, so nothing on it says what it is: whoever wrote over
//! that would keep every later worker from starting. The version is the control page's, which one
//! session has for itself.

#[cfg(not(loom))]
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_ring::{AtomicU64, Cells, Ordering, Patience, Unready, WakeFlag};
#[cfg(not(loom))]
use weft_ring::{MemoryFile, PAGE, SharedMemory};

#[cfg(not(loom))]
use crate::page::PageError;

/// Sessions that a node page tells apart.
pub const NODE_SESSIONS: u32 = 4096;

#[cfg(not(loom))]
const DOORBELL: usize = 64;
#[cfg(not(loom))]
const DIRTY: usize = 128;
#[cfg(not(loom))]
const WORDS: usize = NODE_SESSIONS as usize / 64;

/// A mapped node page. Workers only mark and ring; the daemon takes.
#[derive(Debug, Clone)]
pub struct NodePage {
    dirty: Cells<AtomicU64>,
    doorbell: WakeFlag,
}

#[cfg(not(loom))]
impl NodePage {
    /// Creates the memory file of a node page. The daemon does this, once.
    ///
    /// # Errors
    /// [`PageError::Map`] when the system refuses.
    pub fn create() -> Result<MemoryFile, PageError> {
        Ok(MemoryFile::create("weft-node", PAGE)?)
    }

    /// A page in this process's anonymous memory: for tests.
    ///
    /// # Errors
    /// [`PageError::Map`] when the system refuses.
    pub fn anonymous() -> Result<Self, PageError> {
        Self::open(&SharedMemory::anonymous(PAGE)?)
    }

    /// Views mapped memory as a node page.
    ///
    /// # Errors
    /// [`PageError::Map`] when it is too small.
    pub fn open(memory: &Arc<SharedMemory>) -> Result<Self, PageError> {
        let doorbell = WakeFlag::new(memory.cell(DOORBELL)?);
        Ok(Self { dirty: memory.cells(DIRTY, WORDS)?, doorbell })
    }
}

impl NodePage {
    #[cfg(loom)]
    pub(crate) fn modelled() -> Self {
        Self { dirty: Cells::zeroed(1), doorbell: WakeFlag::modelled() }
    }

    /// Marks a session as changed and wakes the daemon.
    pub fn ring(&self, session: u32) {
        self.mark(session);
        self.doorbell.wake();
    }

    /// Marks a session as changed; the daemon sees it when something else wakes it.
    pub fn mark(&self, session: u32) {
        if let Some(word) = self.dirty.get(session as usize / 64) {
            // SYNC: publishes the session's words to `take_dirty`.
            word.fetch_or(1 << (session % 64), Ordering::AcqRel);
        }
    }

    /// Whether any session is marked.
    #[must_use]
    pub fn has_dirty(&self) -> bool {
        self.dirty.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// The sessions that changed since the last call, in rising order.
    pub fn take_dirty(&self) -> impl Iterator<Item = u32> {
        self.dirty.iter().zip(0u32..).flat_map(|(word, i)| {
            // SYNC: acquires the words of every session marked before.
            let bits =
                if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) };
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| i * 64 + bit)
        })
    }

    /// Sleeps until a session changes, `other` gives something or `limit` passes.
    ///
    /// Other threads of the daemon make `other` true first and then wake [`Self::doorbell`].
    ///
    /// # Errors
    /// [`Unready::TimedOut`] when `limit` passed.
    pub fn wait<T>(
        &self,
        spin: Duration,
        limit: Option<Duration>,
        mut other: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Unready> {
        let ready = || other().map(Some).or_else(|| self.has_dirty().then_some(None));
        sleep_on(&self.doorbell, spin, limit, ready)
    }

    /// The daemon's sleeping flag.
    #[must_use]
    pub fn doorbell(&self) -> &WakeFlag {
        &self.doorbell
    }
}

/// Polls for `spin`, then sleeps on a doorbell until `ready` gives something.
///
/// # Errors
/// [`Unready::TimedOut`] when `limit` passed.
pub(crate) fn sleep_on<T>(
    doorbell: &WakeFlag,
    spin: Duration,
    limit: Option<Duration>,
    ready: impl FnMut() -> Option<T>,
) -> Result<T, Unready> {
    /// A second look even if somebody forgot to ring: rare enough to cost nothing.
    const SAFETY_NET: Duration = Duration::from_secs(2);

    let deadline = limit.map(|limit| Instant::now() + limit);
    let check_every = SAFETY_NET;
    let (announced, peer_alive, may_poll) = (spin, &|| true, &|_| true);
    let patience = Patience { spin, announced, deadline, check_every, peer_alive, may_poll };
    doorbell.wait(&patience, ready)
}
