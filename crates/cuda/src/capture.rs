//! Stream capture.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use weft_client::{CaptureInfo, Client};
use weft_wire::Status;

use crate::abi::{CUgraph, CUgraphEdgeData, CUgraphNode, CUstream};
use crate::args::{DefaultStream, In, Out};

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NONE: u32 = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: u32 = 1;
/// `CU_STREAM_CAPTURE_STATUS_INVALIDATED`.
const INVALIDATED: u32 = 2;
/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: u32 = 0;
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET_DEPENDENCIES: u32 = 1;

/// `cuStreamBeginCapture` of CUDA 10.0, which had no modes.
pub(crate) fn begin_global(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
) -> Result<(), Status> {
    begin(client, default, stream, GLOBAL)
}

/// `cuStreamBeginCapture_v2`.
pub(crate) fn begin(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    mode: u32,
) -> Result<(), Status> {
    client.capture_begin(default.named(stream), None, mode_number(mode)?)
}

/// `cuStreamBeginCaptureToGraph`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn begin_to_graph(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    edges: In<CUgraphEdgeData>,
    count: usize,
    mode: u32,
) -> Result<(), Status> {
    plain_edges(&edges, count)?;
    let into = (graph, dependencies.slice(count)?);
    client.capture_begin(default.named(stream), Some(into), mode_number(mode)?)
}

/// `cuStreamEndCapture`.
pub(crate) fn end(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    graph: Out<CUgraph>,
) -> Result<(), Status> {
    let graph = graph.required()?;
    graph.set(CUgraph::NULL);
    graph.set(client.capture_end(default.named(stream))?);
    Ok(())
}

/// `cuStreamIsCapturing`.
pub(crate) fn is_capturing(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    status: Out<u32>,
) -> Result<(), Status> {
    let status = status.required()?;
    status.set(code(client.capture_info(default.named(stream))?.as_ref()));
    Ok(())
}

/// `cuStreamGetCaptureInfo` of CUDA 10.1.
pub(crate) fn info_of_10(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    status: Out<u32>,
    id: Out<u64>,
) -> Result<(), Status> {
    let status = status.required()?;
    let info = client.capture_info(default.named(stream))?;
    status.set(code(info.as_ref()));
    if let Some(info) = info {
        id.set_if_wanted(info.id);
    }
    Ok(())
}

/// `cuStreamGetCaptureInfo_v2`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn info_of_11(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    count: Out<usize>,
) -> Result<(), Status> {
    let status = status.required()?;
    let stream = default.named(stream);
    let info = client.capture_info(stream)?;
    status.set(code(info.as_ref()));
    let Some(info) = info else { return Ok(()) };
    id.set_if_wanted(info.id);
    graph.set_if_wanted(info.graph);
    count.set_if_wanted(info.dependencies.len());
    if let Some(place) = dependencies.optional() {
        place.set(keep(stream, info.dependencies));
    }
    Ok(())
}

/// `cuStreamGetCaptureInfo_v3`: like version 2; all edges are plain.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn info_of_12(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    edges: Out<*const CUgraphEdgeData>,
    count: Out<usize>,
) -> Result<(), Status> {
    edges.set_if_wanted(core::ptr::null());
    info_of_11(client, default, stream, status, id, graph, dependencies, count)
}

/// What the application may read about streams that capture, by stream.
static KEPT: Mutex<BTreeMap<u64, Vec<CUgraphNode>>> = Mutex::new(BTreeMap::new());

/// Keeps a list until the next question about the same stream: the application points to it.
fn keep(stream: CUstream, nodes: Vec<CUgraphNode>) -> *const CUgraphNode {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let list = kept.entry(stream.raw()).or_default();
    *list = nodes;
    list.as_ptr()
}

/// Nothing is asked of a stream any more that is destroyed.
pub(crate) fn forget(stream: CUstream) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream.raw());
}

/// `cuStreamUpdateCaptureDependencies`.
pub(crate) fn update_dependencies(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    dependencies: In<CUgraphNode>,
    count: usize,
    flags: u32,
) -> Result<(), Status> {
    if flags & !SET_DEPENDENCIES != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let nodes = dependencies.slice(count)?;
    client.capture_update_dependencies(default.named(stream), nodes, flags == SET_DEPENDENCIES)
}

/// `cuStreamUpdateCaptureDependencies_v2`.
pub(crate) fn update_dependencies_with_edges(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    dependencies: In<CUgraphNode>,
    edges: In<CUgraphEdgeData>,
    count: usize,
    flags: u32,
) -> Result<(), Status> {
    plain_edges(&edges, count)?;
    update_dependencies(client, default, stream, dependencies, count, flags)
}

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_mode(client: &Client, mode: Out<u32>) -> Result<(), Status> {
    let place = mode.required()?;
    let before = client.capture_exchange_mode(mode_number(place.value())?)?;
    place.set(before.cast_unsigned());
    Ok(())
}

/// Only plain edges are known: programmatic ones belong to devices of another generation.
pub(crate) fn plain_edges(edges: &In<CUgraphEdgeData>, count: usize) -> Result<(), Status> {
    if edges.is_null() {
        return Ok(());
    }
    let plain = |edge: &CUgraphEdgeData| (edge.from_port, edge.to_port, edge.kind) == (0, 0, 0);
    if edges.slice(count)?.iter().all(plain) { Ok(()) } else { Err(Status::NOT_SUPPORTED) }
}

fn mode_number(mode: u32) -> Result<i32, Status> {
    i32::try_from(mode).map_err(|_| Status::INVALID_VALUE)
}

fn code(info: Option<&CaptureInfo>) -> u32 {
    match info {
        None => NONE,
        Some(info) if info.invalidated => INVALIDATED,
        Some(_) => ACTIVE,
    }
}
