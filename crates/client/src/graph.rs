//! Graphs: lists of nodes that the application builds or a capture collects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use weft_wire::Status;
use weft_wire::command::{FillSpec, Shape};

use crate::client::{Client, lock};
use crate::function::FunctionState;
use crate::handle::{Event, Function, Graph, GraphNode};
use crate::launch::Launch;
use crate::param_block::ParamBlock;
use crate::user_object::References;

/// A function on the host that a graph or a stream calls.
#[derive(Clone)]
pub struct HostWork(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for HostWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostWork")
    }
}

/// A kernel of a graph.
#[derive(Debug, Clone)]
pub struct KernelWork {
    /// The handle that the application gave.
    pub function: Function,
    /// What it names.
    pub target: Arc<FunctionState>,
    /// Grid, block and shared memory.
    pub launch: Launch,
    /// The parameter block.
    pub params: ParamBlock,
}

/// One side of a graph's copy, by the address that the device uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySide {
    /// Device or page-locked address of the first byte.
    pub address: u64,
    /// Bytes from one row to the next.
    pub pitch: u64,
    /// Bytes from one slice to the next.
    pub slice: u64,
}

/// A copy of a graph: between device and page-locked memory.
#[derive(Debug, Clone, PartialEq)]
pub struct CopyWork {
    /// Where to.
    pub dst: CopySide,
    /// Where from.
    pub src: CopySide,
    /// How much.
    pub shape: Shape,
}

/// What a node does.
#[derive(Debug, Clone)]
pub enum Work {
    /// Nothing; it only orders.
    Empty,
    /// A kernel.
    Kernel(KernelWork),
    /// A copy.
    Copy(CopyWork),
    /// A fill.
    Fill(FillSpec),
    /// A host function.
    Host(HostWork),
    /// Records an event.
    EventRecord(Event),
    /// Waits for an event.
    EventWait(Event),
    /// A whole graph, the node's own copy.
    Child(Graph),
}

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) handle: GraphNode,
    pub(crate) after: BTreeSet<u32>,
    pub(crate) work: Work,
    pub(crate) enabled: bool,
}

/// Where a node handle leads.
#[derive(Debug)]
pub(crate) struct NodeRef {
    handle: GraphNode,
    graph: Graph,
    index: u32,
}

/// A graph.
#[derive(Debug)]
pub(crate) struct GraphState {
    pub(crate) handle: Graph,
    number: u64,
    pub(crate) nodes: Mutex<BTreeMap<u32, Node>>,
    /// Objects of the application that it keeps.
    pub(crate) held: Mutex<References>,
}

impl Client {
    /// Makes an empty graph.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn graph_create(&self) -> Result<Graph, Status> {
        self.new_graph(BTreeMap::new()).map(|graph| graph.handle)
    }

    pub(crate) fn new_graph(&self, nodes: BTreeMap<u32, Node>) -> Result<Arc<GraphState>, Status> {
        let number = self.number();
        let nodes = Mutex::new(nodes);
        let made = self.graphs.insert(0, |_, handle| {
            let held = Mutex::default();
            GraphState { handle, number, nodes, held }
        });
        made.map(|(_, graph)| graph).map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// Destroys a graph and its nodes; instantiated ones live on.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_destroy(&self, graph: Graph) -> Result<(), Status> {
        let state = self.graphs.remove(graph).ok_or(Status::INVALID_VALUE)?;
        let nodes = std::mem::take(&mut *lock(&state.nodes));
        for node in nodes.into_values() {
            self.drop_node(&node);
        }
        Ok(())
    }

    fn drop_node(&self, node: &Node) {
        self.graph_nodes.remove(node.handle);
        if let Work::Child(child) = node.work {
            // The child is this node's own copy; nobody else destroyed it.
            let _gone = self.graph_destroy(child);
        }
    }

    pub(crate) fn graph(&self, graph: Graph) -> Result<Arc<GraphState>, Status> {
        self.graphs.get(graph).ok_or(Status::INVALID_VALUE)
    }

    /// A number that no other graph of the session has.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_id(&self, graph: Graph) -> Result<u64, Status> {
        Ok(self.graph(graph)?.number)
    }

    /// Adds a node behind others. A child graph is copied.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a stale graph, or nodes that are not its own.
    pub fn graph_add(
        &self,
        graph: Graph,
        after: &[GraphNode],
        work: Work,
    ) -> Result<GraphNode, Status> {
        let state = self.graph(graph)?;
        let after = after
            .iter()
            .map(|node| self.node_index(graph, *node))
            .collect::<Result<BTreeSet<u32>, Status>>()?;
        let work = self.own_copy(work)?;
        self.add_node(&state, after, work).map(|(_, node)| node)
    }

    /// The work with a child graph replaced by a copy of it.
    fn own_copy(&self, work: Work) -> Result<Work, Status> {
        if let Work::Child(child) = work {
            return self.graph_clone(child).map(Work::Child);
        }
        Ok(work)
    }

    /// Adds a node behind nodes of the same graph.
    pub(crate) fn add_node(
        &self,
        graph: &GraphState,
        after: BTreeSet<u32>,
        work: Work,
    ) -> Result<(u32, GraphNode), Status> {
        let mut nodes = lock(&graph.nodes);
        let index = nodes.last_key_value().map_or(0, |(last, _)| last + 1);
        let handle = self.new_node(graph.handle, index)?;
        nodes.insert(index, Node { handle, after, work, enabled: true });
        Ok((index, handle))
    }

    fn new_node(&self, graph: Graph, index: u32) -> Result<GraphNode, Status> {
        let made = self.graph_nodes.insert(0, |_, handle| NodeRef { handle, graph, index });
        made.map(|(_, node)| node.handle).map_err(|_| Status::OUT_OF_MEMORY)
    }

    fn node_index(&self, graph: Graph, node: GraphNode) -> Result<u32, Status> {
        let node = self.graph_nodes.get(node).filter(|node| node.graph == graph);
        node.map(|node| node.index).ok_or(Status::INVALID_VALUE)
    }

    /// The graph that a node is in.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_of_node(&self, node: GraphNode) -> Result<Graph, Status> {
        self.graph_nodes.get(node).map(|node| node.graph).ok_or(Status::INVALID_VALUE)
    }

    fn with_node<R>(
        &self,
        node: GraphNode,
        look: impl FnOnce(&mut Node) -> R,
    ) -> Result<R, Status> {
        let node = self.graph_nodes.get(node).ok_or(Status::INVALID_VALUE)?;
        let graph = self.graph(node.graph)?;
        let mut nodes = lock(&graph.nodes);
        nodes.get_mut(&node.index).map(look).ok_or(Status::INVALID_VALUE)
    }

    /// What a node does.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_node_work(&self, node: GraphNode) -> Result<Work, Status> {
        self.with_node(node, |node| node.work.clone())
    }

    /// Replaces what a node does by something of the same kind.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a stale node or another kind of work.
    pub fn graph_node_set(&self, node: GraphNode, work: Work) -> Result<(), Status> {
        self.with_node(node, |node| {
            if std::mem::discriminant(&node.work) != std::mem::discriminant(&work) {
                return Err(Status::INVALID_VALUE);
            }
            node.work = work;
            Ok(())
        })?
    }

    /// All nodes, in the order of their making.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>, Status> {
        let graph = self.graph(graph)?;
        let nodes = lock(&graph.nodes);
        Ok(nodes.values().map(|node| node.handle).collect())
    }

    /// Nodes that wait for no other.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_root_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>, Status> {
        let graph = self.graph(graph)?;
        let nodes = lock(&graph.nodes);
        let roots = nodes.values().filter(|node| node.after.is_empty());
        Ok(roots.map(|node| node.handle).collect())
    }

    /// All dependencies as pairs from, to.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_edges(&self, graph: Graph) -> Result<Vec<(GraphNode, GraphNode)>, Status> {
        let graph = self.graph(graph)?;
        let nodes = lock(&graph.nodes);
        let edges = nodes.values().flat_map(|node| {
            let from = node.after.iter().filter_map(|from| nodes.get(from));
            from.map(|from| (from.handle, node.handle))
        });
        Ok(edges.collect())
    }

    /// Nodes that a node waits for.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_node_dependencies(&self, node: GraphNode) -> Result<Vec<GraphNode>, Status> {
        let edges = self.graph_edges(self.graph_of_node(node)?)?;
        Ok(edges.into_iter().filter(|(_, to)| *to == node).map(|(from, _)| from).collect())
    }

    /// Nodes that wait for a node.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_node_dependents(&self, node: GraphNode) -> Result<Vec<GraphNode>, Status> {
        let edges = self.graph_edges(self.graph_of_node(node)?)?;
        Ok(edges.into_iter().filter(|(from, _)| *from == node).map(|(_, to)| to).collect())
    }

    /// Adds dependencies.
    ///
    /// # Errors
    /// `INVALID_VALUE` for nodes of other graphs, duplicates, or a cycle.
    pub fn graph_add_dependencies(
        &self,
        graph: Graph,
        edges: &[(GraphNode, GraphNode)],
    ) -> Result<(), Status> {
        let state = self.graph(graph)?;
        let edges = self.edge_indices(graph, edges)?;
        let mut nodes = lock(&state.nodes);
        let mut changed = nodes.clone();
        for (from, to) in edges {
            let node = changed.get_mut(&to).ok_or(Status::INVALID_VALUE)?;
            if !node.after.insert(from) {
                return Err(Status::INVALID_VALUE);
            }
        }
        in_order(&changed)?;
        *nodes = changed;
        Ok(())
    }

    /// Removes dependencies.
    ///
    /// # Errors
    /// `INVALID_VALUE` for nodes of other graphs or dependencies that do not exist.
    pub fn graph_remove_dependencies(
        &self,
        graph: Graph,
        edges: &[(GraphNode, GraphNode)],
    ) -> Result<(), Status> {
        let state = self.graph(graph)?;
        let edges = self.edge_indices(graph, edges)?;
        let mut nodes = lock(&state.nodes);
        for (from, to) in edges {
            let node = nodes.get_mut(&to).ok_or(Status::INVALID_VALUE)?;
            if !node.after.remove(&from) {
                return Err(Status::INVALID_VALUE);
            }
        }
        Ok(())
    }

    fn edge_indices(
        &self,
        graph: Graph,
        edges: &[(GraphNode, GraphNode)],
    ) -> Result<Vec<(u32, u32)>, Status> {
        let index = |node| self.node_index(graph, node);
        edges.iter().map(|(from, to)| Ok((index(*from)?, index(*to)?))).collect()
    }

    /// Removes a node and its dependencies.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_destroy_node(&self, node: GraphNode) -> Result<(), Status> {
        let graph = self.graph(self.graph_of_node(node)?)?;
        let index = self.node_index(graph.handle, node)?;
        let removed = {
            let mut nodes = lock(&graph.nodes);
            for other in nodes.values_mut() {
                other.after.remove(&index);
            }
            nodes.remove(&index).ok_or(Status::INVALID_VALUE)?
        };
        self.drop_node(&removed);
        Ok(())
    }

    /// Enables or disables nothing in the graph itself: only instantiated nodes have the switch, so
    /// this reads what a new instance starts with.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_node_enabled(&self, node: GraphNode) -> Result<bool, Status> {
        self.with_node(node, |node| node.enabled)
    }

    /// A copy with nodes of its own, in the same order.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `OUT_OF_MEMORY`.
    pub fn graph_clone(&self, graph: Graph) -> Result<Graph, Status> {
        let original = self.graph(graph)?;
        let nodes = lock(&original.nodes).clone();
        let copy = self.new_graph(BTreeMap::new())?;
        let mut copied = BTreeMap::new();
        for (index, node) in nodes {
            let work = self.own_copy(node.work)?;
            let handle = self.new_node(copy.handle, index)?;
            copied.insert(index, Node { handle, work, ..node });
        }
        *lock(&copy.nodes) = copied;
        *lock(&copy.held) = lock(&original.held).again();
        Ok(copy.handle)
    }

    /// The node of `clone` that a node of the original became.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is none.
    pub fn graph_node_in_clone(
        &self,
        original: GraphNode,
        clone: Graph,
    ) -> Result<GraphNode, Status> {
        let original = self.graph_nodes.get(original).ok_or(Status::INVALID_VALUE)?;
        let clone = self.graph(clone)?;
        let nodes = lock(&clone.nodes);
        nodes.get(&original.index).map(|node| node.handle).ok_or(Status::INVALID_VALUE)
    }
}

/// Indices of all nodes, each behind those it waits for; of several the oldest first.
///
/// # Errors
/// `INVALID_VALUE` when the nodes wait for each other in a circle.
pub(crate) fn in_order(nodes: &BTreeMap<u32, Node>) -> Result<Vec<u32>, Status> {
    let mut waits: BTreeMap<u32, usize> = BTreeMap::new();
    let mut dependents: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut ready = BTreeSet::new();
    for (index, node) in nodes {
        waits.insert(*index, node.after.len());
        if node.after.is_empty() {
            ready.insert(*index);
        }
        for from in &node.after {
            dependents.entry(*from).or_default().push(*index);
        }
    }
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for next in dependents.remove(&index).unwrap_or_default() {
            if let Some(left) = waits.get_mut(&next) {
                *left -= 1;
                if *left == 0 {
                    ready.insert(next);
                }
            }
        }
    }
    if order.len() == nodes.len() { Ok(order) } else { Err(Status::INVALID_VALUE) }
}
