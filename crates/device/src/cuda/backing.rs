//! Where chunks of device memory come from.
//!
//! With the driver's virtual memory management, a vGPU's memory lies in the range of addresses that
//! its client reserved, so host and device pointers never coincide and memory can later be moved
//! under its address. A driver without it chooses the addresses itself; then the client holds what
//! it can of them.

use std::ffi::{c_int, c_ushort};

use super::driver::{Address, Code, Driver, OUT_OF_MEMORY, SUCCESS, VirtualMemory};
use super::extents::Extents;

/// Least chunk and unit of chunks, in bytes; a multiple of every granularity known of GPUs.
pub(super) const CHUNK_BYTES: u64 = 2 << 20;

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
pub(super) const VIRTUAL_MEMORY_SUPPORTED: c_int = 102;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`
const TYPE_PINNED: c_int = 1;
const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: c_int = 3;

/// `CUmemLocation`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *const std::ffi::c_void,
    compression: u8,
    rdma: u8,
    usage: c_ushort,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

/// What backs a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// `cuMemAlloc`
    Allocated,
    /// `cuMemCreate`, mapped into the reserved range.
    Mapped(u64),
}

/// How chunks are had.
#[derive(Debug)]
pub(super) enum Backing {
    /// The driver chooses addresses.
    Driver,
    /// Within a reserved range.
    Range { calls: VirtualMemory, free: Extents, device: c_int, base: Address, bytes: usize },
}

impl Backing {
    /// The range `base..base + bytes` if the driver can reserve exactly it.
    pub(super) fn reserve(
        calls: Option<VirtualMemory>,
        device: c_int,
        base: u64,
        bytes: u64,
    ) -> Self {
        let Some(calls) = calls else { return Self::Driver };
        let bytes = bytes / CHUNK_BYTES * CHUNK_BYTES;
        let (Ok(size), Ok(align)) = (usize::try_from(bytes), usize::try_from(CHUNK_BYTES)) else {
            return Self::Driver;
        };
        let mut address = 0;
        // SAFETY: `address` is a valid place for a device pointer; the hint is only a wish.
        let code = unsafe { (calls.reserve)(&raw mut address, size, align, base, 0) };
        if code != SUCCESS {
            tracing::warn!(code, "no range of device addresses; the driver chooses them");
            return Self::Driver;
        }
        if address != base {
            tracing::warn!(base, address, "the client's range is taken; the driver chooses");
            // SAFETY: reserved just above with this size.
            let _ = unsafe { (calls.unreserve)(address, size) };
            return Self::Driver;
        }
        Self::Range { calls, free: Extents::of(base, bytes), device, base, bytes: size }
    }

    /// Memory for a chunk of `bytes` (a multiple of [`CHUNK_BYTES`]), of unknown content.
    pub(super) fn acquire(
        &mut self,
        driver: &Driver,
        bytes: u64,
    ) -> Result<(Address, Memory), Code> {
        let size = usize::try_from(bytes).map_err(|_| OUT_OF_MEMORY)?;
        match self {
            Self::Driver => {
                let mut address = 0;
                // SAFETY: `address` is a valid place for a device pointer.
                let code = unsafe { (driver.memory_alloc)(&raw mut address, size) };
                if code == SUCCESS { Ok((address, Memory::Allocated)) } else { Err(code) }
            }
            Self::Range { calls, free, device, .. } => {
                let address = free.take(bytes).ok_or(OUT_OF_MEMORY)?;
                let mapped = map(*calls, *device, address, size);
                if mapped.is_err() {
                    free.put(address, bytes);
                }
                mapped.map(|handle| (address, Memory::Mapped(handle)))
            }
        }
    }

    /// Gives a chunk's memory back to the driver.
    pub(super) fn release(
        &mut self,
        driver: &Driver,
        address: Address,
        bytes: u64,
        memory: &Memory,
    ) -> Code {
        let size = usize::try_from(bytes).unwrap_or(0);
        match (self, memory) {
            (Self::Range { calls, free, .. }, Memory::Mapped(handle)) => {
                // SAFETY: `acquire` mapped exactly this range.
                let unmapped = unsafe { (calls.unmap)(address, size) };
                if unmapped == SUCCESS {
                    free.put(address, bytes);
                }
                // SAFETY: the handle came from `cuMemCreate` and is released once; the driver keeps
                // the memory while it is mapped.
                let released = unsafe { (calls.release)(*handle) };
                if unmapped == SUCCESS { released } else { unmapped }
            }
            // SAFETY: `address` came from `cuMemAlloc` and was not freed since.
            (Self::Driver | Self::Range { .. }, _) => unsafe { (driver.memory_free)(address) },
        }
    }

    /// Gives the reserved addresses back; nothing is mapped there any more.
    pub(super) fn unreserve(&mut self) {
        if let Self::Range { calls, base, bytes, .. } = self {
            // SAFETY: reserved by `reserve` with this size. What is still mapped the driver
            // refuses to give back.
            let _ = unsafe { (calls.unreserve)(*base, *bytes) };
            *self = Self::Driver;
        }
    }
}

fn map(calls: VirtualMemory, device: c_int, address: u64, size: usize) -> Result<u64, Code> {
    let location = Location { kind: LOCATION_DEVICE, id: device };
    let properties = Properties {
        kind: TYPE_PINNED,
        handle_types: 0,
        location,
        win32: std::ptr::null(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let mut handle = 0;
    // SAFETY: a valid place for a handle and complete properties.
    let code = unsafe { (calls.create)(&raw mut handle, size, &raw const properties, 0) };
    if code != SUCCESS {
        return Err(code);
    }
    // SAFETY: the range is reserved and free, the handle is as long.
    let mut code = unsafe { (calls.map)(address, size, 0, handle, 0) };
    if code == SUCCESS {
        let access = Access { location, flags: READ_WRITE };
        // SAFETY: the range was mapped just above; one description.
        code = unsafe { (calls.access)(address, size, &raw const access, 1) };
        if code == SUCCESS {
            return Ok(handle);
        }
        // SAFETY: mapped just above.
        let _ = unsafe { (calls.unmap)(address, size) };
    }
    // SAFETY: created just above, not mapped.
    let _ = unsafe { (calls.release)(handle) };
    Err(code)
}
