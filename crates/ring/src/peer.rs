//! The other process: messages with descriptors over a Unix socket, its identity and its death.

use core::mem::MaybeUninit;
use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use crate::sys;

/// Descriptors that one message may carry.
pub const MAX_DESCRIPTORS: usize = 16;

/// Has an error of memory (`SIGBUS`, `SIGSEGV`) end this process at once, as the system does by
/// default. The standard library's handler puts that back only at the error, with a call that a
/// sandbox may have taken away; then the same access fails for ever.
///
/// # Errors
/// The system's.
pub fn end_at_memory_errors() -> io::Result<()> {
    sys::default_action(libc::SIGBUS)?;
    sys::default_action(libc::SIGSEGV)
}

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

/// A connection that only its ends' deaths can be seen on: the watched end and the one that is
/// given away. A pipe: unlike a socket it carries no descriptors, which would be closed with it.
///
/// # Errors
/// The system's.
pub fn lifeline() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
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

/// Connects to the socket at `path`; messages do not tell who sent them.
///
/// # Errors
/// The system's.
pub fn connect_plain(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects a stream of bytes to the socket at `path`, whose listener takes connections in within
/// `limit`: one that has stopped takes as many as its queue has room for, and then keeps all
/// others waiting. Each read and write of it may take as long.
///
/// # Errors
/// The system's; [`io::ErrorKind::WouldBlock`] once the time is over.
pub fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // Connecting is bounded by what sending is (unix(7)).
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(limit))?;
    let address = SocketAddrUnix::new(path)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket.into())
}

/// Listens at `path`, where nothing may lie, for whoever `mode` lets connect.
///
/// # Errors
/// The system's.
pub fn listen(path: &Path, mode: u32, backlog: u16) -> io::Result<OwnedFd> {
    listen_on(socket()?, path, mode, backlog)
}

/// The same for a stream of bytes.
///
/// # Errors
/// The system's.
pub fn listen_stream(path: &Path, mode: u32, backlog: u16) -> io::Result<UnixListener> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    Ok(listen_on(socket, path, mode, backlog)?.into())
}

fn listen_on(socket: OwnedFd, path: &Path, mode: u32, backlog: u16) -> io::Result<OwnedFd> {
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Before anybody can connect: nobody can until the socket listens.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, i32::from(backlog))?;
    Ok(socket)
}

/// Has the system refuse descriptors that are sent to this socket, or to those accepted on it.
/// Whether it does: Linux does from 6.16 on.
///
/// A descriptor that nobody wants is closed all the same, by whoever drops the message, and closing
/// a file of somebody's own file system takes as long as that somebody likes.
#[must_use]
pub fn refuse_descriptors(socket: impl AsFd) -> bool {
    sys::refuse_descriptors(socket.as_fd()).is_ok()
}

/// Has all descriptors of this process but the first three closed for programs that it executes,
/// also those that it was started with.
///
/// # Errors
/// The system's: before Linux 5.11 there is no such call.
pub fn close_rest_on_exec() -> io::Result<()> {
    sys::close_rest_on_exec()
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

/// Receives a message of at most `limit` bytes and no descriptors: what comes beside it is dropped
/// by the system and never becomes this process's. `None` when the peer hung up.
///
/// # Errors
/// The system's, `WouldBlock` when nothing waits and `wait` is not set, or `InvalidData` for a
/// longer message.
pub fn receive_bytes(socket: impl AsFd, limit: usize, wait: bool) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; limit];
    let flags = if wait { RecvFlags::TRUNC } else { RecvFlags::TRUNC | RecvFlags::DONTWAIT };
    let (_, received) = rustix::net::recv(socket, &mut bytes[..], flags)?;
    if received > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message is too long"));
    }
    bytes.truncate(received);
    Ok((received > 0).then_some(bytes))
}

/// Who connected the socket.
///
/// # Errors
/// The system's.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    sys::peer_credentials(socket.as_fd())
}

/// All groups of whoever connected the socket, its first one included.
///
/// # Errors
/// The system's.
pub fn groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let own = credentials(socket.as_fd())?.gid;
    let mut groups = sys::peer_groups(socket.as_fd())?;
    groups.push(own);
    Ok(groups)
}

/// The user who listens on the other end of a connected socket, if it is not one whose node a
/// program of this process's user may use: its own user or root. Anybody may listen at a path in
/// `/tmp`; who listens is what the system says of the peer.
///
/// In a user namespace (a rootless container) root outside has no number of its own: it is seen as
/// the overflow user, as is everybody who is not mapped. That one counts as root where the path was
/// `named`, by whoever set the container up; the initial namespace has no such user.
///
/// # Errors
/// The system's.
pub fn stranger(socket: impl AsFd, named: bool) -> io::Result<Option<u32>> {
    let peer = credentials(socket)?.uid;
    let own = rustix::process::geteuid().as_raw();
    let unmapped = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        unmapped_user(&map, &overflow)
    };
    let trusted = peer == own || peer == 0 || (named && unmapped() == Some(peer));
    Ok((!trusted).then_some(peer))
}

/// The number that stands for users who are not mapped; `None` where all are (`uid_map` is the
/// initial namespace's).
fn unmapped_user(uid_map: &str, overflow: &str) -> Option<u32> {
    let words: Vec<&str> = uid_map.split_ascii_whitespace().collect();
    if words.is_empty() || words == ["0", "0", "4294967295"] {
        return None;
    }
    overflow.trim().parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_no_connections_in_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _stopped = listen_stream(&path, 0o600, 1).unwrap();
        let limit = Duration::from_millis(20);
        let kept: Result<Vec<UnixStream>, io::Error> =
            (0..64).map(|_| connect_within(&path, limit)).collect();
        assert_eq!(kept.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn bytes_come_without_the_descriptors_beside_them() {
        let (ours, theirs) = pair().unwrap();
        let (watched, given) = lifeline().unwrap();
        send(&theirs, b"hello", &[given.as_fd()]).unwrap();
        drop(given);
        assert_eq!(receive_bytes(&ours, 16, false).unwrap().unwrap(), b"hello");
        assert!(has_hung_up(&watched), "a descriptor was taken");
        let error = receive_bytes(&ours, 16, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        send(&theirs, b"hello", &[]).unwrap();
        assert_eq!(receive_bytes(&ours, 4, true).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(theirs);
        assert!(receive_bytes(&ours, 16, true).unwrap().is_none());
    }

    #[test]
    fn a_socket_that_takes_no_descriptors_is_sent_none() {
        let (ours, theirs) = pair().unwrap();
        let (_watched, given) = lifeline().unwrap();
        if refuse_descriptors(&ours) {
            assert!(send(&theirs, b"hello", &[given.as_fd()]).is_err());
        }
        send(&theirs, b"hello", &[]).unwrap();
    }

    #[test]
    fn each_end_of_a_lifeline_sees_the_others_death() {
        let (ours, theirs) = lifeline().unwrap();
        assert!(!has_hung_up(&ours) && !has_hung_up(&theirs));
        drop(theirs);
        assert!(has_hung_up(&ours));
        let (ours, theirs) = lifeline().unwrap();
        drop(ours);
        assert!(has_hung_up(&theirs));
    }

    #[test]
    fn only_a_user_namespace_has_users_without_a_number() {
        let initial = "         0          0 4294967295\n";
        assert_eq!(unmapped_user(initial, "65534\n"), None);
        let rootless = "0 1001 1\n1 100000 65536\n";
        assert_eq!(unmapped_user(rootless, "65534\n"), Some(65_534));
        assert_eq!(unmapped_user("", "65534\n"), None, "nothing is known: nobody is trusted");
    }

    #[test]
    fn a_peer_of_the_own_user_is_no_stranger_and_has_groups() {
        let (ours, _theirs) = pair().unwrap();
        assert_eq!(stranger(&ours, false).unwrap(), None);
        let own = rustix::process::getegid().as_raw();
        assert!(groups(&ours).unwrap().contains(&own));
    }
}
