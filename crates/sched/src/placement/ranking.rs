//! Which host is best for a request: a tournament over all hosts, kept up as hosts change.

use alloc::vec::Vec;

/// How good a host is, the least first; none if it cannot take the request.
pub(super) type Rank = Option<(i64, i64)>;

/// What is known of a host's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing: the host takes no part.
    Unknown,
    /// It cannot take the request.
    Out,
    /// It is no better than this. The host takes part as if it were just as good.
    AtLeast((i64, i64)),
    /// This it is.
    Is((i64, i64)),
}

/// A complete binary tree whose leaves are hosts and whose inner nodes name the better leaf below;
/// of equals the first. Filled host by host it takes one comparison each. A change takes one for
/// each level up to where the host does not win.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    /// What is known of the hosts so far, by key.
    known: Vec<Knowledge>,
    /// Of those of whom it is known, the rank. All that begins as zeros is there sooner.
    ranks: Vec<(i64, i64)>,
    /// Node 1 is the root, the children of `n` are `2n` and `2n + 1`. Of the hosts the numbers from
    /// 1 on; 0 is nobody.
    winners: Vec<u32>,
    /// Leaves, a power of two.
    width: usize,
    /// Hosts that are to be ranked.
    hosts: usize,
}

/// The same as [`Standing`], without the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    Unknown,
    Out,
    AtLeast,
    Is,
}

impl From<Rank> for Standing {
    fn from(rank: Rank) -> Self {
        rank.map_or(Self::Out, Self::Is)
    }
}

impl Standing {
    fn split(self) -> (Knowledge, (i64, i64)) {
        match self {
            Self::Unknown => (Knowledge::Unknown, (0, 0)),
            Self::Out => (Knowledge::Out, (0, 0)),
            Self::AtLeast(rank) => (Knowledge::AtLeast, rank),
            Self::Is(rank) => (Knowledge::Is, rank),
        }
    }
}

impl Ranking {
    /// Of so many hosts, which are to be ranked by key.
    pub(super) fn of(hosts: usize) -> Self {
        Self::with(Vec::with_capacity(hosts), Vec::with_capacity(hosts), hosts)
    }

    /// Of so many hosts, of which nothing is known: they are to be ranked in any order.
    pub(super) fn blank(hosts: usize) -> Self {
        Self::with(alloc::vec![Knowledge::Unknown; hosts], alloc::vec![(0, 0); hosts], hosts)
    }

    fn with(known: Vec<Knowledge>, ranks: Vec<(i64, i64)>, hosts: usize) -> Self {
        let width = hosts.next_power_of_two();
        Self { known, ranks, winners: alloc::vec![0; width], width, hosts }
    }

    /// How many hosts are there so far: the key of the next.
    pub(super) fn ranked(&self) -> usize {
        self.known.len()
    }

    /// Whether all are.
    pub(super) fn is_whole(&self) -> bool {
        self.known.len() >= self.hosts
    }

    /// Ranks the next host.
    pub(super) fn push(&mut self, rank: Rank) {
        let mut node = self.width + self.known.len();
        let (known, rank) = Standing::from(rank).split();
        self.known.push(known);
        self.ranks.push(rank);
        let is_last = self.is_whole();
        // A node is decided when both sides are there; nothing follows on the last one's right.
        while node > 1 && (node % 2 == 1 || is_last) {
            node /= 2;
            self.decide(node);
        }
    }

    /// The best host of those that take part, once all are there.
    pub(super) fn best(&self) -> Option<u32> {
        let best = self.winner(1).checked_sub(1)?;
        self.rank(best as usize).map(|_| best)
    }

    /// What is known of a host.
    pub(super) fn standing(&self, host: usize) -> Standing {
        let rank = self.ranks.get(host).copied().unwrap_or_default();
        match self.known.get(host) {
            None | Some(Knowledge::Unknown) => Standing::Unknown,
            Some(Knowledge::Out) => Standing::Out,
            Some(Knowledge::AtLeast) => Standing::AtLeast(rank),
            Some(Knowledge::Is) => Standing::Is(rank),
        }
    }

    /// Something else is known of a host. One that is not there yet is ranked in its turn.
    pub(super) fn set(&mut self, host: u32, standing: Standing) {
        let at = host as usize;
        if at >= self.known.len() {
            return;
        }
        let before = self.rank(at);
        (self.known[at], self.ranks[at]) = standing.split();
        let is_other = self.rank(at) != before;
        let mut node = (self.width + at) / 2;
        while is_other && node > 0 {
            let winner = self.winners[node];
            self.decide(node);
            // Who won and wins still is as good as before: nothing above it changes.
            if self.winners[node] == winner && winner != host + 1 {
                break;
            }
            node /= 2;
        }
    }

    /// By what a host takes part, if it does.
    fn rank(&self, host: usize) -> Rank {
        let takes_part = matches!(self.known.get(host)?, Knowledge::AtLeast | Knowledge::Is);
        self.ranks.get(host).copied().filter(|_| takes_part)
    }

    /// Of a node or a leaf, numbered from 1 on.
    fn winner(&self, node: usize) -> u32 {
        match node.checked_sub(self.width) {
            Some(leaf) => u32::try_from(leaf + 1).unwrap_or(0),
            None => self.winners[node],
        }
    }

    fn decide(&mut self, node: usize) {
        let (left, right) = (self.winner(2 * node), self.winner(2 * node + 1));
        let rank = |winner: u32| self.rank((winner as usize).checked_sub(1)?);
        let is_right = match (rank(left), rank(right)) {
            (Some(left), Some(right)) => right < left,
            (left, right) => left.is_none() && right.is_some(),
        };
        self.winners[node] = if is_right { right } else { left };
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

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
                    ranking.set(host, rank.into());
                }
            }
            prop_assert!(ranking.is_whole());
            for (host, rank) in [(u32::MAX, None)].into_iter().chain(changes) {
                if let Some(old) = plain.get_mut(host as usize) {
                    *old = rank;
                }
                ranking.set(host, rank.into());
                let ranked = plain.iter().enumerate().filter_map(|(host, rank)| Some(((*rank)?, host)));
                let least = ranked.min().map(|(_, host)| host);
                prop_assert_eq!(ranking.best().map(|host| host as usize), least);
            }
        }

        #[test]
        fn the_best_is_the_first_of_the_least_that_are_known(
            hosts in 1u32..40,
            changes in prop::collection::vec((0u32..40, standing()), 0..80),
        ) {
            let (mut plain, mut ranking) = (BTreeMap::new(), Ranking::blank(hosts as usize));
            for (host, standing) in changes {
                ranking.set(host, standing);
                plain.insert(host, standing);
                let known = plain.iter().filter(|(host, _)| **host < hosts);
                let ranked = known.filter_map(|(host, standing)| match standing {
                    Standing::Unknown | Standing::Out => None,
                    Standing::AtLeast(rank) | Standing::Is(rank) => Some((*rank, *host)),
                });
                prop_assert_eq!(ranking.best(), ranked.min().map(|(_, host)| host));
                let due = if host < hosts { standing } else { Standing::Unknown };
                prop_assert_eq!(ranking.standing(host as usize), due);
            }
        }
    }

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Standing::Unknown),
            Just(Standing::Out),
            (-3i64..3, 0i64..2).prop_map(Standing::AtLeast),
            (-3i64..3, 0i64..2).prop_map(Standing::Is),
        ]
    }

    #[test]
    fn nobody_is_best_of_none() {
        assert_eq!(ranking(&[]).best(), None);
        assert_eq!(ranking(&[None, None, None]).best(), None);
        assert_eq!(ranking(&[Some((0, 0))]).best(), Some(0));
        assert_eq!(Ranking::blank(0).best(), None);
        assert_eq!(Ranking::blank(3).best(), None);
    }
}
