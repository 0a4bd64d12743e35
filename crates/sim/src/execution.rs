//! Workers and the device: gate, execute, charge, release, as the node's worker does.

use weft_turn::{ANNOUNCE_NS, Admission, Length, Operation, Pause, Size};

use crate::clock::Tick;
use crate::cpu::Doing;
use crate::device::Op;
use crate::kernel::Kernel;
use crate::preempt::Stopper;
use crate::worker::{Flight, Pending};
use crate::world::{DEVICE, World, session_key};

/// Commands in the hardware's queue of a worker whose turns are slices of wall time: one executes,
/// one waits. The paper does not say how many there were; more would widen its Figure 11.
const WALL_QUEUE: usize = 2;

impl World {
    /// A program's kernel arrives at its worker.
    pub(crate) fn arrive(&mut self, worker: usize, kernel: Kernel) {
        let costs = &self.setup.costs;
        let state = &self.workers[worker];
        let awake = state.gate.grant().is_some() || !state.flights.is_empty();
        let delay_ns = if awake { costs.worker_notice.ns } else { costs.worker_wake.ns };
        let had_work = state.has_work();
        let state = &mut self.workers[worker];
        state.submitted += 1;
        state.pending.push_back(Pending::new(kernel));
        self.note_work(worker, had_work);
        self.poke(worker, delay_ns);
    }

    /// A worker looks around after a delay, or earlier if something else wakes it.
    pub(crate) fn poke(&mut self, worker: usize, delay_ns: u64) {
        let at_ns = self.clock.now_ns + delay_ns;
        let poke_ns = &mut self.workers[worker].poke_ns;
        if poke_ns.is_none_or(|earlier_ns| at_ns < earlier_ns) {
            *poke_ns = Some(at_ns);
            self.clock.at(at_ns, Tick::Worker { worker });
        }
    }

    /// One look at everything.
    pub(crate) fn run_worker(&mut self, worker: usize) {
        if !self.workers[worker].alive {
            return;
        }
        self.prolong(worker);
        self.start_ready(worker);
        if self.stop_if_due(worker) {
            // What it estimated was wrong if there is any of the turn left.
            self.start_ready(worker);
        }
        self.release_if_over(worker);
        self.report_demand(worker);
        self.announce();
    }

    fn start_ready(&mut self, worker: usize) {
        loop {
            let state = &mut self.workers[worker];
            let depth =
                if state.gate.page().is_by_wall() { WALL_QUEUE } else { self.setup.hardware_queue };
            if state.flights.len() >= depth {
                return;
            }
            let Some(pending) = state.head() else { return };
            let (estimate_ns, known) = state.estimate(&pending);
            let back = state.flights.back();
            let length = match (known, self.setup.tells_lengths) {
                (false, _) => Length::Guessed,
                (true, false) => Length::Predicted,
                (true, true) => Length::Told,
            };
            let is_guess = back.is_some_and(|flight| flight.guessed);
            let flies_ns = state.gate.in_flight_ns();
            let flying = state.flights.len();
            let depth = match self.setup.runs_ahead {
                true => state.ahead.depth(state.gate.is_alone(), flying, flies_ns, estimate_ns),
                false => 1,
            };
            if self.setup.careful
                && !state.gate.page().is_by_wall()
                && !state.gate.may_join(flying, is_guess, length, depth)
            {
                return;
            }
            if back.is_some_and(|flight| flight.outlasts) {
                return;
            }
            let estimate_ns = match self.stops() {
                // As far as anybody knows it takes the whole turn.
                Some(_) if !known => estimate_ns.max(self.config.quantum_ns),
                _ => estimate_ns,
            };
            self.resume(worker);
            self.workers[worker].gate.set_runnable(estimate_ns);
            self.hear(worker);
            let room_in_ns = self.room_in_ns(worker, &pending, estimate_ns);
            if room_in_ns > 0 {
                self.poke(worker, room_in_ns);
                return;
            }
            let Admission::Admitted { left_ns } = self.workers[worker].gate.admit(estimate_ns)
            else {
                return;
            };
            self.start(worker, pending, (estimate_ns, known), left_ns);
        }
    }

    /// In how many ns there is room for a command beside what flies, where a request may come that
    /// goes first; 0 is now.
    fn room_in_ns(&self, worker: usize, pending: &Pending, estimate_ns: u64) -> u64 {
        let state = &self.workers[worker];
        let Some(front) = state.flights.front() else { return 0 };
        let ran_ns = self.clock.now_ns.saturating_sub(state.front_since_ns).min(front.estimate_ns);
        let (size, sliceable) = (Size::Blocks(pending.blocks()), pending.kernel.sliceable);
        let operation = Operation { size, estimate_ns: None, sliceable, wave: 1 };
        let least_ns = state.pieces.least_ns(&operation, estimate_ns);
        state.gate.room_in_ns(least_ns, ran_ns)
    }

    /// Starts a command, or as much of it as the turn has room for.
    fn start(
        &mut self,
        worker: usize,
        pending: Pending,
        (estimate_ns, known): (u64, bool),
        left_ns: u64,
    ) {
        let kernel = pending.kernel;
        let rest_ns = kernel.ns - pending.done_ns;
        let stops = self.stops();
        let ns = if stops.is_some() {
            rest_ns.max(1)
        } else {
            self.cut_ns(worker, &pending, (estimate_ns, known), left_ns)
        };
        let ends_kernel = ns >= rest_ns;
        let now_ns = self.clock.now_ns;
        let state = &mut self.workers[worker];
        let (mut outlasts, mut limit_ns) = (false, u64::MAX);
        let estimate_ns = if let Some(preemption) = stops {
            let bounded = Self::bound(preemption, estimate_ns, left_ns);
            state.gate.shorten(estimate_ns.saturating_sub(bounded.estimate_ns));
            (outlasts, limit_ns) = (bounded.outlasts, bounded.limit_ns);
            bounded.estimate_ns
        } else if ends_kernel {
            estimate_ns
        } else {
            let piece_ns = if known { scaled(ns, estimate_ns, rest_ns) } else { estimate_ns };
            state.gate.shorten(estimate_ns.saturating_sub(piece_ns));
            piece_ns.min(estimate_ns)
        };
        if ends_kernel {
            state.pending.pop_front();
        } else if let Some(head) = state.pending.front_mut() {
            head.done_ns += ns;
        }
        if state.flights.is_empty() {
            state.front_since_ns = now_ns;
        }
        let (guessed, flight_ns) = (!known, ns.min(limit_ns));
        let flight = Flight { estimate_ns, ns: flight_ns, guessed, outlasts, limit_ns, pending };
        state.flights.push_back(flight);
        let vgpu = state.vgpu;
        // A turn may outlast its budget by the command that uses it up, and by what nobody foresaw.
        let unforeseen_ns = state.underestimated_ns();
        let uncut_ns = self.uncut_ns(ns);
        self.submitted(worker, uncut_ns + unforeseen_ns);
        self.enqueue(Op {
            worker,
            vgpu,
            key: kernel.key,
            ns,
            left_ns: ns,
            whole_ns: kernel.ns,
            continues: pending.done_ns > 0 && !pending.stopped,
            resumes: pending.stopped,
            ends_kernel,
        });
    }

    /// How much of a command starts where a kernel can be cut between thread blocks only.
    fn cut_ns(
        &self,
        worker: usize,
        pending: &Pending,
        (estimate_ns, known): (u64, bool),
        left_ns: u64,
    ) -> u64 {
        let rest_ns = pending.kernel.ns - pending.done_ns;
        let (size, sliceable) = (Size::Blocks(pending.blocks()), pending.kernel.sliceable);
        let operation = Operation { size, estimate_ns: None, sliceable, wave: 1 };
        let known_ns = known.then_some(estimate_ns);
        let pieces = &self.workers[worker].pieces;
        let limit = pieces.limit(&operation, known_ns, estimate_ns, left_ns, false);
        let cut_ns = match limit.cut {
            // The cut is by blocks; how many fit follows from the prediction.
            Some(cut) if known => scaled(cut.after_ns, rest_ns, estimate_ns),
            Some(cut) => cut.after_ns,
            None => rest_ns,
        };
        cut_ns.clamp(1, rest_ns.max(1))
    }

    fn enqueue(&mut self, op: Op) {
        if self.setup.preemption.is_some_and(|one| one.stopper != Stopper::Worker) {
            self.gpu.enqueue_grouped(op);
        } else {
            self.gpu.queue.push_back(op);
        }
        if self.gpu.queue.len() == 1 {
            self.observe_device();
            self.start_head();
        }
    }

    pub(crate) fn start_head(&mut self) {
        self.gpu.announce_ns = None;
        self.rotate_if_over();
        let Some(head) = self.gpu.queue.front().copied() else { return };
        let costs = &self.setup.costs;
        let changes = self.gpu.last_worker != Some(head.worker);
        let switch_ns =
            if changes && self.gpu.last_worker.is_some() { costs.device_switch.ns } else { 0 };
        let slice_ns = if head.continues { costs.slice.ns } else { 0 };
        let restore_ns = match self.setup.preemption {
            Some(preemption) if head.resumes => preemption.restore_ns,
            _ => 0,
        };
        let launch_ns = costs.launch.ns;
        self.gpu.preempting_ns += restore_ns;
        self.gpu.last_worker = Some(head.worker);
        self.gpu.started_ns = self.clock.now_ns.max(self.gpu.saved_ns)
            + launch_ns
            + switch_ns
            + slice_ns
            + restore_ns;
        self.gpu.counted_ns = self.clock.now_ns;
        self.gpu.generation += 1;
        let generation = self.gpu.generation;
        let end_ns = self.gpu.started_ns + head.left_ns;
        self.clock.at(end_ns, Tick::Device { generation });
        self.announce();
        self.arm_slice(changes);
        self.stop_if_due(head.worker);
    }

    /// The worker of what executes looks from when on it announces to its caller that the answer
    /// comes.
    pub(crate) fn announce(&mut self) {
        let at_ns = self.announces_at_ns();
        if std::mem::replace(&mut self.gpu.announce_ns, at_ns) != at_ns
            && let Some(at_ns) = at_ns
        {
            let generation = self.gpu.generation;
            self.clock.at(at_ns, Tick::Announce { generation, at_ns });
        }
    }

    /// Shortly before all that is in flight has ended, if that is before the oldest of it has.
    fn announces_at_ns(&self) -> Option<u64> {
        self.caller().filter(|_| self.setup.tells_ends)?;
        let head = self.gpu.queue.front()?;
        let state = &self.workers[head.worker];
        let flying = self.gpu.queue.iter().filter(|op| op.worker == head.worker && op.ends_kernel);
        let flies = state.waited_for? <= state.finished + flying.count() as u64;
        let end_ns = self.gpu.started_ns + head.left_ns;
        let at_ns = end_ns.saturating_add(state.behind_ns()).saturating_sub(ANNOUNCE_NS);
        (flies && at_ns < end_ns).then_some(at_ns)
    }

    pub(crate) fn announced(&mut self, generation: u64, at_ns: u64) {
        if (self.gpu.generation, self.gpu.announce_ns) == (generation, Some(at_ns))
            && let Some(vcpu) = self.caller()
        {
            self.wake_vcpu(vcpu, self.clock.now_ns);
        }
    }

    /// A caller has just fallen asleep. Its worker announces until the answer is there, and so to
    /// one that polled at first, too.
    pub(crate) fn announce_again(&mut self, vcpu: usize) {
        let now_ns = self.clock.now_ns;
        let announces = self.gpu.announce_ns.is_some_and(|at_ns| at_ns <= now_ns);
        if announces && self.caller() == Some(vcpu) {
            self.wake_vcpu(vcpu, now_ns);
        }
    }

    /// Who waits for a result of the session whose work executes. Room in a lane is no result.
    fn caller(&self) -> Option<usize> {
        let state = &self.workers[self.gpu.queue.front()?.worker];
        let vcpu = state.vcpu.filter(|_| state.waited_for.is_some())?;
        matches!(self.vcpus[vcpu].doing, Doing::Await(_)).then_some(vcpu)
    }

    pub(crate) fn device_ended(&mut self, generation: u64) {
        if generation != self.gpu.generation {
            return;
        }
        self.count_service();
        let Some(op) = self.gpu.queue.pop_front() else { return };
        self.gpu.executed += 1;
        self.observe_device();
        self.start_head();
        let now_ns = self.clock.now_ns;
        let had_work = self.workers[op.worker].has_work();
        let state = &mut self.workers[op.worker];
        let flight = state.flights.pop_front();
        let slice_ns = self.setup.costs.slice.ns;
        let charge_ns = if op.resumes {
            state.meter.charge_part_ns(op.ns)
        } else {
            state.meter.charge_ns(op.key.into(), 1, op.ns)
        };
        // Charges may be off at both ends of an interval.
        let unforeseen_ns = 2 * state.meter.unsettled_ns() + state.underestimated_ns();
        let estimate_ns = flight.map_or(0, |flight| flight.estimate_ns);
        state.gate.charge(estimate_ns, charge_ns);
        state.grace.worked(op.ns);
        let is_whole = op.ends_kernel && !op.continues && !op.resumes;
        if is_whole && flight.is_some_and(|flight| !flight.guessed) {
            state.ahead.ended(1, estimate_ns, op.ns);
        }
        // The whole grid at the pace of this piece.
        state.learn(op.key, op.whole_ns);
        if !op.ends_kernel {
            state.pieces.learn(slice_ns);
        }
        state.front_since_ns = now_ns;
        if op.ends_kernel {
            state.finished += 1;
            self.books[op.vgpu].kernels += 1;
            self.answer_waiting(op.worker);
        }
        let uncut_ns = self.uncut_ns(op.ns);
        self.submitted(op.worker, uncut_ns + unforeseen_ns);
        if self.setup.careful {
            self.hear(op.worker);
        } else {
            // Workers that are not careful say nothing of what drains.
            let _unheard = self.workers[op.worker].gate.page().take_signal();
        }
        self.note_work(op.worker, had_work);
        self.run_worker(op.worker);
    }

    /// Answers the synchronous call that waits for what has finished.
    fn answer_waiting(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        let finished = state.finished;
        let Some(vcpu) = state.vcpu else { return };
        if state.waited_for.is_none_or(|until| until > finished) {
            return;
        }
        state.waited_for = None;
        let half_ns = self.vcpus[vcpu].transport.answer_ns();
        self.clock.after(half_ns, Tick::Answer { vcpu, until: finished });
    }

    fn release_if_over(&mut self, worker: usize) {
        let now_ns = self.clock.now_ns;
        let stops = self.stops().is_some();
        let executed_ns = self.gpu.executed_ns(worker, now_ns).unwrap_or(0);
        let state = &mut self.workers[worker];
        let ran_ns = if stops { executed_ns } else { now_ns.saturating_sub(state.front_since_ns) };
        // Where kernels are stopped, the rest of a guess is known to be no more than the turn's.
        let backlog_ns = state.backlog_ns(ran_ns, self.setup.careful && !stops);
        let is_over = state.gate.release_in_ns(backlog_ns) == Some(0);
        let settled_ns = if is_over { state.meter.settle() } else { 0 };
        if settled_ns > 0 {
            state.gate.charge(0, settled_ns);
        }
        let idled_ns = if is_over { state.grace.end(now_ns) } else { None };
        if let Some(idled_ns) = idled_ns {
            state.gate.charge_idle(idled_ns);
            state.gate.release_idle();
        }
        let released = idled_ns.is_some() || state.gate.try_release(backlog_ns);
        let later_ns = state.gate.release_in_ns(backlog_ns);
        self.hear(worker);
        // What has just been given back, or ends nobody knows when, needs no look.
        if let Some(later_ns) = later_ns.filter(|later_ns| (1..u64::MAX / 2).contains(later_ns)) {
            self.poke(worker, later_ns);
        }
        if released {
            self.note_backlog(self.workers[worker].vgpu);
        }
    }

    /// Tells the gate when there is no work: at once, or after the grace when a turn would be lost
    /// by it.
    fn report_demand(&mut self, worker: usize) {
        if self.workers[worker].has_work() {
            return;
        }
        let now_ns = self.clock.now_ns;
        let state = &mut self.workers[worker];
        let settled_ns = state.meter.settle();
        if settled_ns > 0 {
            state.gate.charge(0, settled_ns);
        }
        if !state.has_turn() {
            state.grace.forget();
            state.gate.set_idle();
            self.hear(worker);
            return;
        }
        let budget_ns = state.gate.grant().map_or(0, |grant| grant.budget_ns);
        match state.grace.pause(now_ns, budget_ns, state.gate.is_revoked()) {
            Pause::Lasts { left_ns } => return self.poke(worker, left_ns),
            Pause::Ends { idled_ns } => state.gate.charge_idle(idled_ns),
        }
        self.workers[worker].gate.release_idle();
        self.hear(worker);
        self.note_backlog(self.workers[worker].vgpu);
    }

    /// There is work: a pause is over, if there was one.
    fn resume(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        if let Some(idled_ns) = state.grace.resume(self.clock.now_ns) {
            state.gate.charge_idle(idled_ns);
        }
    }

    // Bookkeeping for the checks and the figures.

    /// A command that cannot be cut takes a turn this far beyond its budget.
    pub(crate) fn submitted(&mut self, worker: usize, piece_ns: u64) {
        self.checks.submitted(worker, self.workers[worker].vgpu, piece_ns);
    }

    /// A worker may have begun or ceased to have work.
    pub(crate) fn note_work(&mut self, worker: usize, had_work: bool) {
        let has_work = self.workers[worker].has_work();
        if had_work == has_work && self.clock.now_ns > 0 {
            return;
        }
        if has_work {
            self.working += 1;
        } else {
            self.working = self.working.saturating_sub(1);
        }
        self.observe_device();
        self.note_backlog(self.workers[worker].vgpu);
    }

    pub(crate) fn observe_device(&mut self) {
        // While the device waits for whom it owes service, that is who uses it.
        let kept = self.turns.node().kept_until_ns(DEVICE).is_some();
        let busy = !self.gpu.queue.is_empty() || kept;
        // Who is held back by a cap does not want the device.
        let free = self.working - self.held_back();
        self.checks.device(self.clock.now_ns, busy, free > 0);
    }

    /// Sessions with work of vGPUs that their caps hold back.
    fn held_back(&self) -> usize {
        let throttled = self.capped.iter().filter(|vgpu| self.books[**vgpu].throttled);
        let sessions = throttled.flat_map(|vgpu| &self.books[*vgpu].sessions);
        sessions.filter(|session| self.workers[**session].has_work()).count()
    }

    /// Any session's work counts, but during a turn only the holder's: the vGPU gave its turn to
    /// that session, pauses included.
    pub(crate) fn note_backlog(&mut self, vgpu: usize) {
        let mut any = false;
        let mut holder = None;
        let mut changed = false;
        for &session in &self.books[vgpu].sessions {
            let state = &self.workers[session];
            let (works, holds) = (state.has_work(), self.holds(session));
            changed |= state.noted != (works, holds);
            any |= works;
            if holds {
                holder = Some(works);
            }
        }
        if !changed {
            return;
        }
        self.count_service();
        for &session in &self.books[vgpu].sessions {
            let now = (self.workers[session].has_work(), self.holds(session));
            let state = &mut self.workers[session];
            if std::mem::replace(&mut state.noted, now) != now {
                self.checks.observe(session, now.0, now.1);
            }
        }
        let backlogged = holder.unwrap_or(any);
        let books = &mut self.books[vgpu];
        if std::mem::replace(&mut books.was_backlogged, backlogged) != backlogged {
            books.asked_ns = backlogged.then_some(self.clock.now_ns);
            books.last_service_ns = self.clock.now_ns;
        }
    }

    /// Whether the daemon has given it a grant that is not over.
    fn holds(&self, session: usize) -> bool {
        self.turns.session(session_key(session)).is_some_and(|session| session.gate.is_held())
    }

    /// Puts the device's service up to now on the books.
    pub(crate) fn count_service(&mut self) {
        let now_ns = self.clock.now_ns;
        let Some((worker, vgpu, ns)) = self.gpu.take_service(now_ns) else { return };
        self.workers[worker].work_ns += ns;
        let books = &mut self.books[vgpu];
        books.work_ns += ns;
        let began_ns = now_ns.saturating_sub(ns);
        if let Some(asked_ns) = books.asked_ns.take() {
            books.wait_max_ns = books.wait_max_ns.max(began_ns.saturating_sub(asked_ns));
        }
        let gap_ns = began_ns.saturating_sub(books.last_service_ns);
        books.gap_max_ns = books.gap_max_ns.max(gap_ns);
        books.last_service_ns = now_ns;
        self.checks.served(now_ns, worker, vgpu, ns);
    }
}

/// `part` of `whole`, of something else.
fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let wide = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}
