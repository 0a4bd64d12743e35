//! Which host is best for a request: a tournament over all hosts, kept up as hosts change.

use alloc::vec::Vec;

/// How good a host is, the least first; none if it cannot take the request.
pub(super) type Rank = Option<(i64, i64)>;

/// A complete binary tree whose leaves are hosts and whose inner nodes name the better leaf below;
/// of equals the first. It is filled host by host, at one comparison each. A change costs one
/// comparison for each level.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    /// Of the hosts that are ranked so far, by key.
    ranks: Vec<Rank>,
    /// Node 1 is the root, the children of `n` are `2n` and `2n + 1`.
    winners: Vec<u32>,
    /// Leaves, a power of two.
    width: usize,
    /// Hosts that are to be ranked.
    hosts: usize,
}

/// No host.
const NOBODY: u32 = u32::MAX;

impl Ranking {
    /// Of so many hosts, none of which is ranked yet.
    pub(super) fn of(hosts: usize) -> Self {
        let (width, ranks) = (hosts.next_power_of_two(), Vec::with_capacity(hosts));
        Self { ranks, winners: alloc::vec![NOBODY; width], width, hosts }
    }

    /// How many hosts are ranked: the key of the next.
    pub(super) fn ranked(&self) -> usize {
        self.ranks.len()
    }

    /// Whether all are.
    pub(super) fn is_whole(&self) -> bool {
        self.ranks.len() >= self.hosts
    }

    /// Ranks the next host.
    pub(super) fn push(&mut self, rank: Rank) {
        let mut node = self.width + self.ranks.len();
        self.ranks.push(rank);
        let is_last = self.is_whole();
        // A node is decided when both sides are there; nothing follows on the last one's right.
        while node > 1 && (node % 2 == 1 || is_last) {
            node /= 2;
            self.decide(node);
        }
    }

    /// The best host, once all are ranked.
    pub(super) fn best(&self) -> Option<u32> {
        let best = self.winner(1);
        self.rank(best).map(|_| best)
    }

    /// Whether a host is ranked and cannot take the request.
    pub(super) fn is_out(&self, host: usize) -> bool {
        self.ranks.get(host).is_some_and(Option::is_none)
    }

    /// A host's rank changed. One that is not ranked yet is ranked in its turn.
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

    pub(super) fn rank(&self, host: u32) -> Rank {
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

    fn ranking(ranks: &[Rank]) -> Ranking {
        let mut ranking = Ranking::of(ranks.len());
        ranks.iter().for_each(|rank| ranking.push(*rank));
        ranking
    }

    proptest! {
        #[test]
        fn the_best_is_the_first_of_the_least(
            ranks in prop::collection::vec(prop::option::of((-3i64..3, 0i64..2)), 1..40),
            changes in prop::collection::vec((0u32..40, prop::option::of((-3i64..3, 0i64..2))), 0..40),
            early in prop::collection::vec((0u32..40, prop::option::of((-3i64..3, 0i64..2))), 0..40),
        ) {
            let (mut plain, mut ranking) = (ranks.clone(), Ranking::of(ranks.len()));
            let mut early = early.into_iter();
            for (at, rank) in ranks.into_iter().enumerate() {
                ranking.push(rank);
                // A host may change while others are not ranked yet.
                if let Some((host, rank)) = early.next().filter(|(host, _)| *host as usize <= at) {
                    plain[host as usize] = rank;
                    ranking.set(host, rank);
                }
            }
            prop_assert!(ranking.is_whole());
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
        assert_eq!(ranking(&[]).best(), None);
        assert_eq!(ranking(&[None, None, None]).best(), None);
        assert_eq!(ranking(&[Some((0, 0))]).best(), Some(0));
    }
}
