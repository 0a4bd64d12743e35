//! What a tenant, the node daemon and a task runner say to each other.
//!
//! The tenant connects to the node's tenant socket (`SOCK_SEQPACKET`) and sends [`Open`] as JSON,
//! which no other hello begins like ([`is_open`]). The daemon answers [`Opened`], a welcome with
//! one descriptor: a socket to the accelerator's task runner. There the tenant sends [`Request`]s
//! and receives [`Event`]s; the daemon sees none of them. A module and a task's buffers travel as
//! one sealed memory file each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weft_ring::peer;

/// Version of these messages. Raise it when one of them changes its meaning.
pub const VERSION: u32 = 1;

/// Most bytes of one message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Most arguments of a kernel.
pub const ARGUMENTS_MAX: usize = 1024;

/// Buffers begin at multiples of this in a task's memory, in bytes.
pub const ALIGNMENT: u64 = 256;

/// The first message to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// [`VERSION`].
    pub weft_tasks: u32,
    /// The virtual accelerator.
    pub accelerator: String,
    /// Its token; empty if it has none.
    #[serde(default)]
    pub token: String,
    /// The program, for logs.
    pub program: String,
}

/// Whether a hello is an [`Open`]: others begin with letters.
#[must_use]
pub fn is_open(hello: &[u8]) -> bool {
    hello.first() == Some(&b'{')
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "opened", rename_all = "snake_case")]
pub enum Opened {
    /// A socket to the runner comes along.
    Welcome {
        /// The pool.
        pool: String,
        /// Names of its devices.
        devices: Vec<String>,
        /// Tasks that may be outstanding.
        tasks_max: u32,
        /// Bytes of their buffers together.
        bytes_max: u64,
    },
    /// There is none for this caller.
    Refused {
        /// What happened and what to do, for people.
        message: String,
        /// Whether it may be otherwise in a moment.
        again: bool,
    },
}

/// What a tenant asks of the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Loads a module, whose image comes along. Answer: [`Event::Loaded`] or
    /// [`Event::LoadRefused`].
    Load {
        /// The tenant's number for it.
        module: u32,
        /// Bytes of its image.
        bytes: u64,
    },
    /// Forgets a module. Tasks that use it end as they would. No answer.
    Unload {
        /// Which.
        module: u32,
    },
    /// Submits a task, whose memory comes along if it has any. Answer: [`Event::Accepted`] or
    /// [`Event::Refused`], later one of the others.
    Submit(Submission),
    /// A task is no longer wanted. Answer: [`Event::Cancelled`] unless it runs or is over.
    Cancel {
        /// Which.
        task: u64,
    },
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The tenant's number for it.
    pub task: u64,
    /// Its module.
    pub module: u32,
    /// Its kernel.
    pub kernel: String,
    /// Thread blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// The kernel's arguments, in order.
    pub arguments: Vec<Argument>,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// How long it is thought to take, in ns; 0 if nothing is known.
    pub estimate_ns: u64,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// Bytes of a parameter that is no pointer.
    Scalar(Vec<u8>),
    /// A pointer to a buffer.
    Buffer {
        /// How long it is, in bytes.
        bytes: u64,
        /// Where in the task's memory its contents lie; zeros if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<u64>,
        /// Where in the task's memory what the kernel leaves in it goes; nowhere if absent. Never
        /// the same bytes as an input: a task may begin anew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<u64>,
    },
}

/// A kernel of a loaded module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Its name.
    pub name: String,
    /// Sizes of its parameters in bytes, in order.
    pub parameters: Vec<u32>,
    /// Threads that a block of it may have.
    pub threads_max: u32,
    /// Static shared memory in bytes.
    pub shared_bytes: u32,
    /// Why it does not run in pieces, if it does not: then a batch task of it is not stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
}

/// What a runner says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A module is loaded.
    Loaded {
        /// Which.
        module: u32,
        /// Its kernels.
        kernels: Vec<KernelInfo>,
    },
    /// A module is not loaded.
    LoadRefused {
        /// Which.
        module: u32,
        /// What happened and what to do, for people.
        message: String,
    },
    /// A task waits for a device, or runs.
    Accepted {
        /// Which.
        task: u64,
    },
    /// A task will not run.
    Refused {
        /// Which.
        task: u64,
        /// Why.
        code: RefusalCode,
        /// What happened and what to do, for people.
        message: String,
    },
    /// A task is done; its outputs are in its memory.
    Done {
        /// Which.
        task: u64,
        /// Device time that it took, in ns.
        used_ns: u64,
        /// From its submission to its end, in ns.
        latency_ns: u64,
        /// Where it ended.
        device: String,
        /// How often it was on a device: more than once if it was stopped or lost one.
        runs: u32,
    },
    /// A task failed.
    Failed {
        /// Which.
        task: u64,
        /// The `CUresult`.
        status: i32,
        /// What happened, for people.
        message: String,
    },
    /// A task that waited is gone.
    Cancelled {
        /// Which.
        task: u64,
    },
}

/// Why a task is refused before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// There is no such module.
    Module,
    /// There is no such kernel.
    Kernel,
    /// Number or sizes of the arguments are not the kernel's.
    Arguments,
    /// The grid, the block or the shared memory is beyond what kernel or device allow.
    Shape,
    /// Its buffers are larger than what the accelerator may have.
    TooLarge,
    /// As many tasks, or bytes, as may be outstanding are.
    QueueFull,
    /// The message makes no sense.
    Malformed,
}

/// Sends one message.
///
/// # Errors
/// The system's; `InvalidInput` for a message that is too long.
pub fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    peer::send(socket, &bytes, descriptors)
}

/// Whether a message is short enough to be sent.
#[must_use]
pub fn fits<T: Serialize>(message: &T) -> bool {
    serde_json::to_vec(message).is_ok_and(|bytes| bytes.len() <= MESSAGE_BYTES_MAX)
}

/// Receives one message; `None` when the other side hung up.
///
/// # Errors
/// The system's; `InvalidData` for what is no message.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    match peer::receive(socket, MESSAGE_BYTES_MAX) {
        Ok(Some(message)) => {
            Ok(Some((serde_json::from_slice(&message.bytes)?, message.descriptors)))
        }
        Ok(None) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others read these bytes.
    #[test]
    fn messages_look_like_this() {
        let submission = Submission {
            task: 7,
            module: 1,
            kernel: "k".into(),
            grid: [2, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
            arguments: vec![
                Argument::Scalar(vec![1, 2]),
                Argument::Buffer { bytes: 8, input: None, output: Some(256) },
            ],
            memory_bytes: 4096,
            estimate_ns: 0,
        };
        let text = serde_json::to_string(&Request::Submit(submission.clone())).unwrap();
        let expected = r#"{"op":"submit","task":7,"module":1,"kernel":"k","grid":[2,1,1],"block":[32,1,1],"shared_bytes":0,"arguments":[{"scalar":[1,2]},{"buffer":{"bytes":8,"output":256}}],"memory_bytes":4096,"estimate_ns":0}"#;
        assert_eq!(text, expected);
        let read: Request = serde_json::from_str(&text).unwrap();
        assert_eq!(read, Request::Submit(submission));
        let (accelerator, token, program) = ("a".into(), "t".into(), "p".into());
        let open = Open { weft_tasks: VERSION, accelerator, token, program };
        assert!(is_open(serde_json::to_string(&open).unwrap().as_bytes()));
        assert!(!is_open(b"WEFT"));
    }
}
