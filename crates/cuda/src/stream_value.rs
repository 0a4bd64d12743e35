//! Waiting for and writing words of memory in stream order.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUdeviceptr, CUstream, CUstreamBatchMemOpParams};
use crate::args::{DefaultStream, In};
use crate::memory::narrow;

/// Numbers of `CUstreamBatchMemOpType`.
mod operation {
    pub(super) const WAIT_32: u32 = 1;
    pub(super) const WRITE_32: u32 = 2;
    pub(super) const FLUSH_REMOTE_WRITES: u32 = 3;
    pub(super) const WAIT_64: u32 = 4;
    pub(super) const WRITE_64: u32 = 5;
    pub(super) const BARRIER: u32 = 6;
}

/// Most operations of one batch, as in the native driver.
const OPERATIONS_MAX: u32 = 256;

/// `cuStreamWaitValue32`.
pub(crate) fn wait_32(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: u32,
) -> Result<(), Status> {
    client.stream_wait_value(default.named(stream), address, value.into(), false, flags)
}

/// `cuStreamWaitValue64`.
pub(crate) fn wait_64(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: u32,
) -> Result<(), Status> {
    client.stream_wait_value(default.named(stream), address, value, true, flags)
}

/// `cuStreamWriteValue32`.
pub(crate) fn write_32(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: u32,
) -> Result<(), Status> {
    client.stream_write_value(default.named(stream), address, value.into(), false, flags)
}

/// `cuStreamWriteValue64`.
pub(crate) fn write_64(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: u32,
) -> Result<(), Status> {
    client.stream_write_value(default.named(stream), address, value, true, flags)
}

/// `cuStreamBatchMemOp`: the operations one after the other.
pub(crate) fn batch(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    count: u32,
    operations: In<CUstreamBatchMemOpParams>,
    flags: u32,
) -> Result<(), Status> {
    if count > OPERATIONS_MAX || flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let stream = default.named(stream);
    for wanted in operations.slice(narrow(count.into()))? {
        // The 32-bit forms leave the upper half of the value unset.
        let low = wanted.value64 & u64::from(u32::MAX);
        let (address, wide, flags) = (wanted.address, wanted.value64, wanted.flags);
        match wanted.operation {
            operation::WAIT_32 => client.stream_wait_value(stream, address, low, false, flags)?,
            operation::WAIT_64 => client.stream_wait_value(stream, address, wide, true, flags)?,
            operation::WRITE_32 => client.stream_write_value(stream, address, low, false, flags)?,
            operation::WRITE_64 => client.stream_write_value(stream, address, wide, true, flags)?,
            // Operations of a stream are ordered already, and there are no remote writers.
            operation::BARRIER | operation::FLUSH_REMOTE_WRITES => {}
            _ => return Err(Status::NOT_SUPPORTED),
        }
    }
    Ok(())
}
