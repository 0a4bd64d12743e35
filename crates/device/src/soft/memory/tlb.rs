//! Translations that instructions used last.

use std::ptr;

/// Entries; an instruction uses the one that lowering gave it.
pub(crate) const SLOTS: usize = 64;

/// A range of device addresses that lies in one piece of this process's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// First address.
    pub(crate) lo: u64,
    /// Its bytes.
    pub(crate) len: u64,
    /// Where the first byte lies.
    pub(crate) host: *mut u8,
    /// Whether other threads write it at the same time, so that atomics must be real ones.
    pub(crate) shared: bool,
}

impl Window {
    pub(crate) const EMPTY: Self = Self { lo: 0, len: 0, host: ptr::null_mut(), shared: false };

    /// Where `bytes` at `address` lie, if they are all in the window.
    #[inline(always)]
    pub(crate) fn place(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        let offset = address.wrapping_sub(self.lo);
        if offset < self.len && bytes <= self.len - offset {
            // The offset is below the window's length, which fits an `isize`.
            Some(self.host.wrapping_add(usize::try_from(offset).unwrap_or(0)))
        } else {
            None
        }
    }
}

/// The cache of translations; emptied whenever a mapping goes away.
#[derive(Debug)]
pub(crate) struct Tlb {
    pub(crate) windows: [Window; SLOTS],
}

impl Default for Tlb {
    fn default() -> Self {
        Self { windows: [Window::EMPTY; SLOTS] }
    }
}

impl Tlb {
    /// Forgets everything.
    pub(crate) fn flush(&mut self) {
        self.windows = [Window::EMPTY; SLOTS];
    }
}
