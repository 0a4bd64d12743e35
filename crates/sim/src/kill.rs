//! Sessions that end with work in flight.

use crate::clock::Tick;
use crate::program::Return;
use crate::worker::{Flight, Source};
use crate::world::{World, session_key};

impl World {
    /// Ends a session at once, as when its process is killed: what it queued is never executed,
    /// what executes stops there and then, and what the device did of it is charged.
    pub fn kill(&mut self, session: usize) {
        self.keep_time();
        self.count_service();
        let now_ns = self.clock.now_ns;
        let executed_ns = self.gpu.executed_ns(session, now_ns).unwrap_or(0);
        let was_head = self.gpu.queue.front().is_some_and(|head| head.worker == session);
        if was_head {
            self.gpu.withdraw(session);
        } else {
            self.gpu.queue.retain(|op| op.worker != session);
        }
        let charged = self.setup.charges_killed;
        let state = &mut self.workers[session];
        let had_work = state.has_work();
        let flights: Vec<Flight> = state.flights.drain(..).collect();
        state.pending.clear();
        state.alive = false;
        state.poke_ns = None;
        for flight in flights.iter().skip(1) {
            state.gate.withdraw(flight.estimate_ns);
        }
        if let Some(front) = flights.first() {
            let charge_ns = if charged { state.meter.charge_part_ns(executed_ns) } else { 0 };
            state.gate.charge(front.estimate_ns, charge_ns);
        }
        let settled_ns = state.meter.settle();
        state.gate.charge(0, settled_ns);
        state.gate.set_idle();
        state.gate.release();
        self.note_work(session, had_work);
        self.note_backlog(self.workers[session].vgpu);
        self.refresh(session);
        self.dirty.remove(&session);
        self.drive(|turns, witness| {
            turns.end(witness, session_key(session), |session| session.gate.report());
        });
        if was_head {
            self.observe_device();
            self.start_head();
        }
        self.look();
    }

    /// A program's session is killed; the program comes back as it said.
    pub(crate) fn come_back(&mut self, vcpu: usize, how: Return) {
        let Some(old) = self.vcpus[vcpu].worker else { return };
        self.kill(old);
        self.workers[old].vcpu = None;
        let vgpu = self.workers[old].vgpu;
        let vgpu = match how {
            Return::SameVgpu => vgpu,
            Return::NewVgpu => self.vgpu_of(self.books[vgpu].tenant, 1),
        };
        let new = self.session(vgpu, Source::Program);
        self.workers[new].vcpu = Some(vcpu);
        self.vcpus[vcpu].worker = Some(new);
        let attach_ns = self.setup.costs.attach.ns;
        self.clock.after(attach_ns.max(1), Tick::Alarm { vcpu });
    }

    /// Device time that a session's commands got so far, in ns: what a program sees of a kernel
    /// that counts its blocks in pinned memory.
    pub(crate) fn seen_ns(&self, session: usize) -> u64 {
        let state = &self.workers[session];
        state.work_ns + self.gpu.uncounted_ns(session, self.clock.now_ns)
    }
}
