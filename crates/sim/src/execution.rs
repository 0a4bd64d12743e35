//! Workers and the device: gate, execute, charge, release, as the node's worker does.

use crate::clock::Tick;
use crate::device::Op;
use crate::gate::{Admission, Signal};
use crate::kernel::Kernel;
use crate::worker::{Flight, Pending};
use crate::world::World;

/// A kernel whose rest exceeds the budget by less than this is not cut (the worker's constant).
const OVERRUN_NS: u64 = 500_000;
/// A piece of a kernel is at least 50 times what starting a piece costs, and at least this.
const PIECE_NS_MIN: u64 = 50_000;
/// Commands in the hardware's queue of a worker whose turns are slices of wall time: one executes,
/// one waits. The paper does not say how many there were; more would widen its Figure 11.
const WALL_QUEUE: usize = 2;
/// Waiting callers are woken this long before their answer comes (the worker's constant).
const ANNOUNCE_NS: u64 = 70_000;

impl World {
    /// A program's kernel arrives at its worker.
    pub(crate) fn arrive(&mut self, worker: usize, kernel: Kernel) {
        let costs = &self.setup.costs;
        let state = &self.workers[worker];
        let awake = state.gate.knows_turn() || !state.flights.is_empty();
        let delay_ns = if awake { costs.worker_notice.ns } else { costs.worker_wake.ns };
        let had_work = state.has_work();
        let state = &mut self.workers[worker];
        state.submitted += 1;
        state.pending.push_back(Pending { kernel, done_ns: 0 });
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
        self.workers[worker].gate.now_ns = self.clock.now_ns;
        self.start_ready(worker);
        self.release_if_over(worker);
        self.report_demand(worker);
    }

    fn start_ready(&mut self, worker: usize) {
        loop {
            let state = &mut self.workers[worker];
            let depth = if state.gate.by_wall { WALL_QUEUE } else { self.setup.hardware_queue };
            if state.flights.len() >= depth {
                return;
            }
            let Some(pending) = state.head() else { return };
            let (estimate_ns, known) = state.estimate(&pending);
            if self.setup.careful
                && !state.gate.by_wall
                && (state.flights.back().is_some_and(|flight| flight.guessed)
                    || (!known && !state.flights.is_empty()))
            {
                return;
            }
            self.end_idling(worker);
            let signal = self.workers[worker].gate.set_runnable(estimate_ns);
            self.signal(worker, signal);
            let Admission::Admitted(left_ns) = self.workers[worker].gate.admit(estimate_ns) else {
                return;
            };
            self.start(worker, pending, (estimate_ns, known), left_ns);
        }
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
        let long = !known || estimate_ns > left_ns.saturating_add(OVERRUN_NS);
        let piece_min_ns = PIECE_NS_MIN.max(50 * self.setup.costs.slice.ns);
        let cut_ns = if kernel.sliceable && long && left_ns != u64::MAX {
            // The cut is by blocks; how many fit follows from the prediction.
            let wanted_ns = left_ns.max(piece_min_ns);
            if known { scaled(wanted_ns, rest_ns, estimate_ns) } else { wanted_ns }
        } else {
            rest_ns
        };
        let ns = cut_ns.clamp(1, rest_ns.max(1));
        let ends_kernel = ns >= rest_ns;
        let state = &mut self.workers[worker];
        let estimate_ns = if ends_kernel {
            estimate_ns
        } else {
            let piece_ns = if known { scaled(ns, estimate_ns, rest_ns) } else { estimate_ns };
            state.gate.cut(estimate_ns, piece_ns);
            piece_ns.min(estimate_ns)
        };
        if ends_kernel {
            state.pending.pop_front();
        } else if let Some(head) = state.pending.front_mut() {
            head.done_ns += ns;
        }
        if state.flights.is_empty() {
            state.front_since_ns = self.clock.now_ns;
        }
        state.flights.push_back(Flight { estimate_ns, ns, guessed: !known });
        let vgpu = state.vgpu;
        // A turn may outlast its budget by the command that uses it up, and by what nobody foresaw.
        let unforeseen_ns = state.underestimated_ns();
        self.checks.submitted(vgpu, ns + unforeseen_ns);
        let continues = pending.done_ns > 0;
        let op =
            Op { worker, vgpu, key: kernel.key, ns, whole_ns: kernel.ns, continues, ends_kernel };
        self.gpu.queue.push_back(op);
        if self.gpu.queue.len() == 1 {
            self.observe_device();
            self.start_head();
        }
    }

    fn start_head(&mut self) {
        let Some(head) = self.gpu.queue.front().copied() else { return };
        let costs = &self.setup.costs;
        let switch_ns = if self.gpu.last_worker.is_some_and(|last| last != head.worker) {
            costs.device_switch.ns
        } else {
            0
        };
        let slice_ns = if head.continues { costs.slice.ns } else { 0 };
        self.gpu.last_worker = Some(head.worker);
        self.gpu.started_ns = self.clock.now_ns + costs.launch.ns + switch_ns + slice_ns;
        self.gpu.counted_ns = self.clock.now_ns;
        self.gpu.generation += 1;
        let generation = self.gpu.generation;
        let end_ns = self.gpu.started_ns + head.ns;
        self.clock.at(end_ns, Tick::Device { generation });
        self.announce(head, end_ns);
    }

    /// A blocked caller whose answer comes with this command is woken before it ends.
    fn announce(&mut self, head: Op, end_ns: u64) {
        let state = &self.workers[head.worker];
        let Some(vcpu) = state.vcpu.filter(|_| head.ends_kernel) else { return };
        if state.waited_for != Some(state.finished + 1) {
            return;
        }
        self.wake_vcpu(vcpu, end_ns.saturating_sub(ANNOUNCE_NS));
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
        let charge_ns = state.meter.charge_ns(op.key, op.ns);
        // Charges may be off at both ends of an interval.
        let unforeseen_ns = op.ns + 2 * state.meter.unsettled_ns() + state.underestimated_ns();
        let estimate_ns = flight.map_or(0, |flight| flight.estimate_ns);
        let drained = state.gate.charge(estimate_ns, charge_ns);
        // The whole grid at the pace of this piece.
        state.learn(op.key, op.whole_ns);
        state.front_since_ns = now_ns;
        if op.ends_kernel {
            state.finished += 1;
            self.books[op.vgpu].kernels += 1;
            self.answer_waiting(op.worker);
        }
        self.checks.submitted(op.vgpu, unforeseen_ns);
        if self.setup.careful {
            self.signal(op.worker, drained);
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
        let state = &mut self.workers[worker];
        let backlog_ns = state.backlog_ns(now_ns, self.setup.careful);
        let settled_ns =
            if state.gate.release_in_ns(backlog_ns) == Some(0) { state.meter.settle() } else { 0 };
        if settled_ns > 0 {
            state.gate.charge(0, settled_ns);
        }
        let signal = state.gate.try_release(backlog_ns);
        let later_ns = state.gate.release_in_ns(backlog_ns);
        self.signal(worker, signal);
        // What has just been given back, or ends nobody knows when, needs no look.
        if let Some(later_ns) = later_ns.filter(|later_ns| (1..u64::MAX / 2).contains(later_ns)) {
            self.poke(worker, later_ns);
        }
        if signal != Signal::None {
            self.note_backlog(self.workers[worker].vgpu);
        }
    }

    /// Tells the gate when there is no work: at once, or after the yield time when a turn would be
    /// lost by it.
    fn report_demand(&mut self, worker: usize) {
        if self.workers[worker].has_work() {
            return;
        }
        let yield_ns = self.node.config().yield_ns;
        let now_ns = self.clock.now_ns;
        let state = &mut self.workers[worker];
        let settled_ns = state.meter.settle();
        if settled_ns > 0 {
            state.gate.charge(0, settled_ns);
        }
        if !state.gate.has_turn() {
            state.idle_since_ns = None;
            let signal = state.gate.set_idle();
            return self.signal(worker, signal);
        }
        let since_ns = *state.idle_since_ns.get_or_insert(now_ns);
        let waited_ns = now_ns - since_ns;
        if waited_ns < yield_ns && !state.gate.is_revoked() {
            return self.poke(worker, yield_ns - waited_ns);
        }
        self.end_idling(worker);
        let idle = self.workers[worker].gate.set_idle();
        self.signal(worker, idle);
        // The demand may have been idle before the turn came.
        let released = self.workers[worker].gate.release();
        self.signal(worker, released);
        self.note_backlog(self.workers[worker].vgpu);
    }

    fn end_idling(&mut self, worker: usize) {
        let now_ns = self.clock.now_ns;
        let state = &mut self.workers[worker];
        if let Some(since_ns) = state.idle_since_ns.take() {
            state.gate.charge_idle(now_ns - since_ns);
        }
    }

    // Bookkeeping for the checks and the figures.

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

    fn observe_device(&mut self) {
        let busy = !self.gpu.queue.is_empty();
        self.checks.device(self.clock.now_ns, busy, self.working > 0);
    }

    /// Any session's work counts, but during a turn only the holder's: the vGPU gave its turn to
    /// that session, pauses included.
    pub(crate) fn note_backlog(&mut self, vgpu: usize) {
        let mut any = false;
        let mut holder = None;
        for &session in &self.books[vgpu].sessions {
            let state = &self.workers[session];
            let works = state.has_work();
            any |= works;
            if state.gate.page.is_held() {
                holder = Some(works);
            }
        }
        let backlogged = holder.unwrap_or(any);
        if backlogged == self.books[vgpu].was_backlogged {
            return;
        }
        self.count_service();
        let tenant = &mut self.books[vgpu];
        tenant.was_backlogged = backlogged;
        tenant.asked_ns = backlogged.then_some(self.clock.now_ns);
        tenant.last_service_ns = self.clock.now_ns;
        self.checks.set_backlogged(vgpu, backlogged);
    }

    /// Puts the device's service up to now on the books.
    pub(crate) fn count_service(&mut self) {
        let now_ns = self.clock.now_ns;
        let Some((vgpu, ns)) = self.gpu.take_service(now_ns) else { return };
        let tenant = &mut self.books[vgpu];
        tenant.work_ns += ns;
        let began_ns = now_ns.saturating_sub(ns);
        if let Some(asked_ns) = tenant.asked_ns.take() {
            tenant.wait_max_ns = tenant.wait_max_ns.max(began_ns.saturating_sub(asked_ns));
        }
        let gap_ns = began_ns.saturating_sub(tenant.last_service_ns);
        tenant.gap_max_ns = tenant.gap_max_ns.max(gap_ns);
        tenant.last_service_ns = now_ns;
        self.checks.served(now_ns, vgpu, ns);
    }
}

/// `part` of `whole`, of something else.
fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let wide = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}
