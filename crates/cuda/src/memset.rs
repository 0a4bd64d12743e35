//! Fills with an element of 1, 2 or 4 bytes, whose C type says which.

use weft_client::Client;
use weft_wire::Status;
use weft_wire::command::FillSpec;

use crate::abi::{CUdeviceptr, CUstream};
use crate::args::DefaultStream;
use crate::memory::wide;

/// The value of a fill: `u8`, `u16` or `u32`.
pub(crate) trait Element: Into<u32> {
    /// Its size in bytes.
    const BYTES: u8;
}

impl Element for u8 {
    const BYTES: Self = 1;
}

impl Element for u16 {
    const BYTES: u8 = 2;
}

impl Element for u32 {
    const BYTES: u8 = 4;
}

/// `cuMemsetD8`, `cuMemsetD16`, `cuMemsetD32`.
pub(crate) fn linear<T: Element>(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: T,
    count: usize,
) -> Result<(), Status> {
    client.fill_linear(address, T::BYTES, value.into(), wide(count), default.stream())?;
    await_host(client, default, address)
}

/// A fill that does not say `Async` has ended when it returns if the host sees its target.
fn await_host(client: &Client, default: DefaultStream, address: CUdeviceptr) -> Result<(), Status> {
    match client.pointer_range(address) {
        Ok(range) if !range.is_device() => client.stream_synchronize(default.stream()),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// `cuMemsetD8Async`, `cuMemsetD16Async`, `cuMemsetD32Async`.
pub(crate) fn linear_async<T: Element>(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: T,
    count: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.fill_linear(address, T::BYTES, value.into(), wide(count), default.named(stream))
}

/// `cuMemsetD2D8`, `cuMemsetD2D16`, `cuMemsetD2D32`.
pub(crate) fn rows<T: Element>(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
) -> Result<(), Status> {
    client.fill(spec(address, pitch, value, [width, height]), default.stream())?;
    await_host(client, default, address)
}

/// `cuMemsetD2D8Async`, `cuMemsetD2D16Async`, `cuMemsetD2D32Async`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn rows_async<T: Element>(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.fill(spec(address, pitch, value, [width, height]), default.named(stream))
}

fn spec<T: Element>(
    address: CUdeviceptr,
    pitch: usize,
    value: T,
    [width, height]: [usize; 2],
) -> FillSpec {
    let (pitch, width, height) = (wide(pitch), wide(width), wide(height));
    FillSpec { address, pitch, width, height, element: T::BYTES, value: value.into() }
}
