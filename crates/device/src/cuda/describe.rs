//! What GPUs there are, and what a tenant is told of one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString, c_char, c_int};
use std::path::Path;

use super::driver::{Code, Driver, SUCCESS, VirtualMemory};
use crate::{Capabilities, DeviceInfo};

/// Variable that names another library than the system's `libcuda.so.1`.
pub const LIBRARY_VARIABLE: &str = "WEFT_CUDA_LIBRARY";

/// `CUdevice_attribute` numbers that exist (the last is of CUDA 12.9).
const ATTRIBUTES: std::ops::RangeInclusive<c_int> = 1..=144;
/// The last attribute that states a fact of the hardware throughout. Later ones are mostly
/// features, and only those of [`FORWARDED`] are Weft's as well: no virtual memory management, no
/// cooperative or clustered launches, no sharing between processes.
const FACTS_MAX: c_int = 87;
/// `COMPUTE_PREEMPTION_SUPPORTED`, `MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`,
/// `MAX_BLOCKS_PER_MULTIPROCESSOR`, `RESERVED_SHARED_MEMORY_PER_BLOCK`, `MEMORY_POOLS_SUPPORTED`.
/// Not `HOST_REGISTER_SUPPORTED` and `CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`: the worker has
/// nothing at the addresses of its tenant's own memory.
const FORWARDED: [c_int; 5] = [90, 97, 106, 111, 115];
/// `PAGEABLE_MEMORY_ACCESS`
const PAGEABLE_MEMORY_ACCESS: c_int = 88;
/// `STREAM_PRIORITIES_SUPPORTED`: the node orders streams itself.
const STREAM_PRIORITIES: c_int = 78;
/// `COMPUTE_MODE`, of which this value lets nobody in, and this one only one process.
pub(super) const COMPUTE_MODE: c_int = 20;
const MODE_PROHIBITED: c_int = 2;
const MODE_EXCLUSIVE: c_int = 3;

/// A GPU that this machine's driver offers, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver library.
    #[error("no CUDA driver: {0}")]
    NoDriver(String),
    /// The driver found no device.
    #[error("the CUDA driver offers no device: {0}")]
    NoDevice(String),
    /// The driver has fewer devices.
    #[error("there is no device {ordinal}: the CUDA driver lists {count}")]
    NoSuchDevice {
        /// Which was asked for.
        ordinal: u32,
        /// How many there are.
        count: i32,
    },
    /// More is lent than there is, and its memory cannot be moved.
    #[error(
        "this driver does not move memory under its addresses (no virtual memory management, or no \
         room for the program's range): set device.oversubscribe = 1"
    )]
    CannotLend,
    /// A call failed.
    #[error("{call} failed: {name}")]
    Call {
        /// What was called.
        call: &'static str,
        /// The result's name.
        name: String,
    },
}

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its place in the driver's list.
    pub ordinal: u32,
    /// What a tenant is told of it.
    pub info: DeviceInfo,
    /// Why a node cannot execute on it.
    pub unusable: Option<String>,
    /// Kernels reach all memory of the process that launches them (heterogeneous memory management,
    /// or the same in hardware): a worker's own too.
    pub reaches_host: bool,
}

/// The GPUs that the driver lists, in its order. No context is made.
///
/// # Errors
/// [`CudaError`] says why there are none.
pub fn devices(library: Option<&Path>) -> Result<Vec<Found>, CudaError> {
    let (driver, _) = load(library)?;
    let count = u32::try_from(count(&driver)?).unwrap_or(0);
    (0..count)
        .map(|ordinal| {
            let info = describe(&driver, ordinal)?;
            let unusable = match info.attributes.get(&COMPUTE_MODE.unsigned_abs()) {
                Some(&MODE_PROHIBITED) => {
                    Some("its compute mode is `prohibited`; set it by nvidia-smi -c 0".to_owned())
                }
                Some(&MODE_EXCLUSIVE) => Some(
                    "its compute mode lets one process in, but every session has its own; \
                     set it by nvidia-smi -c 0"
                        .to_owned(),
                ),
                Some(_) | None => None,
            };
            let pageable = attribute(&driver, device(&driver, ordinal)?, PAGEABLE_MEMORY_ACCESS);
            Ok(Found { ordinal, info, unusable, reaches_host: pageable == Some(1) })
        })
        .collect()
}

/// Loads and starts the driver: `library`, else [`LIBRARY_VARIABLE`], else the system's.
pub(super) fn load(library: Option<&Path>) -> Result<(Driver, Option<VirtualMemory>), CudaError> {
    let library: OsString = match library {
        Some(path) => path.as_os_str().to_owned(),
        None => std::env::var_os(LIBRARY_VARIABLE)
            .unwrap_or_else(|| OsStr::new("libcuda.so.1").to_owned()),
    };
    let (driver, virtual_memory) = Driver::load(&library).map_err(|error| {
        // The error itself says only that loading failed; its source says what is wrong.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        CudaError::NoDriver(source.unwrap_or_else(|| error.to_string()))
    })?;
    // SAFETY: `cuInit` takes no pointers.
    let code = unsafe { (driver.init)(0) };
    if code != SUCCESS {
        return Err(CudaError::NoDevice(driver.name_of(code)));
    }
    Ok((driver, virtual_memory))
}

pub(super) fn check(driver: &Driver, call: &'static str, code: Code) -> Result<(), CudaError> {
    if code == SUCCESS { Ok(()) } else { Err(CudaError::Call { call, name: driver.name_of(code) }) }
}

fn count(driver: &Driver) -> Result<c_int, CudaError> {
    let mut count = 0;
    // SAFETY: `count` is a valid place for an int.
    check(driver, "cuDeviceGetCount", unsafe { (driver.device_count)(&raw mut count) })?;
    Ok(count)
}

/// The driver's handle of a device.
pub(super) fn device(driver: &Driver, ordinal: u32) -> Result<c_int, CudaError> {
    let count = count(driver)?;
    let number = c_int::try_from(ordinal).ok().filter(|number| *number < count);
    let number = number.ok_or(CudaError::NoSuchDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: `device` is a valid place for an int.
    check(driver, "cuDeviceGet", unsafe { (driver.device)(&raw mut device, number) })?;
    Ok(device)
}

pub(super) fn describe(driver: &Driver, ordinal: u32) -> Result<DeviceInfo, CudaError> {
    let device = device(driver, ordinal)?;
    let mut name = [0_u8; 256];
    // SAFETY: `name` has room for the 256 bytes that the call may write.
    let code = unsafe { (driver.device_name)(name.as_mut_ptr().cast::<c_char>(), 256, device) };
    check(driver, "cuDeviceGetName", code)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let mut memory = 0;
    // SAFETY: `memory` is a valid place for a size.
    let code = unsafe { (driver.device_memory)(&raw mut memory, device) };
    check(driver, "cuDeviceTotalMem", code)?;
    let mut uuid = [0; 16];
    // SAFETY: `uuid` has the 16 bytes of a `CUuuid`.
    check(driver, "cuDeviceGetUuid", unsafe { (driver.device_uuid)(&raw mut uuid, device) })?;
    let forwarded = |number: &c_int| {
        *number != STREAM_PRIORITIES && (*number <= FACTS_MAX || FORWARDED.contains(number))
    };
    let attributes: BTreeMap<u32, i32> = ATTRIBUTES
        .filter(forwarded)
        .filter_map(|number| {
            attribute(driver, device, number).map(|value| (number.unsigned_abs(), value))
        })
        .collect();
    let capability = |number: u32| attributes.get(&number).map_or(0, |value| value.unsigned_abs());
    Ok(DeviceInfo {
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        backend: "cuda".to_owned(),
        uuid,
        // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        compute_capability: (capability(75), capability(76)),
        memory_bytes: memory as u64,
        attributes,
        capabilities: Capabilities {
            slice_blocks: true,
            cancel: false,
            preemptive: true,
            runs_ahead: true,
            managed: false,
        },
    })
}

/// A device attribute, if the driver knows it.
pub(super) fn attribute(driver: &Driver, device: c_int, number: c_int) -> Option<i32> {
    let mut value = 0;
    // SAFETY: `value` is a valid place for an int; unknown numbers are refused.
    let code = unsafe { (driver.device_attribute)(&raw mut value, number, device) };
    (code == SUCCESS).then_some(value)
}
