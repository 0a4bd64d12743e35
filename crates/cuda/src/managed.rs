//! Managed memory: the device uses it in place, and moves it into its slots like its own. What is
//! prefetched to a device is expected there; other advice changes nothing but is checked as the
//! native driver checks it, and kept for who asks what was said.

use core::ffi::c_void;

use weft_client::{Advice, Client, Location, RangeKind};
use weft_wire::Status;

use crate::abi::{CUdevice, CUdeviceptr, CUmemLocation, CUstream};
use crate::args::{Arg as _, DefaultStream, HostTarget, In, Out};
use crate::memory::wide;

/// `CU_DEVICE_CPU`: the host where a device is asked for.
const CPU: CUdevice = -1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`, `_HOST_NUMA` and `_HOST_NUMA_CURRENT`.
const LOCATIONS_HOST: core::ops::RangeInclusive<u32> = 2..=4;
/// `CU_MEM_LOCATION_TYPE_INVALID`.
const LOCATION_INVALID: u32 = 0;
/// `CU_DEVICE_INVALID`: no device, where one is told.
const NOBODY: CUdevice = -2;

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
    client.advise(address..address + wide(bytes), |advice| advice.prefetched = Some(device));
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
    let change: fn(&mut Advice, Location) = match advice {
        1 => |advice, _| advice.read_mostly = true,
        2 => |advice, _| advice.read_mostly = false,
        3 => |advice, device| advice.preferred = Some(device),
        4 => |advice, _| advice.preferred = None,
        5 => |advice, device| {
            advice.accessed_by.insert(device);
        },
        6 => |advice, device| {
            advice.accessed_by.remove(&device);
        },
        _ => return Err(Status::INVALID_VALUE),
    };
    // Read-mostly and no preferred location are of no device.
    if !matches!(advice, 1 | 2 | 4) {
        check_device(client, device)?;
    }
    check_range(client, address, bytes)?;
    client.advise(address..address + wide(bytes), |advice| change(advice, device));
    Ok(())
}

/// `cuMemRangeGetAttribute`.
pub(crate) fn attribute(
    client: &Client,
    data: HostTarget,
    bytes: usize,
    attribute: u32,
    address: CUdeviceptr,
    count: usize,
) -> Result<(), Status> {
    check_range(client, address, count)?;
    store(data, bytes, attribute, &client.advice(address..address + wide(count)))
}

/// `cuMemRangeGetAttributes`.
pub(crate) fn attributes(
    client: &Client,
    data: In<*mut c_void>,
    sizes: In<usize>,
    attributes: In<u32>,
    number: usize,
    address: CUdeviceptr,
    count: usize,
) -> Result<(), Status> {
    if number == 0 {
        return Err(Status::INVALID_VALUE);
    }
    check_range(client, address, count)?;
    let advice = client.advice(address..address + wide(count));
    let (data, sizes) = (data.slice(number)?, sizes.slice(number)?);
    let places = data.iter().zip(sizes).zip(attributes.slice(number)?);
    for ((place, bytes), attribute) in places {
        // SAFETY: the application passes a place of so many bytes for each attribute.
        let place = unsafe { HostTarget::from_c(*place) };
        store(place, *bytes, *attribute, &advice)?;
    }
    Ok(())
}

/// Stores one `CUmem_range_attribute` of memory of which so much was said.
fn store(
    mut place: HostTarget,
    bytes: usize,
    attribute: u32,
    advice: &Advice,
) -> Result<(), Status> {
    let kind = |location: Option<Location>| match location {
        None => LOCATION_INVALID,
        Some(CPU) => *LOCATIONS_HOST.start(),
        Some(_) => LOCATION_DEVICE,
    };
    // The host has no number.
    let number = |location: Option<Location>| location.map_or(NOBODY, |device| device.max(0));
    let word = match attribute {
        // READ_MOSTLY
        1 => u32::from(advice.read_mostly),
        // PREFERRED_LOCATION
        2 => advice.preferred.unwrap_or(NOBODY).cast_unsigned(),
        // ACCESSED_BY: as many as there is room for.
        3 => {
            if bytes == 0 || !bytes.is_multiple_of(size_of::<CUdevice>()) {
                return Err(Status::INVALID_VALUE);
            }
            let (places, _) = place.bytes(bytes)?.as_chunks_mut();
            let users = advice.accessed_by.iter().copied().chain(core::iter::repeat(NOBODY));
            places.iter_mut().zip(users).for_each(|(place, user)| *place = user.to_ne_bytes());
            return Ok(());
        }
        // LAST_PREFETCH_LOCATION
        4 => advice.prefetched.unwrap_or(NOBODY).cast_unsigned(),
        // PREFERRED_LOCATION_TYPE and _ID, LAST_PREFETCH_LOCATION_TYPE and _ID
        5 => kind(advice.preferred),
        6 => number(advice.preferred).cast_unsigned(),
        7 => kind(advice.prefetched),
        8 => number(advice.prefetched).cast_unsigned(),
        _ => return Err(Status::INVALID_VALUE),
    };
    if bytes != size_of::<u32>() {
        return Err(Status::INVALID_VALUE);
    }
    place.store(word)
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
