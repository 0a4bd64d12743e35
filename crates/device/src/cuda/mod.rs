//! A genuine NVIDIA GPU, through the `libcuda` that its driver installed.
//!
//! One context per session, in a process of its own. Each operation runs between two timing events
//! on the stream of its queue; what was charged is what the device's own timestamps say. A long
//! kernel runs in pieces where [`weft_ptx::slice`] can rewrite it (not in linked modules). A
//! running one cannot be aborted.
//!
//! Memory comes in chunks that the vGPU's ledger pays for; see `backing` for their addresses and
//! `extents` for what is allocated in them. A chunk is cleared before anything is allocated in it,
//! because the driver promises nothing about what an earlier process left there.

mod backend;
mod backing;
mod describe;
mod driver;
mod extents;
mod kept;
#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod lending_tests;
mod module;
mod operation;
mod printed;
mod rates;
mod swap;
#[cfg(test)]
mod swap_tests;
#[cfg(test)]
mod tests;
mod timeline;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CString, c_int, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use weft_ring::SharedMemory;

use self::backing::{Backing, CHUNK_BYTES, Memory, VIRTUAL_MEMORY_SUPPORTED};
use self::describe::{attribute, check, describe, load};
use self::driver::{
    Code, Driver, EVENT_DEFAULT, Handle, OUT_OF_MEMORY, REGISTER_MAPPED, STREAM_NON_BLOCKING,
    SUCCESS,
};
use self::extents::Heap;
use self::kept::Kept;
use self::module::{Module, Symbols};
use self::operation::{End, InFlight};
use self::printed::Printed;
use self::rates::{Rates, Waves};
use self::timeline::{Timeline, monotonic_ns};
use crate::{
    Completion, Device, DeviceError, DeviceInfo, DevicePage, Driven, FrameRun, FrameSource, Launch,
    LoadError, LoadedModule, MemoryUse, ModuleId, Op, OpId, PAGE, QueueId, Swapping,
};

pub use self::backend::CudaBackend;
pub use self::describe::{CudaError, Found, LIBRARY_VARIABLE, devices};

/// Most operations in flight; more are refused as [`DeviceError::QueueFull`]. A stream of the
/// driver takes about a thousand entries before it blocks its caller, and each operation is three.
const IN_FLIGHT_MAX: usize = 256;
/// How long a caller without other work may sleep before it looks for completions again: this part
/// of what the operation has run so far, within bounds, in ns. The least is about what a look
/// takes: somebody may wait for a short one.
const POLL_PART: u64 = 64;
const POLL_NS_MIN: u64 = 1_000;
const POLL_NS_MAX: u64 = 500_000;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
const MULTIPROCESSORS: c_int = 16;

/// What a session on a GPU is given.
#[derive(Debug)]
pub struct CudaConfig {
    /// The driver's library; [`LIBRARY_VARIABLE`] or the system's if absent.
    pub library: Option<PathBuf>,
    /// Which of the driver's devices.
    pub ordinal: u32,
    /// Pays for memory.
    pub source: Box<dyn FrameSource>,
    /// Device addresses that the client has reserved: first, length in bytes.
    pub range: (u64, u64),
    /// Bytes of addresses that are swapped together; rounded down to whole chunks of 2 MiB.
    pub part_bytes: u64,
    /// The memory of the frames: what is not on the device is there. Without it all is there.
    pub frames: Option<Arc<SharedMemory>>,
    /// More may be paid for than the device has: memory comes when an operation needs it, and
    /// leaves when others do.
    pub lends: bool,
    /// The pinned window and its address in the tenant, which is its address here too.
    pub window: Option<(u64, Arc<SharedMemory>)>,
    /// Memory that pageable copies are staged in.
    pub staging: Option<Arc<SharedMemory>>,
    /// A kernel that runs longer than this ends the session, in ns.
    pub kernel_ns: Option<u64>,
    /// Where the device's busy time is counted.
    pub page: Option<DevicePage>,
    /// The process has no other use for its standard output, where a driver puts what kernels
    /// print: it is caught.
    pub catch_output: bool,
}

/// What backs a chunk: the driver's memory, and the frames that were paid for it.
type Chunk = (Memory, Vec<FrameRun>);

/// One session's context on a GPU.
#[derive(Debug)]
pub struct CudaDevice {
    driver: Driver,
    info: DeviceInfo,
    context: Handle,
    source: Box<dyn FrameSource>,
    backing: Backing,
    heap: Heap<Chunk>,
    /// Where what is saved is kept.
    kept: Option<Kept>,
    lends: bool,
    /// All of the session's memory is on the device.
    is_whole: bool,
    /// There is no room as long as something is in flight.
    waits_for_end: bool,
    /// What the driver did not take back: it stays paid for and on the device.
    unreleased_bytes: Cell<u64>,
    window: Option<(u64, Arc<SharedMemory>)>,
    /// Keeps registered memory mapped.
    _staging: Option<Arc<SharedMemory>>,
    kernel_ns: Option<u64>,
    page: Option<DevicePage>,
    printed: Option<Printed>,
    modules: BTreeMap<ModuleId, Module>,
    streams: HashMap<QueueId, Handle>,
    timeline: Timeline,
    /// When the last operation ended.
    last_end_ns: u64,
    in_flight: VecDeque<InFlight>,
    /// Host clock when the oldest operation in flight became the oldest.
    front_since_ns: u64,
    finished: VecDeque<Completion>,
    free_events: Vec<Handle>,
    rates: Rates,
    multiprocessors: u64,
    waves: RefCell<Waves>,
    next: u64,
    next_module: u32,
    /// The last code that was no success.
    failed: Cell<Code>,
    lost: Option<String>,
    /// Something that cannot be ended runs on.
    stuck: bool,
}

impl CudaDevice {
    /// Opens a GPU with a context of its own.
    ///
    /// # Errors
    /// [`CudaError`]: no driver, no such device, no room for a context.
    pub fn open(config: CudaConfig) -> Result<Self, CudaError> {
        let CudaConfig { library, ordinal, source, range, part_bytes, .. } = config;
        let CudaConfig { window, staging, kernel_ns, page, .. } = config;
        let (driver, virtual_memory) = load(library.as_deref())?;
        let info = describe(&driver, ordinal)?;
        let device = describe::device(&driver, ordinal)?;
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: `context` is a valid place for a handle.
        let code = unsafe { (driver.context_create)(&raw mut context, 0, device) };
        check(&driver, "cuCtxCreate", code)?;
        let (code, event) = new_event(&driver);
        check(&driver, "cuEventCreate", code)?;
        let timeline = Timeline::start(&driver, event);
        let supported = attribute(&driver, device, VIRTUAL_MEMORY_SUPPORTED) == Some(1);
        let (base, bytes) = range;
        // Four times what there is leaves room for fragments of addresses.
        let kept_bytes = config.frames.as_ref().map_or(0, |frames| frames.len() as u64);
        let bytes = bytes.min(info.memory_bytes.max(kept_bytes).saturating_mul(4));
        let calls = virtual_memory.filter(|_| supported);
        let backing = Backing::reserve(calls, device, (base, bytes), part_bytes);
        if config.lends && (backing.range().is_none() || config.frames.is_none()) {
            // SAFETY: created above, and nobody has it yet.
            let _ = unsafe { (driver.context_destroy)(context) };
            return Err(CudaError::CannotLend);
        }
        let multiprocessors = attribute(&driver, device, MULTIPROCESSORS).unwrap_or(1);
        module::warm_up(&driver);
        let printed = config.catch_output.then(Printed::catch).and_then(|caught| {
            let failed = |error| tracing::warn!(%error, "what kernels print is lost");
            caught.map_err(failed).ok()
        });
        let opened = Self {
            driver,
            info,
            context,
            source,
            backing,
            heap: Heap::new(),
            kept: config.frames.map(Kept::new),
            lends: config.lends,
            is_whole: true,
            waits_for_end: false,
            unreleased_bytes: Cell::new(0),
            window,
            _staging: staging.clone(),
            kernel_ns,
            page,
            printed,
            modules: BTreeMap::new(),
            streams: HashMap::new(),
            timeline,
            last_end_ns: 0,
            in_flight: VecDeque::new(),
            front_since_ns: 0,
            finished: VecDeque::new(),
            free_events: Vec::new(),
            rates: Rates::default(),
            multiprocessors: multiprocessors.unsigned_abs().into(),
            waves: RefCell::default(),
            next: 0,
            next_module: 0,
            failed: Cell::new(SUCCESS),
            lost: None,
            stuck: false,
        };
        if let Some(staging) = staging {
            opened.register(staging.address() as u64, staging.len() as u64);
        }
        Ok(opened)
    }

    fn stream(&mut self, queue: QueueId) -> Result<Handle, DeviceError> {
        if let Some(stream) = self.streams.get(&queue) {
            return Ok(*stream);
        }
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: `stream` is a valid place for a handle.
        let code = unsafe { (self.driver.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        self.done("cuStreamCreate", code)?;
        self.streams.insert(queue, stream);
        Ok(stream)
    }

    fn event(&mut self) -> Result<Handle, DeviceError> {
        match self.free_events.pop() {
            Some(event) => Ok(event),
            None => {
                let (code, event) = new_event(&self.driver);
                self.done("cuEventCreate", code).map(|()| event)
            }
        }
    }

    fn begin(&mut self, queue: QueueId, op: Op, end: End) -> Result<OpId, DeviceError> {
        if let Some(reason) = &self.lost {
            return Err(DeviceError::Lost(reason.clone()));
        }
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(DeviceError::QueueFull);
        }
        self.bring_all()?;
        self.submit(queue, op, end)
    }

    fn done(&self, call: &str, code: Code) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        let what = format!("{call} failed: {}", self.driver.name_of(code));
        if operation::is_final(code) {
            self.failed.set(code);
            return Err(DeviceError::Lost(what));
        }
        Err(DeviceError::Refused(what))
    }

    /// Loads a module for whose variables these frames were paid. What the driver takes on a device
    /// that lends more than it has is room that others may have to give.
    fn load_module(
        &mut self,
        id: ModuleId,
        symbols: Symbols,
        frames: &[FrameRun],
    ) -> Result<(Module, LoadedModule), LoadError> {
        if !self.lends {
            return Module::load(&self.driver, id, symbols);
        }
        let loaded = self.load_where_room_is(id, &symbols, frames);
        if loaded.is_err() {
            self.tell_held();
        }
        loaded
    }

    fn load_where_room_is(
        &mut self,
        id: ModuleId,
        symbols: &Symbols,
        frames: &[FrameRun],
    ) -> Result<(Module, LoadedModule), LoadError> {
        let bytes = bytes_of(frames);
        if bytes > 0 {
            self.have_room_for_module(bytes, 0)?;
        }
        let is_full = |loaded: &Result<_, LoadError>| {
            matches!(loaded, Err(LoadError::Device(DeviceError::OutOfMemory { .. })))
        };
        // What the driver lacks beyond the account: first of its own, then of others.
        let missing_bytes = bytes.max(CHUNK_BYTES);
        let mut loaded = Module::load(&self.driver, id, symbols.clone());
        if is_full(&loaded) && self.save_some(missing_bytes).is_ok_and(|saved| saved > 0) {
            // What it saved was told without what is to come.
            self.have_room_for_module(bytes, 0)?;
            loaded = Module::load(&self.driver, id, symbols.clone());
        }
        if is_full(&loaded) {
            self.have_room_for_module(bytes, missing_bytes)?;
            loaded = Module::load(&self.driver, id, symbols.clone());
        }
        loaded
    }

    fn globals_contain(&self, address: u64, bytes: u64) -> bool {
        self.modules.values().any(|module| module.contains(address, bytes))
    }

    // Memory.

    /// Adds a cleared chunk with room for `bytes`, paid for by the ledger.
    fn grow(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory { requested: bytes };
        let size = bytes.checked_next_multiple_of(CHUNK_BYTES).ok_or_else(out_of_memory)?;
        let frames = self.source.take(size / PAGE)?;
        let later = self.lends;
        let (base, memory) = match self.backing.acquire(&self.driver, size, later) {
            Ok(chunk) => chunk,
            Err(code) => {
                self.source.give_back(&frames);
                return match code {
                    OUT_OF_MEMORY => Err(out_of_memory()),
                    other => {
                        Err(self.done("cuMemCreate", other).err().unwrap_or_else(out_of_memory))
                    }
                };
            }
        };
        if later {
            self.is_whole = false;
            self.heap.add(base, size, (memory, frames));
            return Ok(());
        }
        // Nobody is given what was not cleared.
        if let Err(error) = self.clear(base, size) {
            let _ = self.release(base, size, &memory, &frames);
            let refused = matches!(error, DeviceError::Refused(_));
            return Err(if refused { out_of_memory() } else { error });
        }
        self.heap.add(base, size, (memory, frames));
        Ok(())
    }

    /// Gives a chunk back to the driver and its frames to the ledger: those not of memory that the
    /// driver keeps.
    fn release(
        &mut self,
        base: u64,
        bytes: u64,
        memory: &Memory,
        frames: &[FrameRun],
    ) -> Result<(), DeviceError> {
        let (code, kept_bytes) = self.backing.release(&self.driver, base, bytes, memory);
        self.note_unreleased(kept_bytes);
        if kept_bytes > 0 && self.lends {
            self.tell_held();
        }
        self.done("cuMemFree", code)?;
        let is_kept = matches!(memory, Memory::Pieces(all) if all.iter().any(|one| one.is_kept));
        if let Some(kept) = self.kept.as_ref().filter(|_| is_kept) {
            kept.discard(frames);
        }
        self.source.give_back(frames);
        if self.lends {
            self.tell_held();
        }
        Ok(())
    }

    /// Zeroes device memory and waits until that is done, so that no stream can be earlier.
    fn clear(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let size =
            usize::try_from(bytes).map_err(|_| DeviceError::OutOfMemory { requested: bytes })?;
        let default = std::ptr::null_mut();
        // SAFETY: the range was allocated by the caller.
        let code = unsafe { (self.driver.fill_linear)(address, 0, size, default) };
        self.done("cuMemsetD8Async", code)?;
        self.settle()
    }

    /// Waits until what the driver does in the default stream is done. No stream of a session waits
    /// for that by itself, and a copy from pageable memory returns before its last bytes are there
    /// (CUDA Driver API, "API synchronization behavior").
    fn settle(&self) -> Result<(), DeviceError> {
        // SAFETY: null is the default stream.
        let code = unsafe { (self.driver.stream_synchronize)(std::ptr::null_mut()) };
        self.done("cuStreamSynchronize", code)
    }

    /// The pointer to a range of the pinned window.
    fn window_pointer(&self, address: u64, bytes: u64) -> Option<*mut c_void> {
        let (base, window) = self.window.as_ref()?;
        let offset = address.checked_sub(*base)?;
        let end = offset.checked_add(bytes)?;
        let start = usize::try_from(offset).ok()?;
        (bytes > 0 && end <= window.len() as u64)
            .then(|| std::ptr::with_exposed_provenance_mut(window.address() + start))
    }

    /// Lets the device reach host memory directly. Without it copies still work, more slowly.
    fn register(&self, address: u64, bytes: u64) {
        let (Ok(start), Ok(size)) = (usize::try_from(address), usize::try_from(bytes)) else {
            return;
        };
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is mapped shared memory that this device keeps alive.
        let code = unsafe { (self.driver.host_register)(start, size, REGISTER_MAPPED) };
        if code != SUCCESS {
            let name = self.driver.name_of(code);
            tracing::debug!(address, bytes, name, "host memory is not registered");
        }
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    fn memory_use(&self) -> MemoryUse {
        self.source.usage()
    }

    fn alloc(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        if let Some(address) = self.heap.alloc(bytes) {
            return Ok(address);
        }
        self.grow(bytes)?;
        self.heap.alloc(bytes).ok_or(DeviceError::OutOfMemory { requested: bytes })
    }

    fn free(&mut self, address: u64) -> Result<(), DeviceError> {
        if self.stuck {
            // The driver would wait for what cannot be ended; the process's end frees all.
            return Ok(());
        }
        let freed = self.heap.free(address).ok_or(DeviceError::NotAnAllocation { address })?;
        let Some((base, bytes, (memory, frames))) = freed else { return Ok(()) };
        self.release(base, bytes, &memory, &frames)
    }

    fn load(&mut self, images: &[&[u8]]) -> Result<LoadedModule, LoadError> {
        let id = ModuleId(self.next_module);
        self.next_module += 1;
        let (major, minor) = self.info.compute_capability;
        let symbols = Symbols::of(major * 10 + minor, images)?;
        // The driver takes memory for variables by itself; the ledger pays like for allocations.
        let frames = match symbols.global_bytes {
            0 => Vec::new(),
            bytes => self.source.take(bytes.div_ceil(CHUNK_BYTES) * (CHUNK_BYTES / PAGE))?,
        };
        let loaded = self.load_module(id, symbols, &frames);
        if loaded.is_err() {
            self.source.give_back(&frames);
        }
        let (mut module, loaded) = loaded?;
        module.frames = frames;
        self.modules.insert(id, module);
        Ok(loaded)
    }

    fn unload(&mut self, module: ModuleId) {
        if self.stuck {
            return;
        }
        self.rates.forget(module);
        self.waves.get_mut().forget(module);
        if let Some(module) = self.modules.remove(&module) {
            match module.unload(&self.driver) {
                Ok(frames) if frames.is_empty() => {}
                Ok(frames) => {
                    self.source.give_back(&frames);
                    if self.lends {
                        self.tell_held();
                    }
                }
                Err(frames) => self.note_unreleased(bytes_of(&frames)),
            }
        }
    }

    fn start(&mut self, queue: QueueId, op: Op, max_ns: Option<u64>) -> Result<OpId, DeviceError> {
        self.begin(queue, op, End::Told { max_ns })
    }

    fn start_open(&mut self, queue: QueueId, op: Op) -> Result<OpId, DeviceError> {
        self.begin(queue, op, End::Open)
    }

    fn close(&mut self) {
        // As in `drive`.
        let _ = self.tell_open();
    }

    fn wave(&self, launch: &Launch) -> Option<u64> {
        self.pieces_of(launch).map(|(.., wave)| wave)
    }

    fn swapping(&mut self) -> Option<&mut dyn Swapping> {
        self.backing.range().and(self.kept.as_ref())?;
        Some(self)
    }

    fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.heap.contains(address, bytes) || self.globals_contain(address, bytes) {
            return Ok(());
        }
        Err(DeviceError::BadRange { address, bytes })
    }

    fn read_word(&mut self, address: u64, wide: bool) -> Result<u64, DeviceError> {
        let bytes = if wide { 8 } else { 4 };
        self.check_range(address, bytes as u64)?;
        if let Some(word) = self.saved_word(address, bytes) {
            return Ok(u64::from_le_bytes(word));
        }
        let mut word = [0_u8; 8];
        // SAFETY: `word` has 8 bytes, at least `bytes`; the device range was checked.
        let code = unsafe { (self.driver.copy_out)(word.as_mut_ptr().cast(), address, bytes) };
        self.done("cuMemcpyDtoH", code)?;
        Ok(u64::from_le_bytes(word))
    }

    fn write_word(&mut self, address: u64, value: u64, wide: bool) -> Result<(), DeviceError> {
        let bytes = if wide { 8 } else { 4 };
        self.check_range(address, bytes as u64)?;
        let word = value.to_le_bytes();
        if self.write_saved_word(address, &word[..bytes]) {
            return Ok(());
        }
        // SAFETY: `word` has 8 bytes, at least `bytes`; the device range was checked.
        let code = unsafe { (self.driver.copy_in)(address, word.as_ptr().cast(), bytes) };
        self.done("cuMemcpyHtoD", code)?;
        self.settle()
    }

    fn drive(&mut self, _slice_ns: u64) -> Driven {
        // If it fails, what is open ends as the fault that it failed for, or is tried again.
        let _ = self.tell_open();
        self.collect();
        if !self.finished.is_empty() {
            return Driven::Busy;
        }
        if self.in_flight.is_empty() {
            return Driven::Idle;
        }
        let now_ns = monotonic_ns();
        let ran_ns = now_ns.saturating_sub(self.front_since_ns);
        if self.kernel_ns.is_some_and(|limit_ns| ran_ns > limit_ns) {
            self.give_up();
            return Driven::Busy;
        }
        Driven::WaitUntil(now_ns + (ran_ns / POLL_PART).clamp(POLL_NS_MIN, POLL_NS_MAX))
    }

    fn poll(&mut self) -> Option<Completion> {
        self.collect();
        self.finished.pop_front()
    }

    fn abort(&mut self, _op: OpId) {
        self.give_up();
    }

    fn take_output(&mut self) -> Vec<u8> {
        let Some(printed) = &self.printed else { return Vec::new() };
        if !self.modules.values().any(Module::prints) {
            return Vec::new();
        }
        self.timeline.wait(&self.driver);
        printed.take()
    }

    fn estimate_ns(&self, _op: &Op) -> Option<u64> {
        None
    }

    fn is_stuck(&self) -> bool {
        self.stuck
    }

    fn pin_host(&mut self, address: u64, bytes: u64) {
        if self.window_pointer(address, bytes).is_some() {
            self.register(address, bytes);
        }
    }

    fn unpin_host(&mut self, address: u64, bytes: u64) {
        let Some(start) = self.window_pointer(address, bytes).filter(|_| !self.stuck) else {
            return;
        };
        // SAFETY: a range of the window, whether it is registered or not: then it is refused.
        let _ = unsafe { (self.driver.host_unregister)(start) };
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.stuck {
            // It would wait for what cannot be ended.
            return;
        }
        // Destroying the context ends its work and frees its streams, events, modules and what
        // `cuMemAlloc` gave; mapped memory and reserved addresses belong to no context.
        // SAFETY: the context was created by `open` and is destroyed once.
        let _ = unsafe { (self.driver.context_destroy)(self.context) };
        for (base, bytes, (memory, _)) in self.heap.take_chunks() {
            if matches!(memory, Memory::Pieces(_)) {
                let _ = self.backing.release(&self.driver, base, bytes, &memory);
            }
        }
        self.backing.unreserve();
    }
}

fn bytes_of(frames: &[FrameRun]) -> u64 {
    frames.iter().map(|run| run.count * PAGE).sum()
}

/// An event, if the code says that there is one.
fn new_event(driver: &Driver) -> (Code, Handle) {
    let mut event: Handle = std::ptr::null_mut();
    // SAFETY: `event` is a valid place for a handle.
    let code = unsafe { (driver.event_create)(&raw mut event, EVENT_DEFAULT) };
    (code, event)
}

/// A NUL-terminated copy of a name; names that contain a NUL do not exist.
fn c_string(name: &str) -> Option<CString> {
    CString::new(name).ok()
}
