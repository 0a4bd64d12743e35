//! An agent between hostile programs and a hostile host.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_guest::agent::state::{Action, PENDING_MAX, Service, State};
use weft_wire::guest::{AnswerFrame, Begun, FrameReader, GuestFrame, HostFrame};
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX};

use super::{Held, OUT_BYTES_MAX, Places, Script, frames, refusal, welcome};

/// A program that waits for an answer.
#[derive(Debug)]
struct Program(Rc<Cell<usize>>);

impl Program {
    fn new(waiting: &Rc<Cell<usize>>) -> Self {
        waiting.set(waiting.get() + 1);
        Self(Rc::clone(waiting))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// An agent, and what is known of what it heard and said.
struct Play {
    agent: State<Program, Held>,
    places: Places,
    /// Programs that have no answer.
    waiting: Rc<Cell<usize>>,
    /// What the host said, and what it heard.
    said: FrameReader,
    heard: FrameReader,
    /// The agent's last beginning, as far as the host heard.
    nonce: u64,
    /// Places that were let go of and of which the host did not hear it.
    closed: Vec<u8>,
}

pub(super) fn play(script: &mut Script<'_>) {
    let mut play = Play {
        agent: State::new(5),
        places: Places::default(),
        waiting: Rc::default(),
        said: FrameReader::default(),
        heard: FrameReader::default(),
        nonce: 0,
        closed: Vec::new(),
    };
    let mut kept = Vec::new();
    play.take(usize::MAX);
    while let Some(what) = script.next() {
        match what % 16 {
            0..=8 => {
                let frame = host_frame(what % 16, play.nonce, script);
                play.hear_host(&script.spoil(&frame, &mut kept));
            }
            9 => play.hear_host(script.bytes()),
            10 | 11 => play.say_hello(script.number()),
            12 => play.flood(script.number()),
            13 => play.lose_program(script.mark()),
            14 if script.number().is_multiple_of(4) => play.lose_host(),
            _ => play.take(usize::from(script.number()) << 8),
        }
        play.check();
    }
    play.end();
}

/// What a server says.
fn host_frame(what: u8, nonce: u64, script: &mut Script<'_>) -> Vec<u8> {
    let number = script.number();
    let (request, mark) = (u32::from(number % 32), script.mark());
    let answer = if what == 6 { refusal() } else { welcome(mark) };
    let frame = match what {
        0 | 1 => HostFrame::Begun(Begun { nonce, region: [7; 16] }),
        2..=6 => HostFrame::Answer(AnswerFrame { request, answer: &answer }),
        7 => HostFrame::Over(mark),
        _ => HostFrame::Mark(mark),
    };
    frame.to_bytes().expect("it is short")
}

impl Play {
    fn hear_host(&mut self, bytes: &[u8]) {
        let (before, mut may_come, mut may_go) = (self.places.held(), BTreeSet::new(), false);
        for (kind, body) in frames(&mut self.said, bytes) {
            match HostFrame::from_parts(kind, &body) {
                Ok(HostFrame::Begun(begun)) => may_go |= begun.nonce == self.nonce,
                Ok(HostFrame::Answer(AnswerFrame { answer, .. })) => {
                    if let Ok(Answer::Welcome(welcome)) = Answer::from_bytes(answer) {
                        may_come.extend(welcome.placement.map(|place| place.mark));
                    }
                }
                Ok(HostFrame::Over(_) | HostFrame::Mark(_)) | Err(_) => {}
            }
        }
        self.agent.handle_host(bytes);
        self.act();
        let after = self.places.held();
        assert!(may_go || after.is_superset(&before), "{before:?} became {after:?}");
        let new: BTreeSet<u8> = after.difference(&before).copied().collect();
        assert!(new.is_subset(&may_come), "{new:?} of {may_come:?}");
    }

    fn act(&mut self) {
        while let Some(action) = self.agent.poll_action() {
            match action {
                Action::Compare(name) => {
                    self.agent.handle_compared(super::compared(name));
                }
                Action::Refuse(..) | Action::PassOn(..) | Action::Tell(..) => {}
                Action::Welcome(_, _, mark) => {
                    assert_eq!(self.agent.service(), Service::Begun);
                    // A page for its sleepers may not be had.
                    let session = (mark != 3).then(|| self.places.give(mark));
                    if session.is_none() {
                        self.closed.push(mark);
                    }
                    self.agent.handle_session(mark, session);
                }
                Action::Wake(mark) | Action::End(mark) => {
                    assert!(self.agent.session(mark).is_some(), "{mark} is nobody's");
                }
            }
        }
    }

    /// Programs say whatever they like, as long as they are let in.
    fn say_hello(&mut self, size: u8) {
        let hello = vec![1; usize::from(size) * HANDSHAKE_BYTES_MAX / 255];
        if self.agent.lets_in(0) {
            self.agent.handle_hello(Program::new(&self.waiting), &hello);
            self.act();
        }
    }

    /// Programs come again and again, of a host that refuses them all and takes nothing.
    fn flood(&mut self, times: u8) {
        let answer = refusal();
        for request in 0..=4 * u32::from(times) {
            self.say_hello(255);
            let refused = HostFrame::Answer(AnswerFrame { request, answer: &answer });
            self.hear_host(&refused.to_bytes().expect("it is short"));
        }
    }

    fn lose_program(&mut self, mark: u8) {
        let mut expected = self.places.held();
        if expected.remove(&mark) {
            self.closed.push(mark);
        }
        self.agent.handle_program_gone(mark);
        assert_eq!(self.places.held(), expected, "a place besides {mark}");
    }

    fn lose_host(&mut self) {
        self.agent.handle_host_gone();
        self.act();
        self.closed.clear();
        assert_ne!(self.agent.service(), Service::Begun);
        assert_eq!(self.places.held(), BTreeSet::new(), "sessions of a host that is gone");
        assert_eq!(self.waiting.get(), 0, "programs wait for a host that is gone");
    }

    /// The port takes bytes, and the host hears them.
    fn take(&mut self, count: usize) {
        let taken = self.agent.to_host();
        let taken = taken[..count.min(taken.len())].to_vec();
        self.agent.handle_written(taken.len());
        for (kind, body) in frames(&mut self.heard, &taken) {
            match GuestFrame::from_parts(kind, &body) {
                Ok(GuestFrame::Begin(begin)) => self.nonce = begin.nonce,
                Ok(GuestFrame::Close(mark)) => self.closed.retain(|closed| *closed != mark),
                Ok(GuestFrame::Hello(_) | GuestFrame::Exited(_)) | Err(_) => {}
            }
        }
    }

    fn check(&mut self) {
        let sessions: BTreeSet<u8> = self.agent.sessions().map(|(mark, _)| mark).collect();
        assert_eq!(sessions, self.places.held());
        assert_eq!(self.waiting.get(), self.agent.asked(), "programs that nobody answers");
        assert!(self.agent.asked() <= PENDING_MAX, "{} programs wait", self.agent.asked());
        let kept = self.agent.to_host().len();
        assert!(kept <= OUT_BYTES_MAX, "{kept} bytes wait for the host");
    }

    /// A host that answers as it should has all of them served, whatever was before.
    fn end(&mut self) {
        self.take(usize::MAX);
        assert!(self.closed.is_empty(), "the host was not told that places are free");
        self.lose_host();
        self.take(usize::MAX);
        // What a host left is completed by what the next one says first.
        let mut said = weft_wire::guest::filler();
        let begun = HostFrame::Begun(Begun { nonce: self.nonce, region: [7; 16] });
        said.extend(begun.to_bytes().expect("it is short"));
        self.hear_host(&said);
        assert_eq!(self.agent.service(), Service::Begun, "the next host serves nobody");
    }
}
