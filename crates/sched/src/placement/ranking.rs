//! Which host is best for a request: a tournament over all hosts, kept up as hosts change.

use alloc::vec::Vec;

/// How good a host is, the least first; none if it cannot take the request.
pub(super) type Rank = Option<(i64, i64)>;

/// A complete binary tree whose leaves are hosts and whose inner nodes name the better leaf below;
/// of equals the first. A change costs one comparison for each level.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    ranks: Vec<Rank>,
    /// Node 1 is the root, the children of `n` are `2n` and `2n + 1`.
    winners: Vec<u32>,
    /// Leaves, a power of two.
    width: usize,
}

/// No host.
const NOBODY: u32 = u32::MAX;

impl Ranking {
    /// Of all hosts, by key.
    pub(super) fn new(ranks: Vec<Rank>) -> Self {
        let width = ranks.len().next_power_of_two();
        let mut ranking = Self { winners: alloc::vec![NOBODY; width], ranks, width };
        (1..width).rev().for_each(|node| ranking.decide(node));
        ranking
    }

    /// The best host.
    pub(super) fn best(&self) -> Option<u32> {
        let best = self.winner(1);
        self.rank(best).map(|_| best)
    }

    /// A host's rank changed.
    pub(super) fn set(&mut self, host: u32, rank: Rank) {
        let Some(old) = self.ranks.get_mut(host as usize) else { return };
        if *old == rank {
            return;
        }
        *old = rank;
        let mut node = (self.width + host as usize) / 2;
        while node > 0 {
            self.decide(node);
            node /= 2;
        }
    }

    fn rank(&self, host: u32) -> Rank {
        self.ranks.get(host as usize).copied().flatten()
    }

    /// Of a node or a leaf.
    fn winner(&self, node: usize) -> u32 {
        match node.checked_sub(self.width) {
            Some(leaf) => u32::try_from(leaf).unwrap_or(NOBODY),
            None => self.winners[node],
        }
    }

    fn decide(&mut self, node: usize) {
        let (left, right) = (self.winner(2 * node), self.winner(2 * node + 1));
        let is_right = match (self.rank(left), self.rank(right)) {
            (Some(left), Some(right)) => right < left,
            (left, right) => left.is_none() && right.is_some(),
        };
        self.winners[node] = if is_right { right } else { left };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_best_is_the_first_of_the_least(
            ranks in prop::collection::vec(prop::option::of((-3i64..3, 0i64..2)), 1..40),
            changes in prop::collection::vec((0u32..40, prop::option::of((-3i64..3, 0i64..2))), 0..40),
        ) {
            let mut plain = ranks.clone();
            let mut ranking = Ranking::new(ranks);
            for (host, rank) in [(u32::MAX, None)].into_iter().chain(changes) {
                if let Some(old) = plain.get_mut(host as usize) {
                    *old = rank;
                }
                ranking.set(host, rank);
                let ranked = plain.iter().enumerate().filter_map(|(host, rank)| Some(((*rank)?, host)));
                let least = ranked.min().map(|(_, host)| host);
                prop_assert_eq!(ranking.best().map(|host| host as usize), least);
            }
        }
    }

    #[test]
    fn nobody_is_best_of_none() {
        assert_eq!(Ranking::new(Vec::new()).best(), None);
        assert_eq!(Ranking::new(vec![None, None, None]).best(), None);
        assert_eq!(Ranking::new(vec![Some((0, 0))]).best(), Some(0));
    }
}
