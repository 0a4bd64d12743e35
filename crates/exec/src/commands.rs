//! Who carries out which command.
//!
//! Each command stands in one of four lists, and each match takes those of its own list one by one
//! and hands on, or refuses, the others by the names of their lists. A command that is new is in no
//! list, and one that is listed and not taken is missing: neither compiles.

use weft_device::Device;
use weft_wire::command::{Endpoint, FillSpec, Shape};
use weft_wire::id::{CONTEXTS_MAX, ContextId, EventId, GraphExecId, StreamId};
use weft_wire::{Command, Status, progress, reply};

use crate::error::{Reject, Violation};
use crate::output::{Caller, Output};
use crate::session::Session;
use crate::shape;
use crate::stream::{Kind, StreamKey, Task};
use crate::wait::{Action, Remains, Wait};
use crate::words::WordPlace;

/// Commands without an answer that are queued, or belong to what is.
macro_rules! operations {
    () => {
        Command::Launch { .. }
            | Command::Copy { .. }
            | Command::Fill { .. }
            | Command::EventRecord { .. }
            | Command::StreamWaitEvent { .. }
            | Command::StreamWaitValue { .. }
            | Command::StreamWriteValue { .. }
            | Command::HostFunction { .. }
            | Command::HostFunctionDone { .. }
            | Command::GraphLaunch { .. }
            | Command::GraphSetKernel { .. }
            | Command::MemFreeAsync { .. }
            | Command::PinnedRange { .. }
            | Command::ManagedPrefetch { .. }
    };
}

/// Commands without an answer that make and end handles.
macro_rules! handles {
    () => {
        Command::ContextCreate { .. }
            | Command::StreamCreate { .. }
            | Command::StreamDestroy { .. }
            | Command::EventCreate { .. }
            | Command::EventDestroy { .. }
            | Command::GraphDestroy { .. }
    };
}

/// Commands with an answer about the work of streams and events.
macro_rules! waits {
    () => {
        Command::Ping { .. }
            | Command::CopySync { .. }
            | Command::ContextSynchronize { .. }
            | Command::StreamSynchronize { .. }
            | Command::StreamQuery { .. }
            | Command::EventSynchronize { .. }
            | Command::EventQuery { .. }
            | Command::EventElapsed { .. }
            | Command::SharedEventCreate { .. }
            | Command::SharedEventRecord { .. }
            | Command::SharedEventWait { .. }
            | Command::SharedEventQuery { .. }
            | Command::HostFunctionNext { .. }
            | Command::ContextDestroy { .. }
    };
}

/// Commands with an answer about memory, modules and graphs.
macro_rules! objects {
    () => {
        Command::MemAlloc { .. }
            | Command::MemAllocAsync { .. }
            | Command::MemFree { .. }
            | Command::TakeOutput { .. }
            | Command::MemInfo { .. }
            | Command::PinnedQuota { .. }
            | Command::HostMap { .. }
            | Command::HostUnmap { .. }
            | Command::ManagedAlloc { .. }
            | Command::ManagedFree { .. }
            | Command::MemExport { .. }
            | Command::MemImport { .. }
            | Command::MemReserve { .. }
            | Command::MemUnreserve { .. }
            | Command::MemCreate { .. }
            | Command::MemRelease { .. }
            | Command::MemMap { .. }
            | Command::MemUnmap { .. }
            | Command::ModuleLoad { .. }
            | Command::ModuleUnload { .. }
            | Command::GraphInstantiate { .. }
            | Command::GraphSetNode { .. }
    };
}

impl<D: Device> Session<D> {
    pub(crate) fn queue(
        &mut self,
        command: &Command<'_>,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
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
            Command::PinnedRange { address, bytes, used } => {
                self.pinned_range((address, bytes), used != 0)
            }
            Command::ManagedPrefetch { address, bytes } => {
                self.shared.window(address, bytes)?;
                self.device.expect(address, bytes);
                Ok(())
            }
            handles!() => self.change_handles(command, out),
            waits!() | objects!() => Err(Status::NOT_SUPPORTED.into()),
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
            operations!() | waits!() | objects!() => Err(Status::NOT_SUPPORTED.into()),
        }
    }

    pub(crate) fn sync(
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
            Command::SharedEventCreate { cell } => {
                self.shared_event_create(cell)?;
                self.answer_done(caller, out);
            }
            Command::SharedEventRecord { cell, stream } => {
                self.shared_event_record(cell, stream, out)?;
                self.answer_done(caller, out);
            }
            Command::SharedEventWait { cell, stream } => {
                self.shared_event_wait(cell, stream, out)?;
                self.answer_done(caller, out);
            }
            Command::SharedEventQuery { cell } => {
                let done = self.shared_event_done(cell)?;
                self.answer_query(done, caller, out);
            }
            Command::HostFunctionNext {} => {
                if let Some(call) = self.host.ask(caller) {
                    self.answer_with(caller, &reply::HostCall { call }, out);
                }
            }
            Command::ContextDestroy { context } => self.context_destroy(context, caller, out)?,
            objects!() => self.sync_objects(command, caller, out)?,
            operations!() | handles!() => return Err(Status::NOT_SUPPORTED.into()),
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
                self.mem_alloc_async(context, stream, bytes, caller, out)
            }
            Command::MemFree { address } => self.mem_free(address, caller, out),
            Command::TakeOutput {} => {
                self.take_output(caller, out);
                Ok(())
            }
            Command::MemInfo {} => {
                self.mem_info(caller, out);
                Ok(())
            }
            Command::PinnedQuota { bytes } => self.pinned_quota(bytes, caller, out),
            Command::HostMap { host, address, bytes } => {
                self.host_map(host, address, bytes, caller, out)
            }
            Command::HostUnmap { host } => self.host_unmap(host, caller, out),
            Command::ManagedAlloc { address, bytes } => {
                self.managed_alloc(address, bytes, caller, out)
            }
            Command::ManagedFree { address } => self.managed_free(address, caller, out),
            Command::MemExport { address } => self.mem_export(address, caller, out),
            Command::MemImport { context, key } => self.mem_import(context, key, caller, out),
            Command::MemReserve { bytes, alignment } => {
                self.mem_reserve(bytes, alignment, caller, out)
            }
            Command::MemUnreserve { address } => self.mem_unreserve(address, caller, out),
            Command::MemCreate { bytes } => self.mem_create(bytes, caller, out),
            Command::MemRelease { memory } => self.mem_release(memory, caller, out),
            Command::MemMap { address, memory } => self.mem_map(address, memory, caller, out),
            Command::MemUnmap { address } => self.mem_unmap(address, caller, out),
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
            operations!() | handles!() | waits!() => Err(Status::NOT_SUPPORTED.into()),
        }
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
        let releases = [dst.place.block(), src.place.block()];
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
        spec: &FillSpec,
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

    // Events.

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
}
