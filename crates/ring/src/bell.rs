//! Waking across kernels.
//!
//! A futex ends at the border of a kernel: in a virtual machine whose device memory holds a
//! session's flags it is refused (`EFAULT`), and on the host it wakes nobody in the guest. Memory
//! that another kernel maps too therefore comes with a [`Bell`]: a descriptor that carries marks to
//! the other side, and for the guest a page of its own kernel to sleep on.
//!
//! A mark says "look at the flags of this session", nothing more: it may be late, repeated or
//! forged, and whoever it wakes looks for itself. One that does not fit is covered by those that
//! have not been taken out yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;
use rustix::net::SendFlags;
use rustix::pipe::PipeFlags;

use crate::wait_page::WaitPage;

/// How those are woken who sleep behind flags that another kernel maps too.
#[derive(Debug)]
pub struct Bell {
    out: OwnedFd,
    /// What is written to a socket whose other end is gone would end a program that is not ours.
    is_socket: bool,
    mark: u8,
    wait_page: Option<WaitPage>,
}

impl Bell {
    /// The host's: its own sleepers wait on the flags themselves, and each wake also writes `mark`
    /// to `out`, which must not block.
    #[must_use]
    pub fn of_host(out: OwnedFd, mark: u8) -> Self {
        Self { is_socket: is_socket(&out), out, mark, wait_page: None }
    }

    /// The guest's: its sleepers wait at `wait_page`, and each wake writes `mark` to `out`, which
    /// must not block.
    #[must_use]
    pub fn of_guest(out: OwnedFd, mark: u8, wait_page: WaitPage) -> Self {
        Self { is_socket: is_socket(&out), out, mark, wait_page: Some(wait_page) }
    }

    /// Tells the other side.
    pub(crate) fn ring(&self) {
        // A full one has marks that were not taken out: they say the same. One whose reader is gone
        // has nobody to wake.
        let _told = match self.is_socket {
            true => rustix::net::send(&self.out, &[self.mark], SendFlags::NOSIGNAL),
            false => rustix::io::write(&self.out, &[self.mark]),
        };
    }

    /// Where the sleepers of this side wait, if not on the flags.
    pub(crate) fn wait_page(&self) -> Option<&WaitPage> {
        self.wait_page.as_ref()
    }
}

fn is_socket(out: &OwnedFd) -> bool {
    rustix::fs::fstat(out).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_socket())
}

/// A way for marks within this kernel: the end that takes them out and the one that [`Bell`]
/// writes to. Neither blocks.
///
/// # Errors
/// The system's.
pub fn marks() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Takes out the marks that wait, `into` that many at most; how many. None at the end of all.
///
/// # Errors
/// The system's, `WouldBlock` when none waits.
pub fn take_marks(from: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| rustix::io::read(&from, &mut *into))?)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::map::{Access, MemoryFile, PAGE};
    use crate::wait::{Patience, WakeFlag};

    /// Two views of one flag as a guest and its host have them: a wake of one side reaches sleepers
    /// of the other through marks alone.
    #[test]
    fn sleepers_of_the_other_kernel_are_woken_by_marks() {
        let file = MemoryFile::create("flag", PAGE).unwrap();
        let (wait_page, _page) = WaitPage::create().unwrap();
        let (guest_in, host_out) = marks().unwrap();
        let (host_in, guest_out) = marks().unwrap();
        let host = file.try_clone().unwrap().with_bell(Bell::of_host(host_out, 7));
        let guest = file.with_bell(Bell::of_guest(guest_out, 9, wait_page.clone()));
        let flag = |file: &MemoryFile| {
            WakeFlag::new(file.map(Access::ReadWrite).unwrap().cell(0).unwrap())
        };
        let (host, guest) = (flag(&host), flag(&guest));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let alive = || true;
                let mut looks = 0;
                let patience = Patience::while_alive(&alive).spinning(Duration::ZERO);
                let patience = patience.until(Instant::now() + Duration::from_secs(20));
                // Ready when it was woken from its first sleep.
                guest.wait(&patience, || {
                    looks += 1;
                    (looks > 2).then_some(())
                })
            });
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut came = [0; 16];
            loop {
                host.wake();
                match take_marks(&guest_in, &mut came) {
                    Ok(count) => break assert_eq!(came[..count], vec![7; count]),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
                assert!(Instant::now() < deadline, "nobody slept");
                std::thread::yield_now();
            }
            while !sleeper.is_finished() {
                wait_page.wake_all();
                host.wake();
                assert!(Instant::now() < deadline, "the sleeper was not woken");
                std::thread::yield_now();
            }
            sleeper.join().unwrap().unwrap();
        });
        guest.wake();
        assert!(take_marks(&host_in, &mut [0; 16]).is_err(), "nobody sleeps: no mark");
    }

    #[test]
    fn marks_that_do_not_fit_are_dropped_and_nobody_blocks() {
        let (reader, writer) = marks().unwrap();
        let bell = Bell::of_host(writer, 3);
        (0..100_000).for_each(|_| bell.ring());
        let mut came = vec![0; 1 << 20];
        assert!(take_marks(&reader, &mut came).unwrap() >= 4096);
        drop(reader);
    }
}
