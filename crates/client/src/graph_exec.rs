//! Instantiated graphs: they live on the worker; here are their launches and changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use weft_wire::codec::{Field, encode_to_vec};
use weft_wire::command::{self, GraphWork, LIST_BYTES_MAX, LaunchSpec, Payload};
use weft_wire::id::{EventId, GraphExecId};
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::copy::Layout;
use crate::graph::{CopyWork, KernelWork, Node, Work, in_order};
use crate::handle::{Context, Event, Graph, GraphExec, GraphNode, Stream};
use crate::launch::launch_spec;
use crate::memset::fill_span;
use crate::session::Session;
use crate::staging;
use crate::table::Removed;
use crate::user_object::References;

/// Longest parameter block that replaces another inside the command, in bytes.
const INLINE_PARAMS_MAX: usize = 400;

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct GraphExecState {
    pub(crate) handle: GraphExec,
    id: GraphExecId,
    pub(crate) session: Arc<Session>,
    pub(crate) context: Context,
    number: u64,
    flags: u64,
    /// Positions in the worker's list, by the handles that the graph had when it was instantiated.
    positions: BTreeMap<GraphNode, u32>,
    contents: Mutex<Contents>,
}

impl GraphExecState {
    /// Where the worker's list has a node of the graph.
    pub(crate) fn position(&self, node: GraphNode) -> Result<u32, Status> {
        self.positions.get(&node).copied().ok_or(Status::INVALID_VALUE)
    }

    pub(crate) fn contents(&self) -> MutexGuard<'_, Contents> {
        lock(&self.contents)
    }

    fn keep_host_functions(&self, contents: &Contents) -> Result<(), Status> {
        for (position, (_, work, _)) in (0..).zip(&contents.nodes) {
            if let (Work::Host(host), Some(call)) = (work, contents.calls.get(&position)) {
                self.session.host_functions.keep(*call, host.clone())?;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// What each node does, by position; for nodes that are switched off and on again.
    pub(crate) nodes: Vec<(Vec<u32>, Work, bool)>,
    /// Where the nodes of a child graph end, by the position of the node that holds it.
    pub(crate) children: BTreeMap<u32, u32>,
    /// Events of the event-record nodes, in node order.
    events: BTreeMap<u32, Event>,
    /// Numbers of the host functions, by position.
    calls: BTreeMap<u32, u64>,
    /// Kernels that are switched on and have no blocks yet. Programs describe a launch whose size
    /// they learn later by an empty grid, and set the size before the graph is launched.
    without_blocks: BTreeSet<u32>,
    /// Objects that the graph kept when it was instantiated; those of child graphs by the position
    /// of the node that holds the child.
    pub(crate) held: BTreeMap<Option<u32>, References>,
    /// It was launched once: it may be running.
    pub(crate) launched: bool,
}

fn has_no_blocks(work: &Work) -> bool {
    matches!(work, Work::Kernel(kernel) if kernel.launch.grid.contains(&0))
}

/// The nodes of a graph, its children put in their places, in an order that can run.
#[derive(Debug, Default)]
pub(crate) struct Flat {
    pub(crate) nodes: Vec<(Vec<u32>, Work, bool)>,
    pub(crate) positions: BTreeMap<GraphNode, u32>,
    /// As [`Contents::children`].
    pub(crate) children: BTreeMap<u32, u32>,
    /// As [`Contents::held`].
    pub(crate) held: BTreeMap<Option<u32>, References>,
}

impl Client {
    /// Instantiates a graph in the current context, or one of the device that it works on.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a stale graph, stale functions or addresses, or what the worker answers.
    pub fn graph_instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec, Status> {
        let current = self.current()?;
        let mut flat = Flat::default();
        self.flatten(graph, None, &mut flat)?;
        let context = self.context_of_graph(&flat, current);
        let (nodes, children, held) = (flat.nodes, flat.children, flat.held);
        let mut contents = Contents { nodes, children, held, ..Contents::default() };
        for (position, (_, work, enabled)) in (0..).zip(&contents.nodes) {
            if *enabled && has_no_blocks(work) {
                contents.without_blocks.insert(position);
            }
            if let Work::Host(_) = work {
                contents.calls.insert(position, self.number());
            }
            if let Work::EventRecord(event) = work {
                contents.events.insert(position, *event);
            }
        }
        let session = &context.session;
        let list = self.encode_list(session, &contents)?;
        let made = self.graph_execs.insert(session.ordinal, |slot, handle| GraphExecState {
            handle,
            id: GraphExecId { index: slot.index, generation: slot.generation },
            session: Arc::clone(session),
            context: context.handle,
            number: self.number(),
            flags,
            positions: flat.positions,
            contents: Mutex::new(contents),
        });
        let (handle, state) = made.map_err(|_| Status::OUT_OF_MEMORY)?;
        let outcome = state.keep_host_functions(&state.contents()).and_then(|()| {
            let nodes = staging::named(&session.block_with(&list)?.hand_over());
            session.call(&Command::GraphInstantiate { context: context.id, graph: state.id, nodes })
        });
        if outcome.is_err() {
            self.forget_exec(handle);
        }
        outcome.map(|()| handle)
    }

    /// Where a graph runs: in the current context, unless it works on another device.
    fn context_of_graph(&self, flat: &Flat, current: Arc<ContextState>) -> Arc<ContextState> {
        let of_address = |address: u64| self.ranges.find(address).map(|range| range.context);
        let found = flat.nodes.iter().find_map(|(_, work, _)| match work {
            Work::Kernel(kernel) => Some(kernel.target.context),
            Work::Fill(fill) => of_address(fill.address),
            Work::Copy(copy) => {
                of_address(copy.dst.address).or_else(|| of_address(copy.src.address))
            }
            Work::EventRecord(event) | Work::EventWait(event) => {
                self.events.with(*event, |event| event.context)
            }
            Work::Empty | Work::Host(_) | Work::Child(_) => None,
        });
        let elsewhere = found.filter(|context| context.ordinal() != current.session.ordinal);
        elsewhere.and_then(|context| self.contexts.get(context)).unwrap_or(current)
    }

    /// Takes out an instantiated graph; its host functions go with its last launch.
    pub(crate) fn forget_exec(&self, exec: GraphExec) -> Option<Removed<'_, GraphExecState>> {
        let state = self.graph_execs.remove(exec)?;
        for call in lock(&state.contents).calls.values() {
            state.session.host_functions.forget(*call);
        }
        Some(state)
    }

    /// Appends a graph's nodes; its roots wait for the node that `holds` it, if it is a child.
    /// Returns the positions of its ends.
    pub(crate) fn flatten(
        &self,
        graph: Graph,
        holds: Option<u32>,
        flat: &mut Flat,
    ) -> Result<Vec<u32>, Status> {
        let before: Vec<u32> = holds.into_iter().collect();
        let state = self.graph(graph)?;
        let nodes: BTreeMap<u32, Node> = lock(&state.nodes).clone();
        let held = lock(&state.held).again();
        if !held.is_empty() {
            flat.held.insert(holds, held);
        }
        // Where each node's work ends, in positions of the flat list.
        let mut ends: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for index in in_order(&nodes)? {
            let Some(node) = nodes.get(&index) else { continue };
            let mut after: Vec<u32> = if node.after.is_empty() {
                before.clone()
            } else {
                let from = node.after.iter().filter_map(|from| ends.get(from));
                from.flatten().copied().collect()
            };
            after.sort_unstable();
            after.dedup();
            let position = u32::try_from(flat.nodes.len()).map_err(|_| Status::INVALID_VALUE)?;
            let own_ends = if let Work::Child(child) = &node.work {
                flat.nodes.push((after, Work::Empty, true));
                let ends = self.flatten(*child, Some(position), flat)?;
                let end = u32::try_from(flat.nodes.len()).map_err(|_| Status::INVALID_VALUE)?;
                flat.children.insert(position, end);
                ends
            } else {
                flat.nodes.push((after, node.work.clone(), node.enabled));
                vec![position]
            };
            flat.positions.insert(node.handle, position);
            ends.insert(index, own_ends);
        }
        let inner = nodes.values().flat_map(|node| node.after.iter());
        let inner: BTreeSet<u32> = inner.copied().collect();
        let outer = ends.into_iter().filter(|(index, _)| !inner.contains(index));
        let outer: Vec<u32> = outer.flat_map(|(_, positions)| positions).collect();
        Ok(if outer.is_empty() { before } else { outer })
    }

    fn encode_list(&self, session: &Session, contents: &Contents) -> Result<Vec<u8>, Status> {
        let mut list = Vec::with_capacity(contents.nodes.len());
        let mut bytes = 64;
        for (position, (after, work, enabled)) in (0..).zip(&contents.nodes) {
            let call = contents.calls.get(&position).copied().unwrap_or(0);
            let work = match enabled {
                true => self.wire_work(session, work, call)?,
                false => GraphWork::Empty,
            };
            bytes += 256 + after.len() * 4 + param_bytes(&work);
            list.push(command::GraphNode { after: after.clone(), work });
        }
        encode(&list, bytes)
    }

    /// The wire's form of a node's work on a session's device.
    pub(crate) fn wire_work<'a>(
        &self,
        session: &Session,
        work: &'a Work,
        call: u64,
    ) -> Result<GraphWork<'a>, Status> {
        Ok(match work {
            Work::Empty | Work::Child(_) => GraphWork::Empty,
            Work::Kernel(_) if has_no_blocks(work) => GraphWork::Empty,
            Work::Kernel(kernel) => GraphWork::Kernel(kernel_spec(session, kernel)?),
            Work::Copy(CopyWork { dst, src, shape }) => {
                let layout = Layout {
                    shape: shape.clone(),
                    dst_pitch: dst.pitch,
                    dst_slice: dst.slice,
                    src_pitch: src.pitch,
                    src_slice: src.slice,
                };
                GraphWork::Copy {
                    dst: self.graph_side(session, dst, layout.dst_span()?)?,
                    src: self.graph_side(session, src, layout.src_span()?)?,
                    shape: shape.clone(),
                }
            }
            Work::Fill(fill) => {
                self.check_device_span(session, fill.address, fill_span(fill)?)?;
                GraphWork::Fill(fill.clone())
            }
            Work::Host(_) => GraphWork::HostFunction(call),
            Work::EventRecord(event) => GraphWork::EventRecord(self.event_id(session, *event)?),
            Work::EventWait(event) => GraphWork::EventWait(self.event_id(session, *event)?),
        })
    }

    fn event_id(&self, session: &Session, event: Event) -> Result<EventId, Status> {
        let event = self.events.get(event).ok_or(Status::INVALID_HANDLE)?;
        if event.shared.is_some() || event.session.ordinal != session.ordinal {
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(event.id)
    }

    /// Replaces what a node of an instantiated graph does by something of the same kind.
    ///
    /// # Errors
    /// `INVALID_VALUE` for stale handles or another kind of work.
    pub fn graph_exec_set(
        &self,
        exec: GraphExec,
        node: GraphNode,
        work: Work,
    ) -> Result<(), Status> {
        self.change_node(exec, node, |held, enabled| {
            if std::mem::discriminant(held) != std::mem::discriminant(&work) {
                return Err(Status::INVALID_VALUE);
            }
            Ok((work, *enabled))
        })
    }

    /// Switches a kernel, copy or fill of an instantiated graph on or off.
    ///
    /// # Errors
    /// `INVALID_VALUE` for stale handles or nodes of other kinds.
    pub fn graph_exec_enable(
        &self,
        exec: GraphExec,
        node: GraphNode,
        enable: bool,
    ) -> Result<(), Status> {
        self.change_node(exec, node, |held, _| match held {
            Work::Kernel(_) | Work::Copy(_) | Work::Fill(_) => Ok((held.clone(), enable)),
            Work::Empty
            | Work::Host(_)
            | Work::EventRecord(_)
            | Work::EventWait(_)
            | Work::Child(_) => Err(Status::INVALID_VALUE),
        })
    }

    /// Whether a node of an instantiated graph is switched on.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_exec_enabled(&self, exec: GraphExec, node: GraphNode) -> Result<bool, Status> {
        let state = self.graph_execs.get(exec).ok_or(Status::INVALID_VALUE)?;
        let position = state.positions.get(&node).ok_or(Status::INVALID_VALUE)?;
        let at = usize::try_from(*position).map_err(|_| Status::INVALID_VALUE)?;
        lock(&state.contents).nodes.get(at).map(|node| node.2).ok_or(Status::INVALID_VALUE)
    }

    /// An instantiated graph of a session without faults.
    pub(crate) fn healthy_exec(&self, exec: GraphExec) -> Result<Arc<GraphExecState>, Status> {
        let state = self.graph_execs.get(exec).ok_or(Status::INVALID_VALUE)?;
        state.session.healthy()?;
        Ok(state)
    }

    fn change_node(
        &self,
        exec: GraphExec,
        node: GraphNode,
        change: impl FnOnce(&Work, &bool) -> Result<(Work, bool), Status>,
    ) -> Result<(), Status> {
        let state = self.healthy_exec(exec)?;
        let position = state.position(node)?;
        let at = usize::try_from(position).map_err(|_| Status::INVALID_VALUE)?;
        let mut contents = state.contents();
        let (_, held, enabled) = contents.nodes.get(at).ok_or(Status::INVALID_VALUE)?;
        let (work, enabled) = change(held, enabled)?;
        self.put_node(&state, &mut contents, position, work, enabled)
    }

    /// Makes a node do something else, switched on or off.
    pub(crate) fn put_node(
        &self,
        state: &GraphExecState,
        contents: &mut Contents,
        position: u32,
        work: Work,
        enabled: bool,
    ) -> Result<(), Status> {
        let at = usize::try_from(position).map_err(|_| Status::INVALID_VALUE)?;
        let (after, _, was_enabled) = contents.nodes.get(at).ok_or(Status::INVALID_VALUE)?;
        let call = contents.calls.get(&position).copied().unwrap_or(0);
        self.send_node(state, position, after, &work, (*was_enabled, enabled), call)?;
        if let Work::Host(host) = &work {
            state.session.host_functions.keep(call, host.clone())?;
        }
        if let Work::EventRecord(event) = &work {
            contents.events.insert(position, *event);
        }
        if enabled && has_no_blocks(&work) {
            contents.without_blocks.insert(position);
        } else {
            contents.without_blocks.remove(&position);
        }
        if let Some(entry) = contents.nodes.get_mut(at) {
            (entry.1, entry.2) = (work, enabled);
        }
        Ok(())
    }

    fn send_node(
        &self,
        exec: &GraphExecState,
        node: u32,
        after: &[u32],
        work: &Work,
        (was_enabled, enabled): (bool, bool),
        call: u64,
    ) -> Result<(), Status> {
        // The common case, and the only one that needs no answer.
        if let Work::Kernel(kernel) = work
            && was_enabled
            && enabled
            && !has_no_blocks(work)
            && kernel.params.len() <= INLINE_PARAMS_MAX
        {
            let launch = kernel_spec(&exec.session, kernel)?;
            return exec.session.submit(&Command::GraphSetKernel { graph: exec.id, node, launch });
        }
        if enabled && matches!(work, Work::Host(_)) {
            return Ok(());
        }
        let session = &exec.session;
        let work = if enabled { self.wire_work(session, work, call)? } else { GraphWork::Empty };
        let bytes = 512 + after.len() * 4 + param_bytes(&work);
        let bytes = encode(&command::GraphNode { after: after.to_vec(), work }, bytes)?;
        let node_bytes = staging::named(&session.block_with(&bytes)?.hand_over());
        session.call(&Command::GraphSetNode { graph: exec.id, node, node_bytes })
    }

    /// Launches an instantiated graph in stream order.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a stale graph or one with an empty grid, `INVALID_HANDLE` for a stale
    /// stream, or a fault.
    pub fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        let state = self.graph_execs.get(exec).ok_or(Status::INVALID_VALUE)?;
        stream.refuse_capture()?;
        if state.context != stream.context {
            return Err(Status::INVALID_VALUE);
        }
        let mut contents = lock(&state.contents);
        if !contents.without_blocks.is_empty() {
            return Err(Status::INVALID_VALUE);
        }
        for event in contents.events.values() {
            if let Some(event) = self.events.get(*event) {
                event.set_record(stream.session.counters.event_record(event.id));
            }
        }
        contents.calls.values().for_each(|call| state.session.host_functions.expect(*call));
        contents.launched = true;
        drop(contents);
        stream.send(&Command::GraphLaunch { graph: state.id, stream: stream.id })
    }

    /// Destroys an instantiated graph after its launches.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_exec_destroy(&self, exec: GraphExec) -> Result<(), Status> {
        let state = self.forget_exec(exec).ok_or(Status::INVALID_VALUE)?;
        let destroyed = state.session.submit(&Command::GraphDestroy { graph: state.id });
        let (held, launched) = {
            let mut contents = state.contents();
            (std::mem::take(&mut contents.held), contents.launched)
        };
        self.let_go(state.context, launched, held.into_values());
        destroyed
    }

    /// The flags that a graph was instantiated with.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_exec_flags(&self, exec: GraphExec) -> Result<u64, Status> {
        self.graph_execs.with(exec, |state| state.flags).ok_or(Status::INVALID_VALUE)
    }

    /// A number that no other object of the session has.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn graph_exec_id(&self, exec: GraphExec) -> Result<u64, Status> {
        self.graph_execs.with(exec, |state| state.number).ok_or(Status::INVALID_VALUE)
    }
}

fn kernel_spec<'a>(session: &Session, kernel: &'a KernelWork) -> Result<LaunchSpec<'a>, Status> {
    if kernel.target.context.ordinal() != session.ordinal {
        return Err(Status::INVALID_VALUE);
    }
    session.check_launch(&kernel.target, &kernel.launch, &kernel.params)?;
    Ok(launch_spec(&kernel.target, &kernel.launch, Payload::Inline(&kernel.params)))
}

fn param_bytes(work: &GraphWork<'_>) -> usize {
    if let GraphWork::Kernel(LaunchSpec { params: Payload::Inline(params), .. }) = work {
        return params.len();
    }
    0
}

fn encode<'a>(value: &impl Field<'a>, bytes: usize) -> Result<Vec<u8>, Status> {
    // The estimate is generous; what counts is what is sent.
    let is_large = bytes > LIST_BYTES_MAX;
    let encoded = encode_to_vec(value, bytes.min(LIST_BYTES_MAX));
    encoded.map_err(|_| if is_large { Status::OUT_OF_MEMORY } else { Status::UNKNOWN })
}
