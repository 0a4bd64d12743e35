//! How long a holder without work keeps its turn.

use crate::page::Grant;

/// A holder that pauses for a moment keeps its turn for the yield limit. A turn that began with an
/// exchange of memory was dear: given up, it would soon begin with another. So it is kept for as
/// long as that took, at most for its budget: waiting then costs at most twice what was best
/// (Karlin et al., *Competitive snoopy caching*, 1988: rent for as long as buying costs). A turn
/// that follows its own one is as dear to give up: what was brought is still there.
#[derive(Debug)]
pub struct Grace {
    yield_ns: u64,
    /// The last grant that is known.
    epoch: Option<u64>,
    /// What exchanges had taken when it began, and at the last look.
    before_ns: u64,
    exchanged_ns: u64,
}

impl Grace {
    /// With this yield limit, in ns.
    #[must_use]
    pub fn new(yield_ns: u64) -> Self {
        Self { yield_ns, epoch: None, before_ns: 0, exchanged_ns: 0 }
    }

    /// Before anything is done for a grant, if there is one: all exchanges of the session's memory
    /// so far took so long.
    pub fn look(&mut self, grant: Option<Grant>, exchanged_ns: u64) {
        if let Some(Grant { epoch, follows, .. }) = grant
            && self.epoch != Some(epoch)
        {
            self.epoch = Some(epoch);
            if !follows {
                // The exchange with which a turn begins comes after the look at which it was not
                // known.
                self.before_ns = self.exchanged_ns;
            }
        }
        self.exchanged_ns = exchanged_ns;
    }

    /// For how long a holder keeps a turn of this budget that has nothing to do, in ns.
    #[must_use]
    pub fn ns(&self, budget_ns: u64) -> u64 {
        let exchange_ns = self.exchanged_ns.saturating_sub(self.before_ns);
        self.yield_ns.max(exchange_ns.min(budget_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::GrantKind;

    const US: u64 = 1_000;
    const BUDGET_NS: u64 = 6_000 * US;

    fn grant(epoch: u64, follows: bool) -> Option<Grant> {
        Some(Grant { epoch, budget_ns: BUDGET_NS, kind: GrantKind::Turn, follows })
    }

    #[test]
    fn a_turn_that_was_dear_is_kept_for_as_long_as_that_took() {
        let mut grace = Grace::new(100 * US);
        grace.look(None, 0);
        assert_eq!(grace.ns(BUDGET_NS), 100 * US);
        grace.look(grant(1, false), 2_000 * US);
        grace.look(grant(1, false), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), 3_000 * US);
        // What was brought is still there in a turn that follows, with or without a pause.
        grace.look(grant(2, true), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), 3_000 * US);
        grace.look(None, 3_000 * US);
        grace.look(grant(3, true), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), 3_000 * US);
        // After another one's turn, what was taken of it has to be brought first. The session's
        // grants are numbered one after the other all the same.
        grace.look(grant(4, false), 3_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), 100 * US);
        grace.look(grant(4, false), 90_000 * US);
        assert_eq!(grace.ns(BUDGET_NS), BUDGET_NS);
    }
}
