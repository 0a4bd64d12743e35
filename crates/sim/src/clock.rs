//! The virtual clock: what happens next, in an order that depends on nothing but the run.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tick {
    /// The command at the head of the device's queue ends.
    Device { generation: u64 },
    /// The driver's time slice of the session at the head of the device's queue ends.
    Slice { generation: u64 },
    /// The answer to a caller whose work executes is announced from now on.
    Announce { generation: u64, at_ns: u64 },
    /// A worker looks around.
    Worker { worker: usize },
    /// The rung daemon looks around.
    Daemon,
    /// The core's timer.
    Timer { at_ns: u64 },
    /// The vCPU that a core runs ends its step or its slice.
    Core { core: usize, generation: u64 },
    /// A blocked vCPU becomes runnable.
    Awake { vcpu: usize, boosted: bool },
    /// The answer to a synchronous call arrives.
    Answer { vcpu: usize, until: u64 },
    /// A sleeping program wakes up.
    Alarm { vcpu: usize },
    /// A bin of the share plot ends.
    Bin,
}

/// The queue of ticks. Ticks of one instant come in the order in which they were asked for.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    pub(crate) now_ns: u64,
    shared: Rc<Cell<u64>>,
    ticks: BinaryHeap<Reverse<(u64, u64, Tick)>>,
    sequence: u64,
}

impl Clock {
    pub(crate) fn at(&mut self, at_ns: u64, tick: Tick) {
        self.sequence += 1;
        self.ticks.push(Reverse((at_ns.max(self.now_ns), self.sequence, tick)));
    }

    pub(crate) fn after(&mut self, delay_ns: u64, tick: Tick) {
        self.at(self.now_ns.saturating_add(delay_ns), tick);
    }

    /// Moves to the next tick up to `until_ns`, or to `until_ns`.
    pub(crate) fn next(&mut self, until_ns: u64) -> Option<Tick> {
        if self.ticks.peek().is_none_or(|Reverse((at_ns, ..))| *at_ns > until_ns) {
            self.set(self.now_ns.max(until_ns));
            return None;
        }
        let Reverse((at_ns, _, tick)) = self.ticks.pop()?;
        self.set(at_ns);
        Some(tick)
    }

    fn set(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.shared.set(now_ns);
    }

    /// The time, for who has no clock.
    pub(crate) fn shared(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.shared)
    }
}
