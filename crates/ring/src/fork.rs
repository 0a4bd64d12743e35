//! Notices that this process is a child made by `fork`, with a load instead of a system call.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;

use rustix::mm::{Advice, MapFlags};

use crate::map::PAGE;
use crate::pages;

/// A page that the system clears in every child.
#[derive(Debug)]
pub struct ForkGuard {
    word: NonNull<AtomicU32>,
}

// SAFETY: the page belongs to the process and is only reached as an atomic.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Makes the calling process the one that owns what is guarded.
    ///
    /// # Errors
    /// The system's, when it has no page.
    pub fn new() -> io::Result<Self> {
        let page = pages::anonymous(PAGE, MapFlags::PRIVATE)?;
        let word = NonNull::new(page.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let guard = Self { word };
        // SAFETY: the page was mapped just now by this function and holds nothing yet.
        unsafe { pages::advise(page, PAGE, Advice::LinuxWipeOnFork) }?;
        guard.get().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether the process is a child of the one that made the guard.
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.get().load(Ordering::Relaxed) == 0
    }

    fn get(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped, aligned and initialised (zeroed) for as long as `self` lives.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new`, and no reference to it outlives `self`.
        unsafe { pages::unmap(self.word.as_ptr().cast(), PAGE) };
    }
}
