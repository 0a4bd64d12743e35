//! When operations begin and end: on the timeline of a paced device, and on the real clock.

use crate::page::Kept;

/// What a launch on the real clock may take without a look at the processor time that the thread
/// had meanwhile. What is beyond both is the machine's doing, which takes the processor away.
const LAUNCH_UNSEEN_NS: u64 = 20_000;

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

/// What launches take: the time from when an operation was ready, and the device free for it, until
/// it executes. It is the operation's own, or commands that take longer to launch than to execute
/// would take the device for nothing.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// Since when the next operation is being launched, if it was ready then.
    since_ns: Option<u64>,
    /// The clock and the thread's processor time when they were read last: at the end of the last
    /// long launch, for reading it is a system call, and short ones make none.
    read: Option<(u64, u64)>,
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

    /// When an operation begins whose execution begins at `now_ns`: with its launch, but for what
    /// the machine took of that.
    pub(super) fn begin(&mut self, now_ns: u64, cpu_ns: impl FnOnce() -> u64) -> u64 {
        let took_ns = self.since_ns.take().map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        if took_ns <= LAUNCH_UNSEEN_NS {
            return now_ns - took_ns;
        }
        let cpu_ns = cpu_ns();
        let own_ns = self.read.replace((now_ns, cpu_ns)).map_or(0, |(at_ns, had_ns)| {
            let lost_ns =
                now_ns.saturating_sub(at_ns).saturating_sub(cpu_ns.saturating_sub(had_ns));
            took_ns.saturating_sub(lost_ns)
        });
        now_ns - own_ns.max(LAUNCH_UNSEEN_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn() -> u64 = || panic!("a short launch reads no clock");

    #[test]
    fn what_was_not_ready_begins_when_it_executes() {
        let mut launches = Launches::default();
        assert_eq!(launches.begin(1_000_000, NEVER), 1_000_000);
        launches.follow(500_000);
        launches.forget();
        assert_eq!(launches.begin(1_000_000, NEVER), 1_000_000);
    }

    #[test]
    fn a_short_launch_is_a_part_of_what_was_ready() {
        let mut launches = Launches::default();
        launches.follow(997_000);
        assert_eq!(launches.begin(1_000_000, NEVER), 997_000);
        // It was for that one.
        assert_eq!(launches.begin(1_001_000, NEVER), 1_001_000);
        // Something in the future is no launch.
        launches.follow(2_000_000);
        assert_eq!(launches.begin(1_500_000, NEVER), 1_500_000);
        launches.make_free();
        launches.follow(1_600_000);
        assert_eq!(launches.begin(1_601_000, NEVER), 1_601_000);
    }

    /// A worker that walks a graph of thousands of nodes, say, between two kernels.
    #[test]
    fn a_long_launch_is_charged_what_the_thread_had_of_the_processor() {
        let mut launches = Launches::default();
        // Nobody looked at the processor time before the first.
        launches.follow(1_000_000);
        assert_eq!(launches.begin(1_900_000, || 307_000), 1_900_000 - LAUNCH_UNSEEN_NS);
        // Of 150 µs since then it had all, and of 900 a third.
        launches.follow(1_950_000);
        assert_eq!(launches.begin(2_050_000, || 457_000), 1_950_000);
        launches.follow(2_050_000);
        assert_eq!(launches.begin(2_950_000, || 757_000), 2_650_000);
        // Nothing: it was away, and is charged what is not looked at.
        launches.follow(3_000_000);
        let began_ns = launches.begin(9_000_000, || 758_000);
        assert_eq!(began_ns, 9_000_000 - LAUNCH_UNSEEN_NS);
    }
}
