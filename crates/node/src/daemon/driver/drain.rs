//! Sessions that are over while the device has work of theirs.
//!
//! On a device that cannot take work back, what a dead worker began occupies the device to its end
//! ([`Abandoned::Stays`]). Its turn lasts until then: whoever began a turn meanwhile would execute
//! beside it, and both would be charged the same time.

use std::sync::mpsc::Sender;

use weft_sched::SessionKey;
use weft_turn::Abandoned;

use super::Driver;
use crate::daemon::clock;

/// Who waits until a session's work is over.
#[derive(Debug, Default)]
pub(super) struct Drains(Vec<Drain>);

#[derive(Debug)]
struct Drain {
    session: u32,
    until_ns: u64,
    /// Its end tells who waits.
    _answer: Sender<()>,
}

impl Drains {
    /// When the first is over.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.0.iter().map(|drain| drain.until_ns).min()
    }

    /// Lets go who waits for a session.
    pub(super) fn end(&mut self, session: u32) {
        self.0.retain(|drain| session != drain.session);
    }

    /// Lets go who has waited long enough.
    pub(super) fn release(&mut self, now_ns: u64) {
        self.0.retain(|drain| drain.until_ns > now_ns);
    }
}

impl Driver {
    /// The session's worker is dead: `answer` is dropped when the device has done what was in
    /// flight, and says before that it is not yet. A page that lies keeps the device for no longer
    /// than a holder may that does not give it back, and is charged all of that.
    pub(super) fn drain(&mut self, session: u32, answer: Sender<()>) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            // There is nothing left to kill.
            entry.killed = true;
        }
        let entry = self.turns.session(SessionKey(session)).filter(|entry| entry.has_turn());
        let Some(entry) = entry else { return };
        let Some(device) = self.devices.iter().find(|known| known.key == entry.device) else {
            return;
        };
        if device.abandoned == Abandoned::Ends || self.turns.node().is_shared(device.key) {
            return;
        }
        let now_ns = clock::now_ns();
        let asked_ns = entry.revoked_ns().unwrap_or(now_ns);
        let latest_ns = asked_ns.saturating_add(device.config.overdue_ns);
        let until_ns = entry.gate.page().occupied_until_ns().min(latest_ns);
        // Nobody waits where nobody hears it.
        if until_ns > now_ns && answer.send(()).is_ok() {
            self.drains.0.push(Drain { session, until_ns, _answer: answer });
        }
    }
}
