//! The client's side of a session whose client is elsewhere: on another host, or in a virtual
//! machine.
//!
//! A relay takes that client's commands and submits them here, under the numbers that the client
//! gave its calls; all of them through one lane, whose order is the client's own. What the worker
//! publishes it carries back. [`RelayIn`] and [`RelayOut`] are the two directions, for a thread
//! each. Both know what a client says only as bytes and numbers, and check those.

use std::time::Duration;

use crate::answer::{ANSWER_SLOTS, Answer, AnswerWords, MAX_ANSWER};
use crate::arena::{ArenaRef, WorkerArena};
use crate::cells::{Cell, Cells};
use crate::client::CallError;
use crate::lane::{AnswerTo, MAX_CALL, MAX_COMMAND, Producer, Violation};
use crate::map::MapError;
use crate::segment::{Loss, Segment, SegmentError};
use crate::span::SharedSpan;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wait::{Patience, WakeFlag, processors};

/// The lane that a relay submits through.
const LANE: usize = 0;

/// Threads that a call goes through on either host: the program's or the worker's, and the relay's,
/// one each way.
const THREADS: usize = 3;

/// Whether a thread that waits for what a relay brings may poll for it: on no more processors than
/// the call has threads it delays them.
#[must_use]
pub fn leaves_processors() -> bool {
    processors() > THREADS
}

/// What goes to the worker.
#[derive(Debug)]
pub struct RelayIn {
    producer: Producer,
    room: WakeFlag,
    doorbell: WakeFlag,
    tickets: Cell<AtomicU64>,
    worker_lost: Cell<AtomicU32>,
    arena: WorkerArena,
}

impl RelayIn {
    /// Takes the submitting side of `segment`, whose lanes are still unused. There is one per
    /// segment.
    ///
    /// # Errors
    /// [`SegmentError`] when the layout does not fit the memory.
    pub fn open(segment: &Segment) -> Result<Self, SegmentError> {
        segment.lanes_used()?.store(1, Ordering::Release);
        Ok(Self {
            producer: Producer::new(segment.lane(LANE)?),
            room: segment.room_flag(LANE)?,
            doorbell: segment.doorbell()?,
            tickets: segment.tickets()?,
            worker_lost: segment.worker_lost()?,
            arena: WorkerArena::new(segment)?,
        })
    }

    /// Whether a command of so many bytes goes in without waiting.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.producer.has_room(bytes)
    }

    /// Submits a command, waiting while the lane is full for as long as `alive` says. The answer
    /// comes under the client's own number.
    ///
    /// # Errors
    /// [`CallError::TooLong`], [`CallError::WorkerLost`].
    pub fn submit(
        &mut self,
        answer: Option<AnswerTo>,
        command: &[u8],
        alive: &dyn Fn() -> bool,
    ) -> Result<(), CallError> {
        if command.len() > MAX_COMMAND {
            return Err(CallError::TooLong(command.len()));
        }
        let is_lost = || self.worker_lost.load(Ordering::Acquire) != 0;
        if !self.producer.has_room(command.len()) {
            let patience = Patience::while_alive(alive);
            let ready = || (self.producer.has_room(command.len()) || is_lost()).then_some(());
            self.room.wait(&patience, ready).map_err(|_| CallError::WorkerLost)?;
        }
        if is_lost() {
            return Err(CallError::WorkerLost);
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        self.producer.try_push(ticket, answer, command).map_err(|_| CallError::Full)?;
        self.doorbell.wake();
        Ok(())
    }

    /// Notes that the next command hands this block over.
    ///
    /// # Errors
    /// [`Violation::Arena`] when there is no such block.
    pub fn lend(&self, block: u32) -> Result<(), Violation> {
        self.arena.lend(block)
    }

    /// Bytes of the arena, to write what a command brings along.
    ///
    /// # Errors
    /// [`Violation::Arena`] when they do not all lie in it.
    pub fn span(&self, offset: u64, len: u64) -> Result<SharedSpan, Violation> {
        self.arena.span(&ArenaRef { block: 0, offset, len })
    }
}

/// What comes from the worker.
#[derive(Debug)]
pub struct RelayOut {
    segment: Segment,
    answers: Vec<AnswerWords>,
    progress: Cells<AtomicU64>,
    notices: Cells<AtomicU64>,
    arena: WorkerArena,
    news: WakeFlag,
}

impl RelayOut {
    /// Takes the collecting side of `segment`, which must be marked as relayed.
    ///
    /// # Errors
    /// [`SegmentError`] when the layout does not fit the memory or the segment is not marked.
    pub fn open(segment: &Segment) -> Result<Self, SegmentError> {
        let answers = (0..ANSWER_SLOTS).map(|slot| segment.answer(slot));
        let unmarked = MapError::Os {
            what: "the segment is not marked as relayed",
            source: std::io::ErrorKind::InvalidInput.into(),
        };
        Ok(Self {
            answers: answers.collect::<Result<_, _>>()?,
            progress: segment.progress()?,
            notices: segment.notices()?,
            arena: WorkerArena::new(segment)?,
            news: segment.news()?.ok_or(unmarked)?,
            segment: segment.clone(),
        })
    }

    /// Whether a client can await an answer there.
    #[must_use]
    pub fn is_answerable(to: AnswerTo) -> bool {
        to.slot < ANSWER_SLOTS && to.call <= MAX_CALL
    }

    /// Whether a call was answered, acquiring what the worker did before.
    #[must_use]
    pub fn is_answered(&self, to: AnswerTo) -> bool {
        let slot = self.answers.get(usize::from(to.slot));
        slot.is_some_and(|slot| slot.done.load(Ordering::Acquire) == to.call)
    }

    /// The answer to a call, if it is there, with its bytes in `target`.
    #[must_use]
    pub fn answer(&self, to: AnswerTo, target: &mut [u8; MAX_ANSWER]) -> Option<Answer> {
        self.answers.get(usize::from(to.slot))?.take(to.call, target)
    }

    /// A progress word, acquiring what the worker did before it; `None` beyond the last.
    #[must_use]
    pub fn progress(&self, index: usize) -> Option<u64> {
        self.progress.get(index).map(|word| word.load(Ordering::Acquire))
    }

    /// A notice word; `None` beyond the last.
    #[must_use]
    pub fn notice(&self, index: usize) -> Option<u64> {
        self.notices.get(index).map(|word| word.load(Ordering::Acquire))
    }

    /// Whether the worker has released a block, acquiring what it wrote there.
    #[must_use]
    pub fn is_released(&self, block: u32) -> bool {
        self.arena.is_released(block)
    }

    /// Bytes of the arena, to read what the worker wrote.
    ///
    /// # Errors
    /// [`Violation::Arena`] when they do not all lie in it.
    pub fn span(&self, offset: u64, len: u64) -> Result<SharedSpan, Violation> {
        self.arena.span(&ArenaRef { block: 0, offset, len })
    }

    /// Why the session is over, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        // It cannot fail for an opened segment.
        self.segment.loss().ok().flatten()
    }

    /// What wakes [`Self::wait`].
    #[must_use]
    pub fn news(&self) -> &WakeFlag {
        &self.news
    }

    /// Waits until `ready` gives something: polls for `spin`, then sleeps until the worker has
    /// published something, somebody rang [`Self::news`] or `limit` has passed.
    pub fn wait<T>(
        &self,
        spin: Duration,
        limit: Duration,
        ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let patience = Patience::while_alive(&|| true).spinning(spin);
        let patience = patience.until(std::time::Instant::now() + limit);
        self.news.wait(&patience, ready).ok()
    }
}
