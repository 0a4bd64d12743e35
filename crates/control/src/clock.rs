//! The wall clock, for what is kept and shown, and one that nobody sets, for what is waited for.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Readings of both clocks that are remembered: one for each time that the wall clock was set.
const READINGS_MAX: usize = 64;

/// What the wall clock may differ from the other one before it is taken to have been set.
const TOLERANCE_MS: u64 = 1_000;

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    lock().read(now_ms, Instant::now());
    now_ms
}

/// How long this process has waited for what began when the wall clock said so: no wait of an
/// earlier process counts, and none that is a step of the clock. What began later than the wall
/// clock ever said here is not waited for yet.
#[must_use]
pub fn waited(since_ms: u64) -> Duration {
    // What it says now is remembered.
    let _ = now_ms();
    lock().waited(since_ms, Instant::now())
}

/// How long the wall clock has gone on as the other one does, as far as this process has seen.
#[must_use]
pub fn steady() -> Duration {
    let _ = now_ms();
    lock().steady(Instant::now())
}

fn lock() -> std::sync::MutexGuard<'static, Readings> {
    static READINGS: Mutex<Readings> = Mutex::new(Readings(Vec::new()));
    READINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the wall clock said at instants: when this process first asked, and after each step.
#[derive(Debug)]
struct Readings(Vec<(u64, Instant)>);

impl Readings {
    fn read(&mut self, wall_ms: u64, now: Instant) {
        let expected = self.says(now);
        if expected.is_none_or(|expected| expected.abs_diff(wall_ms) > TOLERANCE_MS) {
            if self.0.len() >= READINGS_MAX {
                // The first one is when the process began.
                self.0.remove(1);
            }
            self.0.push((wall_ms, now));
        }
    }

    /// What the wall clock says then.
    fn says(&self, now: Instant) -> Option<u64> {
        self.0.last().map(|(ms, at)| ms.saturating_add(passed_ms(*at, now)))
    }

    /// Since the last step.
    fn steady(&self, now: Instant) -> Duration {
        self.0.last().map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at))
    }

    /// Since the latest instant at which the wall clock said so: where it was set back, it did so
    /// twice.
    fn waited(&self, since_ms: u64, now: Instant) -> Duration {
        let at = (0..self.0.len()).rev().find_map(|number| {
            let (ms, begun) = self.0[number];
            let end = self.0.get(number + 1).map_or(now, |(_, at)| *at);
            let at = begun.checked_add(Duration::from_millis(since_ms.checked_sub(ms)?))?;
            (at <= end + Duration::from_millis(TOLERANCE_MS)).then_some(at)
        });
        // What began earlier is waited for since this process has been. What another replica began
        // whose clock is ahead of this one begins now.
        let is_ahead = self.says(now).is_some_and(|wall_ms| since_ms > wall_ms);
        let first = self.0.first().filter(|_| !is_ahead).map(|(_, begun)| *begun);
        let at = at.or(first).unwrap_or(now);
        now.saturating_duration_since(at)
    }
}

fn passed_ms(since: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_step_of_the_clock_is_not_waited_for() {
        for (step, is_back) in [(3_600_000, false), (3_600_000, true)] {
            let (mut readings, begun) = (Readings(Vec::new()), Instant::now());
            readings.read(10_000_000, begun);
            let made_ms = 10_005_000;
            readings.read(made_ms, begun + 5 * S);
            let now_ms: u64 = if is_back { made_ms + 2_000 - step } else { made_ms + 2_000 + step };
            readings.read(now_ms, begun + 7 * S);
            assert_eq!(readings.waited(made_ms, begun + 8 * S), 3 * S, "{is_back}");
            // And of what was made after the step the same.
            assert_eq!(readings.waited(now_ms + 1_000, begun + 12 * S), 4 * S, "{is_back}");
        }
    }

    #[test]
    fn no_wait_of_an_earlier_process_counts() {
        let (mut readings, begun) = (Readings(Vec::new()), Instant::now());
        readings.read(10_000_000, begun);
        assert_eq!(readings.waited(1, begun + 2 * S), 2 * S);
        assert_eq!(readings.waited(10_001_000, begun + 2 * S), S);
    }

    #[test]
    fn what_a_clock_that_is_ahead_has_begun_is_not_waited_for_yet() {
        let (mut readings, begun) = (Readings(Vec::new()), Instant::now());
        readings.read(10_000_000, begun);
        let now = begun + 3 * 3_600 * S;
        let now_ms = 10_000_000 + 3 * 3_600_000;
        assert_eq!(readings.waited(now_ms + 30_000, now), Duration::ZERO);
        assert_eq!(readings.waited(now_ms - 30_000, now), 30 * S);
    }

    #[test]
    fn a_clock_is_steady_since_it_was_set_last() {
        let (mut readings, begun) = (Readings(Vec::new()), Instant::now());
        assert_eq!(readings.steady(begun), Duration::ZERO);
        readings.read(10_000_000, begun);
        readings.read(10_005_000, begun + 5 * S);
        assert_eq!(readings.steady(begun + 6 * S), 6 * S);
        readings.read(900_000_000, begun + 7 * S);
        assert_eq!(readings.steady(begun + 9 * S), 2 * S);
    }

    #[test]
    fn readings_are_bounded() {
        let (mut readings, begun) = (Readings(Vec::new()), Instant::now());
        for step in 0..200 {
            readings.read(step * 10_000_000, begun);
        }
        assert_eq!(readings.0.len(), READINGS_MAX);
        assert_eq!(readings.0[0], (0, begun));
    }
}
