//! The daemon's driver: a model of the node's, which reads control pages, feeds the core and
//! performs what it asks. It decides nothing.

use weft_sched::{Action, Event, UNLIMITED, Usage};

use crate::clock::Tick;
use crate::cpu::{Doing, Place};
use crate::gate::{Grant, Signal};
use crate::world::{DEVICE, World, session_key, vgpu_key};

/// What the daemon remembers of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    runnable: bool,
    turn: Option<Turn>,
    sync_calls: u64,
}

/// A turn of the core, which may take several grants of the gate.
#[derive(Clone, Copy, Debug)]
struct Turn {
    epoch: u64,
    admitted_at_start_ns: u64,
}

impl World {
    /// A worker's doorbell.
    pub(crate) fn signal(&mut self, worker: usize, signal: Signal) {
        if signal == Signal::None || !self.workers[worker].alive {
            return;
        }
        self.dirty.insert(worker);
        if signal == Signal::Ring && !self.rung {
            self.rung = true;
            self.clock.after(self.setup.costs.daemon_wake.ns, Tick::Daemon);
        }
    }

    /// Looks at the sessions that changed, until none did.
    pub(crate) fn look(&mut self) {
        while let Some(session) = self.dirty.pop_first() {
            self.refresh(session);
        }
    }

    /// Tells the core that its timer is due, before what has happened meanwhile.
    pub(crate) fn keep_time(&mut self) {
        if self.timer_ns.is_some_and(|at_ns| self.clock.now_ns >= at_ns) {
            self.timer_ns = None;
            self.report_holders(None);
            self.tell(Event::Timer);
        }
    }

    pub(crate) fn refresh(&mut self, session: usize) {
        self.keep_time();
        let key = session_key(session);
        let usage = self.usage(session);
        let page = &self.workers[session].gate.page;
        let (held, runnable, calls) = (page.is_held(), page.runnable, page.sync_calls);
        let demand_ns = page.demand_ns;
        let entry = &mut self.entries[session];
        let released = entry.turn.filter(|_| !held);
        let was_runnable = std::mem::replace(&mut entry.runnable, runnable);
        if std::mem::replace(&mut entry.sync_calls, calls) != calls {
            self.tell(Event::SyncCalls { session: key, calls });
        }
        if was_runnable && !runnable {
            self.tell(Event::Used { session: key, usage });
            self.tell(Event::Idle { session: key });
        }
        match released {
            Some(turn) => {
                self.entries[session].turn = None;
                self.note_backlog(self.workers[session].vgpu);
                self.tell(Event::Released { session: key, epoch: turn.epoch, usage });
            }
            None => self.tell(Event::Used { session: key, usage }),
        }
        if runnable && !was_runnable {
            self.report_holders(Some(session));
            self.tell(Event::Runnable { session: key, estimate_ns: demand_ns });
        }
    }

    /// Reads the holders' counters. A lone holder that has nothing to do gives way to a newcomer at
    /// once.
    pub(crate) fn report_holders(&mut self, newcomer: Option<usize>) {
        let holders: Vec<usize> =
            self.node.holders(DEVICE).iter().map(|key| key.0 as usize).collect();
        for holder in holders.into_iter().filter(|holder| Some(*holder) != newcomer) {
            let page = &self.workers[holder].gate.page;
            let lone = page.grant.is_some_and(|grant| grant.renewing);
            let idle = newcomer.is_some() && lone && !page.runnable;
            if idle && self.take_back(holder) {
                self.refresh(holder);
            } else {
                let usage = self.usage(holder);
                self.tell(Event::Used { session: session_key(holder), usage });
            }
        }
    }

    /// Revokes; true when the device is free now.
    fn take_back(&mut self, session: usize) -> bool {
        let page = &mut self.workers[session].gate.page;
        if !page.is_held() {
            return true;
        }
        let Some(grant) = page.grant else { return true };
        page.revoked = grant.epoch;
        if !page.runnable && grant.renewing {
            page.reclaimed = grant.epoch;
            return true;
        }
        self.wake_worker(session);
        false
    }

    pub(crate) fn usage(&mut self, session: usize) -> Usage {
        self.tell_elapsed(session);
        let page = &self.workers[session].gate.page;
        Usage { used_ns: page.used_ns, in_flight_ns: page.in_flight_ns, idle_ns: page.idle_ns }
    }

    /// Tells the core one thing and does what it asks.
    pub(crate) fn tell(&mut self, event: Event) {
        let now_ns = self.clock.now_ns;
        if let Err(error) = self.node.handle(now_ns, event, &mut self.actions) {
            self.checks.violated(|| format!("at {now_ns} ns: {event:?} was refused: {error}"));
        }
        self.checks.decided(now_ns, self.node.virtual_time(DEVICE));
        self.note_caps();
        let actions: Vec<Action> = self.actions.drain().collect();
        for action in actions {
            self.perform(action);
        }
    }

    /// Caps may have begun or ceased to hold vGPUs back.
    fn note_caps(&mut self) {
        for place in 0..self.capped.len() {
            let vgpu = self.capped[place];
            let throttled = self.node.vgpu(vgpu_key(vgpu)).is_some_and(|view| view.is_throttled);
            if throttled != self.books[vgpu].throttled {
                self.count_service();
                self.books[vgpu].throttled = throttled;
                self.checks.set_throttled(vgpu, throttled);
                self.observe_device();
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Grant { session, epoch, budget_ns, .. } => {
                self.grant(session.0 as usize, epoch, budget_ns);
            }
            Action::Revoke { session, .. } => {
                let session = session.0 as usize;
                if self.take_back(session) {
                    self.dirty.insert(session);
                }
            }
            Action::Wake { session, .. } => self.coschedule(session.0 as usize),
            Action::Prepare { session, .. } => {
                let page = &mut self.workers[session.0 as usize].gate.page;
                page.prepared = page.grant.map_or(0, |grant| grant.epoch) + 1;
            }
            Action::Kill { session, .. } => {
                let now_ns = self.clock.now_ns;
                self.checks.violated(|| format!("at {now_ns} ns: {session} would be killed"));
            }
            Action::Timer { at_ns, .. } => {
                self.timer_ns = Some(at_ns);
                // A timer that is long ago is due at once; others end late.
                let late_ns = self.setup.costs.timer_late.ns;
                self.clock.at(at_ns.saturating_add(late_ns), Tick::Timer { at_ns });
            }
            Action::CancelTimer => self.timer_ns = None,
            Action::DeviceIdle { .. } => {}
        }
    }

    /// A grant of the core becomes one of the gate.
    fn grant(&mut self, session: usize, epoch: u64, budget_ns: u64) {
        let quantum_ns = self.node.config().quantum_ns;
        self.tell_elapsed(session);
        let page = &self.workers[session].gate.page;
        let (held, admitted_ns) = (page.is_held(), page.admitted_ns());
        let same = self.entries[session].turn.filter(|turn| turn.epoch == epoch);
        if same.is_some() && !held {
            // It released meanwhile and has rung: the release comes next.
            return;
        }
        let turn = same.unwrap_or(Turn { epoch, admitted_at_start_ns: admitted_ns });
        self.entries[session].turn = Some(turn);
        let spent_ns = admitted_ns.saturating_sub(turn.admitted_at_start_ns);
        let renewing = budget_ns == UNLIMITED;
        let budget_ns = if renewing { quantum_ns } else { budget_ns.saturating_sub(spent_ns) };
        let page = &mut self.workers[session].gate.page;
        let epoch = page.grant.map_or(0, |grant| grant.epoch) + 1;
        page.grant = Some(Grant { epoch, budget_ns, at_ns: self.clock.now_ns, renewing });
        let vgpu = self.workers[session].vgpu;
        if same.is_none() {
            self.turns[vgpu] += 1;
            self.note_backlog(vgpu);
        }
        self.wake_worker(session);
    }

    /// GPU-centric coscheduling (FairGV Algorithm 3): the vCPU of an interactive vGPU is woken when
    /// its turn begins.
    fn coschedule(&mut self, session: usize) {
        let Some(vcpu) = self.workers[session].vcpu else { return };
        if !self.setup.coscheduling || self.vcpus[vcpu].waking {
            return;
        }
        if !matches!(self.vcpus[vcpu].doing, Doing::Await(_)) {
            return;
        }
        match self.vcpus[vcpu].place {
            Place::Blocked => {
                self.vcpus[vcpu].waking = true;
                self.clock.after(self.setup.costs.boost.ns, Tick::Awake { vcpu, boosted: true });
            }
            Place::Ready => self.boost(vcpu),
            Place::Running => {}
        }
    }

    pub(crate) fn wake_worker(&mut self, worker: usize) {
        let costs = &self.setup.costs;
        let state = &self.workers[worker];
        let polls = state.gate.is_prepared()
            || !state.flights.is_empty()
            || state.idle_since_ns.is_some()
            || state.gate.knows_turn();
        let delay_ns = if polls { costs.worker_notice.ns } else { costs.worker_wake.ns };
        self.poke(worker, delay_ns);
    }
}
