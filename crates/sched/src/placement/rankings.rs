//! Rankings of hosts for the shapes of requests that come, brought up to date when asked, and those
//! by a mix that is being learnt.
//!
//! By most policies all hosts are ranked. By one that likes full hosts ([`PolicyId::least`]) they
//! are looked at in the order of their room until none of the others can be better than the best:
//! what is decided is the same.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::alike::{Known, Looks};
use super::cluster::Host;
use super::learning::{Learning, SHAPES_LEARNT};
use super::mix::Mix;
use super::policy::{PolicyId, signed};
use super::ranking::{Rank, Ranking, Standing};
use super::rooms::{Rooms, Spot};
use super::types::Request;

/// Hosts times shapes that are kept ranked: 25 bytes each or less, so at most some 105 MB.
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
    /// The order that follows them when it is asked to.
    rooms: Rooms,
}

/// Hosts, ranked for a shape.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    ranking: Ranking,
    /// Where hosts are ranked in the order of their room.
    reach: Option<Reach>,
    /// Changes before this are in it.
    seen: u64,
    /// When it was last asked for.
    used: u64,
}

/// How far hosts are ranked in the order of their room.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Of hosts here and beyond nothing is known; those before are ranked, or cannot take the
    /// request. None where no host is beyond.
    next: Option<Spot>,
    /// The most that the request takes of a host's room.
    takes: u64,
    /// It takes less of some: which room it leaves is known before the rank is.
    varies: bool,
}

/// What is to be done to find the best host for a shape.
enum Lead {
    /// It is found, or there is none.
    Found,
    /// This one is the best if its rank is as good as it may be.
    Perhaps(u32),
    /// To look at more hosts.
    Open,
}

/// A ranking for a shape that is being made, host by host.
#[derive(Clone, Debug)]
pub(super) struct Building {
    pub(super) request: Request,
    pub(super) entry: Entry,
    /// Of hosts that have not changed since.
    known: Known,
    begun: u64,
    /// Units of what was begun and is not accounted for.
    owed: usize,
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

    /// What a host's rank is at least, by the room that a request for whole GPUs leaves.
    fn at_least(&self, host: u32, request: &Request) -> Standing {
        let left = self.hosts.get(host as usize).and_then(|host| {
            let after = host.view.with(request, self.policy.pick(), self.mix, |_, _| ())?;
            self.policy.least(signed(after.room()))
        });
        left.map_or(Standing::Out, Standing::AtLeast)
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
    pub(super) fn now(&self) -> u64 {
        self.first + self.hosts.len() as u64
    }

    /// Whether each change since then is known.
    pub(super) fn are_known(&self, since: u64) -> bool {
        since >= self.first
    }

    /// Hosts that changed since then. One that changed again later comes then.
    pub(super) fn since(&self, seen: u64) -> impl Iterator<Item = u32> {
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

    /// Brings the order by room up to date, if the policy has a use for it.
    fn sort(&mut self, ground: Ground<'_>) {
        if ground.policy.least(0).is_some() {
            let mut rooms = core::mem::take(&mut self.rooms);
            rooms.follow(self, ground.hosts);
            self.rooms = rooms;
        }
    }
}

impl Reach {
    /// None if the policy has all hosts ranked. The order by room is up to date.
    fn of(request: &Request, changes: &Changes, ground: Ground<'_>) -> Option<Self> {
        ground.policy.least(0)?;
        let (least, takes) = changes.rooms.takes(request);
        Some(Self { next: Some((least, 0)), takes, varies: least != takes })
    }

    /// Whether a host of that room is beyond.
    fn is_beyond(&self, spot: Spot) -> bool {
        self.next.is_some_and(|next| spot >= next)
    }

    /// Whether a host with that rank comes before all that are beyond.
    fn is_first(&self, rank: (i64, i64), host: u32, policy: PolicyId) -> bool {
        let Some((room, next)) = self.next else { return true };
        // Of hosts with more room each has a larger least rank, and of equal ones a larger key.
        let least = policy.least(signed(room) - signed(self.takes));
        least.is_some_and(|least| (rank, host) <= (least, next))
    }
}

/// What it takes to see that a host cannot take a request: for four of them as much as for looking
/// one up.
fn glance(host: usize) -> usize {
    usize::from(host.is_multiple_of(4))
}

impl Entry {
    /// Of no host yet. The order by room is up to date.
    fn new(request: &Request, used: u64, changes: &Changes, ground: Ground<'_>) -> Self {
        let (hosts, reach) = (ground.hosts.len(), Reach::of(request, changes, ground));
        let ranking = if reach.is_some() { Ranking::blank(hosts) } else { Ranking::of(hosts) };
        Self { ranking, reach, seen: changes.now(), used }
    }

    /// Whether it is known that a host cannot take the request, whatever the mix.
    fn is_out(&self, host: usize, changes: &Changes) -> bool {
        changes.is_same(host, self.seen) && self.ranking.standing(host) == Standing::Out
    }

    /// Ranks the hosts anew that changed since.
    pub(super) fn follow(&mut self, request: &Request, changes: &Changes, ground: Ground<'_>) {
        for host in changes.since(self.seen) {
            self.renew(host, request, ground);
        }
        self.seen = changes.now();
    }

    /// Ranks a host anew that changed. What is beyond where hosts are ranked is forgotten, and
    /// found there.
    fn renew(&mut self, host: u32, request: &Request, ground: Ground<'_>) {
        let room = || ground.hosts.get(host as usize).map_or(0, |found| found.view.room());
        let standing = match &self.reach {
            Some(reach) if reach.is_beyond((room(), host)) => Standing::Unknown,
            Some(reach) if reach.varies => ground.at_least(host, request),
            Some(_) | None => ground.rank(host, request).into(),
        };
        self.ranking.set(host, standing);
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
        if changes.are_known(self.seen) {
            self.follow(request, changes, ground);
        }
    }

    fn lead(&self, policy: PolicyId) -> Lead {
        let Some(reach) = &self.reach else {
            return if self.ranking.is_whole() { Lead::Found } else { Lead::Open };
        };
        let Some(best) = self.ranking.best() else {
            return if reach.next.is_some() { Lead::Open } else { Lead::Found };
        };
        let (rank, lead) = match self.ranking.standing(best as usize) {
            Standing::Is(rank) => (rank, Lead::Found),
            Standing::AtLeast(rank) => (rank, Lead::Perhaps(best)),
            Standing::Unknown | Standing::Out => return Lead::Open,
        };
        if reach.is_first(rank, best, policy) { lead } else { Lead::Open }
    }

    fn is_found(&self, policy: PolicyId) -> bool {
        matches!(self.lead(policy), Lead::Found)
    }
}

impl Building {
    /// For a shape that was asked for then. The order by room is up to date.
    pub(super) fn new(request: &Request, used: u64, changes: &Changes, ground: Ground<'_>) -> Self {
        let entry = Entry::new(request, used, changes, ground);
        // Eight of them are written as quickly as a host is looked up.
        let owed = if entry.reach.is_some() { ground.hosts.len() / 8 } else { 0 };
        Self { owed, ..Self::of(request, entry, changes, ground) }
    }

    /// Goes on with what was made.
    fn of(request: &Request, entry: Entry, changes: &Changes, ground: Ground<'_>) -> Self {
        let (known, begun) = (Known::new(request, ground), changes.now());
        Self { request: *request, entry, known, begun, owed: 0 }
    }

    /// Ranks the hosts anew that changed since they were ranked: those must not stay behind, lest
    /// more changes come than are kept. If more have, all that were ranked are looked at.
    pub(super) fn follow(&mut self, changes: &Changes, ground: Ground<'_>) {
        let Self { request, entry, .. } = self;
        let seen = entry.seen;
        if !changes.are_known(seen) {
            for host in (0..entry.ranking.ranked()).filter(|at| !changes.is_same(*at, seen)) {
                entry.renew(u32::try_from(host).unwrap_or(u32::MAX), request, ground);
            }
            entry.seen = changes.now();
        }
        entry.follow(request, changes, ground);
    }

    /// Ranks the next hosts until so much is spent, or the best is found; what is left of it.
    /// `other` are the shape's ranks by another mix. The order by room is up to date.
    pub(super) fn go_on(
        &mut self,
        units: usize,
        other: Option<&Entry>,
        changes: &Changes,
        ground: Ground<'_>,
    ) -> usize {
        let owed = self.owed.min(units);
        self.owed -= owed;
        if self.entry.reach.is_some() {
            return self.go_on_by_room(units - owed, changes, ground);
        }
        let mut left = units - owed;
        while left > 0 {
            let at = self.entry.ranking.ranked();
            let Some(host) = ground.hosts.get(at) else { break };
            let (rank, spent) = if other.is_some_and(|other| other.is_out(at, changes)) {
                (None, glance(at))
            } else {
                self.rank(at, host, changes, ground)
            };
            self.entry.ranking.push(rank);
            left = left.saturating_sub(spent);
        }
        left
    }

    fn go_on_by_room(&mut self, units: usize, changes: &Changes, ground: Ground<'_>) -> usize {
        let Some(mut reach) = self.entry.reach else { return units };
        let beyond = reach.next.into_iter().flat_map(|next| changes.rooms.from(next));
        let (mut beyond, mut left) = (beyond.peekable(), units);
        loop {
            reach.next = beyond.peek().map(|(spot, _)| *spot);
            self.entry.reach = Some(reach);
            if left == 0 {
                break;
            }
            let (key, is_rank) = match self.entry.lead(ground.policy) {
                Lead::Found => break,
                Lead::Perhaps(key) => (key, true),
                Lead::Open => match beyond.next() {
                    Some(((_, key), brief)) if !brief.may_take(&self.request) => {
                        left = left.saturating_sub(glance(key as usize));
                        continue;
                    }
                    Some(((_, key), _)) => (key, !reach.varies),
                    None => break,
                },
            };
            let at = key as usize;
            let Some(host) = ground.hosts.get(at) else { break };
            let (standing, spent) = if is_rank {
                let (rank, spent) = self.rank(at, host, changes, ground);
                (rank.into(), spent)
            } else {
                (ground.at_least(key, &self.request), 1)
            };
            self.entry.ranking.set(key, standing);
            left = left.saturating_sub(spent);
        }
        left
    }

    /// A host's rank, and what it took to know it.
    fn rank(
        &mut self,
        at: usize,
        host: &Host,
        changes: &Changes,
        ground: Ground<'_>,
    ) -> (Rank, usize) {
        if changes.is_same(at, self.begun) {
            self.known.rank(host, &self.request, ground)
        } else {
            ground.worked_out(host, &self.request)
        }
    }

    pub(super) fn is_done(&self, policy: PolicyId) -> bool {
        self.owed == 0 && self.entry.is_found(policy)
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
        let used = self.asked;
        // Changes that were dropped are not known one by one.
        let known = self.entries.remove(request);
        let mut known = known.filter(|entry| self.changes.are_known(entry.seen));
        if let Some(entry) = &mut known {
            entry.follow(request, &self.changes, ground);
        }
        let mut entry = match known {
            Some(entry) if entry.is_found(ground.policy) => entry,
            unfound => self.find(request, unfound, ground),
        };
        entry.used = used;
        if let Some(learning) = &mut self.learning {
            learning.keep(request, used, &self.changes, ground);
        }
        let best = entry.ranking.best();
        self.make_room(ground.hosts.len());
        self.entries.insert(*request, entry);
        best
    }

    /// Ranks hosts until the best is found: where a ranking stands that is up to date, from there.
    fn find(&mut self, request: &Request, stands: Option<Entry>, ground: Ground<'_>) -> Entry {
        self.changes.sort(ground);
        let changes = &self.changes;
        let mut building = match stands {
            Some(entry) => Building::of(request, entry, changes, ground),
            None => Building::new(request, self.asked, changes, ground),
        };
        building.owed = 0;
        building.go_on(usize::MAX, None, changes, ground);
        building.entry
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
        let is_needed = self.learning.as_ref().is_some_and(Learning::has_shapes);
        if is_needed || self.changes.rooms.is_behind(&self.changes, ground.hosts.len()) {
            self.changes.sort(ground);
        }
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

    /// Shapes that are ranked, brought up to date, each with the best host and what is known of
    /// each host's rank.
    #[cfg(test)]
    pub(super) fn ranked(
        &mut self,
        ground: Ground<'_>,
    ) -> Vec<(Request, Option<u32>, Vec<Standing>)> {
        self.entries.retain(|_, entry| self.changes.are_known(entry.seen));
        let shapes: Vec<Request> = self.entries.keys().copied().collect();
        let of = |request: Request| {
            let best = self.best(&request, ground);
            let ranking = &self.entries[&request].ranking;
            let standings = (0..ground.hosts.len()).map(|host| ranking.standing(host));
            (request, best, standings.collect())
        };
        shapes.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cluster, GrantKey, Mix, Mode, by_name};
    use super::*;

    /// Three hundred hosts with GPUs of several sizes, each with other remainders.
    fn mixed() -> Cluster {
        let mut cluster = Cluster::new(by_name("best_fit").unwrap());
        for host in 0..300_u64 {
            let gpus = [0, 1, 2, 3].map(|gpu| 151 + 97 * ((host + gpu * gpu) % 4));
            cluster.add_host(0, 50 + host % 7, 100, &gpus).unwrap();
        }
        for grant in 0..2_000 {
            let memory = 1 + grant * 7_919 % 83;
            let request = Request { cpu_milli: 2, ..Request::new(1, memory, Mode::Shared).local() };
            let Ok(placement) = cluster.place(&request) else { continue };
            cluster.commit(GrantKey(grant), placement).unwrap();
        }
        for grant in (0..2_000).filter(|grant| grant % 3 == 0) {
            // One that found no room is not there.
            let _ = cluster.release(GrantKey(grant));
        }
        cluster.set_policy(by_name("fragmentation").unwrap());
        cluster.set_mix(Mix::new(&shapes().map(|shape| (shape, 1))));
        cluster
    }

    fn shapes() -> [Request; 8] {
        let part = |memory| Request::new(1, memory, Mode::Shared);
        let whole = |cgpus, memory| Request::new(cgpus, memory, Mode::Exclusive).local();
        let busy = Request { cpu_milli: 9, ..part(70).local() };
        let several = Request::new(3, 110, Mode::Shared).local();
        [part(20), part(130), part(300), busy, several, whole(1, 100), whole(2, 1), whole(4, 1)]
    }

    #[test]
    fn few_hosts_are_looked_at_and_the_best_of_all_is_found() {
        let (mut cluster, mut grants, mut fewest) = (mixed(), 10_000.., usize::MAX);
        for shape in shapes() {
            for _ in 0..40 {
                let Cluster { policy, mix, hosts, rankings, looks, .. } = &mut cluster;
                let ground = Ground { hosts, looks, policy: *policy, mix };
                let ranks = hosts.iter().map(|host| policy.rank(&host.view, &shape, mix));
                let ranked = (0..).zip(ranks).filter_map(|(host, rank)| Some((rank?, host)));
                let best = ranked.min().map(|(_, host)| host);
                assert_eq!(rankings.best(&shape, ground), best, "{shape:?}");
                let ranking = &rankings.entries[&shape].ranking;
                let standings = (0..hosts.len()).map(|host| ranking.standing(host));
                let known = standings.filter(|standing| matches!(standing, Standing::Is(_)));
                fewest = fewest.min(known.count());
                let (Ok(placement), Some(grant)) = (cluster.place(&shape), grants.next()) else {
                    break;
                };
                cluster.commit(GrantKey(grant), placement).unwrap();
                // One that is not there any longer is no harm.
                let _ = cluster.release(GrantKey(grant % 10_000 * 3 + 1));
            }
        }
        assert!(fewest < 100, "{fewest} of 300");
    }
}
