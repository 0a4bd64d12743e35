//! Which vGPUs are interactive.

use core::mem;

use crate::codec::codec;

/// Whether a vGPU calls synchronously so often that it counts as interactive: more than 10 calls
/// per 10 ms (FairGV §3.2.3). It stays so until it makes at most half as many.
///
/// The clock stands while the vGPU waits for a turn, and while it has nothing for its device: a
/// tenant cannot call while it has no device or its thread has no processor, and these are the ones
/// that coscheduling helps most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyncRate {
    /// Of the vGPU's own clock, in ns.
    since_ns: u64,
    calls: u64,
    /// If it waits.
    waiting_since_ns: u64,
    waited_ns: u64,
    waits: bool,
    pub(crate) interactive: bool,
}

impl SyncRate {
    const WINDOW_NS: u64 = 10_000_000;
    const ENTER: u128 = 10;
    const LEAVE: u128 = 5;

    /// The vGPU waits for a turn or for its own program from now on, or no longer.
    pub(crate) fn set_waiting(&mut self, now_ns: u64, waiting: bool) {
        if mem::replace(&mut self.waits, waiting) == waiting {
            return;
        }
        if waiting {
            self.waiting_since_ns = now_ns;
        } else {
            self.waited_ns += now_ns.saturating_sub(self.waiting_since_ns);
        }
    }

    fn waiting_since_ns(&self) -> Option<u64> {
        self.waits.then_some(self.waiting_since_ns)
    }

    /// The vGPU made `calls` more; none brings the classification up to date. Calls within a window
    /// are gathered.
    pub(crate) fn observe(&mut self, now_ns: u64, calls: u64) {
        self.calls = self.calls.saturating_add(calls);
        let own_ns = self.waiting_since_ns().unwrap_or(now_ns).saturating_sub(self.waited_ns);
        let window_ns = own_ns.saturating_sub(self.since_ns);
        if window_ns < Self::WINDOW_NS {
            return;
        }
        let made = u128::from(self.calls) * u128::from(Self::WINDOW_NS);
        let limit = if self.interactive { Self::LEAVE } else { Self::ENTER };
        self.interactive = made > limit * u128::from(window_ns);
        (self.since_ns, self.calls) = (own_ns, 0);
    }
}

codec!(struct SyncRate { since_ns, calls, waiting_since_ns, waited_ns, waits, interactive });

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn interactive_above_ten_calls_per_ten_milliseconds_with_hysteresis() {
        let mut rate = SyncRate::default();
        rate.observe(10 * MS, 10);
        assert!(!rate.interactive, "ten are not more than ten");
        rate.observe(20 * MS, 11);
        assert!(rate.interactive);
        rate.observe(30 * MS, 6);
        assert!(rate.interactive, "six keep it");
        rate.observe(40 * MS, 5);
        assert!(!rate.interactive, "five do not");
    }

    #[test]
    fn waiting_for_a_turn_stops_the_clock() {
        let mut rate = SyncRate::default();
        for turn in 0..4 {
            let begin_ns = turn * 60 * MS;
            rate.set_waiting(begin_ns, false);
            rate.observe(begin_ns + 6 * MS, 8);
            rate.set_waiting(begin_ns + 6 * MS, true);
        }
        assert!(rate.interactive, "8 calls per 6 ms of turns, one turn in ten");
    }
}
