//! Streams: first-in first-out queues of tasks, and who waits for what in them.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_device::{Op, OpId, PAGE, QueueId};
use weft_wire::command::Comparison;
use weft_wire::id::{ContextId, STREAMS_MAX, StreamId};
use weft_wire::progress;

use crate::graph::{GraphRun, Node};
use crate::output::Caller;
use crate::shared_event::EventCell;
use crate::words::WordPlace;

/// Where a stream lies in [`Streams`].
pub(crate) type StreamKey = usize;

/// The legacy default stream.
pub(crate) const LEGACY: StreamKey = 0;

/// A point in a stream: passed when `ordinal` of its commands have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: StreamKey,
    serial: u64,
    ordinal: u64,
}

/// How a stream orders itself with the legacy stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// A device operation and what hangs on it. It is large and moves through queues, so it lives in a
/// box.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) op: Op,
    pub(crate) key: u64,
    /// Release words of arena blocks that it reads or writes.
    pub(crate) releases: [Option<u32>; 2],
    /// Execution time of its earlier pieces, in ns.
    pub(crate) spent_ns: u64,
    /// Bytes that its earlier pieces moved, for a copy or a fill.
    pub(crate) done_bytes: u64,
}

/// One step of a stream.
#[derive(Debug)]
pub(crate) enum Task {
    /// Only counts.
    Nothing,
    Operation(Box<Operation>),
    /// Waits for a point of another stream.
    Wait(Point),
    WaitValue {
        word: WordPlace,
        value: u64,
        comparison: Comparison,
    },
    WriteValue {
        word: WordPlace,
        value: u64,
    },
    /// Waits for a record of an event that sessions share.
    WaitCell {
        cell: EventCell,
        record: u64,
    },
    /// Completes a record of such an event.
    RecordCell {
        cell: EventCell,
        record: u64,
    },
    Record {
        slot: usize,
        record: u64,
        accepted_ns: u64,
    },
    /// `due` once the client was told.
    Host {
        call: u64,
        due: bool,
    },
    /// `after` is the last operation that was started before the task was reached.
    Free {
        address: u64,
        /// Bytes of an allocation that no other session has.
        own_bytes: Option<u64>,
        after: Option<u64>,
    },
}

impl Task {
    fn is_operation(&self) -> bool {
        matches!(self, Self::Operation(_))
    }
}

/// A task that has not begun.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Acceptance number over all streams.
    pub(crate) seq: u64,
    /// Whether its end counts as the end of a command.
    pub(crate) counts: bool,
    pub(crate) task: Task,
    /// The nodes after `task`, if it belongs to a graph.
    pub(crate) graph: Option<Box<GraphRun>>,
    /// Bytes it keeps, for the bound.
    pub(crate) bytes: u64,
    pub(crate) caller: Option<Caller>,
}

/// A task that has begun, or only waits for those before it.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) seq: u64,
    pub(crate) counts: bool,
    pub(crate) caller: Option<Caller>,
    pub(crate) state: State,
}

#[derive(Debug)]
pub(crate) enum State {
    Flying {
        id: OpId,
        operation: Box<Operation>,
    },
    /// Ends as soon as everything before it has ended.
    Passed,
    Record {
        slot: usize,
        record: u64,
        accepted_ns: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Option<ContextId>,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    pub(crate) queue: QueueId,
    pub(crate) queued: VecDeque<Queued>,
    pub(crate) begun: VecDeque<Begun>,
    /// Commands ever accepted on the slot, and of them those that have ended.
    pub(crate) accepted: u64,
    pub(crate) ended: u64,
    /// The progress word, unless the slot has a new owner.
    pub(crate) word: Option<u32>,
    /// Waits by the count of ended commands that they need, ascending.
    pub(crate) waits: VecDeque<(u64, u64)>,
    /// A piece with a time limit is in flight: its rest comes first.
    pub(crate) hold: bool,
    /// The front waited for another stream.
    pub(crate) waited: bool,
    /// Device clock when the last step ended, in ns.
    pub(crate) last_end_ns: u64,
    pub(crate) destroyed: bool,
    busy: bool,
    serial: u64,
}

impl Stream {
    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.begun.is_empty()
    }

    /// Acceptance number of the oldest command that has not ended.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let begun = self.begun.front().map(|begun| begun.seq);
        begun.or_else(|| self.queued.front().map(|queued| queued.seq))
    }

    /// The device operation at the front of the queue, if one is.
    pub(crate) fn front_operation(&self) -> Option<(u64, &Operation)> {
        match self.queued.front() {
            Some(Queued { seq, task: Task::Operation(operation), .. }) if !self.hold => {
                Some((*seq, operation))
            }
            Some(_) | None => None,
        }
    }

    /// Whether nobody asks when the operation at the front ends, but when the one behind it does.
    pub(crate) fn ends_unnoticed(&self) -> bool {
        let Some(front) = self.queued.front() else { return false };
        if let Some(node) = front.graph.as_ref().and_then(|graph| graph.next_node()) {
            return matches!(node, Node::Operation { .. });
        }
        // The command ends with it.
        let begun = self.begun.iter().filter(|begun| begun.counts).count() as u64;
        let ended_then = self.ended + begun + 1;
        let is_followed = self.queued.get(1).is_some_and(|next| next.task.is_operation());
        let is_awaited = self.waits.iter().any(|(needed, _)| *needed == ended_then);
        is_followed && front.counts && front.caller.is_none() && !is_awaited
    }

    /// Address and bytes of memory that was to be freed, and now is not: with room for so many
    /// bytes in as many pages, for what is left of it counts against the quota and is nobody's.
    pub(crate) fn take_freed(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let fits = |own: u64| own >= bytes && own.div_ceil(PAGE) == bytes.div_ceil(PAGE);
        let found = self.queued.iter_mut().rev().find_map(|queued| {
            let Task::Free { address, own_bytes: Some(own), .. } = queued.task else { return None };
            fits(own).then_some((address, own, &mut queued.task))
        });
        let (address, own, task) = found?;
        *task = Task::Nothing;
        Some((address, own))
    }

    /// Whether memory is yet to be freed.
    pub(crate) fn frees(&self) -> bool {
        self.queued.iter().any(|queued| matches!(queued.task, Task::Free { .. }))
    }

    /// Takes the front task out of the queue; the next node of its graph takes its place.
    pub(crate) fn take_front(&mut self) -> Option<Taken> {
        let front = self.queued.front_mut()?;
        let seq = front.seq;
        let Some(graph) = &mut front.graph else {
            let Queued { counts, task, bytes, caller, .. } = self.queued.pop_front()?;
            return Some(Taken { seq, counts, task, bytes, caller });
        };
        let next = match graph.next_task() {
            Some(task) => task,
            None => {
                front.graph = None;
                Task::Nothing
            }
        };
        let task = std::mem::replace(&mut front.task, next);
        Some(Taken { seq, counts: false, task, bytes: 0, caller: None })
    }
}

/// A task on its way from queued to begun.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) seq: u64,
    pub(crate) counts: bool,
    pub(crate) task: Task,
    pub(crate) bytes: u64,
    pub(crate) caller: Option<Caller>,
}

impl Taken {
    pub(crate) fn begun(&self, state: State) -> Begun {
        Begun { seq: self.seq, counts: self.counts, caller: self.caller, state }
    }
}

/// What the client calls a stream, over all its owners.
#[derive(Debug, Default, Clone, Copy)]
struct Slot {
    owner: Option<(u32, StreamKey)>,
    /// The last owner, while it is destroyed but still has work.
    lingering: Option<Point>,
    /// Commands sent to the slot while it had no owner, and to all former owners.
    sent: u64,
}

/// All streams of a session.
#[derive(Debug)]
pub(crate) struct Streams {
    list: Vec<Option<Box<Stream>>>,
    free: Vec<StreamKey>,
    slots: Vec<Slot>,
    /// Streams that are not idle, in no order.
    busy: Vec<StreamKey>,
    next_serial: u64,
    next_seq: u64,
    /// Commands on all streams that have not ended, and the bytes that those keep which have not
    /// begun.
    pub(crate) depth: usize,
    pub(crate) bytes: u64,
}

/// The slot of a new stream is beyond the table or owned.
#[derive(Debug)]
pub(crate) struct SlotTaken;

impl Streams {
    pub(crate) fn new() -> Self {
        let mut streams = Self {
            list: Vec::new(),
            free: Vec::new(),
            slots: Vec::new(),
            busy: Vec::new(),
            next_serial: 0,
            next_seq: 0,
            depth: 0,
            bytes: 0,
        };
        let legacy = streams.create(StreamId::LEGACY, None, Kind::Legacy, 0);
        debug_assert!(legacy.is_ok_and(|(key, _)| key == LEGACY), "an empty table has slot 0");
        streams
    }

    /// Creates a stream and returns it with the count that its progress word starts from.
    pub(crate) fn create(
        &mut self,
        id: StreamId,
        context: Option<ContextId>,
        kind: Kind,
        priority: i32,
    ) -> Result<(StreamKey, u64), SlotTaken> {
        let key = self.free.last().copied().unwrap_or(self.list.len());
        let slot = self.slot_mut(id).ok_or(SlotTaken)?;
        if slot.owner.is_some() {
            return Err(SlotTaken);
        }
        let sent = slot.sent;
        let lingering = slot.lingering.take();
        slot.owner = Some((id.generation, key));
        self.free.pop();
        if let Some(former) = lingering.filter(|point| !self.has_passed(point)) {
            self.expect_mut(former.stream, |stream| stream.word = None);
        }
        self.next_serial += 1;
        let stream = Box::new(Stream {
            context,
            kind,
            priority,
            queue: QueueId(u32::try_from(key).unwrap_or(u32::MAX)),
            queued: VecDeque::new(),
            begun: VecDeque::new(),
            accepted: sent,
            ended: sent,
            word: progress::stream_word(id),
            waits: VecDeque::new(),
            hold: false,
            waited: false,
            last_end_ns: 0,
            destroyed: false,
            busy: false,
            serial: self.next_serial,
        });
        match self.list.get_mut(key) {
            Some(place) => *place = Some(stream),
            None => self.list.push(Some(stream)),
        }
        Ok((key, sent))
    }

    fn expect_mut(&mut self, key: StreamKey, change: impl FnOnce(&mut Stream)) {
        if let Some(stream) = self.get_mut(key) {
            change(stream);
        }
    }

    /// The stream that a live handle names.
    pub(crate) fn find(&self, id: StreamId) -> Option<StreamKey> {
        let slot = self.slots.get(usize::try_from(id.index).ok()?)?;
        slot.owner.filter(|(generation, _)| *generation == id.generation).map(|(_, key)| key)
    }

    pub(crate) fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.list.get(key)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.list.get_mut(key)?.as_deref_mut()
    }

    /// Destroys the handle; the stream's work goes on.
    pub(crate) fn destroy(&mut self, id: StreamId) -> Option<()> {
        let key = self.find(id).filter(|key| *key != LEGACY)?;
        let end = self.end_of(key)?;
        let slot = self.slots.get_mut(usize::try_from(id.index).ok()?)?;
        slot.owner = None;
        slot.sent = end.ordinal;
        slot.lingering = Some(end);
        self.expect_mut(key, |stream| stream.destroyed = true);
        self.tidy(key);
        Some(())
    }

    /// Destroys the handles of all streams of a context.
    pub(crate) fn destroy_of(&mut self, context: ContextId) {
        let owned = |slot: &Slot| {
            let (generation, key) = slot.owner?;
            (self.get(key)?.context == Some(context)).then_some(generation)
        };
        let ids: Vec<StreamId> = (0_u32..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| Some(StreamId { index, generation: owned(slot)? }))
            .collect();
        for id in ids {
            self.destroy(id);
        }
    }

    /// The stream that counts a command for this handle: its own, or the slot's present owner.
    pub(crate) fn counting(&self, id: StreamId) -> Option<StreamKey> {
        let slot = self.slots.get(usize::try_from(id.index).ok()?)?;
        slot.owner.map(|(_, key)| key)
    }

    /// Counts a command for a slot without an owner, as its sender does.
    pub(crate) fn count_stray(&mut self, id: StreamId) {
        if let Some(slot) = self.slot_mut(id) {
            slot.sent += 1;
        }
    }

    fn slot_mut(&mut self, id: StreamId) -> Option<&mut Slot> {
        let at = usize::try_from(id.index).ok().filter(|_| id.index < STREAMS_MAX)?;
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Slot::default());
        }
        self.slots.get_mut(at)
    }

    /// Appends a command.
    pub(crate) fn push(
        &mut self,
        key: StreamKey,
        task: Task,
        graph: Option<Box<GraphRun>>,
        bytes: u64,
        caller: Option<Caller>,
    ) {
        let seq = self.next_seq;
        let Some(stream) = self.list.get_mut(key).and_then(Option::as_deref_mut) else { return };
        stream.accepted += 1;
        stream.queued.push_back(Queued { seq, counts: true, task, graph, bytes, caller });
        if !stream.busy {
            stream.busy = true;
            self.busy.push(key);
        }
        self.next_seq += 1;
        self.depth += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// How many slots for streams there are; they stay.
    pub(crate) fn slots(&self) -> usize {
        self.list.len().max(self.slots.len())
    }

    /// The end of everything accepted on the stream so far.
    pub(crate) fn end_of(&self, key: StreamKey) -> Option<Point> {
        let stream = self.get(key)?;
        Some(Point { stream: key, serial: stream.serial, ordinal: stream.accepted })
    }

    /// The end of the command that is accepted next on the stream.
    pub(crate) fn next_point(&self, key: StreamKey) -> Option<Point> {
        let end = self.end_of(key)?;
        Some(Point { ordinal: end.ordinal + 1, ..end })
    }

    pub(crate) fn has_passed(&self, point: &Point) -> bool {
        match self.get(point.stream) {
            Some(stream) if stream.serial == point.serial => stream.ended >= point.ordinal,
            Some(_) | None => true,
        }
    }

    /// Notes that `wait` needs the point to be passed; false when it already is.
    pub(crate) fn await_point(&mut self, point: &Point, wait: u64) -> bool {
        if self.has_passed(point) {
            return false;
        }
        self.expect_mut(point.stream, |stream| {
            let at = stream.waits.partition_point(|(ordinal, _)| *ordinal <= point.ordinal);
            stream.waits.insert(at, (point.ordinal, wait));
        });
        true
    }

    pub(crate) fn busy(&self) -> &[StreamKey] {
        &self.busy
    }

    /// Whether order with the legacy stream lets a command go ahead.
    pub(crate) fn is_open(&self, key: StreamKey, seq: u64) -> bool {
        let Some(stream) = self.get(key) else { return false };
        let after = |oldest: Option<u64>| oldest.is_none_or(|oldest| oldest > seq);
        match stream.kind {
            Kind::NonBlocking => true,
            Kind::Blocking => after(self.get(LEGACY).and_then(Stream::oldest)),
            Kind::Legacy => self
                .busy
                .iter()
                .filter_map(|key| self.get(*key))
                .filter(|stream| stream.kind == Kind::Blocking)
                .all(|stream| after(stream.oldest())),
        }
    }

    /// Forgets a stream that has no work left, as busy and, once destroyed, altogether.
    pub(crate) fn tidy(&mut self, key: StreamKey) {
        let Some(stream) = self.get_mut(key).filter(|stream| stream.is_idle()) else { return };
        let was_busy = std::mem::replace(&mut stream.busy, false);
        let destroyed = stream.destroyed;
        if was_busy && let Some(at) = self.busy.iter().position(|busy| *busy == key) {
            self.busy.swap_remove(at);
        }
        if destroyed && let Some(place) = self.list.get_mut(key) {
            *place = None;
            self.free.push(key);
        }
    }
}

/// The nodes of a graph that a launch still has to run are shared with the graph itself.
pub(crate) type SharedNodes = Arc<Vec<Arc<Node>>>;
