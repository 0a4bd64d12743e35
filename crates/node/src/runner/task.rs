//! A task of the runner, and the tables that hold all of them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use weft_ring::SharedMemory;
use weft_tasks::protocol::Event;

use super::lock;
use super::messages::Run;
use super::module::{Kernel, Module};
use super::validate::Plan;

/// Events that a tenant may leave unread: more than the most tasks of an accelerator.
const UNREAD_MAX: usize = 16 << 10;

/// Where events for a tenant go. Never waits: a thread writes them.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) socket: OwnedFd,
    pub(super) events: Mutex<Option<Sender<Event>>>,
    pub(super) unread: AtomicUsize,
}

impl Outbox {
    /// Has an event sent. A tenant that reads nothing loses its connection.
    pub(super) fn say(&self, event: Event) {
        if self.unread.fetch_add(1, Ordering::Relaxed) >= UNREAD_MAX {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
            return;
        }
        if let Some(events) = &*lock(&self.events) {
            // The writer is gone with the connection.
            let _ = events.send(event);
        }
    }
}

/// A task.
#[derive(Debug)]
pub(super) struct Task {
    /// The runner's number.
    pub(super) number: u32,
    /// The tenant's number, and whom to tell.
    pub(super) id: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) module: Arc<Module>,
    pub(super) kernel: String,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
    pub(super) plan: Plan,
    /// Buffers, as the tenant has them.
    pub(super) memory: Option<Arc<SharedMemory>>,
    pub(super) submitted: Instant,
    state: Mutex<TaskState>,
}

/// What changes of a task.
#[derive(Debug, Default)]
pub(super) struct TaskState {
    /// The run that counts; earlier ones report nothing.
    pub(super) run: Option<Run>,
    /// When it is to stop, on the clock of the daemon, in ns.
    pub(super) stop_at_ns: Option<u64>,
    /// How far it came, if it was stopped.
    pub(super) progress: Option<Progress>,
    /// Nobody waits for it any more.
    pub(super) unwanted: bool,
    pub(super) over: bool,
    pub(super) runs: u32,
    pub(super) losses: u32,
    /// Device time, in ns.
    pub(super) used_ns: u64,
}

impl TaskState {
    /// This run counts from now on, and none before it.
    pub(super) fn begin(&mut self, run: Run) {
        self.run = Some(run);
        self.stop_at_ns = None;
    }
}

/// How far a task came.
#[derive(Debug)]
pub(super) struct Progress {
    /// The first thread block that did not run.
    pub(super) next: u64,
    /// What its device memory held then.
    pub(super) memory: Vec<u8>,
}

impl Task {
    pub(super) fn new(
        number: u32,
        id: u64,
        outbox: Arc<Outbox>,
        module: Arc<Module>,
        submission: weft_tasks::protocol::Submission,
        plan: Plan,
        memory: Option<Arc<SharedMemory>>,
    ) -> Self {
        let weft_tasks::protocol::Submission { kernel, grid, block, shared_bytes, .. } = submission;
        Self {
            number,
            id,
            outbox,
            module,
            kernel,
            grid,
            block,
            shared_bytes,
            plan,
            memory,
            submitted: Instant::now(),
            state: Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, TaskState> {
        lock(&self.state)
    }

    pub(super) fn kernel(&self) -> &Kernel {
        self.module.kernels.get(&self.kernel).expect("it was validated against its module")
    }

    /// Bytes of its memory file.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.len() as u64)
    }

    /// From `begins_ns` until it is to stop, in ns: the end of time if it was not told to; none if
    /// it is to have stopped by then.
    pub(super) fn left_ns(&self, run: Run, begins_ns: u64) -> Option<u64> {
        let state = self.state();
        if state.run != Some(run) || state.unwanted {
            return None;
        }
        let at_ns = state.stop_at_ns.unwrap_or(u64::MAX);
        at_ns.checked_sub(begins_ns).filter(|left_ns| *left_ns > 0)
    }
}

/// All tasks that wait or run.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    by_number: BTreeMap<u32, Arc<Task>>,
    bytes: u64,
    next: u32,
}

impl Tasks {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Bytes of their memory files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Task>> {
        self.by_number.values()
    }

    /// A number that no task has.
    pub(super) fn number(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.by_number.contains_key(&self.next) {
                return self.next;
            }
        }
    }

    pub(super) fn insert(&mut self, task: Arc<Task>) {
        self.bytes = self.bytes.saturating_add(task.bytes());
        self.by_number.insert(task.number, task);
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<Task>> {
        self.by_number.get(&number).cloned()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Arc<Task>> {
        let removed = self.by_number.remove(&number)?;
        self.bytes = self.bytes.saturating_sub(removed.bytes());
        Some(removed)
    }
}
