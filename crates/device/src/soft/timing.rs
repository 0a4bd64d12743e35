//! When operations begin and end: on the timeline of a paced device, and on the real clock.

use std::time::Duration;

use crate::clock;
use crate::page::Kept;

/// What a launch on the real clock may take without a look at what others had of the processor.
const LAUNCH_UNSEEN_NS: u64 = 20_000;

/// And a spell of execution.
const SPELL_UNSEEN_NS: u64 = 100_000;

/// And a rest between two operations, in which a thread polls. A longer one may have been slept.
const REST_UNSEEN_NS: u64 = 50_000;

/// A look is counted from for so long at most. What interrupts a processor for less than a rest or
/// a spell that nobody looks at adds up meanwhile.
const LOOK_LASTS_NS: u64 = 100_000_000;

/// An operation's place on the timeline of a paced device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paced {
    /// When it begins.
    pub(super) start_ns: u64,
    /// When it ends.
    pub(super) end_ns: u64,
    /// The block that it stops before.
    pub(super) until_block: u64,
}

impl Paced {
    /// How an operation kept to this place on the timeline that ends at `now_ns` after executing
    /// for `executed_ns`.
    ///
    /// Waiting to begin is not the operation's fault, and shows in every throughput; being
    /// descheduled while it executes is counted against it.
    pub(super) const fn kept(self, now_ns: u64, executed_ns: u64) -> Kept {
        if now_ns <= self.end_ns {
            Kept::InTime
        } else if executed_ns > self.end_ns - self.start_ns {
            Kept::Overran
        } else {
            Kept::Late
        }
    }
}

/// What others had of this thread's processor, on the real clock.
///
/// Reading the thread's time is a system call, in which a thread loses its processor more often
/// than anywhere else. So one look counts from the last one, whatever was done in between, and what
/// is short makes none.
#[derive(Debug, Default)]
pub(super) struct Processor {
    /// The clock and the thread's time when somebody looked last.
    seen: Option<(u64, u64)>,
    /// When it had something to do last.
    busy_ns: u64,
}

impl Processor {
    /// The thread sleeps.
    fn forget(&mut self) {
        self.seen = None;
    }

    /// From `now_ns` on it has something to do.
    fn watch(&mut self, now_ns: u64) {
        let is_fresh = |(then_ns, _): &(u64, u64)| now_ns.saturating_sub(*then_ns) < LOOK_LASTS_NS;
        let has_rested = now_ns.saturating_sub(self.busy_ns) > REST_UNSEEN_NS;
        if has_rested || !self.seen.as_ref().is_some_and(is_fresh) {
            let wall_ns = clock::now_ns();
            self.seen = Some((wall_ns, clock::thread_cpu_ns()));
        }
        self.busy_ns = now_ns;
    }

    /// Until `now_ns` it had.
    fn rest(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
    }

    /// How long others had it since the last look, and the clock; both in ns.
    fn look(&mut self) -> (u64, u64) {
        let cpu_ns = clock::thread_cpu_ns();
        let wall_ns = clock::now_ns();
        let lost_ns = self.seen.replace((wall_ns, cpu_ns)).map_or(0, |(then_ns, had_ns)| {
            let passed_ns = wall_ns.saturating_sub(then_ns);
            passed_ns.saturating_sub(cpu_ns.saturating_sub(had_ns))
        });
        (lost_ns, wall_ns)
    }

    /// Time passes that the operation pays for although the thread sleeps.
    pub(super) fn sleep(&mut self, ns: u64) {
        let (lost_ns, _) = self.look();
        std::thread::sleep(Duration::from_nanos(ns));
        let (wall_ns, cpu_ns) = (clock::now_ns(), clock::thread_cpu_ns());
        // What was lost before stays to be told.
        self.seen = Some((wall_ns.saturating_sub(lost_ns), cpu_ns));
    }
}

/// The spells in which a thread executed an operation, and what the operation had of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spells {
    is_paced: bool,
    executed_ns: u64,
    lost_ns: u64,
    asleep_ns: u64,
    asleep_since_ns: Option<u64>,
    /// When the first began.
    first_ns: Option<u64>,
}

/// When a spell began: by the clock, and on a paced one by the thread's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Executing {
    wall_ns: u64,
    cpu_ns: Option<u64>,
}

impl Spells {
    /// None, of an operation of a paced device or on the real clock.
    pub(super) const fn new(is_paced: bool) -> Self {
        Self {
            is_paced,
            executed_ns: 0,
            lost_ns: 0,
            asleep_ns: 0,
            asleep_since_ns: None,
            first_ns: None,
        }
    }

    /// Time that the operation executed so far, sleep apart, in ns: what a paced operation's model
    /// must cover.
    pub(super) const fn executed_ns(&self) -> u64 {
        self.executed_ns
    }

    /// How much of that, where it is measured, the processor was somebody else's, in ns: the device
    /// did not execute meanwhile, so nobody is charged for it.
    pub(super) const fn lost_ns(&self) -> u64 {
        self.lost_ns
    }

    /// For how long it occupied the device by its own doing, in ns.
    pub(super) const fn occupied_ns(&self) -> u64 {
        self.executed_ns.saturating_sub(self.lost_ns) + self.asleep_ns
    }

    /// One begins.
    pub(super) fn begin(&mut self, processor: &mut Processor) -> Executing {
        if let Some(since_ns) = self.asleep_since_ns.take() {
            self.asleep_ns += clock::now_ns().saturating_sub(since_ns);
            processor.watch(clock::now_ns());
        }
        let cpu_ns = self.is_paced.then(clock::thread_cpu_ns);
        let wall_ns = clock::now_ns();
        self.first_ns.get_or_insert(wall_ns);
        Executing { wall_ns, cpu_ns }
    }

    /// It ends.
    pub(super) fn end(&mut self, since: Executing, processor: &mut Processor) {
        let mut now_ns = clock::now_ns();
        if let Some(before_ns) = since.cpu_ns {
            let took_ns = now_ns.saturating_sub(since.wall_ns);
            let had_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
            self.executed_ns += took_ns;
            self.lost_ns += took_ns.saturating_sub(had_ns);
            return;
        }
        if now_ns.saturating_sub(since.wall_ns) > SPELL_UNSEEN_NS {
            let (lost_ns, wall_ns) = processor.look();
            self.lost_ns += lost_ns;
            now_ns = wall_ns;
        }
        processor.rest(now_ns);
        let first_ns = self.first_ns.unwrap_or(since.wall_ns);
        self.executed_ns = now_ns.saturating_sub(first_ns).saturating_sub(self.asleep_ns);
    }

    /// The operation sleeps until the next one.
    pub(super) fn sleep(&mut self, processor: &mut Processor) {
        self.asleep_since_ns = Some(clock::now_ns());
        processor.forget();
    }
}

/// What launches take: the time from when an operation was ready, and the device free for it, until
/// it executes. It is the operation's own, or commands that take longer to launch than to execute
/// would take the device for nothing; but for what others had of the thread's processor.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// Since when the next operation is being launched, if it was ready then.
    since_ns: Option<u64>,
    /// The processor of the thread that launches and executes.
    pub(super) processor: Processor,
    /// Nobody is charged for them.
    are_free: bool,
}

impl Launches {
    /// From now on nobody is charged for them.
    pub(super) fn make_free(&mut self) {
        self.are_free = true;
    }

    /// The next operation was ready at `since_ns`, which is about now.
    pub(super) fn follow(&mut self, since_ns: u64) {
        self.since_ns = (!self.are_free).then_some(since_ns);
        self.processor.watch(since_ns);
    }

    /// The device was not kept for the next operation.
    pub(super) fn forget(&mut self) {
        self.since_ns = None;
    }

    /// When an operation begins whose execution begins at `now_ns`: with its launch.
    pub(super) fn begin(&mut self, now_ns: u64) -> u64 {
        let Some(since_ns) = self.since_ns.take() else {
            self.processor.watch(now_ns);
            return now_ns;
        };
        let took_ns = now_ns.saturating_sub(since_ns);
        if took_ns <= LAUNCH_UNSEEN_NS {
            return now_ns - took_ns;
        }
        let (lost_ns, now_ns) = self.processor.look();
        let own_ns = now_ns.saturating_sub(since_ns).saturating_sub(lost_ns);
        now_ns - own_ns.max(LAUNCH_UNSEEN_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns when so much time has passed, in which this thread had no processor.
    fn others_have_the_processor(ns: u64) {
        let until_ns = clock::now_ns() + ns;
        std::thread::spawn(move || while clock::now_ns() < until_ns {}).join().unwrap();
    }

    /// Returns when this thread had its processor for so long.
    fn work(ns: u64) {
        let until_ns = clock::thread_cpu_ns() + ns;
        while clock::thread_cpu_ns() < until_ns {}
    }

    /// What others had of the processor is between two spells as well as within one, and sleep is
    /// neither.
    #[test]
    fn what_passes_between_spells_is_lost() {
        let (mut spells, mut processor) = (Spells::new(false), Processor::default());
        processor.watch(clock::now_ns());
        let spell = spells.begin(&mut processor);
        work(2_000_000);
        spells.end(spell, &mut processor);
        let before_ns = spells.lost_ns();
        others_have_the_processor(20_000_000);
        let spell = spells.begin(&mut processor);
        work(2_000_000);
        spells.end(spell, &mut processor);
        let lost_ns = spells.lost_ns() - before_ns;
        assert!((18_000_000..=spells.executed_ns()).contains(&lost_ns), "{spells:?}");
        spells.sleep(&mut processor);
        let lost_ns = spells.lost_ns();
        others_have_the_processor(40_000_000);
        let spell = spells.begin(&mut processor);
        spells.end(spell, &mut processor);
        assert!(spells.occupied_ns() >= 40_000_000, "{spells:?}");
        assert!(spells.asleep_ns >= 40_000_000 && spells.lost_ns() == lost_ns, "{spells:?}");
    }

    /// Nor is time that the operation is meant to take.
    #[test]
    fn what_is_slept_on_purpose_is_paid_for() {
        let mut processor = Processor::default();
        processor.watch(clock::now_ns());
        others_have_the_processor(20_000_000);
        processor.sleep(40_000_000);
        let (lost_ns, _) = processor.look();
        assert!(lost_ns >= 18_000_000, "what was lost before is forgotten: {lost_ns}");
        let mut processor = Processor::default();
        processor.watch(clock::now_ns());
        let began_ns = clock::now_ns();
        processor.sleep(40_000_000);
        let passed_ns = clock::now_ns() - began_ns;
        let (lost_ns, _) = processor.look();
        assert!(lost_ns + 40_000_000 <= passed_ns + 1_000_000, "{lost_ns} of {passed_ns}");
    }

    #[test]
    fn what_was_not_ready_begins_when_it_executes() {
        let mut launches = Launches::default();
        assert_eq!(launches.begin(1_000_000), 1_000_000);
        launches.follow(500_000);
        launches.forget();
        assert_eq!(launches.begin(1_000_000), 1_000_000);
    }

    #[test]
    fn a_short_launch_is_a_part_of_what_was_ready() {
        let mut launches = Launches::default();
        launches.follow(997_000);
        assert_eq!(launches.begin(1_000_000), 997_000);
        // It was for that one.
        assert_eq!(launches.begin(1_001_000), 1_001_000);
        // Something in the future is no launch.
        launches.follow(7_000_000);
        assert_eq!(launches.begin(6_500_000), 6_500_000);
        launches.make_free();
        launches.follow(6_600_000);
        assert_eq!(launches.begin(6_601_000), 6_601_000);
    }

    /// The thread's time is read by a system call, which the common path does not make.
    #[test]
    fn who_rests_for_moments_looks_once() {
        let mut launches = Launches::default();
        let began_ns = clock::now_ns();
        launches.begin(began_ns);
        let seen = launches.processor.seen;
        assert!(seen.is_some());
        for at_ns in (1..2_000).map(|round| began_ns + round * REST_UNSEEN_NS) {
            launches.begin(at_ns);
            launches.follow(at_ns + 1_000);
            launches.begin(at_ns + 2_000);
            launches.processor.rest(at_ns + 3_000);
            assert_eq!(launches.processor.seen, seen);
        }
        let later_ns = launches.processor.busy_ns + REST_UNSEEN_NS + 1;
        launches.begin(later_ns);
        assert_ne!(launches.processor.seen, seen, "it may have slept");
    }

    /// A worker that walks a graph of thousands of nodes, say, between two kernels.
    #[test]
    fn a_long_launch_is_charged_what_the_thread_had_of_the_processor() {
        let mut launches = Launches::default();
        let ready_ns = clock::now_ns();
        launches.follow(ready_ns);
        work(5_000_000);
        let now_ns = clock::now_ns();
        let began_ns = launches.begin(now_ns);
        assert!(clock::now_ns() - began_ns >= 5_000_000, "its own work is charged");
        // What the turn before lost is no refund for this launch.
        others_have_the_processor(30_000_000);
        launches.forget();
        let ready_ns = clock::now_ns();
        launches.follow(ready_ns);
        work(5_000_000);
        others_have_the_processor(30_000_000);
        let passed_ns = clock::now_ns() - ready_ns;
        let began_ns = launches.begin(clock::now_ns());
        let charged_ns = clock::now_ns() - began_ns;
        assert!(charged_ns >= 5_000_000, "{charged_ns}");
        assert!(charged_ns <= passed_ns - 28_000_000, "{charged_ns} of {passed_ns}");
    }
}
