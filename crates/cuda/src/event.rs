//! Events.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUevent, CUstream};
use crate::args::{DefaultStream, Out};
use crate::output;

/// `CU_EVENT_RECORD_EXTERNAL`, and `CU_EVENT_WAIT_EXTERNAL`: matters in captures only.
pub(crate) const EXTERNAL: u32 = 1;

/// `cuEventCreate`.
pub(crate) fn create(client: &Client, event: Out<CUevent>, flags: u32) -> Result<(), Status> {
    let event = event.required()?;
    event.set(client.event_create(flags)?);
    Ok(())
}

/// `cuEventDestroy`.
pub(crate) fn destroy(client: &Client, event: CUevent) -> Result<(), Status> {
    client.event_destroy(event)
}

/// `cuEventRecord`.
pub(crate) fn record(
    client: &Client,
    default: DefaultStream,
    event: CUevent,
    stream: CUstream,
) -> Result<(), Status> {
    client.event_record(event, default.named(stream))
}

/// `cuEventRecordWithFlags`.
pub(crate) fn record_with_flags(
    client: &Client,
    default: DefaultStream,
    event: CUevent,
    stream: CUstream,
    flags: u32,
) -> Result<(), Status> {
    match flags {
        0 => record(client, default, event, stream),
        EXTERNAL => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// `cuEventQuery`.
pub(crate) fn query(client: &Client, event: CUevent) -> Result<(), Status> {
    client.event_query(event)
}

/// `cuEventSynchronize`.
pub(crate) fn synchronize(client: &Client, event: CUevent) -> Result<(), Status> {
    output::after(client, client.event_synchronize(event))
}

/// `cuEventElapsedTime`.
pub(crate) fn elapsed(
    client: &Client,
    milliseconds: Out<f32>,
    start: CUevent,
    end: CUevent,
) -> Result<(), Status> {
    let milliseconds = milliseconds.required()?;
    milliseconds.set(client.event_elapsed(start, end)?);
    Ok(())
}
