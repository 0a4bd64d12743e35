//! The other process: messages with descriptors over a Unix socket, its identity and its death.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use crate::sys;

/// Descriptors that one message may carry.
pub const MAX_DESCRIPTORS: usize = 16;

/// Who is on the other end of a Unix socket, as the system says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// The process that connected; `None` when it is invisible from here.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// A received message.
#[derive(Debug, Default)]
pub struct Message {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors, in the order in which they were sent; close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// The process that sent it, as the system says; only on a socket of [`connect`].
    pub sender: Option<u32>,
}

/// A connected pair of sockets that keep message boundaries.
///
/// # Errors
/// The system's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Connects to the socket at `path`. Messages that come tell who sent them: the system names the
/// process that listened first as the other end's, and that may be dead.
///
/// # Errors
/// The system's.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::sockopt::set_socket_passcred(&socket, true)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listens at `path`, where nothing may lie.
///
/// # Errors
/// The system's.
pub fn listen(path: &Path, backlog: u16) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, i32::from(backlog))?;
    Ok(socket)
}

/// Accepts a connection on a listening socket.
///
/// # Errors
/// The system's; `WouldBlock` when the socket is non-blocking and nobody waits.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?)
}

/// Sends a message with descriptors; a peer that is gone is an error, not a signal.
///
/// # Errors
/// The system's, or `InvalidInput` for more than [`MAX_DESCRIPTORS`].
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let parts = [IoSlice::new(bytes)];
    let sent = rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a message of at most `limit` bytes; `None` when the peer hung up.
///
/// # Errors
/// The system's, or `InvalidData` for a longer message or for more than [`MAX_DESCRIPTORS`].
pub fn receive(socket: impl AsFd, limit: usize) -> io::Result<Option<Message>> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; limit];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, flags)?;
    let (mut descriptors, mut sender) = (Vec::new(), None);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(rights) => descriptors.extend(rights),
            RecvAncillaryMessage::ScmCredentials(found) => {
                sender = Some(found.pid.as_raw_nonzero().get().unsigned_abs());
            }
            _ => {}
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message is too long"));
    }
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    Ok(Some(Message { bytes, descriptors, sender }))
}

/// Who connected the socket.
///
/// # Errors
/// The system's.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    sys::peer_credentials(socket.as_fd())
}

/// Whether the other end of a socket is closed. Messages may still be unread.
#[must_use]
pub fn has_hung_up(socket: impl AsFd) -> bool {
    is_signalled(socket.as_fd(), PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

fn is_signalled(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, flags)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&zero)).is_ok_and(|_| polled[0].revents().intersects(flags))
}

/// A descriptor of a process: names it even after its id was given to another.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// The process that has the id now.
    ///
    /// # Errors
    /// `NotFound` when there is none, else the system's.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Takes a received descriptor of a process.
    #[must_use]
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Whether it has exited, reaped or not.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        is_signalled(self.0.as_fd(), PollFlags::IN)
    }

    /// Waits at most `limit` for its exit; whether it has exited.
    #[must_use]
    pub fn wait_exit(&self, limit: Duration) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0)
    }

    /// Ends it at once.
    ///
    /// # Errors
    /// The system's, `NotFound`-like when it has exited already.
    pub fn kill(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.0, rustix::process::Signal::KILL)?)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
