//! The daemon around the node's own way of taking turns ([`weft_turn::Turns`]): when it wakes, and
//! what its grants set off. It decides nothing.

use weft_sched::Event;
use weft_turn::{Decision, Effect, Host, PlainPage, Signal, Turns};

use crate::checks::Checks;
use crate::clock::Tick;
use crate::cpu::{Doing, Place};
use crate::world::{DEVICE, World, session_key, vgpu_key};

/// Time, and the checks after each decision.
pub(crate) struct Witness<'a> {
    checks: &'a mut Checks,
    now_ns: u64,
}

impl Host for Witness<'_> {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn decided(&mut self, decision: &Decision<'_>) {
        let Decision { node, now_ns, event, result, .. } = decision;
        if let Err(error) = result {
            self.checks.violated(|| format!("at {now_ns} ns: {event:?} was refused: {error}"));
        }
        self.checks.decided(*now_ns, node.virtual_time(DEVICE));
    }
}

impl World {
    /// Hears what a worker has signalled since the last time; whether it did.
    pub(crate) fn hear(&mut self, worker: usize) -> bool {
        let signal = self.workers[worker].gate.page().take_signal();
        if signal == Signal::None || !self.workers[worker].alive {
            return false;
        }
        self.dirty.insert(worker);
        if signal == Signal::Ring && !self.rung {
            self.rung = true;
            self.clock.after(self.setup.costs.daemon_wake.ns, Tick::Daemon);
        }
        true
    }

    /// Looks at the sessions that changed, until none did.
    pub(crate) fn look(&mut self) {
        while let Some(session) = self.dirty.pop_first() {
            self.refresh(session);
        }
    }

    /// Tells the core that its timer is due, before what has happened meanwhile.
    pub(crate) fn keep_time(&mut self) {
        self.drive(|turns, witness| {
            turns.keep_time(witness);
        });
    }

    pub(crate) fn refresh(&mut self, session: usize) {
        self.drive(|turns, witness| turns.refresh(witness, session_key(session)));
    }

    /// Tells the core one thing and does what it asks.
    pub(crate) fn tell(&mut self, event: Event) {
        self.drive(|turns, witness| turns.tell(witness, event));
    }

    /// Lets the daemon act, and what it does have its effects.
    pub(crate) fn drive(&mut self, act: impl FnOnce(&mut Turns<PlainPage>, &mut Witness<'_>)) {
        self.tell_elapsed();
        let now_ns = self.clock.now_ns;
        act(&mut self.turns, &mut Witness { checks: &mut self.checks, now_ns });
        self.note_caps();
        for effect in self.turns.take_effects() {
            self.follow(effect);
        }
    }

    /// Caps may have begun or ceased to hold vGPUs back.
    fn note_caps(&mut self) {
        for place in 0..self.capped.len() {
            let vgpu = self.capped[place];
            let throttled =
                self.turns.node().vgpu(vgpu_key(vgpu)).is_some_and(|view| view.is_throttled);
            if throttled != self.books[vgpu].throttled {
                self.count_service();
                self.books[vgpu].throttled = throttled;
                self.checks.set_throttled(vgpu, throttled);
                self.observe_device();
            }
        }
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Granted { session, begins } => {
                let session = session.0 as usize;
                if begins {
                    let vgpu = self.workers[session].vgpu;
                    self.turns_begun[vgpu] += 1;
                    self.note_backlog(vgpu);
                }
                self.wake_worker(session);
            }
            Effect::Ended { session, .. } => {
                self.note_backlog(self.workers[session.0 as usize].vgpu);
            }
            Effect::Asked { session } => self.wake_worker(session.0 as usize),
            Effect::Reclaimed { session } => {
                self.dirty.insert(session.0 as usize);
            }
            Effect::Interactive { session } => self.coschedule(session.0 as usize),
            Effect::Overdue { session } => {
                let now_ns = self.clock.now_ns;
                self.checks.violated(|| format!("at {now_ns} ns: {session} would be killed"));
            }
            Effect::Prepared { .. } => {}
            Effect::Timer => {
                if let Some(at_ns) = self.turns.timer_ns() {
                    // A timer that is long ago is due at once; others end late.
                    let late_ns = self.setup.costs.timer_late.ns;
                    self.clock.at(at_ns.saturating_add(late_ns), Tick::Timer { at_ns });
                }
            }
        }
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
            || state.grace.is_idle()
            || state.gate.grant().is_some();
        let delay_ns = if polls { costs.worker_notice.ns } else { costs.worker_wake.ns };
        self.poke(worker, delay_ns);
    }
}
