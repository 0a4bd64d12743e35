//! Translations that instructions used last.

use std::ptr;

/// Entries; an instruction uses the one that lowering gave it.
pub(crate) const SLOTS: usize = 64;

/// Windows that were made last, whoever needed them. Instructions share them: a loop over x and y
/// has three, and a block that begins where another one did needs no new ones.
const RECENT: usize = 16;

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

/// What translations are of: others are void.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Mappings of the session that went away.
    pub(crate) unmapped: u64,
    /// How often slots of the vGPU were taken, or pages of it freed, by the daemon's count.
    pub(crate) taken: u64,
    /// Questions to the daemon: each tells what was touched since the last one.
    pub(crate) asked: u64,
}

/// The cache of translations; emptied whenever its stamp is another one.
#[derive(Debug)]
pub(crate) struct Tlb {
    pub(crate) windows: [Window; SLOTS],
    recent: [Window; RECENT],
    /// The one of them that is replaced next.
    oldest: usize,
    stamp: Stamp,
}

impl Default for Tlb {
    fn default() -> Self {
        let (windows, recent) = ([Window::EMPTY; SLOTS], [Window::EMPTY; RECENT]);
        Self { windows, recent, oldest: 0, stamp: Stamp::default() }
    }
}

impl Tlb {
    /// Forgets everything.
    pub(crate) fn flush(&mut self) {
        *self = Self { stamp: self.stamp, ..Self::default() };
    }

    /// Forgets everything that is not of this stamp.
    pub(crate) fn keep(&mut self, stamp: Stamp) {
        if self.stamp != stamp {
            self.stamp = stamp;
            self.flush();
        }
    }

    /// A window around `address` that was made lately.
    pub(crate) fn recent(&self, address: u64) -> Option<Window> {
        self.recent.iter().find(|window| address.wrapping_sub(window.lo) < window.len).copied()
    }

    /// Keeps a window that was made now.
    pub(crate) fn note(&mut self, window: Window) {
        self.recent[self.oldest] = window;
        self.oldest = (self.oldest + 1) % RECENT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(lo: u64) -> Window {
        Window { lo, len: 4096, ..Window::EMPTY }
    }

    #[test]
    fn what_was_made_lately_is_found_until_the_stamp_is_another_one() {
        let mut tlb = Tlb::default();
        for number in 0..=RECENT as u64 {
            tlb.note(window((1 + number) << 20));
        }
        assert!(tlb.recent(1 << 20).is_none(), "the oldest one gave way");
        assert_eq!(tlb.recent((2 << 20) + 4095).map(|window| window.lo), Some(2 << 20));
        assert!(tlb.recent((2 << 20) + 4096).is_none() && tlb.recent(0).is_none());
        tlb.windows[3] = window(7 << 20);
        tlb.keep(Stamp::default());
        assert!(tlb.recent(2 << 20).is_some() && tlb.windows[3].len > 0);
        for stamp in [
            Stamp { unmapped: 1, ..Stamp::default() },
            Stamp { taken: 1, ..Stamp::default() },
            Stamp { asked: 1, ..Stamp::default() },
        ] {
            tlb.note(window(1 << 20));
            tlb.windows[3] = window(7 << 20);
            tlb.keep(stamp);
            assert!(tlb.recent(1 << 20).is_none() && tlb.windows[3].len == 0, "{stamp:?}");
        }
    }
}
