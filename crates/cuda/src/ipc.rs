//! Device memory and events that several processes of one vGPU use.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle};
use crate::args::Out;

/// How a handle begins. The key follows at [`KEY`]; the rest is zero.
const MAGIC: [u8; 8] = *b"weft mem";
const KEY: core::ops::Range<usize> = 16..32;
/// The same of an event, whose place follows the key.
const EVENT_MAGIC: [u8; 8] = *b"weft evt";
const PLACE: core::ops::Range<usize> = 32..36;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the only flag, and one that must be given.
const LAZY_PEER_ACCESS: u32 = 1;

/// `cuIpcGetMemHandle`.
pub(crate) fn export(
    client: &Client,
    handle: Out<CUipcMemHandle>,
    address: CUdeviceptr,
) -> Result<(), Status> {
    let handle = handle.required()?;
    handle.set(CUipcMemHandle { bytes: handle_of(client.mem_export(address)?) });
    Ok(())
}

/// `cuIpcOpenMemHandle`.
pub(crate) fn open(
    client: &Client,
    address: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> Result<(), Status> {
    let address = address.required()?;
    if flags != LAZY_PEER_ACCESS {
        return Err(Status::INVALID_VALUE);
    }
    let key = handle.bytes[KEY].try_into().map_err(|_| Status::INVALID_HANDLE)?;
    if handle.bytes != handle_of(key) {
        return Err(Status::INVALID_HANDLE);
    }
    address.set(client.mem_import(key)?);
    Ok(())
}

/// `cuIpcCloseMemHandle`.
pub(crate) fn close(client: &Client, address: CUdeviceptr) -> Result<(), Status> {
    client.mem_close(address)
}

/// `cuIpcGetEventHandle`.
pub(crate) fn export_event(
    client: &Client,
    handle: Out<CUipcEventHandle>,
    event: CUevent,
) -> Result<(), Status> {
    let handle = handle.required()?;
    let (key, place) = client.event_export(event)?;
    handle.set(CUipcEventHandle { bytes: event_handle_of(key, place) });
    Ok(())
}

/// `cuIpcOpenEventHandle`.
pub(crate) fn open_event(
    client: &Client,
    event: Out<CUevent>,
    handle: CUipcEventHandle,
) -> Result<(), Status> {
    let event = event.required()?;
    let key = handle.bytes[KEY].try_into().map_err(|_| Status::INVALID_HANDLE)?;
    let place = handle.bytes[PLACE].try_into().map_err(|_| Status::INVALID_HANDLE)?;
    let place = u32::from_le_bytes(place);
    if handle.bytes != event_handle_of(key, place) {
        return Err(Status::INVALID_HANDLE);
    }
    event.set(client.event_import(key, place)?);
    Ok(())
}

fn event_handle_of(key: [u8; 16], place: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..EVENT_MAGIC.len()].copy_from_slice(&EVENT_MAGIC);
    bytes[KEY].copy_from_slice(&key);
    bytes[PLACE].copy_from_slice(&place.to_le_bytes());
    bytes
}

fn handle_of(key: [u8; 16]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[KEY].copy_from_slice(&key);
    bytes
}
