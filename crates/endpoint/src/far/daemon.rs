//! The node's daemon, which started the gateway: it asks again and again whether the gateway is
//! well. It is answered by the loop that lets endpoints in, so that one that hangs does not answer.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_wire::remote::ALIVE;

/// Bytes of questions that are read at once, and answered as one.
const ASKED_BYTES: usize = 64;

/// The daemon, or none that would ask anything.
#[derive(Debug, Default)]
pub struct Daemon {
    /// Where it asks, until it has ended.
    asks: Option<File>,
    /// Where it hears the answer.
    answers: Option<File>,
    /// Dropped when it has ended.
    lives: Option<Sender<()>>,
}

impl Daemon {
    /// One that asks and hears there. `lives` is dropped when it has ended.
    #[must_use]
    pub fn new(asks: OwnedFd, answers: OwnedFd, lives: Sender<()>) -> Self {
        let (asks, answers) = (Some(asks.into()), Some(answers.into()));
        Self { asks, answers, lives: Some(lives) }
    }

    /// Where it asks; nothing once it has ended.
    pub(super) fn asks(&self) -> Option<&File> {
        self.asks.as_ref()
    }

    /// Reads what it has asked, and answers; or finds out that it has ended.
    pub(super) fn answer(&mut self) {
        let Some(mut asks) = self.asks.as_ref() else { return };
        match asks.read(&mut [0; ASKED_BYTES]) {
            Ok(1..) => {
                if let Some(answers) = &mut self.answers {
                    // One that has gone is found out about at its other end.
                    let _ = writeln!(answers, "{ALIVE}");
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => {
                self.asks = None;
                drop(self.lives.take());
            }
        }
    }

    /// Answers it for so long; whether it is still there.
    ///
    /// # Errors
    /// When the system has no way to wait.
    pub fn answer_within(&mut self, limit: Duration) -> io::Result<bool> {
        let Some(asks) = &self.asks else { return Ok(false) };
        let limit = Timespec::try_from(limit).map_err(|_| ErrorKind::InvalidInput)?;
        let mut polled = [PollFd::new(asks, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut polled, Some(&limit)))? > 0 {
            self.answer();
        }
        Ok(self.asks.is_some())
    }
}
