//! When operations begin and end: on the timeline of a paced device, and on the real clock.

use crate::page::Kept;

/// What a launch on the real clock takes at most. What is beyond it is the machine's doing, which
/// takes the processor away.
const LAUNCH_MAX_NS: u64 = 20_000;

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

/// When an operation begins whose execution begins at `now_ns`. One that was ready when the one
/// before it ended begins with its launch.
pub(super) fn launch_began(since_ns: Option<u64>, now_ns: u64) -> u64 {
    let since_ns = since_ns.unwrap_or(now_ns);
    since_ns.clamp(now_ns.saturating_sub(LAUNCH_MAX_NS), now_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_a_part_of_what_was_ready_but_not_what_the_machine_takes() {
        assert_eq!(launch_began(None, 1_000_000), 1_000_000);
        assert_eq!(launch_began(Some(997_000), 1_000_000), 997_000);
        assert_eq!(launch_began(Some(10), 1_000_000), 1_000_000 - LAUNCH_MAX_NS);
        assert_eq!(launch_began(Some(2_000_000), 1_000_000), 1_000_000);
    }
}
