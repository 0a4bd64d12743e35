//! Instantiated graphs: node lists that launches run one node after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_device::{Device, Op, Place};
use weft_wire::Status;
use weft_wire::codec::{Field, Reader};
use weft_wire::command::{Block, GraphNode, GraphWork, LaunchSpec};
use weft_wire::id::{ContextId, EventId, GraphExecId, ModuleId, StreamId};

use crate::border::release_word;
use crate::error::{Reject, Violation};
use crate::launch;
use crate::output::{Caller, Output};
use crate::session::Session;
use crate::shape;
use crate::stream::{Operation, Point, SharedNodes, StreamKey, Task};

/// One node.
#[derive(Debug)]
pub(crate) enum Node {
    Empty,
    Operation { op: Op, key: u64, module: Option<ModuleId> },
    Host(u64),
    Record(EventId),
    Wait(EventId),
}

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) context: ContextId,
    nodes: SharedNodes,
    /// Bytes that it keeps, for the bound.
    pub(crate) bytes: u64,
}

/// The nodes of one launch that are still to run.
#[derive(Debug)]
pub(crate) struct GraphRun {
    nodes: SharedNodes,
    next: usize,
    /// What its event nodes record and wait for, in node order.
    events: VecDeque<EventTask>,
    accepted_ns: u64,
}

/// An event node of one launch. Waits refer to what was recorded when the launch was accepted, so
/// that they only ever need earlier commands.
#[derive(Debug)]
enum EventTask {
    Record(usize, u64),
    Wait(Option<Point>),
}

impl GraphRun {
    /// The next node.
    pub(crate) fn next_node(&self) -> Option<&Node> {
        self.nodes.get(self.next).map(|node| &**node)
    }

    /// The next node's task.
    pub(crate) fn next_task(&mut self) -> Option<Task> {
        let node = self.nodes.get(self.next)?;
        self.next += 1;
        Some(match &**node {
            Node::Empty => Task::Nothing,
            Node::Operation { op, key, .. } => Task::Operation(Box::new(Operation {
                op: op.clone(),
                key: *key,
                releases: [None, None],
                spent_ns: 0,
                done_bytes: 0,
            })),
            Node::Host(call) => Task::Host { call: *call, due: false },
            Node::Record(_) | Node::Wait(_) => match self.events.pop_front() {
                Some(EventTask::Record(slot, record)) => {
                    Task::Record { slot, record, accepted_ns: self.accepted_ns }
                }
                Some(EventTask::Wait(Some(point))) => Task::Wait(point),
                Some(EventTask::Wait(None)) | None => Task::Nothing,
            },
        })
    }
}

/// Bytes of bookkeeping that a node costs beside its parameters.
const NODE_BYTES: u64 = 256;

fn node_bytes(node: &Node) -> u64 {
    let kept = match node {
        Node::Operation { op: Op::Launch(launch), .. } => launch.params.len(),
        Node::Operation { op: Op::Copy { src, .. }, .. } => match &src.place {
            Place::Inline(bytes) => bytes.len(),
            Place::Device(_) | Place::Host(_) => 0,
        },
        Node::Operation { op: Op::Fill(_), .. }
        | Node::Empty
        | Node::Host(_)
        | Node::Record(_)
        | Node::Wait(_) => 0,
    };
    NODE_BYTES + kept as u64
}

impl<D: Device> Session<D> {
    pub(crate) fn graph_instantiate(
        &mut self,
        context: ContextId,
        id: GraphExecId,
        nodes: &Block,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.context(context)?;
        if nodes.bytes > self.limits.list_bytes {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        let bytes = self.shared.block(nodes)?.to_vec();
        let nodes_of = self.decode_nodes(&bytes, context)?;
        let kept = nodes_of.iter().map(|node| node_bytes(node)).sum();
        if self.graph_bytes.saturating_add(kept) > self.limits.graph_bytes {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        self.make_room(kept, out)?;
        let graph = Graph { context, nodes: Arc::new(nodes_of), bytes: kept };
        let taken = Violation::Slot { what: "graph", index: id.index };
        self.graphs.insert(id.index, id.generation, graph).map_err(|_| taken)?;
        self.graph_bytes += kept;
        out.release(nodes.release);
        self.answer_done(caller, out);
        Ok(())
    }

    fn decode_nodes(&self, bytes: &[u8], context: ContextId) -> Result<Vec<Arc<Node>>, Reject> {
        let mut reader = Reader::new(bytes);
        let count = u32::decode(&mut reader).map_err(|_| Status::INVALID_VALUE)?;
        let count = usize::try_from(count).map_err(|_| Status::INVALID_VALUE)?;
        if count > self.limits.graph_nodes {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        let mut nodes = Vec::new();
        for index in 0..count {
            let node = GraphNode::decode(&mut reader).map_err(|_| Status::INVALID_VALUE)?;
            let before = |after: &u32| usize::try_from(*after).is_ok_and(|after| after < index);
            if !node.after.iter().all(before) {
                return Err(Status::INVALID_VALUE.into());
            }
            nodes.push(Arc::new(self.node(&node.work, context)?));
        }
        reader.finish().map_err(|_| Status::INVALID_VALUE)?;
        Ok(nodes)
    }

    fn node(&self, work: &GraphWork<'_>, context: ContextId) -> Result<Node, Reject> {
        match work {
            GraphWork::Empty => Ok(Node::Empty),
            GraphWork::Kernel(spec) => self.kernel_node(spec, context),
            GraphWork::Copy { dst, src, shape } => {
                let sides = [&dst.place, &src.place];
                if sides.into_iter().any(|place| place.block().is_some()) {
                    return Err(Status::INVALID_VALUE.into());
                }
                Ok(operation_node(shape::copy(&self.shared, dst, src, shape)?))
            }
            GraphWork::Fill(spec) => Ok(operation_node(shape::fill(spec)?)),
            GraphWork::HostFunction(call) => Ok(Node::Host(*call)),
            GraphWork::EventRecord(event) => Ok(Node::Record(*event)),
            GraphWork::EventWait(event) => Ok(Node::Wait(*event)),
        }
    }

    fn kernel_node(&self, spec: &LaunchSpec<'_>, context: ContextId) -> Result<Node, Reject> {
        let op = self.launch_op(spec, Some(context))?;
        let key = launch::cost_key(&op);
        Ok(Node::Operation { op, key, module: Some(spec.module) })
    }

    /// Replaces a kernel node's launch. The parameters may come in a block, which is released.
    pub(crate) fn graph_set_kernel(
        &mut self,
        id: GraphExecId,
        index: u32,
        spec: &LaunchSpec<'_>,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let node = self.kernel_node(spec, self.graph_context(id)?)?;
        self.replace_node(id, index, node, out)?;
        if let Some(word) = release_word(&spec.params) {
            out.release(word);
        }
        Ok(())
    }

    pub(crate) fn graph_set_node(
        &mut self,
        id: GraphExecId,
        index: u32,
        block: &Block,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        if block.bytes > self.limits.list_bytes {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        let bytes = self.shared.block(block)?.to_vec();
        let node: GraphNode<'_> =
            weft_wire::codec::decode_all(&bytes).map_err(|_| Status::INVALID_VALUE)?;
        let node = self.node(&node.work, self.graph_context(id)?)?;
        self.replace_node(id, index, node, out)?;
        out.release(block.release);
        self.answer_done(caller, out);
        Ok(())
    }

    fn graph_context(&self, id: GraphExecId) -> Result<ContextId, Status> {
        let graph = self.graphs.get(id.index, id.generation);
        graph.map(|graph| graph.context).ok_or(Status::INVALID_HANDLE)
    }

    /// Launches that were accepted keep the nodes they had.
    fn replace_node(
        &mut self,
        id: GraphExecId,
        index: u32,
        node: Node,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.make_room(node_bytes(&node), out)?;
        let graph = self.graphs.get_mut(id.index, id.generation).ok_or(Status::INVALID_HANDLE)?;
        let at = usize::try_from(index).map_err(|_| Status::INVALID_VALUE)?;
        let old = graph.nodes.get(at).ok_or(Status::INVALID_VALUE)?;
        let (less, more) = (node_bytes(old), node_bytes(&node));
        let total = self.graph_bytes.saturating_sub(less).saturating_add(more);
        if total > self.limits.graph_bytes {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        self.graph_bytes = total;
        graph.bytes = graph.bytes.saturating_sub(less).saturating_add(more);
        if let Some(place) = Arc::make_mut(&mut graph.nodes).get_mut(at) {
            *place = Arc::new(node);
        }
        Ok(())
    }

    pub(crate) fn graph_launch(
        &mut self,
        id: GraphExecId,
        stream: StreamId,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        let graph = self.graphs.get(id.index, id.generation).ok_or(Status::INVALID_HANDLE)?;
        let owner = self.streams.get(key).and_then(|stream| stream.context);
        if owner.is_some_and(|owner| owner != graph.context) {
            return Err(Status::INVALID_CONTEXT.into());
        }
        let nodes = Arc::clone(&graph.nodes);
        for node in nodes.iter() {
            let live = match &**node {
                Node::Operation { module: Some(module), .. } => self.is_loaded(*module),
                Node::Record(event) | Node::Wait(event) => self.events.is_live(*event),
                Node::Operation { module: None, .. } | Node::Empty | Node::Host(_) => true,
            };
            if !live {
                return Err(Status::INVALID_HANDLE.into());
            }
            if !self.has_host_bytes(node) {
                return Err(Status::INVALID_VALUE.into());
            }
        }
        let events = self.accept_graph_events(key, &nodes)?;
        // A replaced node leaves the old one to the launches that wait, so each counts them all.
        let bytes = nodes.iter().map(|node| node_bytes(node)).sum();
        let accepted_ns = self.device.now_ns();
        let mut run = Box::new(GraphRun { nodes, next: 0, events, accepted_ns });
        match run.next_task() {
            Some(first) => self.streams.push(key, first, Some(run), bytes, None),
            None => self.streams.push(key, Task::Nothing, None, 0, None),
        }
        self.settle_from(key, out);
        Ok(())
    }

    /// Whether the host bytes that a copy uses were not given back since.
    fn has_host_bytes(&self, node: &Node) -> bool {
        let Node::Operation { op: Op::Copy { dst, src, .. }, .. } = node else { return true };
        [dst, src].into_iter().all(|side| match &side.place {
            Place::Host(span) => self.shared.is_taken(span),
            Place::Device(_) | Place::Inline(_) => true,
        })
    }

    fn accept_graph_events(
        &mut self,
        key: StreamKey,
        nodes: &SharedNodes,
    ) -> Result<VecDeque<EventTask>, Status> {
        // The records are passed at the latest when the whole launch has ended.
        let point = self.streams.next_point(key).ok_or(Status::INVALID_HANDLE)?;
        let mut tasks = VecDeque::new();
        for node in nodes.iter() {
            match &**node {
                Node::Record(event) => {
                    let (slot, record) = self.events.accept(*event, None, point)?;
                    tasks.push_back(EventTask::Record(slot, record));
                }
                Node::Wait(event) => tasks.push_back(EventTask::Wait(self.events.last(*event)?)),
                Node::Empty | Node::Operation { .. } | Node::Host(_) => {}
            }
        }
        Ok(tasks)
    }
}

fn operation_node(op: Option<Op>) -> Node {
    match op {
        None => Node::Empty,
        Some(op) => {
            let key = launch::cost_key(&op);
            Node::Operation { op, key, module: None }
        }
    }
}
