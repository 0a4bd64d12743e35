//! The daemon's half: what control pages say becomes events of the scheduling core, and what the
//! core wants becomes grants and revocations.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::{replace, take};

use weft_sched::{
    Action, Actions, DeviceKey, Event, EventError, Node, SessionKey, UNLIMITED, VgpuKey,
};

use crate::gate::{Gate, Revocation};
use crate::page::{DaemonPage, Demand, GrantKind, Report};

/// Time and witnesses.
pub trait Host {
    /// The time, in ns.
    fn now_ns(&self) -> u64;

    /// The core has decided.
    fn decided(&mut self, decision: &Decision<'_>);
}

/// What the core was told, and what it made of it.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a> {
    /// The core, as the event left it.
    pub node: &'a Node,
    /// When it was told, in ns.
    pub now_ns: u64,
    /// What it was told.
    pub event: Event,
    /// Whether it took that; if not, nothing changed.
    pub result: Result<(), EventError>,
    /// What it wants.
    pub actions: &'a [Action],
}

/// What has happened to turns, for whoever drives them; in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A session got a grant. `begins` of a turn's first.
    Granted {
        /// Which.
        session: SessionKey,
        /// The turn begins with it.
        begins: bool,
    },
    /// A session's turn is over.
    Ended {
        /// Which.
        session: SessionKey,
        /// Device time used in the turn, in ns.
        used_ns: u64,
    },
    /// A session was asked to give its turn back.
    Asked {
        /// Which.
        session: SessionKey,
    },
    /// A session's turn is over without its help: it must be [looked at](Turns::refresh).
    Reclaimed {
        /// Which.
        session: SessionKey,
    },
    /// A session was told to be ready for the turn after this one.
    Prepared {
        /// Which.
        session: SessionKey,
    },
    /// The turn of an interactive vGPU begins (FairGV, Algorithm 3).
    Interactive {
        /// Its session.
        session: SessionKey,
    },
    /// A session keeps the device too long.
    Overdue {
        /// Which.
        session: SessionKey,
    },
    /// [`Turns::timer_ns`] is another.
    Timer,
}

/// A turn of the core, which may take several grants of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CoreTurn {
    /// The core's number of it.
    epoch: u64,
    admitted_at_start_ns: u64,
    used_at_start_ns: u64,
}

impl CoreTurn {
    fn new(epoch: u64, report: &Report) -> Self {
        let (admitted_at_start_ns, used_at_start_ns) = (report.admitted_ns(), report.used_ns);
        Self { epoch, admitted_at_start_ns, used_at_start_ns }
    }
}

/// A session as the daemon knows it.
#[derive(Debug)]
pub struct Contender<P> {
    /// Its gate.
    pub gate: Gate<P>,
    /// Where it lives.
    pub device: DeviceKey,
    runnable: bool,
    turn: Option<CoreTurn>,
    granted_ns: u64,
    revoked_ns: Option<u64>,
    sync_calls: u64,
    pieces: u64,
}

impl<P: DaemonPage> Contender<P> {
    /// Whether it wants the device, as far as the core was told.
    #[must_use]
    pub fn is_runnable(&self) -> bool {
        self.runnable
    }

    /// Whether the core has given it a turn.
    #[must_use]
    pub fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// When it got its last grant, in ns.
    #[must_use]
    pub fn granted_ns(&self) -> u64 {
        self.granted_ns
    }

    /// When it was asked to give its last grant back, in ns, if it was.
    #[must_use]
    pub fn revoked_ns(&self) -> Option<u64> {
        self.revoked_ns
    }

    /// Whether its page says what the core was not told.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let has_released = self.turn.is_some() && !self.gate.is_held();
        has_released || (self.gate.page().demand() == Demand::Runnable) != self.runnable
    }
}

/// The turns of a node's devices.
///
/// Its methods leave [effects](Self::take_effects) behind.
#[derive(Debug)]
pub struct Turns<P> {
    node: Node,
    actions: Actions,
    sessions: BTreeMap<SessionKey, Contender<P>>,
    timer_ns: Option<u64>,
    effects: Vec<Effect>,
}

impl<P: DaemonPage> Turns<P> {
    /// The turns of the devices of `node`.
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self {
            node,
            actions: Actions::new(),
            sessions: BTreeMap::new(),
            timer_ns: None,
            effects: Vec::new(),
        }
    }

    /// The scheduling core.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// When the core wants to be [told the time](Self::keep_time).
    #[must_use]
    pub fn timer_ns(&self) -> Option<u64> {
        self.timer_ns
    }

    /// The sessions.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionKey, &Contender<P>)> {
        self.sessions.iter().map(|(key, session)| (*key, session))
    }

    /// A session.
    #[must_use]
    pub fn session(&self, session: SessionKey) -> Option<&Contender<P>> {
        self.sessions.get(&session)
    }

    /// What has happened since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        take(&mut self.effects)
    }

    /// A session of a vGPU that the core knows comes, with whatever its page says; the core may
    /// know it, too. It may hold a grant of an earlier daemon: then its turn goes on, or is taken
    /// back.
    pub fn begin(
        &mut self,
        host: &mut impl Host,
        session: SessionKey,
        vgpu: VgpuKey,
        gate: Gate<P>,
    ) {
        self.tell(host, Event::AddSession { session, vgpu });
        let Some(device) = self.node.device_of(session) else { return };
        let report = gate.report();
        let held = gate.is_held().then(|| gate.last_grant()).flatten();
        let (turn, granted_ns) = (None, host.now_ns());
        let (runnable, sync_calls, pieces) = (false, 0, 0);
        let revoked_ns = None;
        let new =
            Contender { gate, device, runnable, turn, granted_ns, revoked_ns, sync_calls, pieces };
        self.sessions.insert(session, new);
        self.tell(host, Event::Used { session, usage: report.usage() });
        if let Some(grant) = held {
            self.adopt(host, session, &report, grant.budget_ns);
        }
    }

    fn adopt(
        &mut self,
        host: &mut impl Host,
        session: SessionKey,
        report: &Report,
        budget_ns: u64,
    ) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let epoch = self.node.next_epoch(entry.device).unwrap_or(1);
        entry.turn = Some(CoreTurn::new(epoch, report));
        if self.handle(host, Event::Adopt { session, epoch, budget_ns }).is_ok() {
            self.effects.push(Effect::Granted { session, begins: true });
        } else if let Some(entry) = self.sessions.get_mut(&session) {
            entry.turn = None;
            entry.gate.revoke();
        }
    }

    /// A session goes. `last` says what its page did not live to say.
    pub fn end(
        &mut self,
        host: &mut impl Host,
        session: SessionKey,
        last: impl FnOnce(&Contender<P>) -> Report,
    ) -> Option<Contender<P>> {
        let entry = self.sessions.remove(&session)?;
        let report = last(&entry);
        self.tell(host, Event::Used { session, usage: report.usage() });
        if let Some(turn) = entry.turn {
            self.note_end(session, turn, &report);
        }
        self.tell(host, Event::RemoveSession { session });
        Some(entry)
    }

    /// A vGPU goes to another device, where its sessions say anew what they want. None of them has
    /// anything in flight; a turn that one has is over.
    pub fn relocate(&mut self, host: &mut impl Host, vgpu: VgpuKey, device: DeviceKey) {
        let node = &self.node;
        let is_of_it = |key: &&SessionKey| node.vgpu_of(**key) == Some(vgpu);
        let own: Vec<SessionKey> = self.sessions.keys().filter(is_of_it).copied().collect();
        for session in &own {
            self.refresh(host, *session);
        }
        if self.handle(host, Event::MoveVgpu { vgpu, device }).is_err() {
            return;
        }
        for session in own {
            let Some(entry) = self.sessions.get_mut(&session) else { continue };
            (entry.device, entry.runnable) = (device, false);
            if let Some(turn) = entry.turn.take() {
                entry.gate.revoke();
                let report = entry.gate.report();
                self.note_end(session, turn, &report);
            }
        }
    }

    /// Tells the core that its timer is due, if it is, and what holders used until now before that;
    /// whether it was.
    pub fn keep_time(&mut self, host: &mut impl Host) -> bool {
        let is_due = self.timer_ns.is_some_and(|at_ns| host.now_ns() >= at_ns);
        if is_due {
            self.timer_ns = None;
            self.report_all_holders(host);
            self.tell(host, Event::Timer);
        }
        is_due
    }

    /// Tells the core what a session's control page says; that its timer is due, before what has
    /// happened meanwhile.
    pub fn refresh(&mut self, host: &mut impl Host, session: SessionKey) {
        self.keep_time(host);
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let released = entry.turn.filter(|_| !entry.gate.is_held());
        let report = entry.gate.report();
        let usage = report.usage();
        let runnable = report.demand == Demand::Runnable;
        let was_runnable = replace(&mut entry.runnable, runnable);
        let calls = replace(&mut entry.sync_calls, report.sync_calls) != report.sync_calls;
        let pieces = replace(&mut entry.pieces, report.pieces) != report.pieces;
        if calls {
            self.tell(host, Event::SyncCalls { session, calls: report.sync_calls });
        }
        if pieces {
            self.tell(host, Event::Pieces { session, pieces: report.pieces });
        }
        if was_runnable && !runnable {
            self.tell(host, Event::Used { session, usage });
            self.tell(host, Event::Idle { session });
        }
        match released {
            Some(turn) => {
                if let Some(entry) = self.sessions.get_mut(&session) {
                    entry.turn = None;
                }
                self.note_end(session, turn, &report);
                self.tell(host, Event::Released { session, epoch: turn.epoch, usage });
            }
            None => self.tell(host, Event::Used { session, usage }),
        }
        if runnable && !was_runnable {
            self.make_way(host, session);
            self.tell(host, Event::Runnable { session, estimate_ns: report.demand_ns });
        }
    }

    /// Reads the holders' counters, so that use until now is told apart from use after it.
    pub fn report_all_holders(&mut self, host: &mut impl Host) {
        let devices: Vec<DeviceKey> = self.node.devices().collect();
        for device in devices {
            self.report_holders(host, device);
        }
    }

    /// The same of one device.
    pub fn report_holders(&mut self, host: &mut impl Host, device: DeviceKey) {
        let holders: Vec<SessionKey> = self.node.holders(device).to_vec();
        for session in holders {
            self.report_holder(host, session);
        }
    }

    fn report_holder(&mut self, host: &mut impl Host, session: SessionKey) {
        if let Some(entry) = self.sessions.get(&session) {
            let usage = entry.gate.report().usage();
            self.tell(host, Event::Used { session, usage });
        }
    }

    /// Before the core hears of a newcomer: reads the counters of those who hold its device. A lone
    /// holder that has nothing to do gives way at once.
    fn make_way(&mut self, host: &mut impl Host, newcomer: SessionKey) {
        let Some(device) = self.session(newcomer).map(|entry| entry.device) else { return };
        let holders: Vec<SessionKey> = self.node.holders(device).to_vec();
        for session in holders.into_iter().filter(|session| *session != newcomer) {
            let Some(entry) = self.sessions.get_mut(&session) else { continue };
            let lone = entry.gate.last_grant().map(|grant| grant.kind) == Some(GrantKind::Renewing);
            let idle = lone && entry.gate.page().demand() == Demand::Idle;
            if idle && entry.gate.revoke() == Revocation::Free {
                self.refresh(host, session);
            } else {
                self.report_holder(host, session);
            }
        }
    }

    /// Tells the core one thing and does what it wants. An event that it refuses changed nothing.
    pub fn tell(&mut self, host: &mut impl Host, event: Event) {
        // The host has seen the refusal.
        let _ = self.handle(host, event);
    }

    /// The same, for who wants to know.
    ///
    /// # Errors
    /// Why the core refused the event; nothing changed then.
    pub fn handle(&mut self, host: &mut impl Host, event: Event) -> Result<(), EventError> {
        let now_ns = host.now_ns();
        let result = self.node.handle(now_ns, event, &mut self.actions);
        let (node, actions) = (&self.node, self.actions.as_slice());
        host.decided(&Decision { node, now_ns, event, result, actions });
        let actions: Vec<Action> = self.actions.drain().collect();
        for action in actions {
            self.perform(host, action);
        }
        result
    }

    fn perform(&mut self, host: &impl Host, action: Action) {
        match action {
            Action::Grant { session, epoch, budget_ns, .. } => {
                self.grant(session, epoch, budget_ns, host.now_ns());
            }
            Action::Revoke { session, .. } => self.revoke(session, host.now_ns()),
            Action::Prepare { session, .. } => {
                if let Some(entry) = self.sessions.get(&session) {
                    entry.gate.prepare();
                    self.effects.push(Effect::Prepared { session });
                }
            }
            Action::Wake { session, .. } => self.effects.push(Effect::Interactive { session }),
            Action::Kill { session, .. } => self.effects.push(Effect::Overdue { session }),
            Action::Timer { at_ns, .. } => self.set_timer(Some(at_ns)),
            Action::CancelTimer => self.set_timer(None),
            Action::DeviceIdle { .. } => {}
        }
    }

    fn set_timer(&mut self, at_ns: Option<u64>) {
        self.timer_ns = at_ns;
        self.effects.push(Effect::Timer);
    }

    /// A grant of the core becomes one of the gate: a turn's budget, or, for a lone tenant, a bound
    /// on what is in flight. A new budget within a turn counts from the turn's beginning.
    fn grant(&mut self, session: SessionKey, epoch: u64, budget_ns: u64, now_ns: u64) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let config = self.node.config(entry.device);
        let quantum_ns = config.map_or(0, |config| config.quantum_ns);
        let report = entry.gate.report();
        let same = entry.turn.filter(|turn| turn.epoch == epoch);
        if same.is_some() && !entry.gate.is_held() {
            // It released meanwhile and has rung: the release comes next.
            return;
        }
        let turn = same.unwrap_or_else(|| CoreTurn::new(epoch, &report));
        let follows = same.is_some() || self.node.follows(session);
        entry.turn = Some(turn);
        (entry.granted_ns, entry.revoked_ns) = (now_ns, None);
        let spent_ns = report.admitted_ns().saturating_sub(turn.admitted_at_start_ns);
        entry.gate.set_slice(self.node.slice_ns(session));
        if budget_ns == UNLIMITED {
            entry.gate.grant_after(quantum_ns, GrantKind::Renewing, follows);
        } else {
            let left_ns = budget_ns.saturating_sub(spent_ns);
            entry.gate.grant_after(left_ns, GrantKind::Turn, follows);
        }
        self.effects.push(Effect::Granted { session, begins: same.is_none() });
    }

    fn revoke(&mut self, session: SessionKey, now_ns: u64) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        entry.revoked_ns = Some(now_ns);
        self.effects.push(match entry.gate.revoke() {
            // It held the device idly, or released it meanwhile: either way the turn is over.
            Revocation::Free => Effect::Reclaimed { session },
            Revocation::Asked => Effect::Asked { session },
        });
    }

    fn note_end(&mut self, session: SessionKey, turn: CoreTurn, report: &Report) {
        let used_ns = report.used_ns.saturating_sub(turn.used_at_start_ns);
        self.effects.push(Effect::Ended { session, used_ns });
    }
}
