//! How many refusals are written into the audit, which nothing is ever removed from: pure.
//!
//! Of each source so many stand in it in a minute, and of so many sources at once; the rest is
//! counted, and the next one that is written tells how many they were. So whoever guesses tokens is
//! seen, and cannot fill the disk.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time after which a source has its share again.
const WINDOW: Duration = Duration::from_secs(60);

/// Refusals of one source that are written in that time.
const OF_SOURCE: u64 = 10;

/// Sources of which refusals are written in that time.
const SOURCES_MAX: usize = 32;

/// The refusals of this minute, by source, and what was not written.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    since: Option<Instant>,
    of: BTreeMap<String, u64>,
    left_out: u64,
}

impl Refusals {
    /// One more; if it is to be written, how many were left out before.
    pub(crate) fn count(&mut self, source: &str, now: Instant) -> Option<u64> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            self.of.clear();
        }
        if let Some(count) = self.of.get_mut(source) {
            *count += 1;
            if *count <= OF_SOURCE {
                return Some(std::mem::take(&mut self.left_out));
            }
        } else if self.of.len() < SOURCES_MAX {
            self.of.insert(source.to_owned(), 1);
            return Some(std::mem::take(&mut self.left_out));
        }
        self.left_out += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_does_not_fill_the_audit_nor_keep_others_out_of_it() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let written = (0..1_000).filter(|_| refusals.count("a", now).is_some()).count();
        assert_eq!(written as u64, OF_SOURCE);
        assert_eq!(refusals.count("b", now), Some(1_000 - OF_SOURCE), "and it tells of the rest");
        assert_eq!(refusals.count("b", now), Some(0));
        let many = (0..1_000).filter(|n| refusals.count(&format!("c{n}"), now).is_some()).count();
        assert_eq!(many, SOURCES_MAX - 2);
        assert_eq!(refusals.count("a", now + WINDOW), Some(1_000 - many as u64));
    }
}
