//! What all workers of one software device share: its queue, its timeline, its totals.
//!
//! Workers execute in processes of their own, but the device is one. On the real clock an operation
//! holds the turnstile while it runs: first come, first served, like a GPU's hardware queue. On the
//! paced clock it takes its place on the timeline: it starts when it arrives and the one before it
//! has ended. The timeline is one word that is moved by compare-and-swap, so a worker can die at
//! any instant without leaving it broken; the turnstile is repaired by whoever knows of the death.
//!
//! The workers are different tenants', and one that was taken over may write anything here. What it
//! writes delays the others by a bounded time only ([`Patience`]).

mod patience;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_ring::{
    Access, Cells, MapError, MemoryFile, PAGE, SharedMemory, Standing, TURNSTILE_BYTES, Turnstile,
};

use self::patience::Patience;
use crate::clock;

const WORDS: usize = 8;
const TIMELINE_END: usize = 0;
const BUSY: usize = 1;
const EXECUTIONS: usize = 2;
const OVERRUNS: usize = 3;
const LATE: usize = 4;
/// The processor on which the last operation executes, as [`weft_ring::processor`] counts.
const EXECUTOR: usize = 5;
const TURNSTILE: usize = 64;

/// Bytes of shared memory that a device page takes.
pub const DEVICE_PAGE_BYTES: usize = TURNSTILE + TURNSTILE_BYTES;

/// A view of the page, for one participant. Zeroed memory is an idle device.
#[derive(Debug, Clone)]
pub struct DevicePage {
    words: Cells<AtomicU64>,
    turnstile: Turnstile,
    patience: Option<Arc<Patience>>,
}

/// What the device did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceTotals {
    /// Time it was busy, in ns.
    pub busy_ns: u64,
    /// Operations it executed.
    pub executions: u64,
    /// Of these, paced ones that took longer to execute than their model says.
    pub overruns: u64,
    /// Paced ones that executed in time but ended after they were due, because they began late.
    pub late: u64,
}

/// How a paced operation kept to its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It had ended when it was due, or the device is not paced.
    InTime,
    /// It began too late to end when it was due; executing took no longer than the model.
    Late,
    /// Executing took longer than the model: the model is wrong for this machine.
    Overran,
}

impl DevicePage {
    /// Views the page at the start of `memory`.
    ///
    /// # Errors
    /// [`MapError`] when it is too small or read-only.
    pub fn open(memory: &Arc<SharedMemory>) -> Result<Self, MapError> {
        let (words, turnstile) = (memory.cells(0, WORDS)?, Turnstile::view(memory, TURNSTILE)?);
        Ok(Self { words, turnstile, patience: None })
    }

    /// The page of a new file.
    ///
    /// # Errors
    /// [`MapError`] when it is there already, or cannot be made.
    pub fn create(file: &Path) -> Result<Self, MapError> {
        let made = File::options().read(true).write(true).create_new(true).open(file);
        let made = made.map_err(|source| MapError::Os { what: "creating it", source })?;
        let bytes = DEVICE_PAGE_BYTES.next_multiple_of(PAGE) as u64;
        made.set_len(bytes).map_err(|source| MapError::Os { what: "making room", source })?;
        Self::mapped(made)
    }

    /// The page of a file of somebody who does not shrink it, such as whoever started this process.
    ///
    /// # Errors
    /// [`MapError`] when it is not there, or is too small.
    pub fn of_file(file: &Path) -> Result<Self, MapError> {
        let found = File::options().read(true).write(true).open(file);
        Self::mapped(found.map_err(|source| MapError::Os { what: "opening it", source })?)
    }

    fn mapped(file: File) -> Result<Self, MapError> {
        Self::open(&MemoryFile::trusted(file.into())?.map(Access::ReadWrite)?)
    }

    /// The same view for a participant whose turns a gate gives out: `turn` is the number of the
    /// last one, or nothing while there is no gate. It waits for others on the page no longer than
    /// an honest predecessor can make it; `doubt` is called the first time that it went on without
    /// the page, because what is written there cannot be waited for.
    #[must_use]
    pub fn with_turns(
        self,
        turn: impl Fn() -> Option<u64> + Send + Sync + 'static,
        doubt: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let patience = Patience::new(Box::new(turn), Box::new(doubt));
        Self { patience: Some(Arc::new(patience)), ..self }
    }

    /// Removes a dead participant from the queue.
    pub fn repair(&self, dead: u32) {
        self.turnstile.repair(dead);
    }

    /// What the device did so far.
    #[must_use]
    pub fn totals(&self) -> DeviceTotals {
        DeviceTotals {
            busy_ns: self.words[BUSY].load(Ordering::Relaxed),
            executions: self.words[EXECUTIONS].load(Ordering::Relaxed),
            overruns: self.words[OVERRUNS].load(Ordering::Relaxed),
            late: self.words[LATE].load(Ordering::Relaxed),
        }
    }

    /// When everything that the timeline holds will have ended (device clock, ns).
    #[must_use]
    pub fn timeline_end_ns(&self) -> u64 {
        self.words[TIMELINE_END].load(Ordering::Acquire)
    }

    pub(crate) fn enter(&self, me: u32) {
        self.turnstile.enter(me);
    }

    pub(crate) fn is_my_turn(&self, me: u32) -> bool {
        let mine = self.turnstile.turn(me) == Standing::Mine;
        match &self.patience {
            Some(patience) => patience.goes_on(mine, clock::now_ns()),
            None => mine,
        }
    }

    /// Shows where the calling thread executes an operation.
    pub(crate) fn show_executor(&self) {
        let here = u64::from(weft_ring::processor());
        if self.words[EXECUTOR].load(Ordering::Relaxed) != here {
            self.words[EXECUTOR].store(here, Ordering::Relaxed);
        }
    }

    /// Whether the last operation was seen to execute on the calling thread's processor: who polls
    /// there for its end keeps it from that.
    pub(crate) fn is_executed_here(&self) -> bool {
        let executor = self.words[EXECUTOR].load(Ordering::Relaxed);
        executor != 0 && executor == u64::from(weft_ring::processor())
    }

    pub(crate) fn leave(&self, me: u32) {
        self.turnstile.release(me);
    }

    /// Puts an operation of `ns` that arrives at `now` behind everything on the timeline; its start
    /// and end.
    pub(crate) fn reserve(&self, now: u64, ns: u64) -> (u64, u64) {
        let word = &self.words[TIMELINE_END];
        let mut end = word.load(Ordering::Acquire);
        loop {
            let start = match &self.patience {
                Some(patience) => patience.start_ns(now, end),
                None => end.max(now),
            };
            let next = start.saturating_add(ns);
            match word.compare_exchange_weak(end, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if let Some(patience) = &self.patience {
                        patience.took(now, start, next);
                    }
                    return (start, next);
                }
                Err(current) => end = current,
            }
        }
    }

    /// Counts the part of `start_ns..end_ns` that no participant has counted: what a device that
    /// keeps its own time reports when an operation has ended.
    pub(crate) fn occupy(&self, start_ns: u64, end_ns: u64) {
        let before_ns = self.words[TIMELINE_END].fetch_max(end_ns, Ordering::AcqRel);
        self.count(end_ns.saturating_sub(start_ns.max(before_ns)), Kept::InTime);
    }

    /// Counts device time of a session that did not live to report it, in ns.
    pub fn count_abandoned(&self, ns: u64) {
        self.words[BUSY].fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts an operation that occupied the device for `ns`.
    pub(crate) fn count(&self, ns: u64, kept: Kept) {
        self.words[BUSY].fetch_add(ns, Ordering::Relaxed);
        self.words[EXECUTIONS].fetch_add(1, Ordering::Relaxed);
        self.words[OVERRUNS].fetch_add(u64::from(kept == Kept::Overran), Ordering::Relaxed);
        self.words[LATE].fetch_add(u64::from(kept == Kept::Late), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::*;

    fn page() -> DevicePage {
        DevicePage::open(&SharedMemory::anonymous(DEVICE_PAGE_BYTES).unwrap()).unwrap()
    }

    #[test]
    fn operations_follow_each_other_on_the_timeline() {
        let page = page();
        assert_eq!(page.reserve(100, 50), (100, 150));
        assert_eq!(page.reserve(120, 10), (150, 160));
        assert_eq!(page.reserve(500, 10), (500, 510));
        assert_eq!(page.timeline_end_ns(), 510);
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks which processor it runs on")]
    fn who_waits_knows_whether_it_is_in_the_way() {
        let page = page();
        assert!(!page.is_executed_here(), "nobody has executed");
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let mut processors = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
        let on = |processor| {
            let mut only = CpuSet::new();
            only.set(processor);
            rustix::thread::sched_setaffinity(None, &only).unwrap();
        };
        on(processors.next().unwrap());
        page.show_executor();
        assert!(page.is_executed_here());
        if let Some(other) = processors.next() {
            on(other);
            assert!(!page.is_executed_here());
        }
    }

    #[test]
    fn first_come_first_served_and_the_dead_leave() {
        let page = page();
        page.enter(3);
        page.enter(1);
        page.enter(2);
        assert!(page.is_my_turn(3));
        assert!(!page.is_my_turn(1));
        page.leave(3);
        assert!(page.is_my_turn(1));
        page.repair(1);
        assert!(page.is_my_turn(2));
    }

    #[test]
    fn what_a_foreign_worker_writes_stops_nobody() {
        let memory = SharedMemory::anonymous(DEVICE_PAGE_BYTES).unwrap();
        let page = DevicePage::open(&memory).unwrap().with_turns(|| Some(1), || {});
        for word in memory.cells::<AtomicU64>(0, memory.len() / 8).unwrap().iter() {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(page.reserve(100, 50), (100, 150));
        let foreign = page.clone();
        foreign.turnstile.enter(7);
        page.enter(9);
        let began = clock::now_ns();
        while !page.is_my_turn(9) {
            std::thread::yield_now();
            assert!(clock::now_ns() - began < 60_000_000_000, "the device hangs");
        }
        page.leave(9);
    }

    #[test]
    fn a_page_of_a_file_is_seen_by_whoever_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("page");
        let why = |page: Result<DevicePage, MapError>| page.unwrap_err().to_string();
        assert_eq!(why(DevicePage::of_file(&file)), "opening it failed");
        let made = DevicePage::create(&file).unwrap();
        assert_eq!(why(DevicePage::create(&file)), "creating it failed");
        DevicePage::of_file(&file).unwrap().count(7, Kept::Late);
        let expected = DeviceTotals { busy_ns: 7, executions: 1, overruns: 0, late: 1 };
        assert_eq!(made.totals(), expected);
        std::fs::write(&file, "").unwrap();
        assert!(why(DevicePage::of_file(&file)).contains("size of 0 bytes"));
    }

    #[test]
    fn time_that_two_report_counts_once() {
        let page = page();
        page.occupy(100, 200);
        page.occupy(150, 250);
        page.occupy(160, 240);
        page.occupy(300, 310);
        let totals = page.totals();
        assert_eq!((totals.busy_ns, totals.executions), (160, 4));
    }

    #[test]
    fn totals_count() {
        let page = page();
        page.count(10, Kept::InTime);
        page.count(5, Kept::Overran);
        page.count(1, Kept::Late);
        let expected = DeviceTotals { busy_ns: 16, executions: 3, overruns: 1, late: 1 };
        assert_eq!(page.totals(), expected);
    }
}
