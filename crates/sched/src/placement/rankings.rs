//! Rankings of all hosts for the shapes of requests that come, brought up to date when asked, and
//! those by a mix that is being learnt.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::alike::{Known, Looks};
use super::cluster::Host;
use super::learning::{Learning, SHAPES_LEARNT};
use super::mix::Mix;
use super::policy::PolicyId;
use super::ranking::{Rank, Ranking};
use super::types::Request;

/// Hosts times shapes that are kept ranked: 28 bytes each, so at most some 120 MB.
const RANKED_MAX: usize = 1 << 22;
/// Shapes that are kept ranked however many hosts there are, and however few.
const SHAPES: (usize, usize) = (16, 1_024);

/// What ranks rest on.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) hosts: &'a [Host],
    pub(super) looks: &'a Looks,
    pub(super) policy: PolicyId,
    pub(super) mix: &'a Mix,
}

/// Hosts that changed, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// As many as there are hosts at most.
    hosts: VecDeque<u32>,
    /// The number of the first of them.
    first: u64,
    /// Of each host the number after that of its last change.
    last: Vec<u64>,
}

/// All hosts, ranked for a shape.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    ranking: Ranking,
    /// Changes before this are in it.
    seen: u64,
    /// When it was last asked for.
    used: u64,
}

/// A ranking for a shape that is being made, host by host.
#[derive(Clone, Debug)]
pub(super) struct Building {
    pub(super) request: Request,
    pub(super) entry: Entry,
    /// Of hosts that have not changed since.
    known: Known,
    begun: u64,
}

/// What is known of hosts' ranks, and which hosts changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Rankings {
    entries: BTreeMap<Request, Entry>,
    changes: Changes,
    asked: u64,
    learning: Option<Learning>,
    /// The last of the mixes that came while another one was learnt.
    wanted: Option<Mix>,
    /// Rankings by the mix before, which go one by one.
    void: BTreeMap<Request, Entry>,
}

impl Ground<'_> {
    fn rank(&self, host: u32, request: &Request) -> Rank {
        let host = self.hosts.get(host as usize)?;
        self.policy.rank(&host.view, request, self.mix)
    }

    /// A host's rank, and what it took to work that out. That a host cannot take a request is found
    /// out soon.
    pub(super) fn worked_out(&self, host: &Host, request: &Request) -> (Rank, usize) {
        let rank = self.policy.rank(&host.view, request, self.mix);
        (rank, if rank.is_some() { 1 + self.mix.price(request) } else { 1 })
    }
}

impl Changes {
    fn note(&mut self, host: u32) {
        self.hosts.push_back(host);
        let now = self.now();
        if let Some(last) = self.last.get_mut(host as usize) {
            *last = now;
        }
        while self.hosts.len() > self.last.len() {
            self.hosts.pop_front();
            self.first += 1;
        }
    }

    /// The number of the next change.
    fn now(&self) -> u64 {
        self.first + self.hosts.len() as u64
    }

    /// Hosts that changed since then. One that changed again later comes then.
    fn since(&self, seen: u64) -> impl Iterator<Item = u32> {
        let skipped = usize::try_from(seen.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let hosts = self.hosts.range(skipped.min(self.hosts.len())..);
        let numbered = (seen.max(self.first) + 1..).zip(hosts);
        let is_last =
            move |(number, host): &(u64, &u32)| self.last.get(**host as usize) == Some(number);
        numbered.filter(is_last).map(|(_, host)| *host)
    }

    /// Whether a host is as it was then.
    fn is_same(&self, host: usize, then: u64) -> bool {
        self.last.get(host).is_none_or(|last| *last <= then)
    }
}

impl Entry {
    /// Whether each change that is not in it is known.
    fn is_known(&self, changes: &Changes) -> bool {
        self.seen >= changes.first
    }

    /// Whether it is known that a host cannot take the request, whatever the mix.
    fn is_out(&self, host: usize, changes: &Changes) -> bool {
        changes.is_same(host, self.seen) && self.ranking.is_out(host)
    }

    /// Ranks the hosts anew that changed since.
    pub(super) fn follow(&mut self, request: &Request, changes: &Changes, ground: Ground<'_>) {
        for host in changes.since(self.seen) {
            self.ranking.set(host, ground.rank(host, request));
        }
        self.seen = changes.now();
    }

    /// The same, if it is one that is still to be followed, and it was asked for again.
    pub(super) fn keep(
        &mut self,
        request: &Request,
        used: u64,
        changes: &Changes,
        ground: Ground<'_>,
    ) {
        self.used = used;
        if self.is_known(changes) {
            self.follow(request, changes, ground);
        }
    }
}

impl Building {
    /// For a shape that was asked for then.
    pub(super) fn new(request: &Request, used: u64, changes: &Changes, ground: Ground<'_>) -> Self {
        let (ranking, begun) = (Ranking::of(ground.hosts.len()), changes.now());
        let entry = Entry { ranking, seen: begun, used };
        Self { request: *request, entry, known: Known::new(request, ground), begun }
    }

    /// Ranks the hosts anew that changed since they were ranked: those must not stay behind, lest
    /// more changes come than are kept. If more have, all that were ranked are looked at.
    pub(super) fn follow(&mut self, changes: &Changes, ground: Ground<'_>) {
        let Self { request, entry, .. } = self;
        if !entry.is_known(changes) {
            for host in (0..entry.ranking.ranked()).filter(|at| !changes.is_same(*at, entry.seen)) {
                let host = u32::try_from(host).unwrap_or(u32::MAX);
                entry.ranking.set(host, ground.rank(host, request));
            }
            entry.seen = changes.now();
        }
        entry.follow(request, changes, ground);
    }

    /// Ranks the next hosts until so much is spent, or all are ranked; what is left of it. `other`
    /// are the shape's ranks by another mix.
    pub(super) fn go_on(
        &mut self,
        units: usize,
        other: Option<&Entry>,
        changes: &Changes,
        ground: Ground<'_>,
    ) -> usize {
        let (mut left, request) = (units, &self.request);
        while left > 0 {
            let at = self.entry.ranking.ranked();
            let Some(host) = ground.hosts.get(at) else { break };
            let (rank, spent) = if other.is_some_and(|other| other.is_out(at, changes)) {
                // Four of those are written as quickly as one host is looked up.
                (None, usize::from(at.is_multiple_of(4)))
            } else if changes.is_same(at, self.begun) {
                self.known.rank(host, request, ground)
            } else {
                ground.worked_out(host, request)
            };
            self.entry.ranking.push(rank);
            left = left.saturating_sub(spent);
        }
        left
    }

    pub(super) fn is_done(&self) -> bool {
        self.entry.ranking.is_whole()
    }
}

impl Rankings {
    /// Nothing is known of any rank any more.
    pub(super) fn forget(&mut self) {
        self.entries.clear();
        self.void.clear();
        if let Some(learning) = &mut self.learning {
            learning.forget();
        }
    }

    /// A host is other than it was. A new host makes all rankings void.
    pub(super) fn changed(&mut self, host: u32, hosts: usize) {
        if self.changes.last.len() != hosts {
            self.changes.last.resize(hosts, 0);
            self.forget();
        }
        self.changes.note(host);
    }

    /// The best host for a request.
    pub(super) fn best(&mut self, request: &Request, ground: Ground<'_>) -> Option<u32> {
        self.asked += 1;
        let (used, changes) = (self.asked, &self.changes);
        let mut entry = match self.entries.remove(request) {
            // Changes that were dropped are not known one by one.
            Some(entry) if entry.is_known(changes) => entry,
            _ => {
                let mut building = Building::new(request, used, changes, ground);
                building.go_on(usize::MAX, None, changes, ground);
                building.entry
            }
        };
        entry.follow(request, changes, ground);
        entry.used = used;
        if let Some(learning) = &mut self.learning {
            learning.keep(request, used, changes, ground);
        }
        let best = entry.ranking.best();
        self.make_room(ground.hosts.len());
        self.entries.insert(*request, entry);
        best
    }

    /// Drops the shape that was not asked for longest, if there are too many.
    fn make_room(&mut self, hosts: usize) {
        let (least, most) = SHAPES;
        if self.entries.len() < (RANKED_MAX / hosts.max(1)).clamp(least, most) {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
        if let Some(request) = oldest.map(|(request, _)| *request) {
            self.entries.remove(&request);
        }
    }

    /// Ranks by this mix are to be made; while others are, the last one that is wanted waits.
    pub(super) fn learn(&mut self, mix: Mix, policy: PolicyId) {
        if self.learning.is_some() {
            self.wanted = Some(mix);
            return;
        }
        let used = |(request, entry): (&Request, &Entry)| (entry.used, *request);
        let mut shapes: Vec<(u64, Request)> =
            if policy.measures() { self.entries.iter().map(used).collect() } else { Vec::new() };
        shapes.sort_unstable();
        shapes.drain(..shapes.len().saturating_sub(SHAPES_LEARNT));
        self.learning = Some(Learning::new(mix, shapes));
    }

    /// Goes on with the mix that is learnt until so much is spent. Once all of its ranks are there
    /// they are those that count, all at once, and so is the mix that is returned then.
    pub(super) fn go_on(&mut self, units: usize, ground: Ground<'_>) -> Option<Mix> {
        // To give back the memory of all of them at once would take long.
        self.void.pop_first();
        let Self { entries, changes, .. } = self;
        let is_done = self.learning.as_mut()?.go_on(units, entries, changes, ground);
        let (mix, entries) = self.learning.take_if(|_| is_done)?.into_parts();
        if ground.policy.measures() {
            self.void = core::mem::replace(&mut self.entries, entries);
        }
        if let Some(wanted) = self.wanted.take() {
            self.learn(wanted, ground.policy);
        }
        Some(mix)
    }

    /// The mix that is wanted last, if one is being learnt.
    pub(super) fn learnt(&self) -> Option<&Mix> {
        self.wanted.as_ref().or_else(|| self.learning.as_ref().map(Learning::mix))
    }

    /// Nothing is learnt any longer.
    pub(super) fn stop(&mut self) {
        (self.learning, self.wanted) = (None, None);
    }

    /// Shapes that are ranked, brought up to date, each with the ranks of all hosts.
    #[cfg(test)]
    pub(super) fn ranked(&mut self, ground: Ground<'_>) -> Vec<(Request, Vec<Rank>)> {
        let hosts = 0..u32::try_from(ground.hosts.len()).unwrap_or(u32::MAX);
        self.entries.retain(|_, entry| entry.is_known(&self.changes));
        let shapes = self.entries.iter_mut().map(|(request, entry)| {
            entry.follow(request, &self.changes, ground);
            (*request, hosts.clone().map(|host| entry.ranking.rank(host)).collect())
        });
        shapes.collect()
    }
}
