//! Before whom a worker has a processor.
//!
//! Everybody waits for the worker that has the device, so it goes before ordinary programs, and so
//! does who is next: a genuine GPU does not wait for its tenants' processors either. A worker that
//! compiles more than its tenant's share goes after them, and so do the workers of a tenant that do
//! much outside of turns; where they do little, they go first there, too ([`super::cpu_weight`]).
//! Only the daemon can say so: a worker may not, for it would say what its tenant likes.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{getpriority_process, setpriority_process};

/// The lowest priority of an ordinary thread, and the highest, as nice values.
pub(super) const LOWEST: i32 = 19;
const HIGHEST: i32 = -20;

/// Nice values of workers, of a daemon that may raise as well as lower them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranks {
    /// Of one that starts, and the daemon's own.
    usual: i32,
    /// Of one that executes, and of threads that who wants the device waits for.
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

    /// The calling thread goes as one that executes, or as usual.
    pub(crate) fn put_caller(self, first: bool) -> io::Result<()> {
        let nice = if first { self.executing } else { self.usual };
        Ok(setpriority_process(None, nice)?)
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
    /// Its turn ended last: what it had begun may still be on the device.
    pub(crate) was_last: bool,
    /// It is to be ready for the turn after this one.
    pub(crate) is_next: bool,
    /// It compiles more than its tenant's share.
    pub(crate) compiles: bool,
    /// It needs no turn to execute: nothing that it does is outside of one.
    pub(crate) is_unmanaged: bool,
    /// How it goes while it does none of these.
    pub(crate) outside: Outside,
    /// The device time that it has used, in ns, as of the last change that has to do with turns.
    pub(crate) used_ns: u64,
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
            Self { has_turn: true, .. } | Self { was_last: true, .. } => ranks.executing,
            Self { is_unmanaged: true, .. } => ranks.usual,
            Self { outside: Outside::AtOnce, .. } => ranks.executing,
            // Ready it is to be, and to take little from who executes until then.
            Self { is_next: true, .. } => ranks.usual.midpoint(ranks.executing),
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
    /// What it had of the processors, as it was last read.
    had: Had,
}

impl Precedence {
    /// Of a worker that does nothing yet, or whose priority an earlier daemon left.
    pub(crate) fn new(ranks: Option<Ranks>) -> Self {
        Self { ranks, standing: Mutex::default() }
    }

    /// It does something else, when it has had so much of the processors: `set` gives it another
    /// nice value, if that is another one. What fails is tried again at the next change.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut Doing),
        had_ns: impl FnOnce() -> Option<u64>,
        set: impl FnOnce(i32) -> bool,
    ) {
        let Some(ranks) = self.ranks else { return };
        let mut standing = self.lock();
        let before = standing.doing;
        change(&mut standing.doing);
        let doing = standing.doing;
        let is_other =
            doing.is_bounded() != before.is_bounded() || doing.was_last != before.was_last;
        if is_other && ranks.order() {
            standing.had.read(before, had_ns(), doing.used_ns.saturating_sub(before.used_ns));
        }
        let nice = doing.nice(ranks);
        if standing.nice != Some(nice) {
            standing.nice = set(nice).then_some(nice);
        }
    }

    /// Whether its tenant is beyond what goes at once outside of turns, where anything does.
    pub(crate) fn is_beyond(&self) -> bool {
        let is_ordered = self.ranks.is_some_and(Ranks::order);
        is_ordered && matches!(self.lock().doing.outside, Outside::After(_))
    }

    /// What it had of the processors outside of turns until it had so much in all, in ns; what was
    /// known before where that is not known any more. What it had since its last turn is told
    /// when it is known what of that it executed.
    pub(crate) fn outside_ns(&self, had_ns: Option<u64>) -> u64 {
        let mut standing = self.lock();
        let doing = standing.doing;
        if !doing.was_last {
            standing.had.read(doing, had_ns, 0);
        }
        standing.had.outside_ns
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker had of the processors.
#[derive(Debug, Default)]
struct Had {
    /// In all, when it was last read.
    until_ns: u64,
    /// Of that, outside of turns.
    outside_ns: u64,
}

impl Had {
    /// It has had so much by now, did that since the last time, and executed so much meanwhile:
    /// what was left of its turn.
    fn read(&mut self, doing: Doing, had_ns: Option<u64>, executed_ns: u64) {
        let Some(had_ns) = had_ns else { return };
        let since_ns = had_ns.saturating_sub(self.until_ns);
        self.until_ns = self.until_ns.max(had_ns);
        if !doing.is_bounded() {
            self.outside_ns += since_ns.saturating_sub(executed_ns);
        }
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
        let nothing = || None;
        of_driver.change(|doing| doing.has_turn = true, nothing, note);
        of_driver.change(|doing| doing.has_turn = true, nothing, note);
        of_session.change(|doing| doing.compiles = true, nothing, note);
        // That its turn is over is heard when it compiles already.
        of_driver.change(|doing| doing.has_turn = false, nothing, note);
        of_session.change(|doing| doing.compiles = false, nothing, note);
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
        assert_eq!(nice(Doing { was_last: true, ..beyond }), RANKS.executing);
        assert_eq!(nice(Doing { is_next: true, ..beyond }), -5);
        let within = Doing { outside: Outside::AtOnce, ..beyond };
        assert_eq!(nice(Doing { is_next: true, ..within }), RANKS.executing);
        // Where nobody takes turns nobody is outside of one.
        assert_eq!(nice(Doing { is_unmanaged: true, ..beyond }), RANKS.usual);
        let compiles = Doing { compiles: true, outside: Outside::AtOnce, ..beyond };
        assert_eq!(nice(compiles), LOWEST);
        assert_eq!(nice(Doing::default()), RANKS.usual, "who starts");
    }

    #[test]
    fn what_is_had_in_turns_and_what_is_left_of_them_is_not_had_outside() {
        let precedence = Precedence::new(Some(RANKS));
        let at = |had_ns, change: &dyn Fn(&mut Doing)| {
            precedence.change(change, || Some(had_ns), |_| true);
        };
        assert_eq!(precedence.outside_ns(Some(5)), 5);
        at(7, &|doing| doing.is_next = true);
        assert_eq!(precedence.outside_ns(Some(50)), 7, "who is next waits for the device");
        at(100, &|doing| *doing = Doing { has_turn: true, ..Doing::default() });
        assert_eq!(precedence.outside_ns(Some(1_000)), 7);
        // A turn that it slept through buys nothing later.
        at(1_000, &|doing| {
            *doing = Doing { was_last: true, used_ns: 600, ..Doing::default() };
        });
        assert_eq!(precedence.outside_ns(Some(1_500)), 7, "it is not known what of it is left");
        // Ten executed, the rest did something else.
        at(2_000, &|doing| *doing = Doing { used_ns: 610, ..Doing::default() });
        assert_eq!(precedence.outside_ns(Some(2_001)), 7 + 990 + 1);
        assert_eq!(precedence.outside_ns(None), 998, "what it had is known when it is gone");
    }

    #[test]
    fn what_failed_is_tried_again_and_nothing_is_tried_without_the_right() {
        let precedence = Precedence::new(Some(RANKS));
        let mut tried = 0;
        for answer in [false, true, true] {
            precedence.change(
                |_| {},
                || None,
                |_| {
                    tried += 1;
                    answer
                },
            );
        }
        assert_eq!(tried, 2);
        let none = Precedence::new(None);
        none.change(|doing| doing.has_turn = true, || None, |_| unreachable!());
    }

    #[test]
    fn probing_leaves_this_thread_as_it_is() {
        let before = getpriority_process(None).unwrap();
        let ranks = Ranks::probe(-10);
        assert_eq!(getpriority_process(None).unwrap(), before);
        assert!(ranks.is_none_or(|ranks| ranks.usual == before && ranks.executing <= before));
    }
}
