//! How many refusals are written into the audit, which nothing is ever removed from: pure.
//!
//! Of each source so many stand in it in a minute, and of so many sources; all others have one
//! share together. Those who show a token that is known and those who show none have tables of
//! their own: whoever has no token hides nobody else's refusals. The rest is counted, and the first
//! one that is written in a later minute tells how many they were. So whoever guesses tokens is
//! seen, and cannot fill the disk.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The time after which a source has its share again.
const WINDOW: Duration = Duration::from_secs(60);

/// Refusals of one source that are written in that time.
const OF_SOURCE: u64 = 10;

/// Sources of a table that have a share of their own in that time.
const SOURCES_MAX: usize = 32;

/// The time after which more is written of those who show no token that is known.
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// What is written of them in that time: some megabytes.
const OF_DAY: u64 = 10_000;

/// Who was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A token that is known, by its name.
    Token(&'a str),
    /// Somebody who showed none, from there if that is known.
    Nobody(Option<IpAddr>),
}

impl Source<'_> {
    /// What shares are by: a host may have all addresses of an IPv6 network of 64 bits.
    fn key(self) -> String {
        match self {
            Self::Token(name) => name.to_owned(),
            Self::Nobody(None) => String::new(),
            Self::Nobody(Some(address)) => match address.to_canonical() {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => {
                    Ipv6Addr::from_bits((address.to_bits() >> 64) << 64).to_string()
                }
            },
        }
    }

    fn is_nobody(self) -> bool {
        matches!(self, Self::Nobody(_))
    }
}

/// Refusals of a minute, by source, and those of all sources for which there was no room.
#[derive(Debug, Default)]
struct Table {
    of: BTreeMap<String, u64>,
    others: u64,
}

impl Table {
    /// One more; whether its source has a share left.
    fn count(&mut self, source: String) -> bool {
        let has_room = self.of.len() < SOURCES_MAX || self.of.contains_key(&source);
        let count = if has_room { self.of.entry(source).or_default() } else { &mut self.others };
        *count += 1;
        *count <= OF_SOURCE
    }
}

/// The refusals of this minute, and what was not written.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    since: Option<Instant>,
    tokens: Table,
    nobody: Table,
    /// Since when those of nobody are counted that were written, and how many they are.
    day: Option<Instant>,
    of_day: u64,
    /// What was left out in this minute, and what was before it and nobody has been told of.
    left_out: u64,
    before: u64,
}

impl Refusals {
    /// One more; if it is to be written, how many were left out in the minutes before.
    pub(crate) fn count(&mut self, source: Source<'_>, now: Instant) -> Option<u64> {
        self.turn(now);
        let table = if source.is_nobody() { &mut self.nobody } else { &mut self.tokens };
        if !table.count(source.key()) || (source.is_nobody() && self.of_day >= OF_DAY) {
            self.left_out += 1;
            return None;
        }
        self.of_day += u64::from(source.is_nobody());
        Some(std::mem::take(&mut self.before))
    }

    /// What was to be written was not: it is left out itself, and those are untold that it would
    /// have told of.
    pub(crate) fn give_back(&mut self, source: Source<'_>, before: u64) {
        self.before += before;
        self.left_out += 1;
        self.of_day = self.of_day.saturating_sub(u64::from(source.is_nobody()));
    }

    /// Begins another minute, or day, if one is over.
    fn turn(&mut self, now: Instant) {
        let is_over = |since: Option<Instant>, limit: Duration| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= limit)
        };
        if is_over(self.since, WINDOW) {
            self.since = Some(now);
            (self.tokens, self.nobody) = (Table::default(), Table::default());
            self.before += std::mem::take(&mut self.left_out);
        }
        if is_over(self.day, DAY) {
            (self.day, self.of_day) = (Some(now), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: u32) -> Source<'static> {
        Source::Nobody(Some(IpAddr::V4(address.into())))
    }

    /// How many of these are written.
    fn written(
        refusals: &mut Refusals,
        now: Instant,
        sources: impl IntoIterator<Item = Source<'static>>,
    ) -> u64 {
        sources.into_iter().map(|source| u64::from(refusals.count(source, now).is_some())).sum()
    }

    #[test]
    fn one_source_does_not_fill_the_audit_nor_keep_others_out_of_it() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        assert_eq!(written(&mut refusals, now, (0..1_000).map(|_| from(1))), OF_SOURCE);
        assert_eq!(refusals.count(from(2), now), Some(0), "that is told when the minute is over");
        // Whoever has no room has a share with all others who have none.
        let expected = SOURCES_MAX as u64 - 2 + OF_SOURCE;
        assert_eq!(written(&mut refusals, now, (3..1_003).map(from)), expected);
        // Nobody who has no token hides what those are refused who have one.
        assert_eq!(refusals.count(Source::Token("ann"), now), Some(0));
        let left_out = 1_000 - OF_SOURCE + 1_000 - expected;
        let next = now + WINDOW;
        assert_eq!(refusals.count(Source::Token("ann"), next), Some(left_out));
        assert_eq!(refusals.count(from(1), next), Some(0), "and once");
    }

    #[test]
    fn a_network_of_one_host_is_one_source() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let of = |number: u128| Source::Nobody(Some(IpAddr::V6(((0x2001 << 112) | number).into())));
        assert_eq!(written(&mut refusals, now, (0..100).map(of)), OF_SOURCE);
        assert!(refusals.count(of(1 << 64), now).is_some());
        let mapped: IpAddr = "::ffff:0.0.0.1".parse().unwrap();
        assert_eq!(Source::Nobody(Some(mapped)).key(), from(1).key());
    }

    #[test]
    fn what_was_not_kept_is_told_by_another_one() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        written(&mut refusals, now, (0..20).map(|_| from(1)));
        let next = now + WINDOW;
        let before = refusals.count(from(1), next).unwrap();
        refusals.give_back(from(1), before);
        assert_eq!(refusals.count(from(1), next), Some(20 - OF_SOURCE));
        assert_eq!(refusals.count(from(1), next + WINDOW), Some(1));
    }

    #[test]
    fn nobody_fills_the_disk_from_however_many_addresses() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let mut of_day = 0;
        for minute in 0..24 * 60 {
            let now = begun + minute * WINDOW;
            of_day += written(&mut refusals, now, (0..100).map(from));
        }
        assert_eq!(of_day, OF_DAY);
        let last = begun + DAY - Duration::from_secs(1);
        assert!(refusals.count(Source::Token("ann"), last).is_some());
        assert!(refusals.count(from(1), begun + DAY).is_some());
    }
}
