//! A small model of a node around the real core: a first-come-first-served device, one worker per
//! session that gates itself by its grant, and tenants that offer work. It checks the invariants at
//! every step from what the device executed.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]
#![allow(dead_code, reason = "each test binary uses a part of the model")]

mod accounts;
pub(crate) mod histories;
mod random;
pub(crate) mod steps;
mod turns;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use weft_sched::invariants::{CapCheck, LagTree, Rising, WorkConservation, audit};
use weft_sched::{
    Action, Actions, Cap, Class, Config, DeviceKey, Event, Node, PolicyId, SessionKey, Tag,
    TenantKey, Usage, VgpuKey, Weight, policy,
};

pub(crate) use random::Random;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// The longest command that tests offer.
pub(crate) const PIECE_MAX_NS: u64 = 50 * MS;
pub(crate) const DEVICE: DeviceKey = DeviceKey(0);

/// How workers behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Release when the budget's last command is submitted, not when it has finished.
    pub(crate) pipelined: bool,
    /// Device time in flight at which a worker submits no more, a lone one too.
    pub(crate) window_ns: u64,
    /// How wrong predictions of work in flight are, in thousandths.
    pub(crate) error_permille: i64,
    /// How long after a release's last command the exact figure is reported.
    pub(crate) settle_delay_ns: u64,
    /// The longest time for which the device is written for a vGPU's memory when a turn begins.
    pub(crate) switch_ns: u64,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            pipelined: false,
            window_ns: 6 * MS,
            error_permille: 0,
            settle_delay_ns: 0,
            switch_ns: 0,
        }
    }
}

/// What a tenant offers.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    /// Always more commands, of these sizes in turn.
    Saturating(Vec<u64>),
    /// A command of this size, then nothing for that long after it finished.
    Pausing { size_ns: u64, pause_ns: u64 },
    /// What the test offers by hand.
    Manual,
}

#[derive(Debug)]
struct Worker {
    vgpu: usize,
    load: Load,
    issued: usize,
    pending: VecDeque<u64>,
    in_flight_ns: u64,
    finished_ns: u64,
    idle_ns: u64,
    /// Since when it holds a grant with nothing to do.
    idle_since: Option<u64>,
    grant: Option<Grant>,
    /// Since when nothing came, through reports too.
    paused_since: Option<u64>,
    /// Until when the device is written for its memory, and how long that took, in turns before
    /// that nobody else's came between, too.
    switching_until: u64,
    dear_ns: u64,
    runnable: bool,
    alive: bool,
    /// When it got work, until that is served.
    asked_ns: Option<u64>,
    longest_wait_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    epoch: u64,
    budget_ns: u64,
    /// Submitted plus idle when the turn began.
    base_ns: u64,
    revoked: bool,
}

#[derive(Debug)]
struct Vgpu {
    tenant: usize,
    weight: Weight,
    served_ns: u64,
    /// What it was seen to be charged for switches.
    switches_ns: u64,
    cap: Option<CapCheck>,
    alive: bool,
}

/// A tenant of the core.
#[derive(Debug)]
struct Tenant {
    cap: Option<CapCheck>,
    alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tick {
    Arrives { worker: usize, size_ns: u64 },
    Settles { worker: usize },
    Switched { worker: usize },
}

#[derive(Debug)]
struct Command {
    worker: usize,
    left_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now: u64,
    pub(crate) node: Node,
    pub(crate) lag: LagTree,
    pub(crate) waste: WorkConservation,
    pub(crate) busy_ns: u64,
    pub(crate) decisions: u64,
    /// Commands, timers and ticks so far.
    pub(crate) steps: u64,
    pub(crate) kills: Vec<SessionKey>,
    pub(crate) check_fairness: bool,
    pub(crate) check_waste: bool,
    /// Schedulers that do not know what is in flight do not cap it.
    pub(crate) check_caps: bool,
    /// Whether the core's tables are held against each other after every event.
    pub(crate) audits: bool,
    pub(crate) turns: u64,
    habits: Habits,
    actions: Actions,
    todo: VecDeque<Action>,
    ticks: BinaryHeap<Reverse<(u64, u64, Tick)>>,
    sequence: u64,
    tenants: Vec<Tenant>,
    vgpus: Vec<Vgpu>,
    workers: Vec<Worker>,
    queue: VecDeque<Command>,
    timer: Option<u64>,
    epochs: Rising<u64>,
    virtual_time: Rising<Tag>,
    /// The vGPU of the last turn, and what its memory took: of batch vGPUs, and of user-facing
    /// ones since.
    last_turns: [Option<(usize, u64)>; 2],
    /// What was handled since recording began.
    pub(crate) history: Option<Vec<Handled>>,
}

/// An event, when, and what it caused.
pub(crate) type Handled = (u64, Event, Vec<Action>);

impl Model {
    pub(crate) fn new(policy: &str, habits: Habits) -> Self {
        let config = Config { policy: policy::by_name(policy).unwrap(), ..Config::default() };
        Self::with_config(config, habits)
    }

    pub(crate) fn with_config(config: Config, mut habits: Habits) -> Self {
        // A lone worker too has at most a quantum in flight: a newcomer waits for it.
        habits.window_ns = habits.window_ns.min(config.quantum_ns);
        let fair = config.policy.name() == "fair";
        let overlap_ns = if habits.pipelined { config.overlap_ns } else { 0 };
        // A wrong prediction moves a tag, and the handover, by its error until it is settled.
        let in_flight_ns = habits.window_ns + PIECE_MAX_NS;
        let error_ns = in_flight_ns / 1000 * habits.error_permille.unsigned_abs();
        let turn_ns = config.quantum_ns
            + overlap_ns
            + error_ns
            + config.sleeper_credit_ns
            + config.sigma_ns();
        let mut model = Self {
            now: 0,
            node: Node::new(),
            lag: LagTree::new(turn_ns),
            waste: WorkConservation::new(config.yield_ns + overlap_ns + error_ns),
            busy_ns: 0,
            decisions: 0,
            steps: 0,
            kills: Vec::new(),
            check_fairness: fair,
            check_waste: true,
            check_caps: accounts_for_work(config.policy),
            audits: true,
            turns: 0,
            habits,
            actions: Actions::new(),
            todo: VecDeque::new(),
            ticks: BinaryHeap::new(),
            sequence: 0,
            tenants: vec![Tenant { cap: None, alive: true }],
            vgpus: Vec::new(),
            workers: Vec::new(),
            queue: VecDeque::new(),
            timer: None,
            epochs: Rising::default(),
            virtual_time: Rising::default(),
            last_turns: [None; 2],
            history: None,
        };
        model.lag.add_tenant(TenantKey::DEFAULT, Weight::ONE);
        model.tell(Event::DeviceUp { device: DEVICE, config });
        model
    }

    /// A tenant of the core, for vGPUs of its own.
    pub(crate) fn group(&mut self, weight: u32) -> usize {
        let key = self.tenants.len();
        let weight = Weight::new(weight).unwrap();
        self.tenants.push(Tenant { cap: None, alive: true });
        self.lag.add_tenant(tenant_key(key), weight);
        self.tell(Event::AddTenant { tenant: tenant_key(key), weight });
        key
    }

    pub(crate) fn reweight_group(&mut self, group: usize, weight: u32) {
        self.settle();
        let (tenant, weight) = (tenant_key(group), Weight::new(weight).unwrap());
        self.lag.reweight_tenant(tenant, weight);
        self.tell(Event::ReweightTenant { tenant, weight });
    }

    pub(crate) fn remove_group(&mut self, group: usize) {
        if group == 0 {
            return;
        }
        for vgpu in self.vgpus_alive() {
            if self.vgpus[vgpu].tenant == group {
                self.remove_vgpu(vgpu);
            }
        }
        self.tenants[group].alive = false;
        self.lag.remove_tenant(tenant_key(group));
        self.tell(Event::RemoveTenant { tenant: tenant_key(group) });
    }

    /// A vGPU of the default tenant.
    pub(crate) fn vgpu(&mut self, weight: u32) -> usize {
        self.vgpu_of(0, weight)
    }

    pub(crate) fn vgpu_of(&mut self, group: usize, weight: u32) -> usize {
        let key = self.vgpus.len();
        let (tenant, weight) = (tenant_key(group), Weight::new(weight).unwrap());
        self.lag.add_vgpu(vgpu_key(key), tenant, weight);
        let fresh =
            Vgpu { tenant: group, weight, served_ns: 0, switches_ns: 0, cap: None, alive: true };
        self.vgpus.push(fresh);
        self.tell(Event::AddVgpu { vgpu: vgpu_key(key), tenant, device: DEVICE, weight });
        key
    }

    pub(crate) fn set_cap(&mut self, vgpu: usize, cap: Option<Cap>) {
        self.settle();
        self.vgpus[vgpu].cap = self.check_of(cap);
        self.tell(Event::SetCap { vgpu: vgpu_key(vgpu), cap });
    }

    pub(crate) fn set_group_cap(&mut self, group: usize, cap: Option<Cap>) {
        self.settle();
        self.tenants[group].cap = self.check_of(cap);
        self.tell(Event::SetTenantCap { tenant: tenant_key(group), cap });
    }

    /// Holds what is served from now on against a cap.
    fn check_of(&self, cap: Option<Cap>) -> Option<CapCheck> {
        // What is in flight may be served in a period after the one that it was counted to.
        let quantum_ns = self.node.config(DEVICE).unwrap().quantum_ns.max(self.habits.window_ns);
        let in_flight_ns = quantum_ns + PIECE_MAX_NS;
        let error_ns = in_flight_ns / 1000 * self.habits.error_permille.unsigned_abs();
        let slack_ns = in_flight_ns + PIECE_MAX_NS + error_ns;
        cap.map(|cap| CapCheck::new(cap, slack_ns, self.now))
    }

    pub(crate) fn set_class(&mut self, vgpu: usize, class: Class) {
        self.settle();
        if class.is_user_facing() {
            let borrow_ns = self.node.config(DEVICE).unwrap().borrow_ns;
            self.lag.may_borrow(vgpu_key(vgpu), borrow_ns);
        }
        self.tell(Event::SetClass { vgpu: vgpu_key(vgpu), class });
    }

    pub(crate) fn session(&mut self, vgpu: usize, load: Load) -> usize {
        let key = self.workers.len();
        self.workers.push(Worker {
            vgpu,
            load: load.clone(),
            issued: 0,
            pending: VecDeque::new(),
            in_flight_ns: 0,
            finished_ns: 0,
            idle_ns: 0,
            idle_since: None,
            grant: None,
            paused_since: None,
            switching_until: 0,
            dear_ns: 0,
            runnable: false,
            alive: true,
            asked_ns: None,
            longest_wait_ns: 0,
        });
        self.lag.add_session(session_key(key), vgpu_key(vgpu), Weight::ONE);
        self.tell(Event::AddSession { session: session_key(key), vgpu: vgpu_key(vgpu) });
        match load {
            Load::Saturating(sizes) => {
                for size_ns in sizes.iter().cycle().take(16) {
                    self.offer(key, *size_ns);
                }
                self.workers[key].issued = 16;
            }
            Load::Pausing { size_ns, .. } => self.offer(key, size_ns),
            Load::Manual => {}
        }
        key
    }

    /// A vGPU with one session.
    pub(crate) fn tenant(&mut self, weight: u32, load: Load) -> usize {
        let vgpu = self.vgpu(weight);
        self.session(vgpu, load);
        vgpu
    }

    pub(crate) fn served_ns(&self, vgpu: usize) -> u64 {
        self.vgpus[vgpu].served_ns
    }

    /// How long it held turns with nothing to do.
    pub(crate) fn idled_ns(&self, vgpu: usize) -> u64 {
        self.workers.iter().filter(|worker| worker.vgpu == vgpu).map(|worker| worker.idle_ns).sum()
    }

    /// The longest that a session that got work waited until it was served.
    pub(crate) fn longest_wait_ns(&self, worker: usize) -> u64 {
        self.workers[worker].longest_wait_ns
    }

    pub(crate) fn groups_alive(&self) -> Vec<usize> {
        (0..self.tenants.len()).filter(|key| self.tenants[*key].alive).collect()
    }

    pub(crate) fn sessions_alive(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|key| self.workers[*key].alive).collect()
    }

    pub(crate) fn vgpus_alive(&self) -> Vec<usize> {
        (0..self.vgpus.len()).filter(|key| self.vgpus[*key].alive).collect()
    }

    pub(crate) fn reweight(&mut self, vgpu: usize, weight: u32) {
        for worker in self.sessions_alive() {
            if self.workers[worker].vgpu == vgpu {
                self.report(worker);
            }
        }
        let weight = Weight::new(weight).unwrap();
        self.vgpus[vgpu].weight = weight;
        self.lag.reweight_vgpu(vgpu_key(vgpu), weight);
        self.tell(Event::Reweight { vgpu: vgpu_key(vgpu), weight });
    }

    pub(crate) fn reweight_session(&mut self, worker: usize, weight: u32) {
        self.settle();
        let (session, weight) = (session_key(worker), Weight::new(weight).unwrap());
        self.lag.reweight_session(session, weight);
        self.tell(Event::ReweightSession { session, weight });
    }

    /// Fairness is checked under `fair` alone; its intervals begin anew at the change.
    pub(crate) fn set_policy(&mut self, name: &str) {
        let policy = policy::by_name(name).unwrap();
        let old: PolicyId = self.node.policy(DEVICE).unwrap();
        self.check_fairness = false;
        self.check_waste &= name != "unmanaged";
        self.check_caps &= accounts_for_work(policy);
        self.tell(Event::SetPolicy { device: DEVICE, policy });
        assert_eq!(self.node.policy(DEVICE), Some(policy), "from {old:?}");
    }

    /// Commands of a tenant arrive.
    pub(crate) fn offer(&mut self, worker: usize, size_ns: u64) {
        if !self.workers[worker].alive {
            return;
        }
        self.workers[worker].pending.push_back(size_ns);
        self.workers[worker].stop_idling(self.now);
        if !self.workers[worker].runnable {
            self.workers[worker].runnable = true;
            self.workers[worker].asked_ns = Some(self.now);
            self.report_holders();
            self.tell(Event::Runnable { session: session_key(worker), estimate_ns: size_ns });
            self.observe_session(worker);
        }
        self.pump(worker);
    }

    /// The worker dies: what it executed is reported, what it queued is gone.
    pub(crate) fn kill(&mut self, worker: usize) {
        self.report(worker);
        let cut: u64 = self.drop_commands(worker);
        let state = &mut self.workers[worker];
        state.alive = false;
        state.in_flight_ns -= cut;
        state.runnable = false;
        state.pending.clear();
        state.grant = None;
        self.lag.remove_session(session_key(worker));
        self.tell(Event::RemoveSession { session: session_key(worker) });
    }

    pub(crate) fn remove_vgpu(&mut self, vgpu: usize) {
        for worker in self.sessions_alive() {
            if self.workers[worker].vgpu == vgpu {
                self.kill(worker);
            }
        }
        self.vgpus[vgpu].alive = false;
        let billed = self.node.vgpu(vgpu_key(vgpu)).unwrap().used_ns;
        assert_eq!(billed, self.vgpus[vgpu].served_ns, "bill of a removed vGPU");
        self.lag.remove_vgpu(vgpu_key(vgpu));
        self.tell(Event::RemoveVgpu { vgpu: vgpu_key(vgpu) });
    }

    pub(crate) fn set_device(&mut self, up: bool) {
        self.check_waste = false;
        let config = *self.node.config(DEVICE).unwrap();
        let event = Event::DeviceUp { device: DEVICE, config };
        self.tell(if up { event } else { Event::DeviceDown { device: DEVICE } });
    }

    pub(crate) fn run_for(&mut self, duration: u64) {
        let until = self.now + duration;
        self.observe();
        loop {
            let later = |at: u64| self.now.max(at);
            let finish = self.queue.front().map_or(u64::MAX, |front| self.now + front.left_ns);
            let timer = self.timer.map_or(u64::MAX, later);
            let tick = self.ticks.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
            let at = finish.min(timer).min(tick);
            if at > until {
                break;
            }
            self.steps += 1;
            self.advance(at);
            if at == timer {
                self.timer = None;
                // A cap's refill wakes like `Runnable` does.
                self.report_holders();
                self.tell(Event::Timer);
            } else if at == finish {
                self.finish();
            } else {
                let Reverse((_, _, tick)) = self.ticks.pop().unwrap();
                self.tick(tick);
            }
            self.observe();
        }
        self.advance(until);
    }

    /// Reports every counter, so that bills can be compared with the device.
    pub(crate) fn settle(&mut self) {
        for worker in self.sessions_alive() {
            self.report(worker);
        }
    }

    /// Every nanosecond that the device served is billed to the vGPU it served.
    pub(crate) fn check_bills(&mut self) {
        self.settle();
        for vgpu in self.vgpus_alive() {
            let view = self.node.vgpu(vgpu_key(vgpu)).unwrap();
            assert_eq!(view.used_ns, self.vgpus[vgpu].served_ns, "bill of vGPU {vgpu}");
        }
        let served: u64 = self.vgpus.iter().map(|vgpu| vgpu.served_ns).sum();
        assert_eq!(served, self.busy_ns);
    }

    /// `min xᵢ / max xᵢ`, `xᵢ` service per weight since `before`.
    pub(crate) fn mmr_since(&self, before: &[u64]) -> f64 {
        let shares: Vec<f64> = (0..self.vgpus.len())
            .map(|vgpu| {
                let served_ns = self.vgpus[vgpu].served_ns - before[vgpu];
                to_f64(served_ns) / f64::from(self.vgpus[vgpu].weight.get())
            })
            .collect();
        let largest = shares.iter().copied().fold(0.0, f64::max);
        shares.iter().copied().fold(f64::INFINITY, f64::min) / largest
    }

    pub(crate) fn served(&self) -> Vec<u64> {
        self.vgpus.iter().map(|vgpu| vgpu.served_ns).collect()
    }

    fn tick(&mut self, tick: Tick) {
        match tick {
            Tick::Arrives { worker, size_ns } => self.offer(worker, size_ns),
            Tick::Settles { worker } => {
                if self.workers[worker].alive {
                    self.report(worker);
                }
            }
            Tick::Switched { worker } => self.pump(worker),
        }
    }

    /// The device works until `at`, and says for whom.
    fn advance(&mut self, at: u64) {
        let (since, elapsed) = (self.now, at - self.now);
        self.now = at;
        let Some(command) = self.queue.front_mut() else { return };
        assert!(elapsed <= command.left_ns, "a finish is never late");
        command.left_ns -= elapsed;
        let worker = command.worker;
        let state = &mut self.workers[worker];
        if let Some(asked_ns) = state.asked_ns.take() {
            state.longest_wait_ns = state.longest_wait_ns.max(since - asked_ns);
        }
        self.workers[worker].in_flight_ns -= elapsed;
        self.workers[worker].finished_ns += elapsed;
        let vgpu = &mut self.vgpus[self.workers[worker].vgpu];
        vgpu.served_ns += elapsed;
        self.busy_ns += elapsed;
        let tenant = &mut self.tenants[vgpu.tenant];
        for cap in [&mut vgpu.cap, &mut tenant.cap].into_iter().flatten() {
            if let Err(error) = cap.served(since, at)
                && self.check_caps
            {
                panic!("{error} at {at}");
            }
        }
        if self.check_fairness
            && let Err(lag) = self.lag.served(session_key(worker), elapsed)
        {
            panic!("{lag} at {at}");
        }
    }

    fn finish(&mut self) {
        let command = self.queue.pop_front().unwrap();
        assert_eq!(command.left_ns, 0);
        let worker = command.worker;
        if let Load::Pausing { size_ns, pause_ns } = self.workers[worker].load {
            self.later(pause_ns, Tick::Arrives { worker, size_ns });
        }
        let state = &mut self.workers[worker];
        let (drained, granted) = (state.in_flight_ns == 0, state.grant.is_some());
        if drained && state.pending.is_empty() {
            state.runnable = false;
            state.idle_since = granted.then_some(self.now);
            state.paused_since = state.idle_since;
            self.observe_session(worker);
            self.tell(Event::Idle { session: session_key(worker) });
        }
        if drained && !granted {
            self.later(self.habits.settle_delay_ns, Tick::Settles { worker });
        }
        self.pump(worker);
    }

    /// A worker does what its grant allows.
    fn pump(&mut self, worker: usize) {
        loop {
            let window_ns = self.habits.window_ns;
            let state = &mut self.workers[worker];
            let Some(grant) = state.grant else { return };
            let held_ns = state.held_ns(self.now) - grant.base_ns;
            let over = grant.revoked || held_ns >= grant.budget_ns;
            if over && (self.habits.pipelined || state.in_flight_ns == 0) {
                return self.release(worker, grant);
            }
            if over || state.in_flight_ns >= window_ns || self.now < state.switching_until {
                return;
            }
            let Some(size_ns) = state.pending.pop_front() else { return };
            if let Load::Saturating(sizes) = &state.load {
                state.pending.push_back(sizes[state.issued % sizes.len()]);
                state.issued += 1;
            }
            state.in_flight_ns += size_ns;
            self.lag.submitted(session_key(worker), size_ns);
            self.queue.push_back(Command { worker, left_ns: size_ns });
        }
    }

    fn release(&mut self, worker: usize, grant: Grant) {
        self.workers[worker].stop_idling(self.now);
        self.workers[worker].grant = None;
        self.observe_session(worker);
        let usage = self.usage(worker);
        let session = session_key(worker);
        self.tell(Event::Released { session, epoch: grant.epoch, usage });
    }

    fn usage(&mut self, worker: usize) -> Usage {
        let state = &mut self.workers[worker];
        if state.idle_since.is_some() {
            state.stop_idling(self.now);
            state.idle_since = Some(self.now);
        }
        let in_flight = i64::try_from(state.in_flight_ns).unwrap();
        let wrong = in_flight + in_flight * self.habits.error_permille / 1000;
        Usage {
            used_ns: state.finished_ns,
            in_flight_ns: u64::try_from(wrong).unwrap(),
            idle_ns: state.idle_ns,
        }
    }

    fn report(&mut self, worker: usize) {
        let usage = self.usage(worker);
        self.tell(Event::Used { session: session_key(worker), usage });
    }

    fn report_holders(&mut self) {
        for worker in 0..self.workers.len() {
            if self.workers[worker].grant.is_some() {
                self.report(worker);
            }
        }
    }

    /// Delivers an event, then performs what it caused, in order.
    pub(crate) fn tell(&mut self, event: Event) {
        self.node.handle(self.now, event, &mut self.actions).unwrap();
        self.decisions += 1;
        if let Some(history) = &mut self.history {
            history.push((self.now, event, self.actions.as_slice().to_vec()));
        }
        self.todo.extend(self.actions.drain());
        self.virtual_time.observe(self.node.virtual_time(DEVICE).unwrap()).unwrap();
        if self.audits
            && let Err(broken) = audit(&self.node)
        {
            panic!("{broken}, after {event:?} at {}", self.now);
        }
        self.observe_caps();
        self.observe_charges();
        while let Some(action) = self.todo.pop_front() {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Grant { session, epoch, budget_ns, .. } => {
                self.take_grant(session.0 as usize, epoch, budget_ns);
                self.prefer_somebody(epoch);
            }
            Action::Revoke { session, epoch, .. } => {
                let worker = session.0 as usize;
                if let Some(grant) = &mut self.workers[worker].grant
                    && grant.epoch == epoch
                {
                    grant.revoked = true;
                    self.pump(worker);
                }
            }
            Action::Kill { session, .. } => self.kills.push(session),
            Action::Timer { at_ns, .. } => self.timer = Some(at_ns),
            Action::CancelTimer => self.timer = None,
            Action::Wake { .. } | Action::Prepare { .. } | Action::DeviceIdle { .. } => {}
        }
    }

    fn take_grant(&mut self, worker: usize, epoch: u64, budget_ns: u64) {
        let now = self.now;
        let state = &mut self.workers[worker];
        assert!(state.alive, "granted to the dead");
        match &mut state.grant {
            Some(grant) => {
                assert_eq!(grant.epoch, epoch, "a holder is granted again");
                grant.budget_ns = budget_ns;
            }
            None => {
                self.epochs.observe(epoch).unwrap();
                self.turns += 1;
                let base_ns = state.held_ns(now);
                state.grant = Some(Grant { epoch, budget_ns, base_ns, revoked: false });
                if !state.runnable {
                    state.idle_since = Some(now);
                    state.paused_since = Some(now);
                }
                self.switch(worker, epoch);
            }
        }
        self.observe_session(worker);
        self.pump(worker);
    }

    fn observe(&mut self) {
        // Waiting for whom the device owes service has a bound of its own: tests/protocol.rs.
        let kept = self.node.kept_until_ns(DEVICE).is_some_and(|until_ns| self.now <= until_ns);
        let is_switching =
            |state: &Worker| state.grant.is_some() && self.now < state.switching_until;
        // A turn that began with a switch is kept through a pause as long as that.
        let quantum_ns = self.node.config(DEVICE).unwrap().quantum_ns;
        let is_kept = |state: &Worker| {
            let since = state.idle_since.and(state.paused_since);
            since.is_some_and(|since| self.now <= since + state.dear_ns.min(quantum_ns))
        };
        let is_busy = |state: &Worker| is_switching(state) || is_kept(state);
        let busy = !self.queue.is_empty() || kept || self.workers.iter().any(is_busy);
        let wanted =
            self.workers.iter().any(|state| state.runnable && !self.is_throttled(state.vgpu));
        let result = self.waste.observe(self.now, busy, wanted);
        if self.check_waste
            && let Err(wasted_ns) = result
        {
            panic!("the device idled {wasted_ns} ns with work waiting, at {}", self.now);
        }
    }

    fn observe_session(&mut self, worker: usize) {
        let state = &self.workers[worker];
        self.lag.observe(session_key(worker), state.runnable, state.grant.is_some());
    }

    fn drop_commands(&mut self, worker: usize) -> u64 {
        let of_dead = |command: &&Command| command.worker == worker;
        let cut = self.queue.iter().filter(of_dead).map(|command| command.left_ns).sum();
        self.queue.retain(|command| command.worker != worker);
        cut
    }

    fn later(&mut self, delay_ns: u64, tick: Tick) {
        self.sequence += 1;
        self.ticks.push(Reverse((self.now + delay_ns, self.sequence, tick)));
    }
}

impl Worker {
    /// Submitted work plus time held for nothing.
    fn held_ns(&self, now: u64) -> u64 {
        let idling_ns = self.idle_since.map_or(0, |since| now - since);
        self.finished_ns + self.in_flight_ns + self.idle_ns + idling_ns
    }

    fn stop_idling(&mut self, now: u64) {
        if let Some(since) = self.idle_since.take() {
            self.idle_ns += now - since;
        }
    }
}

fn accounts_for_work(policy: PolicyId) -> bool {
    ["fair", "round_robin", "priority"].contains(&policy.name())
}

pub(crate) fn tenant_key(key: usize) -> TenantKey {
    TenantKey(u32::try_from(key).unwrap())
}

pub(crate) fn vgpu_key(key: usize) -> VgpuKey {
    VgpuKey(u32::try_from(key).unwrap())
}

pub(crate) fn session_key(key: usize) -> SessionKey {
    SessionKey(u32::try_from(key).unwrap())
}

fn to_f64(ns: u64) -> f64 {
    // Test durations are far below 2⁵³ ns; the detour avoids a lossy cast.
    f64::from(u32::try_from(ns / 1_000).unwrap()) * 1e3
}
