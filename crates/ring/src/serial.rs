//! Which session a segment's memory is of.
//!
//! A part of a machine's region is given again while a program of the earlier session may still map
//! it, so each use of a part has a number there. Whoever gives it changes the number first, as the
//! writer of a sequence lock does, and a client that took something out looks at it afterwards.

use crate::cells::Cell;
use crate::sync::{AtomicU32, Ordering, fence};

/// Says, before anything else is written, that the memory is another session's.
pub(crate) fn renew(word: &AtomicU32, serial: u32) {
    word.store(serial, Ordering::Relaxed);
    // SYNC: whoever sees anything that is written from here on sees the number too; pairs with the
    // fence in `Serial::is_over`.
    fence(Ordering::Release);
}

/// The number that a client found when it opened its segment.
#[derive(Debug)]
pub(crate) struct Serial {
    word: Cell<AtomicU32>,
    own: u32,
}

impl Serial {
    pub(crate) fn open(word: Cell<AtomicU32>) -> Self {
        let own = word.load(Ordering::Acquire);
        Self { word, own }
    }

    /// Whether what was read before this may be another session's.
    pub(crate) fn is_over(&self) -> bool {
        // SYNC: as in `renew`. It is no instruction on x86.
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) != self.own
    }
}
