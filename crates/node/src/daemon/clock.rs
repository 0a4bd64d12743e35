//! The clock of everything that is scheduled.

use rustix::time::ClockId;

/// `CLOCK_MONOTONIC` in ns: the software device's clock, the same in every process.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
