//! Graphs as a whole: making, cloning, nodes and edges.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUgraph, CUgraphEdgeData, CUgraphNode};
use crate::args::{In, Out};
use crate::capture::plain_edges;

/// `cuGraphCreate`.
pub(crate) fn create(client: &Client, graph: Out<CUgraph>, flags: u32) -> Result<(), Status> {
    let graph = graph.required()?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    graph.set(client.graph_create()?);
    Ok(())
}

/// `cuGraphDestroy`.
pub(crate) fn destroy(client: &Client, graph: CUgraph) -> Result<(), Status> {
    client.graph_destroy(graph)
}

/// `cuGraphClone`.
pub(crate) fn clone(client: &Client, copy: Out<CUgraph>, original: CUgraph) -> Result<(), Status> {
    let copy = copy.required()?;
    copy.set(client.graph_clone(original)?);
    Ok(())
}

/// `cuGraphNodeFindInClone`.
pub(crate) fn node_in_clone(
    client: &Client,
    node: Out<CUgraphNode>,
    original: CUgraphNode,
    copy: CUgraph,
) -> Result<(), Status> {
    let node = node.required()?;
    node.set(client.graph_node_in_clone(original, copy)?);
    Ok(())
}

/// `cuGraphDestroyNode`.
pub(crate) fn destroy_node(client: &Client, node: CUgraphNode) -> Result<(), Status> {
    client.graph_destroy_node(node)
}

/// `cuGraphGetId`.
pub(crate) fn id(client: &Client, graph: CUgraph, id: Out<u32>) -> Result<(), Status> {
    let id = id.required()?;
    id.set(u32::try_from(client.graph_id(graph)?).map_err(|_| Status::NOT_SUPPORTED)?);
    Ok(())
}

/// `cuGraphNodeGetContainingGraph`.
pub(crate) fn of_node(
    client: &Client,
    node: CUgraphNode,
    graph: Out<CUgraph>,
) -> Result<(), Status> {
    let graph = graph.required()?;
    graph.set(client.graph_of_node(node)?);
    Ok(())
}

/// `cuGraphGetNodes`.
pub(crate) fn nodes(
    client: &Client,
    graph: CUgraph,
    nodes: Out<CUgraphNode>,
    count: Out<usize>,
) -> Result<(), Status> {
    list(&client.graph_nodes(graph)?, nodes, count)
}

/// `cuGraphGetRootNodes`.
pub(crate) fn root_nodes(
    client: &Client,
    graph: CUgraph,
    nodes: Out<CUgraphNode>,
    count: Out<usize>,
) -> Result<(), Status> {
    list(&client.graph_root_nodes(graph)?, nodes, count)
}

/// `cuGraphNodeGetDependencies`.
pub(crate) fn dependencies(
    client: &Client,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    count: Out<usize>,
) -> Result<(), Status> {
    list(&client.graph_node_dependencies(node)?, nodes, count)
}

/// `cuGraphNodeGetDependencies_v2`.
pub(crate) fn dependencies_with_edges(
    client: &Client,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    edges: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Result<(), Status> {
    list_with_edges(&client.graph_node_dependencies(node)?, nodes, edges, count)
}

/// `cuGraphNodeGetDependentNodes`.
pub(crate) fn dependents(
    client: &Client,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    count: Out<usize>,
) -> Result<(), Status> {
    list(&client.graph_node_dependents(node)?, nodes, count)
}

/// `cuGraphNodeGetDependentNodes_v2`.
pub(crate) fn dependents_with_edges(
    client: &Client,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    edges: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Result<(), Status> {
    list_with_edges(&client.graph_node_dependents(node)?, nodes, edges, count)
}

/// `cuGraphGetEdges`.
pub(crate) fn edges(
    client: &Client,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    count: Out<usize>,
) -> Result<(), Status> {
    let edges = client.graph_edges(graph)?;
    let (sources, targets): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
    let count = count.required()?;
    match (from.is_null(), to.is_null()) {
        (true, true) => {
            count.set(sources.len());
            return Ok(());
        }
        (false, false) => {}
        (true, false) | (false, true) => return Err(Status::INVALID_VALUE),
    }
    let room = count.value();
    fill(&sources, from, room)?;
    count.set(fill(&targets, to, room)?);
    Ok(())
}

/// `cuGraphGetEdges_v2`.
pub(crate) fn edges_with_data(
    client: &Client,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Result<(), Status> {
    let wanted = count.required()?;
    let room = wanted.value();
    edges(client, graph, from, to, Out::from(wanted))?;
    if !data.is_null() {
        fill(&vec![PLAIN; wanted.value().min(room)], data, room)?;
    }
    Ok(())
}

/// `cuGraphAddDependencies`.
pub(crate) fn add_dependencies(
    client: &Client,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    count: usize,
) -> Result<(), Status> {
    client.graph_add_dependencies(graph, &pairs(&from, &to, count)?)
}

/// `cuGraphAddDependencies_v2`.
pub(crate) fn add_dependencies_with_edges(
    client: &Client,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    edges: In<CUgraphEdgeData>,
    count: usize,
) -> Result<(), Status> {
    plain_edges(&edges, count)?;
    add_dependencies(client, graph, from, to, count)
}

/// `cuGraphRemoveDependencies`.
pub(crate) fn remove_dependencies(
    client: &Client,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    count: usize,
) -> Result<(), Status> {
    client.graph_remove_dependencies(graph, &pairs(&from, &to, count)?)
}

/// `cuGraphRemoveDependencies_v2`.
pub(crate) fn remove_dependencies_with_edges(
    client: &Client,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    edges: In<CUgraphEdgeData>,
    count: usize,
) -> Result<(), Status> {
    plain_edges(&edges, count)?;
    remove_dependencies(client, graph, from, to, count)
}

/// An edge without ports.
const PLAIN: CUgraphEdgeData =
    CUgraphEdgeData { from_port: 0, to_port: 0, kind: 0, _reserved: [0; 5] };

fn pairs(
    from: &In<CUgraphNode>,
    to: &In<CUgraphNode>,
    count: usize,
) -> Result<Vec<(CUgraphNode, CUgraphNode)>, Status> {
    let (from, to) = (from.slice(count)?, to.slice(count)?);
    Ok(from.iter().copied().zip(to.iter().copied()).collect())
}

/// Answers a list the way the driver does: without a place only its length; with one as many as
/// fit, the rest of the places null.
fn list(have: &[CUgraphNode], nodes: Out<CUgraphNode>, count: Out<usize>) -> Result<(), Status> {
    let count = count.required()?;
    if nodes.is_null() {
        count.set(have.len());
        return Ok(());
    }
    let room = count.value();
    let padding = core::iter::repeat_n(CUgraphNode::NULL, room.saturating_sub(have.len()));
    nodes.slice(room)?.fill(have.iter().copied().chain(padding));
    count.set(have.len().min(room));
    Ok(())
}

fn list_with_edges(
    have: &[CUgraphNode],
    nodes: Out<CUgraphNode>,
    edges: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Result<(), Status> {
    let wanted = count.required()?;
    if !edges.is_null() && !nodes.is_null() {
        fill(&vec![PLAIN; have.len()], edges, wanted.value())?;
    }
    list(have, nodes, Out::from(wanted))
}

fn fill<T: Copy>(have: &[T], places: Out<T>, room: usize) -> Result<usize, Status> {
    Ok(places.slice(room)?.fill(have.iter().copied()))
}
