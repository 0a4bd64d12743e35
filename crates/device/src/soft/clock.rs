//! The device clock.

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// `CLOCK_MONOTONIC` in ns.
pub(crate) fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// `CLOCK_REALTIME` in ns, for `%globaltimer`.
pub(crate) fn wall_ns() -> u64 {
    read(ClockId::Realtime)
}
