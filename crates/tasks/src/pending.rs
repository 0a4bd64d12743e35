//! A task that was submitted.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::accelerator::Handle;
use crate::element::{Element, numbers_of};
use crate::error::TaskError;
use crate::task::Prepared;

type Callback = Box<dyn FnOnce() + Send>;

/// Where a task stands.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// Sent.
    Sent,
    /// It waits for a device, or runs.
    Accepted,
    /// Over.
    Over(Result<Figures, TaskError>),
}

/// What is told of a task that is done.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) used_ns: u64,
    pub(crate) latency_ns: u64,
    pub(crate) device: String,
    pub(crate) runs: u32,
}

/// A task, as whoever waits for it and whoever hears of it see it.
pub(crate) struct Slot {
    pub(crate) prepared: Prepared,
    state: Mutex<(Standing, Option<Callback>)>,
    changed: Condvar,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("prepared", &self.prepared).finish_non_exhaustive()
    }
}

impl Slot {
    pub(crate) fn new(prepared: Prepared) -> Self {
        Self { prepared, state: Mutex::new((Standing::Sent, None)), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, (Standing, Option<Callback>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves on. What is over stays so.
    pub(crate) fn set(&self, standing: Standing) {
        let mut state = self.state();
        if matches!(state.0, Standing::Over(_)) {
            return;
        }
        state.0 = standing;
        let callback = match &state.0 {
            Standing::Over(_) => state.1.take(),
            Standing::Sent | Standing::Accepted => None,
        };
        drop(state);
        self.changed.notify_all();
        if let Some(callback) = callback {
            callback();
        }
    }

    /// Whether the node has taken it; why not.
    pub(crate) fn accepted(&self) -> Result<(), TaskError> {
        let is_sent = |state: &mut (Standing, Option<Callback>)| matches!(state.0, Standing::Sent);
        let state = self.changed.wait_while(self.state(), is_sent);
        match &state.unwrap_or_else(PoisonError::into_inner).0 {
            Standing::Over(Err(error)) => Err(error.clone()),
            Standing::Sent | Standing::Accepted | Standing::Over(Ok(_)) => Ok(()),
        }
    }

    fn over(&self, deadline: Option<Instant>) -> Option<Result<Figures, TaskError>> {
        let mut state = self.state();
        loop {
            if let Standing::Over(result) = &state.0 {
                return Some(result.clone());
            }
            state = match deadline.map(|deadline| deadline.checked_duration_since(Instant::now())) {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(None | Some(Duration::ZERO)) => return None,
                Some(Some(left)) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// A task that waits or runs: its future result. Dropping it lets the task go on.
#[derive(Debug)]
pub struct Pending {
    slot: Arc<Slot>,
    handle: Arc<Handle>,
}

impl Pending {
    pub(crate) fn new(slot: Arc<Slot>, handle: Arc<Handle>) -> Self {
        Self { slot, handle }
    }

    /// A number that no other task of this accelerator handle has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.slot.prepared.submission.task
    }

    /// Waits for the task's end.
    ///
    /// # Errors
    /// [`TaskError::Failed`], [`TaskError::Lost`], [`TaskError::Cancelled`].
    pub fn wait(&self) -> Result<Done, TaskError> {
        self.finish(None)
    }

    /// Waits for the task's end, at most so long.
    ///
    /// # Errors
    /// As [`Self::wait`]; [`TaskError::TimedOut`] when it is not over by then.
    pub fn wait_timeout(&self, limit: Duration) -> Result<Done, TaskError> {
        self.finish(Instant::now().checked_add(limit))
    }

    /// What became of the task, if it is over.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn poll(&self) -> Option<Result<Done, TaskError>> {
        match self.finish(Some(Instant::now())) {
            Err(TaskError::TimedOut) => None,
            result => Some(result),
        }
    }

    /// Takes the task back if it still waits. What became of it is for [`Self::wait`] to tell.
    pub fn cancel(&self) {
        self.handle.cancel(self.number());
    }

    /// Calls `callback` once the task is over: in the thread that hears of it, which must not wait
    /// there, or at once.
    pub fn on_done(&self, callback: impl FnOnce() + Send + 'static) {
        let mut state = self.slot.state();
        if matches!(state.0, Standing::Over(_)) {
            drop(state);
            return callback();
        }
        state.1 = Some(Box::new(callback));
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<Done, TaskError> {
        let figures = self.slot.over(deadline).ok_or(TaskError::TimedOut)??;
        Ok(Done { slot: Arc::clone(&self.slot), figures })
    }
}

/// A task that is done.
#[derive(Debug)]
pub struct Done {
    slot: Arc<Slot>,
    figures: Figures,
}

impl Done {
    /// How many outputs it has: buffers given as output or in-out, in the order of the arguments.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.slot.prepared.outputs.len()
    }

    /// The bytes of an output; none of one that there is not.
    #[must_use]
    pub fn output_bytes(&self, place: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.output_len(place)];
        self.read_output(place, &mut bytes);
        bytes
    }

    /// The numbers of an output; none of one that there is not.
    #[must_use]
    pub fn output<T: Element>(&self, place: usize) -> Vec<T> {
        numbers_of(&self.output_bytes(place))
    }

    /// Bytes of an output; 0 of one that there is not.
    #[must_use]
    pub fn output_len(&self, place: usize) -> usize {
        self.slot.prepared.outputs.get(place).map_or(0, |(_, bytes)| *bytes)
    }

    /// Copies the first bytes of an output into `target`; how many that are.
    pub fn read_output(&self, place: usize, target: &mut [u8]) -> usize {
        let Some((at, bytes)) = self.slot.prepared.outputs.get(place) else { return 0 };
        let count = target.len().min(*bytes);
        let (Some(memory), Ok(at)) = (&self.slot.prepared.memory, usize::try_from(*at)) else {
            return 0;
        };
        let Some(target) = target.get_mut(..count).filter(|target| !target.is_empty()) else {
            return 0;
        };
        let read = memory.mapping.span(at, count).and_then(|span| span.read_into(target));
        read.map_or(0, |()| count)
    }

    /// Device time that it took, in ns.
    #[must_use]
    pub fn used_ns(&self) -> u64 {
        self.figures.used_ns
    }

    /// From its submission to its end on the node, in ns.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.figures.latency_ns
    }

    /// The device where it ended.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.figures.device
    }

    /// How often it was on a device: more than once if it was stopped for others or lost one.
    #[must_use]
    pub fn runs(&self) -> u32 {
        self.figures.runs
    }
}
