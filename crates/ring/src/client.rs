//! The client's side of a segment.

use core::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::answer::{ANSWER_SLOTS, Answer, CallSlot};
use crate::arena::Arena;
use crate::callers::{OwnCallers, Waking};
use crate::cells::{Cell, Cells};
use crate::fork::ForkGuard;
use crate::lane::{AnswerTo, MAX_COMMAND, Producer};
use crate::map::MapError;
use crate::pool::{LanePool, Leased};
use crate::processors::Processors;
use crate::segment::{LANES, Segment, SegmentError};
use crate::serial::Serial;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wait::{Patience, SPIN, Unready, WakeFlag, spin};

/// Why a command was not submitted or not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CallError {
    /// The command is longer than [`MAX_COMMAND`].
    #[error("command of {0} bytes is too long")]
    TooLong(usize),
    /// The lane stayed full for the configured time.
    #[error("lane is full")]
    Full,
    /// The worker is gone; the session is over.
    #[error("worker is gone")]
    WorkerLost,
    /// This process is a child made by `fork`; the session is its parent's.
    #[error("session belongs to the parent process")]
    Forked,
}

/// How a client waits.
#[derive(Debug, Clone, Copy)]
pub struct ClientOptions {
    /// How long to poll before sleeping.
    pub spin: Duration,
    /// How long a full lane is waited for; for ever, as long as the worker lives, when `None`.
    pub full_limit: Option<Duration>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { spin: SPIN, full_limit: None }
    }
}

/// The client's side: any thread submits commands and awaits answers.
pub struct ClientSide {
    segment: Segment,
    options: ClientOptions,
    tickets: Cell<AtomicU64>,
    lanes_used: Cell<AtomicU32>,
    worker_lost: Cell<AtomicU32>,
    serial: Serial,
    doorbell: WakeFlag,
    lanes: Vec<ClientLane>,
    /// Held while a command enters the last, shared lane.
    shared: Mutex<()>,
    pool: LanePool,
    slots: Vec<CallSlot>,
    spare_slots: SpareSlots,
    progress: Cells<AtomicU64>,
    notices: Cells<AtomicU64>,
    callers: OwnCallers,
    processors: Processors,
    arena: Arena,
    pace: Pace,
    fork: ForkGuard,
    peer_alive: Box<dyn Fn() -> bool + Send + Sync>,
}

#[derive(Debug)]
struct ClientLane {
    producer: Producer,
    room: WakeFlag,
}

/// Answer slots for threads without a lane of their own.
#[derive(Debug)]
struct SpareSlots {
    free: Mutex<Vec<u16>>,
    returned: Condvar,
}

/// How long answers have taken of late. A wait a little longer than the polling time is the worst
/// case: all the polling and a wake-up on top. So waits that are usually over soon are polled to
/// their end, and long ones are not polled for more than usual.
#[derive(Debug, Default)]
struct Pace {
    /// Moving average of the waits, in ns. Threads may overwrite each other's news.
    wait_ns: AtomicU64,
}

/// How long a thread polls at least when its answer is announced, and at most when it is boosted:
/// a few times what the worker announces it ahead, so real-time polling stays far below the bounds
/// on boosts.
const ANNOUNCED: Duration = Duration::from_micros(60);

impl Pace {
    /// Longest polling, about four times what a wake-up across processors takes.
    const SPIN_MAX: Duration = Duration::from_micros(250);

    /// How long to poll.
    fn spin(&self, usual: Duration, waking: Waking) -> Duration {
        let expected = Duration::from_nanos(self.wait_ns.load(Ordering::Relaxed));
        let enough = expected + expected / 4;
        match waking {
            Waking::Relayed => Duration::ZERO,
            Waking::Prompt if expected > usual => Duration::ZERO,
            Waking::Usual if enough > usual && enough <= Self::SPIN_MAX => {
                Self::SPIN_MAX.max(usual)
            }
            Waking::Prompt | Waking::Usual => usual,
        }
    }

    fn learn(&self, wait: Duration) {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).min(1 << 40);
        let before_ns = self.wait_ns.load(Ordering::Relaxed);
        self.wait_ns.store((7 * before_ns + wait_ns) / 8, Ordering::Relaxed);
    }
}

impl ClientSide {
    /// Takes the client's side of `segment`. There is one per segment.
    ///
    /// `peer_alive` is asked now and then by a sleeping caller; it may make system calls.
    ///
    /// # Errors
    /// [`SegmentError`] when the system refuses.
    pub fn open(
        segment: Segment,
        options: ClientOptions,
        peer_alive: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<Self, SegmentError> {
        segment.memory().keep_from_children()?;
        let lanes = (0..LANES).map(|lane| {
            let producer = Producer::new(segment.lane(lane)?);
            Ok::<_, MapError>(ClientLane { producer, room: segment.room_flag(lane)? })
        });
        let slots = (0..ANSWER_SLOTS).map(|slot| segment.answer(slot).map(CallSlot::new));
        let fork = ForkGuard::new()
            .map_err(|source| MapError::Os { what: "making a fork guard", source })?;
        Ok(Self {
            options,
            tickets: segment.tickets()?,
            lanes_used: segment.lanes_used()?,
            worker_lost: segment.worker_lost()?,
            serial: Serial::open(segment.serial()?),
            doorbell: segment.doorbell()?,
            lanes: lanes.collect::<Result<_, _>>()?,
            shared: Mutex::new(()),
            pool: LanePool::new(LANES),
            slots: slots.collect::<Result<_, _>>()?,
            spare_slots: SpareSlots {
                free: Mutex::new((lane_slot(LANES)..ANSWER_SLOTS).collect()),
                returned: Condvar::new(),
            },
            progress: segment.progress()?,
            notices: segment.notices()?,
            callers: OwnCallers::open(&segment)?,
            processors: Processors::new(segment.client_processor()?, segment.worker_processor()?),
            arena: Arena::new(&segment)?,
            pace: Pace::default(),
            fork,
            peer_alive,
            segment,
        })
    }

    /// Submits a command that nobody awaits.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn submit(&self, command: &[u8]) -> Result<(), CallError> {
        self.check(command)?;
        let leased = self.pool.lease();
        self.enter(leased, None, command)
    }

    /// Submits a command, awaits its answer and copies as much of it as fits into `target`.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(&self, command: &[u8], target: &mut [u8]) -> Result<Answer, CallError> {
        self.check(command)?;
        let leased = self.pool.lease();
        match leased {
            Leased::Own { lane, .. } => self.call_in(lane_slot(lane), leased, command, target),
            Leased::Shared { .. } => {
                let slot = self.spare_slots.take(|| self.is_lost())?;
                let answer = self.call_in(slot, leased, command, target);
                self.spare_slots.give(slot);
                answer
            }
        }
    }

    fn call_in(
        &self,
        slot: u16,
        leased: Leased,
        command: &[u8],
        target: &mut [u8],
    ) -> Result<Answer, CallError> {
        let owned = &self.slots[usize::from(slot)];
        let call = owned.begin();
        let (awaited, thread) = (AnswerTo { slot, call }, self.callers.own_name());
        self.enter(leased, Some(awaited), command)?;
        let alive = || self.is_alive();
        let may_poll = |lasted| {
            // A boosted thread polls for what was announced and for nothing else.
            (lasted < ANNOUNCED || !self.callers.is_boosted(thread))
                && !self.processors.is_hopeless(lasted)
        };
        self.processors.show_own();
        let spin = self.pace.spin(self.options.spin, self.callers.waking());
        let mut patience = Patience { may_poll: &may_poll, ..Patience::while_alive(&alive) };
        (patience.spin, patience.announced) = (spin, spin.max(ANNOUNCED));
        self.callers.begin(awaited, thread);
        let began = Instant::now();
        let answer = owned.wait(call, &patience, (|| self.is_lost(), &self.serial), target);
        self.callers.end(awaited);
        self.pace.learn(began.elapsed());
        answer.map_err(|_| CallError::WorkerLost)
    }

    fn enter(
        &self,
        leased: Leased,
        answer: Option<AnswerTo>,
        command: &[u8],
    ) -> Result<(), CallError> {
        match leased {
            Leased::Own { lane, fresh } => {
                if fresh {
                    self.use_lane(lane);
                }
                self.push(lane, answer, command)
            }
            Leased::Shared { lane } => {
                let _shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
                self.use_lane(lane);
                self.push(lane, answer, command)
            }
        }
    }

    fn use_lane(&self, lane: usize) {
        let used = u32::try_from(lane + 1).unwrap_or(u32::MAX);
        if self.lanes_used.load(Ordering::Relaxed) < used {
            self.lanes_used.fetch_max(used, Ordering::AcqRel);
        }
    }

    fn push(&self, lane: usize, answer: Option<AnswerTo>, command: &[u8]) -> Result<(), CallError> {
        if self.callers.any_boosted() {
            // What the boost was for: the thread runs and has something for its device.
            self.callers.end_boost(self.callers.own_name());
        }
        let ClientLane { producer, room } = &self.lanes[lane];
        if !producer.has_room(command.len()) {
            self.await_room(producer, room, command.len())?;
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        producer.try_push(ticket, answer, command).map_err(|_| CallError::Full)?;
        self.doorbell.wake();
        Ok(())
    }

    #[cold]
    fn await_room(
        &self,
        producer: &Producer,
        room: &WakeFlag,
        len: usize,
    ) -> Result<(), CallError> {
        let alive = || self.is_alive();
        let mut patience = Patience::while_alive(&alive).spinning(self.options.spin);
        if let Some(limit) = self.options.full_limit {
            patience = patience.until(Instant::now() + limit);
        }
        let ready = || match (producer.has_room(len), self.is_lost()) {
            (true, _) => Some(Ok(())),
            (false, true) => Some(Err(CallError::WorkerLost)),
            (false, false) => None,
        };
        room.wait(&patience, ready).map_err(|unready| match unready {
            Unready::TimedOut => CallError::Full,
            Unready::PeerLost => CallError::WorkerLost,
        })?
    }

    fn check(&self, command: &[u8]) -> Result<(), CallError> {
        if self.fork.is_child() {
            return Err(CallError::Forked);
        }
        if command.len() > MAX_COMMAND {
            return Err(CallError::TooLong(command.len()));
        }
        if self.is_lost() { Err(CallError::WorkerLost) } else { Ok(()) }
    }

    /// Whether the worker was declared lost, or another session has the segment by now.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.worker_lost.load(Ordering::Acquire) != 0 || self.serial.is_over()
    }

    /// Whether the worker may still answer. Makes a system call, through `peer_alive`.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.is_lost() && (self.peer_alive)()
    }

    /// Whether those who bring answers want the processor that polling would take from them.
    #[must_use]
    pub fn sleeps_at_once(&self) -> bool {
        self.callers.waking() == Waking::Relayed
    }

    /// Whether this process is a child of the one that attached.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// A progress word, acquiring what the worker did before it; `None` beyond the last.
    #[must_use]
    pub fn progress(&self, index: usize) -> Option<u64> {
        self.progress.get(index).map(|word| word.load(Ordering::Acquire))
    }

    /// Polls a progress word until it is at least `value`, for the configured time; true on
    /// success.
    #[must_use]
    pub fn poll_progress(&self, index: usize, value: u64) -> bool {
        let reached = || self.progress(index).is_some_and(|now| now >= value).then_some(());
        spin(self.options.spin, reached).is_some()
    }

    /// A notice word; `None` beyond the last.
    #[must_use]
    pub fn notice(&self, index: usize) -> Option<u64> {
        self.notices.get(index).map(|word| word.load(Ordering::Acquire))
    }

    /// The arena for payloads longer than a record.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The segment.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl fmt::Debug for ClientSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSide").field("segment", &self.segment).finish_non_exhaustive()
    }
}

/// A thread with an own lane awaits its answers in the slot of the lane's number.
fn lane_slot(lane: usize) -> u16 {
    u16::try_from(lane).unwrap_or(u16::MAX)
}

impl SpareSlots {
    /// Takes a slot, waiting while all are in use.
    fn take(&self, lost: impl Fn() -> bool) -> Result<u16, CallError> {
        /// How often a thread that waits for a slot makes sure that the worker lives.
        const CHECK: Duration = Duration::from_millis(10);

        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(slot) = free.pop() {
                return Ok(slot);
            }
            if lost() {
                return Err(CallError::WorkerLost);
            }
            let waited = self.returned.wait_timeout(free, CHECK);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn give(&self, slot: u16) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        self.returned.notify_one();
    }
}
