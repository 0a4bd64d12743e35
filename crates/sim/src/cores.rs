//! Which vCPU runs, and what it does.

use weft_sched::Event;

use crate::clock::Tick;
use crate::cpu::{CFS_CREDIT_NS, CFS_GRANULARITY_NS, CpuScheduler, Doing, Place, Then};
use crate::program::{Step, View};
use crate::world::{World, vgpu_key};

/// Commands of one session that were submitted and have not finished: a program that is further
/// ahead waits.
const LANE_DEPTH: u64 = 1_024;

impl World {
    pub(crate) fn core_tick(&mut self, core: usize, generation: u64) {
        if generation == self.cores[core].generation {
            self.charge_core(core);
            self.continue_core(core);
        }
    }

    /// A vCPU becomes runnable: it was woken, or begins.
    pub(crate) fn awake(&mut self, vcpu: usize, boosted: bool) {
        let core = self.vcpus[vcpu].core;
        self.vcpus[vcpu].waking = false;
        if self.vcpus[vcpu].place != Place::Blocked || self.vcpus[vcpu].doing == Doing::Ended {
            return;
        }
        self.charge_core(core);
        let floor = self.cores[core].floor;
        let slice_ns = self.setup.cpu.slice_ns();
        let state = &mut self.vcpus[vcpu];
        let placed = match self.setup.cpu {
            CpuScheduler::Cfs => floor.saturating_sub(state.virtual_ns(CFS_CREDIT_NS)),
            CpuScheduler::Eevdf => floor,
        };
        state.vruntime = state.vruntime.max(placed);
        state.deadline = state.vruntime + state.virtual_ns(slice_ns);
        state.place = Place::Ready;
        state.boosted = boosted;
        state.woken_ns = Some(self.clock.now_ns);
        self.cores[core].ready.push(vcpu);
        if boosted || self.preempts(core, vcpu) {
            self.yield_core(core);
        }
        self.continue_core(core);
    }

    /// Wakes a blocked vCPU at that time, as far as it takes no less than a wake-up.
    pub(crate) fn wake_vcpu(&mut self, vcpu: usize, at_ns: u64) {
        let state = &mut self.vcpus[vcpu];
        if state.place == Place::Blocked && !state.waking {
            state.waking = true;
            let at_ns = at_ns.max(self.clock.now_ns) + self.setup.costs.wake.ns;
            self.clock.at(at_ns, Tick::Awake { vcpu, boosted: false });
        }
    }

    /// A ready vCPU goes first, whatever its share.
    pub(crate) fn boost(&mut self, vcpu: usize) {
        let core = self.vcpus[vcpu].core;
        self.vcpus[vcpu].boosted = true;
        self.charge_core(core);
        self.yield_core(core);
        self.continue_core(core);
    }

    pub(crate) fn alarm(&mut self, vcpu: usize) {
        self.vcpus[vcpu].doing = Doing::Between;
        self.wake_vcpu(vcpu, self.clock.now_ns);
    }

    /// The answer to a synchronous call is there.
    pub(crate) fn answered(&mut self, vcpu: usize, until: u64) {
        let state = &mut self.vcpus[vcpu];
        let (Doing::Await(wanted) | Doing::Space(wanted)) = state.doing else { return };
        if wanted > until {
            return;
        }
        match state.place {
            Place::Running => {
                let core = state.core;
                self.charge_core(core);
                self.vcpus[vcpu].doing = Doing::Between;
                self.vcpus[vcpu].left_ns = 0;
                self.continue_core(core);
            }
            Place::Ready => (state.doing, state.left_ns) = (Doing::Between, 0),
            Place::Blocked => {
                (state.doing, state.left_ns) = (Doing::Between, 0);
                self.wake_vcpu(vcpu, self.clock.now_ns);
            }
        }
    }

    fn preempts(&self, core: usize, vcpu: usize) -> bool {
        let Some(current) = self.cores[core].current else { return true };
        let (woken, current) = (&self.vcpus[vcpu], &self.vcpus[current]);
        match self.setup.cpu {
            CpuScheduler::Cfs => {
                let granularity = woken.virtual_ns(CFS_GRANULARITY_NS);
                !current.boosted && current.vruntime > woken.vruntime + granularity
            }
            CpuScheduler::Eevdf => false,
        }
    }

    /// Processor time up to now goes to whoever runs.
    fn charge_core(&mut self, core: usize) {
        let now_ns = self.clock.now_ns;
        let elapsed_ns = now_ns.saturating_sub(self.cores[core].since_ns);
        let state = &mut self.cores[core];
        state.since_ns = state.since_ns.max(now_ns);
        let Some(current) = state.current else { return };
        let vcpu = &mut self.vcpus[current];
        vcpu.ran_ns += elapsed_ns;
        vcpu.vruntime += vcpu.virtual_ns(elapsed_ns);
        vcpu.left_ns = vcpu.left_ns.saturating_sub(elapsed_ns);
        // The floor is the least virtual time among those that want the core; it never falls.
        let least = state.ready.iter().map(|other| self.vcpus[*other].vruntime).min();
        let own = self.vcpus[current].vruntime;
        state.floor = state.floor.max(least.map_or(own, |least| least.min(own)));
    }

    /// Takes the core from whoever runs and leaves it runnable.
    fn yield_core(&mut self, core: usize) {
        let slice_ns = self.setup.cpu.slice_ns();
        if let Some(current) = self.cores[core].current.take() {
            let vcpu = &mut self.vcpus[current];
            vcpu.place = Place::Ready;
            if vcpu.vruntime >= vcpu.deadline {
                vcpu.deadline = vcpu.vruntime + vcpu.virtual_ns(slice_ns);
            }
            self.cores[core].ready.push(current);
        }
    }

    /// Pegasus, Algorithm 1: the CPU scheduler tells the GPU scheduler whom it runs.
    fn tell_running(&mut self, core: usize) {
        if !self.config.policy.follows_processors() {
            return;
        }
        let runs = self.cores[core].current;
        let told = std::mem::replace(&mut self.cores[core].told, runs);
        if told == runs {
            return;
        }
        for (vcpu, on) in [(told, false), (runs, true)] {
            if let Some(worker) = vcpu.and_then(|vcpu| self.vcpus[vcpu].worker) {
                let vgpu = vgpu_key(self.workers[worker].vgpu);
                self.tell(Event::OnCpu { vgpu, on });
            }
        }
        self.look();
    }

    /// Lets whoever should run go on, and asks to be called when something ends.
    fn continue_core(&mut self, core: usize) {
        self.run_core(core);
        self.tell_running(core);
    }

    fn run_core(&mut self, core: usize) {
        loop {
            let now_ns = self.clock.now_ns;
            if let Some(current) = self.cores[core].current {
                if self.vcpus[current].left_ns == 0 && !self.advance(current) {
                    self.vcpus[current].place = Place::Blocked;
                    self.cores[core].current = None;
                    self.announce_again(current);
                    continue;
                }
                let slice_ns = self.setup.cpu.slice_ns();
                let ran_ns = now_ns - self.cores[core].slice_from_ns.min(now_ns);
                let expired = ran_ns >= slice_ns && !self.cores[core].ready.is_empty();
                if expired && !self.vcpus[current].boosted {
                    self.yield_core(core);
                    continue;
                }
                return self.arm_core(core, current, slice_ns - ran_ns.min(slice_ns));
            }
            if !self.dispatch(core) {
                self.cores[core].generation += 1;
                return;
            }
        }
    }

    fn arm_core(&mut self, core: usize, current: usize, slice_left_ns: u64) {
        let state = &mut self.cores[core];
        let mut at_ns = state.since_ns.saturating_add(self.vcpus[current].left_ns);
        if !state.ready.is_empty() && !self.vcpus[current].boosted {
            at_ns = at_ns.min(self.clock.now_ns + slice_left_ns);
        }
        state.generation += 1;
        let generation = state.generation;
        if at_ns != u64::MAX {
            self.clock.at(at_ns, Tick::Core { core, generation });
        }
    }

    /// The next vCPU takes the core; false if none wants it.
    fn dispatch(&mut self, core: usize) -> bool {
        let floor = self.cores[core].floor;
        let order = |vcpu: &usize| {
            let state = &self.vcpus[*vcpu];
            let eligible = state.vruntime <= floor;
            let rank = match self.setup.cpu {
                CpuScheduler::Cfs => state.vruntime,
                CpuScheduler::Eevdf => state.deadline,
            };
            (!state.boosted, self.setup.cpu == CpuScheduler::Eevdf && !eligible, rank, *vcpu)
        };
        let ready = &self.cores[core].ready;
        let Some(place) = (0..ready.len()).min_by_key(|place| order(&ready[*place])) else {
            return false;
        };
        let now_ns = self.clock.now_ns;
        let state = &mut self.cores[core];
        let next = state.ready.swap_remove(place);
        let switch_ns = if state.last == Some(next) { 0 } else { self.setup.costs.vcpu_switch.ns };
        state.last = Some(next);
        state.current = Some(next);
        // The switch is nobody's work: the vCPU's time begins after it.
        state.since_ns = now_ns + switch_ns;
        state.slice_from_ns = now_ns;
        let vcpu = &mut self.vcpus[next];
        vcpu.place = Place::Running;
        if let Some(woken_ns) = vcpu.woken_ns.take() {
            vcpu.wake_delays_ns.push(now_ns + switch_ns - woken_ns);
        }
        if matches!(vcpu.doing, Doing::Await(_) | Doing::Space(_)) {
            vcpu.left_ns = self.setup.spin_ns.unwrap_or(u64::MAX / 4);
        }
        true
    }

    /// A vCPU's step is over: what follows, until it needs the processor or waits. False when it
    /// leaves the processor.
    fn advance(&mut self, vcpu: usize) -> bool {
        loop {
            match self.vcpus[vcpu].doing {
                Doing::Work(Then::Nothing) | Doing::Between => {
                    if !self.begin_step(vcpu) {
                        return false;
                    }
                }
                Doing::Work(Then::Submit(kernel)) => self.submit(vcpu, kernel),
                Doing::Work(Then::Await) => self.begin_wait(vcpu),
                // It has polled for long enough, or sleeps.
                Doing::Await(_) | Doing::Space(_) | Doing::Asleep | Doing::Ended => return false,
            }
            if self.vcpus[vcpu].left_ns > 0 {
                return true;
            }
        }
    }

    fn begin_step(&mut self, vcpu: usize) -> bool {
        let now_ns = self.clock.now_ns;
        let worker = self.vcpus[vcpu].worker;
        let finished = worker.map_or(0, |worker| self.workers[worker].finished);
        let executed_ns = worker.map_or(0, |worker| self.seen_ns(worker));
        let state = &mut self.vcpus[vcpu];
        let transport = state.transport;
        let step = state.behaviour.next(&View { now_ns, finished, executed_ns });
        if !matches!(step, Step::Compute(_)) {
            // Ring activity ends a boost.
            state.boosted = false;
        }
        let (doing, left_ns) = match step {
            Step::Compute(ns) => (Doing::Work(Then::Nothing), ns.max(1)),
            Step::Launch(kernel) => (Doing::Work(Then::Submit(kernel)), transport.submit_ns.max(1)),
            Step::Call if transport.lock_step => {
                (Doing::Work(Then::Nothing), transport.round_trip_ns.max(1))
            }
            Step::Call => (Doing::Work(Then::Nothing), transport.submit_ns.max(1)),
            Step::Query => (Doing::Work(Then::Nothing), transport.round_trip_ns.max(1)),
            Step::Sync => (Doing::Work(Then::Await), (transport.round_trip_ns / 2).max(1)),
            Step::Sleep(ns) => {
                self.clock.after(ns.max(1), Tick::Alarm { vcpu });
                (Doing::Asleep, 0)
            }
            Step::Die(how) => {
                // It ends once this step is over: what it sets off may concern this core.
                self.dying.push((vcpu, how));
                (Doing::Asleep, 0)
            }
            Step::End => (Doing::Ended, 0),
        };
        (state.doing, state.left_ns) = (doing, left_ns);
        if matches!(step, Step::Sync | Step::Query)
            && let Some(worker) = worker
        {
            self.workers[worker].gate.count_sync_call();
        }
        !matches!(doing, Doing::Asleep | Doing::Ended)
    }

    fn submit(&mut self, vcpu: usize, kernel: crate::kernel::Kernel) {
        let Some(worker) = self.vcpus[vcpu].worker else {
            self.vcpus[vcpu].doing = Doing::Between;
            return;
        };
        self.arrive(worker, kernel);
        let (submitted, finished) = (self.workers[worker].submitted, self.workers[worker].finished);
        if self.vcpus[vcpu].transport.lock_step {
            self.wait_until(vcpu, worker, Doing::Await(submitted));
        } else if submitted >= finished + LANE_DEPTH {
            self.wait_until(vcpu, worker, Doing::Space(submitted - LANE_DEPTH / 2));
        } else {
            self.vcpus[vcpu].doing = Doing::Between;
        }
    }

    fn begin_wait(&mut self, vcpu: usize) {
        let Some(worker) = self.vcpus[vcpu].worker else {
            self.vcpus[vcpu].doing = Doing::Between;
            return;
        };
        let (submitted, finished) = (self.workers[worker].submitted, self.workers[worker].finished);
        if finished >= submitted {
            let half_ns = self.vcpus[vcpu].transport.round_trip_ns / 2;
            let state = &mut self.vcpus[vcpu];
            (state.doing, state.left_ns) = (Doing::Work(Then::Nothing), half_ns.max(1));
        } else {
            self.wait_until(vcpu, worker, Doing::Await(submitted));
        }
    }

    fn wait_until(&mut self, vcpu: usize, worker: usize, doing: Doing) {
        let (Doing::Await(until) | Doing::Space(until)) = doing else { return };
        self.workers[worker].waited_for = Some(until);
        let state = &mut self.vcpus[vcpu];
        state.doing = doing;
        state.left_ns = self.setup.spin_ns.unwrap_or(u64::MAX / 4).max(1);
        self.announce();
    }
}
