//! Streams.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUcontext, CUdevice, CUevent, CUlaunchAttributeValue, CUstream};
use crate::args::{DefaultStream, In, Out};
use crate::capture;
use crate::event;
use crate::output;

/// `cuStreamCreate`.
pub(crate) fn create(client: &Client, stream: Out<CUstream>, flags: u32) -> Result<(), Status> {
    create_with_priority(client, stream, flags, 0)
}

/// `cuStreamCreateWithPriority`.
pub(crate) fn create_with_priority(
    client: &Client,
    stream: Out<CUstream>,
    flags: u32,
    priority: i32,
) -> Result<(), Status> {
    let stream = stream.required()?;
    stream.set(client.stream_create(flags, priority)?);
    Ok(())
}

/// `cuStreamDestroy`.
pub(crate) fn destroy(client: &Client, stream: CUstream) -> Result<(), Status> {
    client.stream_destroy(stream)?;
    capture::forget(stream);
    Ok(())
}

/// `cuStreamQuery`.
pub(crate) fn query(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
) -> Result<(), Status> {
    client.stream_query(default.named(stream))
}

/// `cuStreamSynchronize`.
pub(crate) fn synchronize(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
) -> Result<(), Status> {
    output::after(client, client.stream_synchronize(default.named(stream)))
}

/// `cuStreamWaitEvent`.
pub(crate) fn wait_event(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    event: CUevent,
    flags: u32,
) -> Result<(), Status> {
    match flags {
        0 => client.stream_wait_event(default.named(stream), event),
        event::EXTERNAL => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// `cuStreamGetFlags`.
pub(crate) fn flags(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    flags: Out<u32>,
) -> Result<(), Status> {
    let flags = flags.required()?;
    flags.set(client.stream_flags(default.named(stream))?);
    Ok(())
}

/// `cuStreamGetPriority`.
pub(crate) fn priority(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    priority: Out<i32>,
) -> Result<(), Status> {
    let priority = priority.required()?;
    priority.set(client.stream_priority(default.named(stream))?);
    Ok(())
}

/// `cuStreamGetId`.
pub(crate) fn id(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    id: Out<u64>,
) -> Result<(), Status> {
    let id = id.required()?;
    id.set(client.stream_id(default.named(stream))?);
    Ok(())
}

/// `cuStreamGetCtx`.
pub(crate) fn context(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    context: Out<CUcontext>,
) -> Result<(), Status> {
    let context = context.required()?;
    context.set(client.stream_context(default.named(stream))?);
    Ok(())
}

/// `cuStreamGetCtx_v2`: no stream belongs to a green context.
pub(crate) fn context_or_green(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    context: Out<CUcontext>,
    green: Out<u64>,
) -> Result<(), Status> {
    let (context, green) = (context.required()?, green.required()?);
    context.set(client.stream_context(default.named(stream))?);
    green.set(0);
    Ok(())
}

/// `cuStreamGetDevice`.
pub(crate) fn device(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    device: Out<CUdevice>,
) -> Result<(), Status> {
    let device = device.required()?;
    device.set(client.stream_device(default.named(stream))?);
    Ok(())
}

/// `cuStreamCopyAttributes`: streams differ in nothing that could be copied.
pub(crate) fn copy_attributes(
    client: &Client,
    default: DefaultStream,
    target: CUstream,
    source: CUstream,
) -> Result<(), Status> {
    client.stream_flags(default.named(target))?;
    client.stream_flags(default.named(source)).map(drop)
}

/// `CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW`, a hint to a cache.
const ACCESS_POLICY_WINDOW: u32 = 1;
/// `CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY`, a hint to the waiting thread.
const SYNCHRONIZATION_POLICY: u32 = 3;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: u32 = 8;
/// `CU_SYNC_POLICY_AUTO`.
const SYNC_POLICY_AUTO: u32 = 1;

/// `cuStreamGetAttribute`.
pub(crate) fn attribute(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    attribute: u32,
    value: Out<CUlaunchAttributeValue>,
) -> Result<(), Status> {
    let value = value.required()?;
    let priority = client.stream_priority(default.named(stream))?;
    value.set(match attribute {
        ACCESS_POLICY_WINDOW => CUlaunchAttributeValue::from_int(0),
        SYNCHRONIZATION_POLICY => CUlaunchAttributeValue::from_int(SYNC_POLICY_AUTO),
        PRIORITY => CUlaunchAttributeValue::from_int(priority.cast_unsigned()),
        _ => return Err(Status::NOT_SUPPORTED),
    });
    Ok(())
}

/// `cuStreamSetAttribute`: hints are accepted.
pub(crate) fn set_attribute(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    attribute: u32,
    value: In<CUlaunchAttributeValue>,
) -> Result<(), Status> {
    value.required()?;
    client.stream_flags(default.named(stream))?;
    match attribute {
        ACCESS_POLICY_WINDOW | SYNCHRONIZATION_POLICY => Ok(()),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// `cuStreamAttachMemAsync`: managed memory is visible to every stream already.
pub(crate) fn attach_memory(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    address: u64,
    _length: usize,
    flags: u32,
) -> Result<(), Status> {
    /// `CU_MEM_ATTACH_GLOBAL`, `_HOST` and `_SINGLE`.
    const KNOWN: [u32; 3] = [1, 2, 4];
    if !KNOWN.contains(&flags) {
        return Err(Status::INVALID_VALUE);
    }
    client.stream_flags(default.named(stream))?;
    client.pointer_range(address).map(drop)
}
