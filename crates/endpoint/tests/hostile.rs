//! An endpoint that was let in and then sends whatever it likes ends its own session and nothing
//! else. The node is one of the test's own: a tenant socket whose sessions answer every call.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weft_endpoint::far::{Far, Settings};
use weft_endpoint::frame::{Frame, Front, front};
use weft_endpoint::tls::{Channel, Heard, Identity, Room, client_config};
use weft_ring::{Access, AnswerTo, MemoryFile, PAGE, Segment, WorkerSide, peer};
use weft_wire::Command;
use weft_wire::command::COMMAND_BYTES_MAX;
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, HelloBody, Welcome};
use weft_wire::remote::{Open, Opening, Reception};

const LIMIT: Duration = Duration::from_secs(60);
const BASE: u64 = 0x2000_0000_0000;

/// Sessions that answer every call with success, until the client is gone.
fn serve_node(listener: &OwnedFd) {
    while let Ok(socket) = peer::accept(listener) {
        let said = peer::receive_bytes(&socket, HANDSHAKE_BYTES_MAX, true).unwrap().unwrap();
        let hello = Hello::from_bytes(&said).unwrap().body;
        let file = Segment::create(1 << 16).unwrap();
        let segment = Segment::open(file.map(Access::ReadWrite).unwrap()).unwrap();
        segment.mark_relayed().unwrap();
        let pinned = MemoryFile::create("pinned", PAGE).unwrap();
        let (watched, lifeline) = peer::lifeline().unwrap();
        let welcome = Welcome {
            session: 1,
            vgpu: hello.vgpu,
            device_name: "none".into(),
            uuid: [0; 16],
            capability_major: 7,
            capability_minor: 5,
            memory_bytes: 0,
            pinned_bytes: PAGE as u64,
            managed_bytes: 0,
            attributes: Vec::new(),
            placement: None,
        };
        let answer = Answer::Welcome(welcome).to_bytes().unwrap();
        let fds = [file.as_fd(), pinned.as_fd(), lifeline.as_fd()];
        peer::send(&socket, &answer, &fds).unwrap();
        drop(lifeline);
        thread::spawn(move || work(segment, &watched));
    }
}

fn work(segment: Segment, client: &OwnedFd) {
    let mut side = WorkerSide::open(segment).unwrap();
    while !peer::has_hung_up(client) {
        let _ = side.wait(Duration::ZERO, Some(Duration::from_millis(5)), || None::<()>);
        // What a gateway puts into a lane is never a violation, whatever it was told.
        while let Some(record) = side.take().unwrap() {
            let answer = record.answer;
            if let Some(answer) = answer {
                side.complete(answer, 0, b"done").unwrap();
            }
        }
    }
}

struct Gateway {
    address: SocketAddr,
    identity: Arc<Identity>,
    far: Arc<Far>,
}

fn gateway(folder: &Path) -> Gateway {
    let socket = folder.join("tenant.sock");
    let listener = peer::listen(&socket, 0o600, 64).unwrap();
    thread::spawn(move || serve_node(&listener));
    let identity = Arc::new(Identity::at(&folder.join("key")).unwrap());
    let (grace, patience) = (Duration::from_millis(200), Duration::from_secs(5));
    let far = Far::new(Settings { socket, grace, sessions: 64, pending: 64, patience });
    let (listening, address) = Far::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (serving, key) = (Arc::clone(&far), Arc::clone(&identity));
    thread::spawn(move || serving.serve(&listening, &key).unwrap());
    Gateway { address, identity, far }
}

/// A session of the gateway's.
fn open(gateway: &Gateway) -> Channel {
    let socket = TcpStream::connect(gateway.address).unwrap();
    let config = client_config(gateway.identity.digest()).unwrap();
    let channel = Channel::connect(socket, config).unwrap();
    let hello = HelloBody {
        vgpu: "v".into(),
        weight: 0,
        memory_bytes: 0,
        token: String::new(),
        pid: 1,
        program: "hostile".into(),
        device_base: 0,
        device_bytes: 0,
        pinned_base: BASE,
        pinned_bytes: PAGE as u64,
    };
    let opening = Opening::Open(Open { grant: "weft1".into(), key: [0; 32], hello });
    let bytes = opening.to_bytes().unwrap();
    channel.send(&u32::try_from(bytes.len()).unwrap().to_le_bytes()).unwrap();
    channel.send(&bytes).unwrap();
    channel.set_patience(LIMIT).unwrap();
    let (mut room, mut plain) = (Room::default(), Vec::new());
    loop {
        assert_eq!(channel.receive(&mut room, &mut plain).unwrap(), Heard::Some);
        let Some((length, message)) = plain.split_first_chunk::<4>() else { continue };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap();
        if message.len() >= length {
            let reception = Reception::from_bytes(&message[..length]).unwrap();
            assert!(matches!(reception, Reception::Opened(_)), "{reception:?}");
            channel.give_back(&message[length..]);
            return channel;
        }
    }
}

/// A well-behaved session's call.
fn ping(gateway: &Gateway) {
    let channel = open(gateway);
    let mut command = [0; COMMAND_BYTES_MAX];
    let length = Command::Ping {}.encode(&mut command).unwrap();
    let to = AnswerTo { slot: 3, call: 77 };
    let mut frames = Vec::new();
    Frame::Command { answer: Some(to), bytes: &command[..length] }.encode(&mut frames);
    channel.send(&frames).unwrap();
    let (mut room, mut plain) = (Room::default(), Vec::new());
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < LIMIT, "no answer");
        assert_eq!(channel.receive(&mut room, &mut plain).unwrap(), Heard::Some);
        while let Front::Whole(frame, length) = front(&plain) {
            if let Some(Frame::Answer { to: answered, status, bytes }) = Frame::decode(frame) {
                assert_eq!((answered, status, bytes), (to, 0, &b"done"[..]));
                return;
            }
            plain.drain(..length);
        }
    }
}

/// Frames with any numbers, commands of any bytes, and bytes that are no frames.
fn nonsense() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..80);
    let near = |base: u64| prop_oneof![Just(base), base..base + (1 << 17), any::<u64>()];
    prop_oneof![
        bytes(),
        (any::<u16>(), any::<u32>(), bytes()).prop_map(|(slot, call, bytes)| {
            let (mut out, answer) = (Vec::new(), Some(AnswerTo { slot, call }));
            Frame::Command { answer, bytes: &bytes }.encode(&mut out);
            out
        }),
        // The front of a real command, so that more than its number is looked at.
        (1_u16..90, bytes()).prop_map(|(kind, rest)| {
            let (mut out, mut bytes) = (Vec::new(), kind.to_le_bytes().to_vec());
            bytes.extend(rest);
            Frame::Command { answer: None, bytes: &bytes }.encode(&mut out);
            out
        }),
        (near(0), bytes()).prop_map(|(offset, bytes)| {
            let mut out = Vec::new();
            Frame::Block { offset, bytes: &bytes }.encode(&mut out);
            out
        }),
        (near(BASE), bytes()).prop_map(|(address, bytes)| {
            let mut out = Vec::new();
            Frame::Pinned { address, bytes: &bytes }.encode(&mut out);
            out
        }),
        any::<u64>().prop_map(|count| {
            let mut out = Vec::new();
            Frame::Ack(count).encode(&mut out);
            out
        }),
    ]
}

#[test]
fn an_endpoint_that_sends_nonsense_ends_its_own_session_alone() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    ping(&gateway);
    let mut runner = TestRunner::new(Config::with_cases(150));
    let many = prop::collection::vec(nonsense(), 1..12);
    let outcome = runner.run(&many, |frames| {
        let channel = open(&gateway);
        for frame in frames {
            // The gateway may have hung up.
            if channel.send(&frame).is_err() {
                break;
            }
        }
        channel.close();
        Ok(())
    });
    outcome.unwrap();
    ping(&gateway);
    let began = Instant::now();
    while gateway.far.open_sessions() > 0 {
        assert!(began.elapsed() < LIMIT, "sessions stay");
        thread::sleep(Duration::from_millis(5));
    }
}
