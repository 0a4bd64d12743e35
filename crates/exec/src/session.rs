//! The session: takes commands, checks them, and hands each to whoever carries it out.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;

use weft_device::Device;
use weft_wire::codec::{Field, encode_to_vec};
use weft_wire::id::{ContextId, GRAPHS_MAX, MODULES_MAX, StreamId};
use weft_wire::{Command, Status, progress};

use crate::border::{Shared, payload_bytes};
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
use crate::printed::Printed;
use crate::release::Releases;
use crate::room::Room;
use crate::stream::{Kind, LEGACY, Point, StreamKey, Streams, Task};
use crate::table::Table;
use crate::virtual_memory::Apart;
use crate::wait::{Action, Wait, Waits};

/// Most bytes of an answer's body.
pub(crate) const REPLY_BYTES_MAX: usize = 4096;

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Accepted {
    /// It is queued, done or refused; its caller is or will be answered.
    Taken,
    /// A queue is full and nothing happened: offer the command again after [`Session::drive`] made
    /// room. Meanwhile offer only commands that [`Session::is_urgent`] names, or a full stream that
    /// waits for its host function would never drain.
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
    /// Whether the host has room for what another module's code takes.
    pub(crate) has_module_room: bool,
    pub(crate) graphs: Table<Graph>,
    pub(crate) graph_bytes: u64,
    pub(crate) room: Room,
    pub(crate) allocations: Allocations,
    pub(crate) apart: Apart,
    pub(crate) host: HostCalls,
    pub(crate) waits: Waits,
    pub(crate) releases: Releases,
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
    pub(crate) printed: Printed,
}

impl<D: Device> Session<D> {
    /// Says whether the host has room for another module; without, loading one is out of memory.
    pub fn set_module_room(&mut self, has_room: bool) {
        self.has_module_room = has_room;
    }

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
            has_module_room: true,
            graphs: Table::new(GRAPHS_MAX),
            graph_bytes: 0,
            room: Room::default(),
            allocations: Allocations::default(),
            apart: Apart::default(),
            host: HostCalls::default(),
            waits: Waits::default(),
            releases: Releases::default(),
            flights: VecDeque::new(),
            started: 0,
            polling: Polling::default(),
            last_end_ns: 0,
            running_ns: 0,
            aborted: false,
            printed: Printed::default(),
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

    /// Whether no command is queued, in flight or waiting for its answer. (A callback thread that
    /// asks for host functions does not count.)
    pub fn is_idle(&self) -> bool {
        self.streams.busy().is_empty() && self.unanswered() == 0
    }

    /// Synchronous commands that were accepted and not answered.
    fn unanswered(&self) -> usize {
        self.waits.len() + self.releases.len()
    }

    /// Commands that have not ended, on all streams.
    pub fn pending(&self) -> usize {
        self.streams.depth
    }

    /// Device operations that were started and have not ended.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether a command may be offered while another one found the queues full: it frees, and
    /// never fills, them, and its order with other commands does not matter.
    pub fn is_urgent(command: &Command<'_>) -> bool {
        matches!(command, Command::HostFunctionNext {} | Command::HostFunctionDone { .. })
    }

    /// Takes one command. Call it in ticket order; `caller` is set for synchronous commands and
    /// only for them.
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
        command.try_for_each_block(&mut |block| self.shared.block(block).map(drop))?;
        let stream = command.stream();
        if let Some(stream) = stream
            && self.is_full(stream, kept_bytes(command))
        {
            return Ok(Accepted::Full);
        }
        if self.unanswered() + self.host.askers() >= self.limits.waits && caller.is_some() {
            return Err(Violation::Waits(self.limits.waits));
        }
        let outcome = match self.sticky.filter(|_| !command.survives_fault()) {
            Some(status) => Err(Reject::Refused(status)),
            None => match (self.make_room_for(command, out), caller) {
                // What is queued ends, and makes room.
                (Err(_), _) if stream.is_some() && self.streams.depth > 0 => {
                    return Ok(Accepted::Full);
                }
                (Err(status), _) => Err(Reject::Refused(status)),
                (Ok(()), Some(caller)) => self.sync(command, caller, out),
                (Ok(()), None) => self.queue(command, out),
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

    /// Drops a command that had no effect: gives its blocks back, counts it, and tells its caller
    /// or the next one.
    fn refuse(
        &mut self,
        command: &Command<'_>,
        stream: Option<StreamId>,
        caller: Option<Caller>,
        status: Status,
        out: &mut dyn Output,
    ) {
        tracing::debug!(command = command.name(), ?status, "refused");
        let Ok(()) = command.try_for_each_block(&mut |block| -> Result<(), Infallible> {
            out.release(block.release);
            Ok(())
        });
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

    // Look-ups.

    pub(crate) fn context(&self, id: ContextId) -> Result<(), Status> {
        if self.contexts.contains(&id) { Ok(()) } else { Err(Status::INVALID_CONTEXT) }
    }

    pub(crate) fn stream(&self, id: StreamId) -> Result<StreamKey, Status> {
        self.streams.find(id).ok_or(Status::INVALID_HANDLE)
    }

    // Waits and answers.

    /// The ends of what a synchronisation with the stream waits for.
    pub(crate) fn ends_before(&self, key: StreamKey) -> Vec<Point> {
        if key != LEGACY {
            return self.streams.end_of(key).into_iter().collect();
        }
        self.ends_where(|kind, _| kind != Kind::NonBlocking)
    }

    pub(crate) fn ends_of(&self, context: ContextId) -> Vec<Point> {
        self.ends_where(|kind, owner| kind == Kind::Legacy || owner == Some(context))
    }

    pub(crate) fn ends_where(
        &self,
        wanted: impl Fn(Kind, Option<ContextId>) -> bool,
    ) -> Vec<Point> {
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

    pub(crate) fn wait_for(
        &mut self,
        ends: &[Point],
        caller: Caller,
        action: Action,
        out: &mut dyn Output,
    ) {
        let number = self.waits.number();
        let left = ends.iter().filter(|end| self.streams.await_point(end, number)).count();
        let wait = Wait { caller, action, left };
        if left == 0 {
            self.finish_wait(wait, out);
        } else {
            self.waits.insert(number, wait);
        }
    }

    pub(crate) fn act_and_answer(&mut self, wait: Wait, out: &mut dyn Output) {
        match wait.action {
            Action::Answer => self.answer(wait.caller, out),
            Action::Free { address, .. } => {
                self.free_now(address);
                self.answer_done(wait.caller, out);
            }
            Action::Alloc { context, bytes } => {
                self.alloc_at_last(context, bytes, wait.caller, out);
            }
            Action::Discard => {
                self.shared.discard_leaving();
                self.answer_done(wait.caller, out);
            }
            Action::Unmap(address) => {
                self.unmap_now(address);
                self.answer_done(wait.caller, out);
            }
            Action::Release(memory) => match self.release_now(memory) {
                Ok(()) => self.answer_done(wait.caller, out),
                Err(status) => out.reply(wait.caller, status, &[]),
            },
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

    /// Answers success, unless there was a fault: for calls that must not be blamed for others'
    /// refusals.
    pub(crate) fn answer_done(&self, caller: Caller, out: &mut dyn Output) {
        out.reply(caller, self.sticky.unwrap_or(Status::SUCCESS), &[]);
    }

    pub(crate) fn answer_query(&mut self, done: bool, caller: Caller, out: &mut dyn Output) {
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

/// Bytes that a queued command keeps.
pub(crate) fn kept_bytes(command: &Command<'_>) -> u64 {
    if let Command::Launch { launch, .. } = command { payload_bytes(&launch.params) } else { 0 }
}
