//! Attacks on a session: the fuzzer's corpus, and commands with changed bytes on the software
//! device.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic")]

mod harness;

use std::path::Path;

use harness::{ARENA, COMMAND, CONTEXT, DEVICE_BASE, MODULE, PINNED_BASE, PTX, TURN, attack};
use proptest::prelude::*;
use proptest::sample::Index;
use weft_wire::Command;
use weft_wire::codec::encode_to_vec;
use weft_wire::command::{
    Block, Comparison, Endpoint, FillSpec, GraphNode, GraphWork, LaunchSpec, Payload, Place, Shape,
};
use weft_wire::id::{EventId, GraphExecId, ModuleId, StreamId};

const STREAM: StreamId = StreamId { index: 1, generation: 1 };
const EVENT: EventId = EventId { index: 0, generation: 1 };
const GRAPH: GraphExecId = GraphExecId { index: 0, generation: 1 };

fn block(offset: u64, bytes: u64, release: u32) -> Block {
    Block { offset, bytes, release }
}

fn launch(function: u32, params: &[u8]) -> LaunchSpec<'_> {
    LaunchSpec {
        module: MODULE,
        function,
        grid: [2, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: Payload::Inline(params),
    }
}

fn side(place: Place<'_>) -> Endpoint<'_> {
    Endpoint { place, pitch: 64, slice: 256 }
}

/// One command of every kind that is worth changing.
fn commands() -> Vec<Command<'static>> {
    static GOOD: [u8; 16] = [0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let (stream, event, context) = (STREAM, EVENT, CONTEXT);
    let shape = Shape { width: 32, height: 4, depth: 2 };
    let device = || side(Place::Device(DEVICE_BASE));
    let arena = || side(Place::Host(Payload::Arena(block(8192, 1024, 3))));
    let pinned = Place::Host(Payload::Pinned { address: PINNED_BASE, bytes: 1024 });
    let fill =
        FillSpec { address: DEVICE_BASE, pitch: 0, width: 64, height: 1, element: 4, value: 9 };
    let stream_2 = StreamId { index: 2, generation: 1 };
    let module = ModuleId { index: 1, generation: 1 };
    let address = DEVICE_BASE;
    let comparison = Comparison::GreaterOrEqual;
    let image = block(0, PTX.len() as u64, 5);
    vec![
        Command::Launch { stream, launch: launch(0, &GOOD) },
        Command::Launch { stream: stream_2, launch: launch(1, &[]) },
        Command::Copy { stream, dst: device(), src: arena(), shape: shape.clone() },
        Command::CopySync { stream, dst: side(pinned), src: device(), shape },
        Command::Fill { stream, fill },
        Command::EventRecord { event, stream, record: 1 },
        Command::StreamWaitEvent { stream: stream_2, event },
        Command::StreamWaitValue { stream, address, value: 1, wide: true, comparison },
        Command::StreamWriteValue { stream: stream_2, address, value: 1, wide: true },
        Command::SharedEventCreate { cell: address },
        Command::SharedEventRecord { cell: address, stream },
        Command::SharedEventWait { cell: address, stream: stream_2 },
        Command::SharedEventQuery { cell: address },
        Command::HostFunction { stream, call: 5 },
        Command::HostFunctionNext {},
        Command::HostFunctionDone { call: 5 },
        Command::MemAlloc { context, bytes: 4096 },
        Command::MemFree { address },
        Command::MemFreeAsync { stream, address },
        Command::PinnedQuota { bytes: 8192 },
        Command::PinnedRange { address: PINNED_BASE + 4096, bytes: 8192, used: 1 },
        Command::PinnedRange { address: PINNED_BASE + 4096, bytes: 8192, used: 0 },
        Command::HostMap { host: 1 << 40, address: PINNED_BASE + 4096, bytes: 4096 },
        Command::HostUnmap { host: 1 << 40 },
        Command::ManagedAlloc { address: PINNED_BASE, bytes: 4096 },
        Command::ManagedPrefetch { address: PINNED_BASE, bytes: 4096 },
        Command::ManagedFree { address: PINNED_BASE },
        Command::ModuleLoad { context, module, images: vec![image], answer: block(4096, 4096, 6) },
        Command::ModuleUnload { module: MODULE },
        Command::GraphInstantiate { context, graph: GRAPH, nodes: block(12_288, 512, 7) },
        Command::GraphLaunch { graph: GRAPH, stream },
        Command::GraphSetKernel { graph: GRAPH, node: 0, launch: launch(0, &GOOD) },
        Command::GraphSetNode { graph: GRAPH, node: 0, node_bytes: block(12_288, 512, 8) },
        Command::StreamSynchronize { stream },
        Command::ContextSynchronize { context },
        Command::EventSynchronize { event, record: 1 },
        Command::EventElapsed { start: event, end: event },
        Command::StreamDestroy { stream },
        Command::ContextDestroy { context },
        Command::ContextCreate { context },
        Command::Ping {},
    ]
}

fn graph_nodes() -> Vec<u8> {
    let kernel = GraphNode { after: vec![], work: GraphWork::Kernel(launch(0, &[0; 16])) };
    let host = GraphNode { after: vec![0], work: GraphWork::HostFunction(5) };
    let record = GraphNode { after: vec![0], work: GraphWork::EventRecord(EVENT) };
    encode_to_vec(&vec![kernel, host, record], 512).unwrap()
}

fn command_record(command: &Command<'_>, changes: &[(Index, u8)]) -> Vec<u8> {
    let mut bytes = vec![0; weft_wire::command::COMMAND_BYTES_MAX];
    let length = command.encode(&mut bytes).unwrap();
    bytes.truncate(length);
    for (at, to) in changes {
        bytes[at.index(length)] = *to;
    }
    let length = u16::try_from(length).unwrap().to_le_bytes();
    [&[COMMAND][..], &length, &bytes].concat()
}

fn arena_record(offset: u16, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap().to_le_bytes();
    [&[ARENA][..], &offset.to_le_bytes(), &length, bytes].concat()
}

/// Every command once, in an order that makes sense, with turns between: the corpus's first input.
fn decent() -> Vec<u8> {
    let mut input = arena_record(12_288, &graph_nodes());
    for command in commands() {
        input.extend(command_record(&command, &[]));
        input.extend([TURN, 255, TURN, 255]);
    }
    input
}

#[test]
fn the_corpus_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/exec_commands");
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        attack(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is empty");
}

#[test]
fn a_decent_tenant_is_no_attack() {
    attack(&decent());
}

/// Renews the corpus's first input; run it by name after a change of the protocol.
#[test]
#[ignore = "writes into the repository"]
fn write_the_first_input() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/exec_commands");
    std::fs::create_dir_all(&corpus).unwrap();
    std::fs::write(corpus.join("every_command"), decent()).unwrap();
}

fn records() -> impl Strategy<Value = Vec<u8>> {
    let count = commands().len();
    let change = (any::<Index>(), prop_oneof![any::<u8>(), Just(255), Just(0), Just(127)]);
    let command = (0..count, prop::collection::vec(change, 0..3))
        .prop_map(|(at, changes)| command_record(&commands()[at], &changes));
    let nodes = prop::collection::vec((any::<Index>(), any::<u8>()), 0..4).prop_map(|changes| {
        let mut bytes = graph_nodes();
        let length = bytes.len();
        for (at, to) in changes {
            bytes[at.index(length)] = to;
        }
        arena_record(12_288, &bytes)
    });
    let turn = any::<u8>().prop_map(|how| vec![TURN, how]);
    let record = prop_oneof![6 => command, 1 => nodes, 3 => turn];
    prop::collection::vec(record, 0..60).prop_map(|records| records.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_commands_are_survived(input in records()) {
        attack(&input);
    }
}
