//! Whose worker goes before ordinary programs, and when: [`crate::daemon::precedence`].

use std::collections::BTreeMap;

use weft_sched::{DeviceKey, SessionKey};
use weft_turn::Contender;

use super::Driver;
use crate::daemon::clock;
use crate::daemon::precedence::Doing;

/// What was begun in a turn is over so long after it was to be, in ns, or it is looked at again.
const LEFT_LATE_NS: u64 = 300_000;

/// Who goes first beside who has the device, by device.
#[derive(Debug, Default)]
pub(super) struct Precedences {
    /// Who was told last to be ready.
    next: BTreeMap<DeviceKey, SessionKey>,
    /// Whose turn ended last: what it had begun may still be on the device, and the next one waits
    /// for that.
    last: BTreeMap<DeviceKey, Last>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    session: SessionKey,
    /// When it is looked at whether anything is left; never where it goes first anyhow.
    due_ns: Option<u64>,
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
        self.precedences.last.retain(|_, last| last.session != session);
        self.does(session, |doing| {
            *doing = Doing { has_turn: true, was_last: false, is_next: false, ..*doing };
        });
    }

    /// A session's turn is over.
    pub(super) fn put_last(&mut self, session: SessionKey) {
        let Some(device) = self.device_in_turns(session) else { return };
        let is_beyond = self.sessions.get(&session.0).is_some_and(|own| own.worker.is_beyond());
        let due_ns = is_beyond.then(|| self.left_until_ns(session));
        let last = Last { session, due_ns };
        if let Some(before) = self.precedences.last.insert(device, last) {
            self.does(before.session, |doing| doing.was_last = false);
        }
        self.does(session, |doing| (doing.has_turn, doing.was_last) = (false, true));
    }

    /// When the earliest of those is looked at again that went last and are beyond their allowance.
    pub(super) fn left_due_ns(&self) -> Option<u64> {
        self.precedences.last.values().filter_map(|last| last.due_ns).min()
    }

    /// Whoever is due and has nothing left on its device goes first no longer.
    pub(super) fn put_back_due(&mut self) {
        let now_ns = clock::now_ns();
        let is_due = |last: &Last| last.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        let due = self.precedences.last.iter().filter(|(_, last)| is_due(last));
        for (device, last) in due.map(|(device, last)| (*device, *last)).collect::<Vec<_>>() {
            if self.left_ns(last.session) > 0 {
                let due_ns = Some(self.left_until_ns(last.session));
                self.precedences.last.insert(device, Last { due_ns, ..last });
            } else {
                self.precedences.last.remove(&device);
                self.does(last.session, |doing| doing.was_last = false);
            }
        }
    }

    /// What a session has on its device, in ns, as far as that is known.
    fn left_ns(&self, session: SessionKey) -> u64 {
        self.turns.session(session).map_or(0, |own| own.gate.report().in_flight_ns)
    }

    fn left_until_ns(&self, session: SessionKey) -> u64 {
        let left_ns = self.left_ns(session).saturating_add(LEFT_LATE_NS);
        clock::now_ns().saturating_add(left_ns)
    }

    /// Sessions have a device all at once from now on: nobody goes first.
    pub(super) fn put_equal(&mut self, device: DeviceKey) {
        self.precedences.next.remove(&device);
        self.precedences.last.remove(&device);
        let own = self.turns.sessions().filter(|(_, session)| session.device == device);
        for (session, _) in own {
            self.does(session, |doing| {
                *doing = Doing { has_turn: false, was_last: false, is_next: false, ..*doing };
            });
        }
    }

    /// Who has nothing on its device any more, or was next and wants nothing, goes first no longer,
    /// though nobody else comes.
    pub(super) fn put_back(&mut self) {
        let turns = &self.turns;
        let has_nothing_left = |session: SessionKey| {
            turns
                .session(session)
                .is_none_or(|own| !own.has_turn() && own.gate.report().in_flight_ns == 0)
        };
        let wants = |session| turns.session(session).is_some_and(Contender::is_runnable);
        let Precedences { next, last } = &mut self.precedences;
        let next = next.extract_if(.., |_, session| !wants(*session) && has_nothing_left(*session));
        let next: Vec<SessionKey> = next.map(|(_, session)| session).collect();
        // What it wants next is no reason: it may have to wait, as one whose cap is used up.
        let last = last.extract_if(.., |_, last| has_nothing_left(last.session));
        let last: Vec<SessionKey> = last.map(|(_, last)| last.session).collect();
        for session in next {
            self.does(session, |doing| doing.is_next = false);
        }
        for session in last {
            self.does(session, |doing| doing.was_last = false);
        }
    }

    /// A session's device, if sessions take turns there.
    fn device_in_turns(&self, session: SessionKey) -> Option<DeviceKey> {
        let node = self.turns.node();
        node.device_of(session).filter(|device| !node.is_shared(*device))
    }

    /// A session's worker does something else.
    pub(super) fn does(&self, session: SessionKey, change: impl FnOnce(&mut Doing)) {
        let used_ns = self.turns.session(session).map(|own| own.gate.report().used_ns);
        if let Some(own) = self.sessions.get(&session.0) {
            own.worker.does(|doing| {
                change(doing);
                doing.used_ns = used_ns.unwrap_or(doing.used_ns);
            });
        }
    }
}
