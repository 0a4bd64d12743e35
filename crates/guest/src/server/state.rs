//! What a machine's server knows of the guest's programs, and decides about them.
//!
//! Bytes of the guest and answers of the node come in, bytes for the guest and hellos for the node
//! go out. There is no socket here, no memory and no clock: `S` is what the host holds for a
//! session, and dropping it is how the session lets go of its place.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result};
use weft_wire::guest::{
    AnswerFrame, Begun, FrameReader, GuestFrame, HelloFrame, HostFrame, filler,
};
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, PROTOCOL_VERSION, Placement, RefusalCode};

use super::Counts;
use crate::outbox::Outbox;

/// Hellos that wait for the daemon, at most.
pub const ASKED_MAX: usize = 64;

/// Marks that there are, one bit each in `State::due`.
pub const MARKS: u8 = 64;

/// What the shell does after bytes of the guest, before it sends what is to go to the guest.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Heard {
    /// An agent began: the region's name belongs at the region's beginning.
    pub began: bool,
    /// The first agent that speaks another protocol, and which.
    pub foreign: Option<u16>,
}

/// The state of a machine's server.
#[derive(Debug)]
pub struct State<S> {
    /// The region's name for the daemon.
    name: [u8; 16],
    reader: FrameReader,
    pub(crate) out: Outbox,
    sessions: BTreeMap<u8, S>,
    /// Sessions whose sleepers are to look, one bit each; sent when there is room.
    due: u64,
    /// Hellos that the daemon has not heard yet.
    asked: VecDeque<(u32, Vec<u8>)>,
    /// The hello that it hears now; `None` in it when who asked is gone.
    waiting: Option<Option<u32>>,
    /// It was said that the guest's agent speaks another protocol.
    is_agent_foreign: bool,
    exited: Option<i32>,
    counts: Counts,
}

impl<S> State<S> {
    /// The server of a region of that name, before its machine is there.
    #[must_use]
    pub fn new(name: [u8; 16]) -> Self {
        Self {
            name,
            reader: FrameReader::default(),
            out: Outbox::default(),
            sessions: BTreeMap::new(),
            due: 0,
            asked: VecDeque::new(),
            waiting: None,
            is_agent_foreign: false,
            exited: None,
            counts: Counts::default(),
        }
    }

    /// What crossed the border so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How the machine's program ended, if it has.
    #[must_use]
    pub fn exited(&self) -> Option<i32> {
        self.exited
    }

    /// The sessions that there are, by their marks.
    pub fn sessions(&self) -> impl Iterator<Item = (u8, &S)> {
        self.sessions.iter().map(|(mark, session)| (*mark, session))
    }

    /// The session with that mark.
    pub fn session_mut(&mut self, mark: u8) -> Option<&mut S> {
        self.sessions.get_mut(&mark)
    }

    /// Hellos that the daemon has not heard yet.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asked.len()
    }

    /// What is to go to the guest next.
    #[must_use]
    pub fn to_guest(&self) -> &[u8] {
        self.out.unwritten()
    }

    /// So many bytes of that were taken.
    pub fn handle_written(&mut self, count: usize) {
        self.out.handle_written(count);
    }

    /// Whether the guest is heard: not while it does not take what it is told.
    #[must_use]
    pub fn hears_guest(&self) -> bool {
        !self.out.is_full()
    }

    /// The machine is gone, or another one is there: workers see their lifelines close.
    pub fn handle_machine_gone(&mut self) {
        self.reader = FrameReader::default();
        self.forget();
    }

    /// Whatever an agent had is over.
    fn forget(&mut self) {
        self.sessions.clear();
        self.asked.clear();
        self.due = 0;
        self.out = Outbox::default();
        if let Some(waiting) = &mut self.waiting {
            *waiting = None;
        }
    }

    /// Bytes came from the guest.
    pub fn handle_guest(&mut self, came: &[u8]) -> Heard {
        let mut heard = Heard::default();
        let mut reader = std::mem::take(&mut self.reader);
        reader.push(came);
        while let Some((kind, body)) = reader.poll_frame() {
            // What a reset cut is no frame, and nor is what a hostile guest makes up.
            if let Ok(frame) = GuestFrame::from_parts(kind, body) {
                self.apply(frame, &mut heard);
            }
        }
        self.reader = reader;
        heard
    }

    fn apply(&mut self, frame: GuestFrame<'_>, heard: &mut Heard) {
        match frame {
            GuestFrame::Begin(begin) => {
                self.forget();
                heard.began = true;
                let is_foreign = begin.version != PROTOCOL_VERSION;
                if is_foreign && !std::mem::replace(&mut self.is_agent_foreign, true) {
                    heard.foreign = Some(begin.version);
                }
                self.out.push(&filler());
                let (nonce, region) = (begin.nonce, self.name);
                self.say(&HostFrame::Begun(Begun { nonce, region }));
            }
            GuestFrame::Hello(HelloFrame { request, hello }) => {
                if self.asked.len() >= ASKED_MAX {
                    self.refuse(
                        request,
                        "too many programs of this virtual machine attach at once",
                    );
                } else if hello.is_empty() || hello.len() > HANDSHAKE_BYTES_MAX {
                    // The daemon would hang up.
                    self.refuse(request, "a hello of no bytes, or of more than a hello has");
                } else {
                    self.asked.push_back((request, hello.to_vec()));
                }
            }
            // Its worker sees its lifeline close, and the place is free.
            GuestFrame::Close(mark) => {
                if self.sessions.remove(&mark).is_some() {
                    self.due &= !(1 << mark);
                }
            }
            GuestFrame::Exited(status) => self.exited = Some(status),
        }
    }

    fn say(&mut self, frame: &HostFrame<'_>) {
        // An answer is no longer than a frame.
        if let Ok(bytes) = frame.to_bytes() {
            self.out.push(&bytes);
        }
    }

    fn refuse(&mut self, request: u32, message: &str) {
        let (code, message) = (RefusalCode::Exhausted as u16, message.to_owned());
        if let Ok(answer) = (Answer::Refused { code, message }).to_bytes() {
            self.say(&HostFrame::Answer(AnswerFrame { request, answer: &answer }));
        }
    }

    /// The next hello for the daemon, which hears one at a time.
    pub fn poll_hello(&mut self) -> Option<Vec<u8>> {
        if self.waiting.is_some() {
            return None;
        }
        let (request, hello) = self.asked.pop_front()?;
        self.waiting = Some(Some(request));
        Some(hello)
    }

    /// The daemon is gone: whose hello it heard, or was to hear, is told why.
    pub fn handle_node_gone(&mut self, why: &str) {
        if let Some(Some(request)) = self.waiting.take() {
            self.refuse(request, why);
        }
    }

    /// The daemon answered. A session that it welcomes is entered at its place with what the host
    /// holds for it.
    ///
    /// # Errors
    /// Why a welcome began no session; whose hello it was is refused.
    pub fn handle_answer(
        &mut self,
        answer: &[u8],
        enter: impl FnOnce(&Placement) -> Result<S>,
    ) -> Result<()> {
        // Who asked may be gone: then what came is closed, which ends the session.
        let Some(Some(request)) = self.waiting.take() else { return Ok(()) };
        let entered = match Answer::from_bytes(answer) {
            Ok(Answer::Welcome(welcome)) => self.enter(welcome.placement.as_ref(), enter),
            Ok(Answer::Refused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        };
        match &entered {
            Ok(()) => self.say(&HostFrame::Answer(AnswerFrame { request, answer })),
            Err(_) => {
                self.refuse(request, "the host of this virtual machine could not begin a session");
            }
        }
        entered
    }

    fn enter(
        &mut self,
        place: Option<&Placement>,
        enter: impl FnOnce(&Placement) -> Result<S>,
    ) -> Result<()> {
        let place = place.context("the node named no place")?;
        anyhow::ensure!(
            place.mark < MARKS && !self.sessions.contains_key(&place.mark),
            "a program whose session is over has not let go of its place"
        );
        self.sessions.insert(place.mark, enter(place)?);
        self.counts.sessions += 1;
        Ok(())
    }

    /// So many marks of the guest came.
    pub fn handle_marks(&mut self, count: usize) {
        self.counts.marks_in += count as u64;
    }

    /// A worker has something for sleepers of the guest.
    pub fn handle_worker(&mut self, mark: u8) {
        if self.sessions.contains_key(&mark) {
            self.due |= 1 << mark;
        }
    }

    /// A worker is gone. Its place stays taken until the guest lets go of it.
    pub fn handle_worker_gone(&mut self, mark: u8) {
        if self.sessions.contains_key(&mark) {
            self.say(&HostFrame::Over(mark));
        }
    }

    /// Says the marks that are due, when nothing else is on its way: they never pile up.
    pub fn say_due(&mut self) {
        if self.due == 0 || !self.out.is_empty() {
            return;
        }
        let due = std::mem::take(&mut self.due);
        for mark in (0..MARKS).filter(|mark| due >> mark & 1 == 1) {
            self.counts.marks_out += 1;
            self.say(&HostFrame::Mark(mark));
        }
    }
}
