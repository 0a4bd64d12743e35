//! An endpoint that was let in and then sends whatever it likes ends its own session and nothing
//! else. The node is one of the test's own: a tenant socket whose sessions answer every call.
//! The other way round, in [`near`]: a gateway that sends whatever it likes.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use weft_endpoint::far::{Daemon, Far, Limits, Settings};
use weft_endpoint::frame::{Frame, Front, front};
use weft_endpoint::tls::{Channel, Heard, Identity, Room, client_config};
use weft_ring::{
    Access, AnswerTo, ArenaRef, MAX_ANSWER, MemoryFile, PAGE, Segment, WorkerSide, peer,
};
use weft_wire::Command;
use weft_wire::command::COMMAND_BYTES_MAX;
use weft_wire::handshake::{
    Answer, HANDSHAKE_BYTES_MAX, Hello, HelloBody, RefusalCode, Welcome, to_vec,
};
use weft_wire::remote::{Grant, GrantBody, Open, Opened, Opening, Reception, Resume};

mod near;
mod resuming;
mod silent;

const LIMIT: Duration = Duration::from_secs(60);
const BASE: u64 = 0x2000_0000_0000;

fn welcome(vgpu: &str) -> Welcome {
    Welcome {
        session: 1,
        vgpu: vgpu.into(),
        device_name: "none".into(),
        uuid: [0; 16],
        capability_major: 7,
        capability_minor: 5,
        memory_bytes: 0,
        pinned_bytes: PAGE as u64,
        managed_bytes: 0,
        attributes: Vec::new(),
        placement: None,
    }
}

fn hello() -> HelloBody {
    HelloBody {
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
    }
}

/// The text of a grant of the gateway with this key; this test's node does not look at it.
fn grant(server: [u8; 32]) -> String {
    let body = GrantBody {
        id: [1; 16],
        vgpu: "v".into(),
        owner: 1,
        weight: 1,
        memory_bytes: 0,
        uses: 1,
        expires_s: u64::MAX,
        server,
    };
    Grant { body: to_vec(&body).unwrap(), code: [0; 32] }.to_text()
}

/// Waits for a condition.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of a session's arena.
const ARENA: usize = 1 << 16;

/// What the node of a test sees, and does.
#[derive(Default)]
struct Node {
    /// Whoever has said hello.
    hellos: AtomicU64,
    /// Its workers take nothing meanwhile.
    is_stuck: AtomicBool,
    /// Its workers end.
    is_over: AtomicBool,
    /// They answer with as much as an answer may have.
    is_wordy: AtomicBool,
    /// Commands that they took.
    taken: AtomicU64,
    /// What was in the arena when they answered last.
    arena: Mutex<Vec<u8>>,
}

/// Sessions that answer every call with success, until the client is gone.
fn serve_node(listener: &OwnedFd, node: &Arc<Node>) {
    while let Ok(socket) = peer::accept(listener) {
        node.hellos.fetch_add(1, Ordering::AcqRel);
        let said = peer::receive_bytes(&socket, HANDSHAKE_BYTES_MAX, true).unwrap().unwrap();
        let hello = Hello::from_bytes(&said).unwrap().body;
        let file = Segment::create(ARENA).unwrap();
        let segment = Segment::open(file.map(Access::ReadWrite).unwrap()).unwrap();
        segment.mark_relayed().unwrap();
        let pinned = MemoryFile::create("pinned", PAGE).unwrap();
        let (watched, lifeline) = peer::lifeline().unwrap();
        let answer = Answer::Welcome(welcome(&hello.vgpu)).to_bytes().unwrap();
        let fds = [file.as_fd(), pinned.as_fd(), lifeline.as_fd()];
        peer::send(&socket, &answer, &fds).unwrap();
        drop(lifeline);
        let node = Arc::clone(node);
        thread::spawn(move || work(segment, &watched, &node));
    }
}

fn work(segment: Segment, client: &OwnedFd, node: &Node) {
    let mut side = WorkerSide::open(segment).unwrap();
    while !peer::has_hung_up(client) && !node.is_over.load(Ordering::Acquire) {
        let _ = side.wait(Duration::ZERO, Some(Duration::from_millis(5)), || None::<()>);
        if node.is_stuck.load(Ordering::Acquire) {
            continue;
        }
        // What a gateway puts into a lane is never a violation, whatever it was told.
        while let Some(record) = side.take().unwrap() {
            node.taken.fetch_add(1, Ordering::AcqRel);
            let answer = record.answer;
            if let Some(answer) = answer {
                let all = ArenaRef { block: 0, offset: 0, len: ARENA as u64 };
                *node.arena.lock().unwrap() = side.arena().span(&all).unwrap().to_vec();
                let many = [7; MAX_ANSWER];
                let is_wordy = node.is_wordy.load(Ordering::Acquire);
                side.complete(answer, 0, if is_wordy { &many } else { b"done" }).unwrap();
            }
        }
    }
}

struct Gateway {
    address: SocketAddr,
    identity: Arc<Identity>,
    far: Arc<Far>,
    node: Arc<Node>,
}

fn gateway(folder: &Path) -> Gateway {
    gateway_with(folder, Duration::from_millis(200), Limits::default())
}

fn gateway_with(folder: &Path, grace: Duration, limits: Limits) -> Gateway {
    let node = Arc::new(Node::default());
    let socket = folder.join("tenant.sock");
    let listener = peer::listen(&socket, 0o600, 64).unwrap();
    let serving = Arc::clone(&node);
    thread::spawn(move || serve_node(&listener, &serving));
    let identity = Arc::new(Identity::at(&folder.join("key")).unwrap());
    let patience = Duration::from_secs(5);
    let far = Far::new(Settings { socket, grace, sessions: 64, pending: 64, patience, limits });
    let (listening, address) = Far::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (serving, key) = (Arc::clone(&far), Arc::clone(&identity));
    thread::spawn(move || serving.serve(&listening, &key, Daemon::default()).unwrap());
    Gateway { address, identity, far, node }
}

/// A session of the gateway's.
fn open(gateway: &Gateway) -> (Channel, Opened) {
    open_over(gateway, TcpStream::connect(gateway.address).unwrap())
}

fn open_over(gateway: &Gateway, socket: TcpStream) -> (Channel, Opened) {
    let opening = Opening::Open(Open { grant: grant([0; 32]), key: [0; 32], hello: hello() });
    match say_over(gateway, socket, &opening).unwrap() {
        (channel, Reception::Opened(opened)) => (channel, *opened),
        (_, reception) => panic!("{reception:?}"),
    }
}

/// Asks the gateway for something; what it answers.
fn say(gateway: &Gateway, opening: &Opening) -> (Channel, Reception) {
    say_over(gateway, TcpStream::connect(gateway.address).unwrap(), opening).unwrap()
}

/// None if the gateway hangs up without an answer.
fn say_over(
    gateway: &Gateway,
    socket: TcpStream,
    opening: &Opening,
) -> Option<(Channel, Reception)> {
    let config = client_config(gateway.identity.digest(), false).unwrap();
    let channel = Channel::connect(socket, config, Instant::now() + LIMIT).unwrap();
    send_message(&channel, &opening.to_bytes().unwrap()).unwrap();
    channel.set_patience(LIMIT).unwrap();
    let answer = hear_message(&channel)?;
    Some((channel, Reception::from_bytes(&answer).unwrap()))
}

/// A message with its length before it.
fn send_message(channel: &Channel, bytes: &[u8]) -> std::io::Result<()> {
    channel.send(&u32::try_from(bytes.len()).unwrap().to_le_bytes())?;
    channel.send(bytes)
}

/// None if the other side hangs up before.
fn hear_message(channel: &Channel) -> Option<Vec<u8>> {
    let (mut room, mut plain) = (Room::default(), Vec::new());
    loop {
        let Ok(Heard::Some) = channel.receive(&mut room, &mut plain) else { return None };
        let Some((length, message)) = plain.split_first_chunk::<4>() else { continue };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap();
        if message.len() >= length {
            channel.give_back(&message[length..]);
            return Some(message[..length].to_vec());
        }
    }
}

fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = [0; COMMAND_BYTES_MAX];
    let length = command.encode(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

/// A well-behaved session's call.
fn ping(gateway: &Gateway) {
    call(&open(gateway).0);
}

/// A call over a session's connection.
fn call(channel: &Channel) {
    let to = AnswerTo { slot: 3, call: 77 };
    let mut frames = Vec::new();
    let bytes = encoded(&Command::Ping {});
    Frame::Command { answer: Some(to), bytes: &bytes }.encode(&mut frames);
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
        let (channel, _) = open(&gateway);
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
    eventually("the sessions to end", || gateway.far.open_sessions() == 0);
}

/// Whoever resumes a session knows its secret; who does not leaves it and its connection alone.
#[test]
fn a_session_is_resumed_by_who_knows_its_secret_alone() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    let (channel, Opened { session, secret, .. }) = open(&gateway);
    let (_other, others) = open(&gateway);
    let mut near = secret;
    near[31] ^= 1;
    let mut unknown = session;
    unknown[0] ^= 1;
    let attempts = [(session, near), (session, others.secret), (unknown, secret)];
    for (session, secret) in attempts {
        let resume = Resume { session, secret, received: 0 };
        let (_, reception) = say(&gateway, &Opening::Resume(resume));
        let Reception::Refused { code, message } = reception else { panic!("{reception:?}") };
        assert_eq!(code, RefusalCode::Permission as u16);
        assert!(message.contains("there is no such session"), "{message}");
        call(&channel);
    }
    let (_resumed, reception) =
        say(&gateway, &Opening::Resume(Resume { session, secret, received: 0 }));
    assert!(matches!(reception, Reception::Resumed(1..)), "{reception:?}");
}

/// TLS without this protocol's name gets no session, and no other version is offered at all.
#[test]
fn who_speaks_another_protocol_gets_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    let opening = Opening::Open(Open { grant: grant([0; 32]), key: [0; 32], hello: hello() });
    let message = opening.to_bytes().unwrap();
    let attempt = |protocols: &[&[u8]]| {
        let mut config = (*client_config(gateway.identity.digest(), false).unwrap()).clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let mut socket = TcpStream::connect(gateway.address).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let name = ServerName::try_from("weft").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = rustls::Stream::new(&mut tls, &mut socket);
        let length = u32::try_from(message.len()).unwrap().to_le_bytes();
        stream.write_all(&length).and_then(|()| stream.write_all(&message))?;
        let mut heard = [0; 1];
        stream.read_exact(&mut heard)
    };
    assert!(attempt(&[b"weft/1"]).is_ok(), "the control");
    let others: [&[&[u8]]; 3] = [&[], &[b"h2"], &[b"weft/0", b"http/1.1"]];
    for protocols in others {
        assert!(attempt(protocols).is_err(), "{protocols:?}");
    }
    // The greeting of a client that knows TLS 1.2 at most: an alert, and the end.
    let mut socket = TcpStream::connect(gateway.address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(&greeting_of_1_2()).unwrap();
    let mut heard = Vec::new();
    socket.read_to_end(&mut heard).unwrap();
    let [kind, _, _, _, _, level, what] = heard[..] else { panic!("{heard:?}") };
    // A fatal alert: protocol_version (RFC 8446, section 6).
    assert_eq!((kind, level, what), (21, 2, 70), "{heard:?}");
    ping(&gateway);
}

/// A ClientHello of TLS 1.2 (RFC 5246, section 7.4.1.2) with one cipher suite.
fn greeting_of_1_2() -> Vec<u8> {
    let short = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    // No session, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, no compression.
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    // Extensions: signature_algorithms with ed25519, supported_groups with x25519.
    let extensions = [0, 13, 0, 4, 0, 2, 8, 7, 0, 10, 0, 4, 0, 2, 0, 29];
    body.extend([0, short(&extensions)]);
    body.extend(extensions);
    let mut hello = vec![1, 0, 0, short(&body)];
    hello.extend(body);
    let mut record = vec![22, 3, 1, 0, short(&hello)];
    record.extend(hello);
    record
}

/// The node would take what is no grant for the word of a program of the gateway's own user.
#[test]
fn what_is_no_grant_never_comes_to_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    let genuine = grant([0; 32]);
    for grant in ["", "x", "weft1", "weft1.00", &genuine[..genuine.len() - 80]] {
        let opening = Open { grant: grant.into(), key: [0; 32], hello: hello() };
        let (_, reception) = say(&gateway, &Opening::Open(opening));
        let Reception::Refused { code, message } = reception else { panic!("{reception:?}") };
        assert_eq!(code, RefusalCode::Permission as u16);
        assert!(message.contains("this is not a grant"), "{message}");
    }
    assert_eq!(gateway.node.hellos.load(Ordering::Acquire), 0);
    ping(&gateway);
    assert_eq!(gateway.node.hellos.load(Ordering::Acquire), 1, "the control");
}
