//! Objects of the application that graphs keep alive.

use core::ffi::c_void;

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUgraph, CUhostFn, CUuserObject};
use crate::args::Out;
use crate::launch::host_work;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only flag, and one that must be given.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the caller's references become the graph's.
const MOVE: u32 = 1;

/// `cuUserObjectCreate`.
pub(crate) fn create(
    client: &Client,
    object: Out<CUuserObject>,
    data: *mut c_void,
    destroy: CUhostFn,
    count: u32,
    flags: u32,
) -> Result<(), Status> {
    let object = object.required()?;
    if flags != NO_DESTRUCTOR_SYNC {
        return Err(Status::INVALID_VALUE);
    }
    object.set(client.user_object_create(host_work(destroy, data)?, count)?);
    Ok(())
}

/// `cuUserObjectRetain`.
pub(crate) fn retain(client: &Client, object: CUuserObject, count: u32) -> Result<(), Status> {
    client.user_object_retain(object, count)
}

/// `cuUserObjectRelease`.
pub(crate) fn release(client: &Client, object: CUuserObject, count: u32) -> Result<(), Status> {
    client.user_object_release(object, count)
}

/// `cuGraphRetainUserObject`.
pub(crate) fn graph_retain(
    client: &Client,
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> Result<(), Status> {
    if flags & !MOVE != 0 {
        return Err(Status::INVALID_VALUE);
    }
    client.graph_retain(graph, object, count, flags & MOVE != 0)
}

/// `cuGraphReleaseUserObject`.
pub(crate) fn graph_release(
    client: &Client,
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
) -> Result<(), Status> {
    client.graph_release(graph, object, count)
}
