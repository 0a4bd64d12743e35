//! The socket between the daemon and a worker: packets of JSON, with file descriptors beside them.
//!
//! The worker has its end as standard input. The daemon's first packet is [`Start`] with the
//! session's descriptors. From then on the worker asks ([`Ask`]) and the daemon answers
//! ([`Reply`]), one at a time. The socket's hang-up is the other side's death.
//!
//! A worker whose daemon died waits on its *door*, a listening socket that the daemon made for it
//! in its runtime directory. The next daemon connects there and receives [`Adoption`] with
//! the descriptors it needs; the connection is the new link.

mod descriptors;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weft_api::node::Elsewhere;
use weft_device::soft::Geometry;
use weft_device::{BackendConfig, Capabilities, DeviceInfo};
use weft_ring::peer;
use weft_turn::Abandoned;
use weft_wire::handshake::Placement;

use crate::config::{AccountingConfig, CompilingConfig, LogConfig, NodeConfig, SlicingConfig};

pub(crate) use self::descriptors::{Descriptors, Passed};

/// Most bytes of one packet.
pub(crate) const PACKET_BYTES_MAX: usize = 64 << 10;

/// Most runs of frames in one answer, 40 bytes of JSON each: fits a packet.
pub(crate) const RUNS_MAX: usize = 1024;

/// Adjacent frames: first, count.
pub(crate) type Run = (u64, u64);

/// Adjacent frames that are adjacent on another device: first, count, first there.
pub(crate) type MovedFrames = [u64; 3];

/// Why a process of the daemon's was started: its first packet.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "assignment", rename_all = "snake_case")]
pub(crate) enum Assignment {
    /// To execute a session.
    Work {
        /// Which, and how.
        start: Box<Start>,
        /// The descriptors that come along.
        passed: Vec<Passed>,
    },
    /// To look at a device and tell: what the driver does to a process is for that one alone.
    /// Answer: [`Probed`].
    Probe {
        /// Which device.
        backend: BackendConfig,
        /// Memory that it is to have if that is a matter of choice, in bytes.
        memory_bytes: u64,
        /// No tenant of the node is hostile.
        trusting: bool,
    },
}

/// A device, or why no node executes on it.
pub(crate) type Probed = Result<DeviceInfo, String>;

/// What a worker is told when it starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Session on this node, for logs.
    pub(crate) session: u64,
    /// The session's dense key: owner of its frames, its place on the device page.
    pub(crate) key: u32,
    /// Name of the vGPU, for logs.
    pub(crate) vgpu: String,
    /// Key of the vGPU.
    pub(crate) vgpu_key: u32,
    /// Whether the vGPU was granted to somebody who is no user here: the next daemon knows it from
    /// this.
    #[serde(default)]
    pub(crate) granted: bool,
    /// The tenant's user.
    pub(crate) uid: u32,
    /// The daemon's user: who may adopt the worker.
    pub(crate) daemon_uid: u32,
    /// The user that the worker becomes; absent when it stays the daemon's.
    pub(crate) user: Option<u32>,
    /// The tenant's process; of a program that is elsewhere the one that relays for it.
    pub(crate) pid: u32,
    /// When that process began, in clock ticks since the system started; 0 if unknown.
    pub(crate) began: u64,
    /// Where its program is, if it is no process of this node.
    #[serde(default)]
    pub(crate) elsewhere: Option<Elsewhere>,
    /// The tenant's program, for logs.
    pub(crate) program: String,
    /// Identity that the tenant sees.
    pub(crate) uuid: [u8; 16],
    /// Memory quota, in bytes.
    pub(crate) memory_bytes: u64,
    /// First device address.
    pub(crate) device_base: u64,
    /// Bytes of device addresses.
    pub(crate) device_bytes: u64,
    /// Address of the pinned window in the tenant.
    pub(crate) pinned_base: u64,
    /// Bytes of the pinned window.
    pub(crate) pinned_bytes: u64,
    /// Bytes behind it for managed memory.
    #[serde(default)]
    pub(crate) managed_bytes: u64,
    /// Where its memory lies, if that is a virtual machine's region.
    #[serde(default)]
    pub(crate) part: Option<RegionPart>,
    /// The device.
    pub(crate) device: DeviceSpec,
    /// Times.
    pub(crate) times: Times,
    /// The log.
    pub(crate) log: LogConfig,
}

/// A session's place in a virtual machine's region. Offsets and lengths are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegionPart {
    /// Name of the region.
    pub(crate) region: [u8; 16],
    /// Its size.
    pub(crate) region_bytes: u64,
    /// Sessions at once.
    pub(crate) places: u8,
    /// Which one: its mark.
    pub(crate) place: u8,
    /// Where the segment starts.
    pub(crate) segment_at: u64,
    /// Its length.
    pub(crate) segment_bytes: u64,
    /// Where the pinned window starts.
    pub(crate) pinned_at: u64,
    /// Its length.
    pub(crate) pinned_bytes: u64,
}

impl RegionPart {
    /// As the client is told.
    pub(crate) fn placement(self) -> Placement {
        let Self { segment_at, segment_bytes, pinned_at, place, .. } = self;
        Placement { segment_at, segment_bytes, pinned_at, mark: place }
    }
}

/// The device, as a worker needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceSpec {
    /// Its key on the node.
    pub(crate) key: u32,
    /// Its name.
    pub(crate) name: String,
    /// Device memory, in bytes.
    pub(crate) memory_bytes: u64,
    /// How it is divided.
    pub(crate) geometry: Geometry,
    /// What executes.
    pub(crate) backend: BackendConfig,
}

impl DeviceSpec {
    /// What becomes of work in flight when its worker dies.
    pub(crate) fn abandoned(&self) -> Abandoned {
        if self.backend.keeps_abandoned() { Abandoned::Stays } else { Abandoned::Ends }
    }
}

/// A session stands still within this time after the longest kernel that it may have in flight.
const PAUSE_GRACE: Duration = Duration::from_secs(10);

/// Whoever loads a module, or has not said since a daemon's restart what it has, keeps what others
/// need for so long at most, or for as long as a kernel may take.
const SILENT_LIMIT: Duration = Duration::from_secs(600);

/// How long a session has to stand still whose kernels may take so long.
pub(crate) fn pause_limit(kernel_ms: Option<u64>) -> Duration {
    PAUSE_GRACE.saturating_add(Duration::from_millis(kernel_ms.unwrap_or(0)))
}

/// How long somebody may keep what others need who has so long to stand still.
pub(crate) fn keep_limit(pause_limit: Duration) -> Duration {
    SILENT_LIMIT.max(pause_limit)
}

/// Times that a worker keeps to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Times {
    /// How long the holder polls the lanes before it blocks.
    pub(crate) ring_wait_us: u64,
    /// How long an idle holder keeps the device.
    pub(crate) yield_us: u64,
    /// How device time is measured.
    pub(crate) accounting: AccountingConfig,
    /// How long kernels are cut.
    pub(crate) slicing: SlicingConfig,
    /// What compiling may take of others.
    #[serde(default)]
    pub(crate) compiling: CompilingConfig,
    /// How long one kernel may run, if that is limited.
    pub(crate) kernel_ms: Option<u64>,
    /// How long a worker lives without a daemon.
    pub(crate) orphan_ms: u64,
    /// Host memory that the worker may use.
    pub(crate) worker_memory_bytes: u64,
}

impl Times {
    /// The times that `config` sets on a device that can do this.
    pub(crate) fn of(config: &NodeConfig, device: Capabilities) -> Self {
        Self {
            ring_wait_us: config.scheduling.ring_wait_us,
            yield_us: config.scheduling.yield_us,
            accounting: config.scheduling.accounting,
            slicing: config.scheduling.slicing,
            compiling: config.worker.compiling,
            kernel_ms: config.kernel_ms(device),
            orphan_ms: config.limits.orphan_ms,
            worker_memory_bytes: config.limits.worker_memory.0,
        }
    }
}

/// What a worker says to the daemon that adopts it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Adoption {
    /// What it was started with.
    pub(crate) start: Start,
    /// Its process.
    pub(crate) pid: u32,
    /// The descriptors that come along.
    pub(crate) passed: Vec<Passed>,
}

/// Most bytes of a log line's text.
pub(crate) const LINE_BYTES_MAX: usize = 2048;

/// How urgent a worker's log line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Something failed.
    Error,
    /// Something is not as it should be.
    Warn,
    /// Something happened.
    Info,
    /// For who looks for a fault.
    Debug,
}

/// What a worker asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Ask {
    /// It is set up and sandboxed. Answer: [`Reply::Done`].
    Ready,
    /// Frames. Answer: [`Reply::Frames`] (perhaps fewer than asked: ask again) or
    /// [`Reply::Exhausted`] when not all of them are to be had.
    Take {
        /// How many.
        frames: u64,
        /// Numbers the session's requests for frames.
        request: u32,
        /// An earlier daemon may have handed them out already.
        again: bool,
    },
    /// Frames given back. Answer: [`Reply::Done`].
    GiveBack {
        /// Which.
        runs: Vec<Run>,
        /// An earlier daemon may have taken them back already.
        again: bool,
    },
    /// What the vGPU uses of its memory is to be in slots of the device. Answer:
    /// [`Reply::Resident`].
    Reside {
        /// A page of the session's that an operation has met, if that is why.
        page: Option<u64>,
        /// Parts of the vGPU's memory that operations used since the last time.
        touched: Vec<u64>,
        /// Parts of it that the operation names which begins. A worker of an earlier version names
        /// none.
        #[serde(default)]
        named: Vec<u64>,
    },
    /// Room on a device that lends more than it has. Answer: [`Reply::Done`], [`Reply::Exhausted`],
    /// [`Reply::Save`] or [`Reply::Later`].
    Room {
        /// Bytes that are to be on the device in all.
        bytes: u64,
        /// Bytes of those that stay there.
        fixed_bytes: u64,
        /// Bytes that the driver did not have after there was said to be room.
        missing_bytes: u64,
        /// Nothing of the session is in flight.
        stands: bool,
        /// It is for a module, and not for an operation.
        loads: bool,
    },
    /// So many bytes of it are on such a device now. Answer: [`Reply::Done`].
    Holds {
        /// How many.
        bytes: u64,
        /// Bytes of those that stay there.
        fixed_bytes: u64,
    },
    /// What it asked room for is there, or some of it. Answer: [`Reply::Done`].
    Brought {
        /// Bytes that are yet to come.
        #[serde(default)]
        left_bytes: u64,
    },
    /// The vGPU's memory. Answer: [`Reply::Usage`].
    Usage,
    /// Frames of its own that other sessions of the vGPU may use. Answer: [`Reply::Exported`] or
    /// [`Reply::Exhausted`].
    Export {
        /// Bytes that they hold.
        bytes: u64,
        /// Which.
        runs: Vec<Run>,
    },
    /// Another session's frames. Answer: [`Reply::Imported`] or [`Reply::NotExported`].
    Import {
        /// What they were exported under.
        key: [u8; 16],
    },
    /// A module is to be compiled. Answer: [`Reply::Done`] when it may be, or [`Reply::Save`]: then
    /// it asks again.
    Load {
        /// Bytes of its images together. Older workers, which ask about large ones only, do not
        /// say.
        #[serde(default)]
        bytes: Option<u64>,
        /// Nothing of the session is in flight, so that it can save.
        #[serde(default)]
        stands: bool,
    },
    /// It was. Answer: [`Reply::Done`].
    Loaded {
        /// What it took of the processor. Older workers do not say.
        #[serde(default)]
        took_ns: Option<u64>,
    },
    /// The session's new total of pinned memory. Answer: [`Reply::Done`] or
    /// [`Reply::Exhausted`].
    Pinned {
        /// The total, in bytes.
        bytes: u64,
    },
    /// It is about to load a module, or has. Answer: [`Reply::Done`] or [`Reply::Exhausted`] when
    /// the host memory that it would take is not to be had, or [`Reply::Save`]: then it asks again.
    Images {
        /// Bytes of its images together; 0 when it was loaded.
        bytes: u64,
        /// Nothing of the session is in flight, so that it can save.
        #[serde(default)]
        stands: bool,
    },
    /// Its tables, queues and graphs are about to take more of the host's memory. Answer:
    /// [`Reply::Done`] or [`Reply::Exhausted`].
    Tables {
        /// Bytes beyond what they take now.
        more: u64,
    },
    /// It stands still, as it was asked to: nothing of it is in flight, and it has no turn. Answer:
    /// [`Reply::Move`] or [`Reply::Stay`].
    Paused {
        /// Commands wait in it that the device would execute. Older workers do not say so.
        #[serde(default)]
        works: bool,
    },
    /// It has copied its memory to the device that it was told. Answer: [`Reply::Switch`] or
    /// [`Reply::Stay`].
    Copied {
        /// Why it could not, in words.
        failure: Option<String>,
    },
    /// It is on the other device. Answer: [`Reply::Done`].
    Moved {
        /// The device's key.
        device: u32,
    },
    /// A line for the log. No answer.
    Log {
        /// How urgent.
        severity: Severity,
        /// What.
        text: String,
    },
}

impl Ask {
    /// The request as it is repeated to a daemon that took the place of the one first asked.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Take { frames, request, .. } => {
                Self::Take { frames: *frames, request: *request, again: true }
            }
            Self::GiveBack { runs, .. } => Self::GiveBack { runs: runs.clone(), again: true },
            Self::Ready
            | Self::Usage
            | Self::Reside { .. }
            | Self::Room { .. }
            | Self::Holds { .. }
            | Self::Brought { .. }
            | Self::Load { .. }
            | Self::Loaded { .. }
            | Self::Images { .. }
            | Self::Tables { .. }
            | Self::Paused { .. }
            | Self::Copied { .. }
            | Self::Moved { .. }
            | Self::Log { .. }
            | Self::Pinned { .. }
            | Self::Export { .. }
            | Self::Import { .. } => self.clone(),
        }
    }
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// It was done.
    Done,
    /// Zeroed frames.
    Frames {
        /// Which.
        runs: Vec<Run>,
    },
    /// Other sessions find the frames under this key.
    Exported {
        /// Not to be guessed.
        key: [u8; 16],
    },
    /// Another session's frames.
    Imported {
        /// Its key.
        owner: u32,
        /// Bytes that they hold.
        bytes: u64,
        /// Which.
        runs: Vec<Run>,
        /// How often they were imported, this time included.
        number: u32,
    },
    /// No other session of the vGPU exports anything under that key.
    NotExported,
    /// Its vGPU is to go to this device.
    Move {
        /// Which.
        device: Box<DeviceSpec>,
        /// How many [`MovedFrames`] are in the file [`Passed::Moved`].
        frames: u64,
        /// The descriptors that come along.
        passed: Vec<Passed>,
    },
    /// So much of its memory is to leave the device for others; then it asks again.
    Save {
        /// Bytes, at least.
        bytes: u64,
    },
    /// Not while something of it is in flight, or not yet: the turn is for others.
    Later,
    /// It goes now.
    Switch,
    /// It stays where it is and goes on.
    Stay,
    /// Quota or device is exhausted; nothing was done.
    Exhausted,
    /// It is there, as far as it can be.
    Resident {
        /// How long the device is busy with that from now on, in ns, where that is modelled.
        wait_ns: u64,
        /// How long it was busy with it before, while others had it.
        ahead_ns: u64,
    },
    /// The vGPU's memory, in bytes.
    Usage {
        /// Still free.
        free: u64,
        /// The quota.
        total: u64,
    },
    /// The request made no sense; the daemon ends the worker.
    Refused {
        /// Why.
        message: String,
    },
}

/// Sends one message.
pub(crate) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > PACKET_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too long"));
    }
    peer::send(socket, &bytes, fds)
}

/// Receives one message; `None` when the other side hung up.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    match peer::receive(socket, PACKET_BYTES_MAX)? {
        Some(message) => Ok(Some((serde_json::from_slice(&message.bytes)?, message.descriptors))),
        None => Ok(None),
    }
}

/// What the next of a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// A message.
    Message,
    /// Its end, perhaps after what the other side had sent before.
    End,
}

/// Waits for the next message or the end of a link, and takes nothing from it.
pub(crate) fn await_message(socket: impl AsFd) -> Awaited {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    // What fails here fails where the message is received.
    let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None));
    let is_over = polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
    if is_over { Awaited::End } else { Awaited::Message }
}

/// Receives one message from who sends no descriptors, and takes none; `None` when the other side
/// hung up.
pub(crate) fn receive_plain<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<T>> {
    match peer::receive_bytes(socket, PACKET_BYTES_MAX, true)? {
        Some(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_and_a_hang_up_is_told() {
        let (ours, theirs) = peer::pair().unwrap();
        let (extra, kept) = peer::pair().unwrap();
        let runs = vec![(u64::MAX, u64::MAX); RUNS_MAX];
        let ask = Ask::GiveBack { runs, again: false };
        send(&ours, &ask, &[extra.as_fd()]).unwrap();
        let (received, fds): (Ask, _) = receive(&theirs).unwrap().unwrap();
        assert_eq!(received, ask);
        assert_eq!(fds.len(), 1);
        send(&ours, &ask, &[]).unwrap();
        assert_eq!(await_message(&theirs), Awaited::Message);
        assert!(receive::<Ask>(&theirs).unwrap().is_some(), "it was not taken");
        drop((extra, fds, ours));
        assert_eq!(await_message(&theirs), Awaited::End);
        assert!(receive::<Ask>(&theirs).unwrap().is_none());
        assert!(receive::<Ask>(&kept).unwrap().is_none());
    }
}
