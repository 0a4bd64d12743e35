//! A machine's server and its agent, and whoever is at their other ends: any bytes tell what those
//! do, in any order.

mod agent;
mod pair;
mod server;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_guest::agent::state::Service;
use weft_wire::guest::FrameReader;
use weft_wire::handshake::{Answer, Placement, RefusalCode, Welcome};

/// Most bytes that the shells read at once.
const READ_BYTES: usize = 64 << 10;

/// More is never kept for a port that takes nothing: what is full hears no more, but for what one
/// read has to say.
const OUT_BYTES_MAX: usize = 3 << 20;

/// Has all of them do what `script` says.
///
/// # Panics
/// When one of them does what it must not.
pub(crate) fn hear(script: &[u8]) {
    server(script);
    agent(script);
    pair(script);
}

/// What an agent finds its region to be that is said to have this name.
fn compared(name: [u8; 16]) -> Service {
    if name == [7; 16] { Service::Begun } else { Service::Refused("another region") }
}

/// A server between a hostile guest and its node.
pub(crate) fn server(script: &[u8]) {
    server::play(&mut Script(script));
}

/// An agent between hostile programs and a hostile host.
pub(crate) fn agent(script: &[u8]) {
    agent::play(&mut Script(script));
}

/// An agent and its server, between which bytes are slow and connections break.
pub(crate) fn pair(script: &[u8]) {
    pair::play(&mut Script(script));
}

/// Bytes that say what happens next.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number, 0 at the end.
    fn number(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// A place, mostly one of a few, and now and then one that no region has.
    fn mark(&mut self) -> u8 {
        match self.number() {
            odd @ 240.. => odd,
            number => number % 6,
        }
    }

    /// Some bytes as they are.
    fn bytes(&mut self) -> &'a [u8] {
        let count = usize::from(self.number()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    /// How a stream of frames goes on: with this frame, or with something that was made of it.
    fn spoil(&mut self, frame: &[u8], kept: &mut Vec<u8>) -> Vec<u8> {
        match self.number() % 8 {
            // Cut, and what comes next is read as its end.
            0 => frame[..usize::from(self.number()) % (frame.len() + 1)].to_vec(),
            // Twice.
            1 => frame.repeat(2),
            // After the next one.
            2 => {
                kept.extend(frame);
                Vec::new()
            }
            // Another byte.
            3 => {
                let mut other = frame.to_vec();
                let at = usize::from(self.number()) % other.len();
                other[at] ^= self.number();
                other
            }
            // Very often.
            4 => frame.repeat(READ_BYTES / frame.len()),
            _ => [frame, &std::mem::take(kept)].concat(),
        }
    }
}

/// The places that sessions hold.
#[derive(Debug, Clone, Default)]
struct Places(Rc<RefCell<BTreeSet<u8>>>);

impl Places {
    fn held(&self) -> BTreeSet<u8> {
        self.0.borrow().clone()
    }

    fn give(&self, mark: u8) -> Held {
        assert!(self.0.borrow_mut().insert(mark), "place {mark} is given twice");
        Held { mark, places: self.clone() }
    }
}

/// What a session holds: its place, until it is dropped.
#[derive(Debug)]
struct Held {
    mark: u8,
    places: Places,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.places.0.borrow_mut().remove(&self.mark);
    }
}

pub(crate) fn welcome(mark: u8) -> Vec<u8> {
    let placement = Placement { segment_at: 1, segment_bytes: 2, pinned_at: 3, mark };
    let welcome = Welcome {
        session: 1,
        vgpu: "team".to_owned(),
        device_name: String::new(),
        uuid: [0; 16],
        capability_major: 7,
        capability_minor: 5,
        memory_bytes: 1,
        pinned_bytes: 1,
        managed_bytes: 0,
        attributes: Vec::new(),
        placement: Some(placement),
    };
    Answer::Welcome(welcome).to_bytes().expect("it fits")
}

fn refusal() -> Vec<u8> {
    let (code, message) = (RefusalCode::Exhausted as u16, "no".to_owned());
    Answer::Refused { code, message }.to_bytes().expect("it fits")
}

/// All frames that are complete after more bytes came.
fn frames(reader: &mut FrameReader, came: &[u8]) -> Vec<(u8, Vec<u8>)> {
    reader.push(came);
    std::iter::from_fn(|| reader.poll_frame().map(|(kind, body)| (kind, body.to_vec()))).collect()
}
