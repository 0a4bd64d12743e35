//! One program's session: its own shared memory, and a link to the gateway.
//!
//! Three threads: one takes commands ([`super::taker`]), one reads what the gateway sends, one
//! waits for the program's end.

use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, poll};
use weft_ring::lending::{Borrowed, Lending};
use weft_ring::{
    Access, ArenaRef, Callers, Loss, MemoryFile, PAGE, Replies, Segment, SharedMemory, Waking,
    WorkerSide, peer, relay,
};
use weft_wire::handshake::{Answer, HelloBody};
use weft_wire::progress::STREAM_WORDS;
use weft_wire::remote::{Opened, Resume};

use super::gateway::{Gateway, Resumption};
use super::taker::{self, Taker};
use crate::frame::Frame;
use crate::link::{Ended, HEARTBEAT, Link, LookedBack, Over, Reader};
use crate::lock;
use crate::pinned::{Rows, Unrelayed};
use crate::tls::Channel;

/// From one attempt to reach the gateway to the next, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// And after one that was there and came to nothing: of those there may be many until a frame fits.
const PAUSE_FOUND_MAX: Duration = Duration::from_millis(500);

/// The longest grace time that a node has (`remote.grace_ms`); a gateway may say anything.
const GRACE_MAX: Duration = Duration::from_secs(3600);

/// What the two directions share.
#[derive(Debug)]
pub(super) struct Session {
    gateway: Gateway,
    id: [u8; 16],
    secret: [u8; 32],
    grace: Duration,
    /// Both ends agreed to compress, as its first connection says.
    pub(super) packs: bool,
    pub(super) link: Link,
    pub(super) segment: Segment,
    replies: Replies,
    pub(super) pinned: Arc<SharedMemory>,
    pub(super) pinned_base: u64,
    /// What commands write to the window and the gateway has not sent, by their numbers.
    pub(super) writes: Mutex<Vec<Write>>,
    /// The streams' progress words, as the program sees them.
    pub(super) progress: Vec<AtomicU64>,
    lifeline: OwnedFd,
    /// The program has ended, and the other side is told.
    is_leaving: AtomicBool,
    side: Mutex<Option<WorkerSide>>,
}

/// Bytes of the window that are the gateway's to say.
#[derive(Debug, Clone)]
pub(super) struct Write {
    /// The command's number among those that may write.
    pub(super) number: u64,
    /// Its place among those that touch the window.
    pub(super) order: u64,
    /// The bytes.
    pub(super) rows: Vec<Rows>,
}

impl Session {
    /// Makes the program's shared memory and welcomes it.
    pub(super) fn begin(
        program: &OwnedFd,
        gateway: Gateway,
        channel: Channel,
        opened: Opened,
        hello: &HelloBody,
    ) -> Result<Self> {
        channel.set_patience(HEARTBEAT)?;
        let Opened { session, secret, arena_bytes, grace_ms, mut welcome } = opened;
        let file = Segment::create(usize::try_from(arena_bytes)?)?;
        let segment = Segment::open(file.map(Access::ReadWrite)?)?;
        let side = WorkerSide::open(segment.clone())?;
        if !relay::leaves_processors() {
            Callers::open(&segment)?.set_waking(Waking::Relayed);
        }
        let pinned_bytes = welcome.pinned_bytes.min(hello.pinned_bytes);
        let managed_bytes = welcome.managed_bytes.min(hello.pinned_bytes - pinned_bytes);
        let window_bytes = usize::try_from(pinned_bytes + managed_bytes)?.max(PAGE);
        let window = MemoryFile::create("weft-pinned", window_bytes)?;
        let pinned = window.map(Access::ReadWrite)?;
        let (lifeline, programs) = peer::lifeline()?;
        welcome.refuse_registering();
        welcome.pinned_bytes = pinned.len() as u64 - managed_bytes;
        welcome.managed_bytes = managed_bytes;
        let answer = Answer::Welcome(welcome).to_bytes()?;
        peer::send(program, &answer, &[file.as_fd(), window.as_fd(), programs.as_fd()])?;
        Ok(Self {
            gateway,
            id: session,
            secret,
            grace: Duration::from_millis(u64::from(grace_ms)).min(GRACE_MAX),
            packs: channel.packs(),
            link: Link::over(channel),
            replies: side.replies().clone(),
            segment,
            pinned,
            pinned_base: hello.pinned_base,
            writes: Mutex::default(),
            progress: (0..STREAM_WORDS).map(|_| AtomicU64::new(0)).collect(),
            lifeline,
            is_leaving: AtomicBool::new(false),
            side: Mutex::new(Some(side)),
        })
    }

    /// Relays until the program or the session is over.
    pub(super) fn run(self) {
        let session = Arc::new(self);
        let Some(side) = lock(&session.side).take() else { return };
        // Until then the gateway does not know that its answer has come.
        session.link.beat();
        let taking = Arc::new(Lending::new(Taker::new(Arc::clone(&session), side)));
        let spawn = |name: &str, work: fn(&Self, &Lending<Taker>)| {
            let (session, taking) = (Arc::clone(&session), Arc::clone(&taking));
            let thread = thread::Builder::new().name(name.to_owned()).stack_size(256 << 10);
            thread.spawn(move || work(&session, &taking))
        };
        let watch = |session: &Self, _: &Lending<Taker>| session.watch();
        let spawned = spawn("life", watch).and_then(|_| spawn("reader", Self::read));
        if spawned.is_err() {
            session.end(Loss::Worker);
            return;
        }
        let why = taker::run(&session, &taking);
        session.end(why);
    }

    /// The session cannot go on for what its program does, whose user is told.
    pub(super) fn give_up(&self, why: &Unrelayed) {
        say(&format!("weft-endpoint: the session ended: {why}"));
        // What the other threads find then has been said.
        self.link.close();
    }

    /// The program is told that the session is over.
    fn end(&self, why: Loss) {
        // It cannot fail for an opened segment.
        let _ = self.segment.declare_lost(why);
        self.link.close();
        self.ring_taker();
    }

    /// Has the thread that takes commands look at everything.
    fn ring_taker(&self) {
        // It cannot fail for an opened segment.
        if let Ok(doorbell) = self.segment.doorbell() {
            doorbell.wake();
        }
    }

    /// Waits for the program's end, then says goodbye.
    fn watch(&self) {
        let mut polled = [PollFd::new(&self.lifeline, PollFlags::IN)];
        while rustix::io::retry_on_intr(|| poll(&mut polled, None)).is_ok_and(|ready| ready == 0) {}
        self.is_leaving.store(true, Ordering::Release);
        let mut bye = Vec::new();
        Frame::Bye.encode(&mut bye);
        if !self.link.is_over() && self.link.push(&mut bye).is_ok() {
            self.link.drain(HEARTBEAT);
        }
        self.end(Loss::Worker);
    }

    /// Reads, over as many connections as it takes.
    fn read(&self, taking: &Lending<Taker>) {
        let mut replies = RepliesIn { session: self, taking, taker: None };
        let mut retrying = Retrying::default();
        let why = loop {
            match self.link.read(&mut replies) {
                Ended::Over(why) => break why,
                Ended::Lost(why) => {
                    if let Err(refused) = self.reconnect(&why, &mut retrying) {
                        break format!("{why}; {refused}");
                    }
                }
            }
        };
        // After its goodbye the other side may be gone first.
        if !self.link.is_over() && !self.is_leaving.load(Ordering::Acquire) {
            say(&format!("weft-endpoint: the session ended: {why}"));
        }
        self.end(Loss::Worker);
    }

    /// Goes on over another connection within the grace time.
    fn reconnect(&self, why: &str, retrying: &mut Retrying) -> Result<(), String> {
        let lost = self.link.lost_since().unwrap_or_else(Instant::now);
        let deadline = lost + self.grace;
        if let Some(pause) = retrying.begin(lost) {
            thread::sleep(pause);
        }
        loop {
            if self.link.is_over() {
                return Err("it was ended here".into());
            }
            let (session, secret) = (self.id, self.secret);
            let received = self.link.handled();
            let resume = Resume { session, secret, received };
            let failed = match self.gateway.resume(resume, deadline) {
                Ok(Resumption::Resumed(channel, handled)) => {
                    let patient = channel.set_patience(HEARTBEAT);
                    patient.map_err(|error| error.to_string())?;
                    let attached = self.link.attach(*channel, handled, received);
                    if retrying.is_told {
                        say("weft-endpoint: the session goes on over another connection");
                    }
                    return attached.map_err(|error| error.to_string());
                }
                Ok(Resumption::Refused(message)) => return Err(message),
                Err(error) => format!("{error:#}"),
            };
            let pause = retrying.pause();
            if Instant::now() + pause > deadline {
                return Err(format!(
                    "no other connection within {:?} (remote.grace_ms of the node): {failed}; its \
                     program has a CUDA error and must be started again",
                    self.grace
                ));
            }
            // The other side hangs up on whoever has said goodbye.
            let is_leaving = self.is_leaving.load(Ordering::Acquire);
            if !is_leaving && !std::mem::replace(&mut retrying.is_told, true) {
                say(&format!(
                    "weft-endpoint: the connection was lost ({why}); its session waits {:?} for \
                     another one",
                    self.grace
                ));
            }
            thread::sleep(pause);
        }
    }

    /// Shows the program what the worker has published.
    fn apply(&self, frame: Frame<'_>) -> Result<(), Over> {
        let broken = |_| Over("the gateway named bytes that are not there".into());
        match frame {
            Frame::Answer { to, status, bytes } => {
                // A frame's answer is no longer than a slot's.
                let _ = self.replies.complete(to, status, bytes);
            }
            Frame::Progress { word, value } => {
                let index = usize::try_from(word).unwrap_or(usize::MAX);
                if let Some(seen) = self.progress.get(index) {
                    seen.store(value, Ordering::Release);
                }
                self.replies.set_progress(index, value);
            }
            Frame::Notice { word, value } => {
                self.replies.set_notice(usize::try_from(word).unwrap_or(usize::MAX), value);
            }
            Frame::Released(block) => {
                let named = ArenaRef { block, offset: 0, len: 0 };
                self.replies.arena().release(&named).map_err(broken)?;
            }
            Frame::Block { offset, bytes } => {
                let named = ArenaRef { block: 0, offset, len: bytes.len() as u64 };
                let span = self.replies.arena().span(&named).map_err(broken)?;
                span.write_from(bytes).map_err(|_| Over("shared memory".into()))?;
            }
            Frame::Pinned { address, bytes } => {
                let offset = address.checked_sub(self.pinned_base);
                let offset = offset.and_then(|offset| usize::try_from(offset).ok());
                let span = offset.and_then(|offset| self.pinned.span(offset, bytes.len()).ok());
                let written = span.and_then(|span| span.write_from(bytes).ok());
                written.ok_or_else(|| Over("the gateway named bytes outside the window".into()))?;
            }
            Frame::Written(number) => lock(&self.writes).retain(|write| write.number != number),
            Frame::Lost(why) => {
                // It cannot fail for an opened segment.
                let _ = self.segment.declare_lost(loss_of(why));
                return Err(Over("the node ended it".into()));
            }
            // A packed frame comes here as what it was.
            Frame::Ack(_) | Frame::Command { .. } | Frame::Bye | Frame::Packed { .. } => {
                return Err(Over("the gateway sent what only endpoints send".into()));
            }
        }
        Ok(())
    }
}

/// Attempts to go on, over as many connections as one outage has.
#[derive(Debug)]
struct Retrying {
    /// When the present outage began.
    since: Option<Instant>,
    next: Duration,
    /// The program's user was told that the session waits.
    is_told: bool,
}

impl Default for Retrying {
    fn default() -> Self {
        Self { since: None, next: PAUSE_MIN, is_told: false }
    }
}

impl Retrying {
    /// A connection is lost in the outage that began then. How long to wait first where another one
    /// was found in it and came to nothing.
    fn begin(&mut self, since: Instant) -> Option<Duration> {
        if self.since == Some(since) {
            return Some(self.pause().min(PAUSE_FOUND_MAX));
        }
        *self = Self { since: Some(since), ..Self::default() };
        None
    }

    /// From this attempt to the next.
    fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (2 * pause).min(PAUSE_MAX);
        pause
    }
}

/// The direction to the program.
struct RepliesIn<'a> {
    session: &'a Session,
    taking: &'a Lending<Taker>,
    /// The other direction, while it is done here as well.
    taker: Option<Borrowed<'a, Taker>>,
}

impl Reader for RepliesIn<'_> {
    fn handle(&mut self, frame: Frame<'_>) -> Result<(), Over> {
        self.session.apply(frame)
    }

    fn look_back(&mut self) -> Result<LookedBack, Over> {
        let (session, taking) = (self.session, self.taking);
        let taker = self.taker.get_or_insert_with(|| taking.borrow(|| session.ring_taker()));
        let Some(taker) = taker.work() else { return Ok(LookedBack::Nothing) };
        taker.take_light().map_err(|_| Over("the program broke the rules".into()))
    }

    fn leave(&mut self) {
        self.taker = None;
    }
}

fn loss_of(number: u32) -> Loss {
    [Loss::NodeStopped, Loss::VgpuRemoved, Loss::DeviceWithdrawn, Loss::DeviceFailed]
        .into_iter()
        .find(|loss| *loss as u32 == number)
        .unwrap_or(Loss::Worker)
}

fn say(line: &str) {
    // An endpoint has no log but this, and nobody may listen.
    let _ = writeln!(std::io::stderr(), "{line}");
}
