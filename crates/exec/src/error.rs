//! What ends a session.

use thiserror::Error;
use weft_wire::Status;

/// Something that no client of ours sends: its sender is broken or hostile, and the session is
/// over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// A block does not lie inside the arena, or its release word does not exist.
    #[error("block {offset:#x}+{bytes} with release word {release} is outside the arena")]
    Block {
        /// Claimed offset.
        offset: u64,
        /// Claimed length.
        bytes: u64,
        /// Claimed release word.
        release: u32,
    },
    /// Host bytes do not lie inside the pinned window.
    #[error("host range {address:#x}+{bytes} is outside the pinned window")]
    Pinned {
        /// Claimed address.
        address: u64,
        /// Claimed length.
        bytes: u64,
    },
    /// A copy reaches beyond the block or inline bytes that it brought along.
    #[error("copy of {extent} bytes exceeds its payload of {bytes}")]
    Payload {
        /// Bytes that the copy spans.
        extent: u64,
        /// Bytes that it brought.
        bytes: u64,
    },
    /// Inline bytes are the target of a copy.
    #[error("inline bytes cannot be written")]
    InlineTarget,
    /// A handle's slot is beyond its table or still in use.
    #[error("{what} slot {index} cannot be created")]
    Slot {
        /// Kind of handle.
        what: &'static str,
        /// Its slot.
        index: u32,
    },
    /// A synchronous command without a caller, or an asynchronous one with one.
    #[error("{command} came with the wrong kind of caller")]
    Caller {
        /// The command's name.
        command: &'static str,
    },
    /// More waits at once than a client has threads for.
    #[error("more than {0} waits at once")]
    Waits(usize),
}

/// Why a command is not executed.
#[derive(Debug)]
pub(crate) enum Reject {
    /// Its sender is broken or hostile.
    Violation(Violation),
    /// It cannot be done.
    Refused(Status),
}

impl From<Violation> for Reject {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<Status> for Reject {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}
