//! A session as the coscheduler sees it.

use std::collections::BTreeSet;
use std::time::Duration;

use weft_ring::priority::{self, Class, Treatment};
use weft_ring::{AnswerTo, Callers, Segment};

use super::ability::SLICE;
use super::budget::TurnBudget;
use super::tenant::{self, Tenant, Times};
use super::watchdog::Boosted;
use crate::daemon::attach::vm::Processors;
use crate::link::Start;

/// Between two looks at how long a thread waited for a processor, at least this much passes.
const SAMPLE_NS: u64 = 5_000_000;

/// A thread that spends more than one part in so many ready to run without a processor shares it
/// with others.
const CONTENDED_PART: u64 = 50;

/// What was seen to be contended counts as contended for this long: a boosted thread waits no more,
/// so nothing tells that it would.
const CONTENDED_NS: u64 = 10_000_000_000;

/// Results that come one after the other within this time on average, over so many of them, come
/// sooner than a boost is worth: it begins up to 0.2 ms before its result.
const RAPID_NS: u64 = 200_000;
const RAPID_WAITS: u64 = 64;

/// Between results that are further apart others had the device, or the program had something else
/// to do.
const APART_NS: u64 = 1_000_000;

/// What was seen to be rapid counts as rapid for this long: while nobody is boosted, no results are
/// told.
const RAPID_LASTS_NS: u64 = 10_000_000_000;

/// How soon a tenant's results come one after the other, as far as they are told.
#[derive(Debug, Default)]
struct Pace {
    last_ns: u64,
    /// Times between results, together, and how many of them.
    between_ns: u64,
    waits: u64,
    /// How often they were further apart meanwhile.
    apart: u64,
    rapid_until_ns: u64,
}

impl Pace {
    /// Another result is about to come.
    fn note(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        if passed_ns > APART_NS {
            self.apart += 1;
            return;
        }
        self.between_ns += passed_ns;
        self.waits += 1;
        if self.waits < RAPID_WAITS {
            return;
        }
        // Long kernels with a short one between are worth their boosts.
        if self.between_ns <= RAPID_NS * RAPID_WAITS && self.apart <= RAPID_WAITS / 3 {
            self.rapid_until_ns = now_ns + RAPID_LASTS_NS;
        }
        (self.between_ns, self.waits, self.apart) = (0, 0, 0);
    }

    fn is_rapid(&self, now_ns: u64) -> bool {
        now_ns < self.rapid_until_ns
    }
}

/// A tenant that may be coscheduled.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Its threads that wait.
    pub(crate) callers: Callers,
    /// Its process.
    pub(crate) tenant: Tenant,
    /// Its worker was asked to tell of results.
    pub(crate) is_told: bool,
    /// The last result that was acted on.
    pub(crate) last: Option<AnswerTo>,
    /// How long its threads ran boosted in this turn.
    pub(crate) turn: TurnBudget,
    /// Threads that were given a slice of their own.
    sliced: BTreeSet<u32>,
    sample: Option<Sample>,
    contended_until_ns: u64,
    pace: Pace,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    thread: u32,
    at_ns: u64,
    times: Times,
}

impl Waiters {
    /// Of a session; `adopted` from an earlier daemon, which may have left a thread boosted.
    pub(crate) fn open(segment: &Segment, start: &Start, adopted: bool) -> anyhow::Result<Self> {
        let began = Some(start.began).filter(|began| *began != 0);
        let waiters = Self::new(segment, Tenant::open(start.pid, start.uid, began)?)?;
        if adopted {
            end_boosts(start.pid, &tenant::threads_of(start.pid));
            waiters.callers.set_boosted(0);
        }
        Ok(waiters)
    }

    /// Of a session in a virtual machine of user `uid`.
    pub(crate) fn of_machine(
        segment: &Segment,
        uid: u32,
        processors: Processors,
    ) -> anyhow::Result<Self> {
        Self::new(segment, Tenant::of_machine(processors, uid)?)
    }

    fn new(segment: &Segment, tenant: Tenant) -> anyhow::Result<Self> {
        Ok(Self {
            callers: Callers::open(segment)?,
            tenant,
            is_told: false,
            last: None,
            turn: TurnBudget::default(),
            sliced: BTreeSet::new(),
            sample: None,
            contended_until_ns: 0,
            pace: Pace::default(),
        })
    }

    /// A result is due soon that was not before.
    pub(crate) fn note_due(&mut self, now_ns: u64) {
        self.pace.note(now_ns);
    }

    /// Whether its results come so soon one after the other that nobody is boosted for them.
    pub(crate) fn is_rapid(&self, now_ns: u64) -> bool {
        self.pace.is_rapid(now_ns)
    }

    /// Whether the thread that awaits this result shares its processor with others, as far as the
    /// time that it waits for one tells.
    pub(crate) fn is_contended(&mut self, awaited: AnswerTo, now_ns: u64) -> bool {
        if now_ns < self.contended_until_ns {
            return true;
        }
        let thread = self.callers.thread_of(awaited);
        let Some(thread) = thread.and_then(|claimed| self.tenant.thread(claimed).ok()) else {
            return false;
        };
        let Some(times) = thread.times() else { return false };
        let new = Sample { thread: thread.id, at_ns: now_ns, times };
        let Some(old) = self.sample.filter(|old| old.thread == new.thread) else {
            self.sample = Some(new);
            return false;
        };
        let passed_ns = now_ns.saturating_sub(old.at_ns);
        if passed_ns < SAMPLE_NS {
            return false;
        }
        self.sample = Some(new);
        let waited_ns = times.waited_ns.saturating_sub(old.times.waited_ns);
        if waited_ns.saturating_mul(CONTENDED_PART) <= passed_ns {
            return false;
        }
        self.contended_until_ns = now_ns + CONTENDED_NS;
        true
    }

    /// Gives the thread that awaits this result a short slice, once.
    pub(crate) fn slice(&mut self, awaited: AnswerTo) -> Result<(), String> {
        let Some(claimed) = self.callers.thread_of(awaited) else { return Ok(()) };
        let thread = match self.tenant.thread(claimed) {
            Ok(thread) => thread.id,
            Err(_) => return Ok(()),
        };
        if self.sliced.contains(&thread) {
            return Ok(());
        }
        let is_normal = Treatment::of(thread).is_ok_and(|found| found.class == Class::Normal);
        if is_normal {
            priority::set_slice(thread, SLICE).map_err(|error| error.to_string())?;
            self.sliced.insert(thread);
        }
        Ok(())
    }

    /// Gives the threads their usual slice back.
    pub(crate) fn unslice(&mut self) {
        for thread in std::mem::take(&mut self.sliced) {
            let is_ours = tenant::threads_of(self.tenant.pid()).contains(&thread)
                && Treatment::of(thread).is_ok_and(|found| found.slice == SLICE);
            if is_ours {
                // A thread that ended just now needs nothing.
                let _usual = priority::set_slice(thread, Duration::ZERO);
            }
        }
    }
}

/// Ends boosts that an earlier daemon may have left on threads of a process.
pub(crate) fn end_boosts(pid: u32, threads: &[u32]) {
    for &thread in threads {
        if (Boosted { pid, thread }).end() {
            tracing::warn!(pid, thread, "a boost was left: ended");
        }
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.unslice();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether so many results, so far apart, in turns of so many, are rapid at the end.
    fn is_rapid(apart_ns: u64, waits: u64, turn: u64) -> bool {
        let (mut pace, mut now_ns) = (Pace::default(), 1_000_000_000);
        for wait in 0..waits {
            now_ns += apart_ns + if wait % turn == 0 { 20_000_000 } else { 0 };
            pace.note(now_ns);
        }
        pace.is_rapid(now_ns)
    }

    #[test]
    fn results_that_come_sooner_than_a_boost_are_rapid() {
        assert!(is_rapid(70_000, 500, 100));
        assert!(is_rapid(70_000, 500, 5), "few in each turn");
        assert!(!is_rapid(300_000, 10_000, 20), "each is worth a boost");
        assert!(!is_rapid(70_000, 30, 100), "of few nobody knows");
        assert!(!is_rapid(70_000, 500, 1), "each in a turn of its own");
        assert!(!is_rapid(70_000, 500, 2), "a long kernel, and a short one behind it");
    }

    #[test]
    fn what_was_rapid_is_looked_at_again() {
        let mut pace = Pace::default();
        (0..=RAPID_WAITS).for_each(|wait| pace.note(1_000_000_000 + wait * 50_000));
        assert!(pace.is_rapid(2_000_000_000));
        assert!(!pace.is_rapid(1_100_000_000 + RAPID_LASTS_NS));
    }
}
