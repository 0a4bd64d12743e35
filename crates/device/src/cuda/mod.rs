//! A genuine NVIDIA GPU, through the `libcuda` that its driver installed.
//!
//! One context per session. Each operation runs between two timing events on the stream of its
//! queue; what was charged is what the device's own timestamps say. Thread blocks cannot be sliced
//! and a running kernel cannot be aborted here: [`crate::Capabilities`] says so.

mod driver;
mod module;
mod operation;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use self::driver::{
    Code, Driver, EVENT_DEFAULT, Handle, OUT_OF_MEMORY, STREAM_NON_BLOCKING, SUCCESS,
};
use self::module::Module;
use self::operation::InFlight;
use crate::{
    Capabilities, Completion, Device, DeviceError, DeviceInfo, Driven, LoadError, LoadedModule,
    MemoryUse, ModuleId, Op, OpId, QueueId,
};

/// Most operations in flight; more are refused as [`DeviceError::QueueFull`].
const IN_FLIGHT_MAX: usize = 1024;
/// How long a caller without other work may sleep before it looks for completions again.
const POLL_NS: u64 = 20_000;
/// `CUdevice_attribute` numbers that exist (the last is of CUDA 12.9).
const ATTRIBUTES: std::ops::RangeInclusive<c_int> = 1..=144;
/// Variable that names another library than the system's `libcuda.so.1`.
pub const LIBRARY_VARIABLE: &str = "WEFT_CUDA_LIBRARY";

/// A GPU that this machine's driver offers, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver library.
    #[error("no CUDA driver: {0}")]
    NoDriver(String),
    /// The driver found no device.
    #[error("the CUDA driver offers no device: {0}")]
    NoDevice(String),
    /// A call failed.
    #[error("{call} failed: {name}")]
    Call {
        /// What was called.
        call: &'static str,
        /// The result's name.
        name: String,
    },
}

/// One session's context on a GPU.
#[derive(Debug)]
pub struct CudaDevice {
    driver: Driver,
    info: DeviceInfo,
    context: Handle,
    quota_bytes: u64,
    used_bytes: u64,
    allocations: BTreeMap<u64, u64>,
    modules: BTreeMap<ModuleId, Module>,
    streams: HashMap<QueueId, Handle>,
    /// Event recorded when the context was made, and the clock then: the device clock's origin.
    origin: (Handle, u64),
    in_flight: VecDeque<InFlight>,
    finished: VecDeque<Completion>,
    free_events: Vec<Handle>,
    next: u64,
    /// The last code that was no success.
    failed: Cell<Code>,
    lost: Option<String>,
}

/// Names of the GPUs that a session could open, in ordinal order.
///
/// # Errors
/// [`CudaError`] says why there are none.
pub fn devices() -> Result<Vec<String>, CudaError> {
    let driver = load()?;
    let mut count = 0;
    // SAFETY: `count` is a valid place for an int.
    check(&driver, "cuDeviceGetCount", unsafe { (driver.device_count)(&raw mut count) })?;
    (0..count).map(|ordinal| device_name(&driver, ordinal)).collect()
}

fn load() -> Result<Driver, CudaError> {
    let library: OsString =
        std::env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| OsStr::new("libcuda.so.1").to_owned());
    let driver = Driver::load(&library).map_err(|error| CudaError::NoDriver(error.to_string()))?;
    // SAFETY: `cuInit` takes no pointers.
    let code = unsafe { (driver.init)(0) };
    if code != SUCCESS {
        return Err(CudaError::NoDevice(driver.name_of(code)));
    }
    Ok(driver)
}

fn check(driver: &Driver, call: &'static str, code: Code) -> Result<(), CudaError> {
    if code == SUCCESS { Ok(()) } else { Err(CudaError::Call { call, name: driver.name_of(code) }) }
}

fn device_name(driver: &Driver, ordinal: c_int) -> Result<String, CudaError> {
    let mut device = 0;
    // SAFETY: `device` is a valid place for an int.
    check(driver, "cuDeviceGet", unsafe { (driver.device)(&raw mut device, ordinal) })?;
    let mut name = [0_u8; 256];
    // SAFETY: `name` has room for the 256 bytes that the call may write.
    let code = unsafe { (driver.device_name)(name.as_mut_ptr().cast::<c_char>(), 256, device) };
    check(driver, "cuDeviceGetName", code)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

impl CudaDevice {
    /// Opens GPU `ordinal` with a context of its own and at most `quota_bytes` of memory.
    ///
    /// # Errors
    /// [`CudaError`]: no driver, no such device, no room for a context.
    pub fn open(ordinal: i32, quota_bytes: u64) -> Result<Self, CudaError> {
        let driver = load()?;
        let info = describe(&driver, ordinal)?;
        let mut device = 0;
        // SAFETY: `device` is a valid place for an int.
        check(&driver, "cuDeviceGet", unsafe { (driver.device)(&raw mut device, ordinal) })?;
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: `context` is a valid place for a handle.
        let code = unsafe { (driver.context_create)(&raw mut context, 0, device) };
        check(&driver, "cuCtxCreate", code)?;
        let origin = new_event(&driver)?;
        // SAFETY: `origin` was created just above; null is the default stream.
        let code = unsafe { (driver.event_record)(origin, std::ptr::null_mut()) };
        check(&driver, "cuEventRecord", code)?;
        let quota_bytes = quota_bytes.min(info.memory_bytes);
        Ok(Self {
            driver,
            info,
            context,
            quota_bytes,
            used_bytes: 0,
            allocations: BTreeMap::new(),
            modules: BTreeMap::new(),
            streams: HashMap::new(),
            origin: (origin, monotonic_ns()),
            in_flight: VecDeque::new(),
            finished: VecDeque::new(),
            free_events: Vec::new(),
            next: 0,
            failed: Cell::new(SUCCESS),
            lost: None,
        })
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
            None => new_event(&self.driver).map_err(|error| DeviceError::Lost(error.to_string())),
        }
    }

    fn done(&self, call: &str, code: Code) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        self.failed.set(code);
        Err(DeviceError::Lost(format!("{call} failed: {}", self.driver.name_of(code))))
    }

    /// Nanoseconds of the device clock at an event that has completed.
    fn event_ns(&self, event: Handle) -> u64 {
        let mut ms = 0.0_f32;
        // SAFETY: both events were recorded and have completed; `ms` is a valid place.
        let code = unsafe { (self.driver.event_elapsed)(&raw mut ms, self.origin.0, event) };
        if code != SUCCESS || ms.is_nan() {
            return monotonic_ns();
        }
        let since = Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default();
        self.origin.1.saturating_add(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn globals_contain(&self, address: u64, bytes: u64) -> bool {
        self.modules.values().any(|module| module.contains(address, bytes))
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
        MemoryUse {
            free: self.quota_bytes.saturating_sub(self.used_bytes),
            total: self.quota_bytes,
        }
    }

    fn alloc(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let out_of_memory = DeviceError::OutOfMemory { requested: bytes };
        if bytes > self.quota_bytes.saturating_sub(self.used_bytes) {
            return Err(out_of_memory);
        }
        let Ok(size) = usize::try_from(bytes) else { return Err(out_of_memory) };
        let mut address = 0;
        // SAFETY: `address` is a valid place for a device pointer.
        let code = unsafe { (self.driver.memory_alloc)(&raw mut address, size) };
        if code == OUT_OF_MEMORY {
            return Err(out_of_memory);
        }
        self.done("cuMemAlloc", code)?;
        // The next tenant must not read what the last one left; the driver promises nothing.
        // SAFETY: the range was allocated just above; null is the default stream.
        let code = unsafe { (self.driver.fill_8)(address, size, 0, size, 1, std::ptr::null_mut()) };
        self.done("cuMemsetD2D8Async", code)?;
        self.allocations.insert(address, bytes);
        self.used_bytes += bytes;
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), DeviceError> {
        let Some(bytes) = self.allocations.remove(&address) else {
            return Err(DeviceError::NotAnAllocation { address });
        };
        self.used_bytes -= bytes;
        // SAFETY: `address` came from `cuMemAlloc` and was not freed since.
        let code = unsafe { (self.driver.memory_free)(address) };
        self.done("cuMemFree", code)
    }

    fn load(&mut self, images: &[&[u8]]) -> Result<LoadedModule, LoadError> {
        let id = ModuleId(u32::try_from(self.next).unwrap_or(u32::MAX));
        self.next += 1;
        let (module, loaded) = Module::load(&self.driver, id, images)?;
        self.modules.insert(id, module);
        Ok(loaded)
    }

    fn unload(&mut self, module: ModuleId) {
        if let Some(module) = self.modules.remove(&module) {
            module.unload(&self.driver);
        }
    }

    fn start(&mut self, queue: QueueId, op: Op) -> Result<OpId, DeviceError> {
        if let Some(reason) = &self.lost {
            return Err(DeviceError::Lost(reason.clone()));
        }
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(DeviceError::QueueFull);
        }
        self.submit(queue, op)
    }

    fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let below = self.allocations.range(..=address).next_back();
        let inside = address.checked_add(bytes).is_some_and(|end| {
            below.is_some_and(|(start, length)| end <= start + length)
                || self.globals_contain(address, bytes)
        });
        if inside { Ok(()) } else { Err(DeviceError::BadRange { address, bytes }) }
    }

    fn read_word(&mut self, address: u64, wide: bool) -> Result<u64, DeviceError> {
        let bytes = if wide { 8 } else { 4 };
        self.check_range(address, bytes as u64)?;
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
        // SAFETY: `word` has 8 bytes, at least `bytes`; the device range was checked.
        let code = unsafe { (self.driver.copy_in)(address, word.as_ptr().cast(), bytes) };
        self.done("cuMemcpyHtoD", code)
    }

    fn drive(&mut self, _slice_ns: u64) -> Driven {
        self.collect();
        if !self.finished.is_empty() {
            return Driven::Busy;
        }
        if self.in_flight.is_empty() {
            return Driven::Idle;
        }
        Driven::WaitUntil(monotonic_ns() + POLL_NS)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.collect();
        self.finished.pop_front()
    }

    fn abort(&mut self, op: OpId) {
        self.give_up(op);
    }

    fn estimate_ns(&self, _op: &Op) -> Option<u64> {
        None
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Destroying the context ends its work and frees its streams, events, modules and memory.
        // SAFETY: the context was created by `open` and is destroyed once.
        let _ = unsafe { (self.driver.context_destroy)(self.context) };
    }
}

fn new_event(driver: &Driver) -> Result<Handle, CudaError> {
    let mut event: Handle = std::ptr::null_mut();
    // SAFETY: `event` is a valid place for a handle.
    let code = unsafe { (driver.event_create)(&raw mut event, EVENT_DEFAULT) };
    check(driver, "cuEventCreate", code)?;
    Ok(event)
}

fn describe(driver: &Driver, ordinal: c_int) -> Result<DeviceInfo, CudaError> {
    let name = device_name(driver, ordinal)?;
    let mut device = 0;
    // SAFETY: `device` is a valid place for an int.
    check(driver, "cuDeviceGet", unsafe { (driver.device)(&raw mut device, ordinal) })?;
    let mut memory = 0;
    // SAFETY: `memory` is a valid place for a size.
    let code = unsafe { (driver.device_memory)(&raw mut memory, device) };
    check(driver, "cuDeviceTotalMem", code)?;
    let mut uuid = [0; 16];
    // SAFETY: `uuid` has the 16 bytes of a `CUuuid`.
    check(driver, "cuDeviceGetUuid", unsafe { (driver.device_uuid)(&raw mut uuid, device) })?;
    let mut attributes = BTreeMap::new();
    for number in ATTRIBUTES {
        let mut value = 0;
        // SAFETY: `value` is a valid place for an int; unknown numbers are refused.
        let code = unsafe { (driver.device_attribute)(&raw mut value, number, device) };
        if code == SUCCESS {
            attributes.insert(number.unsigned_abs(), value);
        }
    }
    let attribute = |number: u32| attributes.get(&number).map_or(0, |value| value.unsigned_abs());
    Ok(DeviceInfo {
        name,
        backend: "cuda",
        uuid,
        // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        compute_capability: (attribute(75), attribute(76)),
        memory_bytes: memory as u64,
        attributes,
        capabilities: Capabilities { slice_blocks: false, cancel: false, preemptive: true },
    })
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A NUL-terminated copy of a name; names that contain a NUL do not exist.
fn c_string(name: &str) -> Option<CString> {
    CString::new(name).ok()
}
