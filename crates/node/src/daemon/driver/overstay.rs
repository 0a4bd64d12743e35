//! Holders that were asked for the device and have not given it back for as long as they may.
//!
//! How long they may counts time in which they could have run: a thread block that other load keeps
//! from the processor is not ended for that. So a holder that the core gives up may stay for as
//! long again as its worker waited for a processor meanwhile, within a bound: a tenant can have its
//! own worker wait, by programs beside it. Nor does time count in which its memory is about to come
//! ([`Lender::is_exchanging`]), for which it waits for others.
//!
//! [`Lender::is_exchanging`]: crate::daemon::devices::lending::Lender::is_exchanging

use std::collections::BTreeMap;

use weft_sched::SessionKey;

use super::Driver;
use crate::daemon::clock;

/// A holder is looked at when it is asked for the device for so long, in ns: nearly all have given
/// it back by then.
const LOOK_AFTER_NS: u64 = 100_000_000;

/// What a worker waits for a processor counts up to so many times the time that a holder may stay.
const WAITED_TIMES_MAX: u64 = 3;

const TOO_LONG: &str = "it keeps the device too long";

/// Holders that stay.
#[derive(Debug, Default)]
pub(super) struct Overstays(BTreeMap<u32, Overstay>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Overstay {
    /// When it was asked for the device.
    asked_ns: u64,
    /// Since when it could have given it back: its memory was about to come before.
    since_ns: u64,
    /// How long its worker had waited for a processor when it was first looked at, in ns.
    waited_before_ns: Option<u64>,
    /// The core gives it up.
    is_given_up: bool,
}

impl Overstay {
    const fn new(asked_ns: u64, waited_before_ns: Option<u64>) -> Self {
        Self { asked_ns, since_ns: asked_ns, waited_before_ns, is_given_up: false }
    }

    /// When it is to end that may stay for `overdue_ns` and has waited for a processor for
    /// `waited_ns` since it began.
    fn ends_ns(&self, overdue_ns: u64, waited_ns: Option<u64>) -> u64 {
        let waited_ns = match (self.waited_before_ns, waited_ns) {
            (Some(before_ns), Some(waited_ns)) => waited_ns.saturating_sub(before_ns),
            // A system that does not say so.
            (None, _) | (_, None) => 0,
        };
        let more_ns = waited_ns.min(overdue_ns.saturating_mul(WAITED_TIMES_MAX));
        self.since_ns.saturating_add(overdue_ns).saturating_add(more_ns)
    }
}

impl Driver {
    /// The core gives a holder up.
    pub(super) fn give_up(&mut self, session: u32) {
        let entry = self.turns.session(SessionKey(session));
        let Some(asked_ns) = entry.and_then(|entry| entry.revoked_ns()) else {
            return self.kill(session, TOO_LONG);
        };
        let fresh = || Overstay::new(asked_ns, None);
        let stay = self.overstays.0.entry(session).or_insert_with(fresh);
        stay.is_given_up = true;
        self.end_overstays(clock::now_ns());
    }

    /// Looks at who was asked for the device a while ago, and ends who has had its time.
    pub(super) fn end_overstays(&mut self, now_ns: u64) {
        let holds = |session: u32| {
            let entry = self.turns.session(SessionKey(session)).filter(|entry| entry.has_turn());
            entry.and_then(|entry| entry.revoked_ns())
        };
        self.overstays.0.retain(|session, stay| holds(*session) == Some(stay.asked_ns));
        let known = &self.overstays.0;
        let late = self.sessions.iter().filter_map(|(session, own)| {
            let asked_ns = holds(*session)?;
            let is_due = now_ns.saturating_sub(asked_ns) >= LOOK_AFTER_NS;
            (is_due && !known.contains_key(session))
                .then(|| (*session, Overstay::new(asked_ns, own.worker.waited_ns())))
        });
        let late: Vec<(u32, Overstay)> = late.collect();
        self.overstays.0.extend(late);
        for (session, stay) in &mut self.overstays.0 {
            let entry = self.turns.session(SessionKey(*session));
            if entry.is_some_and(|entry| self.memory.is_exchanging(entry.device, *session)) {
                stay.since_ns = now_ns;
            }
        }
        let is_over = |(session, stay): (&u32, &Overstay)| {
            let overdue_ns = self.terms_of(SessionKey(*session))?.overdue_ns;
            let waited_ns = self.sessions.get(session)?.worker.waited_ns();
            (now_ns >= stay.ends_ns(overdue_ns, waited_ns)).then_some(*session)
        };
        let given_up = self.overstays.0.iter().filter(|(_, stay)| stay.is_given_up);
        let over: Vec<u32> = given_up.filter_map(is_over).collect();
        for session in over {
            self.kill(session, TOO_LONG);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERDUE_NS: u64 = 12_000_000_000;

    #[test]
    fn what_a_worker_waits_for_a_processor_does_not_count_against_it() {
        let stay = Overstay::new(5_000_000_000, Some(700));
        assert_eq!(stay.ends_ns(OVERDUE_NS, Some(700)), 5_000_000_000 + OVERDUE_NS);
        let waited_ns = Some(9_000_000_700);
        assert_eq!(stay.ends_ns(OVERDUE_NS, waited_ns), 14_000_000_000 + OVERDUE_NS);
        // However it manages to wait for longer.
        assert_eq!(stay.ends_ns(OVERDUE_NS, Some(u64::MAX)), 5_000_000_000 + 4 * OVERDUE_NS);
    }

    #[test]
    fn what_its_memory_takes_to_come_does_not_count_against_it() {
        let mut stay = Overstay::new(5_000_000_000, None);
        stay.since_ns = 60_000_000_000;
        assert_eq!(stay.ends_ns(OVERDUE_NS, None), 60_000_000_000 + OVERDUE_NS);
    }

    #[test]
    fn where_nobody_knows_how_long_it_waited_it_did_not() {
        let known = Overstay::new(0, Some(0));
        let unknown = Overstay::new(0, None);
        assert_eq!(known.ends_ns(OVERDUE_NS, None), OVERDUE_NS);
        assert_eq!(unknown.ends_ns(OVERDUE_NS, Some(1 << 40)), OVERDUE_NS);
    }
}
