//! Instantiated graphs.

use core::ffi::c_char;

use weft_client::{Client, Updated, Work};
use weft_wire::Status;

use crate::abi::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUcontext, CUevent, CUgraph, CUgraphExec,
    CUgraphExecUpdateResultInfo, CUgraphNode, CUstream,
};
use crate::args::{DefaultStream, In, Out};
use crate::graph_node::Describes;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`: a graph that kernels launch.
const DEVICE_LAUNCH: u64 = 4;
/// All flags of the header.
const KNOWN_FLAGS: u64 = 0xf;
/// `CUDA_GRAPH_INSTANTIATE_SUCCESS`.
const INSTANTIATED: u32 = 0;
/// `CUDA_GRAPH_INSTANTIATE_ERROR`.
const INSTANTIATE_ERROR: u32 = 1;

fn instantiate(client: &Client, graph: CUgraph, flags: u64) -> Result<CUgraphExec, Status> {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    client.graph_instantiate(graph, flags)
}

/// `cuGraphInstantiate` of CUDA 10 and 11, which had a log.
pub(crate) fn instantiate_with_log(
    client: &Client,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    error_node: Out<CUgraphNode>,
    log: Out<c_char>,
    log_bytes: usize,
) -> Result<(), Status> {
    let exec = exec.required()?;
    error_node.set_if_wanted(CUgraphNode::NULL);
    if log_bytes > 0
        && let Some(log) = log.optional()
    {
        log.set(0);
    }
    exec.set(instantiate(client, graph, 0)?);
    Ok(())
}

/// `cuGraphInstantiateWithFlags`.
pub(crate) fn instantiate_with_flags(
    client: &Client,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    flags: u64,
) -> Result<(), Status> {
    let exec = exec.required()?;
    exec.set(instantiate(client, graph, flags)?);
    Ok(())
}

/// `cuGraphInstantiateWithParams`.
pub(crate) fn instantiate_with_params(
    client: &Client,
    _default: DefaultStream,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Result<(), Status> {
    let (exec, place) = (exec.required()?, params.required()?);
    let mut params = place.value();
    let made = instantiate(client, graph, params.flags);
    params.hErrNode_out = CUgraphNode::NULL;
    params.result_out = if made.is_ok() { INSTANTIATED } else { INSTANTIATE_ERROR };
    place.set(params);
    exec.set(made?);
    Ok(())
}

/// `cuGraphLaunch`.
pub(crate) fn launch(
    client: &Client,
    default: DefaultStream,
    exec: CUgraphExec,
    stream: CUstream,
) -> Result<(), Status> {
    client.graph_launch(exec, default.named(stream))
}

/// `cuGraphUpload`: an instance lies on the worker already.
pub(crate) fn upload(
    client: &Client,
    default: DefaultStream,
    exec: CUgraphExec,
    stream: CUstream,
) -> Result<(), Status> {
    client.graph_exec_flags(exec)?;
    client.stream_flags(default.named(stream)).map(drop)
}

/// `cuGraphExecDestroy`.
pub(crate) fn destroy(client: &Client, exec: CUgraphExec) -> Result<(), Status> {
    client.graph_exec_destroy(exec)
}

/// `cuGraphExecGetFlags`.
pub(crate) fn flags(client: &Client, exec: CUgraphExec, flags: Out<u64>) -> Result<(), Status> {
    let flags = flags.required()?;
    flags.set(client.graph_exec_flags(exec)?);
    Ok(())
}

/// `cuGraphExecGetId`.
pub(crate) fn id(client: &Client, exec: CUgraphExec, id: Out<u32>) -> Result<(), Status> {
    let id = id.required()?;
    id.set(u32::try_from(client.graph_exec_id(exec)?).map_err(|_| Status::NOT_SUPPORTED)?);
    Ok(())
}

/// `cuGraphNodeSetEnabled`.
pub(crate) fn enable(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    enable: u32,
) -> Result<(), Status> {
    client.graph_exec_enable(exec, node, enable != 0)
}

/// `cuGraphNodeGetEnabled`.
pub(crate) fn is_enabled(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: Out<u32>,
) -> Result<(), Status> {
    let enabled = enabled.required()?;
    enabled.set(client.graph_exec_enabled(exec, node)?.into());
    Ok(())
}

/// `cuGraphExecMemcpyNodeSetParams`, `cuGraphExecMemsetNodeSetParams`.
pub(crate) fn set_in_context<T: Describes>(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: In<T>,
    context: CUcontext,
) -> Result<(), Status> {
    client.context_device(context)?;
    set(client, exec, node, params)
}

/// `cuGraphExecHostNodeSetParams`, `cuGraphExecNodeSetParams`.
pub(crate) fn set<T: Describes>(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: In<T>,
) -> Result<(), Status> {
    client.graph_exec_set(exec, node, params.required()?.work(client)?)
}

/// `cuGraphExecEventRecordNodeSetEvent`.
pub(crate) fn set_record(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Result<(), Status> {
    client.graph_exec_set(exec, node, Work::EventRecord(event))
}

/// `cuGraphExecEventWaitNodeSetEvent`.
pub(crate) fn set_wait(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Result<(), Status> {
    client.graph_exec_set(exec, node, Work::EventWait(event))
}

/// Numbers of `CUgraphExecUpdateResult`.
mod update_result {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const ERROR: u32 = 1;
    pub(super) const TOPOLOGY_CHANGED: u32 = 2;
    pub(super) const NODE_TYPE_CHANGED: u32 = 3;
}

/// `cuGraphExecUpdate_v2`.
pub(crate) fn update(
    client: &Client,
    exec: CUgraphExec,
    graph: CUgraph,
    info: Out<CUgraphExecUpdateResultInfo>,
) -> Result<(), Status> {
    let info = info.required()?;
    let updated = client.graph_exec_update(exec, graph);
    let (result, node) = match updated {
        Ok(Updated::Done) => (update_result::SUCCESS, CUgraphNode::NULL),
        Ok(Updated::TopologyChanged(node)) => (update_result::TOPOLOGY_CHANGED, node),
        Ok(Updated::KindChanged(node)) => (update_result::NODE_TYPE_CHANGED, node),
        Err(_) => (update_result::ERROR, CUgraphNode::NULL),
    };
    info.set(CUgraphExecUpdateResultInfo {
        result,
        errorNode: node,
        errorFromNode: CUgraphNode::NULL,
    });
    match updated? {
        Updated::Done => Ok(()),
        Updated::TopologyChanged(_) | Updated::KindChanged(_) => {
            Err(Status::GRAPH_EXEC_UPDATE_FAILURE)
        }
    }
}

/// `cuGraphExecUpdate` of CUDA 10 and 11.
pub(crate) fn update_with_node(
    client: &Client,
    exec: CUgraphExec,
    graph: CUgraph,
    node: Out<CUgraphNode>,
    result: Out<u32>,
) -> Result<(), Status> {
    let mut info = CUgraphExecUpdateResultInfo {
        result: update_result::ERROR,
        errorNode: CUgraphNode::NULL,
        errorFromNode: CUgraphNode::NULL,
    };
    let updated = update(client, exec, graph, Out::to(&mut info));
    node.set_if_wanted(info.errorNode);
    result.set_if_wanted(info.result);
    updated
}

/// `cuGraphExecChildGraphNodeSetParams`.
pub(crate) fn set_child(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> Result<(), Status> {
    client.graph_exec_set_child(exec, node, child)
}
