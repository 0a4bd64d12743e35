//! The device: a first-come-first-served queue, one command at a time.

use std::collections::VecDeque;

/// A command, or a piece of one, in the hardware's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) worker: usize,
    pub(crate) vgpu: usize,
    pub(crate) key: u32,
    /// Device time of it.
    pub(crate) ns: u64,
    /// What is left of that: the driver may have stopped it.
    pub(crate) left_ns: u64,
    /// Device time of the whole grid that it is of.
    pub(crate) whole_ns: u64,
    /// A later piece of a sliced kernel.
    pub(crate) continues: bool,
    /// The rest of a kernel that was stopped: its state is restored first.
    pub(crate) resumes: bool,
    /// The last piece of its kernel.
    pub(crate) ends_kernel: bool,
}

/// The device and what it served.
#[derive(Debug, Default)]
pub(crate) struct Gpu {
    pub(crate) queue: VecDeque<Op>,
    /// When the head of the queue began, or will after a switch.
    pub(crate) started_ns: u64,
    /// Up to when the head's service is on the books.
    pub(crate) counted_ns: u64,
    /// When the state of a stopped kernel is saved.
    pub(crate) saved_ns: u64,
    /// When the driver's time slice of the head's session ends.
    pub(crate) slice_end_ns: u64,
    pub(crate) generation: u64,
    /// Since when the head's worker announces to its caller that its answer comes, or will.
    pub(crate) announce_ns: Option<u64>,
    pub(crate) last_worker: Option<usize>,
    pub(crate) busy_ns: u64,
    /// Time that went to saving and restoring stopped kernels.
    pub(crate) preempting_ns: u64,
    pub(crate) executed: u64,
}

impl Gpu {
    /// The head's service since it was last counted: whose, and how much.
    pub(crate) fn take_service(&mut self, now_ns: u64) -> Option<(usize, usize, u64)> {
        let head = self.queue.front()?;
        let from_ns = self.counted_ns.max(self.started_ns);
        let ns = now_ns.min(self.started_ns + head.left_ns).saturating_sub(from_ns);
        self.counted_ns = self.counted_ns.max(now_ns);
        self.busy_ns += ns;
        (ns > 0).then_some((head.worker, head.vgpu, ns))
    }

    /// The head's service that is not on the books yet, if it is this worker's.
    pub(crate) fn uncounted_ns(&self, worker: usize, now_ns: u64) -> u64 {
        let Some(head) = self.queue.front().filter(|head| head.worker == worker) else { return 0 };
        let from_ns = self.counted_ns.max(self.started_ns);
        now_ns.min(self.started_ns + head.left_ns).saturating_sub(from_ns)
    }

    /// For how long the head has executed since it began or went on, if it is this worker's.
    pub(crate) fn executed_ns(&self, worker: usize, now_ns: u64) -> Option<u64> {
        let head = self.queue.front().filter(|head| head.worker == worker)?;
        Some(now_ns.saturating_sub(self.started_ns).min(head.left_ns))
    }

    /// Takes all commands of a worker out of the queue, in their order.
    pub(crate) fn withdraw(&mut self, worker: usize) -> VecDeque<Op> {
        self.generation += 1;
        let (its, others) = self.queue.drain(..).partition(|op| op.worker == worker);
        self.queue = others;
        its
    }

    /// Puts a command behind its session's others, or behind all if it has none: the queue of a
    /// driver that gives sessions time slices.
    pub(crate) fn enqueue_grouped(&mut self, op: Op) {
        let last = self.queue.iter().rposition(|other| other.worker == op.worker);
        self.queue.insert(last.map_or(self.queue.len(), |last| last + 1), op);
    }

    /// Whether a command of another session than the head's waits.
    pub(crate) fn others_wait(&self) -> bool {
        let head = self.queue.front().map(|head| head.worker);
        self.queue.iter().any(|op| Some(op.worker) != head)
    }

    /// What it executed, at most, of commands that have not ended.
    pub(crate) fn unreported_ns(&self) -> u64 {
        let stopped_ns: u64 = self.queue.iter().map(|op| op.ns - op.left_ns).sum();
        stopped_ns + self.queue.front().map_or(0, |head| head.left_ns)
    }
}
