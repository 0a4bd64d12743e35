//! The worker's event loop: lanes → session → gate → device → answers.
//!
//! One thread, no blocked waits: a command that waits for something is an entry in the session.
//! While the worker holds the device it polls; otherwise it sleeps on its segment's doorbell, which
//! the tenant, the daemon and the watcher ring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_device::{Device, Driven};
use weft_exec::{Accepted, Session, Started, Violation};
use weft_gate::{Admission, Due, GateWorker, GrantKind, WaitFor};
use weft_ring::{AnswerTo, MAX_COMMAND, WorkerSide};
use weft_wire::Command;

use super::link::Link;
use super::meter::Meter;
use super::output::Answers;
use super::pieces::Pieces;
use super::predict::Predictor;
use crate::link::{Ask, Reply, Times};

/// The device is driven for at most this long between two looks at the lanes.
const SLICE_NS: u64 = 500_000;

/// Commands taken in a row before the device is looked at again.
const BATCH: usize = 64;

/// Commands held back while a stream is full, so that an urgent one can pass.
const HELD_MAX: usize = 65_536;

/// Waiting callers are woken this long before their answer comes, the cost of a wake.
const ANNOUNCE_NS: u64 = 70_000;

/// The daemon hears of a result this long before it comes, when it wants to: what it takes to wake
/// the daemon and to boost a thread, with some room.
const DUE_SOON_NS: u64 = 200_000;

/// A wait of less than this is polled: a sleep would take as long.
const POLL_NS: u64 = 150_000;

/// A sleep ends this long before what it waits for: sleeps on a virtual machine end late by about
/// half of it.
const OVERSLEEP_NS: u64 = 100_000;

/// An operation that outlives its estimate by more than this is a surprise, not a variation.
const SURPRISE_NS: u64 = 500_000;

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
    /// A command was no command.
    #[error("the tenant sent no command: {0}")]
    Command(#[from] weft_wire::codec::DecodeError),
}

/// Everything the loop works on.
#[derive(Debug)]
pub(crate) struct EventLoop<D> {
    session: Session<D>,
    side: WorkerSide,
    gate: GateWorker,
    link: Arc<Link>,
    answers: Answers,
    predictor: Predictor,
    meter: Meter,
    pieces: Pieces,
    /// How long it took to start the last piece of a kernel, in ns.
    piece_start_ns: u64,
    /// Estimates of the operations in flight, in the order of starting.
    flights: VecDeque<u64>,
    /// What flies is an operation of which nothing was known.
    guess_flies: bool,
    /// Commands that did not fit their stream, in order.
    held: VecDeque<(Vec<u8>, Option<AnswerTo>)>,
    buffer: Box<[u8; MAX_COMMAND]>,
    /// What the last operation that was not admitted waits for.
    refused: Option<WaitFor>,
    /// Device clock when the oldest flight became the oldest.
    front_since_ns: u64,
    /// Device clock when the holder ran out of work.
    idle_since_ns: Option<u64>,
    yield_ns: u64,
    ring_wait: Duration,
}

impl<D: Device> EventLoop<D> {
    /// A loop of one session.
    pub(crate) fn new(
        session: Session<D>,
        side: WorkerSide,
        gate: GateWorker,
        link: Arc<Link>,
        times: &Times,
    ) -> Self {
        Self {
            session,
            side,
            gate,
            link,
            answers: Answers::default(),
            predictor: Predictor::default(),
            meter: Meter::new(times.accounting),
            pieces: Pieces::new(times.slicing),
            piece_start_ns: 0,
            flights: VecDeque::new(),
            guess_flies: false,
            held: VecDeque::new(),
            buffer: Box::new([0; MAX_COMMAND]),
            refused: None,
            front_since_ns: 0,
            idle_since_ns: None,
            yield_ns: times.yield_us * 1000,
            ring_wait: Duration::from_micros(times.ring_wait_us),
        }
    }

    /// Device time that the session has used.
    pub(crate) fn used_ns(&self) -> u64 {
        self.gate.used_ns()
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
        if self.refused == Some(WaitFor::Grant) && self.gate.is_holder() {
            // The grant came after the refusal: it is no news any more.
            return Ok(());
        }
        if self.side.has_command() && self.held.is_empty() {
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
        let waits_its_turn = !self.held.is_empty() && !Session::<D>::is_urgent(&command);
        if waits_its_turn || self.accept(&command, answer)? == Accepted::Full {
            self.held.push_back((bytes.to_vec(), answer));
        }
        Ok(())
    }

    fn offer_held(&mut self) -> Result<(), Ended> {
        while let Some((bytes, answer)) = self.held.pop_front() {
            let command = Command::decode(&bytes)?;
            if self.accept(&command, answer)? == Accepted::Full {
                self.held.push_front((bytes, answer));
                break;
            }
        }
        Ok(())
    }

    fn accept(
        &mut self,
        command: &Command<'_>,
        answer: Option<AnswerTo>,
    ) -> Result<Accepted, Ended> {
        if let Command::PinnedQuota { bytes } = command
            && !self.may_pin(*bytes)
        {
            if let Some(answer) = answer {
                self.answers.refuse(&self.side, answer, weft_wire::Status::OUT_OF_MEMORY);
            }
            return Ok(Accepted::Taken);
        }
        if matches!(command, Command::ModuleLoad { .. }) {
            self.give_way();
        }
        let for_device = !Session::<D>::is_urgent(command);
        let caller = answer.map(|answer| self.answers.expect(answer, for_device));
        let mut output = self.answers.output(&self.side);
        let accepted = self.session.accept(command, caller, &mut output)?;
        if accepted == Accepted::Full {
            self.answers.forget(caller);
        }
        // Who has the answer already did not wait for a result.
        if caller.is_some_and(|caller| self.answers.waits_for_result(caller)) {
            self.gate.count_sync_call();
        }
        self.settle();
        Ok(accepted)
    }

    /// Gives a turn back in which nothing flies: a driver compiles for seconds, and meanwhile
    /// nobody here sees a revocation.
    fn give_way(&mut self) {
        if self.flights.is_empty() && self.gate.is_holder() {
            self.end_idling();
            self.gate.set_idle();
            self.gate.release();
        }
    }

    fn may_pin(&self, bytes: u64) -> bool {
        self.link.ask(&Ask::Pinned { bytes }) == Ok(Reply::Done)
    }

    // The device.

    /// Starts what may start: the session's order, the gate's permission. Whether anything did.
    fn start_ready(&mut self) -> bool {
        self.refused = None;
        let mut any = false;
        while let Some(ready) = self.session.next_op() {
            let known =
                ready.estimate_ns.or_else(|| self.predictor.predict(ready.key, ready.units));
            if self.guess_flies || (known.is_none() && !self.flights.is_empty()) {
                // An unknown operation executes alone: a budget full of guesses would let the turn
                // last as long as they really take.
                break;
            }
            let estimate_ns = known.unwrap_or_else(|| self.predictor.guess(ready.key, ready.units));
            self.end_idling();
            self.gate.set_runnable(estimate_ns);
            let left_ns = match self.gate.admit(estimate_ns) {
                Admission::Admitted { left_ns } => left_ns,
                Admission::Wait(what) => {
                    self.refused = Some(what);
                    break;
                }
            };
            let cut_ns = self.pieces.cut_ns(&ready, known, left_ns);
            let whole_ns = estimate_ns;
            let estimate_ns = cut_ns.map_or(whole_ns, |cut_ns| whole_ns.min(cut_ns));
            self.gate.shorten(whole_ns - estimate_ns);
            let began_ns = self.session.device().now_ns();
            let mut output = self.answers.output(&self.side);
            match self.session.start_next(cut_ns, &mut output) {
                Started::Flying => {
                    if cut_ns.is_some() {
                        let now_ns = self.session.device().now_ns();
                        self.piece_start_ns = now_ns.saturating_sub(began_ns);
                    }
                    if self.flights.is_empty() {
                        self.front_since_ns = self.session.device().now_ns();
                    }
                    self.flights.push_back(estimate_ns);
                    self.guess_flies = known.is_none();
                    any = true;
                }
                Started::Dropped => self.gate.charge(estimate_ns, 0),
                Started::NotNow => {
                    self.gate.charge(estimate_ns, 0);
                    break;
                }
            }
            self.settle();
        }
        self.gate.try_release(self.rest_ns());
        any
    }

    fn drive(&mut self) -> Driven {
        let mut output = self.answers.output(&self.side);
        let driven = self.session.drive(SLICE_NS, &mut output);
        self.settle();
        self.gate.try_release(self.rest_ns());
        driven
    }

    /// Charges what has ended.
    fn settle(&mut self) {
        for finished in self.answers.take_finished() {
            let ns = finished.device_ns();
            let estimate_ns = self.flights.pop_front().unwrap_or(0);
            self.guess_flies &= !self.flights.is_empty();
            let charge_ns = self.meter.charge_ns(finished.key, finished.units, ns);
            self.gate.charge(estimate_ns, charge_ns);
            self.predictor.learn(finished.key, finished.units, ns);
            if finished.partial {
                self.gate.count_piece();
                let late_ns = self.session.device().now_ns().saturating_sub(finished.end_ns);
                self.pieces.learn(self.piece_start_ns.saturating_add(late_ns));
            }
            self.front_since_ns = finished.end_ns;
        }
    }

    /// Device time still to run of what is in flight, as far as it is known.
    fn backlog_ns(&self) -> u64 {
        let Some(front_ns) = self.flights.front() else { return 0 };
        let ran_ns = self.session.device().now_ns().saturating_sub(self.front_since_ns);
        self.gate.in_flight_ns().saturating_sub(ran_ns.min(*front_ns))
    }

    /// The same for giving the turn back: nobody knows the rest of an operation that has outlived
    /// its estimate, nor of one that was guessed, and a successor could only queue behind it.
    fn rest_ns(&self) -> u64 {
        if self.guess_flies {
            return u64::MAX;
        }
        let outlived_ns =
            self.flights.front().map_or(u64::MAX, |ns| ns.saturating_add(SURPRISE_NS));
        let ran_ns = self.session.device().now_ns().saturating_sub(self.front_since_ns);
        if ran_ns > outlived_ns { u64::MAX } else { self.backlog_ns() }
    }

    fn has_work(&self) -> bool {
        !self.flights.is_empty() || self.session.has_ready_work()
    }

    // Idleness.

    /// Tells the gate when there is no work: at once, or after the yield time when a turn would be
    /// lost by it.
    fn report_demand(&mut self) {
        if self.has_work() {
            return;
        }
        let settled_ns = self.meter.settle();
        if settled_ns > 0 {
            self.gate.charge(0, settled_ns);
        }
        let is_turn = self.gate.is_holder()
            && self.gate.grant().is_some_and(|grant| grant.kind == GrantKind::Turn);
        if !is_turn {
            self.idle_since_ns = None;
            self.gate.set_idle();
            return;
        }
        let now_ns = self.session.device().now_ns();
        let since_ns = *self.idle_since_ns.get_or_insert(now_ns);
        let waits_ns = now_ns.saturating_sub(since_ns);
        if waits_ns >= self.yield_ns || self.gate.is_revoked() {
            self.end_idling();
            self.gate.set_idle();
            // The demand may have been idle before the turn came.
            self.gate.release();
        }
    }

    fn end_idling(&mut self) {
        if let Some(since_ns) = self.idle_since_ns.take() {
            let now_ns = self.session.device().now_ns();
            self.gate.charge_idle(now_ns.saturating_sub(since_ns));
        }
    }

    /// Waits for news, but not past `due_ns` on the device's clock, when a completion is due.
    fn rest(&mut self, due_ns: Option<u64>) {
        let now_ns = self.session.device().now_ns();
        let mut until_ns = [due_ns, self.session.deadline_ns()].into_iter().flatten().min();
        if let Some(since_ns) = self.idle_since_ns {
            let yield_at_ns = since_ns + self.yield_ns;
            until_ns = Some(until_ns.map_or(yield_at_ns, |until_ns| until_ns.min(yield_at_ns)));
        }
        let mut announcing = false;
        if let Some(left_ns) = self.tell_due(due_ns).filter(|_| due_ns.is_some()) {
            if left_ns > 0 {
                until_ns = until_ns.map(|until_ns| until_ns.min(now_ns + left_ns));
            }
            announcing = left_ns == 0 && !self.gate.is_coscheduled();
        }
        let Some(until_ns) = until_ns else { return self.sleep(None) };
        match until_ns.saturating_sub(now_ns) {
            0 => {}
            left_ns if left_ns <= POLL_NS => {
                self.poll(until_ns, announcing);
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
            self.gate.set_due(None);
            return None;
        };
        let lead_ns = if self.gate.is_coscheduled() { DUE_SOON_NS } else { ANNOUNCE_NS };
        let behind_ns =
            self.gate.in_flight_ns().saturating_sub(*self.flights.front().unwrap_or(&0));
        let end_ns = due_ns.map_or(0, |due_ns| due_ns.saturating_add(behind_ns));
        let known_ns = end_ns.saturating_sub(self.session.device().now_ns());
        let left_ns = self.backlog_ns().max(known_ns).saturating_sub(lead_ns);
        let soon = left_ns == 0 && !self.flights.is_empty();
        self.gate.set_due(Some(Due { awaited, soon }));
        Some(left_ns)
    }

    /// Polls until `until_ns` on the device's clock or for news. The clock is read each time round:
    /// a completion that is noticed late delays everything after it.
    fn poll(&self, until_ns: u64, announcing: bool) {
        while !self.has_news() && self.session.device().now_ns() < until_ns {
            if announcing {
                // A caller that polls now may fall asleep before its answer comes.
                self.answers.announce(&self.side);
            }
            std::hint::spin_loop();
        }
    }

    fn sleep(&self, limit: Option<Duration>) {
        // Only a holder, its successor, or who has just answered a call polls before it sleeps.
        let waits_for_grant = self.session.has_ready_work() && self.gate.grant().is_none();
        let spin = match (waits_for_grant, self.gate.is_prepared()) {
            (true, false) => Duration::ZERO,
            (_, true) => self.gate.spin(),
            (false, false) => self.ring_wait,
        };
        // A timeout is news like any other.
        let _: Result<_, _> = self.side.wait(spin, limit, || self.has_other_news().then_some(()));
    }

    fn has_news(&self) -> bool {
        self.side.has_command() || self.has_other_news()
    }

    fn has_other_news(&self) -> bool {
        self.gate.has_news() || self.link.is_over()
    }
}
