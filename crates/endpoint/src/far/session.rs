//! One endpoint's session: frames into the node's lanes, and what the worker publishes into frames.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_ring::lending::{Borrowed, Lending};
use weft_ring::{AnswerTo, Loss, RelayIn, RelayOut, Segment, SharedMemory, peer};
use weft_wire::Command;
use weft_wire::command::Block;
use weft_wire::remote::{Open, Reception};

use super::collector::{self, Collector};
use super::door::Door;
use super::ledger::Ledger;
use super::{Limits, say};
use crate::frame::Frame;
use crate::link::{Ended, Link, LookedBack, Over, Reader};
use crate::lock;
use crate::pinned::{self, Counts, Rows, Window};
use crate::tls::{Channel, digest};

/// What the two directions share.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) link: Link,
    secret: [u8; 32],
    grace: Duration,
    pub(super) limits: Limits,
    segment: Segment,
    pub(super) out: RelayOut,
    pub(super) pinned: Arc<SharedMemory>,
    pub(super) pinned_base: u64,
    pub(super) ledger: Mutex<Ledger>,
    lifeline: Mutex<Option<OwnedFd>>,
    offered: Mutex<Offered>,
    arrived: Condvar,
    /// The endpoint has shown the session's secret.
    is_known: AtomicBool,
    /// When the worker was seen to be gone.
    gone: OnceLock<Instant>,
    /// The client said goodbye.
    is_done: AtomicBool,
}

/// Whoever waits until fewer rows are in flight looks again after this time.
const ROWS_PAUSE: Duration = Duration::from_millis(1);

/// A connection on which the endpoint wants to go on, and frames of this side that it has handled.
type Offered = Option<(Channel, u64)>;

impl Session {
    /// A session of the node whose endpoint is not attached yet.
    pub(super) fn new(
        secret: &[u8; 32],
        door: Door,
        open: &Open,
        (grace, limits): (Duration, Limits),
        ledger: Ledger,
    ) -> Result<Self> {
        let Door { segment, pinned, lifeline, .. } = door;
        Ok(Self {
            link: Link::default(),
            secret: digest(secret),
            grace,
            limits,
            out: RelayOut::open(&segment)?,
            segment,
            pinned,
            pinned_base: open.hello.pinned_base,
            ledger: Mutex::new(ledger),
            lifeline: Mutex::new(Some(lifeline)),
            offered: Mutex::default(),
            arrived: Condvar::new(),
            is_known: AtomicBool::new(false),
            gone: OnceLock::new(),
            is_done: AtomicBool::new(false),
        })
    }

    /// Whether that is the session's secret.
    pub(super) fn knows(&self, secret: &[u8; 32]) -> bool {
        // Of digests nothing is learnt by how long it takes to compare them.
        digest(secret) == self.secret
    }

    /// Relays until the client, the worker or the endpoint's grace time is over.
    pub(super) fn run(self: &Arc<Self>, channel: Channel) {
        let collecting = Arc::new(Lending::new(Collector::new(Arc::clone(self), channel.packs())));
        let (session, work) = (Arc::clone(self), Arc::clone(&collecting));
        let thread = thread::Builder::new().name("collector".to_owned()).stack_size(256 << 10);
        let collector = thread.spawn(move || collector::run(&session, &work));
        let relay = RelayIn::open(&self.segment);
        if let (Ok(collector), Ok(relay)) = (collector, relay) {
            if self.link.attach(channel, 0, 0).is_ok() {
                // One that was offered before this one was there has interrupted nothing.
                if lock(&self.offered).is_some() {
                    self.link.interrupt(self.link.number());
                }
                self.receive(Receiver::new(self, relay, &collecting));
            }
            self.end();
            // It ends with the link.
            let _ended = collector.join();
        }
        self.end();
    }

    /// Ends the session: the worker learns it by its lifeline.
    pub(super) fn end(&self) {
        self.link.close();
        self.out.news().wake();
        // Whoever looked before waits now, or it would miss this.
        drop(lock(&self.offered));
        self.arrived.notify_all();
        drop(lock(&self.lifeline).take());
    }

    /// Whether it is worth while to wait for an endpoint that acknowledges nothing: where the
    /// worker is gone, for [`Limits::last_words`] only.
    pub(super) fn is_worth_while(&self) -> bool {
        let is_soon = || self.gone.get_or_init(Instant::now).elapsed() < self.limits.last_words;
        self.loss().is_none() || is_soon()
    }

    /// Whether the worker is gone, or was told to go.
    pub(super) fn loss(&self) -> Option<Loss> {
        let is_gone = || lock(&self.lifeline).as_ref().is_some_and(peer::has_hung_up);
        self.out.loss().or_else(|| is_gone().then_some(Loss::Worker))
    }

    fn receive(&self, mut receiver: Receiver<'_>) {
        loop {
            match self.link.read(&mut receiver) {
                Ended::Over(_) => return,
                Ended::Lost(_) => {
                    if self.is_done.load(Ordering::Acquire) || !self.await_endpoint() {
                        return;
                    }
                }
            }
        }
    }

    /// The endpoint wants to go on over another connection. Who reads takes it.
    pub(super) fn offer(&self, channel: Channel, handled: u64) {
        self.is_known.store(true, Ordering::Release);
        let present = {
            let mut offered = lock(&self.offered);
            *offered = Some((channel, handled));
            // The offered one cannot be the present one yet.
            self.link.number()
        };
        self.arrived.notify_all();
        self.link.interrupt(present);
    }

    /// Takes an offered connection; `handled` frames of the endpoint are handled by now, or will be
    /// for sure. Whether there was one that can be used.
    fn take_offer(&self, handled: u64) -> bool {
        let mut is_taken = false;
        // Whoever offers another one meanwhile may have interrupted the one before this.
        while let Some((channel, received)) = self.next_offer() {
            let resumed = self.limits.settle(&channel);
            let resumed = resumed.and_then(|()| say(&channel, &Reception::Resumed(handled)));
            is_taken = resumed.is_ok() && self.link.attach(channel, received, handled).is_ok();
        }
        is_taken
    }

    fn next_offer(&self) -> Offered {
        lock(&self.offered).take()
    }

    /// How much of the grace time is left since the connection was lost. An endpoint that has not
    /// shown that it knows of its session may never have heard of it, and does not come back then.
    fn grace_left(&self) -> Duration {
        let is_known = self.link.has_heard() || self.is_known.load(Ordering::Acquire);
        let grace = if is_known { self.grace } else { self.grace.min(self.limits.unheard) };
        self.link.lost_since().map_or(grace, |since| grace.saturating_sub(since.elapsed()))
    }

    /// Waits for the endpoint to come back, for the grace time; whether it did.
    fn await_endpoint(&self) -> bool {
        loop {
            if self.take_offer(self.link.handled()) || self.link.is_connected() {
                return true;
            }
            let left = self.grace_left();
            let offered = lock(&self.offered);
            // Who ends the session takes this lock afterwards.
            if left.is_zero() || self.link.is_over() {
                return false;
            }
            if offered.is_none() {
                drop(self.arrived.wait_timeout(offered, left));
            }
        }
    }
}

/// The direction to the worker.
struct Receiver<'a> {
    session: &'a Session,
    relay: RelayIn,
    window: Window,
    counts: Counts,
    collecting: &'a Lending<Collector>,
    /// The other direction, while it is done here as well.
    collector: Option<Borrowed<'a, Collector>>,
}

impl Reader for Receiver<'_> {
    fn handle(&mut self, frame: Frame<'_>) -> Result<(), Over> {
        let outside = || Over("the endpoint named bytes that are not there".into());
        match frame {
            Frame::Command { answer, bytes } => self.submit(answer, bytes),
            Frame::Block { offset, bytes } => {
                let span = self.relay.span(offset, bytes.len() as u64).map_err(|_| outside())?;
                span.write_from(bytes).map_err(|_| outside())
            }
            Frame::Pinned { address, bytes } => {
                let rows = Rows::linear(address, bytes.len() as u64);
                let span = self.session.span(&self.window, &rows).ok_or_else(outside)?;
                span.write_from(bytes).map_err(|_| outside())
            }
            Frame::Bye => {
                self.session.is_done.store(true, Ordering::Release);
                Err(Over("the client is gone".into()))
            }
            Frame::Ack(_)
            | Frame::Answer { .. }
            | Frame::Released(_)
            | Frame::Progress { .. }
            | Frame::Notice { .. }
            | Frame::Written(_)
            // It comes here as what it was.
            | Frame::Packed { .. }
            | Frame::Lost(_) => Err(Over("the endpoint sent what only gateways send".into())),
        }
    }

    fn look_back(&mut self) -> Result<LookedBack, Over> {
        let (session, collecting) = (self.session, self.collecting);
        let ring = || session.out.news().wake();
        let collector = self.collector.get_or_insert_with(|| collecting.borrow(ring));
        let Some(collector) = collector.work() else { return Ok(LookedBack::Nothing) };
        collector.collect_light().map_err(|closed| Over(closed.to_string()))
    }

    fn leave(&mut self) {
        self.collector = None;
    }
}

impl<'a> Receiver<'a> {
    fn new(session: &'a Session, relay: RelayIn, collecting: &'a Lending<Collector>) -> Self {
        let window = Window::new(session.pinned_base, session.pinned.len() as u64);
        Self { session, relay, window, counts: Counts::default(), collecting, collector: None }
    }

    fn submit(&mut self, answer: Option<AnswerTo>, bytes: &[u8]) -> Result<(), Over> {
        let no_command = || Over("the endpoint sent what is no command".into());
        let command = Command::decode(bytes).map_err(|_| no_command())?;
        if answer.is_some() != command.is_sync()
            || answer.is_some_and(|answer| !RelayOut::is_answerable(answer))
        {
            return Err(no_command());
        }
        command
            .try_for_each_block(&mut |block| {
                self.relay.span(block.offset, block.bytes)?;
                self.relay.lend(block.release)
            })
            .map_err(|_| Over("the endpoint named a block that is not there".into()))?;
        let relay = &self.relay;
        let read = |block: &Block| Some(relay.span(block.offset, block.bytes).ok()?.to_vec());
        let pending = pinned::pending(&mut self.window, &mut self.counts, &command, &read);
        let pending = pending.map_err(|error| Over(error.to_string()))?;
        let session = self.session;
        let rows = pending.as_ref().map_or(0, |(_, touched)| touched.rows());
        while rows > 0 && !lock(&session.ledger).has_room(rows) {
            // As for room in a lane: earlier ones have to end.
            self.leave();
            if !session.is_awaited() {
                return Err(Over("the endpoint did not come back".into()));
            }
            thread::sleep(ROWS_PAUSE);
        }
        let shown = |rows: &Rows| session.span(&self.window, rows);
        if !lock(&session.ledger).note(&command, answer, pending, shown) {
            return Err(Over("the endpoint lent a block twice".into()));
        }
        if !self.relay.has_room(bytes.len()) {
            // It may take long.
            self.leave();
        }
        let alive = || session.is_awaited();
        let submitted = self.relay.submit(answer, bytes, &alive);
        submitted.map_err(|error| Over(error.to_string()))
    }
}

impl Session {
    /// Bytes of the window without a gap.
    pub(super) fn span(&self, window: &Window, rows: &Rows) -> Option<weft_ring::SharedSpan> {
        let (address, bytes) = rows.runs().next()?;
        let offset = usize::try_from(window.offset(address, bytes)?).ok()?;
        self.pinned.span(offset, usize::try_from(bytes).ok()?).ok()
    }

    /// Asked while a command waits for room in its lane: whether the endpoint is there, or may come
    /// back. One that has come back is told that this command is handled, which it will be.
    fn is_awaited(&self) -> bool {
        if self.link.is_over() {
            return false;
        }
        let is_there = self.take_offer(self.link.handled() + 1) || self.link.is_connected();
        is_there || !self.grace_left().is_zero()
    }
}

#[cfg(test)]
mod sequences;

#[cfg(test)]
mod tests {
    use weft_ring::{Access, MemoryFile, PAGE};
    use weft_wire::handshake::{HelloBody, Welcome};

    use super::super::ledger::Shadowed;
    use super::*;
    use crate::link::tests::channels;
    use crate::tls::{Heard, Room};

    const LIMIT: Duration = Duration::from_secs(60);

    fn session() -> (Arc<Session>, OwnedFd) {
        session_of((1 << 16, PAGE), LIMIT, Arc::default())
    }

    /// One with an arena and a pinned window of so many bytes, that outlives its connection for the
    /// grace time.
    pub(super) fn session_of(
        (arena, pinned): (usize, usize),
        grace: Duration,
        shadowed: Arc<Shadowed>,
    ) -> (Arc<Session>, OwnedFd) {
        let file = Segment::create(arena).unwrap();
        let segment = Segment::open(file.map(Access::ReadWrite).unwrap()).unwrap();
        segment.mark_relayed().unwrap();
        let window = MemoryFile::create("pinned", pinned).unwrap();
        let pinned = window.map(Access::ReadWrite).unwrap();
        let (worker, lifeline) = peer::lifeline().unwrap();
        let welcome = Welcome {
            session: 1,
            vgpu: "v".into(),
            device_name: "none".into(),
            uuid: [0; 16],
            capability_major: 7,
            capability_minor: 5,
            memory_bytes: 0,
            pinned_bytes: pinned.len() as u64,
            managed_bytes: 0,
            attributes: Vec::new(),
            placement: None,
        };
        let door = Door { welcome, segment, pinned, lifeline };
        let open = Open { grant: String::new(), key: [0; 32], hello: HelloBody::question("v") };
        let limits = (grace, Limits::default());
        let ledger = Ledger::new("v".into(), shadowed);
        let session = Session::new(&[0; 32], door, &open, limits, ledger);
        (Arc::new(session.unwrap()), worker)
    }

    /// Whoever comes back before the first connection is looked at does not wait for its end.
    #[test]
    fn a_connection_that_is_offered_before_the_first_is_there_is_gone_on_with() {
        let (session, _worker) = session();
        let ((_first, far), (late, far_late)) = (channels(), channels());
        session.offer(far_late, 0);
        let running = Arc::clone(&session);
        let running = thread::spawn(move || running.run(far));
        late.set_patience(Duration::from_millis(20)).unwrap();
        let (mut room, mut plain) = (Room::default(), Vec::new());
        let offered = Instant::now();
        while plain.is_empty() {
            assert_ne!(late.receive(&mut room, &mut plain).unwrap(), Heard::End);
            assert!(offered.elapsed() < LIMIT, "nothing came");
        }
        session.end();
        running.join().unwrap();
    }

    /// Whoever comes back twice within a moment goes on over the last connection, whatever the
    /// session was doing with the one before: here the moments of many attempts lie all over that.
    #[test]
    fn the_connection_that_was_offered_last_is_gone_on_with() {
        let (session, _worker) = session();
        let (_first, far) = channels();
        let running = Arc::clone(&session);
        let running = thread::spawn(move || running.run(far));
        let mut beat = Vec::new();
        Frame::Ack(0).encode(&mut beat);
        for attempt in 0..100 {
            let ((early, far_early), (late, far_late)) = (channels(), channels());
            session.offer(far_early, 0);
            let offered = Instant::now();
            while offered.elapsed() < Duration::from_micros(4 * attempt) {
                std::hint::spin_loop();
            }
            session.offer(far_late, 0);
            late.set_patience(Duration::from_millis(20)).unwrap();
            let (mut room, mut plain) = (Room::default(), Vec::new());
            while plain.is_empty() {
                let heard = late.receive(&mut room, &mut plain).unwrap();
                assert_ne!(heard, Heard::End, "attempt {attempt}");
                // The other connection would be of use, if that were the present one.
                let _ = early.send(&beat);
                assert!(offered.elapsed() < LIMIT, "attempt {attempt}: nothing came");
            }
        }
        session.end();
        running.join().unwrap();
    }
}
