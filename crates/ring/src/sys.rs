//! The system calls that have no safe wrapper elsewhere.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;

use crate::peer::Credentials;

/// Supplementary groups that are asked for at first.
const GROUPS_USUAL: usize = 128;

/// The calling thread's id.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The processor that the calling thread runs on, counted from 1; 0 where nobody knows.
#[must_use]
pub fn processor() -> u32 {
    if cfg!(miri) {
        return 0;
    }
    // SAFETY: takes no argument; the C library asks without entering the kernel.
    let processor = unsafe { libc::sched_getcpu() };
    u32::try_from(processor + 1).unwrap_or(0)
}

/// Whether a thread of this process with that id exists.
pub(crate) fn thread_exists(id: u32) -> bool {
    if cfg!(miri) {
        // Miri cannot ask: threads then only take lanes that nobody had.
        return true;
    }
    let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = id.as_raw_nonzero().get();
    // SAFETY: `tgkill` with signal 0 only checks; all arguments are integers.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Has a signal do what it does by default.
pub(crate) fn default_action(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: the default action is no function of this process.
    let before = unsafe { libc::signal(signal, libc::SIG_DFL) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Marks all descriptors but the first three as closed for programs that this process executes.
pub(crate) fn close_rest_on_exec() -> io::Result<()> {
    let (first, last) = (3_u32, u32::MAX);
    // SAFETY: with `CLOSE_RANGE_CLOEXEC` no descriptor is closed now; all arguments are integers.
    let answer =
        unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Who connected a Unix socket.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&found)).unwrap_or(0);
    // SAFETY: `found` is a live `ucred` of `len` bytes, all of whose bit patterns are valid.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // The system says 0 for a process that is invisible from this namespace.
    let pid = u32::try_from(found.pid).ok().filter(|pid| *pid != 0);
    Ok(Credentials { pid, uid: found.uid, gid: found.gid })
}

/// `SO_PASSRIGHTS` of Linux 6.16: whether a socket takes descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the system refuse descriptors that are sent to this socket, or to one accepted on it.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    let no: libc::c_int = 0;
    let len = libc::socklen_t::try_from(size_of_val(&no)).unwrap_or(0);
    // SAFETY: `no` is a live integer of `len` bytes, which the call only reads.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            len,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Supplementary groups of who connected a Unix socket.
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_USUAL];
    let mut bytes = libc::socklen_t::try_from(size_of_val(&*groups)).unwrap_or(0);
    let ask = |groups: &mut [libc::gid_t], bytes: &mut libc::socklen_t| {
        // SAFETY: `groups` has `bytes` bytes, and any bit pattern is a group.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut *bytes,
            )
        };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    match ask(&mut groups, &mut bytes) {
        // The system has said how many bytes they take.
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {
            groups.resize(bytes as usize / size_of::<libc::gid_t>(), 0);
            ask(&mut groups, &mut bytes)?;
        }
        answer => answer?,
    }
    groups.truncate(bytes as usize / size_of::<libc::gid_t>());
    Ok(groups)
}
