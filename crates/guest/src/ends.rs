//! Signals that end a server, which has something to put away first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// The signals that end this process, from here on only when it is told to.
#[derive(Debug)]
pub struct Ends {
    /// Readable once one came.
    came: UnixStream,
    which: Arc<AtomicUsize>,
}

impl Ends {
    /// # Errors
    /// The system's.
    pub fn by_signals() -> io::Result<Self> {
        let (came, writer) = UnixStream::pair()?;
        let which = Arc::new(AtomicUsize::new(0));
        for (signal, number) in [(SIGINT, 2), (SIGTERM, 15)] {
            // In this order: who sees that one came sees which.
            flag::register_usize(signal, Arc::clone(&which), number)?;
            low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self { came, which })
    }

    /// The one that came last, if one did.
    #[must_use]
    pub fn told(&self) -> Option<i32> {
        i32::try_from(self.which.load(Ordering::SeqCst)).ok().filter(|signal| *signal != 0)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.came.as_fd()
    }
}

/// Ends this process by a signal, as if nobody had waited for it.
///
/// # Errors
/// The system's.
pub fn end_by(signal: i32) -> io::Result<i32> {
    low_level::emulate_default_handler(signal)?;
    Ok(128 + signal)
}
