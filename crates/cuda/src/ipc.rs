//! Device memory that several processes of one vGPU use.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUdeviceptr, CUipcMemHandle};
use crate::args::Out;

/// How a handle begins. The key follows at [`KEY`]; the rest is zero.
const MAGIC: [u8; 8] = *b"weft mem";
const KEY: core::ops::Range<usize> = 16..32;
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

fn handle_of(key: [u8; 16]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[KEY].copy_from_slice(&key);
    bytes
}
