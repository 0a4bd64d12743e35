//! The device clock.

use std::mem::MaybeUninit;

/// Reads a clock through the C library, which asks the kernel's shared page: `rustix` was seen to
/// enter the kernel each time inside the worker's sandbox.
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: `now` is a valid place for a `timespec`.
    let result = unsafe { libc::clock_gettime(clock, now.as_mut_ptr()) };
    debug_assert_eq!(result, 0, "the clock exists on every Linux");
    // SAFETY: all zeroes are a valid `timespec`, and the call wrote nothing else into it.
    let now = unsafe { now.assume_init() };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// `CLOCK_MONOTONIC` in ns.
pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Processor time of the calling thread so far, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// `CLOCK_REALTIME` in ns, for `%globaltimer`.
pub(crate) fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}
