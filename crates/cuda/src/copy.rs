//! Copies of consecutive bytes.

use weft_client::{Client, Layout, Source, Target};
use weft_wire::Status;

use crate::abi::{CUcontext, CUdeviceptr, CUmemcpyAttributes, CUstream};
use crate::args::{DefaultStream, HostSource, HostTarget, In, Out};
use crate::memory::{narrow, wide};
use crate::output;

/// `cuMemcpyHtoD`.
pub(crate) fn to_device(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    source: HostSource,
    bytes: usize,
) -> Result<(), Status> {
    let (target, source) = (Target::Device(target), Source::Host(source.bytes(bytes)?));
    output::after(
        client,
        client.copy_sync_on(target, source, Layout::linear(wide(bytes)), default.stream()),
    )
}

/// `cuMemcpyDtoH`.
pub(crate) fn to_host(
    client: &Client,
    default: DefaultStream,
    mut target: HostTarget,
    source: CUdeviceptr,
    bytes: usize,
) -> Result<(), Status> {
    let (target, source) = (Target::Host(target.bytes(bytes)?), Source::Device(source));
    output::after(
        client,
        client.copy_sync_on(target, source, Layout::linear(wide(bytes)), default.stream()),
    )
}

/// `cuMemcpyDtoD`.
pub(crate) fn on_device(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
) -> Result<(), Status> {
    let (target, source) = (Target::Device(target), Source::Device(source));
    output::after(
        client,
        client.copy_sync_on(target, source, Layout::linear(wide(bytes)), default.stream()),
    )
}

/// `cuMemcpyHtoDAsync`.
pub(crate) fn to_device_async(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    source: HostSource,
    bytes: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.copy_htod_async(target, source.bytes(bytes)?, default.named(stream))
}

/// `cuMemcpyDtoHAsync`.
pub(crate) fn to_host_async(
    client: &Client,
    default: DefaultStream,
    mut target: HostTarget,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.copy_dtoh_async(target.bytes(bytes)?, source, default.named(stream))
}

/// `cuMemcpyDtoDAsync`.
pub(crate) fn on_device_async(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.copy_dtod_async(target, source, wide(bytes), default.named(stream))
}

/// `cuMemcpy`: the addresses tell what they are.
pub(crate) fn any(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
) -> Result<(), Status> {
    let layout = Layout::linear(wide(bytes));
    between(client, (target, Memory::Any), (source, Memory::Any), &layout, |target, source| {
        output::after(client, client.copy_sync_on(target, source, layout.clone(), default.stream()))
    })
}

/// `cuMemcpyAsync`.
pub(crate) fn any_async(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), Status> {
    let layout = Layout::linear(wide(bytes));
    between(client, (target, Memory::Any), (source, Memory::Any), &layout, |target, source| {
        client.copy_async(target, source, layout.clone(), default.named(stream))
    })
}

/// Which memory the application says that an address is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The device's, or page-locked; checked by the client.
    Device,
    /// The host's, or whatever the address tells.
    Any,
}

/// Finds out on which side each address lies and copies.
pub(crate) fn between(
    client: &Client,
    (target, target_memory): (CUdeviceptr, Memory),
    (source, source_memory): (CUdeviceptr, Memory),
    layout: &Layout,
    copy: impl FnOnce(Target<'_>, Source<'_>) -> Result<(), Status>,
) -> Result<(), Status> {
    let is_device =
        |address, memory| memory == Memory::Device || client.pointer_range(address).is_ok();
    // SAFETY: used only for an address that is not the device's: host memory of the caller, as long
    // as the copy, by the C API.
    let mut host_target = unsafe { HostTarget::at(target) };
    // SAFETY: as above.
    let host_source = unsafe { HostSource::at(source) };
    let source = if is_device(source, source_memory) {
        Source::Device(source)
    } else {
        Source::Host(host_source.bytes(narrow(layout.src_span()?))?)
    };
    let target = if is_device(target, target_memory) {
        Target::Device(target)
    } else {
        Target::Host(host_target.bytes(narrow(layout.dst_span()?))?)
    };
    copy(target, source)
}

/// `cuMemcpyPeer`: all contexts share the device's addresses.
pub(crate) fn peer(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    bytes: usize,
) -> Result<(), Status> {
    client.context_device(target_context)?;
    client.context_device(source_context)?;
    any(client, default, target, source, bytes)
}

/// `cuMemcpyPeerAsync`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn peer_async(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Result<(), Status> {
    client.context_device(target_context)?;
    client.context_device(source_context)?;
    any_async(client, default, target, source, bytes, stream)
}

/// `cuMemcpyBatchAsync` of CUDA 12.8; the attributes are hints.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn batch(
    client: &Client,
    default: DefaultStream,
    targets: In<CUdeviceptr>,
    sources: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CUmemcpyAttributes>,
    indices: In<usize>,
    attribute_count: usize,
    failed: Out<usize>,
    stream: CUstream,
) -> Result<(), Status> {
    attributes.slice(attribute_count)?;
    indices.slice(attribute_count)?;
    let failed = failed.optional();
    if let Some(failed) = failed {
        failed.set(usize::MAX);
    }
    let (targets, sources) = (targets.slice(count)?, sources.slice(count)?);
    let copies = targets.iter().zip(sources).zip(sizes.slice(count)?);
    for (index, ((target, source), bytes)) in copies.enumerate() {
        let copied = any_async(client, default, *target, *source, *bytes, stream);
        if let (Err(_), Some(failed)) = (copied, failed) {
            failed.set(index);
        }
        copied?;
    }
    Ok(())
}

/// `cuMemcpyBatchAsync_v2`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn batch_v2(
    client: &Client,
    default: DefaultStream,
    targets: In<CUdeviceptr>,
    sources: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CUmemcpyAttributes>,
    indices: In<usize>,
    attribute_count: usize,
    stream: CUstream,
) -> Result<(), Status> {
    batch(
        client,
        default,
        targets,
        sources,
        sizes,
        count,
        attributes,
        indices,
        attribute_count,
        Out::nowhere(),
        stream,
    )
}

/// `cuMemcpyWithAttributesAsync`; the attributes are hints.
pub(crate) fn any_with_attributes(
    client: &Client,
    default: DefaultStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    attributes: In<CUmemcpyAttributes>,
    stream: CUstream,
) -> Result<(), Status> {
    attributes.required()?;
    any_async(client, default, target, source, bytes, stream)
}
