//! Managed memory: the device uses it in place, and moves it into its slots like its own. What is
//! prefetched to a device is expected there; other advice changes nothing but is checked as the
//! native driver checks it.

use weft_client::{Client, RangeKind};
use weft_wire::Status;

use crate::abi::{CUdevice, CUdeviceptr, CUmemLocation, CUstream};
use crate::args::{DefaultStream, Out};
use crate::memory::wide;

/// `CU_DEVICE_CPU`: the host where a device is asked for.
const CPU: CUdevice = -1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`, `_HOST_NUMA` and `_HOST_NUMA_CURRENT`.
const LOCATIONS_HOST: core::ops::RangeInclusive<u32> = 2..=4;
/// Numbers of `CUmem_advise`.
const ADVICE: core::ops::RangeInclusive<u32> = 1..=6;

/// `cuMemAllocManaged`.
pub(crate) fn alloc(
    client: &Client,
    address: Out<CUdeviceptr>,
    bytes: usize,
    flags: u32,
) -> Result<(), Status> {
    let address = address.required()?;
    address.set(client.managed_alloc(wide(bytes), flags)?);
    Ok(())
}

/// `cuMemPrefetchAsync`.
pub(crate) fn prefetch(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    bytes: usize,
    device: CUdevice,
    stream: CUstream,
) -> Result<(), Status> {
    check_device(client, device)?;
    client.stream_flags(default.named(stream))?;
    check_range(client, address, bytes)?;
    if device == CPU {
        return Ok(());
    }
    client.managed_prefetch(address, wide(bytes))
}

/// `cuMemPrefetchAsync_v2`.
pub(crate) fn prefetch_to(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Result<(), Status> {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    prefetch(client, default, address, bytes, device_of(location)?, stream)
}

/// `cuMemAdvise`.
pub(crate) fn advise(
    client: &Client,
    address: CUdeviceptr,
    bytes: usize,
    advice: u32,
    device: CUdevice,
) -> Result<(), Status> {
    if !ADVICE.contains(&advice) {
        return Err(Status::INVALID_VALUE);
    }
    check_device(client, device)?;
    check_range(client, address, bytes)
}

/// `cuMemAdvise_v2`.
pub(crate) fn advise_for(
    client: &Client,
    address: CUdeviceptr,
    bytes: usize,
    advice: u32,
    location: CUmemLocation,
) -> Result<(), Status> {
    advise(client, address, bytes, advice, device_of(location)?)
}

fn device_of(location: CUmemLocation) -> Result<CUdevice, Status> {
    match location.kind {
        LOCATION_DEVICE => Ok(location.id),
        host if LOCATIONS_HOST.contains(&host) => Ok(CPU),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn check_device(client: &Client, device: CUdevice) -> Result<(), Status> {
    if device == CPU { Ok(()) } else { client.device_get(device).map(drop) }
}

fn check_range(client: &Client, address: CUdeviceptr, bytes: usize) -> Result<(), Status> {
    let range = client.pointer_range(address)?;
    let end = address.checked_add(wide(bytes)).ok_or(Status::INVALID_VALUE)?;
    let managed = matches!(range.kind, RangeKind::Managed(_));
    if bytes == 0 || !managed || end > range.start.saturating_add(range.bytes) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}
