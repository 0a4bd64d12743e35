//! What happens when: which operation is next, what its end sets free, and how streams move on.

use weft_device::{Completion, Device, DeviceError, Driven, Op, OpId, Outcome};
use weft_wire::reply;

use crate::fault::status_of_device;
use crate::launch::blocks_left;
use crate::output::{Finished, Output};
use crate::session::Session;
use crate::shape::{PART_BYTES_MIN, PART_ROWS_MIN, device_ranges, moved_bytes, part, rows};
use crate::stream::{Begun, Operation, Queued, State, StreamKey, Taken, Task};

/// Shortest and longest time between two looks at a word that a stream waits for, in ns.
const POLL_NS: (u64, u64) = (20_000, 1_000_000);

/// What kind of device work an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A kernel; [`Ready::units`] are thread blocks.
    Kernel,
    /// A copy; units are bytes.
    Copy,
    /// A fill; units are bytes.
    Fill,
}

/// A device operation that could start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The same for operations that cost alike per unit: kernel and block shape, or direction of a
    /// copy.
    pub key: u64,
    /// What it is.
    pub work: Work,
    /// How much is left of it: thread blocks or bytes.
    pub units: u64,
    /// The device's own estimate of the time it takes, in ns.
    pub estimate_ns: Option<u64>,
    /// Whether it may stop at a limit and go on later.
    pub sliceable: bool,
    /// Of a kernel: thread blocks that execute together, none of which is cut from the others.
    pub wave: u64,
}

/// Where an operation stops, to go on later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// After about this much device time in ns, where the device can stop it: a kernel between
    /// thread blocks.
    pub after_ns: u64,
    /// A copy or a fill: at the latest after about this many bytes.
    pub after_bytes: u64,
}

/// What [`Session::start_next`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Started {
    /// The operation is in flight.
    Flying,
    /// The same, and its end is told with that of the next one of its stream.
    Open,
    /// The device refused it; whoever waits was told. The next operation may be ready.
    Dropped,
    /// The device's queue is full, or nothing is ready: drive first.
    NotNow,
}

/// A device operation in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    id: OpId,
    stream: StreamKey,
    /// Number of the operation, in the order of starting.
    number: u64,
    /// Bytes that it moves, for a copy or a fill.
    bytes: u64,
}

/// When words in memory are looked at.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    next_ns: Option<u64>,
    interval_ns: u64,
}

impl Polling {
    pub(crate) fn stop(&mut self) {
        self.next_ns = None;
    }
}

/// A kernel may execute this long, all in all, if its context is destroyed meanwhile.
const LEAVING_NS: u64 = 10_000_000_000;

/// Of a piece of a kernel so much may not have been measured: it ended between two looks.
const UNSEEN_NS: u64 = 1_000_000;

impl<D: Device> Session<D> {
    // What is next.

    /// The next device operation that could start: of those whose turn it is the one of highest
    /// stream priority, then the oldest.
    pub fn next_op(&self) -> Option<Ready> {
        let operation = self.streams.get(self.next_stream()?)?.front_operation()?.1;
        let units = units_left(operation);
        let work = match &operation.op {
            Op::Launch(_) => Work::Kernel,
            Op::Copy { .. } => Work::Copy,
            Op::Fill(_) => Work::Fill,
        };
        let wave = match &operation.op {
            Op::Launch(launch) => self.device.wave(launch),
            Op::Copy { .. } | Op::Fill(_) => None,
        };
        let sliceable = match work {
            Work::Kernel => wave.is_some(),
            Work::Copy | Work::Fill => {
                units > PART_BYTES_MIN || rows(&operation.op) > PART_ROWS_MIN
            }
        };
        let whole_ns = self.device.estimate_ns(&operation.op);
        let estimate_ns = whole_ns.map(|ns| part_of(ns, units, operation));
        let wave = wave.unwrap_or(1);
        Some(Ready { key: operation.key, work, units, estimate_ns, sliceable, wave })
    }

    /// Whether [`Session::next_op`] would name one.
    pub fn has_ready_work(&self) -> bool {
        self.next_stream().is_some()
    }

    fn next_stream(&self) -> Option<StreamKey> {
        if self.flights.len() >= self.limits.in_flight {
            return None;
        }
        let mut best: Option<(i32, u64, StreamKey)> = None;
        for key in self.streams.busy() {
            let Some(stream) = self.streams.get(*key) else { continue };
            let Some((seq, _)) = stream.front_operation() else { continue };
            let rank = (stream.priority, seq, *key);
            let better = best.is_none_or(|best| rank < best);
            if better && self.streams.is_open(*key, seq) {
                best = Some(rank);
            }
        }
        best.map(|(_, _, key)| key)
    }

    /// Starts the operation that [`Session::next_op`] named. With a `cut` it stops there and the
    /// rest becomes ready again; nothing else of its stream starts meanwhile, so leave it out for
    /// operations known to be short. If it `may_stay_open`, and nobody asks when it ends but when
    /// the next one does, the device may tell both together.
    pub fn start_next(
        &mut self,
        cut: Option<Cut>,
        may_stay_open: bool,
        out: &mut dyn Output,
    ) -> Started {
        let Some(key) = self.next_stream() else { return Started::NotNow };
        let Some(stream) = self.streams.get_mut(key) else { return Started::NotNow };
        let queue = stream.queue;
        let unnoticed = may_stay_open && stream.ends_unnoticed();
        let Some((_, operation)) = stream.front_operation() else { return Started::NotNow };
        let Some((op, bytes)) = piece(operation, cut) else { return Started::NotNow };
        let stops = self.device.info().capabilities.slice_blocks;
        let max_ns = cut.filter(|_| stops).map(|cut| cut.after_ns);
        let rest = operation.done_bytes + bytes < moved_bytes(&operation.op);
        let hold = max_ns.is_some() || rest;
        let opens = unnoticed && !hold;
        let mut ranges = device_ranges(&op).into_iter().flatten();
        let mapped = ranges.try_for_each(|(at, bytes)| self.device.check_range(at, bytes));
        let started = mapped.and_then(|()| match opens {
            true => self.device.start_open(queue, op),
            false => self.device.start(queue, op, max_ns),
        });
        match started {
            Ok(id) => {
                self.started += 1;
                let number = self.started;
                self.flights.push_back(Flight { id, stream: key, number, bytes });
                self.begin(key, |taken, operation| taken.begun(State::Flying { id, operation }));
                if let Some(stream) = self.streams.get_mut(key) {
                    stream.hold = hold;
                }
                self.settle_from(key, out);
                if opens { Started::Open } else { Started::Flying }
            }
            Err(DeviceError::QueueFull) => Started::NotNow,
            Err(error) => {
                self.drop_front(key, &error, out);
                Started::Dropped
            }
        }
    }

    fn begin(&mut self, key: StreamKey, state: impl FnOnce(&Taken, Box<Operation>) -> Begun) {
        let Some(mut taken) = self.take_front(key) else { return };
        let task = std::mem::replace(&mut taken.task, Task::Nothing);
        if let (Task::Operation(operation), Some(stream)) = (task, self.streams.get_mut(key)) {
            stream.begun.push_back(state(&taken, operation));
        }
    }

    /// The front operation cannot be done: its command is refused.
    fn drop_front(&mut self, key: StreamKey, error: &DeviceError, out: &mut dyn Output) {
        let status = status_of_device(error);
        tracing::debug!(%error, ?status, "operation refused by the device");
        let Some(mut taken) = self.take_front(key) else { return };
        if let Task::Operation(operation) = &taken.task {
            operation.releases.iter().flatten().for_each(|word| out.release(*word));
        }
        match taken.caller.take() {
            Some(caller) => out.reply(caller, status, &[]),
            None => self.note_refusal(status, out),
        }
        let passed = taken.begun(State::Passed);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.begun.push_back(passed);
        }
        if let DeviceError::Lost(what) = error {
            tracing::error!(what, "device lost");
            self.poison(status, out);
        }
        self.settle_from(key, out);
    }

    fn take_front(&mut self, key: StreamKey) -> Option<Taken> {
        let stream = self.streams.get_mut(key)?;
        let taken = stream.take_front()?;
        self.streams.bytes = self.streams.bytes.saturating_sub(taken.bytes);
        Some(taken)
    }

    // Driving.

    /// Executes for at most about `slice_ns` of this thread's time, handles everything that has
    /// ended, and says what remains. `WaitUntil` is a time of the device's clock; see also
    /// [`Session::deadline_ns`].
    pub fn drive(&mut self, slice_ns: u64, out: &mut dyn Output) -> Driven {
        let mut driven = Driven::Idle;
        if !self.flights.is_empty() {
            driven = self.drive_device(slice_ns, out);
        }
        let polls = self.polling.next_ns.is_some_and(|next_ns| self.device.now_ns() >= next_ns);
        if polls {
            self.settle_all(out);
        }
        if self.flights.is_empty() { Driven::Idle } else { driven }
    }

    /// When a word that a stream waits for is to be looked at again (device clock, ns). Call
    /// [`Session::drive`] then.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.polling.next_ns
    }

    fn drive_device(&mut self, slice_ns: u64, out: &mut dyn Output) -> Driven {
        let limit_ns = self.kernel_limit_ns();
        let began_ns = limit_ns.map(|_| self.device.now_ns());
        let driven = self.device.drive(slice_ns.min(limit_ns.unwrap_or(u64::MAX)));
        let mut ended = false;
        while let Some(completion) = self.device.poll() {
            // What a kernel printed is known before its end, or its fault, can be seen.
            if !ended {
                self.collect_output(out);
            }
            ended = true;
            self.complete(completion, out);
        }
        if ended {
            self.running_ns = 0;
            self.aborted = false;
            self.settle_all(out);
        } else if let (Some(limit_ns), Some(began_ns)) = (limit_ns, began_ns) {
            let drove_ns = self.device.now_ns().saturating_sub(began_ns);
            let executed_ns = if driven == Driven::Busy { drove_ns } else { 0 };
            let known_ns = self.device.occupied_ns();
            let counted_ns = self.running_ns.saturating_add(executed_ns);
            self.running_ns = known_ns.unwrap_or(counted_ns);
            self.stop_endless(limit_ns);
        }
        driven
    }

    /// How long the running kernel may execute: as configured, and not for ever once its context
    /// was destroyed.
    fn kernel_limit_ns(&self) -> Option<u64> {
        let configured_ns = self.limits.kernel_ns.map(std::num::NonZeroU64::get);
        let of_leaving = |flight: &Flight| {
            let stream = self.streams.get(flight.stream)?;
            let leaves = stream.context.is_none_or(|context| self.leaving.contains(&context));
            leaves.then_some(LEAVING_NS)
        };
        let leaving = (!self.leaving.is_empty()).then(|| self.flights.front());
        let leaving_ns = leaving.flatten().and_then(of_leaving);
        configured_ns.into_iter().chain(leaving_ns).min()
    }

    /// Ends the running kernel once it has executed for longer than it may, all its pieces
    /// together.
    fn stop_endless(&mut self, limit_ns: u64) {
        let Some(Flight { id, stream: key, .. }) = self.flights.front().copied() else { return };
        let of = |begun: &Begun| match &begun.state {
            State::Flying { id: flying, operation } if *flying == id => Some(operation.spent_ns),
            State::Flying { .. } | State::Passed | State::Record { .. } => None,
        };
        let stream = self.streams.get(key);
        let earlier_ns = stream.and_then(|stream| stream.begun.iter().find_map(of)).unwrap_or(0);
        if !self.aborted && earlier_ns.saturating_add(self.running_ns) >= limit_ns {
            tracing::warn!(limit_ns, "kernel runs longer than it may");
            self.aborted = true;
            self.device.abort(id);
        }
    }

    fn complete(&mut self, completion: Completion, out: &mut dyn Output) {
        let Completion { op, outcome, start_ns, end_ns } = completion;
        let Some(at) = self.flights.iter().position(|flight| flight.id == op) else { return };
        let Some(Flight { stream: key, bytes, .. }) = self.flights.remove(at) else { return };
        self.last_end_ns = self.last_end_ns.max(end_ns);
        let others = self.flights.iter().any(|flight| flight.stream == key);
        let Some(stream) = self.streams.get_mut(key) else { return };
        // Nothing was started behind the operation that holds the stream, so it is the last to end.
        stream.hold &= others;
        stream.last_end_ns = stream.last_end_ns.max(end_ns);
        let is_it = |begun: &Begun| matches!(&begun.state, State::Flying { id, .. } if *id == op);
        let Some(at) = stream.begun.iter().position(is_it) else { return };
        let Some(begun) = stream.begun.get_mut(at) else { return };
        let State::Flying { operation, .. } = std::mem::replace(&mut begun.state, State::Passed)
        else {
            return;
        };
        let key_of = operation.key;
        let is_kernel = matches!(operation.op, Op::Launch(_));
        let units = if is_kernel { units_left(&operation) } else { bytes };
        let goes_on = !is_kernel && bytes < units_left(&operation);
        let seen_ns = self.running_ns.saturating_add(UNSEEN_NS);
        let spent_ns = end_ns.saturating_sub(start_ns).min(seen_ns);
        let mut ran = units;
        let mut partial = false;
        match outcome {
            Outcome::Partial { reached } => {
                partial = true;
                ran = self.put_back(key, at, operation, (reached, spent_ns), out);
            }
            Outcome::Done if goes_on => {
                partial = true;
                ran = self.put_back(key, at, operation, (bytes, spent_ns), out);
            }
            Outcome::Done => {
                operation.releases.iter().flatten().for_each(|word| out.release(*word));
            }
            Outcome::Fault(fault) => {
                operation.releases.iter().flatten().for_each(|word| out.release(*word));
                self.report(&fault, out);
            }
        }
        out.finished(&Finished { key: key_of, units: ran, start_ns, end_ns, partial });
    }

    /// Puts the rest of an operation back to the head of its stream: of a launch, what begins with
    /// block `reached`; of a copy or fill, what is behind so many more bytes. Nothing goes on when
    /// nothing is left. Returns the units that ran.
    fn put_back(
        &mut self,
        key: StreamKey,
        at: usize,
        mut operation: Box<Operation>,
        (reached, spent_ns): (u64, u64),
        out: &mut dyn Output,
    ) -> u64 {
        let before = units_left(&operation);
        match &mut operation.op {
            Op::Launch(launch) => {
                // A device that does not get ahead would keep us busy for ever.
                launch.first_block = reached.max(launch.first_block.saturating_add(1));
            }
            Op::Copy { .. } | Op::Fill(_) => operation.done_bytes += reached.min(before),
        }
        operation.spent_ns = operation.spent_ns.saturating_add(spent_ns);
        let ran = before.saturating_sub(units_left(&operation));
        if self.sticky.is_some() || units_left(&operation) == 0 {
            operation.releases.iter().flatten().for_each(|word| out.release(*word));
            return ran;
        }
        let Some(stream) = self.streams.get_mut(key) else { return ran };
        let Some(Begun { seq, counts, caller, .. }) = stream.begun.remove(at) else { return ran };
        let task = Task::Operation(operation);
        stream.queued.push_front(Queued { seq, counts, task, graph: None, bytes: 0, caller });
        ran
    }

    // Moving on.

    /// Lets a stream go as far as it can, and everybody who waited for it.
    pub(crate) fn settle_from(&mut self, key: StreamKey, out: &mut dyn Output) {
        if self.advance(key, out) && !self.streams.busy().is_empty() {
            self.settle_all(out);
        }
    }

    pub(crate) fn settle_all(&mut self, out: &mut dyn Output) {
        let before = self.polling.next_ns.take();
        let mut any = false;
        loop {
            let mut moved = false;
            let mut at = 0;
            while let Some(key) = self.streams.busy().get(at).copied() {
                moved |= self.advance(key, out);
                // A stream that became idle has left the list to another one.
                if self.streams.busy().get(at) == Some(&key) {
                    at += 1;
                }
            }
            any |= moved;
            if !moved {
                break;
            }
        }
        if self.polling.next_ns.is_some() {
            self.pace_polls(before.is_some() && !any);
        }
    }

    /// Looks at waited-for words less and less often while nothing happens.
    fn pace_polls(&mut self, fruitless: bool) {
        let (shortest, longest) = POLL_NS;
        let doubled = self.polling.interval_ns.saturating_mul(2);
        let interval_ns = if fruitless { doubled.clamp(shortest, longest) } else { shortest };
        self.polling.interval_ns = interval_ns;
        self.polling.next_ns = Some(self.device.now_ns().saturating_add(interval_ns));
    }

    fn advance(&mut self, key: StreamKey, out: &mut dyn Output) -> bool {
        let mut moved = false;
        loop {
            moved |= self.retire(key, out);
            if !self.step(key, out) {
                break;
            }
            moved = true;
        }
        self.streams.tidy(key);
        moved
    }

    /// Ends the tasks at the head of the stream that have nothing left to wait for.
    fn retire(&mut self, key: StreamKey, out: &mut dyn Output) -> bool {
        let mut moved = false;
        while let Some(stream) = self.streams.get_mut(key) {
            let over = |begun: &mut Begun| !matches!(begun.state, State::Flying { .. });
            let Some(begun) = stream.begun.pop_front_if(over) else { break };
            moved = true;
            if let State::Record { slot, record, accepted_ns } = begun.state {
                let time_ns = accepted_ns.max(stream.last_end_ns);
                self.complete_record(slot, record, time_ns, out);
            }
            if begun.counts {
                self.count_end(key, out);
            }
            if let Some(caller) = begun.caller {
                self.answer(caller, out);
            }
        }
        moved
    }

    fn complete_record(&mut self, slot: usize, record: u64, time_ns: u64, out: &mut dyn Output) {
        let Some(completed) = self.events.complete(slot, record, time_ns) else { return };
        if let Some(word) = completed.word {
            out.progress(word, record);
        }
        for number in completed.waits {
            if let Some(wait) = self.waits.ended(number) {
                self.finish_wait(wait, out);
            }
        }
    }

    fn count_end(&mut self, key: StreamKey, out: &mut dyn Output) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.ended += 1;
        if let Some(word) = stream.word {
            out.progress(word, stream.ended);
        }
        self.streams.depth = self.streams.depth.saturating_sub(1);
        loop {
            let Some(stream) = self.streams.get_mut(key) else { return };
            let ended = stream.ended;
            let Some((_, number)) = stream.waits.pop_front_if(|(needed, _)| *needed <= ended)
            else {
                return;
            };
            if let Some(wait) = self.waits.ended(number) {
                self.finish_wait(wait, out);
            }
        }
    }

    /// Lets the front task begin if it is no device operation and its turn has come.
    fn step(&mut self, key: StreamKey, out: &mut dyn Output) -> bool {
        let Some(stream) = self.streams.get(key) else { return false };
        let Some(front) = stream.queued.front() else { return false };
        if stream.hold || matches!(front.task, Task::Operation(_)) {
            return false;
        }
        let first = stream.begun.is_empty();
        let is_open = self.streams.is_open(key, front.seq);
        let may_begin = is_open && !self.waits_elsewhere(key, &front.task);
        let last_end_ns = self.last_end_ns;
        let Some(stream) = self.streams.get_mut(key) else { return false };
        if std::mem::replace(&mut stream.waited, !may_begin) {
            stream.last_end_ns = stream.last_end_ns.max(last_end_ns);
        }
        if !may_begin {
            return false;
        }
        let Some(front) = stream.queued.front_mut() else { return false };
        let state = match &mut front.task {
            Task::Nothing | Task::Wait(_) => State::Passed,
            Task::Record { slot, record, accepted_ns } => {
                State::Record { slot: *slot, record: *record, accepted_ns: *accepted_ns }
            }
            Task::Operation(_) => return false,
            Task::WaitValue { .. }
            | Task::WriteValue { .. }
            | Task::WaitCell { .. }
            | Task::RecordCell { .. }
            | Task::Host { .. }
            | Task::Free { .. } => {
                if !first || !self.act(key, out) {
                    return false;
                }
                State::Passed
            }
        };
        if let Some(taken) = self.take_front(key) {
            let begun = taken.begun(state);
            if let Some(stream) = self.streams.get_mut(key) {
                stream.begun.push_back(begun);
            }
        }
        true
    }

    /// Whether the task waits for a point of another stream; those of its own lie behind it.
    fn waits_elsewhere(&self, key: StreamKey, task: &Task) -> bool {
        if let Task::Wait(point) = task {
            point.stream != key && !self.streams.has_passed(point)
        } else {
            false
        }
    }

    /// Carries out the front task of a stream where nothing runs. Returns whether it is over.
    fn act(&mut self, key: StreamKey, out: &mut dyn Output) -> bool {
        let Some(stream) = self.streams.get_mut(key) else { return false };
        let Some(front) = stream.queued.front_mut() else { return false };
        let outcome = match &mut front.task {
            Task::WaitValue { word, value, comparison } => {
                let outcome = word.compares(&mut self.device, *comparison, *value);
                if outcome == Ok(false) {
                    self.poll_soon();
                    return false;
                }
                outcome.map(drop)
            }
            Task::WriteValue { word, value } => word.write(&mut self.device, *value),
            Task::WaitCell { cell, record } => {
                // The event of a session that is gone keeps nobody waiting.
                if cell.has_completed(&mut self.device, *record) == Ok(false) {
                    self.poll_soon();
                    return false;
                }
                Ok(())
            }
            Task::RecordCell { cell, record } => {
                cell.complete(&mut self.device, *record);
                Ok(())
            }
            Task::Free { address, own_bytes, after } => {
                // Operations of other streams that are in flight now may name the memory.
                let (address, bytes, after) =
                    (*address, *own_bytes, *after.get_or_insert(self.started));
                if self.flights.front().is_some_and(|flight| flight.number <= after) {
                    return false;
                }
                if self.is_release_late(bytes) {
                    self.releases.is_next = true;
                    return false;
                }
                self.free_now(address);
                Ok(())
            }
            Task::Host { due: true, .. } => return false,
            Task::Host { call, due } => {
                *due = true;
                let call = *call;
                self.tell_host(call, key, out);
                return false;
            }
            Task::Nothing | Task::Operation(_) | Task::Wait(_) | Task::Record { .. } => Ok(()),
        };
        let now_ns = self.device.now_ns();
        if let Some(stream) = self.streams.get_mut(key) {
            stream.last_end_ns = stream.last_end_ns.max(now_ns);
        }
        if let Err(status) = outcome {
            self.note_refusal(status, out);
        }
        true
    }

    /// A stream waits for what no command tells of.
    fn poll_soon(&mut self) {
        let next_ns = self.device.now_ns().saturating_add(POLL_NS.0);
        self.polling.next_ns.get_or_insert(next_ns);
    }

    fn tell_host(&mut self, call: u64, key: StreamKey, out: &mut dyn Output) {
        if let Some(asker) = self.host.reach(call, key) {
            self.answer_with(asker, &reply::HostCall { call }, out);
        }
    }

    pub(crate) fn host_function_done(&mut self, call: u64, out: &mut dyn Output) {
        // After a fault nobody waits for it any more.
        let Some(key) = self.host.end(call) else { return };
        let now_ns = self.device.now_ns();
        if let Some(taken) = self.take_front(key) {
            let passed = taken.begun(State::Passed);
            if let Some(stream) = self.streams.get_mut(key) {
                stream.last_end_ns = stream.last_end_ns.max(now_ns);
                stream.begun.push_back(passed);
            }
        }
        self.settle_from(key, out);
    }
}

/// Thread blocks or bytes of an operation that are still to run.
fn units_left(operation: &Operation) -> u64 {
    match &operation.op {
        Op::Launch(launch) => blocks_left(launch),
        op @ (Op::Copy { .. } | Op::Fill(_)) => {
            moved_bytes(op).saturating_sub(operation.done_bytes)
        }
    }
}

/// The time of what is left of an operation that takes `whole_ns` in all, if it is a copy or a
/// fill; devices estimate the rest of a launch themselves.
fn part_of(whole_ns: u64, left: u64, operation: &Operation) -> u64 {
    if operation.done_bytes == 0 {
        return whole_ns;
    }
    let all = u128::from(moved_bytes(&operation.op).max(1));
    u64::try_from(u128::from(whole_ns) * u128::from(left) / all).unwrap_or(u64::MAX)
}

/// What of an operation runs next, up to a cut, and how many bytes that moves. `None` never
/// happens: what is left lies within what was checked.
fn piece(operation: &Operation, cut: Option<Cut>) -> Option<(Op, u64)> {
    match &operation.op {
        op @ Op::Launch(_) => Some((op.clone(), 0)),
        op @ (Op::Copy { .. } | Op::Fill(_)) => {
            let after_bytes = cut.map_or(u64::MAX, |cut| cut.after_bytes);
            part(op, operation.done_bytes, after_bytes)
        }
    }
}
