//! How encoded commands reach whoever executes them.

use std::fmt;

use weft_ring::{CallError, ClientSide};
use weft_wire::Status;

/// What a synchronous command came back with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The outcome.
    pub status: Status,
    /// Bytes of the answer's body; at most what the caller had room for was copied.
    pub len: usize,
}

/// Carries commands, each the bytes of one [`weft_wire::Command`].
///
/// A worker behind lanes and the execution code in this process are the two implementations.
/// Payload blocks, progress and notice words lie in the session's segment either way.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Sends a command that nobody awaits.
    ///
    /// # Errors
    /// `DEVICE_UNAVAILABLE` when the session is over, `NOT_INITIALIZED` in a forked child.
    fn submit(&self, command: &[u8]) -> Result<(), Status>;

    /// Sends a command, awaits its answer and copies as much of the body as fits into `body`.
    ///
    /// # Errors
    /// As [`Transport::submit`]; the command's own outcome is in the answer.
    fn call(&self, command: &[u8], body: &mut [u8]) -> Result<Answer, Status>;
}

/// What the application sees when a command cannot be carried.
pub(crate) fn status_of(error: CallError) -> Status {
    match error {
        // A command that does not fit is one that the client should have put into the arena.
        CallError::TooLong(_) => Status::INVALID_VALUE,
        CallError::Full | CallError::WorkerLost => Status::DEVICE_UNAVAILABLE,
        CallError::Forked => Status::NOT_INITIALIZED,
    }
}

impl Transport for ClientSide {
    #[inline]
    fn submit(&self, command: &[u8]) -> Result<(), Status> {
        Self::submit(self, command).map_err(status_of)
    }

    fn call(&self, command: &[u8], body: &mut [u8]) -> Result<Answer, Status> {
        let answer = Self::call(self, command, body).map_err(status_of)?;
        Ok(Answer { status: Status::from_peer(answer.status), len: answer.len })
    }
}
