//! One test body for any CUDA driver: our shim over the direct attachment, and the genuine one.
//!
//! `WEFT_GENUINE_LIBCUDA=/path/to/libcuda.so.1` runs it against the genuine driver too, where there
//! is a GPU; what both pass is what programs may rely on.

#[path = "driver/api.rs"]
#[expect(clippy::too_many_arguments, reason = "the C functions'")]
#[allow(unreachable_pub, reason = "a module of one test")]
mod api;
#[path = "driver/attributes.rs"]
mod attributes;
#[path = "driver/registered.rs"]
mod registered;
#[path = "driver/user_objects.rs"]
mod user_objects;
#[path = "driver/virtual_memory.rs"]
mod virtual_memory;

use std::ffi::{CStr, OsString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use api::{Copy2d, Driver, Handle, KernelNode, LaunchConfig, UpdateInfo};

const KERNELS: &[u8] = concat!(include_str!("driver/kernels.ptx"), "\0").as_bytes();

const SUCCESS: i32 = 0;
const INVALID_VALUE: i32 = 1;
const INVALID_DEVICE: i32 = 101;
const INVALID_PTX: i32 = 218;
const INVALID_HANDLE: i32 = 400;
const NOT_FOUND: i32 = 500;
const NOT_READY: i32 = 600;
const UPDATE_FAILURE: i32 = 910;

/// What the parent process tells the child to load.
const LIBRARY: &str = "WEFT_TEST_LIBRARY";

/// The library that cargo built beside this test.
fn built(name: &str) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    exe.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Runs the body in a process of its own: a driver is initialised once per process.
fn run_body(library: OsString, attach: &str) {
    let exe = std::env::current_exe().expect("a test knows itself");
    let status = Command::new(exe)
        .args(["body", "--exact", "--ignored", "--nocapture"])
        .env(LIBRARY, library)
        .env("WEFT_ATTACH", attach)
        .status()
        .expect("the body starts");
    assert!(status.success(), "the body failed");
}

#[test]
fn our_shim_passes() {
    let shim = built("libcuda.so").expect("cargo builds libcuda.so first");
    if built("libweft_direct.so").is_none() {
        println!("not run: libweft_direct.so is not built");
        return;
    }
    run_body(shim.into(), "direct");
}

#[test]
fn the_genuine_driver_passes() {
    match std::env::var_os("WEFT_GENUINE_LIBCUDA") {
        Some(library) => run_body(library, "interposed"),
        None => println!("not run: no GPU (WEFT_GENUINE_LIBCUDA is not set)"),
    }
}

#[test]
#[ignore = "the body of the other tests"]
fn body() {
    let library = std::env::var_os(LIBRARY).expect("run by another test");
    let driver = Driver::load_library(&library);
    let context = begin(&driver);
    contexts(&driver, context);
    memory(&driver);
    copies(&driver);
    pinned(&driver);
    registered::body(&driver);
    attributes::body(&driver);
    virtual_memory::body(&driver);
    modules(&driver);
    launches(&driver);
    streams_and_events(&driver);
    host_functions(&driver);
    values(&driver);
    captured_graph(&driver);
    built_graph(&driver);
    updated_graph(&driver);
    user_objects::body(&driver);
    pools(&driver);
    forked_child(&driver);
    assert_eq!(driver.primary_release(0), SUCCESS);
}

fn begin(driver: &Driver) -> Handle {
    assert_eq!(driver.init(1), INVALID_VALUE);
    assert_eq!(driver.init(0), SUCCESS);
    let (mut count, mut device, mut context) = (0, 9, 0);
    assert_eq!(driver.device_count(&mut count), SUCCESS);
    assert!(count >= 1);
    assert_eq!(driver.device_get(&mut device, 0), SUCCESS);
    assert_eq!(device, 0);
    assert_eq!(driver.device_get(&mut device, count), INVALID_DEVICE);
    assert_eq!(driver.device_get(&mut device, -1), INVALID_DEVICE);
    let mut name = [0xff_u8; 64];
    assert_eq!(driver.device_name(name.as_mut_ptr(), 64, 0), SUCCESS);
    assert!(CStr::from_bytes_until_nul(&name).is_ok_and(|name| !name.is_empty()));
    let mut warp = 0;
    assert_eq!(driver.device_attribute(&mut warp, 10, 0), SUCCESS);
    assert_eq!(warp, 32);
    assert_eq!(driver.primary_retain(&mut context, 0), SUCCESS);
    assert_eq!(driver.set_current(context), SUCCESS);
    context
}

fn contexts(driver: &Driver, context: Handle) {
    let mut found = 0;
    assert_eq!(driver.current(&mut found), SUCCESS);
    assert_eq!(found, context);
    assert_eq!(driver.push(context), SUCCESS);
    assert_eq!(driver.pop(&mut found), SUCCESS);
    assert_eq!(found, context);
    assert_eq!(driver.synchronize(), SUCCESS);
}

fn alloc(driver: &Driver, bytes: usize) -> Handle {
    let mut address = 0;
    assert_eq!(driver.alloc(&raw mut address, bytes), SUCCESS);
    address
}

fn memory(driver: &Driver) {
    let mut address = 0;
    assert_eq!(driver.alloc(&raw mut address, 0), INVALID_VALUE);
    assert_eq!(driver.alloc(core::ptr::null_mut(), 16), INVALID_VALUE);
    let address = alloc(driver, 1000);
    let (mut base, mut size) = (0, 0);
    assert_eq!(driver.address_range(&mut base, &mut size, address + 999), SUCCESS);
    assert_eq!((base, size), (address, 1000));
    let mut kind = 0;
    assert_eq!(driver.pointer_attribute(&raw mut kind, 2, address + 5), SUCCESS);
    assert_eq!(kind & 0xffff_ffff, 2, "device memory");
    let stack = [0_u8; 8];
    let host = stack.as_ptr().addr() as u64;
    assert_eq!(driver.pointer_attribute(&raw mut kind, 2, host), INVALID_VALUE);
    assert_eq!(driver.free(address), SUCCESS);
    assert_eq!(driver.free(address), INVALID_VALUE);
    assert_eq!(driver.free(0), SUCCESS);
    let (mut free, mut total) = (0, 0);
    assert_eq!(driver.memory_info(&mut free, &mut total), SUCCESS);
    assert!(0 < free && free <= total);
}

fn copies(driver: &Driver) {
    for bytes in [1, 4096, (1 << 20) + 3, (5 << 20) + 1] {
        let source: Vec<u8> = (0..=250).cycle().take(bytes).collect();
        let (first, second) = (alloc(driver, bytes), alloc(driver, bytes));
        assert_eq!(driver.to_device(first, source.as_ptr(), bytes), SUCCESS);
        assert_eq!(driver.on_device(second, first, bytes), SUCCESS);
        let mut target = vec![0; bytes];
        assert_eq!(driver.to_host(target.as_mut_ptr(), second, bytes), SUCCESS);
        assert!(target == source, "{bytes} bytes");
        let mut unified = vec![0; bytes];
        let place = unified.as_mut_ptr().expose_provenance() as u64;
        assert_eq!(driver.copy(place, second, bytes), SUCCESS);
        assert!(unified == source, "{bytes} bytes, unified");
        assert_eq!(driver.to_device(16, source.as_ptr(), bytes), INVALID_VALUE);
        assert_eq!(driver.free(first), SUCCESS);
        assert_eq!(driver.free(second), SUCCESS);
    }
    rows(driver);
}

fn rows(driver: &Driver) {
    let device = alloc(driver, 64 * 4);
    assert_eq!(driver.fill_bytes(device, 0xaa, 64 * 4), SUCCESS);
    let source: Vec<u8> = (0..30).collect();
    let copy = Copy2d {
        src_kind: 1,
        src_host: source.as_ptr().expose_provenance(),
        src_pitch: 10,
        dst_kind: 2,
        dst_device: device,
        dst_pitch: 64,
        dst_x: 2,
        width: 10,
        height: 3,
        ..Copy2d::default()
    };
    assert_eq!(driver.copy_2d(&copy), SUCCESS);
    let mut all = vec![0; 64 * 4];
    assert_eq!(driver.to_host(all.as_mut_ptr(), device, all.len()), SUCCESS);
    for (row, bytes) in all.chunks(64).enumerate() {
        let expected: Vec<u8> =
            if row < 3 { source[row * 10..][..10].into() } else { vec![0xaa; 10] };
        assert_eq!(&bytes[2..12], expected, "row {row}");
        assert_eq!((bytes[1], bytes[12]), (0xaa, 0xaa));
    }
    assert_eq!(driver.copy_2d(&Copy2d { dst_pitch: 4, ..copy }), INVALID_VALUE);
    assert_eq!(driver.free(device), SUCCESS);
}

fn pinned(driver: &Driver) {
    let mut memory = core::ptr::null_mut();
    assert_eq!(driver.host_alloc(&mut memory, 8192, 0), SUCCESS);
    // SAFETY: the driver gave 8192 bytes, and nothing else uses them.
    let host = unsafe { core::slice::from_raw_parts_mut(memory, 8192) };
    host.fill(3);
    let (device, mut stream) = (alloc(driver, 8192), 0);
    assert_eq!(driver.stream_create(&mut stream, 1), SUCCESS);
    assert_eq!(driver.to_device_async(device, memory, 8192, stream), SUCCESS);
    assert_eq!(driver.stream_synchronize(stream), SUCCESS);
    host.fill(0);
    assert_eq!(driver.to_host_async(memory, device, 8192, stream), SUCCESS);
    assert_eq!(driver.stream_synchronize(stream), SUCCESS);
    assert!(host.iter().all(|byte| *byte == 3));
    let mut kind = 0;
    let address = memory.addr() as u64;
    assert_eq!(driver.pointer_attribute(&raw mut kind, 2, address), SUCCESS);
    assert_eq!(kind & 0xffff_ffff, 1, "host memory");
    assert_eq!(driver.stream_destroy(stream), SUCCESS);
    assert_eq!(driver.free(device), SUCCESS);
    assert_eq!(driver.host_free(memory), SUCCESS);
}

fn load(driver: &Driver) -> Handle {
    let mut module = 0;
    assert_eq!(driver.load(&mut module, KERNELS.as_ptr()), SUCCESS);
    module
}

fn modules(driver: &Driver) {
    let module = load(driver);
    let mut function = 0;
    assert_eq!(driver.function(&mut function, module, c"absent".as_ptr()), NOT_FOUND);
    let (mut address, mut bytes) = (0, 0);
    assert_eq!(driver.global(&mut address, &mut bytes, module, c"counter".as_ptr()), SUCCESS);
    assert_eq!(bytes, 4);
    let mut value = [0; 4];
    assert_eq!(driver.to_host(value.as_mut_ptr(), address, 4), SUCCESS);
    assert_eq!(u32::from_ne_bytes(value), 5);
    let (mut most, function) = (0, driver.function_named(module, c"nothing"));
    assert_eq!(driver.function_attribute(&mut most, 0, function), SUCCESS);
    assert!(most >= 32);
    limited_registers(driver);
    let mut blocks = 0;
    assert_eq!(driver.occupancy(&mut blocks, function, 32, 0), SUCCESS);
    assert!(blocks >= 1);
    assert_eq!(driver.unload(module), SUCCESS);
    bad_image(driver);
}

/// `CU_JIT_MAX_REGISTERS` (0) shows in `CU_FUNC_ATTRIBUTE_NUM_REGS` (4).
fn limited_registers(driver: &Driver) {
    let registers = |options: &[u32]| {
        let (mut module, mut registers) = (0, 0);
        let mut values = [core::ptr::without_provenance_mut::<c_void>(24)];
        let (image, count) =
            (KERNELS.as_ptr(), u32::try_from(options.len()).expect("a few options"));
        let code = driver.load_ex(&mut module, image, count, options.as_ptr(), values.as_mut_ptr());
        assert_eq!(code, SUCCESS);
        let function = driver.function_named(module, c"turn_round");
        assert_eq!(driver.function_attribute(&mut registers, 4, function), SUCCESS);
        assert_eq!(driver.unload(module), SUCCESS);
        registers
    };
    assert!(registers(&[]) > 24);
    assert!((1..=24).contains(&registers(&[0])));
}

fn bad_image(driver: &Driver) {
    let mut module = 0;
    let text = c".version 7.5\n.target sm_75\n.address_size 64\n.entry x() { nonsense; }";
    let mut log = [0_u8; 512];
    let options = [5_u32, 6];
    let mut values: [*mut c_void; 2] =
        [log.as_mut_ptr().cast(), core::ptr::without_provenance_mut(log.len())];
    let code =
        driver.load_ex(&mut module, text.as_ptr().cast(), 2, options.as_ptr(), values.as_mut_ptr());
    assert_eq!(code, INVALID_PTX);
    let text = CStr::from_bytes_until_nul(&log).expect("the log is terminated");
    assert!(!text.is_empty(), "the log says why");
}

fn read(driver: &Driver, address: Handle, count: usize) -> Vec<u32> {
    let mut bytes = vec![0_u8; count * 4];
    assert_eq!(driver.to_host(bytes.as_mut_ptr(), address, bytes.len()), SUCCESS);
    bytes.chunks(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// Arguments of `add_scalar` and the list of pointers to them.
struct Arguments {
    data: u64,
    value: u32,
    count: u32,
}

impl Arguments {
    fn list(&self) -> [*const c_void; 3] {
        let (data, value, count) =
            (&raw const self.data, &raw const self.value, &raw const self.count);
        [data.cast(), value.cast(), count.cast()]
    }
}

const COUNT: usize = 1000;

fn launches(driver: &Driver) {
    let module = load(driver);
    let function = driver.function_named(module, c"add_scalar");
    let data = alloc(driver, COUNT * 4);
    assert_eq!(driver.fill_words(data, 1, COUNT), SUCCESS);
    let arguments = Arguments { data, value: 41, count: 1000 };
    let (list, none) = (arguments.list(), core::ptr::null());
    assert_eq!(driver.launch(function, 4, 1, 1, 256, 1, 1, 0, 0, list.as_ptr(), none), SUCCESS);
    let config = LaunchConfig {
        grid: [4, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        stream: 0,
        attributes: core::ptr::null(),
        attribute_count: 0,
    };
    assert_eq!(driver.launch_ex(&config, function, list.as_ptr(), none), SUCCESS);
    packed(driver, function, data);
    assert_eq!(read(driver, data, COUNT), vec![1 + 41 + 41 + 100; COUNT]);
    let bad = driver.launch(function, 0, 1, 1, 256, 1, 1, 0, 0, list.as_ptr(), none);
    assert_eq!(bad, INVALID_VALUE, "an empty grid");
    let bad = driver.launch(function, 1, 1, 1, 4096, 1, 1, 0, 0, list.as_ptr(), none);
    assert_eq!(bad, INVALID_VALUE, "a block larger than any");
    assert_eq!(driver.free(data), SUCCESS);
    assert_eq!(driver.unload(module), SUCCESS);
    library(driver);
}

/// The packed form of arguments, as tinygrad passes them.
fn packed(driver: &Driver, function: Handle, data: Handle) {
    let mut buffer = data.to_ne_bytes().to_vec();
    buffer.extend(100_u32.to_ne_bytes());
    buffer.extend(1000_u32.to_ne_bytes());
    let size = buffer.len();
    let name = core::ptr::without_provenance::<c_void>;
    let extra =
        [name(1), buffer.as_ptr().cast(), name(2), core::ptr::from_ref(&size).cast(), name(0)];
    let none = core::ptr::null();
    assert_eq!(driver.launch(function, 4, 1, 1, 256, 1, 1, 0, 0, none, extra.as_ptr()), SUCCESS);
}

/// A kernel of a library launches as a function does.
fn library(driver: &Driver) {
    let (mut library, mut kernel, none) = (0, 0, core::ptr::null::<c_void>());
    let image = KERNELS.as_ptr();
    let code = driver.library_load(&mut library, image, none.cast(), none, 0, none.cast(), none, 0);
    assert_eq!(code, SUCCESS);
    let name = c"nothing".as_ptr();
    assert_eq!(driver.library_kernel(&mut kernel, library, name), SUCCESS);
    let none = core::ptr::null();
    assert_eq!(driver.launch(kernel, 1, 1, 1, 32, 1, 1, 0, 0, none, none), SUCCESS);
    assert_eq!(driver.synchronize(), SUCCESS);
    assert_eq!(driver.library_unload(library), SUCCESS);
}

fn streams_and_events(driver: &Driver) {
    let (mut first, mut second) = (0, 0);
    assert_eq!(driver.stream_create(&mut first, 1), SUCCESS);
    assert_eq!(driver.stream_create(&mut second, 0), SUCCESS);
    assert_eq!(driver.stream_create(&mut second, 99), INVALID_VALUE);
    let (mut start, mut end) = (0, 0);
    assert_eq!(driver.event_create(&mut start, 0), SUCCESS);
    assert_eq!(driver.event_create(&mut end, 0), SUCCESS);
    assert_eq!(driver.event_query(start), SUCCESS, "never recorded");
    let mut elapsed = -1.0;
    assert_eq!(driver.event_elapsed(&mut elapsed, start, end), INVALID_HANDLE);
    assert_eq!(driver.event_record(start, first), SUCCESS);
    assert_eq!(driver.stream_wait_event(second, start, 0), SUCCESS);
    assert_eq!(driver.event_record(end, second), SUCCESS);
    assert_eq!(driver.event_synchronize(end), SUCCESS);
    assert_eq!(driver.event_elapsed(&mut elapsed, start, end), SUCCESS);
    assert!(elapsed >= 0.0);
    assert_eq!(driver.stream_synchronize(second), SUCCESS);
    assert_eq!(driver.stream_query(second), SUCCESS);
    for event in [start, end] {
        assert_eq!(driver.event_destroy(event), SUCCESS);
    }
    for stream in [first, second] {
        assert_eq!(driver.stream_destroy(stream), SUCCESS);
    }
}

unsafe extern "C" fn count_up(counter: *mut c_void) {
    // SAFETY: the test passes its own counter, which outlives the stream's work.
    let counter = unsafe { &*counter.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::SeqCst);
}

fn host_functions(driver: &Driver) {
    let (mut stream, counter) = (0, AtomicU32::new(0));
    let place = core::ptr::from_ref(&counter).cast_mut().cast();
    assert_eq!(driver.stream_create(&mut stream, 1), SUCCESS);
    for _ in 0..10 {
        assert_eq!(driver.host_function(stream, count_up, place), SUCCESS);
    }
    assert_eq!(driver.stream_synchronize(stream), SUCCESS);
    assert_eq!(counter.load(Ordering::SeqCst), 10);
    assert_eq!(driver.stream_destroy(stream), SUCCESS);
}

fn values(driver: &Driver) {
    let word = alloc(driver, 4);
    assert_eq!(driver.fill_words(word, 0, 1), SUCCESS);
    assert_eq!(driver.synchronize(), SUCCESS);
    let (mut waits, mut writes) = (0, 0);
    assert_eq!(driver.stream_create(&mut waits, 1), SUCCESS);
    assert_eq!(driver.stream_create(&mut writes, 1), SUCCESS);
    assert_eq!(driver.wait_value(waits, word, 7, 1), SUCCESS);
    assert_eq!(driver.stream_query(waits), NOT_READY);
    assert_eq!(driver.write_value(writes, word, 7, 0), SUCCESS);
    assert_eq!(driver.stream_synchronize(waits), SUCCESS);
    for stream in [waits, writes] {
        assert_eq!(driver.stream_destroy(stream), SUCCESS);
    }
    assert_eq!(driver.free(word), SUCCESS);
}

fn instantiate(driver: &Driver, graph: Handle) -> Handle {
    let (mut exec, none) = (0, core::ptr::null_mut());
    let code = driver.graph_instantiate(&mut exec, graph, none, core::ptr::null_mut(), 0);
    assert_eq!(code, SUCCESS);
    exec
}

fn captured_graph(driver: &Driver) {
    let module = load(driver);
    let function = driver.function_named(module, c"add_scalar");
    let data = alloc(driver, COUNT * 4);
    assert_eq!(driver.fill_words(data, 0, COUNT), SUCCESS);
    let mut stream = 0;
    assert_eq!(driver.stream_create(&mut stream, 1), SUCCESS);
    assert_eq!(driver.begin_capture(stream, 0), SUCCESS);
    let mut status = 9;
    assert_eq!(driver.is_capturing(stream, &mut status), SUCCESS);
    assert_eq!(status, 1);
    let arguments = Arguments { data, value: 1, count: 1000 };
    let (list, none) = (arguments.list(), core::ptr::null());
    for _ in 0..3 {
        let code = driver.launch(function, 4, 1, 1, 256, 1, 1, 0, stream, list.as_ptr(), none);
        assert_eq!(code, SUCCESS);
    }
    let mut graph = 0;
    assert_eq!(driver.end_capture(stream, &mut graph), SUCCESS);
    assert_eq!(read(driver, data, COUNT), vec![0; COUNT], "nothing ran");
    let exec = instantiate(driver, graph);
    for _ in 0..2 {
        assert_eq!(driver.graph_launch(exec, stream), SUCCESS);
    }
    assert_eq!(driver.stream_synchronize(stream), SUCCESS);
    assert_eq!(read(driver, data, COUNT), vec![6; COUNT]);
    assert_eq!(driver.graph_exec_destroy(exec), SUCCESS);
    assert_eq!(driver.graph_destroy(graph), SUCCESS);
    assert_eq!(driver.stream_destroy(stream), SUCCESS);
    assert_eq!(driver.free(data), SUCCESS);
    assert_eq!(driver.unload(module), SUCCESS);
}

/// A graph as tinygrad's JIT builds it: kernel nodes in a chain, parameters replaced afterwards.
fn built_graph(driver: &Driver) {
    let module = load(driver);
    let function = driver.function_named(module, c"add_scalar");
    let data = alloc(driver, COUNT * 4);
    assert_eq!(driver.fill_words(data, 0, COUNT), SUCCESS);
    let (mut graph, mut first, mut second) = (0, 0, 0);
    assert_eq!(driver.graph_create(&mut graph, 0), SUCCESS);
    let arguments = Arguments { data, value: 2, count: 1000 };
    let list = arguments.list();
    let kernel = |params: &[*const c_void; 3]| KernelNode {
        function,
        grid: [4, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        params: params.as_ptr(),
        extra: core::ptr::null(),
    };
    let (none, params) = (core::ptr::null(), kernel(&list));
    assert_eq!(driver.graph_add_kernel(&mut first, graph, none, 0, &params), SUCCESS);
    let after = core::ptr::from_ref(&first);
    assert_eq!(driver.graph_add_kernel(&mut second, graph, after, 1, &params), SUCCESS);
    let mut count = 0;
    assert_eq!(driver.graph_nodes(graph, core::ptr::null_mut(), &mut count), SUCCESS);
    assert_eq!(count, 2);
    let exec = instantiate(driver, graph);
    assert_eq!(driver.graph_launch(exec, 0), SUCCESS);
    let changed = Arguments { data, value: 10, count: 1000 };
    let list = changed.list();
    assert_eq!(driver.graph_exec_set(exec, second, &kernel(&list)), SUCCESS);
    assert_eq!(driver.graph_launch(exec, 0), SUCCESS);
    assert_eq!(read(driver, data, COUNT), vec![2 + 2 + 2 + 10; COUNT]);
    assert_eq!(driver.graph_exec_destroy(exec), SUCCESS);
    assert_eq!(driver.graph_destroy(graph), SUCCESS);
    assert_eq!(driver.free(data), SUCCESS);
    assert_eq!(driver.unload(module), SUCCESS);
}

/// Makes a graph of additions to `data`, one after the other.
fn additions(driver: &Driver, function: Handle, data: Handle, values: &[u32]) -> Handle {
    let (mut graph, mut last) = (0, 0);
    assert_eq!(driver.graph_create(&mut graph, 0), SUCCESS);
    for (index, value) in values.iter().enumerate() {
        let arguments = Arguments { data, value: *value, count: 1000 };
        let list = arguments.list();
        let params = KernelNode {
            function,
            grid: [4, 1, 1],
            block: [256, 1, 1],
            shared_bytes: 0,
            params: list.as_ptr(),
            extra: core::ptr::null(),
        };
        let (before, count) = (last, usize::from(index > 0));
        assert_eq!(
            driver.graph_add_kernel(&mut last, graph, &raw const before, count, &params),
            SUCCESS
        );
    }
    graph
}

/// An instantiated graph takes over what a graph of the same shape does, and nothing of others.
fn updated_graph(driver: &Driver) {
    let module = load(driver);
    let function = driver.function_named(module, c"add_scalar");
    let data = alloc(driver, COUNT * 4);
    assert_eq!(driver.fill_words(data, 0, COUNT), SUCCESS);
    let child = additions(driver, function, data, &[1, 2]);
    let (mut graph, mut node) = (0, 0);
    assert_eq!(driver.graph_create(&mut graph, 0), SUCCESS);
    assert_eq!(driver.graph_add_child(&mut node, graph, core::ptr::null(), 0, child), SUCCESS);
    let (parent, plain) = (instantiate(driver, graph), instantiate(driver, child));
    let other = additions(driver, function, data, &[10, 20]);
    let mut info = UpdateInfo { result: 9, node: 9, from: 9 };
    assert_eq!(driver.graph_exec_update(plain, other, &mut info), SUCCESS);
    assert_eq!(info, UpdateInfo::default());
    assert_eq!(driver.graph_launch(plain, 0), SUCCESS);
    assert_eq!(driver.graph_exec_set_child(parent, node, other), SUCCESS);
    assert_eq!(driver.graph_launch(parent, 0), SUCCESS);
    assert_eq!(read(driver, data, COUNT), vec![60; COUNT]);
    // One node more, or a child graph where a kernel was, is no update.
    let longer = additions(driver, function, data, &[1, 1, 1]);
    assert_eq!(driver.graph_exec_update(plain, longer, &mut info), UPDATE_FAILURE);
    assert_eq!(info.result, 2);
    assert_eq!(driver.graph_exec_set_child(parent, node, longer), INVALID_VALUE);
    let first = additions(driver, function, data, &[5]);
    assert_eq!(driver.graph_add_child(&mut node, first, core::ptr::null(), 0, first), SUCCESS);
    assert_eq!(driver.graph_exec_update(plain, first, &mut info), UPDATE_FAILURE);
    assert_eq!(driver.graph_launch(plain, 0), SUCCESS);
    assert_eq!(read(driver, data, COUNT), vec![90; COUNT], "as before");
    for exec in [parent, plain] {
        assert_eq!(driver.graph_exec_destroy(exec), SUCCESS);
    }
    for graph in [graph, child, other, longer, first] {
        assert_eq!(driver.graph_destroy(graph), SUCCESS);
    }
    assert_eq!(driver.free(data), SUCCESS);
    assert_eq!(driver.unload(module), SUCCESS);
}

fn pools(driver: &Driver) {
    let (mut address, mut stream) = (0, 0);
    assert_eq!(driver.stream_create(&mut stream, 1), SUCCESS);
    assert_eq!(driver.alloc_async(&mut address, 4096, stream), SUCCESS);
    let source = [9_u8; 4096];
    assert_eq!(driver.to_device_async(address, source.as_ptr(), 4096, stream), SUCCESS);
    let mut target = [0_u8; 4096];
    assert_eq!(driver.to_host_async(target.as_mut_ptr(), address, 4096, stream), SUCCESS);
    assert_eq!(driver.stream_synchronize(stream), SUCCESS);
    assert_eq!(target, source);
    assert_eq!(driver.free_async(address, stream), SUCCESS);
    assert_eq!(driver.stream_synchronize(stream), SUCCESS);
    assert_eq!(driver.stream_destroy(stream), SUCCESS);
}

/// A child of the process that called `cuInit` owns no device; the parent keeps its own.
fn forked_child(driver: &Driver) {
    // SAFETY: the child calls the driver, which must cope, and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut address = 0;
        let refused = driver.alloc(&raw mut address, 16) == 3 && driver.init(0) == 3;
        // SAFETY: leaves without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: the place is writable, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child is refused");
    let address = alloc(driver, 16);
    assert_eq!(driver.free(address), SUCCESS);
}
