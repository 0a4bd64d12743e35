//! Devices that can stop a kernel in the middle and go on with it later.
//!
//! Two use the ability. A *worker* stops its kernel when its turn ends, so that a turn is a quantum
//! however long the kernels are and whether or not they can be sliced. The *driver*, where nobody
//! manages the device, gives each session with work a slice of time in turn. Saving and restoring a
//! kernel's state is time of the device in which it serves nobody: like every cost of switching it
//! is charged to nobody, and [`World::preempting_ns`] shows it.

use crate::clock::Tick;
use crate::worker::{Flight, Pending};
use crate::world::{DEVICE, World};

/// What stopping a kernel takes on a device that can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// Saving the state of a kernel that is stopped, in ns of device time.
    pub save_ns: u64,
    /// Restoring it when the kernel goes on, in ns of device time.
    pub restore_ns: u64,
    /// A kernel is not stopped before it has executed for so long, in ns; at least 1.
    pub slice_min_ns: u64,
    /// Who stops kernels.
    pub stopper: Stopper,
}

/// Who stops kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopper {
    /// The worker, when its session's turn ends. Credit's workers do not: their model has no device
    /// time.
    Worker,
    /// The driver, which takes the sessions with queued commands in turn, whatever their weights:
    /// what NVIDIA's does with the contexts of different processes.
    Driver {
        /// The time of one, in ns.
        slice_ns: u64,
    },
}

impl Preemption {
    /// Workers stop kernels; `cost_ns` is half for saving, half for restoring.
    pub fn by_worker(cost_ns: u64, slice_min_ns: u64) -> Self {
        let save_ns = cost_ns / 2;
        Self { save_ns, restore_ns: cost_ns - save_ns, slice_min_ns, stopper: Stopper::Worker }
    }

    /// The driver gives each session `slice_ns` in turn.
    pub fn by_driver(cost_ns: u64, slice_ns: u64) -> Self {
        let stopper = Stopper::Driver { slice_ns };
        Self { stopper, ..Self::by_worker(cost_ns, 1) }
    }

    /// Saving and restoring together.
    pub(crate) fn cost_ns(&self) -> u64 {
        self.save_ns + self.restore_ns
    }

    /// A kernel that outlasts its turn by less than this ends by itself: stopping it would take as
    /// long.
    pub(crate) fn grace_ns(&self) -> u64 {
        self.slice_min_ns.max(self.cost_ns())
    }

    /// The longest that a turn lasts beyond its budget: a kernel that was expected to end within
    /// the grace outlasts even that by another one.
    pub(crate) fn overrun_ns(&self) -> u64 {
        2 * self.grace_ns()
    }
}

/// A command that starts on a device whose workers stop kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounded {
    pub(crate) estimate_ns: u64,
    pub(crate) outlasts: bool,
    pub(crate) limit_ns: u64,
}

impl World {
    /// How this node's workers stop kernels, if they do.
    pub(crate) fn stops(&self) -> Option<Preemption> {
        let node = self.turns.node();
        let managed = !node.is_shared(DEVICE) && !node.slices_wall_time(DEVICE);
        self.setup.preemption.filter(|one| managed && one.stopper == Stopper::Worker)
    }

    fn driver_slice_ns(&self) -> Option<u64> {
        match self.setup.preemption?.stopper {
            Stopper::Driver { slice_ns } => Some(slice_ns.max(1)),
            Stopper::Worker => None,
        }
    }

    /// The longest command that cannot be cut, of one that takes `ns`.
    pub(crate) fn uncut_ns(&self, ns: u64) -> u64 {
        self.stops().map_or(ns, |preemption| ns.min(preemption.overrun_ns()))
    }

    /// What a command may take of a turn in which `left_ns` is left.
    pub(crate) fn bound(preemption: Preemption, estimate_ns: u64, left_ns: u64) -> Bounded {
        let grace_ns = preemption.grace_ns();
        if estimate_ns <= left_ns.saturating_add(grace_ns) {
            return Bounded { estimate_ns, outlasts: false, limit_ns: estimate_ns + grace_ns };
        }
        let limit_ns = left_ns.max(preemption.slice_min_ns);
        Bounded { estimate_ns: limit_ns, outlasts: true, limit_ns }
    }

    /// A kernel that would be stopped goes on where its session has a turn again.
    pub(crate) fn prolong(&mut self, worker: usize) {
        let Some(preemption) = self.stops() else { return };
        let state = &mut self.workers[worker];
        let Some(flight) = state.flights.back().copied().filter(|flight| flight.outlasts) else {
            return;
        };
        let left_ns = state.gate.left_ns();
        if left_ns == 0 {
            return;
        }
        let (known_ns, known) = state.estimate(&flight.pending);
        let whole_ns = if known { known_ns.max(flight.estimate_ns) } else { u64::MAX };
        let more = Self::bound(preemption, whole_ns - flight.estimate_ns, left_ns);
        state.gate.admit(more.estimate_ns);
        if let Some(flight) = state.flights.back_mut() {
            flight.estimate_ns += more.estimate_ns;
            flight.limit_ns = flight.limit_ns.saturating_add(more.limit_ns);
            flight.outlasts = more.outlasts;
        }
    }

    /// Stops the worker's kernel if its turn is over, or looks again when that will be. True if it
    /// stopped it.
    pub(crate) fn stop_if_due(&mut self, worker: usize) -> bool {
        let Some(preemption) = self.stops() else { return false };
        let now_ns = self.clock.now_ns;
        let Some(executed_ns) = self.gpu.executed_ns(worker, now_ns) else { return false };
        let state = &mut self.workers[worker];
        state.gate.is_holder();
        let due_ns = if state.gate.is_revoked() { Some(0) } else { state.due_ns() };
        let Some(due_ns) = due_ns else { return false };
        let due_ns = due_ns.max(preemption.slice_min_ns).max(1);
        let left_ns = self.gpu.queue.front().map_or(0, |head| head.left_ns);
        if left_ns <= due_ns.max(executed_ns) {
            // It ends before.
            return false;
        }
        if executed_ns >= due_ns {
            self.stop(worker, executed_ns, preemption);
            return true;
        }
        let at_ns = self.gpu.started_ns.max(now_ns - executed_ns) + due_ns;
        self.poke(worker, at_ns - now_ns);
        false
    }

    /// Takes the worker's commands off the device; they are the first of its next turn.
    fn stop(&mut self, worker: usize, executed_ns: u64, preemption: Preemption) {
        self.count_service();
        let now_ns = self.clock.now_ns;
        let withdrawn = self.gpu.withdraw(worker).len();
        let state = &mut self.workers[worker];
        let flights: Vec<Flight> = state.flights.drain(..).collect();
        debug_assert_eq!(flights.len(), withdrawn, "what is in flight is on the device");
        for flight in flights.iter().skip(1).rev() {
            state.gate.withdraw(flight.estimate_ns);
            state.pending.push_front(flight.pending);
        }
        if let Some(front) = flights.first() {
            let Pending { kernel, done_ns, .. } = front.pending;
            let done_ns = done_ns + executed_ns;
            state.pending.push_front(Pending { kernel, done_ns, stopped: true });
            let charge_ns = state.meter.charge_part_ns(executed_ns);
            state.gate.charge(front.estimate_ns, charge_ns);
            state.grace.worked(executed_ns);
            let unforeseen_ns = 2 * state.meter.unsettled_ns();
            state.front_since_ns = now_ns;
            let uncut_ns = self.uncut_ns(executed_ns);
            self.submitted(worker, uncut_ns + unforeseen_ns);
            self.hear(worker);
        }
        self.gpu.saved_ns = now_ns + preemption.save_ns;
        self.gpu.preempting_ns += preemption.save_ns;
        self.observe_device();
        self.start_head();
    }

    /// Tells the daemon how long the kernel that executes has done so: a device that stops kernels
    /// knows.
    pub(crate) fn tell_elapsed(&mut self) {
        if self.stops().is_none() {
            return;
        }
        let Some(worker) = self.gpu.queue.front().map(|head| head.worker) else { return };
        let Some(elapsed_ns) = self.gpu.executed_ns(worker, self.clock.now_ns) else { return };
        let state = &mut self.workers[worker];
        if let Some(front) = state.flights.front() {
            let in_flight_ns = state.gate.in_flight_ns();
            let rest_ns = in_flight_ns.saturating_sub(elapsed_ns.min(front.estimate_ns));
            state.gate.show_elapsed(elapsed_ns, rest_ns);
        }
    }

    /// The head began or went on: when the driver's slice ends.
    pub(crate) fn arm_slice(&mut self, began: bool) {
        let Some(slice_ns) = self.driver_slice_ns() else { return };
        if began || self.gpu.slice_end_ns <= self.clock.now_ns {
            self.gpu.slice_end_ns = self.gpu.started_ns.max(self.clock.now_ns) + slice_ns;
        }
        let generation = self.gpu.generation;
        let at_ns = self.gpu.slice_end_ns;
        if self.gpu.queue.front().is_some_and(|head| self.gpu.started_ns + head.left_ns > at_ns) {
            self.clock.at(at_ns, Tick::Slice { generation });
        }
    }

    pub(crate) fn slice_ended(&mut self, generation: u64) {
        if generation != self.gpu.generation {
            return;
        }
        if !self.gpu.others_wait() {
            return self.arm_slice(false);
        }
        self.count_service();
        let now_ns = self.clock.now_ns;
        let executed_ns = now_ns.saturating_sub(self.gpu.started_ns);
        if let Some(head) = self.gpu.queue.front_mut() {
            head.left_ns = head.left_ns.saturating_sub(executed_ns);
            head.resumes = true;
        }
        let save_ns = self.setup.preemption.map_or(0, |one| one.save_ns);
        self.gpu.saved_ns = now_ns + save_ns;
        self.gpu.preempting_ns += save_ns;
        self.rotate();
        self.start_head();
    }

    /// Between two commands of a session whose time slice is over, the next one's turn comes.
    pub(crate) fn rotate_if_over(&mut self) {
        let over = self.clock.now_ns >= self.gpu.slice_end_ns;
        let same = self.gpu.queue.front().map(|head| head.worker) == self.gpu.last_worker;
        if over && same && self.driver_slice_ns().is_some() && self.gpu.others_wait() {
            self.rotate();
        }
    }

    /// The head's session goes to the end of the queue, with all its commands.
    fn rotate(&mut self) {
        let Some(worker) = self.gpu.queue.front().map(|head| head.worker) else { return };
        let its = self.gpu.withdraw(worker);
        self.gpu.queue.extend(its);
    }

    /// What the device spent on saving and restoring stopped kernels, in ns.
    pub fn preempting_ns(&self) -> u64 {
        self.gpu.preempting_ns
    }
}
