//! Which GPUs an instance gets: `sched::placement` decides on a view of the store, the store takes
//! the GPUs if none of them has changed since, and nothing is locked while it writes.
//!
//! Decisions and releases are handed to the store in the order in which the view has seen them. So
//! the view is what the store will be, unless a write fails; then it is made anew.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weft_api::v1::{Event, Kind, Locality, Mode, Problem};
use weft_sched::placement::{
    self, Assigned, Cluster, GpuKey, GrantKey, Kinds, LEARN_EVERY, LEARN_PERCENT, Mix, Observed,
    PlaceError, Placement, PolicyId, Request,
};

use crate::pending::Pending;
use crate::store::shared::{charged, demand};
use crate::store::{
    Audit, GpuRow, InstanceRow, NodeRow, Part, Reservation, Spec, Store, StoreError, Taken, Ticket,
};
use crate::words::counted;

/// How often a request is decided anew when somebody else was quicker.
const ATTEMPTS_MAX: u32 = 8;

/// How often who finds no room waits for what others have reserved and the store may refuse.
const WAITS_MAX: u32 = 3;

/// Who has waited so often in vain has the view made anew, which keeps everybody waiting: so others
/// decide for so many times as long since it was made last, and no longer than this.
const RESTS: u32 = 10;
const REST_MAX: Duration = Duration::from_secs(1);

/// Instances that are read at once when what they asked for is counted.
const SEEDED_AT_ONCE: u32 = 1_000;

/// Decides and reserves.
#[derive(Debug)]
pub struct Allocator {
    store: Arc<dyn Store>,
    policy: PolicyId,
    known: Mutex<Known>,
    /// Reservations that the store has not answered yet.
    pending: Pending,
    /// Nodes that do not answer, and why. It is found out again after a restart.
    unreachable: Mutex<BTreeMap<String, String>>,
    /// When nodes were heard last.
    heard: Mutex<BTreeMap<String, Heard>>,
}

/// What a node was heard to say.
#[derive(Debug, Clone, Copy)]
struct Heard {
    at: Instant,
    /// Whether its gateway listens, as far as anybody asked.
    listens: bool,
}

/// What decisions rest on.
#[derive(Debug, Default)]
struct Known {
    /// None where it is to be read again before the next decision.
    view: Option<View>,
    /// When that was made last, and how long it took.
    made: Option<(Instant, Duration)>,
    asked: Asked,
}

impl Known {
    /// How long it is until the view may be made anew for who finds no room.
    fn rest(&self) -> Duration {
        let rest = self.made.map(|(at, took)| (took * RESTS).saturating_sub(at.elapsed()));
        rest.unwrap_or_default().min(REST_MAX)
    }
}

/// What was asked for. It is no part of the view: how often that is read again, in a cloud that is
/// full or whose nodes come and go, must not decide whether a mix is ever known.
#[derive(Debug, Default)]
struct Asked {
    observed: Observed,
    /// Made of what was observed when it was looked at last; empty before.
    mix: Mix,
    /// Whether what was there at the start has been counted.
    is_seeded: bool,
}

/// The cluster as the store will be when all writes that were begun are done.
#[derive(Debug)]
struct View {
    cluster: Cluster,
    /// By GPU key: the store's number, and what its generation is ahead of the cluster's.
    gpus: Vec<(u32, u64)>,
    keys: BTreeMap<u32, GpuKey>,
    /// By host key: the compute host.
    hosts: Vec<String>,
    grants: BTreeMap<String, GrantKey>,
    next_grant: u64,
    /// Memory that GPUs have, whether they are free, in service, or neither.
    sizes_mib: BTreeSet<u64>,
}

/// Why nothing was reserved.
#[derive(Debug)]
struct Refusal {
    problem: Box<Problem>,
    /// Memory that it would take at least if there were room for it, together; none where the
    /// cluster could not hold it if it were empty, and where it is not room that is missing.
    missing_mib: Option<u64>,
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), missing_mib: None }
    }
}

impl Allocator {
    /// With this placement policy.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, policy: PolicyId) -> Self {
        let (known, unreachable, heard) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { store, policy, known, pending: Pending::default(), unreachable, heard }
    }

    /// A node was asked for something, and answered or did not, for this reason. The GPUs of one
    /// that does not get no new cGPUs.
    pub fn note_answer(&self, node: &str, why_not: Option<&str>) {
        let mut unreachable = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
        let before = unreachable.contains_key(node);
        match why_not {
            Some(why) => drop(unreachable.insert(node.to_owned(), why.to_owned())),
            None => drop(unreachable.remove(node)),
        }
        drop(unreachable);
        let now = Instant::now();
        let mut heard = self.heard();
        let known = heard.entry(node.to_owned()).or_insert(Heard { at: now, listens: true });
        if why_not.is_none() {
            known.at = now;
        }
        drop(heard);
        if before != why_not.is_some() {
            match why_not {
                Some(why) => tracing::warn!(node, why, "the node does not answer"),
                None => tracing::info!(node, "the node answers again"),
            }
            self.forget();
        }
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<String, Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node said whether its gateway listens.
    pub fn note_gateway(&self, node: &str, listens: bool) {
        let mut heard = self.heard();
        let known = heard.entry(node.to_owned());
        let known = known.or_insert_with(|| Heard { at: Instant::now(), listens: true });
        if known.listens != listens {
            known.listens = listens;
            match listens {
                true => tracing::info!(node, "the node's gateway listens again"),
                false => tracing::warn!(node, "the node's gateway does not listen"),
            }
        }
    }

    /// What is wrong with a node's gateway, as far as the node says.
    #[must_use]
    pub fn gateway_failure(&self, node: &str) -> Option<String> {
        let listens = self.heard().get(node).is_none_or(|heard| heard.listens);
        let words = "the node says that its gateway does not listen: programs in VMs do not reach \
                     their cGPUs; the node's log says why";
        (!listens).then(|| words.to_owned())
    }

    /// The nodes whose gateways do not listen.
    #[must_use]
    pub fn without_gateway(&self) -> usize {
        self.heard().values().filter(|heard| !heard.listens).count()
    }

    /// For how long a node that does not answer has not been heard of, in ms.
    #[must_use]
    pub fn unheard_ms(&self, node: &str) -> Option<u64> {
        self.why_unreachable(node)?;
        let at = self.heard().get(node)?.at;
        Some(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// A node is not used any longer.
    pub fn forget_node(&self, node: &str) {
        self.heard().remove(node);
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
        self.forget();
    }

    /// Why a node does not answer, if it does not.
    #[must_use]
    pub fn why_unreachable(&self, node: &str) -> Option<String> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// The nodes that do not answer.
    #[must_use]
    pub fn unreachable(&self) -> BTreeSet<String> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the store has is looked at again before the next decision. What was asked for stays.
    pub fn forget(&self) {
        self.lock().view = None;
    }

    fn view<'a>(&self, known: &'a mut Known) -> Result<&'a mut View, StoreError> {
        if known.view.is_none() {
            known.asked.seed(self.store.as_ref())?;
            let began = Instant::now();
            let inventory = self.store.inventory();
            let taken = self.store.taken();
            let mix = known.asked.mix.clone();
            let (inventory, taken) = (inventory.wait()?, taken.wait()?);
            known.view = Some(View::new(self.policy, mix, inventory, &taken, &self.unreachable()));
            known.made = Some((Instant::now(), began.elapsed()));
        }
        known.view.as_mut().ok_or_else(|| StoreError::Broken("there is no view".to_owned()))
    }

    /// Decides, and reserves what was decided.
    ///
    /// # Errors
    /// No room, no quota, or the store's.
    pub fn reserve(&self, wanted: &Reservation) -> Result<InstanceRow, Problem> {
        let reserved = self.reserve_all(slice::from_ref(wanted))?;
        let lost = || Problem::new(Kind::Internal, "nothing was reserved");
        reserved.into_iter().next().ok_or_else(lost)
    }

    /// Decides on several equal ones in one decision, and reserves all of them or none: no one has
    /// a place that another one needs.
    ///
    /// # Errors
    /// The same; how many there is room for.
    pub fn reserve_all(&self, wanted: &[Reservation]) -> Result<Vec<InstanceRow>, Problem> {
        let Some(first) = wanted.first() else { return Ok(Vec::new()) };
        let request = request(&first.spec);
        let outcome = self.decide_and_reserve(wanted, &request);
        // What found no room is what room is to be kept for: without it the mix of a full cloud
        // would be of small requests alone, and large ones never find room again. What no GPU can
        // hold, and what quota does not allow, says nothing of that, and would let anybody bend
        // the mix. Of a batch one is known to be something that a GPU can hold: all of them need
        // not be.
        let demands = match &outcome {
            Ok(_) => wanted.len(),
            Err(Refusal { missing_mib, .. }) => {
                missing_mib.is_some_and(|memory_mib| self.is_allowed(wanted, memory_mib)).into()
            }
        };
        self.learn(&request, demands);
        outcome.map_err(|refusal| *refusal.problem)
    }

    /// Whether quota would allow what there is no room for, of so much memory each. The store says
    /// so only of what is decided.
    fn is_allowed(&self, wanted: &[Reservation], memory_mib: u64) -> bool {
        let Some(Reservation { project, spec, .. }) = wanted.first() else { return false };
        // Where the store cannot tell, nothing is counted.
        let Ok(Some((quota, used))) = self.store.project(project) else { return false };
        let count = wanted.len() as u64;
        let cgpus = count.saturating_mul(spec.cgpus.into());
        let more = demand(spec, cgpus, count.saturating_mul(memory_mib));
        charged(project, &quota, &used, &more).is_ok()
    }

    /// Counts what was asked for, so many times.
    fn learn(&self, request: &Request, count: usize) {
        let mut held = self.lock();
        let Known { view, asked, .. } = &mut *held;
        let learnt = (0..count).filter_map(|_| asked.observed.learn(request));
        if let Some(mix) = learnt.reduce(|_, newer| newer) {
            asked.mix = mix.clone();
            if let Some(view) = view {
                view.cluster.learn(mix);
            }
        }
    }

    fn decide_and_reserve(
        &self,
        wanted: &[Reservation],
        request: &Request,
    ) -> Result<Vec<InstanceRow>, Refusal> {
        let mut waits = 0;
        for _ in 0..ATTEMPTS_MAX {
            let mut held = self.lock();
            let mut view = self.view(&mut held).map_err(broken)?;
            let mut decided = view.decide(wanted, request);
            if decided.is_err()
                && view.cluster.could_hold(request)
                && let Some(last) = self.pending.last()
            {
                // What takes the room may be refused itself, and then the view is made anew. Others
                // decide meanwhile: a look at the whole store would keep all of them waiting.
                if waits < WAITS_MAX {
                    drop(held);
                    self.pending.wait_for(last);
                    waits += 1;
                    continue;
                }
                let rest = held.rest();
                if !rest.is_zero() {
                    drop(held);
                    thread::sleep(rest);
                    continue;
                }
                // There are always others: the store says what is taken, before anybody decides.
                held.view = None;
                view = self.view(&mut held).map_err(broken)?;
                decided = view.decide(wanted, request);
            }
            let decided = match decided {
                Ok(decided) => decided,
                Err((fitting, error)) => {
                    let (away, largest_mib) = (self.unreachable().len(), view.largest_mib());
                    let of = (fitting, wanted.len());
                    let problem = refused(&error, of, away, request.mode, largest_mib);
                    let is_full = problem.kind == Kind::NoCapacity;
                    let missing_mib = if is_full { view.least_mib(request) } else { None };
                    return Err(Refusal { missing_mib, ..problem.into() });
                }
            };
            let begun = self.pending.begin();
            let ticket = self.store.reserve_all(decided);
            drop(held);
            let reserved = ticket.wait();
            if reserved.is_err() {
                self.forget();
            }
            // Whoever waits for it sees what became of it.
            drop(begun);
            match reserved {
                Err(StoreError::Changed) => {}
                reserved => return reserved.map_err(|error| broken(error).into()),
            }
        }
        Err(Problem::new(Kind::Busy, "others reserve the same GPUs all the time")
            .hint("try again in a moment")
            .into())
    }

    /// Gives back what an instance has, when nothing of it is left.
    ///
    /// # Errors
    /// The store's.
    pub fn release(&self, instance: &str, now_ms: u64, event: &Event) -> Result<(), StoreError> {
        let mut held = self.lock();
        let ticket = self.store.release(instance, now_ms, event);
        if let Some(view) = &mut held.view {
            view.release(instance);
        }
        drop(held);
        self.settled(ticket)
    }

    /// Drains a GPU, or puts it back into service.
    ///
    /// # Errors
    /// The store's.
    pub fn set_gpu(&self, id: u32, is: bool, audit: &Audit) -> Result<GpuRow, StoreError> {
        let mut held = self.lock();
        let ticket = self.store.set_gpu(id, is, audit);
        if let Some(view) = &mut held.view
            && self.unreachable().is_empty()
            && let Some(gpu) = view.keys.get(&id)
        {
            // A GPU that the view has can be set.
            let _ = view.cluster.set_in_service(*gpu, is);
        } else {
            // One of a node that does not answer stays out.
            held.view = None;
        }
        drop(held);
        self.settled(ticket)
    }

    fn settled<T>(&self, ticket: Ticket<T>) -> Result<T, StoreError> {
        let outcome = ticket.wait();
        if outcome.is_err() {
            self.forget();
        }
        outcome
    }
}

impl Asked {
    /// Counts what the instances asked for that are there, at the first look at the store: a
    /// restart, or another replica that leads, knows the mix again.
    fn seed(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        if self.is_seeded {
            return Ok(());
        }
        let mut observed = Observed::default();
        let mut part = Part { limit: SEEDED_AT_ONCE, after: None, project: None };
        loop {
            let shown = store.instances(&part)?;
            shown.iter().for_each(|(_, one)| observed.record(&request(&one.spec)));
            let Some((last, _)) = shown.last() else { break };
            part.after = Some(last.clone());
        }
        if observed.total() >= LEARN_EVERY {
            self.mix = observed.mix(LEARN_PERCENT);
        }
        (self.observed, self.is_seeded) = (observed, true);
        Ok(())
    }
}

impl View {
    fn new(
        policy: PolicyId,
        mix: Mix,
        inventory: Vec<(NodeRow, Vec<GpuRow>)>,
        taken: &[Taken],
        unreachable: &BTreeSet<String>,
    ) -> Self {
        let mut view = Self {
            cluster: Cluster::new(policy),
            gpus: Vec::new(),
            keys: BTreeMap::new(),
            hosts: Vec::new(),
            grants: BTreeMap::new(),
            next_grant: 0,
            sizes_mib: BTreeSet::new(),
        };
        view.cluster.set_mix(mix);
        let mut rows = Vec::new();
        for (node, gpus) in inventory {
            let memory: Vec<u64> = gpus.iter().map(|gpu| gpu.found.memory_mib).collect();
            if let Err(error) = view.cluster.add_host(0, 0, 0, &memory) {
                tracing::error!(node = node.name, %error, "the node's GPUs are not used");
                continue;
            }
            view.sizes_mib.extend(memory);
            view.hosts.push(node.host);
            for gpu in gpus {
                let key = GpuKey(u32::try_from(rows.len()).unwrap_or(u32::MAX));
                view.keys.insert(gpu.id, key);
                rows.push(gpu);
            }
        }
        view.give(taken);
        for (at, row) in rows.iter().enumerate() {
            let key = GpuKey(u32::try_from(at).unwrap_or(u32::MAX));
            if !row.in_service || row.lost_ms.is_some() || unreachable.contains(&row.node) {
                let _ = view.cluster.set_in_service(key, false);
            }
            let ahead = row.generation.wrapping_sub(view.cluster.gpus()[at].generation);
            view.gpus.push((row.id, ahead));
        }
        view
    }

    /// What the largest GPU has.
    fn largest_mib(&self) -> u64 {
        self.sizes_mib.last().copied().unwrap_or(0)
    }

    /// Memory that a request takes at least, of all its cGPUs together; none if the cluster could
    /// not hold it if it were empty.
    fn least_mib(&self, request: &Request) -> Option<u64> {
        let of_each = match request.mode {
            // The whole of the smallest GPU that will do.
            placement::Mode::Exclusive => *self.sizes_mib.range(request.memory..).next()?,
            placement::Mode::Shared => request.memory,
        };
        let memory_mib = of_each.saturating_mul(request.cgpus.into());
        self.cluster.could_hold(request).then_some(memory_mib)
    }

    /// What instances have already.
    fn give(&mut self, taken: &[Taken]) {
        for of_one in taken.chunk_by(|a, b| a.instance == b.instance) {
            let assigned = of_one.iter().filter_map(|one| {
                let gpu = *self.keys.get(&one.gpu)?;
                let generation = self.cluster.gpus()[gpu.0 as usize].generation;
                Some(Assigned { gpu, memory: one.memory_mib, generation })
            });
            let mode = placed(of_one[0].mode);
            let placement = Placement { cgpus: assigned.collect(), host: None, mode };
            let grant = self.name(&of_one[0].instance);
            if let Err(error) = self.cluster.commit(grant, placement) {
                // The store refuses what does not fit, whatever the view thinks.
                tracing::error!(instance = of_one[0].instance, %error, "what it has is too much");
                self.grants.remove(&of_one[0].instance);
            }
        }
    }

    fn name(&mut self, instance: &str) -> GrantKey {
        let grant = GrantKey(self.next_grant);
        self.next_grant += 1;
        self.grants.insert(instance.to_owned(), grant);
        grant
    }

    /// Where all of these go, which ask for the same; if they do not, how many of them fit.
    fn decide(
        &mut self,
        wanted: &[Reservation],
        request: &Request,
    ) -> Result<Vec<Reservation>, (usize, PlaceError)> {
        let placements = self.cluster.place_all(&vec![*request; wanted.len()])?;
        let decided = wanted.iter().zip(&placements);
        let decided = decided.map(|(one, placement)| self.decided(one, placement)).collect();
        let grants: Vec<GrantKey> = wanted.iter().map(|one| self.name(&one.id)).collect();
        // It was decided a moment ago, and nobody else has the view.
        let committed = self.cluster.commit_all(grants.into_iter().zip(placements));
        debug_assert!(committed.is_ok(), "{committed:?}");
        Ok(decided)
    }

    /// What an instance takes, as the store knows it.
    fn decided(&self, wanted: &Reservation, placement: &Placement) -> Reservation {
        let mode = match placement.mode {
            placement::Mode::Exclusive => Mode::Exclusive,
            placement::Mode::Shared => Mode::Shared,
        };
        let taken = placement.cgpus.iter().map(|cgpu| {
            let (gpu, ahead) = self.gpus[cgpu.gpu.0 as usize];
            let generation = cgpu.generation.wrapping_add(ahead);
            let (instance, memory_mib) = (wanted.id.clone(), cgpu.memory);
            Taken { instance, gpu, memory_mib, mode, generation }
        });
        let host = placement.host.as_ref().map(|on| self.hosts[on.host.0 as usize].clone());
        let spec = Spec { host, ..wanted.spec.clone() };
        Reservation { taken: taken.collect(), spec, ..wanted.clone() }
    }

    fn release(&mut self, instance: &str) {
        if let Some(grant) = self.grants.remove(instance) {
            // One that the view could not have given is not there.
            let _ = self.cluster.release(grant);
        }
    }
}

fn placed(mode: Mode) -> placement::Mode {
    match mode {
        Mode::Exclusive => placement::Mode::Exclusive,
        Mode::Shared => placement::Mode::Shared,
    }
}

fn request(spec: &Spec) -> Request {
    Request {
        cgpus: spec.cgpus,
        memory: spec.memory_mib,
        mode: placed(spec.mode),
        locality: match spec.locality {
            Locality::Local => placement::Locality::Local,
            Locality::Remote => placement::Locality::Remote,
        },
        kinds: Kinds::ANY,
        cpu_milli: 0,
        host_memory: 0,
    }
}

/// Why so many of so many equal requests fit, and no more.
fn refused(
    error: &PlaceError,
    (fitting, count): (usize, usize),
    unreachable: usize,
    mode: placement::Mode,
    largest_mib: u64,
) -> Problem {
    let PlaceError::NoRoom { asked, found, memory } = error else {
        return Problem::new(Kind::Invalid, error.to_string());
    };
    let each = if *memory > 0 { format!(" with {memory} MiB each") } else { String::new() };
    let without = match unreachable {
        0 => String::new(),
        1 => ", without the node that does not answer".to_owned(),
        many => format!(", without the {many} nodes that do not answer"),
    };
    let asked = counted(*asked, "cGPU");
    let room = match count {
        1 => format!("{found} of {asked}{each}"),
        _ => format!("{fitting} of {count} VMs with {asked}{each}"),
    };
    let detail = format!("there is room for {room} now{without}");
    if *memory > largest_mib && largest_mib > 0 {
        // Whoever waits would wait for ever.
        let words = format!("no GPU has more than {largest_mib} MiB: ask for smaller ones");
        return Problem::new(Kind::NoCapacity, detail).hint(words);
    }
    // What is shared already is not shared more.
    Problem::new(Kind::NoCapacity, detail).hint(match mode {
        placement::Mode::Shared => "ask for fewer or smaller ones, allow any host, or wait",
        placement::Mode::Exclusive => {
            "ask for fewer or smaller ones, share them (-mode=shared), allow any host, or wait"
        }
    })
}

/// What the store's refusals are to whoever asked.
#[must_use]
pub fn broken(error: StoreError) -> Problem {
    let kind = match &error {
        StoreError::Quota(_) => Kind::Quota,
        StoreError::Missing(_) => Kind::NotFound,
        StoreError::KeyReused => Kind::Invalid,
        StoreError::Exists(_)
        | StoreError::Refused(_)
        | StoreError::InUse(_)
        | StoreError::LastAdmin(_)
        | StoreError::Changed
        | StoreError::Repeated(_) => Kind::Conflict,
        StoreError::NotLeader(_) => Kind::NotLeader,
        StoreError::Away(_) => Kind::StoreAway,
        StoreError::Broken(_) => Kind::Internal,
    };
    let problem = Problem::new(kind, error.to_string());
    match error {
        StoreError::Quota(_) => {
            problem.hint("ask for less, terminate instances, or ask an administrator for more")
        }
        StoreError::LastAdmin(_) => problem.hint("make another one first"),
        StoreError::Away(_) => {
            problem.hint("what runs goes on; try again in a moment, or look at the database")
        }
        StoreError::NotLeader(Some(leader)) => {
            let hint = format!("ask {leader}, or try again in a moment");
            Problem { leader: Some(leader), ..problem.hint(hint) }
        }
        StoreError::NotLeader(None) => problem.hint("try again in a moment"),
        StoreError::Changed
        | StoreError::Refused(_)
        | StoreError::Exists(_)
        | StoreError::Missing(_)
        | StoreError::InUse(_)
        | StoreError::KeyReused
        | StoreError::Repeated(_)
        | StoreError::Broken(_) => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_wait_for_a_gpu_that_is_larger_than_any() {
        let hint = |memory| {
            let error = PlaceError::NoRoom { asked: 1, found: 0, memory };
            let problem = refused(&error, (0, 1), 0, placement::Mode::Shared, 8192);
            assert!(problem.detail.contains("0 of 1 cGPU with"), "{problem}");
            problem.hint.unwrap()
        };
        assert!(hint(8192).contains("wait"));
        assert!(!hint(8193).contains("wait"));
    }

    #[test]
    fn of_several_vms_those_are_counted_that_there_is_room_for() {
        let error = PlaceError::NoRoom { asked: 2, found: 1, memory: 512 };
        let problem = refused(&error, (3, 4), 1, placement::Mode::Shared, 8192);
        let words = "there is room for 3 of 4 VMs with 2 cGPUs with 512 MiB each now, without";
        assert!(problem.detail.starts_with(words), "{problem}");
    }
}
