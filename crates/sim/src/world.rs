//! A node: books' programs on vCPUs, workers, a device, and the daemon's driver around the real
//! scheduling core.

use std::collections::{BTreeSet, VecDeque};

use weft_sched::{
    Cap, Class, Config, DeviceKey, Event, Node, SessionKey, TenantKey, VgpuKey, Weight, policy,
};
use weft_turn::{Accounting, Gate, Grace, Holder, Meter, PlainPage, Terms, Turns, lead_ns};

use crate::calibration::Calibration;
use crate::checks::{Bearer, Checks, Limits};
use crate::clock::{Clock, Tick};
use crate::cpu::{CpuScheduler, Doing, Place, Processor, Vcpu};
use crate::device::Gpu;
use crate::preempt::Preemption;
use crate::program::{Behaviour, Return, Transport};
use crate::random::Random;
use crate::worker::{Source, Worker};

pub(crate) const DEVICE: DeviceKey = DeviceKey(0);

/// How a simulated node is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The policy's name.
    pub policy: &'static str,
    /// Settings of the core.
    pub config: Config,
    /// What things cost.
    pub costs: Calibration,
    /// The cores' scheduler.
    pub cpu: CpuScheduler,
    /// Interactive vGPUs' vCPUs are woken and boosted when their turn begins.
    pub coscheduling: bool,
    /// How long a vCPU polls for an answer before it blocks; `None`: for ever.
    pub spin_ns: Option<u64>,
    /// Holders keep the device while they have nothing to do (the control of work conservation).
    pub hold_idle: bool,
    /// The device can stop a kernel in the middle; `None`: it executes each to its end.
    pub preemption: Option<Preemption>,
    /// Commands of one session in the hardware's queue.
    pub hardware_queue: usize,
    /// The device tells how long a command takes of which its like was executed before, as one on
    /// the paced clock does; otherwise that is predicted.
    pub tells_lengths: bool,
    /// The device begins a command by itself when the one before it ends; otherwise its worker
    /// does, so that a queue of commands whose length is only predicted gains nothing.
    pub runs_ahead: bool,
    /// Workers know when what executes will end, and wake callers shortly before: on the paced
    /// clock, and about so on a GPU. On the real clock a worker of the software GPU executes by
    /// itself, and learns of an end when it is there.
    pub tells_ends: bool,
    /// Workers start nothing behind a kernel of which nothing is known, and keep their turn while
    /// one that has outlived its estimate executes.
    pub careful: bool,
    /// Sessions that end are charged for what the device did of their work in flight; a control
    /// where they are not.
    pub charges_killed: bool,
    /// How device time becomes charges.
    pub accounting: Accounting,
    /// What makes this run differ from others.
    pub seed: u64,
    /// Length of a bin of the share plot, in ns; 0 for none.
    pub bin_ns: u64,
}

impl Setup {
    /// A node of this policy with the default settings and costs.
    pub fn new(policy: &'static str, seed: u64) -> Self {
        Self {
            policy,
            config: Config::default(),
            costs: Calibration::default(),
            cpu: CpuScheduler::Eevdf,
            coscheduling: true,
            spin_ns: Some(50_000),
            hold_idle: false,
            preemption: None,
            hardware_queue: 32,
            tells_lengths: false,
            runs_ahead: true,
            tells_ends: true,
            careful: true,
            charges_killed: true,
            accounting: Accounting::Every,
            seed,
            bin_ns: 0,
        }
    }

    /// Another quantum.
    #[must_use]
    pub fn quantum(mut self, quantum_ns: u64) -> Self {
        self.config.quantum_ns = quantum_ns;
        self
    }
}

#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) tenant: usize,
    pub(crate) sessions: Vec<usize>,
    /// Device time of its work as the device executed it, in ns.
    pub(crate) work_ns: u64,
    /// Kernels that finished.
    pub(crate) kernels: u64,
    /// When its device command last began to wait, while it waits for its first service.
    pub(crate) asked_ns: Option<u64>,
    /// Its longest wait for service after a wake-up, in ns.
    pub(crate) wait_max_ns: u64,
    /// Its longest time without service while it had work, in ns.
    pub(crate) gap_max_ns: u64,
    pub(crate) last_service_ns: u64,
    pub(crate) was_backlogged: bool,
    /// Its cap holds it back.
    pub(crate) throttled: bool,
}

/// A run that the core or the set-up refuses.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The core has no such policy.
    #[error(transparent)]
    Policy(#[from] policy::UnknownPolicy),
    /// The core refuses the settings.
    #[error(transparent)]
    Config(#[from] weft_sched::ConfigError),
}

/// The simulated node.
#[derive(Debug)]
pub struct World {
    pub(crate) setup: Setup,
    pub(crate) clock: Clock,
    pub(crate) turns: Turns<PlainPage>,
    /// How the device is shared.
    pub(crate) config: Config,
    pub(crate) gpu: Gpu,
    pub(crate) books: Vec<Books>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) cores: Vec<Processor>,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) dirty: BTreeSet<usize>,
    pub(crate) rung: bool,
    pub(crate) checks: Checks,
    pub(crate) working: usize,
    pub(crate) todo: VecDeque<usize>,
    /// vCPUs whose sessions are killed when the present step is over.
    pub(crate) dying: Vec<(usize, Return)>,
    pub(crate) turns_begun: Vec<u64>,
    /// vGPUs that have, or had, a cap.
    pub(crate) capped: Vec<usize>,
    tenants: usize,
    bins: Vec<Vec<u64>>,
    binned: Vec<u64>,
}

impl World {
    /// An empty node.
    ///
    /// # Errors
    /// If the core has no such policy or refuses the settings.
    pub fn new(setup: Setup) -> Result<Self, SetupError> {
        let mut config = setup.config;
        config.policy = policy::by_name(setup.policy)?;
        if setup.hold_idle {
            // It keeps its turn, pauses and all, for a quantum.
            config.yield_ns = config.quantum_ns;
        }
        if let Some(preemption) = setup.preemption {
            // A change of hands takes so much longer, and is worth so much longer a pause.
            config.yield_ns += preemption.cost_ns();
        }
        config.validate()?;
        let limits = Limits::of(&config, &setup);
        let mut world = Self {
            clock: Clock::default(),
            turns: Turns::new(Node::new()),
            config,
            gpu: Gpu::default(),
            books: Vec::new(),
            workers: Vec::new(),
            cores: Vec::new(),
            vcpus: Vec::new(),
            dirty: BTreeSet::new(),
            rung: false,
            checks: Checks::new(limits),
            working: 0,
            todo: VecDeque::new(),
            dying: Vec::new(),
            turns_begun: Vec::new(),
            capped: Vec::new(),
            tenants: 1,
            bins: Vec::new(),
            binned: Vec::new(),
            setup,
        };
        world.tell(Event::DeviceUp { device: DEVICE, config });
        if world.setup.bin_ns > 0 {
            world.clock.after(world.setup.bin_ns, Tick::Bin);
        }
        Ok(world)
    }

    /// A new tenant, for vGPUs of its own; the result is its number. Tenant 0 is there from the
    /// beginning, with weight 1.
    pub fn tenant(&mut self, weight: u32) -> usize {
        let number = self.tenants;
        self.tenants += 1;
        let weight = Weight::new(weight).unwrap_or_default();
        self.checks.add_tenant(number, weight);
        self.tell(Event::AddTenant { tenant: tenant_key(number), weight });
        number
    }

    /// A new vGPU of tenant 0; the result is its number.
    pub fn vgpu(&mut self, weight: u32) -> usize {
        self.vgpu_of(0, weight)
    }

    /// A new vGPU of a tenant; the result is its number.
    pub fn vgpu_of(&mut self, tenant: usize, weight: u32) -> usize {
        let number = self.books.len();
        let weight = Weight::new(weight).unwrap_or_default();
        self.books.push(Books {
            tenant,
            sessions: Vec::new(),
            work_ns: 0,
            kernels: 0,
            asked_ns: None,
            wait_max_ns: 0,
            gap_max_ns: 0,
            last_service_ns: 0,
            was_backlogged: false,
            throttled: false,
        });
        self.turns_begun.push(0);
        self.binned.push(0);
        self.checks.add_vgpu(number, tenant, weight);
        let (vgpu, tenant) = (vgpu_key(number), tenant_key(tenant));
        self.tell(Event::AddVgpu { vgpu, device: DEVICE, tenant, weight });
        number
    }

    /// A session of `vgpu` that gets its commands from `source`; the result is its number.
    pub fn session(&mut self, vgpu: usize, source: Source) -> usize {
        let number = self.workers.len();
        let random = Random::part(self.setup.seed, number as u64);
        let endless = matches!(source, Source::Endless { .. });
        let page = self.page();
        let gate = Gate::new(page.clone());
        let meter = Meter::new(self.setup.accounting);
        let mut grace = Grace::new(self.config.yield_ns);
        grace.set_earned(Grace::is_earned(&self.config));
        self.workers.push(Worker::new(vgpu, source, (Holder::new(page), meter, grace), random));
        self.books[vgpu].sessions.push(number);
        self.checks.add_session(number, vgpu);
        let key = session_key(number);
        self.drive(|turns, witness| turns.begin(witness, key, vgpu_key(vgpu), gate));
        if endless {
            self.note_work(number, false);
            self.poke(number, 0);
        }
        number
    }

    fn page(&self) -> PlainPage {
        let node = self.turns.node();
        let terms = Terms {
            lead_ns: lead_ns(&self.config),
            unmanaged: node.is_shared(DEVICE),
            earned: Grace::is_earned(&self.config),
            by_wall: node.slices_wall_time(DEVICE),
        };
        PlainPage::new(terms, self.clock.shared())
    }

    /// A program of `vgpu`, on a core of its own or on one that others use too. `cpu_weight` is
    /// its share of that core.
    pub fn program(
        &mut self,
        vgpu: usize,
        behaviour: Box<dyn Behaviour>,
        transport: Transport,
        core: Option<usize>,
        cpu_weight: u64,
    ) -> usize {
        let worker = self.session(vgpu, Source::Program);
        let vcpu = self.vcpu(Some(worker), behaviour, transport, core, cpu_weight);
        self.workers[worker].vcpu = Some(vcpu);
        worker
    }

    /// A vCPU, with a session or without.
    pub fn vcpu(
        &mut self,
        worker: Option<usize>,
        behaviour: Box<dyn Behaviour>,
        transport: Transport,
        core: Option<usize>,
        cpu_weight: u64,
    ) -> usize {
        let core = core.unwrap_or(self.cores.len());
        while self.cores.len() <= core {
            self.cores.push(Processor::default());
        }
        let number = self.vcpus.len();
        self.vcpus.push(Vcpu {
            core,
            weight: cpu_weight,
            worker,
            transport,
            behaviour,
            place: Place::Blocked,
            doing: Doing::Between,
            left_ns: 0,
            vruntime: self.cores[core].floor,
            deadline: 0,
            boosted: false,
            waking: true,
            ran_ns: 0,
            woken_ns: None,
            wake_delays_ns: Vec::new(),
        });
        self.clock.after(0, Tick::Awake { vcpu: number, boosted: false });
        number
    }

    /// Changes a vGPU's weight now.
    pub fn reweight(&mut self, vgpu: usize, weight: u32) {
        let weight = Weight::new(weight).unwrap_or_default();
        self.count_service();
        self.checks.reweight_vgpu(vgpu, weight);
        self.change(Event::Reweight { vgpu: vgpu_key(vgpu), weight });
    }

    /// Changes a tenant's weight now.
    pub fn reweight_tenant(&mut self, tenant: usize, weight: u32) {
        let weight = Weight::new(weight).unwrap_or_default();
        self.count_service();
        self.checks.reweight_tenant(tenant, weight);
        self.change(Event::ReweightTenant { tenant: tenant_key(tenant), weight });
    }

    /// Changes a session's weight now; it is 1 before.
    pub fn reweight_session(&mut self, session: usize, weight: u32) {
        let weight = Weight::new(weight).unwrap_or_default();
        self.count_service();
        self.checks.reweight_session(session, weight);
        self.change(Event::ReweightSession { session: session_key(session), weight });
    }

    /// Gives a vGPU, or a tenant with the vGPUs that it has now, a cap from now on, or none.
    pub fn set_cap(&mut self, bearer: Bearer, cap: Option<Cap>) {
        self.hold_against(bearer, cap);
        for vgpu in 0..self.books.len() {
            let is_capped = match bearer {
                Bearer::Vgpu(own) => own == vgpu,
                Bearer::Tenant(tenant) => self.books[vgpu].tenant == tenant,
            };
            if is_capped && !self.capped.contains(&vgpu) {
                self.capped.push(vgpu);
            }
        }
        self.change(match bearer {
            Bearer::Vgpu(vgpu) => Event::SetCap { vgpu: vgpu_key(vgpu), cap },
            Bearer::Tenant(tenant) => Event::SetTenantCap { tenant: tenant_key(tenant), cap },
        });
    }

    /// Gives a vGPU a class from now on.
    pub fn set_class(&mut self, vgpu: usize, class: Class) {
        self.count_service();
        if class.is_user_facing() {
            self.checks.may_borrow(vgpu, self.setup.config.borrow_ns);
        }
        self.change(Event::SetClass { vgpu: vgpu_key(vgpu), class });
    }

    /// Checks what a bearer gets against a cap that the core may know nothing of.
    pub fn hold_against(&mut self, bearer: Bearer, cap: Option<Cap>) {
        self.count_service();
        self.checks.watch_cap(self.clock.now_ns, bearer, cap);
    }

    /// Tells the core of a change of settings, everybody's use until now before.
    fn change(&mut self, event: Event) {
        self.drive(|turns, witness| turns.report_all_holders(witness));
        self.tell(event);
        self.look();
    }

    /// Runs for so long.
    pub fn run_for(&mut self, duration_ns: u64) {
        let until_ns = self.clock.now_ns + duration_ns;
        while let Some(tick) = self.clock.next(until_ns) {
            self.tick(tick);
        }
        self.count_service();
    }

    fn tick(&mut self, tick: Tick) {
        match tick {
            Tick::Device { generation } => self.device_ended(generation),
            Tick::Slice { generation } => self.slice_ended(generation),
            Tick::Announce { generation, at_ns } => self.announced(generation, at_ns),
            Tick::Worker { worker } => {
                if self.workers[worker].poke_ns == Some(self.clock.now_ns) {
                    self.workers[worker].poke_ns = None;
                    self.run_worker(worker);
                }
            }
            Tick::Daemon => {
                self.rung = false;
                self.look();
            }
            Tick::Timer { at_ns } => {
                if self.turns.timer_ns() == Some(at_ns) {
                    self.keep_time();
                    self.look();
                }
            }
            Tick::Core { core, generation } => self.core_tick(core, generation),
            Tick::Awake { vcpu, boosted } => self.awake(vcpu, boosted),
            Tick::Answer { vcpu, until } => self.answered(vcpu, until),
            Tick::Alarm { vcpu } => self.alarm(vcpu),
            Tick::Bin => {
                self.count_service();
                let row = self.books.iter().zip(&mut self.binned).map(|(books, before)| {
                    let ns = books.work_ns - *before;
                    *before = books.work_ns;
                    ns
                });
                self.bins.push(row.collect());
                self.clock.after(self.setup.bin_ns, Tick::Bin);
            }
        }
        while let Some(worker) = self.todo.pop_front() {
            self.run_worker(worker);
        }
        while let Some((vcpu, how)) = self.dying.pop() {
            self.come_back(vcpu, how);
        }
    }

    /// The time, in ns.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns
    }

    /// Device time of each vGPU's executed work so far, in ns.
    pub fn work_ns(&self) -> Vec<u64> {
        self.books.iter().map(|books| books.work_ns).collect()
    }

    /// Device time of each session's executed work so far, in ns.
    pub fn session_work_ns(&self) -> Vec<u64> {
        self.workers.iter().map(|worker| worker.work_ns).collect()
    }

    /// By how much a vGPU at most exceeded the allowances of its cap over any run of periods, and
    /// by how much it may, in ns.
    pub fn cap_excess(&self, bearer: Bearer) -> Option<(i128, u64)> {
        self.checks.cap_excess(bearer)
    }

    /// Each vGPU's finished kernels.
    pub fn kernels(&self) -> Vec<u64> {
        self.books.iter().map(|books| books.kernels).collect()
    }

    /// Time that the device executed commands, in ns.
    pub fn busy_ns(&self) -> u64 {
        self.gpu.busy_ns
    }

    /// Per bin, what each vGPU was served, in ns.
    pub fn bins(&self) -> &[Vec<u64>] {
        &self.bins
    }

    /// Turns that each vGPU began.
    pub fn turns(&self) -> &[u64] {
        &self.turns_begun
    }

    /// Events that the core handled.
    pub fn decisions(&self) -> u64 {
        self.checks.decisions
    }

    /// The longest that a vGPU waited for service after it woke up, in ns.
    pub fn wait_max_ns(&self, vgpu: usize) -> u64 {
        self.books[vgpu].wait_max_ns
    }

    /// The longest that a vGPU had work and was not served, in ns, since the last call.
    pub fn take_gap_max_ns(&mut self, vgpu: usize) -> u64 {
        std::mem::take(&mut self.books[vgpu].gap_max_ns)
    }

    /// Processor time that a vCPU consumed, in ns.
    pub fn cpu_ns(&self, vcpu: usize) -> u64 {
        self.vcpus[vcpu].ran_ns
    }

    /// From each wake-up of a session's vCPU to when it ran, in ns.
    pub fn wake_delays_ns(&self, session: usize) -> &[u64] {
        self.workers[session].vcpu.map_or(&[], |vcpu| &self.vcpus[vcpu].wake_delays_ns)
    }

    /// Settles every account; the result is what was found broken on the way, and the closure.
    pub fn finish(&mut self) -> Verdict {
        self.count_service();
        for worker in 0..self.workers.len() {
            if !self.workers[worker].alive {
                continue;
            }
            let more_ns = self.workers[worker].meter.settle();
            self.workers[worker].gate.charge(0, more_ns);
            self.tell_elapsed();
            let session = session_key(worker);
            if let Some(usage) = self.turns.session(session).map(|one| one.gate.report().usage()) {
                self.tell(Event::Used { session, usage });
            }
        }
        let billed = (0..self.books.len())
            .filter_map(|vgpu| self.turns.node().vgpu(vgpu_key(vgpu)))
            .map(|view| view.used_ns);
        let gap_ns = weft_sched::invariants::billing_gap_ns(self.gpu.busy_ns, billed);
        // What the device executed of the command at its head is not reported before it ends.
        let unreported_ns = self.gpu.unreported_ns();
        // A session that was charged too much, by sampling, has it taken off its next charges.
        let credit_ns: u64 = self.workers.iter().map(|worker| worker.meter.unsettled_ns()).sum();
        Verdict {
            closure: gap_ns.unsigned_abs() as f64 / (self.gpu.busy_ns.max(1)) as f64,
            closure_slack: (unreported_ns + credit_ns) as f64 / (self.gpu.busy_ns.max(1)) as f64,
            decisions: self.checks.decisions,
            lag_violations: self.checks.lag_violations,
            lag_share_max: self.checks.lag_share(),
            other_violations: self.checks.other_violations,
            first: self.checks.first.clone(),
            idle_max_ns: self.checks.idle_max_ns(),
        }
    }
}

/// What the checks of a run found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// |Σ charges − device busy| / busy.
    pub closure: f64,
    /// The part of it that the command in execution explains, and what sessions were charged too
    /// much and have as credit.
    pub closure_slack: f64,
    /// Events handled by the core.
    pub decisions: u64,
    /// Steps at which two vGPUs were further apart than the bound.
    pub lag_violations: u64,
    /// The largest lag over its bound.
    pub lag_share_max: f64,
    /// Steps at which another invariant was broken.
    pub other_violations: u64,
    /// The first violation in words.
    pub first: Option<String>,
    /// The longest that the device was idle while somebody had work, in ns.
    pub idle_max_ns: u64,
}

pub(crate) fn tenant_key(number: usize) -> TenantKey {
    TenantKey(u32::try_from(number).expect("fewer than 2³² tenants"))
}

pub(crate) fn vgpu_key(number: usize) -> VgpuKey {
    VgpuKey(u32::try_from(number).expect("fewer than 2³² vGPUs"))
}

pub(crate) fn session_key(number: usize) -> SessionKey {
    SessionKey(u32::try_from(number).expect("fewer than 2³² sessions"))
}
