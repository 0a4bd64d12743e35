//! When operations begin and end: on the timeline of a paced device, and on the real clock.

use crate::clock;
use crate::page::Kept;

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
    watched: Option<Watched>,
}

/// The clock and the thread's time when they were read first on the real clock, and for how long
/// the operation had slept then. From there to its end: a thread loses its processor most often in
/// the system call that reads its time, so what is lost shows in no spell alone.
#[derive(Debug, Clone, Copy)]
struct Watched {
    wall_ns: u64,
    cpu_ns: u64,
    asleep_ns: u64,
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
            watched: None,
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
    pub(super) fn begin(&mut self) -> Executing {
        if let Some(since_ns) = self.asleep_since_ns.take() {
            self.asleep_ns += clock::now_ns().saturating_sub(since_ns);
        }
        if self.is_paced {
            let cpu_ns = Some(clock::thread_cpu_ns());
            return Executing { wall_ns: clock::now_ns(), cpu_ns };
        }
        let wall_ns = clock::now_ns();
        self.first_ns.get_or_insert(wall_ns);
        // Reading this clock takes a system call, which operations of one spell do not pay.
        if self.executed_ns > 0 && self.watched.is_none() {
            let (cpu_ns, asleep_ns) = (clock::thread_cpu_ns(), self.asleep_ns);
            self.watched = Some(Watched { wall_ns, cpu_ns, asleep_ns });
        }
        Executing { wall_ns, cpu_ns: None }
    }

    /// It ends.
    pub(super) fn end(&mut self, since: Executing) {
        if let Some(before_ns) = since.cpu_ns {
            let took_ns = clock::now_ns().saturating_sub(since.wall_ns);
            let had_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
            self.executed_ns += took_ns;
            self.lost_ns += took_ns.saturating_sub(had_ns);
            return;
        }
        let cpu_ns = self.watched.map(|_| clock::thread_cpu_ns());
        let now_ns = clock::now_ns();
        let first_ns = self.first_ns.unwrap_or(since.wall_ns);
        self.executed_ns = now_ns.saturating_sub(first_ns).saturating_sub(self.asleep_ns);
        if let (Some(watched), Some(cpu_ns)) = (self.watched, cpu_ns) {
            let slept_ns = self.asleep_ns - watched.asleep_ns;
            let passed_ns = now_ns.saturating_sub(watched.wall_ns).saturating_sub(slept_ns);
            self.lost_ns = passed_ns.saturating_sub(cpu_ns.saturating_sub(watched.cpu_ns));
        }
    }

    /// The operation sleeps until the next one.
    pub(super) fn sleep(&mut self) {
        self.asleep_since_ns = Some(clock::now_ns());
    }
}

/// What launches take: the time from when an operation was ready, and the device free for it, until
/// it executes. It is the operation's own, or commands that take longer to launch than to execute
/// would take the device for nothing. By the clock: whatever kept the launch, others waited for it.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// Since when the next operation is being launched, if it was ready then.
    since_ns: Option<u64>,
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
    }

    /// The device was not kept for the next operation.
    pub(super) fn forget(&mut self) {
        self.since_ns = None;
    }

    /// When an operation begins whose execution begins at `now_ns`: with its launch.
    pub(super) fn begin(&mut self, now_ns: u64) -> u64 {
        self.since_ns.take().map_or(now_ns, |since_ns| since_ns.min(now_ns))
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

    /// What others had of the processor is between two spells as well as within one, and sleep is
    /// neither.
    #[test]
    fn what_passes_between_spells_is_lost() {
        let mut spells = Spells::new(false);
        let spell = spells.begin();
        while clock::now_ns() <= spell.wall_ns {}
        spells.end(spell);
        assert_eq!(spells.lost_ns(), 0, "nobody looks in a first spell");
        let spell = spells.begin();
        spells.end(spell);
        others_have_the_processor(20_000_000);
        let spell = spells.begin();
        spells.end(spell);
        let lost_ns = spells.lost_ns();
        // Starting a thread is a little work of one's own.
        assert!((18_000_000..=spells.executed_ns()).contains(&lost_ns), "{spells:?}");
        spells.sleep();
        others_have_the_processor(40_000_000);
        let spell = spells.begin();
        spells.end(spell);
        assert!(spells.occupied_ns() >= 40_000_000, "{spells:?}");
        assert!(spells.asleep_ns >= 40_000_000, "{spells:?}");
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
    fn a_launch_is_a_part_of_what_was_ready() {
        let mut launches = Launches::default();
        launches.follow(997_000);
        assert_eq!(launches.begin(1_000_000), 997_000);
        // It was for that one.
        assert_eq!(launches.begin(1_001_000), 1_001_000);
        // However long it took: a worker that walks a graph of thousands of nodes, say.
        launches.follow(1_001_000);
        assert_eq!(launches.begin(5_000_000), 1_001_000);
        // Something in the future is no launch.
        launches.follow(7_000_000);
        assert_eq!(launches.begin(6_500_000), 6_500_000);
        launches.make_free();
        launches.follow(6_600_000);
        assert_eq!(launches.begin(6_601_000), 6_601_000);
    }
}
