//! Rankings of all hosts for the shapes of requests that come, brought up to date when asked.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::ranking::{Rank, Ranking};
use super::types::Request;

/// Hosts times shapes that are kept ranked: 24 bytes each, so at most some 100 MB.
const RANKED_MAX: usize = 1 << 22;
/// Shapes that are kept ranked however many hosts there are.
const SHAPES_MIN: usize = 16;

#[derive(Clone, Debug)]
struct Entry {
    ranking: Ranking,
    /// Changes before this are in it.
    seen: u64,
    /// When it was last asked for.
    used: u64,
}

/// What is known of hosts' ranks, and which hosts changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Rankings {
    entries: BTreeMap<Request, Entry>,
    /// Hosts that changed, in order; as many as there are hosts at most.
    changes: VecDeque<u32>,
    /// The number of the first of them.
    first: u64,
    /// Of each host the number of its last change.
    last: Vec<u64>,
    asked: u64,
}

impl Rankings {
    /// Nothing is known of any rank any more.
    pub(super) fn forget(&mut self) {
        self.entries.clear();
    }

    /// A host is other than it was. A new host makes all rankings void.
    pub(super) fn changed(&mut self, host: u32, hosts: usize) {
        if self.last.len() != hosts {
            self.last.resize(hosts, 0);
            self.forget();
        }
        self.changes.push_back(host);
        if let Some(last) = self.last.get_mut(host as usize) {
            *last = self.first + self.changes.len() as u64;
        }
        while self.changes.len() > hosts {
            self.changes.pop_front();
            self.first += 1;
        }
    }

    /// The best of so many hosts for a request; `rank` says how good one is, and `ranks` how good
    /// all are.
    pub(super) fn best(
        &mut self,
        request: &Request,
        hosts: usize,
        rank: impl Fn(u32) -> Rank,
        ranks: impl Fn() -> Vec<Rank>,
    ) -> Option<u32> {
        self.asked += 1;
        let now = self.first + self.changes.len() as u64;
        let mut entry = match self.entries.remove(request) {
            // Changes that were dropped are not known one by one.
            Some(entry) if entry.seen >= self.first => entry,
            _ => Entry { ranking: Ranking::new(ranks()), seen: now, used: 0 },
        };
        for number in entry.seen..now {
            let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
            let Some(&host) = self.changes.get(at) else { break };
            // A host that changed again later is looked at then.
            if self.last.get(host as usize) == Some(&(number + 1)) {
                entry.ranking.set(host, rank(host));
            }
        }
        (entry.seen, entry.used) = (now, self.asked);
        let best = entry.ranking.best();
        self.make_room(hosts);
        self.entries.insert(*request, entry);
        best
    }

    /// Drops the shape that was not asked for longest, if there are too many.
    fn make_room(&mut self, hosts: usize) {
        if self.entries.len() < (RANKED_MAX / hosts.max(1)).max(SHAPES_MIN) {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
        if let Some(request) = oldest.map(|(request, _)| *request) {
            self.entries.remove(&request);
        }
    }
}
