//! A tenant that does not use the shim but writes into its shared memory whatever it likes, beside
//! one that works: whatever it sends, only its own session ends.

use std::os::fd::OwnedFd;
use std::time::Duration;

use weft_ring::{
    Access, ArenaError, AtomicU64, ClientOptions, ClientSide, MemoryFile, Ordering, Segment, peer,
};
use weft_wire::command::{Block, Endpoint, Payload, Place, Shape};
use weft_wire::handshake::{
    Answer, HANDSHAKE_BYTES_MAX, Hello, HelloBody, PROTOCOL_VERSION, Welcome,
};
use weft_wire::id::{ContextId, ModuleId, StreamId};
use weft_wire::{Command, Status};

use crate::support::{Conversation, Node, eventually, program, success};

const CONTEXT: ContextId = ContextId { index: 0, generation: 1 };
const MODULE: ModuleId = ModuleId { index: 0, generation: 1 };
const FATBINS: [&[u8]; 3] = [
    include_bytes!("../../../ptx/tests/corpus/image/plain.fatbin"),
    include_bytes!("../../../ptx/tests/corpus/image/zstd.fatbin"),
    include_bytes!("../../../ptx/tests/corpus/image/elf_and_ptx.fatbin"),
];

/// A session without the shim.
struct Raw {
    side: ClientSide,
    lifeline: OwnedFd,
    _pinned: OwnedFd,
}

/// Attaches as the vGPU `hostile`; the session's descriptors.
fn attach(node: &Node) -> (Welcome, [OwnedFd; 3]) {
    let body = HelloBody {
        vgpu: "hostile".to_owned(),
        weight: 0,
        memory_bytes: 64 << 20,
        token: String::new(),
        pid: std::process::id(),
        program: "hostile".to_owned(),
        device_base: 0x3000_0000_0000,
        device_bytes: 1 << 34,
        pinned_base: 0x2000_0000_0000,
        pinned_bytes: 1 << 20,
    };
    let hello = Hello { version: PROTOCOL_VERSION, body }.to_bytes().unwrap();
    let socket = peer::connect(&node.path().join("tenant.sock")).unwrap();
    peer::send(&socket, &hello, &[]).unwrap();
    let message = peer::receive(&socket, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
    match Answer::from_bytes(&message.bytes).unwrap() {
        Answer::Welcome(welcome) => (welcome, message.descriptors.try_into().unwrap()),
        Answer::Refused { message, .. } => panic!("refused: {message}"),
    }
}

impl Raw {
    fn new(node: &Node) -> Self {
        let (_, [segment, pinned, lifeline]) = attach(node);
        let memory = MemoryFile::received(segment).unwrap().map(Access::ReadWrite).unwrap();
        let options =
            ClientOptions { spin: Duration::ZERO, full_limit: Some(Duration::from_secs(10)) };
        let watched = lifeline.try_clone().unwrap();
        let alive = Box::new(move || !peer::has_hung_up(&watched));
        let segment = Segment::open(memory).unwrap();
        let side = ClientSide::open(segment, options, alive).unwrap();
        Self { side, lifeline, _pinned: pinned }
    }

    /// Writes a record into a lane, whatever it is.
    fn submit(&self, bytes: &[u8]) {
        // The worker may be gone already, for what was sent before.
        let _ = self.side.submit(bytes);
    }

    fn call(&self, command: &Command<'_>) -> Status {
        let answer = self.side.call(&encoded(command), &mut []).unwrap();
        Status::from_peer(answer.status)
    }

    /// Waits for the end that a violation brings.
    fn wait_for_end(self, what: &str) {
        eventually(&format!("the end of a session with {what}"), || {
            peer::has_hung_up(&self.lifeline)
        });
    }

    /// Has the worker load one image, through the arena.
    fn load(&self, image: &[u8]) -> Status {
        let arena = self.side.arena();
        let (block, answer) = (arena.try_alloc(image.len().max(1)), arena.try_alloc(1 << 16));
        let (block, answer) = (block.unwrap(), answer.unwrap());
        block.span().unwrap().write_from(image).unwrap();
        let named = |block: &weft_ring::Block, bytes: u64| {
            let reference = block.reference();
            Block { offset: reference.offset, bytes, release: reference.block }
        };
        let command = Command::ModuleLoad {
            context: CONTEXT,
            module: MODULE,
            images: vec![named(&block, image.len() as u64)],
            answer: named(&answer, 1 << 16),
        };
        let status = self.call(&command);
        let _named = (block.hand_over(), answer.hand_over());
        if status == Status::SUCCESS {
            assert_eq!(self.call(&Command::ModuleUnload { module: MODULE }), Status::SUCCESS);
        }
        status
    }
}

fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = vec![0; weft_ring::MAX_COMMAND];
    let len = command.encode(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// A reproducible stream of numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 ^ (self.0 >> 29)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}

/// A tenant that works and checks its results while the others misbehave.
fn neighbour(node: &Node) -> Conversation {
    let command =
        node.run(&["--name", "good"], &program("share"), &["step_102us", "4", "--window", "0.2"]);
    let tenant = Conversation::start(command);
    tenant.line();
    tenant
}

fn all_is_well(node: &Node, mut neighbour: Conversation) {
    assert!(neighbour.wait().success(), "the neighbour's results are wrong");
    node.wait_until_empty();
    success(node.run(&["--name", "next"], &program("vector_add"), &[]));
}

fn copy_from(src: Place<'static>) -> Command<'static> {
    Command::Copy {
        stream: StreamId::LEGACY,
        dst: Endpoint { place: Place::Device(0x3000_0000_0000), pitch: 100, slice: 100 },
        src: Endpoint { place: src, pitch: 100, slice: 100 },
        shape: Shape { width: 100, height: 1, depth: 1 },
    }
}

#[test]
fn a_record_that_is_no_command_ends_its_session_alone() {
    let node = Node::paced(&[]);
    let good = neighbour(&node);
    let truncated = encoded(&Command::ContextCreate { context: CONTEXT });
    let outside = Block { offset: u64::MAX - 4, bytes: 100, release: 5 };
    let wild = Block { offset: 0, bytes: 100, release: u32::MAX };
    let window = Payload::Pinned { address: 0x2000_0000_0000 + (1 << 20) - 50, bytes: 100 };
    for (what, bytes) in [
        ("noise", vec![0xff; 40]),
        ("nothing", Vec::new()),
        ("half a command", truncated[..truncated.len() - 3].to_vec()),
        ("a call without a caller", encoded(&Command::MemInfo {})),
        ("a block outside", encoded(&copy_from(Place::Host(Payload::Arena(outside))))),
        ("a wild release", encoded(&copy_from(Place::Host(Payload::Arena(wild))))),
        ("a span past the window", encoded(&copy_from(Place::Host(window)))),
    ] {
        let raw = Raw::new(&node);
        raw.submit(&bytes);
        raw.wait_for_end(what);
    }
    all_is_well(&node, good);
}

#[test]
fn noise_all_over_a_segment_hurts_nobody_else() {
    let node = Node::paced(&[]);
    let good = neighbour(&node);
    let mut noise = Noise(1);
    for _ in 0..12 {
        let raw = Raw::new(&node);
        let memory = raw.side.segment().memory();
        let words = memory.cells::<AtomicU64>(0, memory.len() / 8).unwrap();
        // Most of a segment is arena; what matters lies in the two megabytes before it.
        let lanes = words.len().min((2 << 20) / 8);
        for _ in 0..20_000 {
            words[noise.below(lanes)].store(noise.next(), Ordering::Release);
        }
        raw.submit(&encoded(&Command::ContextCreate { context: CONTEXT }));
        raw.submit(&[noise.next().to_le_bytes(); 5].concat());
        // It may have spoilt what would tell anybody of its end, so it leaves.
        drop(raw);
    }
    all_is_well(&node, good);
}

#[test]
fn a_segment_keeps_its_size_whatever_a_tenant_tries() {
    let node = Node::paced(&[]);
    let good = neighbour(&node);
    let (_, [segment, pinned, lifeline]) = attach(&node);
    for file in [&segment, &pinned] {
        let bytes = u64::try_from(rustix::fs::fstat(file).unwrap().st_size).unwrap();
        for size in [0, bytes / 2, bytes + 4096] {
            let tried = rustix::fs::ftruncate(file, size);
            assert_eq!(tried, Err(rustix::io::Errno::PERM), "{size} of {bytes}");
        }
    }
    assert!(!peer::has_hung_up(&lifeline), "the session lives on");
    drop((segment, pinned, lifeline));
    all_is_well(&node, good);
}

#[test]
fn damaged_images_are_refused_and_the_session_goes_on() {
    let node = Node::paced(&[]);
    let good = neighbour(&node);
    let raw = Raw::new(&node);
    raw.submit(&encoded(&Command::ContextCreate { context: CONTEXT }));
    let mut noise = Noise(2);
    for image in FATBINS {
        assert_eq!(raw.load(image), Status::SUCCESS);
        for cut in (0..image.len()).step_by(image.len() / 40) {
            assert_ne!(raw.load(&image[..cut]), Status::SUCCESS, "{cut} bytes of {}", image.len());
        }
        for _ in 0..150 {
            let mut bent = image.to_vec();
            for _ in 0..=noise.below(3) {
                let at = noise.below(bent.len());
                bent[at] = noise.next().to_le_bytes()[0];
            }
            // A changed comment or constant is still a module; what counts is that an answer comes.
            raw.load(&bent);
        }
        assert_eq!(raw.load(image), Status::SUCCESS, "the session still loads modules");
    }
    let huge = ".version 7.5\n.target sm_75\n.address_size 64\n".repeat(20_000);
    assert_ne!(raw.load(huge.as_bytes()), Status::SUCCESS);
    let deep = format!(
        ".version 7.5\n.target sm_75\n.address_size 64\n.global .u32 a = {}1{};\n",
        "(".repeat(50_000),
        ")".repeat(50_000)
    );
    raw.load(deep.as_bytes());
    assert_eq!(raw.call(&Command::Ping {}), Status::SUCCESS);
    drop(raw);
    all_is_well(&node, good);
}

#[test]
fn a_full_arena_makes_copies_wait_and_nothing_else() {
    let node = Node::start(&["limits.arena=1MiB"]);
    let text = success(node.run(&["--name", "crowd"], &program("arena"), &[]));
    assert!(text.contains("arena: PASSED"), "{text}");
    // A tenant that takes all of its arena and gives nothing back has none, and is alone with that.
    let raw = Raw::new(&node);
    let mut blocks = Vec::new();
    let full = loop {
        match raw.side.arena().try_alloc(64 << 10) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    assert_eq!(full, ArenaError::Full);
    assert_eq!(raw.call(&Command::Ping {}), Status::SUCCESS);
    success(node.run(&["--name", "other"], &program("vector_add"), &[]));
    drop((blocks, raw));
    node.wait_until_empty();
}
