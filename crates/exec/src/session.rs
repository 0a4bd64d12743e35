//! The session: takes commands, checks them, and hands each to whoever carries it out.

use std::collections::{BTreeSet, VecDeque};

use weft_device::Device;
use weft_wire::codec::{Field, encode_to_vec};
use weft_wire::command::{Block, Endpoint, Payload, Place, Shape};
use weft_wire::id::{
    CONTEXTS_MAX, ContextId, EventId, GRAPHS_MAX, GraphExecId, MODULES_MAX, StreamId,
};
use weft_wire::{Command, Status, progress, reply};

use crate::border::Shared;
use crate::error::{Reject, Violation};
use crate::event::Events;
use crate::graph::Graph;
use crate::host::HostCalls;
use crate::launch::LaunchLimits;
use crate::limits::Limits;
use crate::memory::Allocations;
use crate::module::Module;
use crate::order::{Flight, Polling};
use crate::output::{Caller, Output};
use crate::shape;
use crate::stream::{Kind, LEGACY, Point, StreamKey, Streams, Task};
use crate::table::Table;
use crate::wait::{Action, Remains, Wait, Waits};
use crate::words::WordPlace;

/// Most bytes of an answer's body.
pub(crate) const REPLY_BYTES_MAX: usize = 4096;

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Accepted {
    /// It is queued, done or refused; its caller is or will be answered.
    Taken,
    /// A queue is full and nothing happened: offer the command again after [`Session::drive`] made room.
    /// Meanwhile offer only commands that [`Session::is_urgent`] names, or a full stream that waits for
    /// its host function would never drain.
    Full,
}

/// One session on a device. See the crate's documentation.
#[derive(Debug)]
pub struct Session<D> {
    pub(crate) device: D,
    pub(crate) shared: Shared,
    pub(crate) limits: Limits,
    pub(crate) launch_limits: LaunchLimits,
    pub(crate) contexts: BTreeSet<ContextId>,
    /// Contexts whose destruction waits for their work.
    pub(crate) leaving: BTreeSet<ContextId>,
    /// Contexts that lived at the fault; the fault is over when none is left.
    pub(crate) poisoned: BTreeSet<ContextId>,
    pub(crate) sticky: Option<Status>,
    /// First refusal of an asynchronous command that nobody was told yet, and how many there were.
    refused: Option<Status>,
    refusals: u64,
    pub(crate) streams: Streams,
    pub(crate) events: Events,
    pub(crate) modules: Table<Module>,
    pub(crate) module_bytes: u64,
    pub(crate) graphs: Table<Graph>,
    pub(crate) graph_bytes: u64,
    pub(crate) allocations: Allocations,
    pub(crate) host: HostCalls,
    pub(crate) waits: Waits,
    /// Device operations in flight, in the order in which they were started.
    pub(crate) flights: VecDeque<Flight>,
    /// How many operations were started ever.
    pub(crate) started: u64,
    pub(crate) polling: Polling,
    /// Device clock when the last operation ended, in ns.
    pub(crate) last_end_ns: u64,
    /// Execution time of the oldest flight so far, in ns.
    pub(crate) running_ns: u64,
    pub(crate) aborted: bool,
}

impl<D: Device> Session<D> {
    /// A session without contexts.
    pub fn new(device: D, shared: Shared, limits: Limits) -> Self {
        let launch_limits = LaunchLimits::of(device.info());
        Self {
            device,
            shared,
            limits,
            launch_limits,
            contexts: BTreeSet::new(),
            leaving: BTreeSet::new(),
            poisoned: BTreeSet::new(),
            sticky: None,
            refused: None,
            refusals: 0,
            streams: Streams::new(),
            events: Events::default(),
            modules: Table::new(MODULES_MAX),
            module_bytes: 0,
            graphs: Table::new(GRAPHS_MAX),
            graph_bytes: 0,
            allocations: Allocations::default(),
            host: HostCalls::default(),
            waits: Waits::default(),
            flights: VecDeque::new(),
            started: 0,
            polling: Polling::default(),
            last_end_ns: 0,
            running_ns: 0,
            aborted: false,
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for calls beside the session's own.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The sticky status after a fault.
    pub fn fault(&self) -> Option<Status> {
        self.sticky
    }

    /// Whether no command is queued, in flight or waiting for its answer. (A callback thread that asks for host
    /// functions does not count.)
    pub fn is_idle(&self) -> bool {
        self.streams.busy().is_empty() && self.waits.len() == 0
    }

    /// Commands that have not ended, on all streams.
    pub fn pending(&self) -> usize {
        self.streams.depth
    }

    /// Device operations that were started and have not ended.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether a command may be offered while another one found the queues full: it frees, and never fills,
    /// them, and its order with other commands does not matter.
    pub fn is_urgent(command: &Command<'_>) -> bool {
        matches!(command, Command::HostFunctionNext {} | Command::HostFunctionDone { .. })
    }

    /// Takes one command. Call it in ticket order; `caller` is set for synchronous commands and only for them.
    ///
    /// # Errors
    /// A [`Violation`] ends the session: nothing more may be offered.
    pub fn accept(
        &mut self,
        command: &Command<'_>,
        caller: Option<Caller>,
        out: &mut dyn Output,
    ) -> Result<Accepted, Violation> {
        if command.is_sync() != caller.is_some() {
            return Err(Violation::Caller { command: command.name() });
        }
        check_blocks(&self.shared, command)?;
        let stream = stream_of(command);
        if let Some(stream) = stream
            && self.is_full(stream, payload_of(command))
        {
            return Ok(Accepted::Full);
        }
        if self.waits.len() + self.host.askers() >= self.limits.waits && caller.is_some() {
            return Err(Violation::Waits(self.limits.waits));
        }
        let outcome = match self.sticky.filter(|_| !works_after_fault(command)) {
            Some(status) => Err(Reject::Refused(status)),
            None => match caller {
                Some(caller) => self.sync(command, caller, out),
                None => self.queue(command, out),
            },
        };
        match outcome {
            Ok(()) => Ok(Accepted::Taken),
            Err(Reject::Violation(violation)) => Err(violation),
            Err(Reject::Refused(status)) => {
                self.refuse(command, stream, caller, status, out);
                Ok(Accepted::Taken)
            }
        }
    }

    fn is_full(&self, stream: StreamId, bytes: u64) -> bool {
        let of_stream = self.streams.counting(stream).and_then(|key| self.streams.get(key));
        let depth = of_stream.map_or(0, |stream| stream.queued.len() + stream.begun.len());
        let over = self.streams.bytes.saturating_add(bytes) > self.limits.queued_bytes;
        depth >= self.limits.stream_depth
            || self.streams.depth >= self.limits.depth
            || (over && self.streams.bytes > 0)
    }

    /// Drops a command that had no effect: gives its blocks back, counts it, and tells its caller or the next one.
    fn refuse(
        &mut self,
        command: &Command<'_>,
        stream: Option<StreamId>,
        caller: Option<Caller>,
        status: Status,
        out: &mut dyn Output,
    ) {
        tracing::debug!(command = command.name(), ?status, "refused");
        for_each_block(command, &mut |block| {
            out.release(block.release);
            Ok(())
        })
        .unwrap_or_default();
        if let Some(id) = stream {
            match self.streams.counting(id) {
                Some(key) => self.push(key, Task::Nothing, out),
                None => self.streams.count_stray(id),
            }
        }
        match caller {
            Some(caller) => out.reply(caller, status, &[]),
            None => self.note_refusal(status, out),
        }
    }

    /// Keeps the status of an asynchronous command that was dropped for the next caller.
    pub(crate) fn note_refusal(&mut self, status: Status, out: &mut dyn Output) {
        if self.sticky.is_some() {
            return;
        }
        self.refused.get_or_insert(status);
        self.refusals += 1;
        out.notice(progress::NOTICE_REFUSED, self.refusals);
    }

    fn queue(&mut self, command: &Command<'_>, out: &mut dyn Output) -> Result<(), Reject> {
        match *command {
            Command::Launch { stream, ref launch } => self.launch(stream, launch, out),
            Command::Copy { stream, ref dst, ref src, ref shape } => {
                self.copy(stream, (dst, src, shape), None, out)
            }
            Command::Fill { stream, ref fill } => self.fill(stream, fill, out),
            Command::EventRecord { event, stream, record } => {
                self.event_record(event, stream, record, out)
            }
            Command::StreamWaitEvent { stream, event } => {
                self.stream_wait_event(stream, event, out)
            }
            Command::StreamWaitValue { stream, address, value, wide, comparison } => {
                let word = WordPlace::new(&self.shared, address, wide)?;
                self.stream_task(stream, Task::WaitValue { word, value, comparison }, out)
            }
            Command::StreamWriteValue { stream, address, value, wide } => {
                let word = WordPlace::new(&self.shared, address, wide)?;
                self.stream_task(stream, Task::WriteValue { word, value }, out)
            }
            Command::HostFunction { stream, call } => {
                self.stream_task(stream, Task::Host { call, due: false }, out)
            }
            Command::HostFunctionDone { call } => {
                self.host_function_done(call, out);
                Ok(())
            }
            Command::GraphLaunch { graph, stream } => self.graph_launch(graph, stream, out),
            Command::GraphSetKernel { graph, node, ref launch } => {
                self.graph_set_kernel(graph, node, launch, out)
            }
            Command::MemFreeAsync { stream, address } => self.mem_free_async(stream, address, out),
            _ => self.change_handles(command, out),
        }
    }

    fn change_handles(
        &mut self,
        command: &Command<'_>,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        match *command {
            Command::ContextCreate { context } => self.context_create(context),
            Command::StreamCreate { context, stream, blocking, priority } => {
                self.context(context)?;
                let kind = if blocking { Kind::Blocking } else { Kind::NonBlocking };
                let created = self.streams.create(stream, Some(context), kind, priority);
                let taken = Violation::Slot { what: "stream", index: stream.index };
                let (_, sent) = created.map_err(|_| taken)?;
                if let Some(word) = progress::stream_word(stream) {
                    out.progress(word, sent);
                }
                Ok(())
            }
            Command::StreamDestroy { stream } => {
                Ok(self.streams.destroy(stream).ok_or(Status::INVALID_HANDLE)?)
            }
            Command::EventCreate { context, event } => {
                self.context(context)?;
                let taken = Violation::Slot { what: "event", index: event.index };
                Ok(self.events.create(event, context).map_err(|_| taken)?)
            }
            Command::EventDestroy { event } => {
                Ok(self.events.destroy(event).ok_or(Status::INVALID_HANDLE)?)
            }
            Command::GraphDestroy { graph } => self.graph_destroy(graph),
            _ => Err(Status::NOT_SUPPORTED.into()),
        }
    }

    fn sync(
        &mut self,
        command: &Command<'_>,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        match *command {
            Command::Ping {} => self.answer(caller, out),
            Command::CopySync { stream, ref dst, ref src, ref shape } => {
                self.copy(stream, (dst, src, shape), Some(caller), out)?;
            }
            Command::ContextSynchronize { context } => {
                self.context(context)?;
                let ends = self.ends_of(context);
                self.wait_for(&ends, caller, Action::Answer, out);
            }
            Command::StreamSynchronize { stream } => {
                let ends = self.ends_before(self.stream(stream)?);
                self.wait_for(&ends, caller, Action::Answer, out);
            }
            Command::StreamQuery { stream } => {
                let ends = self.ends_before(self.stream(stream)?);
                let done = ends.iter().all(|end| self.streams.has_passed(end));
                self.answer_query(done, caller, out);
            }
            Command::EventSynchronize { event, record } => {
                self.event_synchronize(event, record, caller, out)?;
            }
            Command::EventQuery { event, record } => {
                let done = self.events.is_complete(event, record)?;
                self.answer_query(done, caller, out);
            }
            Command::EventElapsed { start, end } => {
                let ns = self.events.elapsed_ns(start, end)?;
                self.answer_with(caller, &reply::Elapsed { ns }, out);
            }
            Command::HostFunctionNext {} => {
                if let Some(call) = self.host.ask(caller) {
                    self.answer_with(caller, &reply::HostCall { call }, out);
                }
            }
            Command::ContextDestroy { context } => self.context_destroy(context, caller, out)?,
            _ => self.sync_objects(command, caller, out)?,
        }
        Ok(())
    }

    fn sync_objects(
        &mut self,
        command: &Command<'_>,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        match *command {
            Command::MemAlloc { context, bytes } => self.mem_alloc(context, bytes, caller, out),
            Command::MemAllocAsync { context, stream, bytes } => {
                self.stream(stream)?;
                self.mem_alloc(context, bytes, caller, out)
            }
            Command::MemFree { address } => self.mem_free(address, caller, out),
            Command::MemInfo {} => {
                self.mem_info(caller, out);
                Ok(())
            }
            Command::PinnedQuota { bytes } => {
                if bytes > self.shared.pinned.len() as u64 {
                    return Err(Status::OUT_OF_MEMORY.into());
                }
                self.answer_done(caller, out);
                Ok(())
            }
            Command::ModuleLoad { context, module, ref images, ref answer } => {
                self.module_load((context, module), images, answer, caller, out)
            }
            Command::ModuleUnload { module } => self.module_unload(module, caller, out),
            Command::GraphInstantiate { context, graph, ref nodes } => {
                self.graph_instantiate(context, graph, nodes, caller, out)
            }
            Command::GraphSetNode { graph, node, ref node_bytes } => {
                self.graph_set_node(graph, node, node_bytes, caller, out)
            }
            _ => Err(Status::NOT_SUPPORTED.into()),
        }
    }

    // Look-ups.

    pub(crate) fn context(&self, id: ContextId) -> Result<(), Status> {
        if self.contexts.contains(&id) { Ok(()) } else { Err(Status::INVALID_CONTEXT) }
    }

    pub(crate) fn stream(&self, id: StreamId) -> Result<StreamKey, Status> {
        self.streams.find(id).ok_or(Status::INVALID_HANDLE)
    }

    // Contexts.

    fn context_create(&mut self, id: ContextId) -> Result<(), Reject> {
        let taken = self.contexts.iter().any(|context| context.index == id.index);
        if id.index >= CONTEXTS_MAX || taken || self.leaving.contains(&id) {
            return Err(Violation::Slot { what: "context", index: id.index }.into());
        }
        self.contexts.insert(id);
        Ok(())
    }

    /// The handles die at once; what they name, when the work has ended.
    fn context_destroy(
        &mut self,
        id: ContextId,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.context(id)?;
        // Other contexts' work may name the memory too.
        let ends = self.ends_where(|_, _| true);
        self.contexts.remove(&id);
        self.leaving.insert(id);
        self.streams.destroy_of(id);
        self.events.destroy_of(id);
        for graph in self.graphs.remove_where(|graph| graph.context == id) {
            self.graph_bytes = self.graph_bytes.saturating_sub(graph.bytes);
        }
        let modules = self.modules.remove_where(|module| module.context == id);
        let bytes = modules.iter().map(|module| module.bytes).sum();
        self.module_bytes = self.module_bytes.saturating_sub(bytes);
        let modules = modules.into_iter().map(|module| module.device).collect();
        let addresses = self.allocations.take_of(id);
        let remains = Box::new(Remains { context: id, modules, addresses });
        self.wait_for(&ends, caller, Action::Destroy(remains), out);
        Ok(())
    }

    fn graph_destroy(&mut self, id: GraphExecId) -> Result<(), Reject> {
        let graph = self.graphs.remove(id.index, id.generation).ok_or(Status::INVALID_HANDLE)?;
        self.graph_bytes = self.graph_bytes.saturating_sub(graph.bytes);
        Ok(())
    }

    // Stream commands.

    /// Queues a task and lets the stream go as far as it can.
    pub(crate) fn push(&mut self, key: StreamKey, task: Task, out: &mut dyn Output) {
        self.streams.push(key, task, None, 0, None);
        self.settle_from(key, out);
    }

    fn stream_task(
        &mut self,
        stream: StreamId,
        task: Task,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        self.push(key, task, out);
        Ok(())
    }

    fn copy(
        &mut self,
        stream: StreamId,
        (dst, src, shape): (&Endpoint<'_>, &Endpoint<'_>, &Shape),
        caller: Option<Caller>,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        let releases = [block_of(&dst.place), block_of(&src.place)];
        let releases = releases.map(|block| block.map(|block| block.release));
        match shape::copy(&self.shared, dst, src, shape)? {
            Some(op) => self.push_operation(key, op, releases, caller),
            None => {
                releases.into_iter().flatten().for_each(|word| out.release(word));
                self.streams.push(key, Task::Nothing, None, 0, caller);
                self.settle_from(key, out);
            }
        }
        Ok(())
    }

    fn fill(
        &mut self,
        stream: StreamId,
        spec: &weft_wire::command::FillSpec,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        match shape::fill(spec)? {
            Some(op) => self.push_operation(key, op, [None, None], None),
            None => self.push(key, Task::Nothing, out),
        }
        Ok(())
    }

    fn event_record(
        &mut self,
        event: EventId,
        stream: StreamId,
        record: u64,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        let point = self.streams.next_point(key).ok_or(Status::INVALID_HANDLE)?;
        let (slot, record) = self.events.accept(event, Some(record), point)?;
        let accepted_ns = self.device.now_ns();
        self.push(key, Task::Record { slot, record, accepted_ns }, out);
        Ok(())
    }

    fn stream_wait_event(
        &mut self,
        stream: StreamId,
        event: EventId,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        let task = self.events.last(event)?.map_or(Task::Nothing, Task::Wait);
        self.push(key, task, out);
        Ok(())
    }

    // Waits and answers.

    fn event_synchronize(
        &mut self,
        event: EventId,
        record: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        if self.events.is_complete(event, record)? {
            self.answer(caller, out);
            return Ok(());
        }
        let number = self.waits.number();
        self.events.await_record(event, record, number);
        self.waits.insert(number, Wait { caller, action: Action::Answer, left: 1 });
        Ok(())
    }

    /// The ends of what a synchronisation with the stream waits for.
    fn ends_before(&self, key: StreamKey) -> Vec<Point> {
        if key != LEGACY {
            return self.streams.end_of(key).into_iter().collect();
        }
        self.ends_where(|kind, _| kind != Kind::NonBlocking)
    }

    fn ends_of(&self, context: ContextId) -> Vec<Point> {
        self.ends_where(|kind, owner| kind == Kind::Legacy || owner == Some(context))
    }

    fn ends_where(&self, wanted: impl Fn(Kind, Option<ContextId>) -> bool) -> Vec<Point> {
        let of = |key: &StreamKey| {
            let stream = self.streams.get(*key)?;
            wanted(stream.kind, stream.context).then(|| self.streams.end_of(*key))?
        };
        self.streams.busy().iter().filter_map(of).collect()
    }

    /// Acts and answers when everything accepted so far has ended.
    pub(crate) fn wait_for_all(&mut self, caller: Caller, action: Action, out: &mut dyn Output) {
        let ends = self.ends_where(|_, _| true);
        self.wait_for(&ends, caller, action, out);
    }

    fn wait_for(&mut self, ends: &[Point], caller: Caller, action: Action, out: &mut dyn Output) {
        let number = self.waits.number();
        let left = ends.iter().filter(|end| self.streams.await_point(end, number)).count();
        let wait = Wait { caller, action, left };
        if left == 0 {
            self.finish_wait(wait, out);
        } else {
            self.waits.insert(number, wait);
        }
    }

    pub(crate) fn finish_wait(&mut self, wait: Wait, out: &mut dyn Output) {
        match wait.action {
            Action::Answer => self.answer(wait.caller, out),
            Action::Free(address) => {
                self.free_now(address);
                self.answer_done(wait.caller, out);
            }
            Action::Unload(module) => {
                self.device.unload(module);
                self.answer_done(wait.caller, out);
            }
            Action::Destroy(remains) => {
                remains.addresses.iter().for_each(|address| self.free_now(*address));
                remains.modules.iter().for_each(|module| self.device.unload(*module));
                self.leaving.remove(&remains.context);
                self.recover(remains.context, out);
                out.reply(wait.caller, Status::SUCCESS, &[]);
            }
        }
    }

    /// Answers success, unless a fault or an earlier refusal is to be told.
    pub(crate) fn answer(&mut self, caller: Caller, out: &mut dyn Output) {
        let status = self.sticky.or_else(|| self.refused.take()).unwrap_or(Status::SUCCESS);
        out.reply(caller, status, &[]);
    }

    /// Answers success, unless there was a fault: for calls that must not be blamed for others' refusals.
    pub(crate) fn answer_done(&self, caller: Caller, out: &mut dyn Output) {
        out.reply(caller, self.sticky.unwrap_or(Status::SUCCESS), &[]);
    }

    fn answer_query(&mut self, done: bool, caller: Caller, out: &mut dyn Output) {
        if done {
            self.answer(caller, out);
        } else {
            out.reply(caller, Status::NOT_READY, &[]);
        }
    }

    /// Answers with a value that the caller needs whatever happened before.
    pub(crate) fn answer_with<'a>(
        &self,
        caller: Caller,
        body: &impl Field<'a>,
        out: &mut dyn Output,
    ) {
        match encode_to_vec(body, REPLY_BYTES_MAX) {
            Ok(bytes) => out.reply(caller, Status::SUCCESS, &bytes),
            Err(_) => out.reply(caller, Status::UNKNOWN, &[]),
        }
    }
}

/// Commands that keep both sides' tables alike, and those that end a fault.
fn works_after_fault(command: &Command<'_>) -> bool {
    matches!(
        command,
        Command::ContextCreate { .. }
            | Command::ContextDestroy { .. }
            | Command::StreamCreate { .. }
            | Command::StreamDestroy { .. }
            | Command::EventCreate { .. }
            | Command::EventDestroy { .. }
            | Command::GraphDestroy { .. }
            | Command::ModuleUnload { .. }
            | Command::MemInfo {}
            | Command::HostFunctionDone { .. }
    )
}

/// The stream whose progress word counts the command.
fn stream_of(command: &Command<'_>) -> Option<StreamId> {
    match *command {
        Command::Copy { stream, .. }
        | Command::CopySync { stream, .. }
        | Command::Fill { stream, .. }
        | Command::Launch { stream, .. }
        | Command::StreamWaitEvent { stream, .. }
        | Command::StreamWaitValue { stream, .. }
        | Command::StreamWriteValue { stream, .. }
        | Command::EventRecord { stream, .. }
        | Command::HostFunction { stream, .. }
        | Command::GraphLaunch { stream, .. }
        | Command::MemFreeAsync { stream, .. } => Some(stream),
        _ => None,
    }
}

/// Bytes that a queued command keeps.
fn payload_of(command: &Command<'_>) -> u64 {
    match command {
        Command::Launch { launch, .. } => crate::border::payload_bytes(&launch.params),
        _ => 0,
    }
}

pub(crate) fn block_of<'a>(place: &'a Place<'_>) -> Option<&'a Block> {
    match place {
        Place::Host(Payload::Arena(block)) => Some(block),
        Place::Host(Payload::Inline(_) | Payload::Pinned { .. }) | Place::Device(_) => None,
    }
}

fn check_blocks(shared: &Shared, command: &Command<'_>) -> Result<(), Violation> {
    for_each_block(command, &mut |block| shared.block(block).map(drop))
}

fn for_each_block(
    command: &Command<'_>,
    visit: &mut dyn FnMut(&Block) -> Result<(), Violation>,
) -> Result<(), Violation> {
    match command {
        Command::Copy { dst, src, .. } | Command::CopySync { dst, src, .. } => {
            let sides = [block_of(&dst.place), block_of(&src.place)];
            sides.into_iter().flatten().try_for_each(visit)
        }
        Command::Launch { launch, .. } | Command::GraphSetKernel { launch, .. } => {
            match &launch.params {
                Payload::Arena(block) => visit(block),
                Payload::Inline(_) | Payload::Pinned { .. } => Ok(()),
            }
        }
        Command::ModuleLoad { images, answer, .. } => {
            images.iter().try_for_each(&mut *visit)?;
            visit(answer)
        }
        Command::GraphInstantiate { nodes, .. } => visit(nodes),
        Command::GraphSetNode { node_bytes, .. } => visit(node_bytes),
        _ => Ok(()),
    }
}
