//! The system calls that have no safe wrapper elsewhere.

use rustix::process::Pid;

/// The calling thread's id.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Whether a thread of this process with that id exists.
pub(crate) fn thread_exists(id: u32) -> bool {
    let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = id.as_raw_nonzero().get();
    // SAFETY: `tgkill` with signal 0 only checks; all arguments are integers.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
