//! A relayed session's way to its peer over however many connections it takes.
//!
//! Whoever has frames adds them ([`Link::push`]) and has them sent ([`Link::flush`]); one thread
//! reads ([`Link::read`]). A reader never waits to send, so two peers that both send much cannot
//! wait for each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, TryLockError};
use std::time::{Duration, Instant};

use crate::frame::{Frame, Front, front};
use crate::lock;
use crate::outbox::{Closed, Impossible, Outbox, WINDOW};
use crate::tls::{Channel, Heard, Room};

/// Both sides say that they live about this often while they have nothing else to say.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// A connection on which nothing was heard for so long is taken for lost.
pub const SILENCE_MAX: Duration = Duration::from_secs(8);

/// So much handled makes an acknowledgement due, in bytes.
const DUE: usize = WINDOW / 4;

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection is of no more use, and another one may take its place.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The session is over.
    #[error("{0}")]
    Over(String),
}

/// The peer broke the rules, or said goodbye.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Over(pub String);

/// Both directions of a session.
#[derive(Debug, Default)]
pub struct Link {
    outbox: Outbox,
    /// Frames of the peer that were handled, and as far as it was told.
    handled: AtomicU64,
    told: AtomicU64,
    /// Something is to be said even without frames.
    due: AtomicBool,
    channel: Mutex<Attached>,
    changed: Condvar,
    /// Held by whoever sends.
    sending: Mutex<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Attached {
    channel: Option<Arc<Channel>>,
    /// Raised with every channel.
    number: u64,
    over: bool,
}

impl Link {
    /// A link whose session has just begun on this connection.
    #[must_use]
    pub fn over(channel: Channel) -> Self {
        let attached = Attached { channel: Some(Arc::new(channel)), number: 1, over: false };
        Self { channel: Mutex::new(attached), ..Self::default() }
    }

    /// Adds whole frames, waiting while the peer has not handled enough of those before.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn push(&self, frames: &[u8]) -> Result<(), Closed> {
        if !self.outbox.has_room(frames.len()) {
            // What is waited for must be on its way.
            self.flush();
        }
        self.outbox.push(frames)
    }

    /// Sends what was added, unless another thread does so or no connection is there.
    pub fn flush(&self) {
        loop {
            let mut batch = match self.sending.try_lock() {
                Ok(batch) => batch,
                // Whoever sends looks again before it leaves.
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(batch)) => batch.into_inner(),
            };
            let (channel, number) = self.attached();
            let Some(channel) = channel else { return };
            while self.fill(&mut batch) {
                if channel.send(&batch).is_err() {
                    self.detach(number);
                    return;
                }
            }
            drop(batch);
            if !self.outbox.has_unsent() && !self.due.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// The next batch; false when there is nothing to say.
    fn fill(&self, batch: &mut Vec<u8>) -> bool {
        batch.clear();
        let handled = self.handled.load(Ordering::Acquire);
        let is_due = self.due.swap(false, Ordering::AcqRel);
        if is_due || self.told.load(Ordering::Relaxed) != handled {
            Frame::Ack(handled).encode(batch);
        }
        let has_frames = self.outbox.take_unsent(batch);
        if has_frames || is_due {
            self.told.store(handled, Ordering::Relaxed);
        }
        has_frames || is_due
    }

    /// Says that this side lives, and what it has handled.
    pub fn beat(&self) {
        self.due.store(true, Ordering::Release);
        self.flush();
    }

    fn attached(&self) -> (Option<Arc<Channel>>, u64) {
        let attached = lock(&self.channel);
        (attached.channel.clone(), attached.number)
    }

    /// The connection with this number is of no more use.
    fn detach(&self, number: u64) {
        let mut attached = lock(&self.channel);
        if attached.number == number
            && let Some(channel) = attached.channel.take()
        {
            channel.close();
            drop(attached);
            self.changed.notify_all();
        }
    }

    /// Has the reader leave the present connection: another one is offered.
    pub fn interrupt(&self) {
        let (channel, number) = self.attached();
        if channel.is_some() {
            self.detach(number);
        }
    }

    /// Goes on over another connection, whose peer has handled `count` frames of this side; what it
    /// has not is sent again.
    ///
    /// # Errors
    /// [`Impossible`]; the session is over then.
    pub fn attach(&self, channel: Channel, count: u64) -> Result<(), Impossible> {
        {
            // Whoever sends on the old one is done with it first.
            let (old, number) = self.attached();
            if old.is_some() {
                self.detach(number);
            }
            let _sending = lock(&self.sending);
            self.outbox.rewind(count)?;
            self.told.store(self.handled(), Ordering::Relaxed);
            let mut attached = lock(&self.channel);
            attached.channel = Some(Arc::new(channel));
            attached.number += 1;
        }
        self.changed.notify_all();
        self.flush();
        Ok(())
    }

    /// Frames of the peer that were handled.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Acquire)
    }

    /// Ends the session's connection for good, and all waiting.
    pub fn close(&self) {
        self.outbox.close();
        let (channel, number) = self.attached();
        lock(&self.channel).over = true;
        if channel.is_some() {
            self.detach(number);
        }
        self.changed.notify_all();
    }

    /// Whether [`Self::close`] was called.
    #[must_use]
    pub fn is_over(&self) -> bool {
        lock(&self.channel).over
    }

    /// Whether a connection is there that its peer has not ended.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.attached().0.is_some_and(|channel| !channel.has_hung_up())
    }

    /// Waits until everything was acknowledged, the connection was lost or `limit` has passed.
    pub fn drain(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.flush();
        while !self.outbox.is_empty() && self.is_connected() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let attached = lock(&self.channel);
            let pause = left.min(Duration::from_millis(10));
            drop(self.changed.wait_timeout(attached, pause));
        }
    }

    /// Waits for a connection until `deadline`; whether there is one.
    #[must_use]
    pub fn await_channel(&self, deadline: Instant) -> bool {
        let mut attached = lock(&self.channel);
        loop {
            if attached.over {
                return false;
            }
            if attached.channel.is_some() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            attached = match self.changed.wait_timeout(attached, left) {
                Ok((attached, _)) => attached,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Reads frames from the present connection and has `handle` handle each exactly once, until
    /// the connection is lost or the session is over.
    pub fn read(&self, mut handle: impl FnMut(Frame<'_>) -> Result<(), Over>) -> Ended {
        let (channel, number) = self.attached();
        let Some(channel) = channel else {
            return match self.is_over() {
                true => Ended::Over("it was ended here".into()),
                false => Ended::Lost("there is none".into()),
            };
        };
        let mut reading = Reading::default();
        let why = loop {
            if let Err(ended) = reading.more(self, &channel) {
                break ended;
            }
            if let Err(ended) = self.handle_all(number, &mut reading, &mut handle) {
                break ended;
            }
        };
        self.detach(number);
        if self.is_over() { Ended::Over("it was ended here".into()) } else { why }
    }

    fn handle_all(
        &self,
        number: u64,
        reading: &mut Reading,
        handle: &mut impl FnMut(Frame<'_>) -> Result<(), Over>,
    ) -> Result<(), Ended> {
        let over = |why: &str| Ended::Over(why.to_owned());
        let mut at = 0;
        loop {
            let stream = reading.plain.get(at..).unwrap_or_default();
            let (bytes, length) = match front(stream) {
                Front::Whole(bytes, length) => (bytes, length),
                Front::Part => break,
                Front::TooLong => return Err(over("the peer sent a frame that is too long")),
            };
            let Some(frame) = Frame::decode(bytes) else {
                return Err(over("the peer sent what is no frame"));
            };
            at += length;
            if let Frame::Ack(count) = frame {
                self.outbox.acknowledge(count).map_err(|error| over(&error.to_string()))?;
                self.changed.notify_all();
                continue;
            }
            handle(frame).map_err(|Over(why)| Ended::Over(why))?;
            self.handled.fetch_add(1, Ordering::AcqRel);
            reading.since_told += length;
            if self.attached().1 != number {
                // Everything behind this frame comes again on the new connection.
                return Err(Ended::Lost("another connection took its place".into()));
            }
        }
        reading.plain.drain(..at);
        if reading.since_told >= DUE {
            reading.since_told = 0;
            self.beat();
        }
        Ok(())
    }
}

/// What was read of a connection.
#[derive(Debug)]
struct Reading {
    room: Room,
    plain: Vec<u8>,
    /// Bytes handled since the peer was told.
    since_told: usize,
    last: Instant,
}

impl Default for Reading {
    fn default() -> Self {
        Self { room: Room::default(), plain: Vec::new(), since_told: 0, last: Instant::now() }
    }
}

impl Reading {
    fn more(&mut self, link: &Link, channel: &Channel) -> Result<(), Ended> {
        match channel.receive(&mut self.room, &mut self.plain) {
            Ok(Heard::Some) => self.last = Instant::now(),
            Ok(Heard::Nothing) if self.last.elapsed() > SILENCE_MAX => {
                return Err(Ended::Lost("the peer is silent".into()));
            }
            Ok(Heard::Nothing) => link.beat(),
            Ok(Heard::End) => return Err(Ended::Lost("the peer closed it".into())),
            Err(error) => return Err(Ended::Lost(error.to_string())),
        }
        Ok(())
    }
}
