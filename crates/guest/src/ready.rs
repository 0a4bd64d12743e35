//! Which of many descriptors have something to say.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// Descriptors that are waited for, each under a name.
#[derive(Debug)]
pub(crate) struct Watched<'a, N> {
    names: Vec<N>,
    polled: Vec<PollFd<'a>>,
}

impl<'a, N: Copy> Watched<'a, N> {
    pub(crate) fn new() -> Self {
        Self { names: Vec::new(), polled: Vec::new() }
    }

    /// Waits for input, and for the other end's going.
    pub(crate) fn input(&mut self, name: N, fd: BorrowedFd<'a>) {
        self.add(name, fd, PollFlags::IN | PollFlags::RDHUP);
    }

    /// Waits for the other end's going alone.
    pub(crate) fn end(&mut self, name: N, fd: BorrowedFd<'a>) {
        self.add(name, fd, PollFlags::RDHUP);
    }

    /// Waits for room to write.
    pub(crate) fn room(&mut self, name: N, fd: BorrowedFd<'a>) {
        self.add(name, fd, PollFlags::OUT);
    }

    fn add(&mut self, name: N, fd: BorrowedFd<'a>, flags: PollFlags) {
        self.names.push(name);
        self.polled.push(PollFd::from_borrowed_fd(fd, flags));
    }

    /// Those with something to say, after `limit` perhaps none.
    pub(crate) fn wait(mut self, limit: Option<Duration>) -> io::Result<Vec<N>> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        rustix::io::retry_on_intr(|| poll(&mut self.polled, limit.as_ref()))?;
        let ready = self.names.iter().zip(&self.polled);
        Ok(ready.filter(|(_, fd)| !fd.revents().is_empty()).map(|(name, _)| *name).collect())
    }
}
