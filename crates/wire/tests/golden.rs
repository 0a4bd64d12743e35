//! The bytes of every command and of the handshake: what crosses a process border does not change
//! unnoticed. `golden.txt` has a line per message; every field of a sample has a value of its own,
//! so that two that change places are seen.
//!
//! After a change that is meant: raise `PROTOCOL_VERSION`, run with `WEFT_RENEW_GOLDEN=1`, read the
//! difference.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use weft_wire::Command;
use weft_wire::command::{
    Block, COMMAND_BYTES_MAX, Comparison, Endpoint, FillSpec, KINDS, LaunchSpec, Payload, Place,
    Shape,
};
use weft_wire::handshake::{
    Answer, Attribute, Hello, HelloBody, PROTOCOL_VERSION, Placement, Welcome,
};
use weft_wire::id::{ContextId, EventId, GraphExecId, ModuleId, StreamId};

const CONTEXT: ContextId = ContextId { index: 0x0c, generation: 0xc0 };
const STREAM: StreamId = StreamId { index: 0x05, generation: 0x50 };
const EVENT: EventId = EventId { index: 0x0e, generation: 0xe0 };
const MODULE: ModuleId = ModuleId { index: 0x0d, generation: 0xd0 };
const GRAPH: GraphExecId = GraphExecId { index: 0x06, generation: 0x60 };
const ADDRESS: u64 = 0x0a0b_0c0d_0e0f_0102;
const BYTES: u64 = 0x1111_2222_3333_4444;
const RECORD: u64 = 0x77;
const BLOCK: Block = Block { offset: 0x40, bytes: 0x2000, release: 0x09 };
const SHAPE: Shape = Shape { width: 0x21, height: 0x22, depth: 0x23 };
const FILL: FillSpec =
    FillSpec { address: ADDRESS, pitch: 0x31, width: 0x32, height: 0x33, element: 4, value: 0x34 };

fn launch() -> LaunchSpec<'static> {
    LaunchSpec {
        module: MODULE,
        function: 0x41,
        grid: [0x42, 0x43, 0x44],
        block: [0x45, 0x46, 0x47],
        shared_bytes: 0x48,
        params: Payload::Inline(&[1, 2, 3]),
    }
}

fn device() -> Endpoint<'static> {
    Endpoint { place: Place::Device(ADDRESS), pitch: 0x51, slice: 0x52 }
}

fn host(payload: Payload<'static>) -> Endpoint<'static> {
    Endpoint { place: Place::Host(payload), pitch: 0x53, slice: 0x54 }
}

/// Virtual memory management.
fn mappings(address: u64, bytes: u64) -> [Command<'static>; 6] {
    [
        Command::MemReserve { bytes, alignment: 0x67 },
        Command::MemUnreserve { address },
        Command::MemCreate { bytes },
        Command::MemRelease { memory: 0x68 },
        Command::MemMap { address, memory: 0x68 },
        Command::MemUnmap { address },
    ]
}

/// At least one of each kind.
fn commands() -> Vec<Command<'static>> {
    let (context, stream, event, graph) = (CONTEXT, STREAM, EVENT, GRAPH);
    let (address, bytes, record, wide, module) = (ADDRESS, BYTES, RECORD, true, MODULE);
    let mut all = vec![
        Command::ContextCreate { context },
        Command::ContextDestroy { context },
        Command::ContextSynchronize { context },
        Command::Ping {},
        Command::TakeOutput {},
        Command::MemAlloc { context, bytes },
        Command::MemFree { address },
        Command::MemAllocAsync { context, stream, bytes },
        Command::MemFreeAsync { stream, address },
        Command::MemInfo {},
        Command::PinnedQuota { bytes },
        Command::PinnedRange { address, bytes, used: 1 },
        Command::HostMap { host: 0x61, address, bytes },
        Command::HostUnmap { host: 0x61 },
        Command::ManagedAlloc { address, bytes },
        Command::ManagedFree { address },
        Command::ManagedPrefetch { address, bytes },
        Command::MemExport { address },
        Command::MemImport { context, key: *b"0123456789abcdef" },
        Command::Copy {
            stream,
            dst: device(),
            src: host(Payload::Pinned { address: 0x62, bytes: 0x63 }),
            shape: SHAPE,
        },
        Command::CopySync { stream, dst: host(Payload::Arena(BLOCK)), src: device(), shape: SHAPE },
        Command::Fill { stream, fill: FILL },
        Command::ModuleLoad { context, module, images: vec![BLOCK, BLOCK], answer: BLOCK },
        Command::ModuleUnload { module },
        Command::Launch { stream, launch: launch() },
        Command::StreamCreate { context, stream, blocking: true, priority: -2 },
        Command::StreamDestroy { stream },
        Command::StreamSynchronize { stream },
        Command::StreamQuery { stream },
        Command::StreamWaitEvent { stream, event },
        Command::StreamWriteValue { stream, address, value: 0x64, wide },
        Command::EventCreate { context, event },
        Command::EventDestroy { event },
        Command::EventRecord { event, stream, record },
        Command::EventSynchronize { event, record },
        Command::EventQuery { event, record },
        Command::EventElapsed { start: event, end: EventId { index: 0x0f, generation: 0xf0 } },
        Command::SharedEventCreate { cell: address },
        Command::SharedEventRecord { cell: address, stream },
        Command::SharedEventWait { cell: address, stream },
        Command::SharedEventQuery { cell: address },
        Command::HostFunction { stream, call: 0x65 },
        Command::HostFunctionNext {},
        Command::HostFunctionDone { call: 0x65 },
        Command::GraphInstantiate { context, graph, nodes: BLOCK },
        Command::GraphSetKernel { graph, node: 0x66, launch: launch() },
        Command::GraphLaunch { graph, stream },
        Command::GraphDestroy { graph },
        Command::GraphSetNode { graph, node: 0x66, node_bytes: BLOCK },
    ];
    let comparisons =
        [Comparison::GreaterOrEqual, Comparison::Equal, Comparison::And, Comparison::Nor];
    all.extend(mappings(address, bytes));
    all.extend(comparisons.map(|comparison| {
        let value = 0x64;
        Command::StreamWaitValue { stream, address, value, wide: false, comparison }
    }));
    all
}

fn hello() -> Hello {
    let body = HelloBody {
        vgpu: "vgpu".to_owned(),
        weight: 0x71,
        memory_bytes: 0x72,
        token: "token".to_owned(),
        pid: 0x73,
        program: "program".to_owned(),
        device_base: 0x74,
        device_bytes: 0x75,
        pinned_base: 0x76,
        pinned_bytes: 0x77,
    };
    Hello { version: PROTOCOL_VERSION, body }
}

fn answers() -> [Answer; 2] {
    let welcome = Welcome {
        session: 0x81,
        vgpu: "vgpu".to_owned(),
        device_name: "device".to_owned(),
        uuid: *b"fedcba9876543210",
        capability_major: 0x82,
        capability_minor: 0x83,
        memory_bytes: 0x84,
        pinned_bytes: 0x85,
        managed_bytes: 0x8c,
        attributes: vec![Attribute { number: 0x86, value: -0x87 }],
        placement: Some(Placement {
            segment_at: 0x88,
            segment_bytes: 0x89,
            pinned_at: 0x8a,
            mark: 0x8b,
        }),
    };
    [Answer::Welcome(welcome), Answer::Refused { code: 3, message: "no room".to_owned() }]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn lines() -> String {
    let mut text = format!("version {PROTOCOL_VERSION}\n");
    let mut line = |name: &str, bytes: &[u8]| writeln!(text, "{name} {}", hex(bytes)).unwrap();
    for command in commands() {
        let mut bytes = [0; COMMAND_BYTES_MAX];
        let len = command.encode(&mut bytes).unwrap();
        assert_eq!(Command::decode(&bytes[..len]).unwrap(), command);
        line(command.name(), &bytes[..len]);
    }
    let bytes = hello().to_bytes().unwrap();
    assert_eq!(Hello::from_bytes(&bytes).unwrap(), hello());
    line("Hello", &bytes);
    for answer in answers() {
        let bytes = answer.to_bytes().unwrap();
        assert_eq!(Answer::from_bytes(&bytes).unwrap(), answer);
        line("Answer", &bytes);
    }
    text
}

#[test]
fn the_bytes_of_every_message_are_the_golden_ones() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.txt");
    let now = lines();
    if std::env::var_os("WEFT_RENEW_GOLDEN").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap();
    for (golden, now) in golden.lines().zip(now.lines()) {
        assert_eq!(golden, now);
    }
    assert_eq!(golden.lines().count(), now.lines().count());
}

/// A relay sends these blocks back and the others there.
#[test]
fn the_commands_whose_block_the_worker_writes_are_known() {
    let with = |command: &Command<'_>| command.output_block().is_some();
    let written: BTreeSet<&str> =
        commands().iter().filter(|command| with(command)).map(Command::name).collect();
    assert_eq!(written, BTreeSet::from(["CopySync", "ModuleLoad"]));
}

#[test]
fn every_kind_of_command_has_a_sample() {
    let samples: BTreeSet<u16> = commands().iter().map(Command::kind).collect();
    let without: Vec<_> = KINDS.iter().filter(|(kind, ..)| !samples.contains(kind)).collect();
    assert!(without.is_empty(), "{without:?}");
}
