//! The scheduling thread: has the devices' turns taken ([`weft_turn::Turns`]), carries out orders
//! of other threads, and lets everybody know who watches.
//!
//! It sleeps on the node page's doorbell, with the core's next timer as the limit, so an idle node
//! uses next to no CPU. Everything it decides is decided in [`weft_sched`].

mod drain;
mod memory;
mod overstay;
mod place;
mod precedence;
mod responses;
mod sweep;
mod witness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use weft_gate::{DaemonSide, GateDaemon, NodePage};
use weft_ring::WakeFlag;
use weft_sched::{
    Config as SchedConfig, DeviceKey, Event, Node, PolicyId, SessionKey, Snapshot, VgpuKey, Weight,
};
use weft_turn::{Abandoned, Effect, Grace, Turns};

use super::clock;
use super::cosched::{Coscheduler, Waiters};
use super::persist::{Saver, Schedule};
use super::precedence::Ranks;
use super::process::WorkerProcess;
use super::recorder::{Chunk, Recorder, Trouble};
use super::registry::Holding;
use super::trace::{News, Trace};
use crate::admin::{Attainment, CoschedulingReport};

use self::drain::Drains;
use self::memory::Memory;
use self::overstay::Overstays;
pub(crate) use self::place::Place;
use self::precedence::Precedences;
use self::sweep::Sweep;
use self::witness::Witness;

/// A device whose turns are driven.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrivenDevice {
    /// Its key.
    pub(crate) key: DeviceKey,
    /// How it is shared.
    pub(crate) config: SchedConfig,
    /// What becomes of work in flight when its worker dies.
    pub(crate) abandoned: Abandoned,
}

/// Orders that are carried out before the sessions are looked at: who gives many keeps them waiting
/// so long and no longer.
const ORDERS_MAX: usize = 16;

/// What has happened is saved so long after it at the latest, and so often at most.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// What other threads want of the driver.
#[derive(Debug)]
pub(crate) enum Order {
    /// A vGPU got a session, or stands elsewhere in the hierarchy.
    Place(Place),
    /// A session's share of its vGPU's part.
    WeighSession {
        /// Which.
        session: u32,
        /// Its share.
        weight: Weight,
    },
    /// The device is written for a session's memory, in its turn: it executes nothing for so long.
    Switched {
        /// Whose.
        session: u32,
        /// How long, in ns.
        switch_ns: u64,
        /// And before, while others had the device.
        ahead_ns: u64,
    },
    /// In a session's turn an operation met memory whose slots others had.
    Paged {
        /// Whose.
        session: u32,
        /// How long it waited, in ns.
        paged_ns: u64,
    },
    /// A vGPU was removed.
    Forget {
        /// Which.
        vgpu: u32,
    },
    /// A session begins, or is adopted.
    Begin(Box<Beginning>),
    /// It has become known whom to help to run for a session that has begun.
    Help {
        /// Which.
        session: u32,
        /// Whom; nothing changes where somebody is helped already.
        waiters: Box<Waiters>,
    },
    /// A session's worker is dead, its turn perhaps not over.
    Drain {
        /// Which.
        session: u32,
        /// Is told that its work in flight occupies the device still, and dropped when it no longer
        /// does.
        answer: Sender<()>,
    },
    /// Nobody waits any more until what a dead session left behind is over.
    EndDrain {
        /// Whose.
        session: u32,
    },
    /// A session's worker is dead.
    End {
        /// Which.
        session: u32,
        /// Where to answer.
        answer: Sender<Option<Ended>>,
    },
    /// A session is to stand still, once for each number.
    Pause {
        /// Which.
        session: u32,
        /// Which time.
        number: u64,
    },
    /// A session stands still with work that waits: it has no answer yet.
    Stands {
        /// Which.
        session: u32,
    },
    /// A vGPU whose sessions stand still lives elsewhere from now on.
    Relocate {
        /// Which.
        vgpu: u32,
        /// Where.
        device: DeviceKey,
        /// Where to answer that it is so.
        answer: Sender<()>,
    },
    /// Another policy, of one device or of all.
    SetPolicy {
        /// Which device, if not all.
        device: Option<DeviceKey>,
        /// Which policy.
        policy: PolicyId,
    },
    /// vGPUs may use a device, or not.
    SetService {
        /// Which device.
        device: DeviceKey,
        /// Whether they may.
        in_service: bool,
    },
    /// What is going on.
    View(Sender<View>),
    /// Turns since this was last ordered.
    Turns(Sender<News>),
    /// Record from now on.
    Record {
        /// Names the recording.
        id: u64,
        /// Where it goes.
        chunks: SyncSender<Chunk>,
    },
    /// Record no more.
    StopRecording {
        /// Which recording.
        id: u64,
    },
    /// Save the state and end.
    Stop,
}

/// A session that begins.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// Its key.
    pub(crate) session: u32,
    /// Its number.
    pub(crate) id: u64,
    /// Its vGPU.
    pub(crate) vgpu: u32,
    /// Its control page, with its doorbell.
    pub(crate) gate: GateDaemon,
    /// Its worker.
    pub(crate) worker: Arc<WorkerProcess>,
    /// Its tenant's waiting threads, if they can be helped.
    pub(crate) waiters: Option<Waiters>,
}

/// What a session used that is over, in ns of device time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// All of it.
    pub(crate) used_ns: u64,
    /// The part that it did not live to report: its work in flight.
    pub(crate) abandoned_ns: u64,
}

/// What is going on, as of now.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// When.
    pub(crate) now_ns: u64,
    /// The devices' policies.
    pub(crate) policies: BTreeMap<DeviceKey, PolicyId>,
    /// Sessions by key.
    pub(crate) sessions: BTreeMap<u32, SessionView>,
    /// vGPUs by key: time charged to the tag, turns.
    pub(crate) vgpus: BTreeMap<u32, (u64, u64)>,
    /// How soon the work of user-facing vGPUs was done, by key.
    pub(crate) attainment: BTreeMap<u32, Attainment>,
    /// Device time billed to all vGPUs there ever were.
    pub(crate) charged_ns: u64,
    /// Records that journals and traces lost.
    pub(crate) lost_records: u64,
    /// How waiting threads are helped.
    pub(crate) coscheduling: CoschedulingReport,
}

impl View {
    /// What a vGPU has held under this scheduling core.
    pub(crate) fn holding(&self, vgpu: u32) -> Holding {
        let (held_ns, turns) = self.vgpus.get(&vgpu).copied().unwrap_or_default();
        Holding { held_ns, turns }
    }
}

/// A session, as of now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionView {
    /// Device time used.
    pub(crate) used_ns: u64,
    /// Whether it has work.
    pub(crate) runnable: bool,
    /// Whether it holds the device.
    pub(crate) holds: bool,
}

/// How other threads reach the driver.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    orders: Sender<Order>,
    doorbell: WakeFlag,
}

impl Handle {
    /// Orders go through `orders`; the driver sleeps on `doorbell`.
    pub(crate) fn new(orders: Sender<Order>, doorbell: WakeFlag) -> Self {
        Self { orders, doorbell }
    }

    /// Gives an order. A driver that is gone means that the daemon is ending.
    pub(crate) fn send(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            // Workers write to the doorbell's word, and one of them may lie.
            self.doorbell.wake_surely();
        }
    }

    /// Gives an order that is answered; `None` when the daemon is ending.
    pub(crate) fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> Order) -> Option<T> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.send(order(sender));
        receiver.recv().ok()
    }
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Driver {
    turns: Turns<DaemonSide>,
    page: NodePage,
    orders: Receiver<Order>,
    sessions: BTreeMap<u32, SessionRecord>,
    coscheduler: Coscheduler,
    sweep: Sweep,
    trace: Trace,
    saver: Saver,
    saved: Instant,
    /// Device time of vGPUs that were removed, by device.
    forgotten_ns: BTreeMap<u32, u64>,
    /// Number of the scheduling core among those of the registry.
    number: u64,
    witness: Witness,
    devices: Vec<DrivenDevice>,
    drains: Drains,
    overstays: Overstays,
    precedences: Precedences,
    /// The devices' slots.
    memory: Memory,
}

/// What the driver knows of a session beside its turns.
#[derive(Debug)]
struct SessionRecord {
    id: u64,
    vgpu: u32,
    killed: bool,
    worker: Arc<WorkerProcess>,
}

impl Driver {
    /// A driver of `node`, whose devices it brings up, and which is the registry's core `number`;
    /// vGPUs that are gone used `forgotten_ns`.
    pub(crate) fn new(
        node: Node,
        page: NodePage,
        orders: Receiver<Order>,
        saver: Saver,
        (number, forgotten_ns): (u64, BTreeMap<u32, u64>),
        coscheduler: Coscheduler,
        devices: Vec<DrivenDevice>,
    ) -> Self {
        Self {
            turns: Turns::new(node),
            page,
            orders,
            sessions: BTreeMap::new(),
            coscheduler,
            sweep: Sweep::default(),
            trace: Trace::default(),
            saver,
            saved: Instant::now(),
            forgotten_ns,
            number,
            witness: Witness::default(),
            devices,
            drains: Drains::default(),
            overstays: Overstays::default(),
            precedences: Precedences::default(),
            memory: Memory::default(),
        }
    }

    /// Records from now on, in files of about `file_bytes_max`.
    pub(crate) fn record(
        &mut self,
        id: u64,
        chunks: SyncSender<Chunk>,
        trouble: Arc<Trouble>,
        file_bytes_max: u64,
    ) {
        let recorder = Recorder::start(self.turns.node(), chunks, trouble, file_bytes_max);
        self.witness.begin(id, recorder);
    }

    /// Runs until [`Order::Stop`], and goes first where the daemon may order threads: all who wait
    /// for a turn wait for it.
    pub(crate) fn run(mut self, ranks: Option<Ranks>) {
        if let Some(ranks) = ranks
            && let Err(error) = ranks.put_caller(true)
        {
            tracing::warn!(%error, "whoever hands the device out keeps its priority");
        }
        // A timer of the core is exact to what a wake-up takes, not to the kernel's usual 50 µs.
        if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
            tracing::warn!(%error, "timers stay coarse");
        }
        for DrivenDevice { key, .. } in self.devices.clone() {
            self.bring_up(key);
        }
        loop {
            if self.carry_out_some() {
                break;
            }
            self.look();
            self.sweep();
            self.put_back_due();
            self.coscheduler.settle(clock::now_ns());
            self.drains.release(clock::now_ns());
            if self.keep_time() {
                continue;
            }
            if let Some(Order::Stop) = self.sleep() {
                break;
            }
        }
        self.witness.flush();
        self.save();
    }

    /// Sleeps until a session changes, an order comes or the timer is due.
    fn sleep(&mut self) -> Option<Order> {
        let due_ns = [
            self.turns.timer_ns(),
            self.coscheduler.deadline_ns(),
            self.sweep_due_ns(),
            self.drains.due_ns(),
            self.left_due_ns(),
        ];
        let next_ns = due_ns.into_iter().flatten().min();
        let limit =
            next_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(clock::now_ns()).max(1)));
        // What was recorded is not kept back by a long sleep, nor what has happened.
        let kept_back = [self.witness.flush_if_old(), self.save_if_old()];
        let limit = kept_back.into_iter().chain([limit]).flatten().min();
        let orders = &self.orders;
        // A timeout is the timer; the loop looks at everything anyway.
        let woken = self.page.wait(Duration::ZERO, limit, || orders.try_recv().ok());
        let order = woken.ok().flatten()?;
        if matches!(order, Order::Stop) {
            return Some(order);
        }
        self.carry_out(order);
        None
    }

    /// Carries out what was ordered, up to a bound; whether [`Order::Stop`] was. The rest comes
    /// next: the driver does not sleep while orders wait.
    fn carry_out_some(&mut self) -> bool {
        for _ in 0..ORDERS_MAX {
            match self.orders.try_recv() {
                Ok(Order::Stop) => return true,
                Ok(order) => self.carry_out(order),
                Err(_) => break,
            }
        }
        false
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Place(place) => self.place(place),
            Order::WeighSession { session, weight } => self.weigh_session(session, weight),
            Order::Switched { session, switch_ns, ahead_ns } => {
                let session = SessionKey(session);
                self.tell(Event::Switched { session, switch_ns, ahead_ns });
            }
            Order::Paged { session, paged_ns } => {
                self.tell(Event::Paged { session: SessionKey(session), paged_ns });
            }
            Order::Forget { vgpu } => self.forget(VgpuKey(vgpu)),
            Order::Begin(beginning) => self.begin(*beginning),
            Order::Help { session, waiters } => {
                // One that has ended meanwhile needs no help.
                if self.sessions.contains_key(&session) {
                    self.coscheduler.help(session, *waiters);
                }
            }
            Order::Drain { session, answer } => self.drain(session, answer),
            Order::EndDrain { session } => self.drains.end(session),
            Order::End { session, answer } => {
                let ended = self.end(session);
                // Who asked may be gone: the daemon is ending.
                let _ = answer.send(ended);
            }
            Order::Pause { session, number } => {
                if let Some(entry) = self.turns.session(SessionKey(session)) {
                    entry.gate.page().ask_to_pause(number);
                }
                self.witness.will_stand(SessionKey(session));
            }
            Order::Stands { session } => {
                self.witness.stands(self.turns.node(), SessionKey(session));
            }
            Order::Relocate { vgpu, device, answer } => {
                self.relocate(VgpuKey(vgpu), device);
                let _ = answer.send(());
            }
            Order::SetPolicy { device, policy } => self.set_policy(device, policy),
            Order::SetService { device, in_service: false } => {
                self.tell(Event::DeviceDown { device });
            }
            Order::SetService { device, in_service: true } => self.bring_up(device),
            Order::View(answer) => {
                for session in self.sessions.keys().copied().collect::<Vec<_>>() {
                    self.refresh(session);
                }
                let view = self.view();
                let _ = answer.send(view);
            }
            Order::Turns(answer) => {
                let _ = answer.send(self.trace.take());
            }
            Order::Record { id, chunks } => {
                // One that cannot be written is over.
                self.record(id, chunks, Arc::default(), u64::MAX);
            }
            Order::StopRecording { id } => self.witness.end(id),
            Order::Stop => {}
        }
    }

    fn bring_up(&mut self, device: DeviceKey) {
        let known = self.devices.iter().find(|known| known.key == device);
        if let Some(config) = known.map(|known| known.config) {
            self.tell(Event::DeviceUp { device, config });
        }
    }

    fn forget(&mut self, vgpu: VgpuKey) {
        // One that never had a session is not known.
        if let Some(view) = self.turns.node().vgpu(vgpu) {
            let forgotten_ns = self.forgotten_ns.entry(view.device.0).or_default();
            *forgotten_ns = forgotten_ns.saturating_add(view.used_ns);
            self.tell(Event::RemoveVgpu { vgpu });
        }
    }

    fn begin(&mut self, beginning: Beginning) {
        let Beginning { session, id, vgpu, gate, worker, waiters } = beginning;
        self.coscheduler.begin(session, waiters, gate.page());
        self.sessions.insert(session, SessionRecord { id, vgpu, killed: false, worker });
        if let Some(device) = self.device_of(VgpuKey(vgpu)) {
            self.introduce(session, gate.page(), device);
        }
        let key = SessionKey(session);
        self.turns.begin(&mut self.witness, key, VgpuKey(vgpu), gate);
        if self.turns.session(key).is_none() {
            self.kill(session, "the scheduling core does not know it");
        }
        self.follow();
        self.page.mark(session);
        self.save();
    }

    /// Tells a session how its device is shared.
    fn introduce(&self, session: u32, page: &DaemonSide, device: &DrivenDevice) {
        let is_shared = self.turns.node().is_shared(device.key);
        self.does(SessionKey(session), |doing| doing.is_unmanaged = is_shared);
        page.set_lead(weft_turn::lead_ns(&device.config));
        page.set_unmanaged(is_shared);
        page.set_grace_earned(self.is_grace_earned(device));
    }

    /// Whether holders have to earn what they keep a device for without work, under its present
    /// policy.
    fn is_grace_earned(&self, device: &DrivenDevice) -> bool {
        let policy = self.turns.node().policy(device.key);
        policy.is_some_and(|policy| Grace::is_earned(&SchedConfig { policy, ..device.config }))
    }

    /// Ends a session. What it had in flight is charged as if it had been executed: dying before
    /// the bill comes is not free.
    fn end(&mut self, session: u32) -> Option<Ended> {
        self.refresh(session);
        self.coscheduler.end(session, clock::now_ns());
        let vgpu = self.sessions.get(&session).map(|entry| VgpuKey(entry.vgpu));
        let device = vgpu.and_then(|vgpu| self.device_of(vgpu));
        let abandoned = device.map_or(Abandoned::Ends, |device| device.abandoned);
        let most_ns =
            device.map_or(0, |device| device.config.quantum_ns + device.config.overdue_ns);
        let mut ended = None;
        self.turns.end(&mut self.witness, SessionKey(session), |session| {
            let page = session.gate.page();
            let (report, abandoned_ns) =
                page.final_report(clock::now_ns(), session.granted_ns(), abandoned, most_ns);
            ended = Some(Ended { used_ns: report.used_ns, abandoned_ns });
            report
        });
        self.follow();
        self.sessions.remove(&session);
        self.save();
        ended
    }

    fn set_policy(&mut self, device: Option<DeviceKey>, policy: PolicyId) {
        self.report_holders();
        let mut set = self.devices.clone();
        set.retain(|known| device.is_none_or(|one| one == known.key));
        for device in set {
            self.tell(Event::SetPolicy { device: device.key, policy });
            if self.turns.node().is_shared(device.key) {
                self.put_equal(device.key);
            }
            let own = self.turns.sessions().filter(|(_, own)| own.device == device.key);
            for (key, session) in own {
                self.introduce(key.0, session.gate.page(), &device);
            }
        }
        self.save();
    }

    /// Where a vGPU lives.
    fn device_of(&self, vgpu: VgpuKey) -> Option<&DrivenDevice> {
        let device = self.turns.node().vgpu(vgpu)?.device;
        self.devices.iter().find(|known| known.key == device)
    }

    /// How a session's device is shared.
    fn terms_of(&self, session: SessionKey) -> Option<&SchedConfig> {
        let device = self.turns.node().device_of(session)?;
        self.turns.node().config(device)
    }

    fn view(&self) -> View {
        let sessions = self.turns.sessions().map(|(key, session)| {
            let view = SessionView {
                used_ns: session.gate.report().used_ns,
                runnable: session.is_runnable(),
                holds: session.has_turn(),
            };
            (key.0, view)
        });
        let Snapshot { vgpus, devices, .. } = self.turns.node().snapshot();
        let billed_ns = vgpus.iter().fold(0_u64, |sum, state| sum.saturating_add(state.used_ns));
        let vgpus = vgpus.iter().map(|state| (state.vgpu.0, (state.held_ns, state.turns)));
        View {
            now_ns: clock::now_ns(),
            policies: devices.iter().map(|state| (state.device, state.policy)).collect(),
            sessions: sessions.collect(),
            vgpus: vgpus.collect(),
            attainment: self.witness.attainment().collect(),
            charged_ns: self
                .forgotten_ns
                .values()
                .fold(billed_ns, |sum, ns| sum.saturating_add(*ns)),
            lost_records: self.witness.lost_ever(),
            coscheduling: self.coscheduler.report(),
        }
    }

    /// Looks at the sessions that changed.
    fn look(&mut self) {
        let changed: Vec<u32> = self.page.take_dirty().collect();
        for session in changed {
            self.refresh(session);
        }
    }

    /// Tells the core that its timer is due, before what has happened meanwhile; whether it was.
    fn keep_time(&mut self) -> bool {
        let was_due = self.turns.keep_time(&mut self.witness);
        self.follow();
        was_due
    }

    /// Tells the core what a session's control page says.
    fn refresh(&mut self, session: u32) {
        self.check_claim(session);
        let key = SessionKey(session);
        self.turns.refresh(&mut self.witness, key);
        self.follow();
        let (Some(entry), Some(own)) = (self.turns.session(key), self.sessions.get(&session))
        else {
            return;
        };
        let view = self.turns.node().vgpu(VgpuKey(own.vgpu));
        let is_interactive = view.is_some_and(|view| view.is_interactive);
        self.coscheduler.observe(session, entry.gate.page(), is_interactive, clock::now_ns());
    }

    /// Reads the holders' counters, so that use until now is told apart from use after it.
    fn report_holders(&mut self) {
        self.turns.report_all_holders(&mut self.witness);
        self.follow();
    }

    /// Tells the core one thing and does what it asks.
    fn tell(&mut self, event: Event) {
        self.turns.tell(&mut self.witness, event);
        self.follow();
    }

    /// Does what follows from what has happened to turns.
    fn follow(&mut self) {
        let mut preferred = Vec::new();
        for effect in self.turns.take_effects() {
            let now_ns = clock::now_ns();
            match effect {
                Effect::Prepared { session } => self.put_next(session),
                Effect::Granted { session, begins: true } => {
                    self.put_first(session);
                    let quantum_ns = self.terms_of(session).map_or(0, |terms| terms.quantum_ns);
                    self.coscheduler.begin_turn(session.0, now_ns, quantum_ns);
                    let device = self.turns.node().device_of(session);
                    if let (Some(own), Some(device)) = (self.sessions.get(&session.0), device) {
                        self.trace.begin(device.0, own.vgpu, session.0, now_ns);
                        let (node, vgpu) = (self.turns.node(), VgpuKey(own.vgpu));
                        preferred.extend(self.memory.begin_turn(node, device, vgpu));
                    }
                }
                Effect::Ended { session, used_ns } => {
                    self.put_last(session);
                    self.trace.end(session.0, now_ns, used_ns);
                    let device = self.turns.node().device_of(session);
                    if let (Some(own), Some(device)) = (self.sessions.get(&session.0), device) {
                        self.memory.end_turn(device, now_ns, own.vgpu, used_ns);
                    }
                }
                Effect::Reclaimed { session } => self.page.mark(session.0),
                Effect::Interactive { session } => {
                    if let Some(entry) = self.turns.session(session) {
                        self.coscheduler.switch_in(session.0, entry.gate.page(), now_ns);
                    }
                }
                Effect::Overdue { session } => self.give_up(session.0),
                // The doorbells have rung, and the timer is looked at before each sleep.
                Effect::Granted { begins: false, .. } | Effect::Asked { .. } | Effect::Timer => {}
            }
        }
        for vgpu in preferred {
            self.tell(Event::Prefer { vgpu });
        }
    }

    fn kill(&mut self, session: u32, why: &'static str) {
        let Some(entry) = self.sessions.get_mut(&session).filter(|entry| !entry.killed) else {
            return;
        };
        entry.killed = true;
        tracing::warn!(session = entry.id, vgpu = entry.vgpu, why, "worker killed");
        if let Err(error) = entry.worker.kill() {
            tracing::debug!(session = entry.id, %error, "worker was gone");
        }
    }

    /// Kills a worker that claims more device time since its grant than has passed. What was in
    /// flight before and the longest kernel are allowed on top: the same slack that a revoked
    /// holder has.
    fn check_claim(&mut self, session: u32) {
        let key = SessionKey(session);
        let (Some(entry), Some(terms)) = (self.turns.session(key), self.terms_of(key)) else {
            return;
        };
        let slack_ns = terms.overdue_ns;
        let wall_ns = clock::now_ns().saturating_sub(entry.granted_ns());
        if entry.gate.is_overdue(wall_ns, slack_ns) {
            self.kill(session, "it claims more device time than has passed");
        }
    }

    /// Saves what has happened if the last time is a while ago; how long until then if not.
    fn save_if_old(&mut self) -> Option<Duration> {
        if !self.witness.is_unsaved() {
            return None;
        }
        let left = SAVE_EVERY.saturating_sub(self.saved.elapsed());
        if left.is_zero() {
            self.save();
            return None;
        }
        Some(left)
    }

    fn save(&mut self) {
        self.saved = Instant::now();
        self.witness.saved();
        self.saver.schedule(Schedule {
            core: self.turns.node().snapshot(),
            sessions: self.sessions.iter().map(|(key, session)| (*key, session.id)).collect(),
            forgotten_ns: self.forgotten_ns.clone(),
            number: self.number,
        });
    }
}

#[cfg(test)]
mod tests;
