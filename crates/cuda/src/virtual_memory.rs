//! Virtual memory management: addresses without memory, memory without addresses, and mappings.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
};
use crate::args::{In, Out};
use crate::memory::{narrow, wide};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`, the greatest option.
const RECOMMENDED: u32 = 1;

/// Nothing has a flag yet.
fn no_flags(flags: u64) -> Result<(), Status> {
    if flags == 0 { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// The device whose memory is meant; what other processes can open there is none.
fn device_of(wanted: &CUmemAllocationProp) -> Result<i32, Status> {
    if wanted.kind != ALLOCATION_PINNED || wanted.location.kind != LOCATION_DEVICE {
        return Err(Status::INVALID_VALUE);
    }
    let plain = wanted.requestedHandleTypes == 0;
    plain.then_some(wanted.location.id).ok_or(Status::NOT_SUPPORTED)
}

/// `cuMemAddressReserve`. Where the program would like them to be is not heeded.
pub(crate) fn reserve(
    client: &Client,
    address: Out<CUdeviceptr>,
    bytes: usize,
    alignment: usize,
    _wish: CUdeviceptr,
    flags: u64,
) -> Result<(), Status> {
    no_flags(flags)?;
    let address = address.required()?;
    address.set(client.apart_reserve(wide(bytes), wide(alignment))?);
    Ok(())
}

/// `cuMemAddressFree`.
pub(crate) fn unreserve(client: &Client, address: CUdeviceptr, bytes: usize) -> Result<(), Status> {
    client.apart_unreserve(address, wide(bytes))
}

/// `cuMemCreate`.
pub(crate) fn create(
    client: &Client,
    handle: Out<CUmemGenericAllocationHandle>,
    bytes: usize,
    wanted: In<CUmemAllocationProp>,
    flags: u64,
) -> Result<(), Status> {
    no_flags(flags)?;
    let handle = handle.required()?;
    handle.set(client.apart_create(wide(bytes), device_of(&wanted.required()?)?)?);
    Ok(())
}

/// `cuMemRelease`.
pub(crate) fn release(client: &Client, handle: CUmemGenericAllocationHandle) -> Result<(), Status> {
    client.apart_release(handle)
}

/// `cuMemMap`.
pub(crate) fn map(
    client: &Client,
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Result<(), Status> {
    no_flags(flags)?;
    client.apart_map(address, wide(bytes), wide(offset), handle)
}

/// `cuMemUnmap`.
pub(crate) fn unmap(client: &Client, address: CUdeviceptr, bytes: usize) -> Result<(), Status> {
    client.apart_unmap(address, wide(bytes))
}

/// `cuMemSetAccess`: for the memory's own device, to read and write. What was mapped without is
/// accessible to nobody.
pub(crate) fn set_access(
    client: &Client,
    address: CUdeviceptr,
    bytes: usize,
    wanted: In<CUmemAccessDesc>,
    count: usize,
) -> Result<(), Status> {
    let wanted = wanted.slice(count)?;
    if wanted.is_empty() {
        return Err(Status::INVALID_VALUE);
    }
    for access in wanted {
        if access.location.kind != LOCATION_DEVICE {
            return Err(Status::INVALID_VALUE);
        }
        if access.flags != READ_WRITE {
            return Err(Status::NOT_SUPPORTED);
        }
        client.apart_allow(address, wide(bytes), access.location.id)?;
    }
    Ok(())
}

/// `cuMemGetAccess`.
pub(crate) fn access(
    client: &Client,
    flags: Out<u64>,
    location: In<CUmemLocation>,
    address: CUdeviceptr,
) -> Result<(), Status> {
    let (flags, location) = (flags.required()?, location.required()?);
    if location.kind != LOCATION_DEVICE {
        return Err(Status::INVALID_VALUE);
    }
    let allowed = client.apart_allows(address, location.id)?;
    flags.set(if allowed { u64::from(READ_WRITE) } else { 0 });
    Ok(())
}

/// `cuMemGetAllocationGranularity`: the least and the recommended one are the same.
pub(crate) fn granularity(
    client: &Client,
    bytes: Out<usize>,
    wanted: In<CUmemAllocationProp>,
    option: u32,
) -> Result<(), Status> {
    let bytes = bytes.required()?;
    if option > RECOMMENDED {
        return Err(Status::INVALID_VALUE);
    }
    bytes.set(narrow(client.apart_granularity(device_of(&wanted.required()?)?)?));
    Ok(())
}
