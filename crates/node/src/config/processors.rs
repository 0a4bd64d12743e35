//! Processors of the host that somebody is to have.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::process::Pid;
use rustix::thread::CpuSet;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Processors by their numbers, written as the system writes them: `0-3,6`. None is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Processors(BTreeSet<usize>);

impl Processors {
    /// Those on which the calling thread may run.
    ///
    /// # Errors
    /// The system's.
    pub fn of_this_thread() -> io::Result<Self> {
        let set = rustix::thread::sched_getaffinity(None)?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()))
    }

    /// All that are in one of them.
    #[must_use]
    pub fn union<'a>(each: impl IntoIterator<Item = &'a Self>) -> Self {
        Self(each.into_iter().flat_map(|one| &one.0).copied().collect())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Those that `others` do not have.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        Self(self.0.difference(&others.0).copied().collect())
    }

    /// Whether `others` have one of them, too.
    pub(super) fn meets(&self, others: &Self) -> bool {
        !self.0.is_disjoint(&others.0)
    }

    /// Has a thread run nowhere else, and what it starts: the calling one, or the first of a
    /// process.
    ///
    /// # Errors
    /// The system's: `EINVAL` if it has none of them, `EPERM` for another user's thread.
    pub fn keep(&self, thread: Option<Pid>) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|number| set.set(*number));
        Ok(rustix::thread::sched_setaffinity(thread, &set)?)
    }
}

impl FromStr for Processors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no list of processors; `1` or `0-3,6` is one");
        let number = |text: &str| {
            let number = text.trim().parse::<usize>().ok();
            number.filter(|number| *number < CpuSet::MAX_CPU).ok_or_else(wrong)
        };
        let mut all = BTreeSet::new();
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            all.extend(first..=last);
        }
        Ok(Self(all))
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for number in self.0.iter().copied() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => runs.push((number, number)),
            }
        }
        let written = runs.into_iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        formatter.write_str(&written.collect::<Vec<_>>().join(","))
    }
}

impl Serialize for Processors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Processors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl Visitor<'_> for List {
            type Value = Processors;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of processors such as \"0-3,6\"")
            }
            /// One alone may be a number.
            fn visit_i64<E: Error>(self, value: i64) -> Result<Processors, E> {
                value.to_string().parse().map_err(E::custom)
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Processors, E> {
                value.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(List)
    }
}

#[cfg(test)]
mod tests {
    use super::Processors;

    #[test]
    fn lists_are_read_and_written_as_the_system_does() {
        for (text, written) in
            [("0-3,6", "0-3,6"), ("6, 1,0,2", "0-2,6"), ("5", "5"), ("2-2", "2"), ("", "")]
        {
            let parsed: Processors = text.parse().unwrap();
            assert_eq!(parsed.to_string(), written);
            assert_eq!(written.parse(), Ok(parsed));
        }
        for wrong in ["a", "-1", "3-1", "1-", "0,,2", "0-5-6", "99999", "1.5"] {
            let error = wrong.parse::<Processors>().unwrap_err();
            assert!(error.contains(wrong) && error.contains("0-3,6"), "{error}");
        }
    }

    #[test]
    fn what_others_have_is_left_out() {
        let [all, one, other] = ["0-7", "2", "4-6"].map(|text| text.parse::<Processors>().unwrap());
        let taken = Processors::union([&one, &other]);
        assert_eq!(taken.to_string(), "2,4-6");
        assert_eq!(all.without(&taken).to_string(), "0-1,3,7");
        assert_eq!((other.meets(&one), all.meets(&other)), (false, true));
    }

    #[test]
    fn a_thread_is_kept_where_it_may_be() {
        let own = Processors::of_this_thread().unwrap();
        own.keep(None).unwrap();
        assert_eq!(Processors::of_this_thread().unwrap(), own);
        "1023".parse::<Processors>().unwrap().keep(None).unwrap_err();
    }
}
