//! A gateway that sends whatever it likes to the endpoint beside the program: its session ends with
//! an error or goes on, no call hangs, and the endpoint serves the next program.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustls::{Connection, ServerConnection};
use weft_endpoint::frame::{Frame, Front, front};
use weft_endpoint::near::Near;
use weft_endpoint::tls::{Channel, Heard, Identity, Room};
use weft_ring::{
    Access, AnswerTo, CallError, ClientOptions, ClientSide, MemoryFile, Segment, peer,
};
use weft_wire::Command;
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, PROTOCOL_VERSION};
use weft_wire::remote::{Opened, Opening, Reception};

use super::{BASE, LIMIT, encoded, eventually, grant, hear_message, hello, send_message, welcome};

/// What the gateway says next in each session, and whether it answers calls beside.
#[derive(Debug, Clone, Default)]
struct Script {
    frames: Vec<Vec<u8>>,
    answers: bool,
    /// Goes on with what it has cut, and cuts it again.
    resumes: bool,
}

/// Lets everybody in, says what the script has, and then listens until the endpoint hangs up.
fn serve(listener: &TcpListener, identity: &Identity, script: &Mutex<Script>) {
    for socket in listener.incoming() {
        let config = identity.server_config().unwrap();
        let script = script.lock().unwrap().clone();
        // Its end, or the endpoint's, is all the same here.
        thread::spawn(move || welcome_one(socket.ok()?, config, &script));
    }
}

fn welcome_one(
    mut socket: TcpStream,
    config: Arc<rustls::ServerConfig>,
    script: &Script,
) -> Option<()> {
    let mut tls = ServerConnection::new(config).ok()?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).ok()?;
    }
    // What came with the handshake's end.
    let mut early = Vec::new();
    let _ = tls.reader().read_to_end(&mut early);
    let channel = Channel::new(socket, Connection::from(tls)).ok()?;
    channel.give_back(&early);
    channel.set_patience(LIMIT).ok()?;
    let reception = match Opening::from_bytes(&hear_message(&channel)?).ok()? {
        // It wants to go on with what this gateway has cut.
        Opening::Resume(_) if script.resumes => Reception::Resumed(0),
        Opening::Resume(_) => {
            let message = "there is no such session".into();
            Reception::Refused { code: 1, message }
        }
        Opening::Open(open) => Reception::Opened(Box::new(Opened {
            session: [1; 16],
            secret: [2; 32],
            arena_bytes: 1 << 16,
            grace_ms: 500,
            welcome: welcome(&open.hello.vgpu),
        })),
    };
    send_message(&channel, &reception.to_bytes().ok()?).ok()?;
    if matches!(reception, Reception::Opened(_)) {
        play(&channel, script);
    }
    Some(())
}

fn play(channel: &Channel, script: &Script) {
    for frames in &script.frames {
        if channel.send(frames).is_err() {
            return;
        }
    }
    let (mut room, mut plain) = (Room::default(), Vec::new());
    while let Ok(Heard::Some | Heard::Nothing) = channel.receive(&mut room, &mut plain) {
        if !script.answers {
            // Whoever waits for an answer hears at last that there is none.
            return channel.close();
        }
        let mut answers = Vec::new();
        while let Front::Whole(frame, length) = front(&plain) {
            if let Some(Frame::Command { answer: Some(to), .. }) = Frame::decode(frame) {
                Frame::Answer { to, status: 0, bytes: b"done" }.encode(&mut answers);
            }
            plain.drain(..length);
        }
        if channel.send(&answers).is_err() {
            return;
        }
    }
}

/// A program of the endpoint's.
fn attach(socket: &Path) -> (ClientSide, Vec<OwnedFd>) {
    let connection = peer::connect(socket).unwrap();
    let said = Hello { version: PROTOCOL_VERSION, body: hello() }.to_bytes().unwrap();
    peer::send(&connection, &said, &[]).unwrap();
    let message = peer::receive(&connection, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
    let answer = Answer::from_bytes(&message.bytes).unwrap();
    assert!(matches!(answer, Answer::Welcome(_)), "{answer:?}");
    let mut kept = message.descriptors;
    let segment = MemoryFile::received(kept.remove(0)).unwrap();
    let segment = Segment::open(segment.map(Access::ReadWrite).unwrap()).unwrap();
    let side = ClientSide::open(segment, ClientOptions::default(), Box::new(|| true)).unwrap();
    (side, kept)
}

/// Frames that no gateway sends, or with any numbers.
fn nonsense() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..80);
    let near = |base: u64| prop_oneof![Just(base), base..base + (1 << 17), any::<u64>()];
    let word = || prop_oneof![0_u32..80, any::<u32>()];
    let encode = |frame: Frame<'_>| {
        let mut out = Vec::new();
        frame.encode(&mut out);
        out
    };
    prop_oneof![
        bytes(),
        (any::<u16>(), any::<u32>(), any::<i32>(), bytes()).prop_map(
            move |(slot, call, status, bytes)| {
                let to = AnswerTo { slot, call };
                encode(Frame::Answer { to, status, bytes: &bytes })
            }
        ),
        (word(), any::<u64>())
            .prop_map(move |(word, value)| encode(Frame::Progress { word, value })),
        (word(), any::<u64>()).prop_map(move |(word, value)| encode(Frame::Notice { word, value })),
        word().prop_map(move |block| encode(Frame::Released(block))),
        (near(0), bytes())
            .prop_map(move |(offset, bytes)| encode(Frame::Block { offset, bytes: &bytes })),
        (near(BASE), bytes())
            .prop_map(move |(address, bytes)| encode(Frame::Pinned { address, bytes: &bytes })),
        any::<u64>().prop_map(move |number| encode(Frame::Written(number))),
        any::<u64>().prop_map(move |count| encode(Frame::Ack(count))),
        any::<u32>().prop_map(move |why| encode(Frame::Lost(why))),
        bytes().prop_map(move |bytes| encode(Frame::Command { answer: None, bytes: &bytes })),
        Just(encode(Frame::Bye)),
    ]
}

fn endpoint(folder: &Path, remote: &str, identity: &Identity) -> (Arc<Near>, PathBuf) {
    let near = Arc::new(Near::new(remote, &[grant(identity.digest())]).unwrap());
    let socket = folder.join("tenant.sock");
    let (serving, at) = (Arc::clone(&near), socket.clone());
    let (say, ready) = std::sync::mpsc::channel();
    thread::spawn(move || serving.serve(&at, || say.send(()).unwrap()));
    ready.recv().unwrap();
    (near, socket)
}

/// A gateway with a script, and an endpoint of its programs.
fn scripted(folder: &Path) -> (Arc<Mutex<Script>>, Arc<Near>, PathBuf) {
    let identity = Arc::new(Identity::at(&folder.join("key")).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = listener.local_addr().unwrap().to_string();
    let script = Arc::new(Mutex::new(Script::default()));
    let (key, played) = (Arc::clone(&identity), Arc::clone(&script));
    thread::spawn(move || serve(&listener, &key, &played));
    let (near, socket) = endpoint(folder, &remote, &identity);
    (script, near, socket)
}

#[test]
fn a_gateway_that_hangs_up_each_time_keeps_no_call_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let (script, near, socket) = scripted(folder.path());
    *script.lock().unwrap() = Script { resumes: true, ..Script::default() };
    let (side, _kept) = attach(&socket);
    let answered = side.call(&encoded(&Command::Ping {}), &mut [0; 64]);
    assert!(matches!(answered, Err(CallError::WorkerLost)), "{answered:?}");
    drop((side, _kept));
    eventually("the session to end", || near.programs() == 0);
}

#[test]
fn a_gateway_that_sends_nonsense_makes_no_call_hang() {
    let folder = tempfile::tempdir().unwrap();
    let (script, near, socket) = scripted(folder.path());
    let ping = encoded(&Command::Ping {});
    let honest = || {
        *script.lock().unwrap() = Script { answers: true, ..Script::default() };
        let (side, _kept) = attach(&socket);
        let answer = side.call(&ping, &mut [0; 64]).unwrap();
        assert_eq!((answer.status, answer.len), (0, 4));
    };
    honest();
    let mut runner = TestRunner::new(Config::with_cases(100));
    let outcome = runner.run(&prop::collection::vec(nonsense(), 1..12), |frames| {
        *script.lock().unwrap() = Script { frames, ..Script::default() };
        let (side, _kept) = attach(&socket);
        let began = Instant::now();
        // An answer that was made up, or the session's end.
        let answered = side.call(&ping, &mut [0; 64]);
        prop_assert!(matches!(answered, Ok(_) | Err(CallError::WorkerLost)), "{answered:?}");
        prop_assert!(began.elapsed() < LIMIT, "it hung");
        Ok(())
    });
    outcome.unwrap();
    honest();
    eventually("the sessions to end", || near.programs() == 0);
}
