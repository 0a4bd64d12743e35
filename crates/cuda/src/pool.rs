//! Memory pools and allocation in stream order.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{
    CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUstream,
};
use crate::args::{DefaultStream, HostTarget, In, Out};
use crate::memory::wide;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`: what other devices have.
const NO_ACCESS: u32 = 0;
/// `CUmemPool_attribute` numbers of `int` flags; the others are 64-bit sizes.
const FLAG_ATTRIBUTES: core::ops::RangeInclusive<u32> = 1..=3;

/// `cuDeviceGetDefaultMemPool`.
pub(crate) fn device_default(
    client: &Client,
    pool: Out<CUmemoryPool>,
    device: CUdevice,
) -> Result<(), Status> {
    let pool = pool.required()?;
    pool.set(client.pool_default(device)?);
    Ok(())
}

/// `cuDeviceGetMemPool`.
pub(crate) fn device_pool(
    client: &Client,
    pool: Out<CUmemoryPool>,
    device: CUdevice,
) -> Result<(), Status> {
    let pool = pool.required()?;
    pool.set(client.pool_current(device)?);
    Ok(())
}

/// `cuDeviceSetMemPool`.
pub(crate) fn set_device_pool(
    client: &Client,
    device: CUdevice,
    pool: CUmemoryPool,
) -> Result<(), Status> {
    client.pool_set_current(device, pool)
}

/// `cuMemGetDefaultMemPool`.
pub(crate) fn location_default(
    client: &Client,
    pool: Out<CUmemoryPool>,
    location: In<CUmemLocation>,
    kind: u32,
) -> Result<(), Status> {
    device_default(client, pool, located(&location, kind)?)
}

/// `cuMemGetMemPool`.
pub(crate) fn location_pool(
    client: &Client,
    pool: Out<CUmemoryPool>,
    location: In<CUmemLocation>,
    kind: u32,
) -> Result<(), Status> {
    device_pool(client, pool, located(&location, kind)?)
}

/// `cuMemSetMemPool`.
pub(crate) fn set_location_pool(
    client: &Client,
    location: In<CUmemLocation>,
    kind: u32,
    pool: CUmemoryPool,
) -> Result<(), Status> {
    client.pool_set_current(located(&location, kind)?, pool)
}

/// The device of a location; memory elsewhere has no pools.
fn located(location: &In<CUmemLocation>, kind: u32) -> Result<CUdevice, Status> {
    let location = location.required()?;
    if location.kind != LOCATION_DEVICE || kind != ALLOCATION_PINNED {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok(location.id)
}

/// `cuMemAllocAsync`.
pub(crate) fn alloc(
    client: &Client,
    default: DefaultStream,
    address: Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> Result<(), Status> {
    alloc_from(client, default, address, bytes, CUmemoryPool::NULL, stream)
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn alloc_from(
    client: &Client,
    default: DefaultStream,
    address: Out<CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result<(), Status> {
    let address = address.required()?;
    address.set(client.mem_alloc_async(wide(bytes), pool, default.named(stream))?);
    Ok(())
}

/// `cuMemFreeAsync`.
pub(crate) fn free(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    stream: CUstream,
) -> Result<(), Status> {
    client.mem_free_async(address, default.named(stream))
}

/// `cuMemPoolCreate`: a pool of device memory, not to be exported.
pub(crate) fn create(
    client: &Client,
    pool: Out<CUmemoryPool>,
    props: In<CUmemPoolProps>,
) -> Result<(), Status> {
    let pool = pool.required()?;
    let props = props.required()?;
    if props.allocType != ALLOCATION_PINNED {
        return Err(Status::INVALID_VALUE);
    }
    if props.handleTypes != 0 || props.location.kind != LOCATION_DEVICE {
        return Err(Status::NOT_SUPPORTED);
    }
    pool.set(client.pool_create(props.location.id)?);
    Ok(())
}

/// `cuMemPoolDestroy`.
pub(crate) fn destroy(client: &Client, pool: CUmemoryPool) -> Result<(), Status> {
    client.pool_destroy(pool)
}

/// `cuMemPoolTrimTo`.
pub(crate) fn trim(client: &Client, pool: CUmemoryPool, _keep: usize) -> Result<(), Status> {
    client.pool_trim(pool)
}

/// `cuMemPoolGetAttribute`.
pub(crate) fn attribute(
    client: &Client,
    pool: CUmemoryPool,
    attribute: u32,
    value: HostTarget,
) -> Result<(), Status> {
    let have = client.pool_attribute(pool, attribute)?;
    if FLAG_ATTRIBUTES.contains(&attribute) {
        return value.store(i32::from(have != 0));
    }
    value.store(have)
}

/// `cuMemPoolSetAttribute`.
pub(crate) fn set_attribute(
    client: &Client,
    pool: CUmemoryPool,
    attribute: u32,
    value: HostTarget,
) -> Result<(), Status> {
    let value = if FLAG_ATTRIBUTES.contains(&attribute) {
        u64::from(value.load::<i32>()? != 0)
    } else {
        value.load::<u64>()?
    };
    client.pool_set_attribute(pool, attribute, value)
}

/// `cuMemPoolGetAccess`: the pool's own device reads and writes.
pub(crate) fn access(
    client: &Client,
    flags: Out<u32>,
    pool: CUmemoryPool,
    location: In<CUmemLocation>,
) -> Result<(), Status> {
    let flags = flags.required()?;
    let location = location.required()?;
    if location.kind != LOCATION_DEVICE {
        return Err(Status::INVALID_VALUE);
    }
    let is_own = client.pool_device(pool)? == client.device_get(location.id)?;
    flags.set(if is_own { READ_WRITE } else { NO_ACCESS });
    Ok(())
}

/// `cuMemPoolSetAccess`: the pool's own device keeps read and write access.
pub(crate) fn set_access(
    client: &Client,
    pool: CUmemoryPool,
    access: In<CUmemAccessDesc>,
    count: usize,
) -> Result<(), Status> {
    let device = client.pool_device(pool)?;
    for wanted in access.slice(count)? {
        if wanted.location.kind != LOCATION_DEVICE {
            return Err(Status::INVALID_VALUE);
        }
        let is_own = device == client.device_get(wanted.location.id)?;
        if wanted.flags != if is_own { READ_WRITE } else { NO_ACCESS } {
            return Err(Status::NOT_SUPPORTED);
        }
    }
    Ok(())
}
