//! Modules, graphs, copies, and what no client of ours sends.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic")]

mod common;

use common::{
    ARENA_BLOCKS, ARENA_BYTES, Bench, CONTEXT, GRAPH, LEGACY, PINNED_BYTES, device_side, event,
    fill, host_side, linear, spec, stream,
};
use weft_device::Op;
use weft_exec::{Accepted, Caller, Limits, Violation};
use weft_wire::codec::{decode_all, encode_to_vec};
use weft_wire::command::{
    Block, Endpoint, GraphNode, GraphWork, LaunchSpec, Payload, Place, Shape,
};
use weft_wire::id::ModuleId;
use weft_wire::{Command, Status, reply};

#[test]
fn a_module_answers_its_symbols() {
    let mut bench = Bench::new();
    let images = vec![bench.block(b"good"), bench.block(b"more")];
    let answer = bench.block(&[0; 512]);
    let (module, context) = (ModuleId { index: 1, generation: 1 }, CONTEXT);
    let words: Vec<u32> =
        images.iter().map(|image| image.release).chain([answer.release]).collect();
    let at = usize::try_from(answer.offset).unwrap();
    let caller = bench.call(&Command::ModuleLoad { context, module, images, answer });
    let written: reply::Written = bench.body(caller);
    let mut bytes = vec![0; usize::try_from(written.bytes).unwrap()];
    bench.shared.arena.read_at(at, &mut bytes).unwrap();
    let symbols: reply::Module = decode_all(&bytes).unwrap();
    let names: Vec<_> = symbols.functions.iter().map(|function| &function.name).collect();
    assert_eq!(names, ["first", "second"]);
    assert!(words.iter().all(|word| bench.out.released.get(word) == Some(&1)));
    let launch = LaunchSpec { module, ..spec(0) };
    bench.send(&Command::Launch { stream: LEGACY, launch: launch.clone() });
    bench.start_all();
    let unload = bench.call(&Command::ModuleUnload { module });
    assert_eq!(bench.status(unload), None);
    bench.end_one();
    assert_eq!(bench.status(unload), Some(Status::SUCCESS));
    bench.send(&Command::Launch { stream: LEGACY, launch });
    assert_eq!(bench.ask(&Command::Ping {}), Status::INVALID_HANDLE);
}

#[test]
fn a_module_that_does_not_load_says_why() {
    let mut bench = Bench::new();
    let module = ModuleId { index: 1, generation: 1 };
    let expected: [(&[u8], Status, &str); 2] = [
        (b".version 9", Status::INVALID_PTX, "line 3: bogus"),
        (b"cubin", Status::NO_BINARY_FOR_GPU, "no image for this device: only sm_90"),
    ];
    for (image, status, text) in expected {
        let images = vec![bench.block(image)];
        let answer = bench.block(&[0; 512]);
        let load = Command::ModuleLoad { context: CONTEXT, module, images, answer };
        let caller = bench.call(&load);
        assert_eq!(bench.out.replies.get(&caller), Some(&(status, text.as_bytes().to_vec())));
    }
    let images = vec![bench.block(b"good")];
    let answer = bench.block(&[0; 8]);
    let load = Command::ModuleLoad { context: CONTEXT, module, images, answer };
    assert_eq!(bench.ask(&load), Status::OUT_OF_MEMORY);
    assert_eq!(bench.fake.borrow().modules.len(), 1, "what could not be told was unloaded");
}

fn instantiate(bench: &mut Bench, works: Vec<GraphWork<'_>>) -> Status {
    let nodes: Vec<GraphNode<'_>> =
        works.into_iter().map(|work| GraphNode { after: vec![], work }).collect();
    let nodes = bench.block(&encode_to_vec(&nodes, 32 << 10).unwrap());
    bench.ask(&Command::GraphInstantiate { context: CONTEXT, graph: GRAPH, nodes })
}

#[test]
fn a_graph_runs_its_nodes_and_counts_once() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    bench.create_event(0);
    let works = vec![
        GraphWork::Empty,
        GraphWork::Kernel(spec(0)),
        GraphWork::Fill(fill(bench.buffer, 8)),
        GraphWork::EventRecord(event(0)),
        GraphWork::HostFunction(9),
        GraphWork::EventWait(event(0)),
        GraphWork::Kernel(spec(1)),
    ];
    assert_eq!(instantiate(&mut bench, works), Status::SUCCESS);
    bench.send(&Command::GraphLaunch { graph: GRAPH, stream: stream(1) });
    bench.launch(stream(1), 1);
    bench.send(&Command::StreamWaitEvent { stream: stream(2), event: event(0) });
    let next = bench.call(&Command::HostFunctionNext {});
    assert_eq!(bench.start_all(), [(1, 0), (1, 101)]);
    bench.end_one();
    bench.end_one();
    assert_eq!((bench.event_word(event(0)), bench.word(stream(2))), (1, 0));
    assert_eq!(bench.body::<reply::HostCall>(next).call, 9);
    assert_eq!(bench.start_all(), []);
    bench.send(&Command::HostFunctionDone { call: 9 });
    assert_eq!(bench.start_all(), [(1, 1), (1, 1)]);
    assert_eq!(bench.word(stream(1)), 0);
    bench.end_one();
    let open = vec![true, false, true, false];
    assert_eq!(bench.fake.borrow().open, open, "the event asks when the second one ends");
    assert_eq!((bench.word(stream(1)), bench.word(stream(2))), (1, 1));
    bench.run();
    assert_eq!(bench.word(stream(1)), 2);
}

#[test]
fn a_changed_node_is_for_later_launches() {
    let mut bench = Bench::new();
    assert_eq!(
        instantiate(&mut bench, vec![GraphWork::Empty, GraphWork::Kernel(spec(0))]),
        Status::SUCCESS
    );
    let launch = Command::GraphLaunch { graph: GRAPH, stream: LEGACY };
    bench.send(&launch);
    bench.send(&Command::GraphSetKernel { graph: GRAPH, node: 1, launch: spec(1) });
    bench.send(&launch);
    assert_eq!(bench.start_all(), [(0, 0), (0, 1)]);
    let node = GraphNode { after: vec![], work: GraphWork::Fill(fill(bench.buffer, 8)) };
    let node_bytes = bench.block(&encode_to_vec(&node, 1000).unwrap());
    let set = Command::GraphSetNode { graph: GRAPH, node: 0, node_bytes };
    assert_eq!(bench.ask(&set), Status::SUCCESS);
    bench.send(&launch);
    bench.send(&Command::GraphDestroy { graph: GRAPH });
    assert_eq!(bench.start_all(), [(0, 101), (0, 1)], "a launched graph lives on");
    bench.send(&launch);
    assert_eq!(bench.ask(&Command::Ping {}), Status::INVALID_HANDLE);
}

#[test]
fn launches_of_a_graph_count_for_all_that_they_keep() {
    const BYTES: usize = 16 << 10;
    let limits = Limits { queued_bytes: 4 * BYTES as u64, ..Limits::default() };
    let mut bench = Bench::with(limits);
    bench.create_streams(&[(1, false)]);
    let address = bench.alloc(1 << 20);
    let inline = vec![7; BYTES];
    let copy = GraphWork::Copy {
        dst: device_side(address),
        src: host_side(Payload::Inline(&inline)),
        shape: linear(BYTES as u64),
    };
    assert_eq!(instantiate(&mut bench, vec![copy]), Status::SUCCESS);
    // Nothing of the stream begins before its host function has returned.
    bench.send(&Command::HostFunction { stream: stream(1), call: 1 });
    let launch = Command::GraphLaunch { graph: GRAPH, stream: stream(1) };
    let taken = (0..100).take_while(|_| bench.offer(&launch) == Ok(Accepted::Taken)).count();
    assert!((2..=5).contains(&taken), "{taken} launches keep {BYTES} bytes each");
}

#[test]
fn graphs_that_make_no_sense_are_refused() {
    let mut bench = Bench::new();
    let block = bench.block(&[0; 8]);
    let copy = |src| GraphWork::Copy { dst: device_side(common::BASE), src, shape: linear(8) };
    let works = vec![copy(host_side(Payload::Arena(block)))];
    assert_eq!(instantiate(&mut bench, works), Status::INVALID_VALUE, "arena blocks go away");
    let backwards = vec![GraphNode { after: vec![0], work: GraphWork::Empty }];
    let nodes = bench.block(&encode_to_vec(&backwards, 100).unwrap());
    let word = nodes.release;
    let command = Command::GraphInstantiate { context: CONTEXT, graph: GRAPH, nodes };
    assert_eq!(bench.ask(&command), Status::INVALID_VALUE);
    assert_eq!(bench.out.released.get(&word), Some(&1));
    let nodes = bench.block(&[255; 100]);
    let command = Command::GraphInstantiate { context: CONTEXT, graph: GRAPH, nodes };
    assert_eq!(bench.ask(&command), Status::OUT_OF_MEMORY, "four thousand million nodes");
}

#[test]
fn a_copy_takes_pitches_and_lets_its_block_go() {
    let mut bench = Bench::new();
    let block = bench.block(&[5; 64]);
    let word = block.release;
    let dst = Endpoint { pitch: 512, slice: 4096, ..device_side(bench.buffer) };
    let src = Endpoint { pitch: 16, slice: 32, ..host_side(Payload::Arena(block)) };
    let shape = Shape { width: 16, height: 2, depth: 2 };
    bench.send(&Command::Copy { stream: LEGACY, dst, src, shape });
    bench.start_all();
    assert_eq!(bench.out.released.get(&word), None);
    let started = bench.fake.borrow().started.clone();
    let Some((_, _, Op::Copy { src, .. })) = started.first() else { panic!("no copy") };
    let weft_device::Place::Host(span) = &src.place else { panic!("not from the host") };
    assert_eq!(span.to_vec(), [5; 64]);
    bench.end_one();
    assert_eq!(bench.out.released.get(&word), Some(&1));
    let nothing = Shape { width: 0, height: 1, depth: 1 };
    let (dst, src) = (device_side(1), device_side(2));
    let caller = bench.call(&Command::CopySync { stream: LEGACY, dst, src, shape: nothing });
    assert_eq!(bench.status(caller), Some(Status::SUCCESS));
}

#[test]
fn what_reaches_beyond_shared_memory_is_a_violation() {
    let mut bench = Bench::new();
    let buffer = bench.buffer;
    let to_device = |src| Command::Copy {
        stream: LEGACY,
        dst: device_side(buffer),
        src: host_side(src),
        shape: linear(64),
    };
    let arena = ARENA_BYTES as u64;
    let blocks = [
        Block { offset: arena - 63, bytes: 64, release: 0 },
        Block { offset: u64::MAX, bytes: 64, release: 0 },
        Block { offset: 64, bytes: u64::MAX, release: 0 },
        Block { offset: 0, bytes: 64, release: ARENA_BLOCKS },
    ];
    for block in blocks {
        let outcome = bench.offer(&to_device(Payload::Arena(block)));
        assert!(matches!(outcome, Err(Violation::Block { .. })), "{outcome:?}");
    }
    let window = bench.shared.pinned_base;
    for address in [window - 1, window + PINNED_BYTES as u64 - 63, 0, u64::MAX] {
        let outcome = bench.offer(&to_device(Payload::Pinned { address, bytes: 64 }));
        assert!(matches!(outcome, Err(Violation::Pinned { .. })), "{outcome:?}");
    }
    let short = Block { offset: 0, bytes: 63, release: 0 };
    let outcome = bench.offer(&to_device(Payload::Arena(short)));
    assert_eq!(outcome, Err(Violation::Payload { extent: 64, bytes: 63 }));
    let dst = Endpoint { place: Place::Host(Payload::Inline(&[0; 64])), pitch: 0, slice: 0 };
    let copy = Command::Copy { stream: LEGACY, dst, src: device_side(buffer), shape: linear(64) };
    assert_eq!(bench.offer(&copy), Err(Violation::InlineTarget));
}

#[test]
fn handles_that_are_taken_and_callers_of_the_wrong_kind_are_violations() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    let context = CONTEXT;
    let create = Command::StreamCreate { context, stream: stream(1), blocking: true, priority: 0 };
    assert_eq!(bench.offer(&create), Err(Violation::Slot { what: "stream", index: 1 }));
    let create = Command::StreamCreate { context, stream: LEGACY, blocking: true, priority: 0 };
    assert_eq!(bench.offer(&create), Err(Violation::Slot { what: "stream", index: 0 }));
    let beyond = weft_wire::id::StreamId { index: u32::MAX, generation: 1 };
    let create = Command::StreamCreate { context, stream: beyond, blocking: true, priority: 0 };
    assert_eq!(bench.offer(&create), Err(Violation::Slot { what: "stream", index: u32::MAX }));
    bench.create_event(0);
    let create = Command::EventCreate { context, event: event(0) };
    assert_eq!(bench.offer(&create), Err(Violation::Slot { what: "event", index: 0 }));
    let create = Command::ContextCreate { context };
    assert_eq!(bench.offer(&create), Err(Violation::Slot { what: "context", index: 0 }));
    assert_eq!(bench.offer(&Command::Ping {}), Err(Violation::Caller { command: "Ping" }));
    let free = Command::MemFreeAsync { stream: LEGACY, address: 0 };
    let outcome = bench.session.accept(&free, Some(Caller(7)), &mut bench.out);
    assert_eq!(outcome, Err(Violation::Caller { command: "MemFreeAsync" }));
    assert!(bench.session.is_idle());
}

/// Queues, tables and graphs of all sessions have less than the sum of their bounds.
#[test]
fn what_the_host_has_no_room_for_is_out_of_memory_and_what_ends_makes_room() {
    const ROOM: u64 = 2 << 20;
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    bench.out.room_bytes = Some(ROOM);
    let launch = Command::Launch { stream: stream(1), launch: spec(0) };
    let mut queued = 0;
    while bench.offer(&launch) == Ok(Accepted::Taken) {
        queued += 1;
        assert!(queued < Limits::default().stream_depth, "the queue has room without an end");
    }
    assert!(queued > 1_000 && bench.session.kept_bytes() <= ROOM, "{queued} queued");
    bench.run();
    assert_eq!(bench.offer(&launch), Ok(Accepted::Taken), "what has ended makes no room");
    bench.run();
    // Handles stay: there is nothing to wait for.
    for index in 0..8_192 {
        bench.create_event(index);
    }
    assert!(bench.session.kept_bytes() <= ROOM);
    assert_eq!(bench.ask(&Command::ContextSynchronize { context: CONTEXT }), Status::OUT_OF_MEMORY);
    let graph = |bench: &mut Bench| instantiate(bench, vec![GraphWork::Empty; 100]);
    assert_eq!(graph(&mut bench), Status::OUT_OF_MEMORY);
    bench.out.room_bytes = None;
    // A refusal stands for a while.
    bench.fake.borrow_mut().now_ns += 10_000_000;
    assert_eq!(graph(&mut bench), Status::SUCCESS);
}
