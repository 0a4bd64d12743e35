//! Page-locked host memory.

use core::ffi::c_void;
use std::sync::Once;

use weft_client::{Client, RegisterError};
use weft_wire::Status;

use crate::abi::CUdeviceptr;
use crate::args::Out;
use crate::border;
use crate::memory::{narrow, wide};

/// `cuMemAllocHost_v2`.
pub(crate) fn alloc_plain(
    client: &Client,
    place: Out<*mut c_void>,
    bytes: usize,
) -> Result<(), Status> {
    alloc(client, place, bytes, 0)
}

/// `cuMemHostAlloc`.
pub(crate) fn alloc(
    client: &Client,
    place: Out<*mut c_void>,
    bytes: usize,
    flags: u32,
) -> Result<(), Status> {
    let place = place.required()?;
    let address = client.host_alloc(wide(bytes), flags)?;
    place.set(core::ptr::with_exposed_provenance_mut(narrow(address)));
    Ok(())
}

/// `cuMemFreeHost`.
pub(crate) fn free(client: &Client, memory: *mut c_void) -> Result<(), Status> {
    client.host_free(wide(memory.addr()))
}

/// `cuMemHostGetDevicePointer`.
pub(crate) fn device_pointer(
    client: &Client,
    address: Out<CUdeviceptr>,
    memory: *mut c_void,
    flags: u32,
) -> Result<(), Status> {
    let address = address.required()?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    address.set(client.host_device_pointer(wide(memory.addr()))?);
    Ok(())
}

/// `cuMemHostGetFlags`.
pub(crate) fn flags(client: &Client, flags: Out<u32>, memory: *mut c_void) -> Result<(), Status> {
    let flags = flags.required()?;
    flags.set(client.host_flags(wide(memory.addr()))?);
    Ok(())
}

/// `cuMemHostRegister`.
pub(crate) fn register(
    client: &Client,
    memory: *mut c_void,
    bytes: usize,
    flags: u32,
) -> Result<(), Status> {
    let registered = client.host_register(wide(memory.addr()), wide(bytes), flags);
    registered.map_err(|error| {
        if matches!(error, RegisterError::Unfit(_)) {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| border::tell(&format!("weft: cuMemHostRegister: {error}")));
        }
        error.status()
    })
}

/// `cuMemHostUnregister`.
pub(crate) fn unregister(client: &Client, memory: *mut c_void) -> Result<(), Status> {
    client.host_unregister(wide(memory.addr()))
}
