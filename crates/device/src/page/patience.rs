//! How long a worker lets what others wrote on the shared device page delay it.
//!
//! The page is written by all workers of a node, and one that was taken over may write anything
//! there. While the node's gate decides whose turn it is, all that an honest page can say to the
//! holder of a turn is that its predecessor's last work is still running: that takes a moment per
//! turn ([`FREE_NS`]), and rarely longer, when a prediction was wrong ([`POOL_NS`]). Whoever waited
//! for longer than that goes on without the page until its next turn, and says so, once.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A turn's wait that is nobody's fault, in ns: what a predecessor may leave on the device when it
/// gives its turn back early, with some room.
const FREE_NS: u64 = 1_000_000;

/// Waits beyond that, in ns: they add up, and are forgiven by and by.
const POOL_NS: u64 = 2_000_000_000;

/// Of the time that passes this part is forgiven.
const FORGIVEN: u64 = 100;

/// The number of the worker's turn, or nothing while no gate decides.
type Turn = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// Called the first time that the page is not believed.
type Doubt = Box<dyn Fn() + Send + Sync>;

/// A worker's patience with the others.
pub(crate) struct Patience {
    turn: Turn,
    doubt: Doubt,
    state: Mutex<State>,
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    turn: u64,
    free_ns: u64,
    pool_ns: u64,
    /// When the pool was last added to.
    at_ns: u64,
    /// Since when the worker waits at the turnstile.
    waits_since_ns: Option<u64>,
    /// End of the worker's own last place on the timeline.
    own_end_ns: u64,
    /// The page was not believed once.
    doubts: bool,
}

impl Patience {
    pub(crate) fn new(turn: Turn, doubt: Doubt) -> Self {
        let state = State {
            turn: 0,
            free_ns: FREE_NS,
            pool_ns: POOL_NS,
            at_ns: 0,
            waits_since_ns: None,
            own_end_ns: 0,
            doubts: false,
        };
        Self { turn, doubt, state: Mutex::new(state) }
    }

    /// Whether to go on at `now_ns`, when the turnstile says `mine`.
    pub(crate) fn goes_on(&self, mine: bool, now_ns: u64) -> bool {
        let turn = (self.turn)();
        let mut state = self.state();
        let Some(turn) = turn else {
            state.waits_since_ns = None;
            return mine;
        };
        state.refill(turn, now_ns);
        if mine && state.waits_since_ns.is_none() {
            return true;
        }
        let since_ns = *state.waits_since_ns.get_or_insert(now_ns);
        let waited_ns = now_ns.saturating_sub(since_ns);
        let goes_on = mine || waited_ns > state.free_ns.saturating_add(state.pool_ns);
        if goes_on {
            state.spend(waited_ns);
            state.waits_since_ns = None;
        }
        if goes_on && !mine {
            self.doubt(state);
        }
        goes_on
    }

    /// When an operation of `ns` starts that arrives at `now_ns`, when the timeline says that all
    /// before it ends at `end_ns`.
    pub(crate) fn start_ns(&self, now_ns: u64, end_ns: u64) -> u64 {
        let ready_ns = self.state().own_end_ns.max(now_ns);
        let Some(turn) = (self.turn)() else { return end_ns.max(now_ns) };
        let mut state = self.state();
        state.refill(turn, now_ns);
        let delay_ns = end_ns.saturating_sub(ready_ns);
        if delay_ns > state.free_ns.saturating_add(state.pool_ns) {
            self.doubt(state);
            return ready_ns;
        }
        ready_ns + delay_ns
    }

    /// The place was taken: it begins at `start_ns` and ends at `end_ns`.
    pub(crate) fn took(&self, now_ns: u64, start_ns: u64, end_ns: u64) {
        let mut state = self.state();
        let ready_ns = state.own_end_ns.max(now_ns);
        state.spend(start_ns.saturating_sub(ready_ns));
        state.own_end_ns = end_ns;
    }

    /// What the page says cannot be waited for.
    fn doubt(&self, mut state: MutexGuard<'_, State>) {
        let is_first = !std::mem::replace(&mut state.doubts, true);
        drop(state);
        if is_first {
            (self.doubt)();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refill(&mut self, turn: u64, now_ns: u64) {
        if turn != self.turn {
            (self.turn, self.free_ns) = (turn, FREE_NS);
        }
        let forgiven_ns = now_ns.saturating_sub(self.at_ns) / FORGIVEN;
        if forgiven_ns > 0 {
            self.pool_ns = self.pool_ns.saturating_add(forgiven_ns).min(POOL_NS);
            self.at_ns = now_ns;
        }
    }

    fn spend(&mut self, ns: u64) {
        let free_ns = ns.min(self.free_ns);
        self.free_ns -= free_ns;
        self.pool_ns = self.pool_ns.saturating_sub(ns - free_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A holder of the turn that `turn` says; 0 is none.
    fn patience(turn: &Arc<AtomicU64>) -> Patience {
        doubting(turn).0
    }

    /// The same, and how often it has said that the page is not believed.
    fn doubting(turn: &Arc<AtomicU64>) -> (Patience, Arc<AtomicU64>) {
        let (turn, said) = (Arc::clone(turn), Arc::new(AtomicU64::new(0)));
        let doubts = Arc::clone(&said);
        let turn = move || {
            let turn = turn.load(Ordering::Relaxed);
            (turn != 0).then_some(turn)
        };
        let doubt = move || {
            doubts.fetch_add(1, Ordering::Relaxed);
        };
        (Patience::new(Box::new(turn), Box::new(doubt)), said)
    }

    #[test]
    fn a_turnstile_that_never_opens_is_passed_and_then_costs_little() {
        let turn = Arc::new(AtomicU64::new(1));
        let (patience, said) = doubting(&turn);
        let (mut now, step) = (1_000_000_000, 20_000);
        let wait = |now: &mut u64| {
            let since = *now;
            while !patience.goes_on(false, *now) {
                *now += step;
            }
            *now - since
        };
        assert!(!patience.goes_on(false, now) && patience.goes_on(true, now + FREE_NS));
        assert_eq!(said.load(Ordering::Relaxed), 0, "it was waited for, and has come");
        now += FREE_NS;
        assert!(wait(&mut now) >= POOL_NS - FREE_NS, "an honest predecessor is waited for");
        let again: u64 = (0..100).map(|_| wait(&mut now)).sum();
        assert!(again < 100 * 2 * step + now / FORGIVEN, "waited {again} ns in the same turn");
        turn.store(2, Ordering::Relaxed);
        assert!(wait(&mut now) >= FREE_NS, "each turn waits for a moment");
        assert_eq!(said.load(Ordering::Relaxed), 1, "it says so once");
    }

    #[test]
    fn without_a_gate_the_page_alone_decides() {
        let patience = patience(&Arc::new(AtomicU64::new(0)));
        assert!(!patience.goes_on(false, 0));
        assert!(!patience.goes_on(false, 100 * POOL_NS));
        assert_eq!(patience.start_ns(5, u64::MAX), u64::MAX);
        assert!(patience.goes_on(true, 0));
    }

    #[test]
    fn a_timeline_that_never_ends_is_ignored_and_ones_own_places_are_kept() {
        let (patience, said) = doubting(&Arc::new(AtomicU64::new(1)));
        assert_eq!(patience.start_ns(1_000, u64::MAX), 1_000);
        assert_eq!(said.load(Ordering::Relaxed), 1);
        patience.took(1_000, 1_000, 5_000_000_000);
        assert_eq!(patience.start_ns(2_000, u64::MAX), 5_000_000_000, "behind its own work");
        assert_eq!(patience.start_ns(2_000, 5_000_000_000), 5_000_000_000);
        // What an honest predecessor left is waited for.
        assert_eq!(patience.start_ns(5_000_000_000, 5_000_400_000), 5_000_400_000);
    }
}
