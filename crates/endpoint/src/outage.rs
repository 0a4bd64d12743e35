//! Since when a session is without a connection of any use, for the grace time that it has.
//!
//! A connection that took the place of a lost one and was lost as well, before any frame came
//! through or it had stood for a while, ends no outage. Otherwise a peer that resumes and hangs up
//! each time, or something between that breaks every connection off, would keep a session and the
//! calls in it for ever.

use std::time::{Duration, Instant};

/// A connection that has stood for so long was of use, also where nobody had anything to say.
const STOOD: Duration = Duration::from_secs(4);

/// The present outage, or the one before the present connection.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    /// When the present connection took the place of a lost one, and the frames of both sides that
    /// were handled until then.
    resumed: Option<(Instant, u64)>,
}

impl Outage {
    /// There is no connection now, after so many frames of both sides were handled; since when that
    /// counts.
    pub(crate) fn begin(&mut self, now: Instant, handled: u64) -> Instant {
        let was_of_use = self.resumed.take().is_some_and(|(at, before)| {
            handled > before || now.saturating_duration_since(at) >= STOOD
        });
        if was_of_use {
            self.since = None;
        }
        *self.since.get_or_insert(now)
    }

    /// Another connection is there.
    pub(crate) fn end(&mut self, now: Instant, handled: u64) {
        self.resumed = Some((now, handled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_that_was_of_use_ends_an_outage() {
        let mut outage = Outage::default();
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        assert_eq!(outage.begin(at(0), 5), at(0));
        assert_eq!(outage.begin(at(10), 5), at(0), "nothing came meanwhile");
        for again in 1..100 {
            outage.end(at(100 * again), 5);
            assert_eq!(outage.begin(at(100 * again + 50), 5), at(0));
        }
        outage.end(at(20_000), 5);
        assert_eq!(outage.begin(at(20_001), 6), at(20_001), "a frame was handled");
        outage.end(at(30_000), 6);
        assert_eq!(outage.begin(at(34_000), 6), at(34_000), "it had nothing to do");
    }
}
