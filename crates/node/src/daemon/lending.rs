//! What workers say of memory on devices that is lent session by session ([`Lender`]).
//!
//! 1. A worker that is about to start an operation asks for room for all of its session's memory
//!    ([`Ask::Room`]), in its turn.
//! 2. Those that are to give stand still ([`Order::Pause`], [`Ask::Paused`]), are told how much
//!    ([`Reply::Save`]), and say what is left on the device ([`Ask::Holds`]). Whoever waits for room
//!    itself is told as the answer to that.
//! 3. It brings its memory, and says how long all of it took ([`Ask::Brought`]).
//!
//! A daemon that dies leaves its successor sessions of which all that they have may be on the
//! device. Each says what is when it has saved, or is given room.

use weft_ring::peer;
use weft_sched::memory::{Room, Wish};

use super::Daemon;
use super::clock;
use super::devices::lending::{Lender, Pressure};
use super::driver::Order;
use super::sessions::{SWITCH_MIN_NS, Session};
use crate::link::{Ask, Reply};

/// A session that waits for room, and what it may do to others.
struct Waiting<'a> {
    daemon: &'a Daemon,
    session: &'a Session,
}

impl Pressure for Waiting<'_> {
    fn pause(&self, session: u32, number: u64) {
        // Asked twice is asked once.
        self.daemon.driver.send(Order::Pause { session, number });
    }

    fn end(&self, session: u32) {
        let mut tables = self.daemon.tables();
        let Some(entry) = tables.sessions.get_mut(&session) else { return };
        tracing::error!(session, "a worker does not give device memory back that others need");
        if let Some(worker) = entry.worker.take() {
            // One that is gone already has been noticed by its thread.
            let _ = worker.kill();
        }
    }

    fn is_over(&self) -> bool {
        peer::has_hung_up(&self.session.worker.link)
    }
}

impl Daemon {
    /// Answers what a worker asks about its memory on a device, or says of it.
    pub(crate) fn answer_about_room(&self, session: &Session, ask: &Ask) -> Reply {
        let device = self.device_of(session.key);
        let lender = self.tables().memory(device).lender().cloned();
        // On a device that lends no more than it has, all that was paid for has room.
        let Some(lender) = lender else { return Reply::Done };
        match *ask {
            Ask::Room { bytes, fixed_bytes, missing_bytes, stands, loads } => {
                let (held, quota) = {
                    let tables = self.tables();
                    let memory = tables.memory(device);
                    (memory.session_bytes(session.key), memory.usage(session.vgpu).1)
                };
                if loads && !lender.may_fix(session.key, session.vgpu, fixed_bytes, quota) {
                    return Reply::Exhausted;
                }
                // No more than was paid for.
                let [total, fixed] = [bytes, fixed_bytes].map(|bytes| bytes.min(held));
                let missing = missing_bytes.min(held);
                let wish = Wish { total, fixed, missing, gives: loads };
                self.find_room(session, &lender, wish, stands)
            }
            Ask::Holds { bytes, fixed_bytes } => {
                lender.holds(session.key, bytes, fixed_bytes);
                Reply::Done
            }
            Ask::Brought { took_ns } => {
                lender.note_brought(session.key, session.vgpu, took_ns);
                Reply::Done
            }
            _ => Reply::Refused { message: "that is not about room".to_owned() },
        }
    }

    fn find_room(&self, session: &Session, lender: &Lender, wish: Wish, stands: bool) -> Reply {
        let key = session.key;
        let switch_ns = lender.ask(key, wish);
        if stands && !wish.gives && switch_ns >= SWITCH_MIN_NS {
            // Before it, since it takes longer than a turn: what others save, and what it brings.
            self.driver.send(Order::Switched { session: key, switch_ns, ahead_ns: 0 });
        }
        let waiting = Waiting { daemon: self, session };
        match lender.wait(clock::now_ns, key, stands, &waiting) {
            Room::Granted => Reply::Done,
            Room::Save { bytes } => Reply::Save { bytes },
            Room::Waits => Reply::Later,
            Room::Refused => Reply::Exhausted,
        }
    }

    /// A session loads a module from now on, or not any more.
    pub(crate) fn note_loading(&self, session: &Session, loads: bool) -> &Self {
        let device = self.device_of(session.key);
        if let Some(lender) = self.tables().memory(device).lender() {
            lender.set_loads(session.key, loads);
        }
        self
    }

    /// What a session that stands still is to save of its memory on the device, if anything.
    pub(crate) fn debt_of(&self, session: &Session) -> Option<u64> {
        let device = self.device_of(session.key);
        self.tables().memory(device).lender()?.debt(session.key)
    }
}
