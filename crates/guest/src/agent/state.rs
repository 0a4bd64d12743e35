//! What the agent knows of its guest's programs and of the server, and decides about them.
//!
//! Hellos of programs and bytes of the host come in; bytes for the host and [`Action`]s go out.
//! There is no socket here, no memory and no clock: `P` is a program that waits for an answer, and
//! `S` what the guest holds for a session.

use std::collections::{BTreeMap, VecDeque};

use weft_wire::guest::{
    AnswerFrame, Begin, Begun, FrameReader, GuestFrame, HelloFrame, HostFrame, filler,
};
use weft_wire::handshake::{Answer, PROTOCOL_VERSION};

use crate::outbox::Outbox;

/// Programs that have not said hello, or whose hello was not answered, at once.
pub const PENDING_MAX: usize = 64;

/// What programs are told where the server has not answered in time since the agent began.
pub(super) const UNANSWERED: &str = "the host of this virtual machine does not answer: its server \
     (weft vm) has to run, and be of the agent's build";

/// What programs are told whose hello was not answered in time.
pub(super) const LATE: &str = "the host of this virtual machine gave no answer in time: try \
     again, and see whether its server and its node run";

/// What programs are told that the server does not serve.
pub(super) const NOT_SERVED: &str =
    "the host of this virtual machine does not serve it at the moment";

/// What the server does for this machine's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// It has not answered yet, and programs wait.
    Awaited,
    /// It serves.
    Begun,
    /// It does not until it has begun again; why programs are refused.
    Refused(&'static str),
}

/// What the shell is to do. **Do each before the next is polled.**
#[derive(Debug)]
pub enum Action<P> {
    /// Compare the region's name with this one, and say with [`State::handle_compared`] what comes
    /// of it.
    Compare([u8; 16]),
    /// Tell a program why it is not served.
    Refuse(P, &'static str),
    /// Pass a refusal on to a program.
    PassOn(P, Vec<u8>),
    /// Pass a welcome on to a program, and say with [`State::handle_session`] what the guest holds
    /// for its session, which has this mark.
    Welcome(P, Vec<u8>, u8),
    /// Say in the log why a program got no answer; it is closed.
    Tell(P, String),
    /// Wake the sleepers of the session with this mark.
    Wake(u8),
    /// Wake them, and tell the program that the session is over. When it has gone, too, the place
    /// is free.
    End(u8),
}

/// The state of the agent.
#[derive(Debug)]
pub struct State<P, S> {
    reader: FrameReader,
    pub(crate) out: Outbox,
    actions: VecDeque<Action<P>>,
    /// Names the agent's beginning to the server.
    nonce: u64,
    service: Service,
    /// Programs whose hello was not answered yet.
    asked: BTreeMap<u32, P>,
    requests: u32,
    sessions: BTreeMap<u8, S>,
}

impl<P, S> State<P, S> {
    /// An agent that begins.
    #[must_use]
    pub fn new(nonce: u64) -> Self {
        let mut state = Self {
            reader: FrameReader::default(),
            out: Outbox::default(),
            actions: VecDeque::new(),
            nonce,
            service: Service::Awaited,
            asked: BTreeMap::new(),
            requests: 0,
            sessions: BTreeMap::new(),
        };
        state.begin();
        state
    }

    /// What the server does for programs.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// Programs whose hello was not answered yet.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asked.len()
    }

    /// The sessions that there are, by their marks.
    pub fn sessions(&self) -> impl Iterator<Item = (u8, &S)> {
        self.sessions.iter().map(|(mark, session)| (*mark, session))
    }

    /// The session with that mark.
    #[must_use]
    pub fn session(&self, mark: u8) -> Option<&S> {
        self.sessions.get(&mark)
    }

    /// What is to go to the host next.
    #[must_use]
    pub fn to_host(&self) -> &[u8] {
        self.out.unwritten()
    }

    /// So many bytes of that were taken.
    pub fn handle_written(&mut self, count: usize) {
        self.out.handle_written(count);
    }

    /// Whether another program is let in while so many have said nothing yet: not while the host
    /// does not take what it is told.
    #[must_use]
    pub fn lets_in(&self, silent: usize) -> bool {
        self.service != Service::Awaited
            && silent + self.asked.len() < PENDING_MAX
            && !self.out.is_full()
    }

    /// Has the server forget whoever was here before.
    fn begin(&mut self) {
        self.out = Outbox::default();
        self.out.push(&filler());
        self.say(&GuestFrame::Begin(Begin { nonce: self.nonce, version: PROTOCOL_VERSION }));
    }

    fn say(&mut self, frame: &GuestFrame<'_>) {
        // A hello is no longer than a frame.
        if let Ok(bytes) = frame.to_bytes() {
            self.out.push(&bytes);
        }
    }

    /// A program said hello, whatever it is: the daemon judges.
    pub fn handle_hello(&mut self, program: P, hello: &[u8]) {
        if let Service::Refused(why) = self.service {
            return self.actions.push_back(Action::Refuse(program, why));
        }
        self.requests = self.requests.wrapping_add(1);
        let request = self.requests;
        self.say(&GuestFrame::Hello(HelloFrame { request, hello }));
        self.asked.insert(request, program);
    }

    /// The server has not answered in time: programs wait for it no longer, until it does.
    pub fn handle_silence(&mut self) {
        if self.service == Service::Awaited {
            self.service = Service::Refused(UNANSWERED);
        }
    }

    /// Programs that have waited for an answer too long are told so. A session that they get after
    /// that is let go of.
    pub fn give_up(&mut self, is_late: impl Fn(&P) -> bool) {
        let late = self.asked.extract_if(.., |_, program| is_late(program));
        self.actions.extend(late.map(|(_, program)| Action::Refuse(program, LATE)));
    }

    /// Programs whose hello was not answered yet.
    pub fn waiting(&self) -> impl Iterator<Item = &P> {
        self.asked.values()
    }

    /// The program of a session is gone.
    pub fn handle_program_gone(&mut self, mark: u8) {
        if self.sessions.remove(&mark).is_some() {
            self.say(&GuestFrame::Close(mark));
        }
    }

    /// The program that the machine was started for has ended.
    pub fn handle_exit(&mut self, status: i32) {
        self.say(&GuestFrame::Exited(status));
    }

    /// The server is not there: its sessions are over, and when it comes back it is told anew.
    pub fn handle_host_gone(&mut self) {
        if self.service == Service::Begun {
            self.service = Service::Refused(NOT_SERVED);
        }
        self.forget_all();
        // An answer to an earlier beginning, which may have been lost, is none to this one.
        self.nonce = self.nonce.wrapping_add(1);
        self.begin();
    }

    /// Sessions are over for their programs, and who waits for one gets none.
    fn forget_all(&mut self) {
        self.sessions.clear();
        let asked = std::mem::take(&mut self.asked);
        self.actions.extend(asked.into_values().map(|it| Action::Refuse(it, NOT_SERVED)));
    }

    /// Bytes came from the host. **Poll all actions before the next ones.**
    pub fn handle_host(&mut self, came: &[u8]) {
        self.reader.push(came);
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action<P>> {
        let mut reader = std::mem::take(&mut self.reader);
        while self.actions.is_empty() {
            let Some((kind, body)) = reader.poll_frame() else { break };
            // What an earlier stream left is no frame.
            if let Ok(frame) = HostFrame::from_parts(kind, body) {
                self.apply(&frame);
            }
        }
        self.reader = reader;
        self.actions.pop_front()
    }

    fn apply(&mut self, frame: &HostFrame<'_>) {
        match *frame {
            HostFrame::Begun(Begun { nonce, region }) => {
                if nonce == self.nonce {
                    self.forget_all();
                    self.actions.push_back(Action::Compare(region));
                }
            }
            // Before it has begun these are an earlier agent's.
            _ if self.service != Service::Begun => {}
            HostFrame::Answer(AnswerFrame { request, answer }) => {
                let program = self.asked.remove(&request);
                self.answered(program, answer);
            }
            HostFrame::Over(mark) if self.sessions.contains_key(&mark) => {
                self.actions.push_back(Action::End(mark));
            }
            HostFrame::Mark(mark) if self.sessions.contains_key(&mark) => {
                self.actions.push_back(Action::Wake(mark));
            }
            HostFrame::Over(_) | HostFrame::Mark(_) => {}
        }
    }

    /// Who asked, if it is known, gets an answer. A place that nobody takes is let go of.
    fn answered(&mut self, program: Option<P>, answer: &[u8]) {
        let place = match Answer::from_bytes(answer) {
            Ok(Answer::Welcome(welcome)) => {
                welcome.placement.ok_or_else(|| "it names no place".to_owned())
            }
            Ok(Answer::Refused { .. }) => {
                let passed_on = program.map(|program| Action::PassOn(program, answer.to_vec()));
                return self.actions.extend(passed_on);
            }
            Err(error) => Err(error.to_string()),
        };
        let mark = place.and_then(|place| match place.mark {
            mark if self.sessions.contains_key(&mark) => Err(format!("{mark} is another's place")),
            mark => Ok(mark),
        });
        match (program, mark) {
            (Some(program), Ok(mark)) => {
                self.actions.push_back(Action::Welcome(program, answer.to_vec(), mark));
            }
            // Who is told so much and takes nothing has lost count itself.
            (None, Ok(mark)) if !self.out.is_full() => self.say(&GuestFrame::Close(mark)),
            (Some(program), Err(why)) => self.actions.push_back(Action::Tell(program, why)),
            (None, Ok(_) | Err(_)) => {}
        }
    }

    /// What came of comparing the region's name.
    pub fn handle_compared(&mut self, service: Service) {
        self.service = service;
    }

    /// What the guest holds for the session that was welcomed with this mark; nothing if it could
    /// not be had.
    pub fn handle_session(&mut self, mark: u8, session: Option<S>) {
        match session {
            Some(session) => drop(self.sessions.insert(mark, session)),
            None => self.say(&GuestFrame::Close(mark)),
        }
    }
}
