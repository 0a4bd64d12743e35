//! When operations begin and end: on the timeline of a paced device, and on the real clock.

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
