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
    /// Device time of the whole grid that it is of.
    pub(crate) whole_ns: u64,
    /// A later piece of a sliced kernel.
    pub(crate) continues: bool,
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
    pub(crate) generation: u64,
    pub(crate) last_worker: Option<usize>,
    pub(crate) busy_ns: u64,
    pub(crate) executed: u64,
}

impl Gpu {
    /// The head's service since it was last counted.
    pub(crate) fn take_service(&mut self, now_ns: u64) -> Option<(usize, u64)> {
        let head = self.queue.front()?;
        let from_ns = self.counted_ns.max(self.started_ns);
        let ns = now_ns.min(self.started_ns + head.ns).saturating_sub(from_ns);
        self.counted_ns = self.counted_ns.max(now_ns);
        self.busy_ns += ns;
        (ns > 0).then_some((head.vgpu, ns))
    }
}
