//! Since when a session is without a connection of any use, for the grace time that it has.
//!
//! A connection that took the place of a lost one and was lost as well, before any frame came
//! through or something was heard of it after a while, ends no outage. Otherwise a peer that
//! resumes and hangs up each time, or something between that breaks every connection off, would
//! keep a session and the calls in it for ever.

use std::time::{Duration, Instant};

/// One of which something is heard after so long was of use, also where nobody had much to say.
const STOOD: Duration = Duration::from_secs(4);

/// The present outage, or the one before the present connection.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    /// Frames of both sides that were handled, as far as was known when a connection came or went.
    handled: u64,
    /// When the present connection took the place of a lost one.
    resumed: Option<Instant>,
}

impl Outage {
    /// There is no connection now, after so many frames of both sides were handled, and something
    /// was `heard` of the one that was there; since when that counts.
    pub(crate) fn begin(&mut self, now: Instant, handled: u64, heard: Option<Instant>) -> Instant {
        self.note(handled);
        let stood = |at| heard.is_some_and(|heard| heard.saturating_duration_since(at) >= STOOD);
        if self.resumed.take().is_some_and(stood) {
            self.since = None;
        }
        *self.since.get_or_insert(now)
    }

    /// Another connection is there, and so many frames of both sides were handled before, some of
    /// which may only be known now.
    pub(crate) fn end(&mut self, now: Instant, handled: u64) {
        self.note(handled);
        self.resumed = Some(now);
    }

    fn note(&mut self, handled: u64) {
        if handled > self.handled {
            (self.handled, self.since) = (handled, None);
        }
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
        assert_eq!(outage.begin(at(0), 5, None), at(0));
        assert_eq!(outage.begin(at(10), 5, None), at(0), "nothing came meanwhile");
        for again in 1..100 {
            outage.end(at(100 * again), 5);
            assert_eq!(outage.begin(at(100 * again + 50), 5, Some(at(100 * again + 40))), at(0));
        }
        outage.end(at(20_000), 5);
        assert_eq!(outage.begin(at(20_001), 6, None), at(20_001), "a frame was handled");
        outage.end(at(30_000), 6);
        assert_eq!(outage.begin(at(34_000), 6, Some(at(34_000))), at(34_000), "all was said");
        outage.end(at(40_000), 6);
        assert_eq!(outage.begin(at(48_000), 6, Some(at(40_100))), at(34_000), "it was silent");
    }

    /// What came through before a connection was lost may be known when the next one is there.
    #[test]
    fn what_a_peer_says_as_it_comes_back_counts() {
        let mut outage = Outage::default();
        let began = Instant::now();
        let at = |s: u64| began + Duration::from_secs(s);
        assert_eq!(outage.begin(at(0), 5, None), at(0));
        for again in 1..30 {
            outage.end(at(3 * again - 1), 5 + again);
            assert_eq!(outage.begin(at(3 * again), 5 + again, None), at(3 * again));
        }
    }
}
