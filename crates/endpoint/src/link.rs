//! A relayed session's way to its peer over however many connections it takes.
//!
//! Whoever has frames adds them ([`Link::push`]) and has them sent ([`Link::flush`]); one thread
//! reads (`Link::read`). A reader never waits to send, so two peers that both send much cannot
//! wait for each other.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use weft_ring::duty::Duty;

use crate::frame::Frame;
use crate::lock;
use crate::outage::Outage;
use crate::outbox::{Closed, Impossible, Outbox, Unsent, WINDOW};
use crate::polling::Polling;
use crate::stream::{Nonsense, Part, Stream};
use crate::tls::{Channel, Heard, Room, Waits};

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

impl From<Nonsense> for Ended {
    fn from(nonsense: Nonsense) -> Self {
        Self::Over(nonsense.to_string())
    }
}

/// The peer broke the rules, or said goodbye.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Over(pub String);

/// Whoever reads what the peer sends.
pub(crate) trait Reader {
    /// Handles a frame.
    fn handle(&mut self, frame: Frame<'_>) -> Result<(), Over>;

    /// While it polls for the peer's next frame: passes on what goes to the peer, if that needs no
    /// waiting.
    fn look_back(&mut self) -> Result<LookedBack, Over>;

    /// It polls no more, so what goes to the peer is another thread's again.
    fn leave(&mut self);
}

/// What there was to pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookedBack {
    /// Nothing.
    Nothing,
    /// Something, which is on its way.
    Passed,
    /// More than can be passed on without waiting.
    NotNow,
}

/// Both directions of a session.
#[derive(Debug, Default)]
pub struct Link {
    outbox: Outbox,
    /// Frames of the peer that were handled, and as far as it was told.
    handled: AtomicU64,
    told: AtomicU64,
    /// So many are handled for sure, as it was told when it came back: the last of them may wait.
    promised: AtomicU64,
    /// It has said something.
    is_heard: AtomicBool,
    /// Something is to be said even without frames.
    due: AtomicBool,
    channel: Mutex<Attached>,
    changed: Condvar,
    /// Sending, with room for an acknowledgement.
    sending: Duty<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Attached {
    channel: Option<Arc<Channel>>,
    /// Raised with every channel.
    number: u64,
    /// Since when none is of any use.
    lost: Option<Instant>,
    /// When something was heard last, about.
    heard: Option<Instant>,
    outage: Outage,
    over: bool,
}

impl Link {
    /// A link whose session has just begun on this connection.
    #[must_use]
    pub fn over(channel: Channel) -> Self {
        let channel = Some(Arc::new(channel));
        let attached = Attached { channel, number: 1, ..Attached::default() };
        Self { channel: Mutex::new(attached), ..Self::default() }
    }

    /// Adds whole frames, waiting while the peer has not handled enough of those before, and leaves
    /// `frames` empty.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn push(&self, frames: &mut Vec<u8>) -> Result<(), Closed> {
        self.push_while(frames, || true)
    }

    /// The same for as long as it is worth while, which is asked every [`HEARTBEAT`] at least. A
    /// peer that must read and meanwhile acknowledges nothing for too long loses its connection.
    ///
    /// # Errors
    /// [`Closed`].
    pub(crate) fn push_while(
        &self,
        frames: &mut Vec<u8>,
        is_worth_while: impl Fn() -> bool,
    ) -> Result<(), Closed> {
        if !self.outbox.has_room(frames.len()) {
            // What is waited for must be on its way.
            self.flush();
        }
        let seen = Cell::new((self.progress(), Instant::now()));
        let stall_max = self.attached().0.and_then(|channel| channel.stall_max());
        self.outbox.push_while(frames, stall_max.unwrap_or(HEARTBEAT).min(HEARTBEAT), || {
            self.expect_progress(&seen);
            is_worth_while()
        })
    }

    /// The present connection, and what its peer has acknowledged.
    fn progress(&self) -> (u64, u64) {
        (self.number(), self.outbox.acknowledged())
    }

    /// Ends the connection if its peer has acknowledged nothing since `seen`, and for too long: the
    /// system may keep all that is sent, and nothing waits to be sent then.
    fn expect_progress(&self, seen: &Cell<((u64, u64), Instant)>) {
        let (before, since) = seen.get();
        let now = self.progress();
        let stall_max = self.attached().0.and_then(|channel| channel.stall_max());
        if now != before || stall_max.is_none() {
            seen.set((now, Instant::now()));
        } else if stall_max.is_some_and(|most| since.elapsed() >= most) {
            self.detach(now.0);
        }
    }

    /// Adds and sends whole frames without waiting, for the one that reads.
    pub(crate) fn pass_on(&self, frames: &mut Vec<u8>) -> Result<(), Closed> {
        self.outbox.push_without_waiting(frames)?;
        self.flush_without_waiting();
        Ok(())
    }

    /// Sends what was added, unless another thread does so or no connection is there.
    pub fn flush(&self) {
        self.send(Waits::Yes);
    }

    /// The same, but without waiting; whether nothing is left to be sent by the one that reads.
    pub(crate) fn flush_without_waiting(&self) -> bool {
        self.send(Waits::No)
    }

    fn send(&self, waits: Waits) -> bool {
        let is_left = || self.outbox.has_unsent() || self.due.load(Ordering::Acquire);
        let ended = self.sending.attend(|ack| self.send_all(ack, waits), is_left);
        // Whoever sends instead looks again before it leaves.
        ended.unwrap_or(true)
    }

    /// Sends what there is, or breaks off: whether nothing of it is left to the one that reads.
    fn send_all(&self, ack: &mut Vec<u8>, waits: Waits) -> ControlFlow<bool> {
        let (channel, number) = self.attached();
        let Some(channel) = channel else { return ControlFlow::Break(true) };
        let mut sent = channel.send_parts(&[], waits);
        while matches!(sent, Ok(true))
            && let Some(unsent) = self.next(ack)
        {
            let frames = unsent.as_ref().map_or(&[][..], Unsent::bytes);
            sent = channel.send_parts(&[IoSlice::new(ack), IoSlice::new(frames)], waits);
        }
        match sent {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(false),
            Err(_) => {
                self.detach(number);
                ControlFlow::Break(true)
            }
        }
    }

    /// What is sent next: an acknowledgement, unless there is nothing new to acknowledge, and
    /// frames, unless there are none; `None` when there is nothing to say.
    fn next(&self, ack: &mut Vec<u8>) -> Option<Option<Unsent>> {
        ack.clear();
        // What it was told it will not hear less of.
        let handled = self.handled().max(self.promised.load(Ordering::Acquire));
        let is_due = self.due.swap(false, Ordering::AcqRel);
        let unsent = self.outbox.take_unsent();
        if unsent.is_none() && !is_due {
            return None;
        }
        if is_due || self.told.load(Ordering::Relaxed) != handled {
            Frame::Ack(handled).encode(ack);
        }
        self.told.store(handled, Ordering::Relaxed);
        Some(unsent)
    }

    /// Says that this side lives, and what it has handled.
    pub fn beat(&self) {
        self.due.store(true, Ordering::Release);
        self.flush();
    }

    /// The same, for the one that reads.
    fn beat_without_waiting(&self) {
        self.due.store(true, Ordering::Release);
        self.flush_without_waiting();
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
            self.note_lost(&mut attached);
            drop(attached);
            self.changed.notify_all();
        }
    }

    fn note_lost(&self, attached: &mut Attached) -> Instant {
        let Attached { lost, outage, heard, .. } = attached;
        *lost.get_or_insert_with(|| outage.begin(Instant::now(), self.exchanged(), *heard))
    }

    /// Frames of both sides that were handled.
    fn exchanged(&self) -> u64 {
        self.handled().wrapping_add(self.outbox.acknowledged())
    }

    /// Whether the peer has said anything since the session began.
    pub(crate) fn has_heard(&self) -> bool {
        self.is_heard.load(Ordering::Acquire)
    }

    /// The number of the present connection, for [`Self::interrupt`].
    #[must_use]
    pub(crate) fn number(&self) -> u64 {
        self.attached().1
    }

    /// Has the reader leave the connection of this number: another one is offered.
    pub(crate) fn interrupt(&self, number: u64) {
        self.detach(number);
    }

    /// Since when no connection of any use is there, as far as anybody looked: those that came to
    /// nothing do not count. What one has brought that its peer has ended may still be read.
    #[must_use]
    pub(crate) fn lost_since(&self) -> Option<Instant> {
        let mut attached = lock(&self.channel);
        match &attached.channel {
            Some(channel) if !channel.has_hung_up() => None,
            Some(_) | None => Some(self.note_lost(&mut attached)),
        }
    }

    /// Goes on over another connection, whose peer has handled `count` frames of this side, and was
    /// told that `promised` of its own are handled; what it has not is sent again.
    ///
    /// # Errors
    /// [`Impossible`]; the session is over then.
    pub fn attach(&self, channel: Channel, count: u64, promised: u64) -> Result<(), Impossible> {
        {
            // Whoever sends on the old one is done with it first.
            let (old, number) = self.attached();
            if old.is_some() {
                self.detach(number);
            }
            let _sending = self.sending.hold();
            self.outbox.rewind(count)?;
            self.promised.fetch_max(promised, Ordering::AcqRel);
            self.told.store(promised, Ordering::Relaxed);
            let mut attached = lock(&self.channel);
            attached.channel = Some(Arc::new(channel));
            attached.number += 1;
            (attached.lost, attached.heard) = (None, None);
            attached.outage.end(Instant::now(), self.exchanged());
        }
        self.changed.notify_all();
        // The one that reads does the rest: if it waited here, and its peer as well, nobody read.
        self.flush_without_waiting();
        Ok(())
    }

    /// Whether that much, in bytes, can be pushed and sent without waiting, or nearly.
    pub(crate) fn is_free(&self, bytes: usize) -> bool {
        self.outbox.has_room(bytes) && !self.outbox.has_unsent()
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

    /// Reads frames from the present connection and has `reader` handle each exactly once, until
    /// the connection is lost or the session is over.
    pub(crate) fn read(&self, reader: &mut impl Reader) -> Ended {
        let (channel, number) = self.attached();
        let Some(channel) = channel else {
            return match self.is_over() {
                true => Ended::Over("it was ended here".into()),
                false => Ended::Lost("there is none".into()),
            };
        };
        let mut reading = Reading::default();
        channel.take_early(reading.stream.kept());
        let why = loop {
            if let Err(ended) = reading.handle_all(self, number, reader) {
                break ended;
            }
            if let Err(ended) = reading.more(self, (&channel, number), reader) {
                break ended;
            }
        };
        reader.leave();
        self.detach(number);
        if self.is_over() { Ended::Over("it was ended here".into()) } else { why }
    }

    /// Handles a frame, or a piece of a block, that came over the connection with this number; how
    /// many bytes are to be acknowledged now.
    fn handle(
        &self,
        number: u64,
        part: &Part<'_>,
        reader: &mut impl Reader,
    ) -> Result<usize, Ended> {
        self.is_heard.store(true, Ordering::Release);
        if let Frame::Ack(count) = part.frame {
            let acknowledged = self.outbox.acknowledge(count);
            acknowledged.map_err(|error| Ended::Over(error.to_string()))?;
            self.changed.notify_all();
            return Ok(0);
        }
        reader.handle(part.frame).map_err(|Over(why)| Ended::Over(why))?;
        let Some(length) = part.ends else { return Ok(0) };
        self.handled.fetch_add(1, Ordering::AcqRel);
        if self.attached().1 != number {
            // Everything behind this frame comes again on the new connection.
            return Err(Ended::Lost("another connection took its place".into()));
        }
        Ok(length)
    }
}

/// What was read of a connection.
#[derive(Debug)]
struct Reading {
    room: Room,
    stream: Stream,
    /// Bytes handled since the peer was told.
    since_told: usize,
    last: Instant,
    /// When the link was told that something is heard, and the peer that somebody hears it.
    noted: Instant,
    beaten: Instant,
    /// A call or its answer was passed on just now.
    is_soon: bool,
    polling: Polling,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            room: Room::default(),
            stream: Stream::default(),
            since_told: 0,
            last: Instant::now(),
            noted: Instant::now(),
            beaten: Instant::now(),
            is_soon: false,
            polling: Polling::default(),
        }
    }
}

impl Reading {
    /// Reads something, polling first if it is soon to come.
    fn more(
        &mut self,
        link: &Link,
        (channel, number): (&Channel, u64),
        reader: &mut impl Reader,
    ) -> Result<(), Ended> {
        // Of a peer that always sends there is always something to read; who sends may have left
        // this to whoever sent just then.
        if link.outbox.has_unsent() {
            link.flush_without_waiting();
        }
        while mem::take(&mut self.is_soon) {
            let room = &mut self.room;
            let found = self.polling.wait(|| match channel.try_read(room) {
                Some(read) => Some(Found::Bytes(read)),
                None => match reader.look_back() {
                    Ok(LookedBack::Nothing) => None,
                    Ok(LookedBack::Passed) => Some(Found::Passed),
                    Ok(LookedBack::NotNow) => Some(Found::Hindrance),
                    Err(over) => Some(Found::Over(over)),
                },
            });
            match found {
                Some(Found::Bytes(read)) => {
                    return self.decipher(link, (channel, number), read, reader);
                }
                Some(Found::Passed) => self.is_soon = true,
                Some(Found::Over(Over(why))) => return Err(Ended::Over(why)),
                Some(Found::Hindrance) | None => {}
            }
        }
        reader.leave();
        // Who waits to send reads as well, or two that both send much wait for each other.
        while !link.flush_without_waiting() {
            if let Some(read) = channel.try_read(&mut self.room) {
                return self.decipher(link, (channel, number), read, reader);
            }
            let lost = |error: io::Error| Ended::Lost(error.to_string());
            channel.await_either(HEARTBEAT).map_err(lost)?;
            if self.last.elapsed() > SILENCE_MAX {
                return Err(Ended::Lost(SILENT.into()));
            }
        }
        let read = channel.read(&mut self.room);
        self.decipher(link, (channel, number), read, reader)
    }

    /// Takes what was read. What is the arena's is handled at once, where it is still in the
    /// processor's caches: that waits for nobody.
    fn decipher(
        &mut self,
        link: &Link,
        (channel, number): (&Channel, u64),
        read: io::Result<usize>,
        reader: &mut impl Reader,
    ) -> Result<(), Ended> {
        let Self { room, stream, since_told, .. } = self;
        let mut taken: Result<(), Ended> = Ok(());
        let mut on = |part: Part<'_>| {
            *since_told += link.handle(number, &part, reader)?;
            Ok::<_, Ended>(())
        };
        let heard = channel.decipher(read, room, |bytes| {
            if taken.is_ok() {
                taken = stream.take(bytes, &mut on);
            }
        });
        taken?;
        self.note(link, heard)
    }

    /// Handles all frames that wait.
    fn handle_all(
        &mut self,
        link: &Link,
        number: u64,
        reader: &mut impl Reader,
    ) -> Result<(), Ended> {
        let Self { stream, since_told, is_soon, .. } = self;
        stream.frames(&mut |part| {
            *is_soon |= part.frame.is_of_a_call();
            *since_told += link.handle(number, &part, reader)?;
            Ok::<_, Ended>(())
        })?;
        if self.since_told >= DUE {
            self.since_told = 0;
            link.beat_without_waiting();
        }
        Ok(())
    }

    /// Something has come. Of a long way's slow bytes no frame may be whole for a while, and the
    /// peer is to know that they are heard.
    fn hear(&mut self, link: &Link) {
        self.last = Instant::now();
        if self.last.saturating_duration_since(self.noted) >= NOTED {
            self.noted = self.last;
            lock(&link.channel).heard = Some(self.last);
        }
        if self.last.saturating_duration_since(self.beaten) >= HEARTBEAT {
            self.beat(link);
        }
    }

    fn beat(&mut self, link: &Link) {
        self.beaten = Instant::now();
        link.beat_without_waiting();
    }

    fn note(&mut self, link: &Link, heard: io::Result<Heard>) -> Result<(), Ended> {
        match heard {
            Ok(Heard::Some) => self.hear(link),
            Ok(Heard::Nothing) if self.last.elapsed() > SILENCE_MAX => {
                return Err(Ended::Lost(SILENT.into()));
            }
            Ok(Heard::Nothing) => self.beat(link),
            Ok(Heard::End) => {
                return Err(Ended::Lost("the other host closed the connection".into()));
            }
            Err(error) => return Err(Ended::Lost(error.to_string())),
        }
        Ok(())
    }
}

/// How exactly the link knows when something was heard.
const NOTED: Duration = Duration::from_millis(250);

/// After [`SILENCE_MAX`].
const SILENT: &str =
    "nothing came from the other host for 8 s: it, or the network between, is down";

/// What polling found.
enum Found {
    Bytes(io::Result<usize>),
    Passed,
    Hindrance,
    Over(Over),
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use ring::rand::SystemRandom;
    use ring::signature::Ed25519KeyPair;
    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
    use rustls::ServerConnection;

    use super::*;
    use crate::frame::PIECE;
    use crate::tls::{Identity, client_config};

    /// Frames of [`PIECE`] bytes that each side sends: nearly as much as may be on its way, and far
    /// more than the sockets take.
    const FRAMES: u64 = (WINDOW / PIECE) as u64 - 1;

    /// Counts bytes, which must come in order, those of a frame all at once or not.
    struct Counting(Arc<AtomicU64>);

    impl Reader for Counting {
        fn handle(&mut self, frame: Frame<'_>) -> Result<(), Over> {
            let Frame::Block { offset, bytes } = frame else { return Err(Over("none".into())) };
            assert_eq!(offset, self.0.fetch_add(bytes.len() as u64, Ordering::AcqRel));
            Ok(())
        }

        fn look_back(&mut self) -> Result<LookedBack, Over> {
            Ok(LookedBack::Nothing)
        }

        fn leave(&mut self) {}
    }

    /// Two ends of a connection whose sockets take little at once.
    pub(crate) fn channels() -> (Channel, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        for socket in [&near, &far] {
            set_socket_send_buffer_size(socket, 16 << 10).unwrap();
            set_socket_recv_buffer_size(socket, 16 << 10).unwrap();
        }
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let identity = Identity::from_pkcs8(made.as_ref()).unwrap();
        let config = client_config(identity.digest(), false).unwrap();
        let deadline = Instant::now() + SILENCE_MAX;
        let greeting = thread::spawn(move || Channel::connect(near, config, deadline).unwrap());
        let mut tls = ServerConnection::new(identity.server_config().unwrap()).unwrap();
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut far).unwrap();
        }
        (greeting.join().unwrap(), Channel::new(far, tls.into()).unwrap())
    }

    /// A link with all frames added, and none sent. Who reads says soon that it lives, and sends
    /// them with it.
    fn filled(channel: Channel) -> Link {
        channel.set_patience(Duration::from_millis(20)).unwrap();
        let link = Link::over(channel);
        for number in 0..FRAMES {
            let mut frame = Vec::new();
            Frame::Block { offset: number * PIECE as u64, bytes: &[7; PIECE] }.encode(&mut frame);
            link.push(&mut frame).unwrap();
        }
        link
    }

    #[test]
    fn two_that_both_send_much_do_not_wait_for_each_other() {
        let (near, far) = channels();
        let far = filled(far);
        // Some of it has come before, as behind a greeting.
        assert!(!far.flush_without_waiting());
        let (mut room, mut plain) = (Room::default(), Vec::new());
        while plain.is_empty() {
            near.receive(&mut room, &mut plain).unwrap();
        }
        near.give_back(&plain);
        let links = [filled(near), far].map(Arc::new);
        let counts = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let reading = [0, 1].map(|side: usize| {
            let (link, count) = (Arc::clone(&links[side]), Arc::clone(&counts[side]));
            thread::spawn(move || link.read(&mut Counting(count)))
        });
        let deadline = Instant::now() + 2 * SILENCE_MAX;
        let bytes = FRAMES * PIECE as u64;
        let all = || counts.iter().all(|count| count.load(Ordering::Acquire) == bytes);
        while !all() && Instant::now() < deadline && links.iter().all(|link| link.is_connected()) {
            thread::yield_now();
        }
        let counted = all();
        links.iter().for_each(|link| link.close());
        let ended = reading.map(|reader| reader.join().unwrap());
        assert!(counted, "{counts:?} of {bytes}: {ended:?}");
    }

    #[test]
    fn who_takes_everything_and_acknowledges_nothing_has_lost_its_connection() {
        let (near, far) = channels();
        far.expect_reader(Duration::from_millis(50));
        let link = filled(far);
        let taking = thread::spawn(move || {
            let (mut room, mut plain) = (Room::default(), Vec::new());
            while matches!(near.receive(&mut room, &mut plain), Ok(Heard::Some | Heard::Nothing)) {
                plain.clear();
            }
        });
        let deadline = Instant::now() + 2 * SILENCE_MAX;
        let is_waited_for = || link.is_connected() && Instant::now() < deadline;
        let mut more = Vec::new();
        Frame::Block { offset: FRAMES, bytes: &[7; PIECE] }.encode(&mut more);
        while link.push_while(&mut more.clone(), is_waited_for).is_ok() {}
        assert!(!link.is_connected(), "it is still waited for");
        taking.join().unwrap();
    }
}
