//! How the system's scheduler treats a thread, of this process or of another one.
//!
//! Threads are named by their system id; 0 is the calling thread. The ids of another process's
//! threads may be used again at any time: who changes them verifies first whose they are.

use std::io;
use std::time::Duration;

/// What the scheduler does with a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Treatment {
    /// Its class.
    pub class: Class,
    /// Its nice value, for a thread that is not real-time.
    pub nice: i32,
    /// Of an ordinary thread, its slice: the one it asked for or the kernel's usual one. Zero for
    /// others, and where the kernel tells no slices (before Linux 6.12).
    pub slice: Duration,
    /// Whether its children begin as ordinary threads.
    pub resets_on_fork: bool,
}

/// A scheduling class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER`: what a thread is unless somebody says otherwise.
    Normal,
    /// `SCHED_RR` or `SCHED_FIFO` with this priority.
    Realtime(u32),
    /// Batch, idle, deadline or one of a loaded scheduler.
    Other,
}

/// `struct sched_attr` of the kernel's first version, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of a normal thread: its slice, since Linux 6.12.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const ATTRIBUTES_BYTES: u32 = 48;
const FLAG_RESET_ON_FORK: u64 = 1;

impl Treatment {
    /// Of a thread.
    ///
    /// # Errors
    /// The system's: `ESRCH` when there is no such thread.
    pub fn of(thread: u32) -> io::Result<Self> {
        let attributes = attributes(thread)?;
        let class = match libc::c_int::try_from(attributes.policy) {
            Ok(libc::SCHED_OTHER) => Class::Normal,
            Ok(libc::SCHED_RR | libc::SCHED_FIFO) => Class::Realtime(attributes.priority),
            Ok(_) | Err(_) => Class::Other,
        };
        let slice = if class == Class::Normal { attributes.runtime } else { 0 };
        Ok(Self {
            class,
            nice: attributes.nice,
            slice: Duration::from_nanos(slice),
            resets_on_fork: attributes.flags & FLAG_RESET_ON_FORK != 0,
        })
    }
}

fn attributes(thread: u32) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    // SAFETY: the system writes at most `ATTRIBUTES_BYTES` bytes to `found`, which has that many
    // and of which all bit patterns are valid.
    let answer = unsafe {
        libc::syscall(libc::SYS_sched_getattr, thread, &raw mut found, ATTRIBUTES_BYTES, 0)
    };
    if answer == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// Makes a thread real-time (`SCHED_RR`), and its future children ordinary.
///
/// # Errors
/// The system's: `EPERM` without `CAP_SYS_NICE` or in a control group without real-time run time.
pub fn make_realtime(thread: u32, priority: u32) -> io::Result<()> {
    set_scheduler(thread, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, priority)
}

/// Makes a thread ordinary; its nice value and slice stay. `for_children` keeps the mark that its
/// children begin as ordinary threads, which takes the privilege to remove.
///
/// # Errors
/// The system's.
pub fn make_normal(thread: u32, for_children: bool) -> io::Result<()> {
    let mark = if for_children { libc::SCHED_RESET_ON_FORK } else { 0 };
    set_scheduler(thread, libc::SCHED_OTHER | mark, 0)
}

fn set_scheduler(thread: u32, policy: libc::c_int, priority: u32) -> io::Result<()> {
    let parameter = libc::c_int::try_from(priority).unwrap_or(libc::c_int::MAX);
    // SAFETY: the system reads one `struct sched_param`, which is one int, from a live int.
    let answer = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const parameter)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives an ordinary thread a slice of its own; zero gives it the usual one back. A shorter slice
/// is served sooner after a wake-up and no more often in all (EEVDF). Kernels before 6.12 ignore
/// it.
///
/// # Errors
/// The system's: `EPERM` for a thread of another user without `CAP_SYS_NICE`.
pub fn set_slice(thread: u32, slice: Duration) -> io::Result<()> {
    let before = attributes(thread)?;
    if libc::c_int::try_from(before.policy) != Ok(libc::SCHED_OTHER) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    let wanted = Attributes { size: ATTRIBUTES_BYTES, runtime, ..before };
    // SAFETY: the system reads `wanted.size` bytes, which is the size of the struct.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const wanted, 0) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Which processors the calling thread may use.
///
/// # Errors
/// The system's.
pub fn own_processors() -> io::Result<u32> {
    Ok(rustix::thread::sched_getaffinity(None)?.count())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_set_and_taken_back_and_changes_nothing_else() {
        let before = Treatment::of(0).unwrap();
        assert_eq!(before.class, Class::Normal);
        set_slice(0, Duration::from_micros(100)).unwrap();
        let with = Treatment::of(0).unwrap();
        assert_eq!((with.class, with.nice), (before.class, before.nice));
        set_slice(0, Duration::ZERO).unwrap();
        let after = Treatment::of(0).unwrap();
        // The usual slice, or zero where there are none.
        assert_eq!((after.nice, after.slice), (before.nice, before.slice));
    }

    #[test]
    fn a_thread_that_is_not_there_is_an_error() {
        Treatment::of(i32::MAX.unsigned_abs()).unwrap_err();
        make_normal(i32::MAX.unsigned_abs(), false).unwrap_err();
    }

    #[test]
    fn a_real_time_thread_becomes_ordinary_again_without_privilege() {
        // It never runs real-time for longer than this test's few calls.
        if make_realtime(0, 1).is_err() {
            // Without the privilege there is nothing to give back.
            assert_eq!(Treatment::of(0).unwrap().class, Class::Normal);
            return;
        }
        let boosted = Treatment::of(0).unwrap();
        make_normal(0, true).unwrap();
        assert_eq!((boosted.class, boosted.resets_on_fork), (Class::Realtime(1), true));
        assert_eq!(Treatment::of(0).unwrap().class, Class::Normal);
    }
}
