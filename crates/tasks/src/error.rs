//! What goes wrong with tasks, in words for people.

use std::io;
use std::path::PathBuf;

use weft_ring::MapError;

use crate::protocol::RefusalCode;

/// Why a call did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TaskError {
    /// Nobody listens on these sockets.
    #[error(
        "no weft node listens on {}: start one with `weft node`, or set WEFT_SOCKET",
        either(.0)
    )]
    NoNode(Vec<PathBuf>),
    /// Somebody else listens there.
    #[error(
        "the weft socket {path} is user {uid}'s: only nodes of your own user and of root are used; \
         set WEFT_SOCKET to the socket of such a node"
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Who listens there.
        uid: u32,
    },
    /// The connection failed otherwise.
    #[error("connecting to the weft node at {path} failed: {why}; is the node still running?")]
    Connection {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        why: String,
    },
    /// The node does not give this accelerator to this program.
    #[error("{0}")]
    Open(String),
    /// The module is not loaded.
    #[error("{0}")]
    Load(String),
    /// The task is refused: nothing of it ran.
    #[error("{message}")]
    Refused {
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        message: String,
    },
    /// The task failed on the device.
    #[error("{message}")]
    Failed {
        /// The `CUresult`.
        status: i32,
        /// What happened, for people.
        message: String,
    },
    /// The node is gone, and the task with it.
    #[error("the weft node went away before the task was done, and {0}; submit it again")]
    Lost(String),
    /// The time that the caller gave is over; the task goes on.
    #[error("the task is not done yet")]
    TimedOut,
    /// The task was cancelled before it ran.
    #[error("the task was cancelled before it ran")]
    Cancelled,
    /// Shared memory could not be had.
    #[error("no shared memory for a task's buffers or a module: {0}; raise the limit on memory")]
    Memory(String),
}

impl From<MapError> for TaskError {
    fn from(error: MapError) -> Self {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        Self::Memory(format!("{error}{}", source.unwrap_or_default()))
    }
}

impl TaskError {
    pub(crate) fn connection(path: &std::path::Path, error: &io::Error) -> Self {
        let nobody = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        match nobody.contains(&error.kind()) {
            true => Self::NoNode(vec![path.to_owned()]),
            false => Self::Connection { path: path.to_owned(), why: error.to_string() },
        }
    }
}

fn either(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(" or ")
}
