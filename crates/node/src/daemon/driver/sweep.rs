//! Looks at what nobody says: sessions whose news were not marked, and holders that do not run.
//!
//! Workers mark their sessions on a page that they all write to, and one that was taken over can
//! wipe the others' marks out. A holder that was stopped says nothing at all. The driver therefore
//! looks at all sessions from time to time, marked or not: often while some want the device, and
//! now and then while none does, as far as it knows.

use std::collections::BTreeSet;

use weft_gate::DaemonSide;
use weft_sched::{DeviceKey, SessionKey};
use weft_turn::Contender;

use super::Driver;
use crate::daemon::clock;

/// How often, in ns, while a session wants or holds the device.
const EVERY_NS: u64 = 20_000_000;

/// The same while none does: so late somebody is heard at the first of a liar's lies.
const IDLE_EVERY_NS: u64 = 500_000_000;

/// The same after news that nobody marked, for a while.
const WARY_EVERY_NS: u64 = 1_000_000;

/// How long the driver stays wary, in ns.
const WARY_FOR_NS: u64 = 10_000_000_000;

/// Unmarked news in a row that are no coincidence: a session marks right after it says something.
const COINCIDENCES: u32 = 3;

/// A stopped holder may keep others waiting for a quantum and so long, in ns.
const STOPPED_GRACE_NS: u64 = 250_000_000;

/// What there is to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sessions {
    None,
    /// Nobody wants a device.
    Idle,
    /// Somebody wants or holds one.
    Busy,
}

/// When the driver looks at everything.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    last_ns: u64,
    unmarked: u32,
    wary_until_ns: u64,
}

impl Sweep {
    /// When the next one is due.
    pub(super) fn due_ns(&self, sessions: Sessions) -> Option<u64> {
        let is_wary = self.last_ns < self.wary_until_ns;
        let every_ns = match sessions {
            Sessions::None => return None,
            Sessions::Idle | Sessions::Busy if is_wary => WARY_EVERY_NS,
            Sessions::Busy => EVERY_NS,
            Sessions::Idle => IDLE_EVERY_NS,
        };
        Some(self.last_ns.saturating_add(every_ns))
    }

    /// A sweep found `unmarked` sessions with news. Whether that is a reason to say so.
    fn note(&mut self, unmarked: usize, now_ns: u64) -> bool {
        self.last_ns = now_ns;
        self.unmarked = if unmarked == 0 { 0 } else { self.unmarked + 1 };
        if self.unmarked < COINCIDENCES {
            return false;
        }
        let was_wary = now_ns < self.wary_until_ns;
        self.wary_until_ns = now_ns.saturating_add(WARY_FOR_NS);
        !was_wary
    }
}

impl Driver {
    /// When the next sweep is due.
    pub(super) fn sweep_due_ns(&self) -> Option<u64> {
        let is_busy = |session: &Contender<DaemonSide>| session.is_runnable() || session.has_turn();
        let all = || self.turns.sessions().map(|(_, session)| is_busy(session));
        self.sweep.due_ns(match (all().next(), all().any(|is_busy| is_busy)) {
            (None, _) => Sessions::None,
            (Some(_), true) => Sessions::Busy,
            (Some(_), false) => Sessions::Idle,
        })
    }

    /// Looks at all sessions if it is time to.
    pub(super) fn sweep(&mut self) {
        let now_ns = clock::now_ns();
        if self.sweep_due_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return;
        }
        let changed = self.turns.sessions().filter(|(_, session)| session.has_news());
        let mut changed: BTreeSet<u32> = changed.map(|(key, _)| key.0).collect();
        // A worker may have said something since the marks were taken: the driver wakes workers,
        // and one of them takes its processor. Whoever says something marks after that.
        let marked: BTreeSet<u32> = self.page.take_dirty().collect();
        // One that was stopped or killed between its news and its mark is no sign of anything.
        let could_mark =
            |key: &&u32| self.sessions.get(*key).is_some_and(|session| session.worker.is_running());
        let unmarked = changed.difference(&marked).filter(could_mark).count();
        changed.extend(marked);
        if self.sweep.note(unmarked, now_ns) {
            tracing::error!(
                "sessions have news that are not marked: a worker may have been taken over; the \
                 node goes on without the marks"
            );
        }
        for session in changed {
            self.refresh(session);
        }
        self.put_back();
        self.end_stopped(now_ns);
        self.end_overstays(now_ns);
    }

    /// Ends holders that were stopped (`SIGSTOP`) while others wait.
    fn end_stopped(&mut self, now_ns: u64) {
        let waits = |session: &Contender<DaemonSide>| session.is_runnable() && !session.has_turn();
        let waiting = self.turns.sessions().filter(|(_, session)| waits(session));
        let contended: BTreeSet<DeviceKey> = waiting.map(|(_, session)| session.device).collect();
        let limit_ns = |session: &Contender<DaemonSide>| {
            let config = self.turns.node().config(session.device);
            config.map_or(0, |config| config.quantum_ns).saturating_add(STOPPED_GRACE_NS)
        };
        let is_late = |session: &Contender<DaemonSide>| {
            contended.contains(&session.device)
                && session.has_turn()
                && now_ns.saturating_sub(session.granted_ns()) > limit_ns(session)
        };
        let is_stopped = |key: &SessionKey| {
            self.sessions.get(&key.0).is_some_and(|session| session.worker.is_stopped())
        };
        let late = self.turns.sessions().filter(|(_, session)| is_late(session));
        let stopped: Vec<SessionKey> = late.map(|(key, _)| key).filter(is_stopped).collect();
        for session in stopped {
            self.kill(session.0, "it was stopped while it held the device");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_sessions_is_left_alone_and_an_idle_one_nearly() {
        let due_ns = |sessions| Sweep::default().due_ns(sessions);
        assert_eq!(due_ns(Sessions::None), None);
        assert_eq!(due_ns(Sessions::Idle), Some(IDLE_EVERY_NS));
        assert_eq!(due_ns(Sessions::Busy), Some(EVERY_NS));
    }

    #[test]
    fn news_that_are_never_marked_make_the_driver_wary_for_a_while() {
        let mut sweep = Sweep::default();
        let start_ns = 1_000_000_000;
        assert!(!sweep.note(1, start_ns), "one is a coincidence");
        assert!(!sweep.note(0, start_ns));
        let said: Vec<bool> = (0..4).map(|_| sweep.note(2, start_ns)).collect();
        assert_eq!(said, [false, false, true, false], "it is said once");
        for sessions in [Sessions::Idle, Sessions::Busy] {
            assert_eq!(sweep.due_ns(sessions), Some(start_ns + WARY_EVERY_NS));
        }
        assert!(!sweep.note(0, start_ns + WARY_FOR_NS));
        assert_eq!(sweep.due_ns(Sessions::Busy), Some(start_ns + WARY_FOR_NS + EVERY_NS));
    }
}
