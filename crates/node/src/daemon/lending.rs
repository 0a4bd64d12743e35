//! What workers say of memory on devices that is lent session by session ([`Lender`]).
//!
//! 1. A worker that is about to start an operation asks for room for all of its session's memory
//!    ([`Ask::Room`]), in its turn.
//! 2. Those that are to give stand still ([`Order::Pause`], [`Ask::Paused`]), are told how much
//!    ([`Reply::Save`]), and say what is left on the device ([`Ask::Holds`]). Whoever waits for
//!    room itself is told as the answer to that.
//! 3. It brings its memory, and says how far it is and when it has ([`Ask::Brought`]).
//!
//! A daemon that dies leaves its successor sessions of which all that they have may be on the
//! device. Each says what is when it has saved, or is given room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_ring::peer;
use weft_sched::DeviceKey;
use weft_sched::memory::{LedgerError, Room, Wish};

use super::Daemon;
use super::clock;
use super::devices::lending::{Fixing, Lender, Pressure};
use super::driver::Order;
use super::sessions::{SWITCH_MIN_NS, Session, refused};
use crate::link::{Ask, Reply};

/// Who waits looks again after this time.
const LOOK: Duration = Duration::from_millis(5);

/// Sessions of an earlier daemon are waited for so long at a time: they stand still and say what
/// they have.
const HEARD_LIMIT: Duration = Duration::from_millis(200);

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
        let Some(device) = self.device_of(session.key) else {
            return refused(session, LedgerError::Unknown);
        };
        let (lender, held, quota) = {
            let tables = self.tables();
            let memory = tables.memory(device);
            let (_, quota) = memory.usage(session.vgpu);
            (memory.lender().cloned(), memory.session_bytes(session.key), quota)
        };
        match (ask.clone(), lender) {
            (Ask::Room { bytes, fixed_bytes, missing_bytes, stands, loads }, Some(lender)) => {
                // No more than was paid for.
                let [total, fixed] = [bytes, fixed_bytes].map(|bytes| bytes.min(held));
                let of = (device, quota);
                let fixed = if loads { fixed } else { self.fixed_of(session, &lender, of, fixed) };
                let wish = Wish { total, fixed, missing: missing_bytes, gives: loads };
                if loads
                    && let Some(answer) =
                        self.ask_for_module(session, &lender, (wish, stands), (device, quota))
                {
                    return answer;
                }
                self.find_room(session, &lender, wish, stands)
            }
            // On a device that lends no more than it has, what was paid for has room, or nobody
            // knows of any.
            (Ask::Room { missing_bytes: 1.., .. }, None) => Reply::Exhausted,
            (Ask::Holds { bytes, fixed_bytes }, Some(lender)) => {
                let fixed = self.fixed_of(session, &lender, (device, quota), fixed_bytes);
                // It never has more than it was given room for.
                let bytes = bytes.min(held).min(lender.held(session.key));
                lender.holds(session.key, bytes, fixed);
                Reply::Done
            }
            (Ask::Brought { left_bytes }, Some(lender)) => {
                match left_bytes {
                    0 => lender.note_brought(session.key, session.vgpu),
                    _ => lender.note_bringing(session.key, left_bytes),
                }
                Reply::Done
            }
            _ => Reply::Done,
        }
    }

    /// What stays on the device of what a session has there, by its word: what was allowed, and
    /// more if that could be, for a driver may not take all memory back.
    fn fixed_of(
        &self,
        session: &Session,
        lender: &Lender,
        (device, quota): (DeviceKey, u64),
        said: u64,
    ) -> u64 {
        let largest = self.tables().memory(device).largest_beside(session.key);
        lender.fixed_of((session.key, session.vgpu), said, quota, largest)
    }

    /// A session asks for room for a module; an answer if it does not wait for any. Who stands
    /// still can save as long as it waits: two that load modules would wait for each other.
    fn ask_for_module(
        &self,
        session: &Session,
        lender: &Lender,
        (wish, stands): (Wish, bool),
        (device, quota): (DeviceKey, u64),
    ) -> Option<Reply> {
        if stands {
            lender.pause_load(session.key, self.payer(session));
        }
        let began = Instant::now();
        loop {
            if let Some(answer) = self.pause_for_module(session, lender, &wish, stands) {
                return Some(answer);
            }
            let tables = self.tables();
            let largest = tables.memory(device).largest_beside(session.key);
            let who = (session.key, session.vgpu);
            let fixing = lender.ask_to_fix(who, (wish, stands), quota, largest);
            drop(tables);
            if fixing == Fixing::Unknown {
                let waiting = Waiting { daemon: self, session };
                lender.silent_beside(session.key).into_iter().for_each(|other| waiting.end(other));
            }
            let answer = match fixing {
                Fixing::Allowed => return None,
                Fixing::Unknown if stands && began.elapsed() < HEARD_LIMIT => None,
                Fixing::Unknown => Some(Reply::Later),
                Fixing::Refused => Some(Reply::Exhausted),
            };
            lender.give_up(session.key);
            if answer.is_some() {
                return answer;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Loads of modules are no turns, so nobody pays for what they have others save: a payer's do
    /// that for a part of the time, and one after the other. Who waits for that can save what it
    /// owes; who does not stand still has its kernels collected, and asks again.
    fn pause_for_module(
        &self,
        session: &Session,
        lender: &Lender,
        wish: &Wish,
        stands: bool,
    ) -> Option<Reply> {
        let waiting = Waiting { daemon: self, session };
        let who = (session.key, self.payer(session));
        while let Some(debt) = lender.must_pause(who, wish, stands) {
            if !stands {
                return Some(Reply::Later);
            }
            if let Some(bytes) = debt {
                return Some(Reply::Save { bytes });
            }
            if waiting.is_over() {
                return Some(Reply::Exhausted);
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    fn find_room(&self, session: &Session, lender: &Lender, wish: Wish, stands: bool) -> Reply {
        let key = session.key;
        let expected_ns = lender.ask(key, wish, stands);
        if let Some(switch_ns) = expected_ns.filter(|ns| *ns >= SWITCH_MIN_NS)
            && stands
            && !wish.gives
        {
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

    /// A session is about to load images of so many bytes, or has: whether it may keep its memory
    /// on the device meanwhile.
    pub(crate) fn note_loading(&self, session: &Session, bytes: u64, stands: bool) -> Reply {
        let Some(device) = self.device_of(session.key) else {
            return refused(session, LedgerError::Unknown);
        };
        let tables = self.tables();
        let memory = tables.memory(device);
        let Some(lender) = memory.lender() else { return Reply::Done };
        if bytes == 0 {
            lender.end_load(session.key);
            return Reply::Done;
        }
        let lacking = memory.used_bytes_total().saturating_sub(lender.capacity());
        let own = memory.session_bytes(session.key);
        let payer = self.payer(session);
        let saves = match stands {
            true => lender.begin_load((session.key, payer), bytes, (own, lacking)),
            // It cannot save; nor can it when it compiles.
            false => lender.resume_load(session.key, payer, false),
        };
        saves.map_or(Reply::Done, |bytes| Reply::Save { bytes })
    }

    /// A session that stands still waits to compile a module, and can save meanwhile.
    pub(crate) fn note_waiting_to_compile(&self, session: &Session) {
        let Some(device) = self.device_of(session.key) else { return };
        if let Some(lender) = self.tables().memory(device).lender() {
            lender.pause_load(session.key, self.payer(session));
        }
    }

    /// A session is about to compile a module: what it is to save before, if anything.
    pub(crate) fn note_compiling(&self, session: &Session, stands: bool) -> Option<u64> {
        let device = self.device_of(session.key)?;
        let tables = self.tables();
        let lender = tables.memory(device).lender()?;
        lender.resume_load(session.key, self.payer(session), stands)
    }

    /// Has the sessions of an earlier daemon say what of their memory is on their devices.
    pub(crate) fn hear_of_memory(&self) {
        let tables = self.tables();
        let lenders: Vec<Arc<Lender>> = self
            .devices
            .iter()
            .filter_map(|device| tables.memory(device.key).lender().cloned())
            .collect();
        drop(tables);
        for lender in lenders {
            lender.hear(|session, number| {
                self.driver.send(Order::Pause { session, number });
            });
        }
    }

    /// What a session that stands still is to save of its memory on the device, if anything.
    pub(crate) fn debt_of(&self, session: &Session) -> Option<u64> {
        let device = self.device_of(session.key)?;
        self.tables().memory(device).lender()?.debt(session.key)
    }
}
