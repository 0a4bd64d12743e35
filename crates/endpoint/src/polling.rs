//! Polling a socket before sleeping in it, while the next bytes are soon to come.
//!
//! To wake a thread on an idle processor takes longer than all else that a relay does for a call.
//! So whoever has just passed on a call or its answer looks for a while whether the next one comes.
//! It offers its processor to others each time: on a host with few, the threads that bring what it
//! waits for need it.

use std::thread;
use std::time::{Duration, Instant};

/// How long somebody polls for what is soon to come: as long as a program does for an answer that
/// it expects within that.
const POLL: Duration = Duration::from_micros(250);

/// Who got its processor back only after this time has somebody beside it that computes. To sleep
/// is then better than to poll: the system lets who wakes go before who computes.
const HINDERED: Duration = Duration::from_micros(200);

/// Nobody polls for so long after that.
const REST: Duration = Duration::from_millis(100);

/// One thread's polling.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    rests_until: Option<Instant>,
}

impl Polling {
    /// Looks until there is something, [`POLL`] is over or others need the processor.
    pub(crate) fn wait<T>(&mut self, look: impl FnMut() -> Option<T>) -> Option<T> {
        self.wait_with(look, Instant::now, thread::yield_now)
    }

    fn wait_with<T>(
        &mut self,
        mut look: impl FnMut() -> Option<T>,
        clock: impl Fn() -> Instant,
        offer: impl Fn(),
    ) -> Option<T> {
        let began = clock();
        if self.rests_until.is_some_and(|until| began < until) {
            return None;
        }
        let mut before = began;
        while before.duration_since(began) < POLL {
            if let Some(found) = look() {
                return Some(found);
            }
            offer();
            let now = clock();
            if now.duration_since(before) > HINDERED {
                self.rests_until = Some(now + REST);
            }
            before = now;
        }
        look()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Whether a look found anything, and how many there were; each takes `look`, and who offers
    /// the processor gets it back after `away`.
    fn polled(
        polling: &mut Polling,
        clock: &Cell<Instant>,
        away: Duration,
        comes_at: usize,
    ) -> (bool, usize) {
        let looks = Cell::new(0);
        let found = polling.wait_with(
            || {
                looks.set(looks.get() + 1);
                clock.set(clock.get() + Duration::from_micros(1));
                (looks.get() == comes_at).then_some(())
            },
            || clock.get(),
            || clock.set(clock.get() + away),
        );
        (found.is_some(), looks.get())
    }

    #[test]
    fn what_comes_soon_is_found_and_what_does_not_is_not_awaited() {
        let (mut polling, clock) = (Polling::default(), Cell::new(Instant::now()));
        let away = Duration::from_micros(4);
        assert_eq!(polled(&mut polling, &clock, away, 5), (true, 5));
        assert_eq!(polled(&mut polling, &clock, away, 1000), (false, 51));
        assert_eq!(polled(&mut polling, &clock, away, 5), (true, 5));
    }

    #[test]
    fn who_is_hindered_rests_for_a_while() {
        let (mut polling, clock) = (Polling::default(), Cell::new(Instant::now()));
        let away = Duration::from_millis(3);
        assert_eq!(polled(&mut polling, &clock, away, 1000), (false, 2));
        assert_eq!(polled(&mut polling, &clock, Duration::ZERO, 1), (false, 0));
        clock.set(clock.get() + REST);
        assert_eq!(polled(&mut polling, &clock, Duration::ZERO, 1), (true, 1));
    }
}
