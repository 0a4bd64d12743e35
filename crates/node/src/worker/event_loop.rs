//! The worker's event loop: lanes → session → gate → device → answers.
//!
//! One thread, no blocked waits: a command that waits for something is an entry in the session.
//! While the worker holds the device it polls; otherwise it sleeps on its segment's doorbell, which
//! the tenant, the daemon and the watcher ring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_device::{Device, Driven, thread_cpu_ns};
use weft_exec::{Accepted, Ready, Session, Started, Violation, Work};
use weft_gate::{Due, GateWorker};
use weft_ring::{AnswerTo, MAX_COMMAND, WorkerSide};
use weft_turn::{
    ANNOUNCE_NS, Admission, Grace, Grant, GrantKind, Length, Meter, Operation, Pause, Pieces,
    Predictor, Size, WaitFor, is_surprise,
};
use weft_wire::Command;

use super::flights::{Flight, Flights, Landed};
use super::held::{Held, LOAD_WAITS_NS};
use super::link::Link;
use super::moving::Moving;
use super::output::Answers;
use crate::config::CompilingConfig;
use crate::link::{Ask, Reply, Times};

/// The device is driven for at most this long between two looks at the lanes.
const SLICE_NS: u64 = 500_000;

/// Commands taken in a row before the device is looked at again.
const BATCH: usize = 64;

/// Commands held back while a stream is full, so that an urgent one can pass.
const HELD_MAX: usize = 65_536;

/// What each of them takes of the host's memory, about, in bytes.
const HELD_BYTES: u64 = 256;

/// A boosted one is woken this long before it: what a wake-up across processors takes that
/// preempts whoever runs there, with some room.
const ANNOUNCE_BOOSTED_NS: u64 = 25_000;

/// The daemon hears of a result this long before it comes, when it wants to: what it takes to wake
/// the daemon and to boost a thread, with some room.
const DUE_SOON_NS: u64 = 200_000;

/// A wait of less than this is polled: a sleep would take as long.
const POLL_NS: u64 = 150_000;

/// A sleep ends this long before what it waits for: sleeps on a virtual machine end late by about
/// half of it.
const OVERSLEEP_NS: u64 = 100_000;

/// Memory that goes back to the system waits so long for what flies on a device that nobody else
/// wants.
const RELEASE_WAITS_NS: u64 = LOAD_WAITS_NS;

/// Work of the host that takes at least this long is charged to a turn.
const HOST_WORK_NS: u64 = 1_000_000;

/// Why the loop ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The tenant left, or nobody is there to work for.
    #[error("the session is over")]
    Over,
    /// The tenant broke the protocol.
    #[error("the tenant broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// The tenant broke the lanes.
    #[error("the tenant broke the lanes: {0:?}")]
    Lanes(weft_ring::Violation),
    /// The device runs something that cannot be ended while this process lives.
    #[error("a kernel runs into its time limit and cannot be stopped alone")]
    Stuck,
    /// The device is lost, and others need what is left of its memory.
    #[error("the device is lost, and others need its memory")]
    Lost,
    /// A command was no command.
    #[error("the tenant sent no command: {0}")]
    Command(#[from] weft_wire::codec::DecodeError),
}

/// Everything the loop works on.
#[derive(Debug)]
pub(crate) struct EventLoop<D> {
    pub(super) session: Session<D>,
    side: WorkerSide,
    pub(super) gate: GateWorker,
    pub(super) link: Arc<Link>,
    pub(super) moving: Moving,
    answers: Answers,
    predictor: Predictor,
    meter: Meter,
    pieces: Pieces,
    compiles: CompilingConfig,
    /// How long it took to start the last piece of a kernel, in ns.
    piece_start_ns: u64,
    flights: Flights,
    /// Commands that did not fit their stream, or that wait until nothing flies, in order.
    held: VecDeque<Held>,
    buffer: Box<[u8; MAX_COMMAND]>,
    /// Device clock since when memory waits to go back to the system.
    releases_since_ns: Option<u64>,
    /// What the last operation that was not admitted waits for.
    refused: Option<WaitFor>,
    /// Device clock when there is room for it beside what flies.
    pub(super) room_at_ns: Option<u64>,
    /// Device clock when the oldest flight became the oldest.
    front_since_ns: u64,
    grace: Grace,
    ring_wait: Duration,
    /// What the daemon counts as pinned for the session, in bytes.
    pinned_told: u64,
}

impl<D: Device> EventLoop<D> {
    /// A loop of one session.
    pub(crate) fn new(
        session: Session<D>,
        side: WorkerSide,
        gate: GateWorker,
        link: Arc<Link>,
        times: &Times,
        moving: Moving,
    ) -> Self {
        let answers = Answers::new(Arc::clone(&link));
        Self {
            session,
            side,
            gate,
            link,
            moving,
            answers,
            predictor: Predictor::default(),
            meter: Meter::new(times.accounting.into()),
            pieces: Pieces::new(times.slicing.into()),
            compiles: times.compiling,
            piece_start_ns: 0,
            flights: Flights::default(),
            held: VecDeque::new(),
            buffer: Box::new([0; MAX_COMMAND]),
            releases_since_ns: None,
            refused: None,
            room_at_ns: None,
            front_since_ns: 0,
            grace: Grace::new(times.yield_us * 1000),
            ring_wait: Duration::from_micros(times.ring_wait_us),
            pinned_told: 0,
        }
    }

    /// Device time that the session has used, what is in flight included, which it leaves behind.
    pub(crate) fn owed_ns(&self) -> u64 {
        let abandoned = self.moving.abandoned();
        let owed_ns = self.gate.page().abandoned_ns(self.session.device().now_ns(), abandoned);
        self.gate.used_ns().saturating_add(owed_ns)
    }

    /// Works until the session is over.
    pub(crate) fn run(&mut self) -> Ended {
        loop {
            if self.link.is_over() {
                return Ended::Over;
            }
            if let Err(ended) = self.turn() {
                return ended;
            }
        }
    }

    /// Whether the device has work of the session.
    pub(crate) fn is_busy(&self) -> bool {
        !self.flights.is_empty()
    }

    /// One look at everything.
    fn turn(&mut self) -> Result<(), Ended> {
        if self.may_pause() {
            self.pause()?;
        }
        self.grace.set_earned(self.gate.is_grace_earned());
        self.grace.look(self.gate.grant(), self.link.exchanged_ns());
        self.take_commands()?;
        self.start_ready();
        let driven = self.drive();
        if self.session.device().is_stuck() {
            return Err(Ended::Stuck);
        }
        if self.start_ready() {
            // What `drive` said is about less than what is in flight now.
            return Ok(());
        }
        self.report_demand();
        self.report_pinned();
        if self.refused == Some(WaitFor::Grant) && self.gate.is_holder() {
            // The grant came after the refusal: it is no news any more.
            return Ok(());
        }
        if self.side.has_command() && self.held.is_empty() {
            return Ok(());
        }
        if self.must_load() && self.flights.is_empty() {
            return Ok(());
        }
        match driven {
            Driven::Busy => {
                self.tell_due(None);
            }
            Driven::Idle => self.rest(None),
            Driven::WaitUntil(due_ns) => self.rest(Some(due_ns)),
        }
        Ok(())
    }

    // Commands.

    fn take_commands(&mut self) -> Result<(), Ended> {
        self.offer_held()?;
        if !self.may_hold() {
            return Ok(());
        }
        for _ in 0..BATCH {
            if self.held.len() >= HELD_MAX {
                break;
            }
            let Some(record) = self.side.take().map_err(Ended::Lanes)? else { break };
            let (len, answer) = (record.bytes.len(), record.answer);
            // `next` gives at most `MAX_COMMAND` bytes.
            self.buffer[..len].copy_from_slice(record.bytes);
            let buffer = *self.buffer;
            self.offer(&buffer[..len], answer)?;
            if self.flights.is_empty() && self.refused.is_none() && self.session.has_ready_work() {
                // An idle device does not wait for the commands behind this one.
                self.start_ready();
            }
        }
        Ok(())
    }

    fn offer(&mut self, bytes: &[u8], answer: Option<AnswerTo>) -> Result<(), Ended> {
        let command = Command::decode(bytes)?;
        let loads = matches!(command, Command::ModuleLoad { .. });
        let waits_its_turn = !self.held.is_empty() && !Session::<D>::is_urgent(&command);
        let waits_for_flights = loads && (!self.flights.is_empty() || self.is_to_pause());
        if waits_its_turn || waits_for_flights || self.accept(&command, answer)? == Accepted::Full {
            let bytes = bytes.to_vec();
            self.held.push_back(Held { bytes, answer, loads, waits_since_ns: None });
        }
        Ok(())
    }

    /// Whether the host has room for what is held back.
    fn may_hold(&mut self) -> bool {
        let bytes = u64::try_from(self.held.len()).unwrap_or(u64::MAX).saturating_mul(HELD_BYTES);
        let mut output = self.answers.output(&self.side);
        self.session.keep_beside(bytes, &mut output).is_ok()
    }

    fn offer_held(&mut self) -> Result<(), Ended> {
        while let Some(mut held) = self.held.pop_front() {
            let now_ns = self.session.device().now_ns();
            let waits = match self.flights.is_empty() {
                // Others have waited for it to stand still.
                true => held.loads && self.is_to_pause(),
                false => held.waits_on(now_ns, self.gate.is_alone()),
            };
            if waits {
                self.held.push_front(held);
                break;
            }
            let command = Command::decode(&held.bytes)?;
            if self.accept(&command, held.answer)? == Accepted::Full {
                self.held.push_front(held);
                break;
            }
        }
        Ok(())
    }

    /// Whether the next command compiles. It does so when nothing of the session flies any more and
    /// its turn is given back, and nothing new starts before it.
    fn must_load(&self) -> bool {
        self.held.front().is_some_and(|held| held.loads)
    }

    fn accept(
        &mut self,
        command: &Command<'_>,
        answer: Option<AnswerTo>,
    ) -> Result<Accepted, Ended> {
        if let Command::PinnedQuota { bytes } = command
            && !self.may_pin(self.session.pinned_bytes_if(*bytes))
        {
            if let Some(answer) = answer {
                self.answers.refuse(&self.side, answer, weft_wire::Status::OUT_OF_MEMORY);
            }
            return Ok(Accepted::Taken);
        }
        let began_ns = self.session.device().now_ns();
        let compiles_since_ns = self.begin_load(command);
        let for_device = !Session::<D>::is_urgent(command);
        let caller = answer.map(|answer| self.answers.expect(answer, for_device));
        let mut output = self.answers.output(&self.side);
        let accepted = self.session.accept(command, caller, &mut output)?;
        if let Some(since_ns) = compiles_since_ns {
            let took_ns = Some(thread_cpu_ns().saturating_sub(since_ns));
            let _ = self.link.ask(&Ask::Loaded { took_ns });
        }
        if matches!(command, Command::ModuleLoad { .. }) {
            // What it took counts, and no longer what it might have. A daemon that does not answer
            // has died; the next one measures.
            let _ = self.link.ask(&Ask::Images { bytes: 0, stands: false });
        }
        if accepted == Accepted::Full {
            self.answers.forget(caller);
        }
        // Who has the answer already did not wait for a result.
        if caller.is_some_and(|caller| self.answers.waits_for_result(caller)) {
            self.gate.count_sync_call();
        }
        self.charge_host_work(began_ns);
        self.settle();
        Ok(accepted)
    }

    /// What a command that compiles does first: it gives a turn back in which nothing flies, and
    /// asks when it may. Its processor time then. Where a turn is kept, compiling goes at the usual
    /// priority: others wait for its end.
    fn begin_load(&mut self, command: &Command<'_>) -> Option<u64> {
        let Command::ModuleLoad { images, .. } = command else { return None };
        if self.compiles != CompilingConfig::InTurn {
            self.give_way();
        }
        let bytes = images.iter().fold(0_u64, |sum, image| sum.saturating_add(image.bytes));
        let stands = self.flights.is_empty();
        let has_room = self.ask_saving(&Ask::Images { bytes, stands }) == Some(Reply::Done);
        self.session.set_module_room(has_room);
        // What has no room is refused and compiles nothing.
        let is_bounded = self.compiles == CompilingConfig::Bounded;
        if !has_room || !is_bounded || self.gate.is_holder() {
            return None;
        }
        let leave = self.ask_saving(&Ask::Load { bytes: Some(bytes), stands });
        if leave == Some(Reply::Exhausted) {
            // It may have leave, and could not give what others need before.
            self.session.set_module_room(false);
            let _ = self.link.ask(&Ask::Loaded { took_ns: None });
            return None;
        }
        // A daemon that does not answer has died: then nobody compiles in its order.
        Some(thread_cpu_ns())
    }

    /// Charges a turn for long work of the host that began at `began_ns` of the device's clock:
    /// what flies does not get ahead meanwhile, and nobody else gets the device. Where nothing
    /// flies, the time counts as idle already.
    fn charge_host_work(&mut self, began_ns: u64) {
        let took_ns = self.session.device().now_ns().saturating_sub(began_ns);
        if took_ns >= HOST_WORK_NS && !self.flights.is_empty() && self.gate.is_holder() {
            self.gate.charge_idle(took_ns);
        }
    }

    /// Gives a turn back in which nothing flies, and asks for none: a driver compiles for seconds,
    /// and meanwhile nobody here sees a grant or a revocation.
    pub(super) fn give_way(&mut self) {
        if self.flights.is_empty() {
            // A grant that has come meanwhile is given back, too.
            self.gate.is_holder();
            let idled_ns = self.grace.give_up(self.session.device().now_ns());
            self.charge_idle(idled_ns);
            self.gate.release_idle();
        }
    }

    /// Gives much memory back to the system, when nothing flies and without the turn: others would
    /// wait for that. Not for ever: what flies may wait for what the program does after it.
    fn release_memory(&mut self) {
        if !self.session.has_long_release() {
            self.releases_since_ns = None;
            return;
        }
        let now_ns = self.session.device().now_ns();
        let since_ns = *self.releases_since_ns.get_or_insert(now_ns);
        if self.flights.is_empty() || now_ns.saturating_sub(since_ns) >= RELEASE_WAITS_NS {
            self.give_way();
            let mut output = self.answers.output(&self.side);
            self.session.release_memory(&mut output);
            self.charge_host_work(now_ns);
            self.settle();
        }
    }

    fn may_pin(&mut self, bytes: u64) -> bool {
        let may = self.link.ask(&Ask::Pinned { bytes }) == Ok(Reply::Done);
        if may {
            self.pinned_told = bytes;
        }
        may
    }

    /// Tells the daemon when work has ended that kept pinned memory which was given back.
    fn report_pinned(&mut self) {
        let bytes = self.session.pinned_bytes();
        if bytes < self.pinned_told {
            // A daemon that does not answer has died; the next one is told what is pinned then.
            let _told = self.may_pin(bytes);
            self.pinned_told = bytes;
        }
    }

    // The device.

    /// Starts what may start: the session's order, the gate's permission. Whether anything did.
    fn start_ready(&mut self) -> bool {
        self.release_memory();
        (self.refused, self.room_at_ns) = (None, None);
        let capabilities = self.session.device().info().capabilities;
        let mut any = false;
        while !self.must_load()
            && !self.is_to_pause()
            && let Some(ready) = self.session.next_op()
        {
            let known =
                ready.estimate_ns.or_else(|| self.predictor.predict(ready.key, ready.units));
            let length = match (ready.estimate_ns, known) {
                (Some(_), _) => Length::Told,
                (None, Some(_)) => Length::Predicted,
                (None, None) => Length::Guessed,
            };
            let estimate_ns = known.unwrap_or_else(|| self.predictor.guess(ready.key, ready.units));
            if !self.may_join(length, estimate_ns) {
                break;
            }
            self.resume();
            self.gate.set_runnable(estimate_ns);
            let operation = operation(&ready);
            if self.must_leave_room(&operation, estimate_ns) {
                break;
            }
            let left_ns = match self.gate.admit(estimate_ns) {
                Admission::Admitted { left_ns } => left_ns,
                Admission::Wait(what) => {
                    self.forget_launch();
                    self.refused = Some(what);
                    break;
                }
            };
            let stops = capabilities.cancel;
            let limit = self.pieces.limit(&operation, known, estimate_ns, left_ns, stops);
            let whole_ns = estimate_ns;
            let estimate_ns = whole_ns.min(limit.expected_ns);
            self.gate.shorten(whole_ns - estimate_ns);
            if self.flights.must_close(estimate_ns) {
                self.tell_open();
            }
            let began_ns = self.session.device().now_ns();
            let mut output = self.answers.output(&self.side);
            let is_predicted = capabilities.runs_ahead && length == Length::Predicted;
            let opens = is_predicted && self.flights.may_stay_open(estimate_ns);
            match self.session.start_next(limit.cut.map(cut), opens, &mut output) {
                started @ (Started::Flying | Started::Open) => {
                    let now_ns = self.session.device().now_ns();
                    if limit.cut.is_some() {
                        self.piece_start_ns = now_ns.saturating_sub(began_ns);
                    }
                    if self.flights.is_empty() {
                        self.set_front(now_ns);
                    }
                    let (is_guess, is_open) = (known.is_none(), started == Started::Open);
                    self.flights.started(Flight { estimate_ns, is_guess, is_open });
                    any = true;
                }
                Started::Dropped => self.gate.charge(estimate_ns, 0),
                Started::NotNow => {
                    self.gate.charge(estimate_ns, 0);
                    self.come_later();
                    break;
                }
            }
            self.settle();
        }
        self.tell_open();
        self.try_release();
        any
    }

    /// Nothing follows at once what is open: what passes from here on would be charged with it.
    fn tell_open(&mut self) {
        if self.flights.close() {
            self.session.device_mut().close();
        }
    }

    /// Whether an operation may start beside what flies.
    fn may_join(&mut self, length: Length, estimate_ns: u64) -> bool {
        let (is_alone, flies_ns) = (self.gate.is_alone(), self.gate.in_flight_ns());
        let depth = match self.session.device().info().capabilities.runs_ahead {
            true => self.flights.depth(is_alone, flies_ns, estimate_ns),
            false => 1,
        };
        self.gate.may_join(self.flights.len(), self.flights.is_guess(), length, depth)
    }

    /// Whether an operation does not start yet, so that a request that goes first waits for no more
    /// than a slice of what flies.
    fn must_leave_room(&mut self, operation: &Operation, estimate_ns: u64) -> bool {
        if self.flights.is_empty() {
            return false;
        }
        let ran_ns = self.front_ran_ns();
        let least_ns = self.pieces.least_ns(operation, estimate_ns);
        let room_in_ns = self.gate.room_in_ns(least_ns, ran_ns);
        if room_in_ns > 0 {
            self.refused = Some(WaitFor::Completion);
            self.room_at_ns = Some(self.session.device().now_ns().saturating_add(room_in_ns));
        }
        room_in_ns > 0
    }

    fn set_front(&mut self, since_ns: u64) {
        self.front_since_ns = since_ns;
        self.gate.page().set_front(since_ns);
    }

    fn drive(&mut self) -> Driven {
        let mut output = self.answers.output(&self.side);
        let driven = self.session.drive(SLICE_NS, &mut output);
        self.settle();
        self.try_release();
        driven
    }

    /// Gives a turn back that is over. What the gate then shows as used reaches to this moment.
    fn try_release(&mut self) {
        let rest_ns = self.rest_ns();
        if !self.gate.is_holder() || self.gate.release_in_ns(rest_ns) != Some(0) {
            return;
        }
        // It was this turn's time: told in the next one, it would be nobody's loss.
        let idled_ns = self.grace.end(self.session.device().now_ns());
        if self.charge_idle(idled_ns) {
            self.gate.release_idle();
        } else if !self.gate.try_release(rest_ns) {
            return;
        }
        self.forget_launch();
        self.gate.page().set_front(self.session.device().now_ns());
    }

    /// The device is not kept for what would start next.
    fn forget_launch(&mut self) {
        if self.flights.is_empty() {
            self.session.device_mut().launches_since(None);
        }
    }

    /// Charges what has ended.
    fn settle(&mut self) {
        let all = self.answers.take_finished();
        let told = all.iter().map(|finished| Landed::told(finished.device_ns(), finished.partial));
        let mut landed: Vec<Landed> = told.collect();
        self.flights.land(&mut landed);
        for (finished, landed) in all.into_iter().zip(landed) {
            let Landed { estimate_ns, took_ns: ns, .. } = landed;
            let charge_ns = self.meter.charge_ns(finished.key, finished.units, ns);
            self.gate.charge(estimate_ns, charge_ns);
            self.grace.worked(ns);
            self.predictor.learn(finished.key, finished.units, ns);
            if finished.partial {
                self.gate.page().count_piece();
                let late_ns = self.session.device().now_ns().saturating_sub(finished.end_ns);
                self.pieces.learn(self.piece_start_ns.saturating_add(late_ns));
            }
            self.set_front(finished.end_ns);
            if self.flights.is_empty() {
                // The device is kept for what is ready: what its launch takes is not everybody's.
                let is_kept = self.session.has_ready_work();
                let since_ns = is_kept.then_some(finished.end_ns);
                self.session.device_mut().launches_since(since_ns);
            }
        }
    }

    /// What the oldest operation in flight has run of its estimate, in ns.
    fn front_ran_ns(&self) -> u64 {
        let Some(front_ns) = self.flights.front_ns() else { return 0 };
        self.session.device().now_ns().saturating_sub(self.front_since_ns).min(front_ns)
    }

    /// Device time still to run of what is in flight, as far as it is known.
    fn backlog_ns(&self) -> u64 {
        self.gate.in_flight_ns().saturating_sub(self.front_ran_ns())
    }

    /// The same for giving the turn back: nobody knows the rest of an operation that has outlived
    /// its estimate, nor of one that was guessed, and a successor could only queue behind it. Where
    /// the device switches between contexts by itself it would not even queue.
    fn rest_ns(&self) -> u64 {
        let is_preemptive = self.session.device().info().capabilities.preemptive;
        if self.flights.is_guess() || (is_preemptive && !self.flights.is_empty()) {
            return u64::MAX;
        }
        let ran_ns = self.session.device().now_ns().saturating_sub(self.front_since_ns);
        let outlived = self.flights.front_ns().is_some_and(|ns| is_surprise(ran_ns, ns));
        if outlived { u64::MAX } else { self.backlog_ns() }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.flights.is_empty() || self.session.has_ready_work()
    }

    // Idleness.

    /// Tells the gate when there is no work: at once, or after the grace when a turn would be lost
    /// by it.
    fn report_demand(&mut self) {
        if self.has_work() {
            return;
        }
        let settled_ns = self.meter.settle();
        if settled_ns > 0 {
            self.gate.charge(0, settled_ns);
        }
        let Some(grant) = self.turn_grant() else {
            self.grace.forget();
            self.gate.set_idle();
            return;
        };
        let (now_ns, is_revoked) = (self.session.device().now_ns(), self.gate.is_revoked());
        if let Pause::Ends { idled_ns } = self.grace.pause(now_ns, grant.budget_ns, is_revoked) {
            self.gate.charge_idle(idled_ns);
            self.gate.release_idle();
        }
    }

    /// The grant of the turn that the session has, if it has one.
    fn turn_grant(&mut self) -> Option<Grant> {
        let grant = self.gate.is_holder().then(|| self.gate.grant()).flatten();
        grant.filter(|grant| grant.kind == GrantKind::Turn)
    }

    /// There is work: a pause is over, if there was one.
    fn resume(&mut self) {
        if self.grace.is_pausing() {
            let idled_ns = self.grace.resume(self.session.device().now_ns());
            self.charge_idle(idled_ns);
        }
    }

    /// Tells an idle time that is over; whether there was one.
    fn charge_idle(&mut self, idled_ns: Option<u64>) -> bool {
        if let Some(idled_ns) = idled_ns {
            self.gate.charge_idle(idled_ns);
        }
        idled_ns.is_some()
    }

    /// Waits for news, but not past `due_ns` on the device's clock, when a completion is due.
    fn rest(&mut self, due_ns: Option<u64>) {
        let now_ns = self.session.device().now_ns();
        let until_ns = [due_ns, self.session.deadline_ns(), self.room_at_ns];
        let mut until_ns = until_ns.into_iter().flatten().min();
        let mut yields_at_ns = None;
        if self.grace.is_idle() {
            let budget_ns = self.turn_grant().map_or(0, |grant| grant.budget_ns);
            yields_at_ns = self.grace.until_ns(budget_ns);
        }
        until_ns = until_ns.into_iter().chain(yields_at_ns).min();
        let mut announce_ns = None;
        if let Some(left_ns) = self.tell_due(due_ns).filter(|_| due_ns.is_some()) {
            if left_ns > 0 {
                until_ns = until_ns.map(|until_ns| until_ns.min(now_ns + left_ns));
            } else {
                // A boosted thread runs as soon as it is woken, so it is woken much later.
                let boosts = self.gate.page().is_told();
                let lead_ns = if boosts { ANNOUNCE_BOOSTED_NS } else { ANNOUNCE_NS };
                announce_ns = due_ns.map(|due_ns| due_ns.saturating_sub(lead_ns));
            }
        }
        let Some(until_ns) = until_ns else { return self.sleep(None) };
        match until_ns.saturating_sub(now_ns) {
            0 => {}
            // Its program may have been woken on this very processor, where wake-ups come to, and
            // has it only if it is free: polling, this thread would go before it until its turn is
            // given up for want of work.
            left_ns if Some(until_ns) == yields_at_ns => {
                let oversleep_ns = OVERSLEEP_NS.min(left_ns / 2);
                self.sleep_at_once(Some(Duration::from_nanos(left_ns - oversleep_ns)));
            }
            left_ns if left_ns <= POLL_NS => {
                self.poll(until_ns, announce_ns);
                if due_ns == Some(until_ns) {
                    // Before anything else: somebody may wait for nothing but this completion.
                    self.drive();
                }
            }
            left_ns => self.sleep(Some(Duration::from_nanos(left_ns - OVERSLEEP_NS))),
        }
    }

    /// Shows the daemon whose result is due first, if anybody waits for one; returns how long until
    /// it comes soon, in ns: the moment to wake its caller, or to have it woken. The oldest flight
    /// ends at `due_ns`, if the device knows: it may stand behind another tenant's work.
    fn tell_due(&mut self, due_ns: Option<u64>) -> Option<u64> {
        let Some(awaited) = self.answers.first_waiting() else {
            self.gate.page().set_due(None);
            return None;
        };
        let lead_ns = if self.gate.page().is_told() { DUE_SOON_NS } else { ANNOUNCE_NS };
        let behind_ns =
            self.gate.in_flight_ns().saturating_sub(self.flights.front_ns().unwrap_or(0));
        let end_ns = due_ns.map_or(0, |due_ns| due_ns.saturating_add(behind_ns));
        let known_ns = end_ns.saturating_sub(self.session.device().now_ns());
        let left_ns = self.backlog_ns().max(known_ns).saturating_sub(lead_ns);
        let soon = left_ns == 0 && !self.flights.is_empty();
        self.gate.page().set_due(Some(Due { awaited, soon }));
        Some(left_ns)
    }

    /// Polls until `until_ns` on the device's clock or for news. The clock is read each time round:
    /// a completion that is noticed late delays everything after it.
    fn poll(&self, until_ns: u64, announce_ns: Option<u64>) {
        while !self.has_news() {
            let now_ns = self.session.device().now_ns();
            if now_ns >= until_ns {
                return;
            }
            if announce_ns.is_some_and(|at_ns| now_ns >= at_ns) {
                // A caller that polls now may fall asleep before its answer comes.
                self.answers.announce(&self.side);
            }
            std::hint::spin_loop();
        }
    }

    fn sleep(&self, limit: Option<Duration>) {
        // Only a holder, its successor, or who has just answered a call polls before it sleeps.
        let has_turn = self.gate.grant().is_some() || self.gate.is_unmanaged();
        let waits_for_grant = self.session.has_ready_work() && self.gate.grant().is_none();
        // And nobody where somebody else executes.
        if !has_turn && self.session.device().executes_here() {
            return self.sleep_at_once(limit);
        }
        let other = || self.has_other_news().then_some(());
        // A timeout is news like any other.
        let _: Result<_, _> = if self.gate.is_prepared() {
            self.side.wait_making_way(self.gate.spin(), limit, other)
        } else {
            let spin = self.side.spin(self.ring_wait);
            self.side.wait(if waits_for_grant { Duration::ZERO } else { spin }, limit, other)
        };
    }

    /// Sleeps without polling before.
    fn sleep_at_once(&self, limit: Option<Duration>) {
        let other = || self.has_other_news().then_some(());
        // A timeout is news like any other.
        let _: Result<_, _> = self.side.wait(Duration::ZERO, limit, other);
    }

    /// Whether the session is to stand still, and nothing flies any more.
    fn may_pause(&self) -> bool {
        self.is_to_pause() && self.flights.is_empty()
    }

    fn has_news(&self) -> bool {
        self.side.has_command() || self.has_other_news()
    }

    fn has_other_news(&self) -> bool {
        self.gate.has_news() || self.link.is_over() || self.may_pause()
    }
}

/// What is to be cut, without what it is.
fn operation(ready: &Ready) -> Operation {
    let size = match ready.work {
        Work::Kernel => Size::Blocks(ready.units),
        Work::Copy | Work::Fill => Size::Bytes(ready.units),
    };
    let Ready { estimate_ns, sliceable, wave, .. } = *ready;
    Operation { size, estimate_ns, sliceable, wave }
}

fn cut(at: weft_turn::Cut) -> weft_exec::Cut {
    weft_exec::Cut { after_ns: at.after_ns, after_bytes: at.after_bytes }
}
