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

    /// Of a new session in a virtual machine of user `uid`.
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
        })
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
