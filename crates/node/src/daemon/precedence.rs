//! Before whom a worker has a processor.
//!
//! Everybody waits for the worker that has the device, so it goes before ordinary programs, and so
//! does who is next: a genuine GPU does not wait for its tenants' processors either. A worker that
//! compiles more than its tenant's share goes after them, and so do the workers of a tenant that do
//! much outside of turns; where they do little, they go first there, too ([`super::cpu_weight`]).
//! Only the daemon can say so: a worker may
//! not, for it would say what its tenant likes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::process::{getpriority_process, setpriority_process};

/// The lowest priority of an ordinary thread, and the highest, as nice values.
pub(super) const LOWEST: i32 = 19;
const HIGHEST: i32 = -20;

/// Nice values of workers, of a daemon that may raise as well as lower them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranks {
    /// Of one that starts, and the daemon's own.
    usual: i32,
    /// Of one that executes, and of the thread that hands the device out.
    pub(crate) executing: i32,
}

impl Ranks {
    /// Whether who executes goes before others at all.
    pub(crate) const fn order(self) -> bool {
        self.executing < self.usual
    }

    /// Those of this daemon, where one that executes has its own value and these levels, which are
    /// none or negative. Nothing without the right to raise a priority (`CAP_SYS_NICE` of the
    /// machine, not of a container): what was lowered would stay so.
    pub(crate) fn probe(levels: i32) -> Option<Self> {
        let usual = getpriority_process(None).ok().filter(|_| may_order_threads())?;
        Some(Self { usual, executing: usual.saturating_add(levels).max(HIGHEST) })
    }
}

/// Whether this daemon may say what the system's scheduler does with threads of others: raises its
/// own priority for an instant, which takes the same right.
pub(crate) fn may_order_threads() -> bool {
    getpriority_process(None).is_ok_and(|usual| {
        let higher = usual.saturating_sub(1).max(HIGHEST);
        setpriority_process(None, higher).is_ok() && setpriority_process(None, usual).is_ok()
    })
}

/// What a worker does, as far as priorities go by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Doing {
    /// It has the device.
    pub(crate) has_turn: bool,
    /// It is to be ready for the turn after this one.
    pub(crate) is_next: bool,
    /// It compiles more than its tenant's share.
    pub(crate) compiles: bool,
    /// It needs no turn to execute: nothing that it does is outside of one.
    pub(crate) is_unmanaged: bool,
    /// How it goes while it does none of these.
    pub(crate) outside: Outside,
}

/// How a worker goes outside of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    /// As one that has the device.
    AtOnce,
    /// So many nice levels after ordinary threads.
    After(i32),
}

impl Default for Outside {
    fn default() -> Self {
        Self::After(0)
    }
}

impl Doing {
    fn nice(self, ranks: Ranks) -> i32 {
        match self {
            Self { compiles: true, .. } => LOWEST,
            Self { has_turn: true, .. } | Self { is_next: true, .. } => ranks.executing,
            Self { is_unmanaged: true, .. } => ranks.usual,
            Self { outside: Outside::AtOnce, .. } => ranks.executing,
            Self { outside: Outside::After(levels), .. } => {
                ranks.usual.saturating_add(levels).min(LOWEST)
            }
        }
    }

    /// Whether something else bounds what it takes of the processors.
    const fn is_bounded(self) -> bool {
        self.has_turn || self.is_next || self.compiles || self.is_unmanaged
    }
}

/// The priority of one worker, for all who know what it does.
#[derive(Debug, Default)]
pub(crate) struct Precedence {
    ranks: Option<Ranks>,
    standing: Mutex<Standing>,
}

#[derive(Debug, Default)]
struct Standing {
    doing: Doing,
    /// The nice value that it has, once that is known.
    nice: Option<i32>,
    /// How long something else has bounded what it takes, until it last ceased to, in ns.
    bounded_ns: u64,
    /// Since when something does.
    bounded_since: Option<Instant>,
}

impl Standing {
    fn bounded_ns(&self) -> u64 {
        let since = self.bounded_since.map_or(0, |since| since.elapsed().as_nanos());
        self.bounded_ns.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

impl Precedence {
    /// Of a worker that does nothing yet, or whose priority an earlier daemon left.
    pub(crate) fn new(ranks: Option<Ranks>) -> Self {
        Self { ranks, standing: Mutex::default() }
    }

    /// It does something else: `set` gives it another nice value, if that is another one. What
    /// fails is tried again at the next change.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Doing), set: impl FnOnce(i32) -> bool) {
        let Some(ranks) = self.ranks else { return };
        let mut standing = self.lock();
        change(&mut standing.doing);
        if standing.doing.is_bounded() != standing.bounded_since.is_some() {
            standing.bounded_ns = standing.bounded_ns();
            standing.bounded_since = standing.doing.is_bounded().then(Instant::now);
        }
        let nice = standing.doing.nice(ranks);
        if standing.nice != Some(nice) {
            standing.nice = set(nice).then_some(nice);
        }
    }

    /// How long turns, compiling's bounds or nothing at all have bounded what it takes of the
    /// processors so far, in ns.
    pub(crate) fn bounded_ns(&self) -> u64 {
        self.lock().bounded_ns()
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: Ranks = Ranks { usual: 0, executing: -10 };

    #[test]
    fn who_executes_goes_first_and_who_compiles_last_whoever_says_it_first() {
        let precedence = Precedence::new(Some(RANKS));
        let (of_driver, of_session) = (&precedence, &precedence);
        let set = Mutex::new(Vec::new());
        let note = |nice| {
            set.lock().unwrap().push(nice);
            true
        };
        of_driver.change(|doing| doing.has_turn = true, note);
        of_driver.change(|doing| doing.has_turn = true, note);
        of_session.change(|doing| doing.compiles = true, note);
        // That its turn is over is heard when it compiles already.
        of_driver.change(|doing| doing.has_turn = false, note);
        of_session.change(|doing| doing.compiles = false, note);
        assert_eq!(*set.lock().unwrap(), [-10, 19, 0]);
    }

    #[test]
    fn outside_of_turns_a_worker_goes_as_its_tenant_may() {
        let nice = |doing: Doing| doing.nice(RANKS);
        let beyond = Doing { outside: Outside::After(4), ..Doing::default() };
        assert_eq!(nice(beyond), 4);
        assert_eq!(nice(Doing { outside: Outside::After(40), ..beyond }), LOWEST);
        assert_eq!(nice(Doing { outside: Outside::AtOnce, ..beyond }), RANKS.executing);
        assert_eq!(nice(Doing { has_turn: true, ..beyond }), RANKS.executing);
        assert_eq!(nice(Doing { is_next: true, ..beyond }), RANKS.executing);
        // Where nobody takes turns nobody is outside of one.
        assert_eq!(nice(Doing { is_unmanaged: true, ..beyond }), RANKS.usual);
        let compiles = Doing { compiles: true, outside: Outside::AtOnce, ..beyond };
        assert_eq!(nice(compiles), LOWEST);
        assert_eq!(nice(Doing::default()), RANKS.usual, "who starts");
    }

    #[test]
    fn what_turns_and_other_bounds_bound_is_counted_apart() {
        let precedence = Precedence::new(Some(RANKS));
        let passes = || {
            let before = Instant::now();
            while before.elapsed().as_millis() < 2 {
                std::hint::spin_loop();
            }
        };
        passes();
        assert_eq!(precedence.bounded_ns(), 0);
        precedence.change(|doing| doing.is_next = true, |_| true);
        passes();
        // No gap where one follows the other.
        precedence.change(|doing| *doing = Doing { has_turn: true, ..Doing::default() }, |_| true);
        passes();
        precedence.change(|doing| doing.has_turn = false, |_| true);
        let bounded_ns = precedence.bounded_ns();
        assert!(bounded_ns >= 4_000_000, "{bounded_ns}");
        passes();
        assert_eq!(precedence.bounded_ns(), bounded_ns);
    }

    #[test]
    fn what_failed_is_tried_again_and_nothing_is_tried_without_the_right() {
        let precedence = Precedence::new(Some(RANKS));
        let mut tried = 0;
        for answer in [false, true, true] {
            precedence.change(
                |_| {},
                |_| {
                    tried += 1;
                    answer
                },
            );
        }
        assert_eq!(tried, 2);
        Precedence::new(None).change(|doing| doing.has_turn = true, |_| unreachable!());
    }

    #[test]
    fn probing_leaves_this_thread_as_it_is() {
        let before = getpriority_process(None).unwrap();
        let ranks = Ranks::probe(-10);
        assert_eq!(getpriority_process(None).unwrap(), before);
        assert!(ranks.is_none_or(|ranks| ranks.usual == before && ranks.executing <= before));
    }
}
