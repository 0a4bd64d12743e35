//! The end of a session: what it had goes to others, and what it used is booked.

use std::sync::mpsc::{self, Receiver};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_ring::Loss;
use weft_sched::DeviceKey;

use super::{Entry, Session};
use crate::daemon::devices::frames::Dirty;
use crate::daemon::driver::Order;
use crate::daemon::{Daemon, Tables, clock, process};

/// Whoever waits for sessions to be over looks this often for such as have only just begun.
const END_POLL: Duration = Duration::from_millis(20);

/// What a program that has ended leaves on the device is over within this time, as a rule.
const DEPART_LIMIT: Duration = Duration::from_secs(5);

/// What a worker's end by a signal says beyond the signal.
fn what_ended(signal: i32) -> &'static str {
    if signal == rustix::process::Signal::BUS.as_raw() {
        return "memory that it used could not be read or written: look at the disk of \
                device.swap_dir";
    }
    "its program is told that the device is unavailable"
}

impl Daemon {
    /// The worker is gone or must go: its turn, its memory and its tenant's hope end here.
    ///
    /// Whoever waits for the device waits for this thread: it goes first until the turn is over.
    pub(crate) fn end_session(&self, session: Session) {
        let Session { key, start, vgpu, payer, worker, segment, place } = session;
        self.go_first(true);
        let device = self.device_of(key);
        let signal = worker.end();
        self.loads.end(key, None, clock::now_ns());
        if let Some(device) = device {
            if signal.is_some() {
                self.health.suspect(device);
            }
            self.devices.get(device).repair(key);
        }
        if let Err(error) = segment.declare_worker_lost() {
            tracing::error!(session = start.session, %error, "the tenant could not be told");
        }
        // Whoever wants memory next is not to save some for what is free.
        let mut memory = self.take_memory(key, vgpu);
        // Clearing it takes longer than anybody should wait for the device, unless that is not done
        // with the session.
        if let Some(lasting) = self.drain(key) {
            self.go_first(false);
            self.give_memory_back(memory.drain(..));
            self.go_first(true);
            // The answer is that there will be none.
            let _: Result<(), _> = lasting.recv();
        }
        let used_ns = self.end_turn(key, vgpu, start.session, device);
        self.go_first(false);
        // The daemon is ending: the next one finds the record, and books it.
        let Some(used_ns) = used_ns else { return };
        let saving = self.begin_saving();
        self.give_memory_back(memory);
        self.leave(key, vgpu, device);
        if place.is_some() {
            drop((segment, place));
            self.forget_regions();
        }
        // Only when it is on disk: a daemon that finds the record books it, once.
        if self.saved(&saving).is_ok() {
            self.runtime.remove_door(start.session);
        }
        if let Some(suppressed) = self.lines.line(payer, Instant::now()) {
            let (session, vgpu) = (start.session, start.vgpu);
            match signal {
                Some(signal) => {
                    let what = what_ended(signal);
                    tracing::warn!(session, vgpu, used_ns, signal, suppressed, what, "worker died");
                }
                None => tracing::info!(session, vgpu, used_ns, suppressed, "session ended"),
            }
        }
    }

    /// The calling thread goes before ordinary ones, or as one of them, where this daemon may say
    /// so.
    pub(super) fn go_first(&self, first: bool) {
        if let Some(ranks) = self.ranks.filter(|ranks| ranks.order())
            && let Err(error) = ranks.put_caller(first)
        {
            tracing::debug!(first, %error, "who serves a session keeps its priority");
        }
    }

    /// Ends a session for the driver and books what it used, which is the result.
    fn end_turn(
        &self,
        key: u32,
        vgpu: u32,
        session: u64,
        device: Option<DeviceKey>,
    ) -> Option<u64> {
        // In one step for whoever reads totals: what the driver no longer counts is booked.
        let mut tables = self.tables();
        let ended = self.driver.ask(|answer| Order::End { session: key, answer })?;
        let used_ns = ended.map_or(0, |ended| ended.used_ns);
        let abandoned_ns = ended.map_or(0, |ended| ended.abandoned_ns);
        if let Some(device) = device {
            self.devices.get(device).count_abandoned(abandoned_ns);
        }
        tables.registry.close_session(vgpu, session, used_ns);
        Some(used_ns)
    }

    /// Ends the sessions that are `meant`; whether there are any. Asked until there are none, it
    /// also ends those that were only about to begin.
    pub(crate) fn end_those(
        &self,
        tables: &mut Tables,
        loss: Loss,
        meant: impl Fn(&Entry) -> bool,
    ) -> bool {
        let mut any = false;
        for (session, entry) in tables.sessions.iter_mut().filter(|(_, entry)| meant(entry)) {
            entry.end(loss);
            self.driver.send(Order::EndDrain { session: *session });
            any = true;
        }
        any
    }

    /// Waits for the sessions that are `meant` whose programs have ended already: nobody is refused
    /// because of a program that he has seen end.
    pub(crate) fn await_departed<'a>(
        &self,
        mut tables: MutexGuard<'a, Tables>,
        meant: impl Fn(&Entry) -> bool,
    ) -> MutexGuard<'a, Tables> {
        let deadline = Instant::now() + DEPART_LIMIT;
        let departed = |entry: &Entry| meant(entry) && process::is_gone(entry.pid);
        while tables.sessions.values().any(departed) && Instant::now() < deadline {
            tables = self.await_end(tables);
        }
        tables
    }

    /// Waits until a session is over, or for a moment.
    pub(crate) fn await_end<'a>(&self, tables: MutexGuard<'a, Tables>) -> MutexGuard<'a, Tables> {
        let waited = self.ended.wait_timeout(tables, END_POLL);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What ends when the device is done with a dead session's work, unless that is so at once, the
    /// node ends or somebody wants its vGPU gone.
    fn drain(&self, key: u32) -> Option<Receiver<()>> {
        let (answer, over) = mpsc::channel();
        {
            // In one step with whoever says that nobody is to wait.
            let tables = self.tables();
            if tables.sessions.get(&key).is_none_or(|entry| entry.ends_at_once) {
                return None;
            }
            self.driver.send(Order::Drain { session: key, answer });
        }
        over.recv().is_ok().then_some(over)
    }

    /// A dead session has none of the devices' and the host's memory any more. The result is to be
    /// given back.
    fn take_memory(&self, key: u32, vgpu: u32) -> Vec<(DeviceKey, Dirty)> {
        let mut tables = self.tables();
        tables.host.end(key);
        // On two devices while it is moved.
        let devices = self.devices.iter().map(|device| device.key);
        devices.map(|device| (device, tables.frames(device).remove_session(key, vgpu))).collect()
    }

    /// Clears frames that a session had, for others.
    pub(super) fn give_memory_back(&self, memory: impl IntoIterator<Item = (DeviceKey, Dirty)>) {
        for (device, frames) in memory {
            let cleared = frames.clear();
            self.tables().frames(device).recycle(&cleared);
            self.cleared.notify_all();
        }
    }

    /// Gives a session's place back, and the file of its vGPU on `device` with the last one's.
    pub(super) fn leave(&self, key: u32, vgpu: u32, device: Option<DeviceKey>) {
        let mut tables = self.tables();
        let left = tables.sessions.remove(&key);
        let is_last = !tables.sessions.values().any(|entry| entry.vgpu == vgpu);
        if let Some(left) = left.filter(|_| is_last) {
            self.place_capped(&mut tables, left.payer);
        }
        let device = device.filter(|_| is_last);
        let file = device.map(|device| tables.frames(device).forget_file(vgpu));
        drop(tables);
        self.ended.notify_all();
        self.moving.notify_all();
        // What is left of it goes without the lock, too.
        drop(file);
    }
}
