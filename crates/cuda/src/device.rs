//! Devices.

use core::ffi::c_char;

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUdevice, CUdevprop, CUuuid};
use crate::args::{Out, Text};

/// `cuDeviceGet`.
pub(crate) fn get(client: &Client, device: Out<CUdevice>, ordinal: i32) -> Result<(), Status> {
    let device = device.required()?;
    device.set(client.device_get(ordinal)?);
    Ok(())
}

/// `cuDeviceGetCount`.
pub(crate) fn count(client: &Client, count: Out<i32>) -> Result<(), Status> {
    count.required()?.set(client.device_count());
    Ok(())
}

/// `cuDeviceGetName`.
pub(crate) fn name(
    client: &Client,
    name: Out<c_char>,
    len: i32,
    device: CUdevice,
) -> Result<(), Status> {
    text(name, len, client.device_name(device)?)
}

/// `cuDeviceGetPCIBusId`.
pub(crate) fn pci_bus_id(
    client: &Client,
    id: Out<c_char>,
    len: i32,
    device: CUdevice,
) -> Result<(), Status> {
    text(id, len, &client.device_pci_bus_id(device)?)
}

/// Writes as much text as fits, terminated.
fn text(target: Out<c_char>, len: i32, text: &str) -> Result<(), Status> {
    let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(Status::INVALID_VALUE)?;
    let target = target.slice(len)?;
    let shown = text.bytes().take(len - 1).chain([0]);
    target.fill(shown.map(u8::cast_signed));
    Ok(())
}

/// `cuDeviceGetByPCIBusId`.
pub(crate) fn by_pci_bus_id(
    client: &Client,
    device: Out<CUdevice>,
    id: Text,
) -> Result<(), Status> {
    let device = device.required()?;
    device.set(client.device_by_pci_bus_id(id.utf8()?)?);
    Ok(())
}

/// `cuDeviceGetUuid`.
pub(crate) fn uuid(client: &Client, uuid: Out<CUuuid>, device: CUdevice) -> Result<(), Status> {
    let uuid = uuid.required()?;
    uuid.set(CUuuid { bytes: client.device_uuid(device)? });
    Ok(())
}

/// `cuDeviceTotalMem`.
pub(crate) fn total_mem(
    client: &Client,
    bytes: Out<usize>,
    device: CUdevice,
) -> Result<(), Status> {
    let bytes = bytes.required()?;
    bytes.set(usize::try_from(client.device_total_mem(device)?).unwrap_or(usize::MAX));
    Ok(())
}

/// `cuDeviceGetAttribute`.
pub(crate) fn attribute(
    client: &Client,
    value: Out<i32>,
    attribute: u32,
    device: CUdevice,
) -> Result<(), Status> {
    let value = value.required()?;
    value.set(client.device_attribute(attribute, device)?);
    Ok(())
}

/// `cuDeviceComputeCapability`.
pub(crate) fn compute_capability(
    client: &Client,
    major: Out<i32>,
    minor: Out<i32>,
    device: CUdevice,
) -> Result<(), Status> {
    let (major, minor) = (major.required()?, minor.required()?);
    let capability = client.device_compute_capability(device)?;
    major.set(capability.0);
    minor.set(capability.1);
    Ok(())
}

/// `cuDeviceGetProperties`.
pub(crate) fn properties(
    client: &Client,
    properties: Out<CUdevprop>,
    device: CUdevice,
) -> Result<(), Status> {
    let place = properties.required()?;
    let have = client.device_properties(device)?;
    place.set(CUdevprop {
        maxThreadsPerBlock: have.max_threads_per_block,
        maxThreadsDim: have.max_threads_dim,
        maxGridSize: have.max_grid_size,
        sharedMemPerBlock: have.shared_mem_per_block,
        totalConstantMemory: have.total_constant_memory,
        SIMDWidth: have.simd_width,
        memPitch: have.mem_pitch,
        regsPerBlock: have.regs_per_block,
        clockRate: have.clock_rate,
        textureAlign: have.texture_align,
    });
    Ok(())
}

/// `cuDeviceCanAccessPeer`.
pub(crate) fn can_access_peer(
    client: &Client,
    answer: Out<i32>,
    device: CUdevice,
    peer: CUdevice,
) -> Result<(), Status> {
    let answer = answer.required()?;
    answer.set(i32::from(client.device_can_access_peer(device, peer)?));
    Ok(())
}

/// `cuDeviceGetP2PAttribute`: no two devices are peers.
pub(crate) fn peer_attribute(
    client: &Client,
    value: Out<i32>,
    attribute: u32,
    device: CUdevice,
    peer: CUdevice,
) -> Result<(), Status> {
    let value = value.required()?;
    client.device_can_access_peer(device, peer)?;
    if !(1..=5).contains(&attribute) {
        return Err(Status::INVALID_VALUE);
    }
    if device == peer {
        return Err(Status::INVALID_DEVICE);
    }
    value.set(0);
    Ok(())
}

/// `cuDeviceGetExecAffinitySupport`: no kind of affinity can be asked for.
pub(crate) fn affinity_support(
    client: &Client,
    answer: Out<i32>,
    kind: u32,
    device: CUdevice,
) -> Result<(), Status> {
    let answer = answer.required()?;
    client.device_get(device)?;
    if kind != 0 {
        return Err(Status::INVALID_VALUE);
    }
    answer.set(0);
    Ok(())
}
