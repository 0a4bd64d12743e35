//! The worker's side of a segment.

use std::time::Duration;

use crate::answer::{ANSWER_SLOTS, AnswerTooLong, AnswerWords};
use crate::arena::WorkerArena;
use crate::cells::Cells;
use crate::lane::{AnswerTo, Consumer, Violation};
use crate::lanes::{Lanes, Record};
use crate::map::MapError;
use crate::processors::Processors;
use crate::relay;
use crate::segment::{LANES, Segment, SegmentError};
use crate::sync::{AtomicU64, Ordering};
use crate::wait::{Patience, Unready, WakeFlag};

/// The worker's side: takes commands in order and answers them in any.
#[derive(Debug)]
pub struct WorkerSide {
    segment: Segment,
    lanes: Lanes,
    doorbell: WakeFlag,
    replies: Replies,
    violation: Option<Violation>,
}

/// What the worker publishes. Whoever takes a session's commands may have others publish for it.
#[derive(Debug, Clone)]
pub struct Replies {
    answers: Vec<AnswerWords>,
    progress: Cells<AtomicU64>,
    notices: Cells<AtomicU64>,
    arena: WorkerArena,
    processors: Processors,
    /// Rung beside the callers' own flags, for a client that is elsewhere.
    news: Option<WakeFlag>,
}

impl Replies {
    fn open(segment: &Segment) -> Result<Self, SegmentError> {
        let answers = (0..ANSWER_SLOTS).map(|slot| segment.answer(slot));
        Ok(Self {
            answers: answers.collect::<Result<_, _>>()?,
            progress: segment.progress()?,
            notices: segment.notices()?,
            arena: WorkerArena::new(segment)?,
            processors: Processors::new(segment.worker_processor()?, segment.client_processor()?),
            news: segment.news()?,
        })
    }

    #[inline]
    fn ring(&self) {
        if let Some(news) = &self.news {
            news.wake();
        }
    }

    /// Answers a synchronous call, at any time and in any order.
    ///
    /// # Errors
    /// [`AnswerTooLong`] when `bytes` exceed [`crate::MAX_ANSWER`]; nothing is answered then.
    pub fn complete(&self, to: AnswerTo, status: i32, bytes: &[u8]) -> Result<(), AnswerTooLong> {
        self.processors.show_own();
        let answered = match self.answers.get(usize::from(to.slot)) {
            Some(answer) => answer.complete(to.call, status, bytes),
            // `take` hands out existing slots only.
            None => Ok(()),
        };
        self.ring();
        answered
    }

    /// Publishes progress: what was done before is visible to a client that reads `value`.
    pub fn set_progress(&self, index: usize, value: u64) {
        if let Some(word) = self.progress.get(index) {
            word.store(value, Ordering::Release);
        }
        self.ring();
    }

    /// Publishes a notice.
    pub fn set_notice(&self, index: usize, value: u64) {
        if let Some(word) = self.notices.get(index) {
            word.store(value, Ordering::Release);
        }
        self.ring();
    }

    /// The arena that the client's payloads lie in.
    #[must_use]
    pub fn arena(&self) -> &WorkerArena {
        &self.arena
    }
}

impl WorkerSide {
    /// Takes the worker's side of `segment`, whose lanes are still unused. There is one per
    /// segment.
    ///
    /// # Errors
    /// [`SegmentError`] when the layout does not fit the memory.
    pub fn open(segment: Segment) -> Result<Self, SegmentError> {
        let lanes = (0..LANES).map(|lane| {
            let consumer = Consumer::new(lane, segment.lane(lane)?, ANSWER_SLOTS);
            Ok::<_, MapError>((consumer, segment.room_flag(lane)?))
        });
        let lanes: Vec<_> = lanes.collect::<Result<_, _>>()?;
        Ok(Self {
            lanes: Lanes::new(lanes, segment.lanes_used()?),
            doorbell: segment.doorbell()?,
            replies: Replies::open(&segment)?,
            violation: None,
            segment,
        })
    }

    /// The published command with the smallest ticket, copied out; `None` when there is none.
    ///
    /// # Errors
    /// [`Violation`] of the client, from then on always: the session is over.
    pub fn take(&mut self) -> Result<Option<Record<'_>>, Violation> {
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        match self.lanes.next() {
            Ok(record) => Ok(record),
            Err(violation) => {
                self.violation = Some(violation);
                Err(violation)
            }
        }
    }

    /// Whether a command is waiting (or a violation is).
    #[must_use]
    pub fn has_command(&self) -> bool {
        self.violation.is_some() || self.lanes.has_record()
    }

    /// As [`Replies::complete`].
    ///
    /// # Errors
    /// [`AnswerTooLong`].
    pub fn complete(&self, to: AnswerTo, status: i32, bytes: &[u8]) -> Result<(), AnswerTooLong> {
        self.replies.complete(to, status, bytes)
    }

    /// Wakes a caller shortly before its answer, so that it polls when the answer comes: the way to
    /// answer a long wait without paying for a wake across processors.
    pub fn announce(&self, to: AnswerTo) {
        if let Some(answer) = self.replies.answers.get(usize::from(to.slot)) {
            answer.flag.wake();
        }
    }

    /// How long to poll for a command: `usual`, but where a relay's threads want the processor.
    #[must_use]
    pub fn spin(&self, usual: Duration) -> Duration {
        let is_relayed = self.replies.news.is_some();
        if is_relayed && !relay::leaves_processors() { Duration::ZERO } else { usual }
    }

    /// Waits for a command, or for whatever `other` gives, on the session's doorbell: polls for
    /// `spin`, then sleeps; nobody's death ends the wait, so who watches the client must ring the
    /// doorbell.
    ///
    /// # Errors
    /// [`Unready::TimedOut`] when `limit` passed.
    pub fn wait<T>(
        &self,
        spin: Duration,
        limit: Option<Duration>,
        other: impl FnMut() -> Option<T>,
    ) -> Result<Wake<T>, Unready> {
        let may_poll = |lasted| !self.replies.processors.is_hopeless(lasted);
        self.wait_while(&may_poll, spin, limit, other)
    }

    /// The same, but whoever wants the processor has it while this polls, its client like anybody:
    /// for who waits for somebody else than the client.
    ///
    /// # Errors
    /// [`Unready::TimedOut`] when `limit` passed.
    pub fn wait_making_way<T>(
        &self,
        spin: Duration,
        limit: Option<Duration>,
        other: impl FnMut() -> Option<T>,
    ) -> Result<Wake<T>, Unready> {
        let make_way = |_| {
            std::thread::yield_now();
            true
        };
        self.wait_while(&make_way, spin, limit, other)
    }

    fn wait_while<T>(
        &self,
        may_poll: &dyn Fn(Duration) -> bool,
        spin: Duration,
        limit: Option<Duration>,
        mut other: impl FnMut() -> Option<T>,
    ) -> Result<Wake<T>, Unready> {
        /// A second look even if somebody forgot to ring: so rare that a thousand idle workers
        /// cost nothing.
        const SAFETY_NET: Duration = Duration::from_secs(30);

        let deadline = limit.map(|limit| std::time::Instant::now() + limit);
        let (announced, check_every, peer_alive) = (spin, SAFETY_NET, &|| true);
        let patience = Patience { spin, announced, deadline, check_every, peer_alive, may_poll };
        let woken = self.doorbell.wait(&patience, || {
            if let Some(value) = other() {
                return Some(Wake::Other(value));
            }
            self.has_command().then_some(Wake::Command)
        });
        // It may have moved in its sleep.
        self.replies.processors.show_own();
        woken
    }

    /// The session's doorbell, for whoever must wake this worker.
    #[must_use]
    pub fn doorbell(&self) -> &WakeFlag {
        &self.doorbell
    }

    /// As [`Replies::set_progress`].
    pub fn set_progress(&self, index: usize, value: u64) {
        self.replies.set_progress(index, value);
    }

    /// As [`Replies::set_notice`].
    pub fn set_notice(&self, index: usize, value: u64) {
        self.replies.set_notice(index, value);
    }

    /// The arena that the client's payloads lie in.
    #[must_use]
    pub fn arena(&self) -> &WorkerArena {
        self.replies.arena()
    }

    /// What is published, for somebody beside the one who takes commands.
    #[must_use]
    pub fn replies(&self) -> &Replies {
        &self.replies
    }

    /// The segment.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

/// What ended a worker's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake<T> {
    /// A command waits.
    Command,
    /// The other thing that was waited for.
    Other(T),
}
