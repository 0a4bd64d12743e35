//! `libweft_tasks.so`: the C border of the task library. `include/weft_tasks.h` documents it.
//!
//! Each function turns its arguments into safe values, calls the Rust library (`weft_tasks`), and
//! turns the outcome into a code and a message of the calling thread. All unsafe code of tasks is
//! here.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::slice;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tasks::{Accelerator, Done, Module, Options, Pending, RefusalCode, Task, TaskError};

const OK: c_int = 0;
const INVALID: c_int = 1;
const NO_ACCELERATOR: c_int = 2;
const NOT_LOADED: c_int = 3;
const REFUSED: c_int = 4;
const QUEUE_FULL: c_int = 5;
const FAILED: c_int = 6;
const LOST: c_int = 7;
const TIMED_OUT: c_int = 8;
const CANCELLED: c_int = 9;

const SCALAR: i32 = 0;
const INPUT: i32 = 1;
const OUTPUT: i32 = 2;
const IN_OUT: i32 = 3;

/// Bytes of a device's name with its NUL.
const DEVICE_BYTES: usize = 72;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// A connection, and the numbers of its tasks that are over.
#[derive(Debug)]
pub struct AcceleratorHandle {
    accelerator: Accelerator,
    over: Sender<u64>,
    numbers: Mutex<Receiver<u64>>,
}

/// A module.
#[derive(Debug)]
pub struct ModuleHandle(Module);

/// Where an output goes: address, bytes.
type Place = (*mut u8, usize);

/// A task that was submitted, and where its outputs go.
#[derive(Debug)]
pub struct PendingHandle {
    pending: Pending,
    outputs: Vec<Place>,
}

/// `weft_tasks_argument`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CArgument {
    kind: i32,
    data: *mut c_void,
    bytes: usize,
}

/// `weft_tasks_task`
#[derive(Debug)]
#[repr(C)]
pub struct CTask {
    module: *const ModuleHandle,
    kernel: *const c_char,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    notify: u32,
    estimate_ns: u64,
    arguments: *const CArgument,
    argument_count: usize,
}

/// `weft_tasks_done`
#[derive(Debug)]
#[repr(C)]
pub struct CDone {
    used_ns: u64,
    latency_ns: u64,
    runs: u32,
    status: i32,
    device: [u8; DEVICE_BYTES],
}

/// Why a call failed: the code, the words.
#[derive(Debug)]
struct Failure(c_int, String);

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        let code = match &error {
            TaskError::NoNode(_)
            | TaskError::Stranger { .. }
            | TaskError::Connection { .. }
            | TaskError::Open(_) => NO_ACCELERATOR,
            TaskError::Load(_) => NOT_LOADED,
            TaskError::Refused { code: RefusalCode::QueueFull, .. } => QUEUE_FULL,
            TaskError::Refused { .. } => REFUSED,
            TaskError::Failed { .. } => FAILED,
            TaskError::Lost(_) => LOST,
            TaskError::TimedOut => TIMED_OUT,
            TaskError::Cancelled => CANCELLED,
            TaskError::Memory(_) => INVALID,
        };
        Self(code, error.to_string())
    }
}

fn invalid(why: &str) -> Failure {
    Failure(INVALID, why.to_owned())
}

/// The code of an outcome, whose words the thread keeps. No panic leaves it.
fn answer(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let outcome = outcome.unwrap_or_else(|_| Err(invalid("the library has an error; report it")));
    match outcome {
        Ok(()) => OK,
        Err(Failure(code, words)) => {
            let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
            ERROR.with(|error| *error.borrow_mut() = words);
            code
        }
    }
}

/// # Safety
/// `text` is null or a C string that lives while the result does.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(invalid(&format!("{what} is null")));
    }
    // SAFETY: not null, and the caller says that it is a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid(&format!("{what} is no UTF-8 text")))
}

/// # Safety
/// `value` is null or points to a `T` that lives while the result does.
unsafe fn reference<'a, T>(value: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { value.as_ref() }.ok_or_else(|| invalid(&format!("{what} is null")))
}

/// # Safety
/// `data` is null or points to so many bytes that live, unchanged, while the result does.
unsafe fn bytes<'a>(data: *const c_void, count: usize, what: &str) -> Result<&'a [u8], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() || isize::try_from(count).is_err() {
        return Err(invalid(&format!("{what} is null, or larger than memory")));
    }
    // SAFETY: not null, and the caller says that the bytes are there.
    Ok(unsafe { slice::from_raw_parts(data.cast::<u8>(), count) })
}

/// Hands a new handle to C.
///
/// # Safety
/// `place` is null or points to a pointer that may be written.
unsafe fn hand_over<T>(place: *mut *mut T, value: T, what: &str) -> Result<(), Failure> {
    if place.is_null() {
        return Err(invalid(&format!("{what} is null")));
    }
    // SAFETY: not null, and the caller says that it may be written.
    unsafe { place.write(Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Takes a handle back, and drops it.
///
/// # Safety
/// `handle` is null or came from [`hand_over`] and is used no more.
unsafe fn take_back<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let owned = unsafe { Box::from_raw(handle) };
    // A panic while it is dropped must not leave the library.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(owned)));
}

/// See the header.
///
/// # Safety
/// As the header says: `name` is a C string, `socket` one or null, `accelerator` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_open(
    name: *const c_char,
    socket: *const c_char,
    accelerator: *mut *mut AcceleratorHandle,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "the accelerator's name") }?;
        let options = if socket.is_null() {
            Options::from_env()
        } else {
            // SAFETY: the caller's promise.
            Options::at(Path::new(unsafe { text(socket, "the socket") }?))
        };
        let opened = Accelerator::open_with(name, options)?;
        let (over, numbers) = channel();
        let numbers = Mutex::new(numbers);
        let handle = AcceleratorHandle { accelerator: opened, over, numbers };
        // SAFETY: the caller's promise.
        unsafe { hand_over(accelerator, handle, "the place of the accelerator") }
    })
}

/// See the header.
///
/// # Safety
/// `accelerator` is null or came from [`weft_tasks_open`], and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_close(accelerator: *mut AcceleratorHandle) {
    // SAFETY: the caller's promise.
    unsafe { take_back(accelerator) };
}

/// See the header.
///
/// # Safety
/// As the header says; `image` points to `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_load(
    accelerator: *mut AcceleratorHandle,
    image: *const c_void,
    count: usize,
    module: *mut *mut ModuleHandle,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let of = unsafe { reference(accelerator, "the accelerator") }?;
        // SAFETY: the caller's promise.
        let image = unsafe { bytes(image, count, "the image") }?;
        let loaded = ModuleHandle(of.accelerator.load(image)?);
        // SAFETY: the caller's promise.
        unsafe { hand_over(module, loaded, "the place of the module") }
    })
}

/// See the header.
///
/// # Safety
/// `module` is null or came from [`weft_tasks_load`], and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_unload(module: *mut ModuleHandle) {
    // SAFETY: the caller's promise.
    unsafe { take_back(module) };
}

/// The task that a C structure says, and where its outputs go.
///
/// # Safety
/// The structure is as the header says, and what it points to lives while the result does.
unsafe fn task<'a>(task: *const CTask) -> Result<(Task<'a>, Vec<Place>), Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { reference(task, "the task") }?;
    // SAFETY: the caller's promise.
    let module = unsafe { reference(given.module, "the task's module") }?;
    // SAFETY: the caller's promise.
    let kernel = unsafe { text(given.kernel, "the kernel's name") }?;
    let mut task = Task::new(&module.0, kernel)
        .grid(given.grid)
        .block(given.block)
        .shared_bytes(given.shared_bytes)
        .estimate_ns(given.estimate_ns);
    let mut outputs = Vec::new();
    for place in 0..given.argument_count {
        if given.arguments.is_null() {
            return Err(invalid("the arguments are null"));
        }
        // SAFETY: below `argument_count`, so within the array that the caller promises.
        let argument = unsafe { given.arguments.add(place) };
        // SAFETY: an element of that array.
        let argument = unsafe { argument.read() };
        let what = format!("the data of argument {place}");
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(argument.data, argument.bytes, &what) }?;
        task = match argument.kind {
            SCALAR => task.scalar_bytes(data),
            INPUT => task.input_bytes(data),
            OUTPUT => task.output_bytes(data.len()),
            IN_OUT => task.in_out_bytes(data),
            kind => return Err(invalid(&format!("argument {place} is of unknown kind {kind}"))),
        };
        if matches!(argument.kind, OUTPUT | IN_OUT) {
            outputs.push((argument.data.cast::<u8>(), argument.bytes));
        }
    }
    Ok((task, outputs))
}

/// Submits a task.
///
/// # Safety
/// As [`weft_tasks_submit`].
unsafe fn submit(
    accelerator: *mut AcceleratorHandle,
    given: *const CTask,
) -> Result<PendingHandle, Failure> {
    // SAFETY: the caller's promise.
    let of = unsafe { reference(accelerator, "the accelerator") }?;
    // SAFETY: the caller's promise; the task is used in this call only.
    let (task, outputs) = unsafe { task(given) }?;
    // SAFETY: the caller's promise.
    let notify = unsafe { reference(given, "the task") }?.notify != 0;
    let pending = of.accelerator.submit(&task)?;
    if notify {
        let (over, number) = (of.over.clone(), pending.number());
        // A handle that was closed has nobody who asks.
        pending.on_done(move || {
            let _ = over.send(number);
        });
    }
    Ok(PendingHandle { pending, outputs })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_submit(
    accelerator: *mut AcceleratorHandle,
    task: *const CTask,
    pending: *mut *mut PendingHandle,
) -> c_int {
    answer(|| {
        if pending.is_null() {
            return Err(invalid("the place of the pending task is null"));
        }
        // SAFETY: the caller's promise.
        let submitted = unsafe { submit(accelerator, task) }?;
        // SAFETY: the caller's promise.
        unsafe { hand_over(pending, submitted, "the place of the pending task") }
    })
}

impl PendingHandle {
    fn finish(&self, timeout_ms: i64) -> Result<Done, TaskError> {
        match u64::try_from(timeout_ms) {
            Ok(ms) => self.pending.wait_timeout(Duration::from_millis(ms)),
            Err(_) => self.pending.wait(),
        }
    }

    /// Copies the outputs of a task that is done to where they go.
    ///
    /// # Safety
    /// The outputs' places may be written.
    unsafe fn write(&self, done: &Done) {
        for (place, (data, count)) in self.outputs.iter().enumerate() {
            if *count > 0 {
                // SAFETY: the caller's promise: so many bytes, nobody else's while this call lasts.
                let target = unsafe { slice::from_raw_parts_mut(*data, *count) };
                done.read_output(place, target);
            }
        }
    }
}

/// What is told of a task that is over.
fn figures(outcome: &Result<Done, TaskError>) -> CDone {
    let mut device = [0; DEVICE_BYTES];
    let (used_ns, latency_ns, runs) = match outcome {
        Ok(done) => {
            let name = done.device().as_bytes();
            for (to, from) in device.iter_mut().take(DEVICE_BYTES - 1).zip(name) {
                *to = *from;
            }
            (done.used_ns(), done.latency_ns(), done.runs())
        }
        Err(_) => (0, 0, 0),
    };
    let status = match outcome {
        Err(TaskError::Failed { status, .. }) => *status,
        Ok(_) | Err(_) => 0,
    };
    CDone { used_ns, latency_ns, runs, status, device }
}

/// Waits for a task's end.
///
/// # Safety
/// As [`weft_tasks_wait`].
unsafe fn wait(of: &PendingHandle, timeout_ms: i64, done: *mut CDone) -> Result<(), Failure> {
    let outcome = of.finish(timeout_ms);
    if let Ok(finished) = &outcome {
        // SAFETY: the caller's promise.
        unsafe { of.write(finished) };
    }
    if !done.is_null() {
        // SAFETY: not null, and the caller says that it may be written.
        unsafe { done.write(figures(&outcome)) };
    }
    Ok(outcome.map(drop)?)
}

/// See the header.
///
/// # Safety
/// As the header says; the outputs' buffers are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_wait(
    pending: *mut PendingHandle,
    timeout_ms: i64,
    done: *mut CDone,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let of = unsafe { reference(pending, "the pending task") }?;
        // SAFETY: the caller's promise.
        unsafe { wait(of, timeout_ms, done) }
    })
}

/// See the header.
///
/// # Safety
/// `pending` is null or came from [`weft_tasks_submit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_number(pending: *const PendingHandle) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { pending.as_ref() }.map_or(0, |of| of.pending.number())
}

/// See the header.
///
/// # Safety
/// `pending` is null or came from [`weft_tasks_submit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_cancel(pending: *mut PendingHandle) {
    // SAFETY: the caller's promise.
    if let Some(of) = unsafe { pending.as_ref() } {
        answer(|| {
            of.pending.cancel();
            Ok(())
        });
    }
}

/// See the header.
///
/// # Safety
/// `pending` is null or came from [`weft_tasks_submit`], and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_release(pending: *mut PendingHandle) {
    // SAFETY: the caller's promise.
    unsafe { take_back(pending) };
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_run(
    accelerator: *mut AcceleratorHandle,
    task: *const CTask,
    done: *mut CDone,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let submitted = unsafe { submit(accelerator, task) }?;
        // SAFETY: the caller's promise.
        unsafe { wait(&submitted, -1, done) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tasks_next(
    accelerator: *mut AcceleratorHandle,
    timeout_ms: i64,
    number: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let of = unsafe { reference(accelerator, "the accelerator") }?;
        let numbers = of.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match u64::try_from(timeout_ms) {
            Ok(ms) => numbers.recv_timeout(Duration::from_millis(ms)),
            // The handle itself can send, so the channel does not end.
            Err(_) => numbers.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let next = next.map_err(|_| Failure::from(TaskError::TimedOut))?;
        if number.is_null() {
            return Err(invalid("the place of the number is null"));
        }
        // SAFETY: not null, and the caller says that it may be written.
        unsafe { number.write(next) };
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn weft_tasks_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}
