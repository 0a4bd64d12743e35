//! In which order streams, events, waits and host functions let work happen.

mod common;

use common::{Bench, LEGACY, cut, event, stream};
use weft_device::Outcome;
use weft_exec::{Accepted, Limits, Session, Started};
use weft_wire::command::{Comparison, FillSpec};
use weft_wire::{Command, Status, reply};

#[test]
fn operations_of_one_stream_start_ahead_of_each_others_end() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, true)]);
    bench.launch(stream(1), 0);
    bench.launch(stream(1), 1);
    assert_eq!(bench.start_all(), [(1, 0), (1, 1)]);
    let sync = bench.call(&Command::StreamSynchronize { stream: stream(1) });
    bench.end_one();
    assert_eq!((bench.word(stream(1)), bench.status(sync)), (1, None));
    bench.end_one();
    assert_eq!((bench.word(stream(1)), bench.status(sync)), (2, Some(Status::SUCCESS)));
    assert!(bench.session.is_idle());
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, true), (2, false)]);
    bench.launch(stream(1), 0);
    bench.launch(LEGACY, 1);
    bench.launch(stream(1), 0);
    bench.launch(stream(2), 1);
    assert_eq!(bench.start_all(), [(1, 0), (2, 1)], "a non-blocking stream does not care");
    bench.end_one();
    assert_eq!(bench.start_all(), [(0, 1)]);
    let legacy = *bench.fake.borrow().in_flight.last().unwrap();
    bench.end_op(legacy, Outcome::Done);
    assert_eq!(bench.start_all(), [(1, 0)]);
}

#[test]
fn a_wait_for_an_event_means_its_last_record_before() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    bench.create_event(0);
    let wait = Command::StreamWaitEvent { stream: stream(2), event: event(0) };
    bench.send(&wait);
    assert_eq!(bench.word(stream(2)), 1, "nothing was recorded yet");
    bench.launch(stream(1), 0);
    bench.send(&Command::EventRecord { event: event(0), stream: stream(1), record: 1 });
    bench.send(&wait);
    bench.launch(stream(2), 1);
    bench.launch(stream(1), 0);
    bench.send(&Command::EventRecord { event: event(0), stream: stream(1), record: 2 });
    assert_eq!(bench.start_all(), [(1, 0), (1, 0)]);
    bench.end_one();
    assert_eq!(bench.event_word(event(0)), 1);
    assert_eq!(bench.start_all(), [(2, 1)], "the second record came after the wait");
}

#[test]
fn events_are_timed_by_what_precedes_them() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    bench.create_event(0);
    bench.create_event(1);
    bench.send(&Command::EventRecord { event: event(0), stream: stream(1), record: 1 });
    bench.launch(stream(1), 0);
    bench.send(&Command::EventRecord { event: event(1), stream: stream(1), record: 1 });
    let elapsed = Command::EventElapsed { start: event(0), end: event(1) };
    assert_eq!(bench.ask(&elapsed), Status::NOT_READY);
    assert_eq!(bench.ask(&Command::EventQuery { event: event(1), record: 1 }), Status::NOT_READY);
    let sync = bench.call(&Command::EventSynchronize { event: event(1), record: 1 });
    bench.run();
    assert_eq!(bench.status(sync), Some(Status::SUCCESS));
    let caller = bench.call(&elapsed);
    assert_eq!(bench.body::<reply::Elapsed>(caller).ns, 1000);
}

#[test]
fn a_stream_waits_for_a_value_that_another_writes() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    let address = bench.buffer;
    bench.send(&Command::StreamWaitValue {
        stream: stream(1),
        address,
        value: 5,
        wide: false,
        comparison: Comparison::GreaterOrEqual,
    });
    bench.launch(stream(1), 0);
    assert_eq!(bench.start_all(), []);
    assert!(bench.session.deadline_ns().is_some());
    let write =
        |value| Command::StreamWriteValue { stream: stream(2), address, value, wide: false };
    bench.send(&write(4));
    assert_eq!(bench.start_all(), []);
    bench.send(&write(5));
    assert_eq!(bench.start_all(), [(1, 0)]);
    assert_eq!(bench.session.deadline_ns(), None);
}

#[test]
fn a_value_in_pinned_memory_is_looked_at_again_when_due() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    bench.pin(0, 1);
    bench.send(&Command::StreamWaitValue {
        stream: stream(1),
        address: bench.shared.pinned_base + 64,
        value: 1,
        wide: true,
        comparison: Comparison::Equal,
    });
    bench.shared.pinned.write_at(64, &1_u64.to_le_bytes()).unwrap();
    bench.session.drive(1000, &mut bench.out);
    assert_eq!(bench.word(stream(1)), 0, "not due yet");
    let due_ns = bench.session.deadline_ns().unwrap();
    bench.fake.borrow_mut().now_ns = due_ns;
    bench.session.drive(1000, &mut bench.out);
    assert_eq!(bench.word(stream(1)), 1);
}

#[test]
fn a_shared_event_is_waited_for_across_sessions() {
    let (mut bench, mut other) = (Bench::new(), Bench::new());
    let shared = bench.fake.borrow().shared.clone();
    other.fake.borrow_mut().shared = shared;
    bench.create_streams(&[(1, false), (2, false)]);
    other.create_streams(&[(1, false)]);
    let (cell, same) = (bench.buffer + 32, other.buffer + 32);
    bench
        .fake
        .borrow()
        .shared
        .as_ref()
        .unwrap()
        .span(32, 16)
        .unwrap()
        .write_from(&[9; 16])
        .unwrap();
    assert_eq!(bench.ask(&Command::SharedEventCreate { cell }), Status::SUCCESS);
    assert_eq!(other.ask(&Command::SharedEventQuery { cell: same }), Status::SUCCESS);
    // Two records; the later one ends first, and the earlier one takes nothing back.
    for index in [1, 2] {
        bench.launch(stream(index), 0);
        let record = Command::SharedEventRecord { cell, stream: stream(index) };
        assert_eq!(bench.ask(&record), Status::SUCCESS);
    }
    let wait = Command::SharedEventWait { cell: same, stream: stream(1) };
    assert_eq!(other.ask(&wait), Status::SUCCESS);
    assert_eq!(other.word(stream(1)), 0);
    assert_eq!(other.ask(&Command::SharedEventQuery { cell: same }), Status::NOT_READY);
    assert_eq!(bench.start_all().len(), 2);
    let operations: Vec<_> = bench.fake.borrow().in_flight.iter().copied().collect();
    for op in operations.into_iter().rev() {
        bench.end_op(op, Outcome::Done);
        assert_eq!(other.ask(&Command::SharedEventQuery { cell: same }), Status::SUCCESS);
    }
    let due_ns = other.session.deadline_ns().expect("it looks again");
    other.fake.borrow_mut().now_ns = due_ns;
    other.session.drive(1000, &mut other.out);
    assert_eq!(other.word(stream(1)), 1);
    assert_eq!(bench.ask(&Command::SharedEventQuery { cell: 0x10 }), Status::INVALID_VALUE);
}

#[test]
fn a_shared_event_whose_memory_is_gone_keeps_nobody_waiting() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    let cell = bench.buffer;
    assert_eq!(bench.ask(&Command::SharedEventCreate { cell }), Status::SUCCESS);
    bench.launch(stream(1), 0);
    for command in [
        Command::SharedEventRecord { cell, stream: stream(1) },
        Command::SharedEventWait { cell, stream: stream(2) },
    ] {
        assert_eq!(bench.ask(&command), Status::SUCCESS);
    }
    assert_eq!(bench.word(stream(2)), 0);
    bench.fake.borrow_mut().shared = None;
    bench.fake.borrow_mut().now_ns = bench.session.deadline_ns().expect("it looks again");
    bench.session.drive(1000, &mut bench.out);
    assert_eq!(bench.word(stream(2)), 1);
}

#[test]
fn host_functions_run_between_what_surrounds_them() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    bench.launch(stream(1), 0);
    bench.send(&Command::HostFunction { stream: stream(1), call: 42 });
    bench.launch(stream(1), 1);
    let next = bench.call(&Command::HostFunctionNext {});
    assert_eq!(bench.start_all(), [(1, 0)]);
    assert_eq!(bench.status(next), None);
    bench.end_one();
    assert_eq!(bench.body::<reply::HostCall>(next).call, 42);
    assert_eq!(bench.start_all(), [], "it has not returned");
    bench.send(&Command::HostFunctionDone { call: 41 });
    assert_eq!(bench.start_all(), [], "that is another one");
    bench.send(&Command::HostFunctionDone { call: 42 });
    assert_eq!(bench.start_all(), [(1, 1)]);
    assert_eq!(bench.word(stream(1)), 2);
}

#[test]
fn memory_is_freed_after_the_work_before() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    let (first, second) = (bench.alloc(4096), bench.alloc(4096));
    bench.launch(stream(1), 0);
    bench.start_all();
    let free = bench.call(&Command::MemFree { address: first });
    assert_eq!(bench.ask(&Command::MemFree { address: first }), Status::INVALID_VALUE);
    bench.send(&Command::MemFreeAsync { stream: stream(2), address: second });
    assert_eq!(bench.status(free), None);
    let live = |bench: &Bench, at| bench.fake.borrow().allocations.contains_key(&at);
    assert!(live(&bench, first) && live(&bench, second), "an operation in flight may name them");
    bench.end_one();
    assert_eq!(bench.status(free), Some(Status::SUCCESS));
    assert!(!live(&bench, first) && !live(&bench, second));
    assert_eq!(bench.word(stream(2)), 1);
}

/// A loop that allocates and frees in stream order needs the memory of one round.
#[test]
fn memory_that_a_stream_is_to_free_is_what_it_gets_next() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    bench.launch(stream(1), 0);
    let ask = |bench: &mut Bench, on: u32, bytes: u64| {
        let context = common::CONTEXT;
        let call = bench.call(&Command::MemAllocAsync { context, stream: stream(on), bytes });
        bench.body::<reply::Address>(call).address
    };
    let first = ask(&mut bench, 1, 8192);
    for _ in 0..3 {
        bench.send(&Command::MemFreeAsync { stream: stream(1), address: first });
        assert_ne!(ask(&mut bench, 2, 8192), first, "another stream may be ahead of the free");
        assert_ne!(ask(&mut bench, 1, 8193), first);
        assert_ne!(ask(&mut bench, 1, 4096), first, "a page of it would be lost");
        assert_eq!(ask(&mut bench, 1, 4097), first);
    }
    let live = |bench: &Bench| bench.fake.borrow().allocations.contains_key(&first);
    bench.start_all();
    bench.run();
    assert!(live(&bench) && bench.word(stream(1)) == 4);
    // What another session of the vGPU has is not this stream's alone.
    bench.call(&Command::MemExport { address: first });
    bench.launch(stream(1), 0);
    bench.send(&Command::MemFreeAsync { stream: stream(1), address: first });
    assert_ne!(ask(&mut bench, 1, 8192), first);
    bench.start_all();
    bench.run();
    assert!(!live(&bench));
}

/// Who asks for memory that others are to free gets it then, and is told if that is not enough.
#[test]
fn allocations_wait_for_what_is_yet_to_be_freed() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    let context = common::CONTEXT;
    let all = common::MEMORY_BYTES / 2 + 1;
    let call = bench.call(&Command::MemAlloc { context, bytes: all });
    let address = bench.body::<reply::Address>(call).address;
    assert_eq!(bench.ask(&Command::MemAlloc { context, bytes: all }), Status::OUT_OF_MEMORY);
    bench.launch(stream(1), 0);
    bench.send(&Command::MemFreeAsync { stream: stream(1), address });
    let next = Command::MemAllocAsync { context, stream: stream(2), bytes: all };
    let (enough, too_late) = (bench.call(&next), bench.call(&next));
    assert_eq!((bench.status(enough), bench.status(too_late)), (None, None));
    bench.start_all();
    bench.run();
    assert_eq!(bench.status(enough), Some(Status::SUCCESS));
    assert_eq!(bench.status(too_late), Some(Status::OUT_OF_MEMORY));
    assert_eq!(bench.ask(&next), Status::OUT_OF_MEMORY, "nothing is to be freed any more");
}

/// Much memory goes back to the system when the session's owner says so, and who asked for it, and
/// what comes after it in its stream, wait until then; little goes at once.
#[test]
fn long_releases_wait_until_they_may_take_their_time() {
    let mut bench = Bench::with(Limits { long_release_bytes: Some(8192), ..Limits::default() });
    bench.create_streams(&[(1, false)]);
    let alloc = |bench: &mut Bench, bytes| {
        let call = bench.call(&Command::MemAlloc { context: common::CONTEXT, bytes });
        bench.body::<reply::Address>(call).address
    };
    let live = |bench: &Bench, at: u64| bench.fake.borrow().allocations.contains_key(&at);
    let (small, large) = (alloc(&mut bench, 4096), alloc(&mut bench, 8192));
    let queued = alloc(&mut bench, 8192);
    assert_eq!(bench.ask(&Command::MemFree { address: small }), Status::SUCCESS);
    let freed = bench.call(&Command::MemFree { address: large });
    bench.send(&Command::MemFreeAsync { stream: stream(1), address: queued });
    bench.launch(stream(1), 0);
    assert!(bench.session.has_long_release() && !bench.session.is_idle());
    assert_eq!(bench.status(freed), None);
    assert!(!live(&bench, small) && live(&bench, large) && live(&bench, queued));
    assert_eq!(bench.start_all(), [], "the launch comes after the free");
    bench.session.release_memory(&mut bench.out);
    assert!(!bench.session.has_long_release());
    assert_eq!(bench.status(freed), Some(Status::SUCCESS));
    assert!(!live(&bench, large) && !live(&bench, queued));
    assert_eq!(bench.start_all(), [(1, 0)]);
    bench.run();
    assert_eq!(bench.word(stream(1)), 2);
    // A context's memory is not counted, so it is much.
    let call = bench.call(&Command::ContextDestroy { context: common::CONTEXT });
    assert_eq!(bench.status(call), None);
    bench.session.release_memory(&mut bench.out);
    assert_eq!(bench.status(call), Some(Status::SUCCESS));
}

#[test]
fn the_rest_of_a_piece_comes_first() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    bench.launch(stream(1), 0);
    bench.launch(stream(1), 1);
    let ready = bench.session.next_op().unwrap();
    assert!(ready.sliceable && ready.units == 4 && ready.estimate_ns == Some(5000));
    assert_eq!(bench.session.start_next(Some(cut(1000)), false, &mut bench.out), Started::Flying);
    assert_eq!(bench.session.next_op(), None, "the stream holds until the piece has ended");
    bench.end_as(Outcome::Partial { reached: 3 });
    assert_eq!(bench.word(stream(1)), 0);
    assert_eq!(bench.session.next_op().unwrap().units, 1);
    assert_eq!(bench.start_all(), [(1, 0), (1, 1)]);
    bench.run();
    assert_eq!(bench.word(stream(1)), 2);
    let units: Vec<_> = bench.out.finished.iter().map(|end| (end.units, end.partial)).collect();
    assert_eq!(units, [(3, true), (1, false), (4, false)]);
}

/// Few bytes, but each on a page of its own: as much work as megabytes.
#[test]
fn many_narrow_rows_get_a_limit() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    let memory = bench.alloc(1000 * 4096);
    for (rows, sliceable) in [(1, false), (1000, true)] {
        let fill = FillSpec { pitch: 4096, width: 1, height: rows, ..common::fill(memory, 1) };
        bench.send(&Command::Fill { stream: stream(1), fill });
        assert_eq!(bench.session.next_op().unwrap().sliceable, sliceable, "{rows} rows");
        assert_eq!(
            bench.session.start_next(Some(cut(1000)), false, &mut bench.out),
            Started::Flying
        );
        assert_eq!(bench.fake.borrow().limits.last(), Some(&Some(1000)));
        bench.end_as(Outcome::Partial { reached: rows / 2 });
        assert_eq!(bench.session.next_op().unwrap().units, rows - rows / 2);
        bench.run();
    }
    assert_eq!(bench.word(stream(1)), 2);
}

#[test]
fn a_higher_priority_goes_first() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    let context = common::CONTEXT;
    let urgent = stream(2);
    let create = Command::StreamCreate { context, stream: urgent, blocking: false, priority: -1 };
    bench.send(&create);
    bench.launch(stream(1), 0);
    bench.launch(urgent, 1);
    assert_eq!(bench.start_all(), [(2, 1), (1, 0)]);
}

#[test]
fn a_new_owner_of_a_slot_counts_on() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    bench.launch(stream(1), 0);
    bench.start_all();
    bench.send(&Command::StreamDestroy { stream: stream(1) });
    // Sent by a thread that had not heard of it.
    bench.launch(stream(1), 0);
    assert_eq!(bench.ask(&Command::Ping {}), Status::INVALID_HANDLE);
    assert_eq!(bench.ask(&Command::Ping {}), Status::SUCCESS, "told once");
    let second = weft_wire::id::StreamId { index: 1, generation: 2 };
    let context = common::CONTEXT;
    bench.send(&Command::StreamCreate { context, stream: second, blocking: true, priority: 0 });
    assert_eq!(bench.word(second), 2);
    bench.launch(second, 1);
    bench.run();
    assert_eq!(bench.word(second), 3);
    assert!(bench.session.is_idle());
}

#[test]
fn a_full_stream_takes_only_what_drains_it() {
    let mut bench = Bench::with(Limits { stream_depth: 2, ..Limits::default() });
    bench.create_streams(&[(1, false)]);
    bench.send(&Command::HostFunction { stream: stream(1), call: 1 });
    bench.launch(stream(1), 0);
    let launch = Command::Launch { stream: stream(1), launch: common::spec(0) };
    assert_eq!(bench.offer(&launch), Ok(Accepted::Full));
    let done = Command::HostFunctionDone { call: 1 };
    assert!(Session::<common::FakeDevice>::is_urgent(&done));
    assert!(!Session::<common::FakeDevice>::is_urgent(&launch));
    bench.call(&Command::HostFunctionNext {});
    bench.send(&done);
    assert_eq!(bench.offer(&launch), Ok(Accepted::Taken));
    bench.run();
    assert_eq!(bench.word(stream(1)), 3);
}

#[test]
fn a_full_device_keeps_the_operation_ready() {
    let mut bench = Bench::new();
    bench.fake.borrow_mut().room = 1;
    bench.create_streams(&[(1, false)]);
    bench.launch(stream(1), 0);
    bench.launch(stream(1), 1);
    assert_eq!(bench.start_all(), [(1, 0)]);
    assert!(bench.session.has_ready_work());
    bench.end_one();
    assert_eq!(bench.start_all(), [(1, 1)]);
}

/// A device may tell the end of an operation with that of the next one where nobody asks for it.
#[test]
fn an_operation_ends_unnoticed_if_another_follows_and_nobody_waits() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    bench.create_event(0);
    let open = |bench: &mut Bench| {
        let before = bench.fake.borrow().open.len();
        bench.start_all();
        bench.fake.borrow().open[before..].to_vec()
    };
    (0..3).for_each(|_| bench.launch(stream(1), 0));
    assert_eq!(open(&mut bench), [true, true, false], "the last may be waited for");
    bench.launch(stream(1), 0);
    bench.send(&Command::EventRecord { event: event(0), stream: stream(1), record: 1 });
    bench.launch(stream(1), 0);
    assert_eq!(open(&mut bench), [false, false], "an event has a time");
    bench.run();
    // Somebody waits for the second of three.
    (0..2).for_each(|_| bench.launch(stream(1), 0));
    let waits = bench.call(&Command::StreamSynchronize { stream: stream(1) });
    bench.launch(stream(1), 0);
    assert_eq!(open(&mut bench), [true, false, false]);
    bench.run();
    assert_eq!(bench.status(waits), Some(Status::SUCCESS));
}
