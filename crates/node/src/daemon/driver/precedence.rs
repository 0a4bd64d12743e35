//! Whose worker goes before ordinary programs, and when: [`crate::daemon::precedence`].

use std::collections::BTreeMap;

use weft_sched::{DeviceKey, SessionKey};

use super::Driver;
use crate::daemon::precedence::Doing;

/// Who goes first beside who has the device, by device.
#[derive(Debug, Default)]
pub(super) struct Precedences {
    /// Who was told last to be ready.
    next: BTreeMap<DeviceKey, SessionKey>,
    /// Whose turn ended last: what it had begun may still be on the device, and the next one waits
    /// for that.
    last: BTreeMap<DeviceKey, SessionKey>,
}

impl Driver {
    /// A session is to be ready for its device.
    pub(super) fn put_next(&mut self, session: SessionKey) {
        let Some(device) = self.device_in_turns(session) else { return };
        let before = self.precedences.next.insert(device, session);
        if let Some(before) = before.filter(|before| *before != session) {
            self.does(before, |doing| doing.is_next = false);
        }
        self.does(session, |doing| doing.is_next = true);
    }

    /// A session has its device.
    pub(super) fn put_first(&mut self, session: SessionKey) {
        if self.device_in_turns(session).is_none() {
            return;
        }
        self.precedences.last.retain(|_, last| *last != session);
        self.does(session, |doing| *doing = Doing { has_turn: true, is_next: false, ..*doing });
    }

    /// A session's turn is over.
    pub(super) fn put_last(&mut self, session: SessionKey) {
        let Some(device) = self.device_in_turns(session) else { return };
        if let Some(before) = self.precedences.last.insert(device, session) {
            self.does(before, |doing| doing.has_turn = false);
        }
    }

    /// Sessions have a device all at once from now on: nobody goes first.
    pub(super) fn put_equal(&mut self, device: DeviceKey) {
        self.precedences.next.remove(&device);
        self.precedences.last.remove(&device);
        let own = self.turns.sessions().filter(|(_, session)| session.device == device);
        for (session, _) in own {
            self.does(session, |doing| {
                *doing = Doing { has_turn: false, is_next: false, ..*doing };
            });
        }
    }

    /// Who wants nothing and has nothing on its device any more goes first no longer, though nobody
    /// else comes.
    pub(super) fn put_back(&mut self) {
        let turns = &self.turns;
        let is_done = |_: &DeviceKey, session: &mut SessionKey| {
            turns.session(*session).is_none_or(|own| {
                !own.is_runnable() && !own.has_turn() && own.gate.report().in_flight_ns == 0
            })
        };
        let Precedences { next, last } = &mut self.precedences;
        let next: Vec<SessionKey> = next.extract_if(.., is_done).map(|(_, key)| key).collect();
        let last: Vec<SessionKey> = last.extract_if(.., is_done).map(|(_, key)| key).collect();
        for session in next {
            self.does(session, |doing| doing.is_next = false);
        }
        for session in last {
            self.does(session, |doing| doing.has_turn = false);
        }
    }

    /// A session's device, if sessions take turns there.
    fn device_in_turns(&self, session: SessionKey) -> Option<DeviceKey> {
        let node = self.turns.node();
        node.device_of(session).filter(|device| !node.is_shared(*device))
    }

    /// A session's worker does something else.
    pub(super) fn does(&self, session: SessionKey, change: impl FnOnce(&mut Doing)) {
        if let Some(own) = self.sessions.get(&session.0) {
            own.worker.does(change);
        }
    }
}
