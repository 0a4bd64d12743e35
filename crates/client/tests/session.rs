//! Sessions over a fake worker: order, threads, faults, the worker's death, host functions, graphs.
#![expect(clippy::unwrap_used, reason = "a panic is the test's report")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Fixture, PINNED_BYTES};
use weft_client::{
    Client, Config, Context, Function, HostWork, KernelWork, Launch, LinkInput, Stream, Work,
};
use weft_wire::Status;
use weft_wire::handshake::{Attribute, Placement};

const ARENA: usize = 4 << 20;
const SHAPE: Launch =
    Launch { grid: [2, 1, 1], block: [64, 1, 1], shared_bytes: 0, cooperative: false };

fn kernel(client: &Client) -> Function {
    let module = client.module_load(b".version 7.5").unwrap();
    client.module_function(module, "kernel").unwrap()
}

fn launch(client: &Client, function: Function, stream: Stream, tag: u8) -> Result<(), Status> {
    let target = client.function(function).unwrap();
    client.launch(function, &target, &SHAPE, stream, &[tag; 12])
}

#[test]
fn launches_arrive_in_order_with_their_parameters() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let stream = client.stream_create(1, 0).unwrap();
    for tag in 0..100 {
        launch(client, function, stream, tag).unwrap();
    }
    client.stream_synchronize(stream).unwrap();
    let launches = fixture.controls.launches.lock().unwrap();
    assert_eq!(launches.len(), 100);
    assert!(launches.iter().zip(0..).all(|(params, tag)| *params == [tag; 12]));
}

/// In a virtual machine the window is a device's memory. Whatever the node says, none of the
/// program's own is registered then, nor asked for.
#[test]
fn memory_is_not_registered_where_the_window_is_a_devices() {
    let placement = Placement { segment_at: 0, segment_bytes: 0, pinned_at: 0, mark: 0 };
    for placement in [None, Some(placement)] {
        let mut welcome = common::welcome(PINNED_BYTES as u64);
        welcome.attributes.extend([91, 99].map(|number| Attribute { number, value: 1 }));
        let expected = Ok(i32::from(placement.is_none()));
        welcome.placement = placement;
        let is_machine = welcome.placement.is_some();
        let fixture = Fixture::welcomed(ARENA, &Config::default(), welcome);
        let client = &fixture.client;
        client.context_create(0, 0).unwrap();
        for number in [91, 99] {
            assert_eq!(client.device_attribute(number, 0), expected);
        }
        if is_machine {
            fixture.settle();
            let memory = [0_u8; 64];
            let refused = client.host_register(memory.as_ptr().addr() as u64, 64, 0).unwrap_err();
            assert_eq!(refused.status(), Status::NOT_SUPPORTED);
            assert!(fixture.log().is_empty(), "the worker was asked");
        }
    }
}

#[test]
fn a_launch_is_checked_before_it_is_sent() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let target = client.function(function).unwrap();
    fixture.settle();
    let attempt = |shape: Launch, params: &[u8]| {
        client.launch(function, &target, &shape, Stream::NULL, params)
    };
    let too_large = Launch { block: [2048, 1, 1], ..SHAPE };
    assert_eq!(attempt(too_large, &[0; 12]), Err(Status::INVALID_VALUE));
    let beyond_kernel = Launch { block: [1024, 1, 1], ..SHAPE };
    let of_registers = Err(Status::LAUNCH_OUT_OF_RESOURCES);
    assert_eq!(attempt(beyond_kernel, &[0; 12]), of_registers, "1024 times 32");
    let beyond_bound = Launch { block: [600, 1, 1], ..SHAPE };
    assert_eq!(attempt(beyond_bound, &[0; 12]), Err(Status::INVALID_VALUE));
    assert_eq!(attempt(Launch { grid: [0, 1, 1], ..SHAPE }, &[0; 12]), Err(Status::INVALID_VALUE));
    assert_eq!(attempt(SHAPE, &[0; 11]), Err(Status::INVALID_VALUE));
    let too_shared = Launch { shared_bytes: 48 << 10, ..SHAPE };
    assert_eq!(attempt(too_shared, &[0; 12]), Err(Status::INVALID_VALUE));
    assert!(fixture.log().is_empty());
}

/// As the native driver: at the call, also where as many threads are arranged otherwise.
#[test]
fn a_kernel_that_requires_its_block_is_launched_with_no_other() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let module = client.module_load(b"image").unwrap();
    let function = client.module_function(module, "exact").unwrap();
    let target = client.function(function).unwrap();
    fixture.settle();
    let attempt = |block: [u32; 3]| {
        let shape = Launch { block, ..SHAPE };
        client.launch(function, &target, &shape, Stream::NULL, &[0; 12])
    };
    for other in [[64, 1, 1], [16, 2, 1], [2, 32, 1], [1, 1, 1]] {
        assert_eq!(attempt(other), Err(Status::INVALID_VALUE), "{other:?}");
    }
    assert!(fixture.log().is_empty());
    assert_eq!(attempt([32, 2, 1]), Ok(()));
}

#[test]
fn what_is_known_here_does_not_cross() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let stream = client.stream_create(0, -1).unwrap();
    let event = client.event_create(0).unwrap();
    client.event_record(event, stream).unwrap();
    client.event_synchronize(event).unwrap();
    fixture.settle();
    assert_eq!(client.event_query(event), Ok(()));
    assert_eq!(client.stream_query(stream), Ok(()));
    assert_eq!(client.stream_synchronize(stream), Ok(()));
    assert_eq!(client.device_attribute(16, 0), Ok(4));
    assert_eq!(client.device_attribute(75, 0), Ok(7));
    assert_eq!(client.stream_priority(stream), Ok(-1));
    assert_eq!(client.function_attribute(function, 4), Ok(32));
    assert_eq!(client.occupancy_blocks(function, 128, 0), Ok(8));
    assert_eq!(client.context_device(Context::NULL), Ok(0));
    assert!(fixture.log().is_empty());
}

#[test]
fn an_event_is_ready_when_its_last_record_is() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let event = client.event_create(0).unwrap();
    assert_eq!(client.event_query(event), Ok(()), "never recorded");
    client.context_synchronize(Context::NULL).unwrap();
    fixture.controls.paused.store(true, Ordering::SeqCst);
    client.event_record(event, Stream::NULL).unwrap();
    assert_eq!(client.event_query(event), Err(Status::NOT_READY));
    fixture.controls.paused.store(false, Ordering::SeqCst);
    client.event_synchronize(event).unwrap();
    assert_eq!(client.event_query(event), Ok(()));
    let end = client.event_create(0).unwrap();
    assert_eq!(client.event_elapsed(event, end), Err(Status::INVALID_HANDLE));
    client.event_record(end, Stream::NULL).unwrap();
    client.event_synchronize(end).unwrap();
    assert_eq!(client.event_elapsed(event, end), Ok(1.5));
    client.event_destroy(event).unwrap();
    assert_eq!(client.event_query(event), Err(Status::INVALID_HANDLE));
}

#[test]
fn a_new_event_in_an_old_slot_starts_afresh() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    for _ in 0..200 {
        let event = client.event_create(2).unwrap();
        client.event_record(event, Stream::NULL).unwrap();
        client.event_synchronize(event).unwrap();
        let stream = client.stream_create(1, 0).unwrap();
        client.stream_wait_event(stream, event).unwrap();
        client.stream_synchronize(stream).unwrap();
        client.stream_destroy(stream).unwrap();
        client.event_destroy(event).unwrap();
    }
}

#[test]
fn many_short_lived_threads_submit() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let context = client.context_get_current();
    for _ in 0..50 {
        std::thread::scope(|scope| {
            for tag in 0..20 {
                scope.spawn(move || {
                    client.context_set_current(context).unwrap();
                    launch(client, function, Stream::NULL, tag).unwrap();
                    launch(client, function, Stream::PER_THREAD, tag).unwrap();
                    client.stream_synchronize(Stream::PER_THREAD).unwrap();
                });
            }
        });
    }
    client.context_synchronize(Context::NULL).unwrap();
    assert_eq!(fixture.controls.launches.lock().unwrap().len(), 2000);
}

#[test]
fn a_fault_sticks_until_its_context_is_gone() {
    let fixture = Fixture::without_context(ARENA);
    let client = &fixture.client;
    let context = client.primary_retain(0).unwrap();
    client.context_set_current(context).unwrap();
    let function = kernel(client);
    *fixture.controls.fault.lock().unwrap() = Some(Status::ILLEGAL_ADDRESS);
    launch(client, function, Stream::NULL, 0).unwrap();
    let fault = Err(Status::ILLEGAL_ADDRESS);
    assert_eq!(client.context_synchronize(Context::NULL), fault);
    assert_eq!(launch(client, function, Stream::NULL, 1), fault);
    assert_eq!(client.mem_alloc(10).map(|_| ()), fault);
    client.primary_reset(0).unwrap();
    assert_eq!(client.mem_alloc(10).map(|_| ()), Err(Status::CONTEXT_IS_DESTROYED));
    let context = client.primary_retain(0).unwrap();
    client.context_set_current(context).unwrap();
    client.mem_alloc(10).unwrap();
    assert_eq!(client.function(function).err(), Some(Status::INVALID_HANDLE));
}

#[test]
fn a_dead_worker_is_an_error_and_never_a_hang() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    fixture.controls.paused.store(true, Ordering::SeqCst);
    let context = client.context_get_current();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            client.context_set_current(context).unwrap();
            client.context_synchronize(Context::NULL)
        });
        fixture.controls.die.store(true, Ordering::SeqCst);
        fixture.controls.paused.store(false, Ordering::SeqCst);
        let outcome = waiting.join().unwrap();
        assert!(matches!(outcome, Ok(()) | Err(Status::DEVICE_UNAVAILABLE)), "{outcome:?}");
    });
    // Whoever waits learns it; from then on everybody does.
    let lost = Err(Status::DEVICE_UNAVAILABLE);
    assert_eq!(client.mem_alloc(10).map(|_| ()), lost);
    assert_eq!(launch(client, function, Stream::NULL, 0), lost);
    assert_eq!(client.copy_dtoh(&mut [0; 4], 0), lost);
}

/// A kernel that cannot be stopped ends its worker, and its program is told of the kernel.
#[test]
fn a_fault_sticks_also_when_its_worker_has_ended() {
    let mut fixture = Fixture::new(ARENA);
    let client = Arc::clone(&fixture.client);
    let function = kernel(&client);
    *fixture.controls.fault.lock().unwrap() = Some(Status::LAUNCH_TIMEOUT);
    launch(&client, function, Stream::NULL, 0).unwrap();
    let fault = Err(Status::LAUNCH_TIMEOUT);
    assert_eq!(client.context_synchronize(Context::NULL), fault);
    fixture.end();
    for _ in 0..2 {
        assert_eq!(client.context_synchronize(Context::NULL), fault);
        assert_eq!(client.mem_alloc(10).map(|_| ()), fault);
        assert_eq!(launch(&client, function, Stream::NULL, 1), fault);
    }
}

#[test]
fn host_functions_run_in_order_and_are_waited_for() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let count = Arc::new(AtomicUsize::new(0));
    for expected in 0..50 {
        let count = Arc::clone(&count);
        let work = HostWork(Arc::new(move || {
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), expected);
        }));
        client.launch_host_function(Stream::NULL, work).unwrap();
    }
    let told = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&told);
    let callback = move |outcome: Result<(), Status>| {
        assert_eq!(outcome, Ok(()));
        seen.store(1, Ordering::SeqCst);
    };
    client.stream_add_callback(Stream::NULL, Box::new(callback)).unwrap();
    client.context_synchronize(Context::NULL).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 50);
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// A host function that counts its calls, and the count.
fn counted() -> (Arc<AtomicUsize>, HostWork) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let work = HostWork(Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    (count, work)
}

#[test]
fn a_destroyed_graphs_launches_still_call_its_host_functions() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let (count, work) = counted();
    let graph = client.graph_create().unwrap();
    client.graph_add(graph, &[], Work::Host(work)).unwrap();
    let exec = client.graph_instantiate(graph, 0).unwrap();
    fixture.controls.paused.store(true, Ordering::SeqCst);
    client.graph_launch(exec, Stream::NULL).unwrap();
    client.graph_launch(exec, Stream::NULL).unwrap();
    client.graph_exec_destroy(exec).unwrap();
    fixture.controls.paused.store(false, Ordering::SeqCst);
    client.context_synchronize(Context::NULL).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 2);
    // Nobody else keeps what the function holds.
    assert_eq!(Arc::strong_count(&count), 2, "the graph's own and this one");
}

#[test]
fn a_graph_that_is_refused_keeps_nothing_of_its_host_functions() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let (count, work) = counted();
    let graph = client.graph_create().unwrap();
    client.graph_add(graph, &[], Work::Host(work)).unwrap();
    let event = client.event_create(0).unwrap();
    client.graph_add(graph, &[], Work::EventRecord(event)).unwrap();
    client.event_destroy(event).unwrap();
    assert_eq!(client.graph_instantiate(graph, 0), Err(Status::INVALID_HANDLE));
    assert_eq!(Arc::strong_count(&count), 2, "the graph's own and this one");
}

#[test]
fn a_library_retains_the_primary_context_until_it_is_unloaded() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    client.context_set_current(Context::NULL).unwrap();
    let is_active = || client.primary_state(0).unwrap().1;
    while client.primary_release(0).is_ok() {}
    assert!(!is_active());
    let image = b".version 7.5\0";
    client.library_load(b"bad\0").unwrap_err();
    assert!(!is_active(), "a bad library keeps nothing");
    let library = client.library_load(image).unwrap();
    client.library_kernel_count(library).unwrap();
    client.library_module(library).unwrap();
    assert!(is_active());
    client.library_unload(library).unwrap();
    assert!(!is_active(), "the library was the only one to retain it");
    // What was retained before a reset is nobody's afterwards.
    let library = client.library_load(image).unwrap();
    client.primary_reset(0).unwrap();
    client.primary_retain(0).unwrap();
    client.library_unload(library).unwrap();
    assert!(is_active());
}

#[test]
fn a_callback_hears_of_the_workers_death() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    fixture.controls.paused.store(true, Ordering::SeqCst);
    let (send, heard) = std::sync::mpsc::channel();
    let callback = move |outcome: Result<(), Status>| send.send(outcome).unwrap();
    client.stream_add_callback(Stream::NULL, Box::new(callback)).unwrap();
    fixture.controls.die.store(true, Ordering::SeqCst);
    fixture.controls.paused.store(false, Ordering::SeqCst);
    heard.recv().unwrap().unwrap_err();
}

#[test]
fn a_bad_image_brings_its_log_and_a_good_one_its_symbols() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let failure = client.module_load(b"a bad image").unwrap_err();
    assert_eq!(failure.status, Status::INVALID_PTX);
    assert_eq!(failure.log, "line 1: bad instruction");
    let module = client.module_load(b"good").unwrap();
    assert_eq!(client.module_function(module, "nothing"), Err(Status::NOT_FOUND));
    let (address, bytes) = client.module_global(module, "variable").unwrap();
    assert_eq!(bytes, 64);
    client.copy_htod(address, &[1; 64]).unwrap();
    let function = client.module_function(module, "kernel").unwrap();
    assert_eq!(client.module_function(module, "kernel"), Ok(function));
    client.module_unload(module).unwrap();
    assert_eq!(client.copy_htod(address, &[1; 64]), Err(Status::INVALID_VALUE));
    assert_eq!(client.function(function).err(), Some(Status::INVALID_HANDLE));
}

#[test]
fn links_and_libraries_lead_to_kernels() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let link = client.link_create().unwrap();
    for part in 0..40 {
        let text = format!(".version 7.5 // part {part}\0");
        client.link_add(link, LinkInput::Ptx, text.as_bytes()).unwrap();
    }
    assert_eq!(
        client.link_add(link, LinkInput::MachineCode, b"\x7fELF"),
        Err(Status::NO_BINARY_FOR_GPU)
    );
    // A library of machine code gives nothing, and is asked for nothing yet.
    client.link_add(link, LinkInput::from_code(4).unwrap(), b"!<arch>\nrest").unwrap();
    let image = client.link_complete(link).unwrap();
    let library = client.library_load(&image).unwrap();
    client.link_destroy(link).unwrap();
    assert_eq!(client.library_kernel_count(library), Ok(2));
    let kernel = client.library_kernel(library, "kernel").unwrap();
    // A kernel is accepted in a function's place.
    launch(client, Function::from_raw(kernel.raw()), Stream::NULL, 9).unwrap();
    client.library_unload(library).unwrap();
    assert_eq!(client.kernel_name(kernel), Err(Status::INVALID_HANDLE));

    let bad = client.link_create().unwrap();
    client.link_add(bad, LinkInput::Ptx, b"bad").unwrap();
    assert_eq!(client.link_complete(bad).unwrap_err().status, Status::INVALID_PTX);
}

#[test]
fn a_captured_graph_replays_what_two_streams_did() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let device = client.mem_alloc(64).unwrap();
    let [one, two] = [1, 1].map(|flags| client.stream_create(flags, 0).unwrap());
    let fork = client.event_create(2).unwrap();
    let join = client.event_create(2).unwrap();
    fixture.settle();
    client.capture_begin(one, None, 0).unwrap();
    launch(client, function, one, 1).unwrap();
    client.event_record(fork, one).unwrap();
    client.stream_wait_event(two, fork).unwrap();
    launch(client, function, two, 2).unwrap();
    client.fill_linear(device, 1, 5, 64, one).unwrap();
    client.event_record(join, two).unwrap();
    client.stream_wait_event(one, join).unwrap();
    launch(client, function, one, 3).unwrap();
    assert_eq!(client.capture_info(two).unwrap().unwrap().dependencies.len(), 1);
    let graph = client.capture_end(one).unwrap();
    assert!(fixture.log().is_empty(), "a capture stays here");
    assert!(client.capture_info(one).unwrap().is_none());
    let nodes = client.graph_nodes(graph).unwrap();
    assert_eq!(nodes.len(), 4);
    assert_eq!(client.graph_edges(graph).unwrap().len(), 4);
    assert_eq!(client.graph_root_nodes(graph).unwrap(), nodes[..1]);
    let exec = client.graph_instantiate(graph, 0).unwrap();
    client.graph_launch(exec, one).unwrap();
    client.graph_launch(exec, one).unwrap();
    client.stream_synchronize(one).unwrap();
    let tags: Vec<u8> =
        fixture.controls.launches.lock().unwrap().iter().map(|params| params[0]).collect();
    assert_eq!(tags, [1, 2, 3, 1, 2, 3]);
    let mut back = [0; 64];
    client.copy_dtoh(&mut back, device).unwrap();
    assert_eq!(back, [5; 64]);
    client.graph_exec_destroy(exec).unwrap();
    client.graph_destroy(graph).unwrap();
    assert_eq!(client.graph_launch(exec, one), Err(Status::INVALID_VALUE));
}

#[test]
fn captures_refuse_what_they_cannot_hold() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let stream = client.stream_create(0, 0).unwrap();
    let other = client.stream_create(1, 0).unwrap();
    let event = client.event_create(0).unwrap();
    assert_eq!(
        client.capture_begin(Stream::NULL, None, 0),
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    );
    client.capture_begin(stream, None, 0).unwrap();
    assert_eq!(client.capture_begin(stream, None, 0), Err(Status::ILLEGAL_STATE));
    assert_eq!(client.stream_synchronize(stream), Err(Status::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(client.capture_end(stream), Err(Status::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(client.capture_end(stream), Err(Status::ILLEGAL_STATE));

    client.capture_begin(stream, None, 0).unwrap();
    assert_eq!(client.stream_query(Stream::NULL), Err(Status::STREAM_CAPTURE_IMPLICIT));
    assert_eq!(client.capture_end(stream), Err(Status::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(client.stream_query(Stream::NULL), Ok(()));

    client.capture_begin(stream, None, 0).unwrap();
    client.event_record(event, stream).unwrap();
    assert_eq!(client.event_query(event), Err(Status::CAPTURED_EVENT));
    client.capture_end(stream).unwrap_err();

    client.capture_begin(stream, None, 0).unwrap();
    client.event_record(event, stream).unwrap();
    client.stream_wait_event(other, event).unwrap();
    let empty = HostWork(Arc::new(|| {}));
    client.launch_host_function(other, empty).unwrap();
    assert_eq!(client.capture_end(other), Err(Status::STREAM_CAPTURE_UNMATCHED));
    client.capture_end(stream).unwrap_err();
    assert_eq!(client.stream_query(other), Ok(()));
}

#[test]
fn unjoined_work_ends_a_capture() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let [one, two] = [1, 1].map(|flags| client.stream_create(flags, 0).unwrap());
    let event = client.event_create(0).unwrap();
    client.capture_begin(one, None, 0).unwrap();
    launch(client, function, one, 1).unwrap();
    client.event_record(event, one).unwrap();
    client.stream_wait_event(two, event).unwrap();
    launch(client, function, two, 2).unwrap();
    assert_eq!(client.capture_end(one), Err(Status::STREAM_CAPTURE_UNJOINED));
    launch(client, function, two, 3).unwrap();
    client.stream_synchronize(two).unwrap();
    assert_eq!(fixture.controls.launches.lock().unwrap().len(), 1);
}

#[test]
fn an_instantiated_kernel_takes_new_parameters() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let target = client.function(function).unwrap();
    let work = |tag: u8| {
        Work::Kernel(KernelWork {
            function,
            target: Arc::clone(&target),
            launch: SHAPE,
            params: vec![tag; 12].into(),
        })
    };
    let graph = client.graph_create().unwrap();
    let first = client.graph_add(graph, &[], work(1)).unwrap();
    let second = client.graph_add(graph, &[first], work(2)).unwrap();
    assert_eq!(
        client.graph_add_dependencies(graph, &[(second, first)]),
        Err(Status::INVALID_VALUE),
        "a circle"
    );
    let outer = client.graph_create().unwrap();
    client.graph_add(outer, &[], Work::Child(graph)).unwrap();
    let exec = client.graph_instantiate(graph, 0).unwrap();
    let nested = client.graph_instantiate(outer, 0).unwrap();
    client.graph_destroy(graph).unwrap();
    client.graph_exec_set(exec, second, work(7)).unwrap();
    assert_eq!(client.graph_exec_set(exec, first, Work::Empty), Err(Status::INVALID_VALUE));
    client.graph_launch(exec, Stream::NULL).unwrap();
    client.graph_launch(nested, Stream::NULL).unwrap();
    client.context_synchronize(Context::NULL).unwrap();
    let tags: Vec<u8> =
        fixture.controls.launches.lock().unwrap().iter().map(|params| params[0]).collect();
    assert_eq!(tags, [1, 7, 1, 2]);
}

#[test]
fn a_grid_may_be_empty_until_its_graph_is_launched() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let function = kernel(client);
    let target = client.function(function).unwrap();
    let work = |blocks: u32| {
        let launch = Launch { grid: [blocks, 1, 1], ..SHAPE };
        let params = vec![u8::try_from(blocks).unwrap(); 12].into();
        Work::Kernel(KernelWork { function, target: Arc::clone(&target), launch, params })
    };
    let graph = client.graph_create().unwrap();
    let node = client.graph_add(graph, &[], work(0)).unwrap();
    let exec = client.graph_instantiate(graph, 0).unwrap();
    assert_eq!(client.graph_launch(exec, Stream::NULL), Err(Status::INVALID_VALUE));
    client.graph_exec_set(exec, node, work(3)).unwrap();
    client.graph_launch(exec, Stream::NULL).unwrap();
    client.graph_exec_set(exec, node, work(0)).unwrap();
    assert_eq!(client.graph_launch(exec, Stream::NULL), Err(Status::INVALID_VALUE));
    client.graph_exec_enable(exec, node, false).unwrap();
    client.graph_launch(exec, Stream::NULL).unwrap();
    client.context_synchronize(Context::NULL).unwrap();
    let launches = fixture.controls.launches.lock().unwrap();
    assert_eq!(launches.len(), 1);
    assert_eq!(launches[0][0], 3);
}

#[test]
fn contexts_nest_and_take_their_contents_along() {
    let fixture = Fixture::without_context(ARENA);
    let client = &fixture.client;
    assert_eq!(client.mem_alloc(1), Err(Status::INVALID_CONTEXT));
    let outer = client.context_create(0, 0).unwrap();
    let inner = client.context_create(0, 0).unwrap();
    let stream = client.stream_create(0, 0).unwrap();
    let device = client.mem_alloc(100).unwrap();
    assert_eq!(client.context_get_current(), inner);
    client.context_destroy(inner).unwrap();
    assert_eq!(client.context_get_current(), outer);
    assert_eq!(client.stream_query(stream), Err(Status::INVALID_HANDLE));
    assert_eq!(client.address_range(device), Err(Status::NOT_FOUND));
    assert_eq!(client.context_set_current(inner), Err(Status::INVALID_CONTEXT));
    assert_eq!(client.context_pop(), Ok(outer));
    assert_eq!(client.context_create(0, 1), Err(Status::INVALID_DEVICE));
    assert_eq!(client.context_create(3, 0), Err(Status::INVALID_VALUE));
}

#[test]
fn a_hidden_device_cannot_be_had() {
    let hidden = Config { visible: Some(String::new()), ..Config::default() };
    let fixture = Fixture::with_config(ARENA, &hidden);
    assert_eq!(fixture.client.device_count(), 0);
    assert_eq!(fixture.client.device_get(0), Err(Status::INVALID_DEVICE));
    let shown = Config { visible: Some("0".into()), ..Config::default() };
    assert_eq!(Fixture::with_config(ARENA, &shown).client.device_get(0), Ok(0));
}

#[test]
fn words_are_written_and_compared_in_stream_order() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let word = client.mem_alloc(8).unwrap();
    client.stream_write_value(Stream::NULL, word, 0x1234, true, 0).unwrap();
    client.stream_wait_value(Stream::NULL, word, 0x1234, true, 1).unwrap();
    let mut back = [0; 8];
    client.copy_dtoh(&mut back, word).unwrap();
    assert_eq!(u64::from_le_bytes(back), 0x1234);
    let misaligned = client.stream_write_value(Stream::NULL, word + 4, 0, true, 0);
    assert_eq!(misaligned, Err(Status::INVALID_VALUE));
    assert_eq!(
        client.stream_wait_value(Stream::NULL, word, 0, false, 9),
        Err(Status::INVALID_VALUE)
    );
}

#[test]
fn pools_account_for_what_they_gave() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let pool = client.pool_default(0).unwrap();
    assert_eq!(client.pool_current(0), Ok(pool));
    let device = client.mem_alloc_async(1000, weft_client::MemPool::NULL, Stream::NULL).unwrap();
    assert_eq!(client.pool_attribute(pool, 7), Ok(1000));
    client.mem_free_async(device, Stream::NULL).unwrap();
    assert_eq!(client.pool_attribute(pool, 7), Ok(0));
    assert_eq!(client.pool_attribute(pool, 8), Ok(1000));
    client.pool_set_attribute(pool, 4, u64::MAX).unwrap();
    assert_eq!(client.pool_attribute(pool, 4), Ok(u64::MAX));
    assert_eq!(client.pool_destroy(pool), Err(Status::INVALID_VALUE));
    let own = client.pool_create(0).unwrap();
    client.pool_destroy(own).unwrap();
    assert_eq!(client.pool_attribute(own, 7), Err(Status::INVALID_VALUE));
}
