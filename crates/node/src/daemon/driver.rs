//! The scheduling thread: feeds the core with what the control pages say and performs its actions.
//!
//! It sleeps on the node page's doorbell, with the core's next timer as the limit, so an idle node
//! uses no CPU. Everything it decides is decided in [`weft_sched`].

mod place;
mod sweep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use weft_gate::{Abandoned, Demand, GateDaemon, GrantKind, NodePage, Report, Revocation};
use weft_ring::WakeFlag;
use weft_sched::{
    Action, Actions, DeviceKey, Event, EventError, Node, PolicyId, SessionKey, UNLIMITED, Usage,
    VgpuKey, Weight,
};

use super::clock;
use super::cosched::{Coscheduler, Waiters};
use super::persist::{Saver, Schedule};
use super::process::WorkerProcess;
use super::recorder::{Chunk, Recorder, Trouble};
use super::registry::Holding;
use super::trace::Trace;
use crate::admin::CoschedulingReport;

pub(crate) use self::place::Place;
use self::sweep::Sweep;

/// The node's one device.
pub(crate) const DEVICE: DeviceKey = DeviceKey(0);

/// A worker releases its turn this long before its successor may start: what the daemon needs to
/// hear of it.
const RELEASE_LEAD_NS: u64 = 300_000;

/// Orders that are obeyed before the sessions are looked at: who gives many keeps them waiting so
/// long and no longer.
const ORDERS_MAX: usize = 16;

/// While something happens, the state is saved this often.
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
    /// A vGPU was removed.
    Forget {
        /// Which.
        vgpu: u32,
    },
    /// A session begins, or is adopted.
    Begin(Box<Beginning>),
    /// A session's worker is dead.
    End {
        /// Which.
        session: u32,
        /// Where to answer.
        answer: Sender<Option<Ended>>,
    },
    /// Another policy.
    SetPolicy(PolicyId),
    /// What is going on.
    View(Sender<View>),
    /// Turns since an instant, and how many are gone.
    Timeline {
        /// ns of `CLOCK_MONOTONIC`.
        since_ns: u64,
        /// Where to answer.
        answer: Sender<(Vec<super::trace::Span>, u64)>,
    },
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
    pub(crate) worker: WorkerProcess,
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
    /// The policy.
    pub(crate) policy: PolicyId,
    /// Sessions by key.
    pub(crate) sessions: BTreeMap<u32, SessionView>,
    /// vGPUs by key: time charged to the tag, turns.
    pub(crate) vgpus: BTreeMap<u32, (u64, u64)>,
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
            self.doorbell.wake();
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
    node: Node,
    actions: Actions,
    page: NodePage,
    orders: Receiver<Order>,
    sessions: BTreeMap<u32, Session>,
    coscheduler: Coscheduler,
    timer: Option<u64>,
    sweep: Sweep,
    trace: Trace,
    saver: Saver,
    saved: Instant,
    /// Device time of vGPUs that were removed.
    forgotten_ns: u64,
    /// Number of the scheduling core among those of the registry.
    number: u64,
    /// Journals, by their names; the configured one is 0.
    recorders: BTreeMap<u64, Recorder>,
    /// Records that recordings lost which are over.
    lost_records: u64,
    /// What becomes of work in flight when its worker dies.
    abandoned: Abandoned,
}

#[derive(Debug)]
struct Session {
    id: u64,
    vgpu: u32,
    gate: GateDaemon,
    /// When the gate's last grant was given, or found.
    granted_ns: u64,
    killed: bool,
    worker: WorkerProcess,
    /// The core was told that it is runnable.
    runnable: bool,
    turn: Option<Turn>,
    sync_calls: u64,
    pieces: u64,
}

/// A turn of the core, which may take several grants of the gate as its budget changes.
#[derive(Debug, Clone, Copy)]
struct Turn {
    epoch: u64,
    admitted_at_start_ns: u64,
    used_at_start_ns: u64,
}

impl Driver {
    /// A driver of `node`, whose device it brings up, and which is the registry's core `number`;
    /// vGPUs that are gone used `forgotten_ns`.
    pub(crate) fn new(
        node: Node,
        page: NodePage,
        orders: Receiver<Order>,
        saver: Saver,
        (number, forgotten_ns): (u64, u64),
        coscheduler: Coscheduler,
        abandoned: Abandoned,
    ) -> Self {
        Self {
            node,
            actions: Actions::new(),
            page,
            orders,
            sessions: BTreeMap::new(),
            coscheduler,
            timer: None,
            sweep: Sweep::default(),
            trace: Trace::default(),
            saver,
            saved: Instant::now(),
            forgotten_ns,
            number,
            recorders: BTreeMap::new(),
            lost_records: 0,
            abandoned,
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
        let recorder = Recorder::start(&self.node, chunks, trouble, file_bytes_max);
        self.recorders.insert(id, recorder);
    }

    /// Runs until [`Order::Stop`].
    pub(crate) fn run(mut self) {
        // A timer of the core is exact to what a wake-up takes, not to the kernel's usual 50 µs.
        if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
            tracing::warn!(%error, "timers stay coarse");
        }
        self.tell(Event::DeviceUp { device: DEVICE });
        loop {
            if self.obey_some() {
                break;
            }
            self.look();
            self.sweep();
            self.coscheduler.settle(clock::now_ns());
            if self.keep_time() {
                continue;
            }
            if self.saved.elapsed() >= SAVE_EVERY {
                self.save();
            }
            if let Some(Order::Stop) = self.sleep() {
                break;
            }
        }
        self.recorders.values_mut().for_each(Recorder::flush);
        self.save();
    }

    /// Sleeps until a session changes, an order comes or the timer is due.
    fn sleep(&mut self) -> Option<Order> {
        let due_ns = [self.timer, self.coscheduler.deadline_ns(), self.sweep_due_ns()];
        let next_ns = due_ns.into_iter().flatten().min();
        let limit =
            next_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(clock::now_ns()).max(1)));
        // What was recorded is not kept back by a long sleep.
        let flush = self.recorders.values_mut().filter_map(Recorder::flush_if_old).min();
        let limit = [limit, flush].into_iter().flatten().min();
        let orders = &self.orders;
        // A timeout is the timer; the loop looks at everything anyway.
        let woken = self.page.wait(Duration::ZERO, limit, || orders.try_recv().ok());
        let order = woken.ok().flatten()?;
        if matches!(order, Order::Stop) {
            return Some(order);
        }
        self.obey(order);
        None
    }

    /// Obeys what was ordered, up to a bound; whether [`Order::Stop`] was. The rest comes next: the
    /// driver does not sleep while orders wait.
    fn obey_some(&mut self) -> bool {
        for _ in 0..ORDERS_MAX {
            match self.orders.try_recv() {
                Ok(Order::Stop) => return true,
                Ok(order) => self.obey(order),
                Err(_) => break,
            }
        }
        false
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Place(place) => self.place(place),
            Order::WeighSession { session, weight } => self.weigh_session(session, weight),
            Order::Forget { vgpu } => self.forget(VgpuKey(vgpu)),
            Order::Begin(beginning) => self.begin(*beginning),
            Order::End { session, answer } => {
                let ended = self.end(session);
                // Who asked may be gone: the daemon is ending.
                let _ = answer.send(ended);
            }
            Order::SetPolicy(policy) => self.set_policy(policy),
            Order::View(answer) => {
                for session in self.sessions.keys().copied().collect::<Vec<_>>() {
                    self.refresh(session);
                }
                let view = self.view();
                let _ = answer.send(view);
            }
            Order::Timeline { since_ns, answer } => {
                let _ = answer.send(self.trace.since(since_ns));
            }
            Order::Record { id, chunks } => {
                // One that cannot be written is over.
                self.record(id, chunks, Arc::default(), u64::MAX);
            }
            Order::StopRecording { id } => {
                if let Some(mut recorder) = self.recorders.remove(&id) {
                    recorder.flush();
                    self.lost_records += recorder.lost_ever();
                }
            }
            Order::Stop => {}
        }
    }

    fn forget(&mut self, vgpu: VgpuKey) {
        // One that never had a session is not known.
        if let Some(view) = self.node.vgpu(vgpu) {
            self.forgotten_ns = self.forgotten_ns.saturating_add(view.used_ns);
            self.tell(Event::RemoveVgpu { vgpu });
        }
    }

    fn begin(&mut self, beginning: Beginning) {
        let Beginning { session, id, vgpu, gate, worker, waiters } = beginning;
        self.coscheduler.begin(session, waiters, &gate);
        gate.set_lead(self.node.config().overlap_ns + RELEASE_LEAD_NS);
        gate.set_unmanaged(is_unmanaged(self.policy()));
        let report = gate.report();
        let held = gate.is_held().then(|| gate.last_grant()).flatten();
        let key = SessionKey(session);
        let entry = Session {
            id,
            vgpu,
            gate,
            granted_ns: clock::now_ns(),
            killed: false,
            worker,
            runnable: false,
            turn: None,
            sync_calls: 0,
            pieces: 0,
        };
        self.sessions.insert(session, entry);
        let add = Event::AddSession { session: key, vgpu: VgpuKey(vgpu) };
        match self.handle(add) {
            // A saved state knows the sessions that were adopted.
            Ok(()) | Err(EventError::SessionExists(_)) => self.perform(),
            Err(error) => tracing::error!(%error, session, "the core refused a session"),
        }
        self.tell(Event::Used { session: key, usage: usage(&report) });
        if let Some(grant) = held {
            self.adopt_turn(session, &report, grant.budget_ns);
        }
        self.page.mark(session);
        self.save();
    }

    /// The worker holds a grant of an earlier daemon: its turn goes on, or is taken back.
    fn adopt_turn(&mut self, session: u32, report: &Report, budget_ns: u64) {
        let epoch = self.node.next_epoch(DEVICE).unwrap_or(1);
        let key = SessionKey(session);
        let event = Event::Adopt { session: key, epoch, budget_ns };
        let turn = Turn {
            epoch,
            admitted_at_start_ns: report.admitted_ns(),
            used_at_start_ns: report.used_ns,
        };
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.turn = Some(turn);
        }
        if self.handle(event).is_ok() {
            self.trace.begin(self.sessions[&session].vgpu, session, clock::now_ns());
            self.perform();
        } else if let Some(entry) = self.sessions.get_mut(&session) {
            entry.turn = None;
            entry.gate.revoke();
        }
    }

    /// Ends a session. What it had in flight is charged as if it had been executed: dying before
    /// the bill comes is not free.
    fn end(&mut self, session: u32) -> Option<Ended> {
        self.refresh(session);
        self.coscheduler.end(session, clock::now_ns());
        let entry = self.sessions.remove(&session)?;
        let (report, abandoned_ns) =
            entry.gate.final_report(clock::now_ns(), entry.granted_ns, self.abandoned);
        let key = SessionKey(session);
        self.tell(Event::Used { session: key, usage: usage(&report) });
        if let Some(turn) = entry.turn {
            self.trace.end(session, clock::now_ns(), used_since(turn, &report));
        }
        self.tell(Event::RemoveSession { session: key });
        self.save();
        Some(Ended { used_ns: report.used_ns, abandoned_ns })
    }

    fn set_policy(&mut self, policy: PolicyId) {
        self.report_holders(None);
        let unmanaged = is_unmanaged(policy);
        self.tell(Event::SetPolicy { device: DEVICE, policy });
        for session in self.sessions.values() {
            session.gate.set_unmanaged(unmanaged);
        }
        self.save();
    }

    fn policy(&self) -> PolicyId {
        self.node.policy(DEVICE).unwrap_or_default()
    }

    fn view(&self) -> View {
        let sessions = self.sessions.iter().map(|(key, session)| {
            let view = SessionView {
                used_ns: session.gate.report().used_ns,
                runnable: session.runnable,
                holds: session.turn.is_some(),
            };
            (*key, view)
        });
        let vgpus = self.node.snapshot().vgpus;
        let billed_ns = vgpus.iter().fold(0_u64, |sum, state| sum.saturating_add(state.used_ns));
        let vgpus = vgpus.iter().map(|state| (state.vgpu.0, (state.held_ns, state.turns)));
        View {
            now_ns: clock::now_ns(),
            policy: self.policy(),
            sessions: sessions.collect(),
            vgpus: vgpus.collect(),
            charged_ns: billed_ns.saturating_add(self.forgotten_ns),
            lost_records: self.recorders.values().map(Recorder::lost_ever).sum::<u64>()
                + self.lost_records,
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
        let due = self.timer.is_some_and(|at_ns| clock::now_ns() >= at_ns);
        if due {
            self.timer = None;
            self.report_holders(None);
            self.tell(Event::Timer);
        }
        due
    }

    /// Tells the core what a session's control page says.
    fn refresh(&mut self, session: u32) {
        self.keep_time();
        self.check_claim(session);
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let key = SessionKey(session);
        let released = entry.turn.filter(|_| !entry.gate.is_held());
        let report = entry.gate.report();
        let runnable = report.demand == Demand::Runnable;
        let was_runnable = std::mem::replace(&mut entry.runnable, runnable);
        let calls = (report.sync_calls != entry.sync_calls).then_some(report.sync_calls);
        entry.sync_calls = report.sync_calls;
        let pieces = (report.pieces != entry.pieces).then_some(report.pieces);
        entry.pieces = report.pieces;
        if let Some(calls) = calls {
            self.tell(Event::SyncCalls { session: key, calls });
        }
        if let Some(pieces) = pieces {
            self.tell(Event::Pieces { session: key, pieces });
        }
        if was_runnable && !runnable {
            self.tell(Event::Used { session: key, usage: usage(&report) });
            self.tell(Event::Idle { session: key });
        }
        match released {
            Some(turn) => self.note_release(session, turn, &report),
            None => self.tell(Event::Used { session: key, usage: usage(&report) }),
        }
        if runnable && !was_runnable {
            self.report_holders(Some(session));
            let estimate_ns = report.demand_ns;
            self.tell(Event::Runnable { session: key, estimate_ns });
        }
        if let Some(entry) = self.sessions.get(&session) {
            let view = self.node.vgpu(VgpuKey(entry.vgpu));
            let is_interactive = view.is_some_and(|view| view.is_interactive);
            let now_ns = clock::now_ns();
            self.coscheduler.observe(session, &entry.gate, is_interactive, now_ns);
        }
    }

    fn note_release(&mut self, session: u32, turn: Turn, report: &Report) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.turn = None;
        }
        self.trace.end(session, clock::now_ns(), used_since(turn, report));
        let (key, usage) = (SessionKey(session), usage(report));
        self.tell(Event::Released { session: key, epoch: turn.epoch, usage });
    }

    /// Reads the holders' counters, so that use until now is told apart from use after it. A lone
    /// holder that has nothing to do gives way to a newcomer at once.
    fn report_holders(&mut self, newcomer: Option<u32>) {
        let holders: Vec<u32> = self.node.holders(DEVICE).iter().map(|key| key.0).collect();
        for holder in holders.into_iter().filter(|holder| Some(*holder) != newcomer) {
            let Some(entry) = self.sessions.get_mut(&holder) else { continue };
            let report = entry.gate.report();
            let lone = entry.gate.last_grant().map(|grant| grant.kind) == Some(GrantKind::Renewing);
            let idle = newcomer.is_some() && lone && report.demand == Demand::Idle;
            if idle && entry.gate.revoke() == Revocation::Free {
                self.refresh(holder);
            } else {
                let key = SessionKey(holder);
                self.tell(Event::Used { session: key, usage: usage(&report) });
            }
        }
    }

    /// Tells the core one thing and records it. What the core asks is in `actions` then.
    fn handle(&mut self, event: Event) -> Result<(), EventError> {
        let now_ns = clock::now_ns();
        let result = self.node.handle(now_ns, event, &mut self.actions);
        let actions = self.actions.as_slice();
        for recorder in self.recorders.values_mut() {
            recorder.record(&self.node, now_ns, &event, result, actions);
        }
        if self.recorders.values().any(Recorder::is_over) {
            let over = self.recorders.extract_if(.., |_, recorder| recorder.is_over());
            self.lost_records += over.map(|(_, recorder)| recorder.lost_ever()).sum::<u64>();
        }
        result
    }

    /// Tells the core one thing and does what it asks.
    fn tell(&mut self, event: Event) {
        if let Err(error) = self.handle(event) {
            tracing::error!(%error, ?event, "the scheduling core refused an event");
        }
        self.perform();
    }

    fn perform(&mut self) {
        let actions: Vec<Action> = self.actions.drain().collect();
        for action in actions {
            match action {
                Action::Grant { session, epoch, budget_ns, .. } => {
                    self.grant(session.0, epoch, budget_ns);
                }
                Action::Revoke { session, .. } => self.revoke(session.0),
                Action::Wake { session, .. } => {
                    if let Some(entry) = self.sessions.get(&session.0) {
                        self.coscheduler.switch_in(session.0, &entry.gate, clock::now_ns());
                    }
                }
                Action::Prepare { session, .. } => {
                    if let Some(entry) = self.sessions.get(&session.0) {
                        entry.gate.prepare();
                    }
                }
                Action::Kill { session, .. } => {
                    self.kill(session.0, "it keeps the device too long");
                }
                Action::Timer { at_ns, .. } => self.timer = Some(at_ns),
                Action::CancelTimer => self.timer = None,
                Action::DeviceIdle { .. } => {}
            }
        }
    }

    /// A grant of the core becomes one of the gate: a turn's budget, or, for a lone tenant, a bound
    /// on what is in flight. A new budget within a turn counts from the turn's beginning.
    fn grant(&mut self, session: u32, epoch: u64, budget_ns: u64) {
        let quantum_ns = self.node.config().quantum_ns;
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let report = entry.gate.report();
        let same = entry.turn.filter(|turn| turn.epoch == epoch);
        if same.is_some() && !entry.gate.is_held() {
            // It released meanwhile and has rung: the release comes next.
            return;
        }
        let turn = same.unwrap_or_else(|| Turn {
            epoch,
            admitted_at_start_ns: report.admitted_ns(),
            used_at_start_ns: report.used_ns,
        });
        entry.turn = Some(turn);
        let spent_ns = report.admitted_ns().saturating_sub(turn.admitted_at_start_ns);
        let now_ns = clock::now_ns();
        entry.granted_ns = now_ns;
        if budget_ns == UNLIMITED {
            entry.gate.grant(quantum_ns, GrantKind::Renewing);
        } else {
            entry.gate.grant(budget_ns.saturating_sub(spent_ns), GrantKind::Turn);
        }
        if same.is_none() {
            self.coscheduler.begin_turn(session, now_ns, quantum_ns);
            self.trace.begin(entry.vgpu, session, now_ns);
        }
    }

    fn revoke(&mut self, session: u32) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if entry.gate.revoke() == Revocation::Free {
            // It held the device idly, or released it meanwhile: either way the turn is over.
            self.page.mark(session);
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
        let slack_ns = self.node.config().overdue_ns;
        let Some(entry) = self.sessions.get(&session) else { return };
        let wall_ns = clock::now_ns().saturating_sub(entry.granted_ns);
        if entry.gate.is_overdue(wall_ns, slack_ns) {
            self.kill(session, "it claims more device time than has passed");
        }
    }

    fn save(&mut self) {
        self.saved = Instant::now();
        self.saver.schedule(Schedule {
            core: self.node.snapshot(),
            sessions: self.sessions.iter().map(|(key, session)| (*key, session.id)).collect(),
            forgotten_ns: self.forgotten_ns,
            number: self.number,
        });
    }
}

fn usage(report: &Report) -> Usage {
    Usage { used_ns: report.used_ns, in_flight_ns: report.in_flight_ns, idle_ns: report.idle_ns }
}

fn used_since(turn: Turn, report: &Report) -> u64 {
    report.used_ns.saturating_sub(turn.used_at_start_ns)
}

/// The policy without a gate: the device's own queue decides.
fn is_unmanaged(policy: PolicyId) -> bool {
    policy.name() == "unmanaged"
}

#[cfg(test)]
mod tests;
