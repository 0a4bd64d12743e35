//! Device memory and what an address is.

use core::ffi::c_void;

use weft_client::{Client, Range, RangeKind};
use weft_wire::Status;

use crate::abi::{CUdeviceptr, CUmemoryPool};
use crate::args::{Arg as _, HostTarget, In, Out};

/// `CU_MEMORYTYPE_HOST`.
pub(crate) const MEMORYTYPE_HOST: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const MEMORYTYPE_DEVICE: u32 = 2;

/// Sizes of the application as the client counts them.
pub(crate) fn wide(bytes: usize) -> u64 {
    // No target has a `usize` above 64 bits.
    bytes as u64
}

/// Sizes of the client as the application counts them.
pub(crate) fn narrow(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `cuMemGetInfo`.
pub(crate) fn info(client: &Client, free: Out<usize>, total: Out<usize>) -> Result<(), Status> {
    let usage = client.mem_info()?;
    free.set_if_wanted(narrow(usage.0));
    total.set_if_wanted(narrow(usage.1));
    Ok(())
}

/// `cuMemAlloc`.
pub(crate) fn alloc(
    client: &Client,
    address: Out<CUdeviceptr>,
    bytes: usize,
) -> Result<(), Status> {
    let address = address.required()?;
    address.set(client.mem_alloc(wide(bytes))?);
    Ok(())
}

/// `cuMemAllocPitch`.
pub(crate) fn alloc_pitch(
    client: &Client,
    address: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Result<(), Status> {
    let (address, pitch) = (address.required()?, pitch.required()?);
    let allocated = client.mem_alloc_pitch(wide(width), wide(height), element)?;
    address.set(allocated.0);
    pitch.set(narrow(allocated.1));
    Ok(())
}

/// `cuMemFree`.
pub(crate) fn free(client: &Client, address: CUdeviceptr) -> Result<(), Status> {
    client.mem_free(address)
}

/// `cuMemGetAddressRange`.
pub(crate) fn address_range(
    client: &Client,
    base: Out<CUdeviceptr>,
    size: Out<usize>,
    address: CUdeviceptr,
) -> Result<(), Status> {
    let range = client.address_range(address)?;
    base.set_if_wanted(range.0);
    size.set_if_wanted(narrow(range.1));
    Ok(())
}

/// `cuPointerGetAttribute`.
pub(crate) fn pointer_attribute(
    client: &Client,
    data: HostTarget,
    attribute: u32,
    address: CUdeviceptr,
) -> Result<(), Status> {
    let range = client.pointer_range(address)?;
    store_attribute(client, &data, attribute, address, &range)
}

/// `cuPointerGetAttributes`: like the single call, but what an address does not have reads as zero.
pub(crate) fn pointer_attributes(
    client: &Client,
    count: u32,
    attributes: In<u32>,
    data: In<*mut c_void>,
    address: CUdeviceptr,
) -> Result<(), Status> {
    let count = usize::try_from(count).map_err(|_| Status::INVALID_VALUE)?;
    let (attributes, data) = (attributes.slice(count)?, data.slice(count)?);
    if count == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let range = client.pointer_range(address);
    for (attribute, place) in attributes.iter().zip(data) {
        // SAFETY: the application passes a place of the attribute's type for each attribute.
        let place = unsafe { HostTarget::from_c(*place) };
        let stored =
            range.and_then(|range| store_attribute(client, &place, *attribute, address, &range));
        match stored {
            Err(Status::INVALID_VALUE) => clear_attribute(&place, *attribute)?,
            other => other?,
        }
    }
    Ok(())
}

/// Numbers of `CUpointer_attribute` whose value is eight bytes wide.
const WIDE: [u32; 10] = [1, 3, 4, 7, 11, 12, 14, 17, 18, 19];

fn clear_attribute(place: &HostTarget, attribute: u32) -> Result<(), Status> {
    /// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
    const DEVICE_ORDINAL: u32 = 9;
    match attribute {
        0 | 5 | 21.. => Err(Status::INVALID_VALUE),
        // CU_DEVICE_INVALID
        DEVICE_ORDINAL => place.store(-2_i32),
        wide if WIDE.contains(&wide) || wide == 20 => place.store(0_u64),
        _ => place.store(0_u32),
    }
}

/// Stores one `CUpointer_attribute`; its number decides the type.
fn store_attribute(
    client: &Client,
    place: &HostTarget,
    attribute: u32,
    address: CUdeviceptr,
    range: &Range,
) -> Result<(), Status> {
    let managed = matches!(range.kind, RangeKind::Managed(_));
    let on_host = !range.is_device();
    match attribute {
        // CONTEXT
        1 => place.store(range.context),
        // MEMORY_TYPE
        2 if on_host && !managed => place.store(MEMORYTYPE_HOST),
        2 => place.store(MEMORYTYPE_DEVICE),
        // DEVICE_POINTER
        3 => place.store(address),
        // HOST_POINTER
        4 if on_host => place.store(address),
        // SYNC_MEMOPS, IS_LEGACY_CUDA_IPC_CAPABLE, IS_GPU_DIRECT_RDMA_CAPABLE
        6 | 10 | 15 => place.store(0_u32),
        // BUFFER_ID, MEMORY_BLOCK_ID
        7 | 20 => place.store(range.number),
        // IS_MANAGED
        8 => place.store(u32::from(managed)),
        // DEVICE_ORDINAL
        9 => place.store(client.context_device(range.context).unwrap_or(0)),
        // RANGE_START_ADDR, MAPPING_BASE_ADDR
        11 | 19 => place.store(range.start),
        // RANGE_SIZE, MAPPING_SIZE
        12 | 18 => place.store(range.bytes),
        // MAPPED
        13 => place.store(1_u32),
        // ALLOWED_HANDLE_TYPES
        14 => place.store(0_u64),
        // ACCESS_FLAGS: read and write
        16 => place.store(3_u32),
        // MEMPOOL_HANDLE
        17 => place.store(match range.kind {
            RangeKind::Pool(pool) => pool,
            RangeKind::Device
            | RangeKind::Imported
            | RangeKind::Mapped
            | RangeKind::Global(_)
            | RangeKind::Pinned(_)
            | RangeKind::Managed(_)
            | RangeKind::Registered(_) => CUmemoryPool::NULL,
        }),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// `cuPointerSetAttribute`: only `SYNC_MEMOPS` can be set, and every copy from pageable memory is
/// synchronous already.
pub(crate) fn set_pointer_attribute(
    client: &Client,
    value: In<c_void>,
    attribute: u32,
    address: CUdeviceptr,
) -> Result<(), Status> {
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    const SYNC_MEMOPS: u32 = 6;
    if value.is_null() || attribute != SYNC_MEMOPS {
        return Err(Status::INVALID_VALUE);
    }
    client.pointer_range(address).map(drop)
}
