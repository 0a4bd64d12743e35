//! Nodes of graphs other than kernels, and nodes of any kind.

use weft_client::{Client, Work};
use weft_wire::Status;
use weft_wire::command::FillSpec;

use crate::abi::{
    CUDA_EVENT_RECORD_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS_v2,
    CUcontext, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams,
};
use crate::args::{In, Out};
use crate::capture::plain_edges;
use crate::copy_shape::Plan;
use crate::graph_kernel;
use crate::launch::host_work;
use crate::memory::{narrow, wide};

/// Numbers of `CUgraphNodeType`.
pub(crate) mod kind {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const MEMCPY: u32 = 1;
    pub(crate) const MEMSET: u32 = 2;
    pub(crate) const HOST: u32 = 3;
    pub(crate) const GRAPH: u32 = 4;
    pub(crate) const EMPTY: u32 = 5;
    pub(crate) const WAIT_EVENT: u32 = 6;
    pub(crate) const EVENT_RECORD: u32 = 7;
}

/// What the calls that add a node have in common.
pub(crate) struct Adding<'a> {
    pub(crate) client: &'a Client,
    pub(crate) graph: CUgraph,
    pub(crate) dependencies: &'a In<CUgraphNode>,
    pub(crate) count: usize,
}

impl Adding<'_> {
    /// Adds a node that does `work`.
    pub(crate) fn add(&self, node: Out<CUgraphNode>, work: Work) -> Result<(), Status> {
        let node = node.required()?;
        let dependencies = self.dependencies.slice(self.count)?;
        node.set(self.client.graph_add(self.graph, dependencies, work)?);
        Ok(())
    }
}

/// C parameters that say what a node does.
pub(crate) trait Describes: Copy {
    /// The work, checked.
    fn work(&self, client: &Client) -> Result<Work, Status>;
}

impl Describes for CUDA_MEMCPY3D {
    fn work(&self, _client: &Client) -> Result<Work, Status> {
        Ok(Work::Copy(Plan::of(self)?.graph_work()))
    }
}

impl Describes for CUDA_MEMSET_NODE_PARAMS {
    fn work(&self, _client: &Client) -> Result<Work, Status> {
        let element = u8::try_from(self.elementSize).map_err(|_| Status::INVALID_VALUE)?;
        if !matches!(element, 1 | 2 | 4) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Work::Fill(FillSpec {
            address: self.dst,
            pitch: wide(self.pitch),
            width: wide(self.width),
            height: wide(self.height),
            element,
            value: self.value,
        }))
    }
}

impl Describes for CUDA_HOST_NODE_PARAMS {
    fn work(&self, _client: &Client) -> Result<Work, Status> {
        Ok(Work::Host(host_work(self.func, self.userData)?))
    }
}

/// `cuGraphAddMemcpyNode`, `cuGraphAddMemsetNode`.
pub(crate) fn add_in_context<T: Describes>(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    params: In<T>,
    context: CUcontext,
) -> Result<(), Status> {
    client.context_device(context)?;
    add(client, node, graph, dependencies, count, params)
}

/// `cuGraphAddHostNode`, `cuGraphAddNode`.
pub(crate) fn add<T: Describes>(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    params: In<T>,
) -> Result<(), Status> {
    let adding = Adding { client, graph, dependencies: &dependencies, count };
    adding.add(node, params.required()?.work(client)?)
}

/// `cuGraphAddEmptyNode`.
pub(crate) fn add_empty(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
) -> Result<(), Status> {
    let adding = Adding { client, graph, dependencies: &dependencies, count };
    adding.add(node, Work::Empty)
}

/// `cuGraphAddChildGraphNode`.
pub(crate) fn add_child(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    child: CUgraph,
) -> Result<(), Status> {
    let adding = Adding { client, graph, dependencies: &dependencies, count };
    adding.add(node, Work::Child(child))
}

/// `cuGraphAddEventRecordNode`.
pub(crate) fn add_record(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    event: CUevent,
) -> Result<(), Status> {
    let adding = Adding { client, graph, dependencies: &dependencies, count };
    adding.add(node, Work::EventRecord(event))
}

/// `cuGraphAddEventWaitNode`.
pub(crate) fn add_wait(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    event: CUevent,
) -> Result<(), Status> {
    let adding = Adding { client, graph, dependencies: &dependencies, count };
    adding.add(node, Work::EventWait(event))
}

/// `cuGraphAddNode_v2`.
pub(crate) fn add_with_edges(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    edges: In<CUgraphEdgeData>,
    count: usize,
    params: In<CUgraphNodeParams>,
) -> Result<(), Status> {
    plain_edges(&edges, count)?;
    add(client, node, graph, dependencies, count, params)
}

/// `cuGraphNodeSetParams`, `cuGraphMemcpyNodeSetParams`, `cuGraphMemsetNodeSetParams`,
/// `cuGraphHostNodeSetParams`.
pub(crate) fn set<T: Describes>(
    client: &Client,
    node: CUgraphNode,
    params: In<T>,
) -> Result<(), Status> {
    client.graph_node_set(node, params.required()?.work(client)?)
}

impl Describes for CUgraphNodeParams {
    fn work(&self, client: &Client) -> Result<Work, Status> {
        let [first, ..] = self.body;
        match self.kind {
            kind::KERNEL => graph_kernel::work(client, &body::<CUDA_KERNEL_NODE_PARAMS>(self)),
            kind::MEMCPY => body::<CUDA_MEMCPY_NODE_PARAMS>(self).copyParams.work(client),
            kind::MEMSET => {
                let fill = body::<CUDA_MEMSET_NODE_PARAMS_v2>(self);
                let plain = CUDA_MEMSET_NODE_PARAMS {
                    dst: fill.dst,
                    pitch: fill.pitch,
                    value: fill.value,
                    elementSize: fill.elementSize,
                    width: fill.width,
                    height: fill.height,
                };
                plain.work(client)
            }
            kind::HOST => body::<CUDA_HOST_NODE_PARAMS>(self).work(client),
            kind::GRAPH => Ok(Work::Child(CUgraph::from_raw(first))),
            kind::EMPTY => Ok(Work::Empty),
            kind::WAIT_EVENT => Ok(Work::EventWait(CUevent::from_raw(first))),
            kind::EVENT_RECORD => {
                Ok(Work::EventRecord(body::<CUDA_EVENT_RECORD_NODE_PARAMS>(self).event))
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}

/// Structs that the union of [`CUgraphNodeParams`] holds: any bytes make one.
trait Body: Copy {}
impl Body for CUDA_KERNEL_NODE_PARAMS {}
impl Body for CUDA_MEMCPY_NODE_PARAMS {}
impl Body for CUDA_MEMSET_NODE_PARAMS_v2 {}
impl Body for CUDA_HOST_NODE_PARAMS {}
impl Body for CUDA_EVENT_RECORD_NODE_PARAMS {}

fn body<T: Body>(params: &CUgraphNodeParams) -> T {
    const { assert!(size_of::<T>() <= size_of::<[u64; 29]>()) }
    // SAFETY: the union is large enough (above), and any bytes make a `Body`.
    unsafe { core::ptr::from_ref(&params.body).cast::<T>().read() }
}

/// `cuGraphNodeGetType`.
pub(crate) fn node_kind(client: &Client, node: CUgraphNode, kind: Out<u32>) -> Result<(), Status> {
    let kind = kind.required()?;
    kind.set(match client.graph_node_work(node)? {
        Work::Kernel(_) => kind::KERNEL,
        Work::Copy(_) => kind::MEMCPY,
        Work::Fill(_) => kind::MEMSET,
        Work::Host(_) => kind::HOST,
        Work::Child(_) => kind::GRAPH,
        Work::Empty => kind::EMPTY,
        Work::EventWait(_) => kind::WAIT_EVENT,
        Work::EventRecord(_) => kind::EVENT_RECORD,
    });
    Ok(())
}

/// `cuGraphMemsetNodeGetParams`.
pub(crate) fn fill(
    client: &Client,
    node: CUgraphNode,
    params: Out<CUDA_MEMSET_NODE_PARAMS>,
) -> Result<(), Status> {
    let params = params.required()?;
    let Work::Fill(fill) = client.graph_node_work(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    params.set(CUDA_MEMSET_NODE_PARAMS {
        dst: fill.address,
        pitch: narrow(fill.pitch),
        value: fill.value,
        elementSize: fill.element.into(),
        width: narrow(fill.width),
        height: narrow(fill.height),
    });
    Ok(())
}

/// `cuGraphChildGraphNodeGetGraph`.
pub(crate) fn child(client: &Client, node: CUgraphNode, graph: Out<CUgraph>) -> Result<(), Status> {
    let graph = graph.required()?;
    let Work::Child(child) = client.graph_node_work(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    graph.set(child);
    Ok(())
}

/// `cuGraphEventRecordNodeGetEvent`.
pub(crate) fn record(
    client: &Client,
    node: CUgraphNode,
    event: Out<CUevent>,
) -> Result<(), Status> {
    let event = event.required()?;
    let Work::EventRecord(recorded) = client.graph_node_work(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    event.set(recorded);
    Ok(())
}

/// `cuGraphEventRecordNodeSetEvent`.
pub(crate) fn set_record(client: &Client, node: CUgraphNode, event: CUevent) -> Result<(), Status> {
    client.graph_node_set(node, Work::EventRecord(event))
}

/// `cuGraphEventWaitNodeGetEvent`.
pub(crate) fn wait(client: &Client, node: CUgraphNode, event: Out<CUevent>) -> Result<(), Status> {
    let event = event.required()?;
    let Work::EventWait(awaited) = client.graph_node_work(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    event.set(awaited);
    Ok(())
}

/// `cuGraphEventWaitNodeSetEvent`.
pub(crate) fn set_wait(client: &Client, node: CUgraphNode, event: CUevent) -> Result<(), Status> {
    client.graph_node_set(node, Work::EventWait(event))
}
