//! A server between a hostile guest and its node.

use std::collections::{BTreeMap, BTreeSet};

use weft_guest::server::state::{ASKED_MAX, MARKS, State};
use weft_wire::guest::{AnswerFrame, Begin, FrameReader, GuestFrame, HelloFrame, HostFrame};
use weft_wire::handshake::PROTOCOL_VERSION;

use super::{Held, OUT_BYTES_MAX, Places, READ_BYTES, Script, frames, refusal, welcome};

/// The region's.
const NAME: [u8; 16] = [7; 16];

/// A server, and what is known of what it heard and said.
struct Play {
    server: State<Held>,
    places: Places,
    is_connected: bool,
    /// What the guest said, as frames.
    said: FrameReader,
    /// What the guest heard.
    heard: FrameReader,
    /// The last agent that began and was not answered.
    begun: Option<u64>,
    /// Hellos since the last beginning that were not answered, by their requests.
    open: BTreeMap<u32, usize>,
    /// Places of sessions since the last beginning, and those whose workers are gone.
    given: BTreeSet<u8>,
    lost: BTreeSet<u8>,
}

pub(super) fn play(script: &mut Script<'_>) {
    let mut play = Play {
        server: State::new(NAME),
        places: Places::default(),
        is_connected: false,
        said: FrameReader::default(),
        heard: FrameReader::default(),
        begun: None,
        open: BTreeMap::new(),
        given: BTreeSet::new(),
        lost: BTreeSet::new(),
    };
    let mut kept = Vec::new();
    play.connect();
    while let Some(what) = script.next() {
        match what % 16 {
            0..=4 => play.hear_guest(&guest_bytes(what % 16, script, &mut kept)),
            5 => play.hear_guest(script.bytes()),
            6..=8 => play.welcome(script.mark()),
            9 => play.answer(&refusal()),
            10 => play.answer(script.bytes()),
            11 => play.lose_node(),
            12 => play.server.handle_worker(script.mark()),
            13 => play.lose_worker(script.mark()),
            14 => play.take(usize::from(script.number()) << 4),
            _ => match script.number() % 8 {
                0 => play.connect(),
                _ if play.is_connected => play.server.say_due(),
                _ => {}
            },
        }
        play.check();
    }
    play.end();
}

/// A frame of an agent, or nearly one.
fn guest_bytes(what: u8, script: &mut Script<'_>, kept: &mut Vec<u8>) -> Vec<u8> {
    let number = script.number();
    let frame = match what {
        0 => {
            let version = if number > 250 { 77 } else { PROTOCOL_VERSION };
            GuestFrame::Begin(Begin { nonce: number.into(), version })
        }
        1 | 2 => {
            let hello: &[u8] = if number > 250 { b"" } else { b"hello" };
            GuestFrame::Hello(HelloFrame { request: number.into(), hello })
        }
        3 => GuestFrame::Close(script.mark()),
        _ => GuestFrame::Exited(number.into()),
    };
    script.spoil(&frame.to_bytes().expect("it is short"), kept)
}

impl Play {
    fn connect(&mut self) {
        self.server.handle_machine_gone();
        self.is_connected = true;
        (self.said, self.heard) = (FrameReader::default(), FrameReader::default());
        self.begun = None;
        self.forget();
        assert_eq!(self.places.held(), BTreeSet::new(), "a machine that is gone has sessions");
    }

    fn forget(&mut self) {
        self.open.clear();
        self.given.clear();
        self.lost.clear();
    }

    /// As the shell reads them, and while it does.
    fn hear_guest(&mut self, bytes: &[u8]) {
        for read in bytes.chunks(READ_BYTES) {
            if self.server.hears_guest() {
                self.hear_read(read);
            }
        }
    }

    fn hear_read(&mut self, bytes: &[u8]) {
        let mut expected = self.places.held();
        let mut has_begun = false;
        for (kind, body) in frames(&mut self.said, bytes) {
            match GuestFrame::from_parts(kind, &body) {
                Ok(GuestFrame::Begin(begin)) => {
                    expected.clear();
                    self.forget();
                    (self.begun, has_begun) = (Some(begin.nonce), true);
                }
                Ok(GuestFrame::Hello(hello)) => *self.open.entry(hello.request).or_default() += 1,
                Ok(GuestFrame::Close(mark)) => drop(expected.remove(&mark)),
                Ok(GuestFrame::Exited(_)) | Err(_) => {}
            }
        }
        let heard = self.server.handle_guest(bytes);
        assert_eq!(heard.began, has_begun, "the region gets its name when an agent begins");
        assert_eq!(self.places.held(), expected, "other places than those that were let go of");
    }

    fn welcome(&mut self, mark: u8) {
        let _ = self.server.poll_hello();
        let (before, places) = (self.places.held(), self.places.clone());
        let mut entered = None;
        let answered = self.server.handle_answer(&welcome(mark), |place| {
            entered = Some(place.mark);
            Ok(places.give(place.mark))
        });
        assert!(answered.is_ok() || entered.is_none());
        let mut expected = before;
        if let Some(mark) = entered {
            assert!(mark < MARKS && expected.insert(mark), "place {mark} cannot be given");
            self.given.insert(mark);
            self.lost.remove(&mark);
        }
        assert_eq!(self.places.held(), expected);
    }

    fn answer(&mut self, answer: &[u8]) {
        let _ = self.server.poll_hello();
        let before = self.places.held();
        let no_place = |_: &_| anyhow::bail!("no descriptors");
        let _ = self.server.handle_answer(answer, no_place);
        assert_eq!(self.places.held(), before);
    }

    fn lose_node(&mut self) {
        let before = self.places.held();
        let _ = self.server.poll_hello();
        self.server.handle_node_gone("gone");
        assert_eq!(self.places.held(), before, "sessions outlive the node");
    }

    fn lose_worker(&mut self, mark: u8) {
        if self.places.held().contains(&mark) && self.lost.insert(mark) {
            self.server.handle_worker_gone(mark);
        }
        assert_eq!(self.places.held().contains(&mark), self.server.session_mut(mark).is_some());
    }

    /// The port takes bytes, and the guest hears them.
    fn take(&mut self, count: usize) {
        let taken = self.server.to_guest();
        let taken = taken[..count.min(taken.len())].to_vec();
        self.server.handle_written(taken.len());
        for (kind, body) in frames(&mut self.heard, &taken) {
            let Ok(frame) = HostFrame::from_parts(kind, &body) else { continue };
            match frame {
                // Another region's name is half of one: the next agent began meanwhile.
                HostFrame::Begun(begun) if begun.region == NAME => {
                    assert_eq!(self.begun.take(), Some(begun.nonce), "nobody began");
                }
                // An agent that has begun hears no more of what was for another.
                _ if self.begun.is_some() => {}
                HostFrame::Answer(AnswerFrame { request, .. }) => {
                    let open = self.open.get_mut(&request).filter(|open| **open > 0);
                    *open.expect("a hello is answered once") -= 1;
                }
                HostFrame::Over(mark) | HostFrame::Mark(mark) => {
                    assert!(self.given.contains(&mark), "{mark} is nobody's");
                }
                HostFrame::Begun(_) => panic!("nobody began"),
            }
        }
    }

    fn check(&mut self) {
        let sessions: BTreeSet<u8> = self.server.sessions().map(|(mark, _)| mark).collect();
        assert_eq!(sessions, self.places.held());
        assert!(self.server.asked() <= ASKED_MAX, "{} hellos wait", self.server.asked());
        let kept = self.server.to_guest().len();
        assert!(kept <= OUT_BYTES_MAX, "{kept} bytes wait for the guest");
    }

    /// All that was asked is answered, once.
    fn end(&mut self) {
        // One may be with the node already.
        self.lose_node();
        while let Some(_hello) = self.server.poll_hello() {
            let answered = self.server.handle_answer(&refusal(), |_| anyhow::bail!("refused"));
            answered.expect("a refusal begins no session");
        }
        self.take(usize::MAX);
        assert_eq!(self.begun, None, "the last agent that began was not told");
        self.open.retain(|_, open| *open > 0);
        assert_eq!(self.open, BTreeMap::new(), "hellos without an answer");
        self.server.handle_machine_gone();
        assert_eq!(self.places.held(), BTreeSet::new(), "places of a machine that is gone");
    }
}
