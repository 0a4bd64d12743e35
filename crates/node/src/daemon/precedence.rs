//! Before whom a worker has a processor.
//!
//! Everybody waits for the worker that has the device, so it goes before ordinary programs, and so
//! does who is next: a genuine GPU does not wait for its tenants' processors either. A worker that
//! compiles more than its tenant's share goes after them. Only the daemon can say so: a worker may
//! not, for it would say what its tenant likes.

use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{getpriority_process, setpriority_process};

/// The lowest priority of an ordinary thread, and the highest, as nice values.
const LOWEST: i32 = 19;
const HIGHEST: i32 = -20;

/// Nice values of workers, of a daemon that may raise as well as lower them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranks {
    /// Of one that neither executes nor compiles: the daemon's own.
    usual: i32,
    /// Of one that executes, and of the thread that hands the device out.
    pub(crate) executing: i32,
}

impl Ranks {
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
}

impl Doing {
    fn nice(self, ranks: Ranks) -> i32 {
        match self {
            Self { compiles: true, .. } => LOWEST,
            Self { has_turn: false, is_next: false, .. } => ranks.usual,
            Self { .. } => ranks.executing,
        }
    }
}

/// The priority of one worker, for all who know what it does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Precedence {
    ranks: Option<Ranks>,
    standing: Arc<Mutex<Standing>>,
}

#[derive(Debug, Default)]
struct Standing {
    doing: Doing,
    /// The nice value that it has, once that is known.
    nice: Option<i32>,
}

impl Precedence {
    /// Of a worker that does nothing yet, or whose priority an earlier daemon left.
    pub(crate) fn new(ranks: Option<Ranks>) -> Self {
        Self { ranks, standing: Arc::default() }
    }

    /// It does something else: `set` gives it another nice value, if that is another one. What
    /// fails is tried again at the next change.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Doing), set: impl FnOnce(i32) -> bool) {
        let Some(ranks) = self.ranks else { return };
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut standing.doing);
        let nice = standing.doing.nice(ranks);
        if standing.nice != Some(nice) {
            standing.nice = set(nice).then_some(nice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: Ranks = Ranks { usual: 0, executing: -10 };

    #[test]
    fn who_executes_goes_first_and_who_compiles_last_whoever_says_it_first() {
        let of_driver = Precedence::new(Some(RANKS));
        let of_session = of_driver.clone();
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
