//! The socket between the daemon and a worker: packets of JSON, with file descriptors beside them.
//!
//! The worker has its end as standard input. The daemon's first packet is [`Start`] with the
//! session's descriptors. From then on the worker asks ([`Ask`]) and the daemon answers
//! ([`Reply`]), one at a time. The socket's hang-up is the other side's death.
//!
//! A worker whose daemon died waits on its *door*, a listening socket that the daemon made for it
//! in its runtime directory. The next daemon connects there and receives [`Adoption`] with
//! the descriptors it needs; the connection is the new link.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of one packet.
pub(crate) const PACKET_BYTES_MAX: usize = 64 << 10;

/// Most descriptors beside one packet.
pub(crate) const FDS_MAX: usize = 16;

/// Most runs of frames in one answer, 40 bytes of JSON each: fits a packet.
pub(crate) const RUNS_MAX: usize = 1024;

/// Adjacent frames: first, count.
pub(crate) type Run = (u64, u64);

/// What a worker is told when it starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Session on this node, for logs.
    pub(crate) session: u64,
    /// The session's dense key: owner of its frames, its place on the device page.
    pub(crate) key: u32,
    /// Name of the vGPU, for logs.
    pub(crate) vgpu: String,
    /// The tenant's process, for logs.
    pub(crate) pid: u32,
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
    /// The device's clock and model.
    pub(crate) device: DeviceSpec,
    /// Times.
    pub(crate) times: Times,
    /// Whether commands pass the gate.
    pub(crate) gated: bool,
}

/// The device's clock and model, as a worker needs them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DeviceSpec {
    /// Whether times are modelled.
    pub(crate) paced: bool,
    /// Device memory, in bytes.
    pub(crate) memory_bytes: u64,
    /// The model of a paced device.
    pub(crate) model: crate::config::ModelConfig,
}

/// Times that a worker keeps to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Times {
    /// How long the holder polls the lanes before it blocks.
    pub(crate) ring_wait_us: u64,
    /// How long an idle holder keeps the device.
    pub(crate) yield_us: u64,
    /// How long one kernel may run.
    pub(crate) kernel_ms: u64,
    /// How long a worker lives without a daemon.
    pub(crate) orphan_ms: u64,
    /// Host memory that the worker may use.
    pub(crate) worker_memory_bytes: u64,
}

/// What a worker says to the daemon that adopts it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Adoption {
    /// What it was started with.
    pub(crate) start: Start,
    /// Its process.
    pub(crate) pid: u32,
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
    },
    /// Frames given back. Answer: [`Reply::Done`].
    GiveBack {
        /// Which.
        runs: Vec<Run>,
    },
    /// The vGPU's memory. Answer: [`Reply::Usage`].
    Usage,
    /// The session's new total of pinned memory. Answer: [`Reply::Done`] or
    /// [`Reply::Exhausted`].
    Pinned {
        /// The total, in bytes.
        bytes: u64,
    },
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
    /// Quota or device is exhausted; nothing was done.
    Exhausted,
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

/// A packet socket pair, closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Sends one packet with descriptors beside it.
pub(crate) fn send_bytes(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors in one packet"));
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("packet cut short")) }
}

/// Receives one packet and the descriptors beside it; `None` when the other side hung up.
pub(crate) fn receive_bytes(
    socket: impl AsFd,
    limit: usize,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; limit];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(rustix::net::ReturnFlags::TRUNC)
        || received.flags.contains(rustix::net::ReturnFlags::CTRUNC)
    {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "packet too long"));
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, fds)))
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
    send_bytes(socket, &bytes, fds)
}

/// Receives one message; `None` when the other side hung up.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some((bytes, fds)) = receive_bytes(socket, PACKET_BYTES_MAX)? else { return Ok(None) };
    Ok(Some((serde_json::from_slice(&bytes)?, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_and_a_hang_up_is_told() {
        let (ours, theirs) = pair().unwrap();
        let (extra, kept) = pair().unwrap();
        let ask = Ask::GiveBack { runs: vec![(u64::MAX, u64::MAX); RUNS_MAX] };
        send(&ours, &ask, &[extra.as_fd()]).unwrap();
        let (received, fds): (Ask, _) = receive(&theirs).unwrap().unwrap();
        assert_eq!(received, ask);
        assert_eq!(fds.len(), 1);
        drop((extra, fds, ours));
        assert!(receive::<Ask>(&theirs).unwrap().is_none());
        assert!(receive::<Ask>(&kept).unwrap().is_none());
    }
}
