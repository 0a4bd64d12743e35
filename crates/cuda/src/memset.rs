//! Fills.

use weft_client::Client;
use weft_wire::Status;
use weft_wire::command::FillSpec;

use crate::abi::{CUdeviceptr, CUstream};
use crate::args::DefaultStream;
use crate::memory::wide;

/// `cuMemsetD8`.
pub(crate) fn bytes(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: u8,
    count: usize,
) -> Result<(), Status> {
    client.fill_linear(address, 1, value.into(), wide(count), default.stream())
}

/// `cuMemsetD8Async`.
pub(crate) fn bytes_async(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: u8,
    count: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.fill_linear(address, 1, value.into(), wide(count), default.named(stream))
}

/// `cuMemsetD2D8`.
pub(crate) fn byte_rows(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
) -> Result<(), Status> {
    rows(client, address, pitch, (1, value.into()), width, height, default.stream())
}

/// `cuMemsetD2D8Async`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn byte_rows_async(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result<(), Status> {
    rows(client, address, pitch, (1, value.into()), width, height, default.named(stream))
}

/// `cuMemsetD16`.
pub(crate) fn shorts(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: u16,
    count: usize,
) -> Result<(), Status> {
    client.fill_linear(address, 2, value.into(), wide(count), default.stream())
}

/// `cuMemsetD16Async`.
pub(crate) fn shorts_async(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: u16,
    count: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.fill_linear(address, 2, value.into(), wide(count), default.named(stream))
}

/// `cuMemsetD2D16`.
pub(crate) fn short_rows(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
) -> Result<(), Status> {
    rows(client, address, pitch, (2, value.into()), width, height, default.stream())
}

/// `cuMemsetD2D16Async`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn short_rows_async(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result<(), Status> {
    rows(client, address, pitch, (2, value.into()), width, height, default.named(stream))
}

/// `cuMemsetD32`.
pub(crate) fn words(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: u32,
    count: usize,
) -> Result<(), Status> {
    client.fill_linear(address, 4, value, wide(count), default.stream())
}

/// `cuMemsetD32Async`.
pub(crate) fn words_async(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    value: u32,
    count: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.fill_linear(address, 4, value, wide(count), default.named(stream))
}

/// `cuMemsetD2D32`.
pub(crate) fn word_rows(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
) -> Result<(), Status> {
    rows(client, address, pitch, (4, value), width, height, default.stream())
}

/// `cuMemsetD2D32Async`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn word_rows_async(
    client: &Client,
    default: DefaultStream,
    address: CUdeviceptr,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result<(), Status> {
    rows(client, address, pitch, (4, value), width, height, default.named(stream))
}

fn rows(
    client: &Client,
    address: CUdeviceptr,
    pitch: usize,
    (element, value): (u8, u32),
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result<(), Status> {
    let (pitch, width, height) = (wide(pitch), wide(width), wide(height));
    client.fill(FillSpec { address, pitch, width, height, element, value }, stream)
}
