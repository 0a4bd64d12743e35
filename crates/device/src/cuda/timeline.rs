//! The device's timestamps on the host's clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::driver::{Driver, Handle, SUCCESS};

/// `cuEventElapsedTime` answers in milliseconds as an `f32`, whose 24 bits resolve 61 ns at one
/// second. So the origin moves along before more than this has passed, in ns.
const REBASE_NS: u64 = 500_000_000;

/// Between two looks at the host's clock the origin happened: this close together, in ns, they tell
/// when well enough. This thread may be off its processor in between, so it tries again.
const GOOD_NS: u64 = 50_000;
const TRIES: u32 = 4;

/// An event that has completed, and when that was on the host's clock.
#[derive(Debug)]
pub(super) struct Timeline {
    origin: Handle,
    origin_ns: u64,
}

impl Timeline {
    /// A timeline whose origin `event` records on the default stream, which must be idle.
    pub(super) fn start(driver: &Driver, event: Handle) -> Self {
        let mut timeline = Self { origin: event, origin_ns: 0 };
        timeline.record(driver);
        timeline
    }

    /// Sets the origin afresh by the host's clock if it is old. Only while the device has nothing
    /// of this context to do: then the event completes at once.
    pub(super) fn refresh(&mut self, driver: &Driver) {
        if monotonic_ns().saturating_sub(self.origin_ns) > REBASE_NS {
            self.record(driver);
        }
    }

    fn record(&mut self, driver: &Driver) {
        for _ in 0..TRIES {
            let before_ns = monotonic_ns();
            // SAFETY: the event belongs to this context; null is the default stream.
            let recorded = unsafe { (driver.event_record)(self.origin, std::ptr::null_mut()) };
            if recorded == SUCCESS {
                // SAFETY: it was recorded just above.
                let _ = unsafe { (driver.event_synchronize)(self.origin) };
            }
            let took_ns = monotonic_ns() - before_ns;
            self.origin_ns = before_ns + took_ns / 2;
            if took_ns < GOOD_NS {
                return;
            }
        }
    }

    /// When a completed event happened, in ns of the host's clock; now if the driver cannot say.
    pub(super) fn at_ns(&self, driver: &Driver, event: Handle) -> u64 {
        let mut ms = 0.0_f32;
        // SAFETY: both events were recorded and have completed; `ms` is a valid place.
        let code = unsafe { (driver.event_elapsed)(&raw mut ms, self.origin, event) };
        if code != SUCCESS || ms.is_nan() {
            return monotonic_ns();
        }
        let since = Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default();
        self.origin_ns.saturating_add(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Waits for the origin, which has happened: a driver prints what kernels printed when somebody
    /// waits for something, and not when it is asked.
    pub(super) fn wait(&self, driver: &Driver) {
        // SAFETY: the event belongs to this context and was recorded.
        let _ = unsafe { (driver.event_synchronize)(self.origin) };
    }

    /// Makes a completed event the origin if the present one is old, for a device that never rests;
    /// returns the event that is free now.
    pub(super) fn advance(&mut self, event: Handle, at_ns: u64) -> Handle {
        if at_ns.saturating_sub(self.origin_ns) <= REBASE_NS {
            return event;
        }
        self.origin_ns = at_ns;
        std::mem::replace(&mut self.origin, event)
    }
}

/// `CLOCK_MONOTONIC`, in ns.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
