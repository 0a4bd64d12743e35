//! Hosts, GPUs and grants, and the four verbs: place, commit, release, change.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::alike::Looks;
use super::host::View;
use super::learning::LEARN_UNITS;
use super::mix::Mix;
use super::policy::PolicyId;
use super::rankings::{Ground, Rankings};
use super::types::{
    AMOUNT_MAX, Assigned, CGPUS_MAX, ChangeError, CommitError, GPUS_OF_HOST_MAX, GpuKey, GrantKey,
    HostKey, KINDS_MAX, Locality, Mode, OnHost, PlaceError, Placement, Request,
};

/// A compute node with GPUs.
#[derive(Clone, Debug)]
pub struct Host {
    /// Processors that it has for VMs, in thousandths.
    pub cpu_milli: u64,
    /// Main memory that it has for VMs, in MiB.
    pub host_memory: u64,
    /// Its first GPU; the others follow.
    pub first_gpu: GpuKey,
    /// Counts changes of what VMs take of it.
    pub generation: u64,
    pub(super) view: View,
    /// Number of what its GPUs look like, if that has one.
    pub(super) look: Option<u32>,
}

/// A GPU of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Where it is.
    pub host: HostKey,
    /// Its memory.
    pub capacity: u64,
    /// Of that given to cGPUs.
    pub held: u64,
    /// cGPUs on it.
    pub cgpus: u32,
    /// One VM has it alone.
    pub is_exclusive: bool,
    /// New cGPUs may be put on it.
    pub is_in_service: bool,
    /// Counts its changes.
    pub generation: u64,
}

/// All GPUs of a cloud, who has them, and a policy that chooses among them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub(super) policy: PolicyId,
    pub(super) mix: Mix,
    pub(super) hosts: Vec<Host>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) grants: BTreeMap<GrantKey, Placement>,
    pub(super) rankings: Rankings,
    pub(super) looks: Looks,
    step: LearnStep,
}

/// Units of [`LEARN_UNITS`] that each decision spends at most on a mix that is being learnt.
#[derive(Clone, Copy, Debug)]
struct LearnStep(usize);

impl Default for LearnStep {
    fn default() -> Self {
        Self(LEARN_UNITS)
    }
}

/// Hosts as they were before somebody tried something.
type Undo = BTreeMap<u32, View>;

impl Host {
    /// What kind its GPUs are.
    pub fn kind(&self) -> u8 {
        self.view.kind
    }

    /// Processors that no VM has, in thousandths.
    pub fn cpu_milli_free(&self) -> u64 {
        self.view.cpu_milli
    }

    /// Main memory that no VM has, in MiB.
    pub fn host_memory_free(&self) -> u64 {
        self.view.host_memory
    }

    /// Its GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = GpuKey> + use<> {
        (self.first_gpu.0..).take(self.view.gpus).map(GpuKey)
    }
}

impl Gpu {
    /// Memory that may still be given away.
    pub fn room(&self) -> u64 {
        if self.is_in_service && !self.is_exclusive { self.capacity - self.held } else { 0 }
    }
}

impl Cluster {
    /// A cluster without hosts.
    pub fn new(policy: PolicyId) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Its policy.
    pub fn policy(&self) -> PolicyId {
        self.policy
    }

    /// Chooses with another policy from here on.
    pub fn set_policy(&mut self, policy: PolicyId) {
        self.policy = policy;
        self.rankings.forget();
        self.go_on(0);
    }

    /// The mix that fragmentation is measured on, and the next decision made by.
    pub fn mix(&self) -> &Mix {
        &self.mix
    }

    /// Measures fragmentation on this mix from here on. Nothing is known of hosts' ranks by it: the
    /// next decision for each shape of request ranks hosts anew. [`Self::learn`] has no such costs.
    pub fn set_mix(&mut self, mut mix: Mix) {
        mix.fill(usize::MAX);
        self.mix = mix;
        self.rankings.stop();
        self.rankings.forget();
    }

    /// Measures fragmentation on this mix as soon as hosts are ranked by it for the 64 shapes of
    /// request that were asked for last; until then decisions, [`Self::mix`] and
    /// [`Self::fragmentation`] are by the mix before.
    ///
    /// This and each decision afterwards spend [`LEARN_UNITS`] on that, some 0.2 ms, so a mix is in
    /// force at once where little is to be ranked: few hosts, no shape yet, or a policy that
    /// measures nothing. Of mixes that come meanwhile the last one is learnt next: what is begun is
    /// finished, however often this is called.
    pub fn learn(&mut self, mix: Mix) {
        self.rankings.learn(mix, self.policy);
        self.go_on(self.step.0);
    }

    /// Whether a mix is being learnt that is not in force yet.
    pub fn is_learning(&self) -> bool {
        self.rankings.learnt().is_some()
    }

    /// Spends so much on learning with each decision from here on, instead of [`LEARN_UNITS`]; at
    /// least 1. With less, decisions are quicker and go by the mix before for longer.
    pub fn set_learn_step(&mut self, units: usize) {
        self.step = LearnStep(units.max(1));
    }

    /// The mix that is in force, or will be in the end.
    pub(super) fn newest_mix(&self) -> &Mix {
        self.rankings.learnt().unwrap_or(&self.mix)
    }

    /// Hosts, by key.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// GPUs, by key.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Grants, by key.
    pub fn grants(&self) -> impl Iterator<Item = (GrantKey, &Placement)> {
        self.grants.iter().map(|(grant, placement)| (*grant, placement))
    }

    /// Adds a host with GPUs of one kind and of these memories; the new host's key is the number of
    /// hosts before.
    ///
    /// # Errors
    /// If there are too many GPUs, one has no memory, an amount is too large to be counted, or the
    /// kind is no number of one. Nothing was added.
    pub fn add_host(
        &mut self,
        kind: u8,
        cpu_milli: u64,
        host_memory: u64,
        gpus: &[u64],
    ) -> Result<HostKey, ChangeError> {
        if kind >= KINDS_MAX {
            return Err(ChangeError::Kind { kind });
        }
        if gpus.len() > GPUS_OF_HOST_MAX {
            return Err(ChangeError::TooManyGpus { gpus: gpus.len() });
        }
        let mut amounts = gpus.iter().copied().chain([cpu_milli, host_memory]);
        let wrong = amounts.find(|amount| *amount > AMOUNT_MAX);
        if let Some(amount) = wrong.or_else(|| gpus.iter().copied().find(|memory| *memory == 0)) {
            return Err(ChangeError::Amount { amount });
        }
        let (host, first_gpu) = (HostKey(narrow(self.hosts.len())), narrow(self.gpus.len()));
        self.gpus.extend(gpus.iter().map(|capacity| Gpu {
            host,
            capacity: *capacity,
            held: 0,
            cgpus: 0,
            is_exclusive: false,
            is_in_service: true,
            generation: 0,
        }));
        let mut view = View::new(kind, cpu_milli, host_memory);
        view.gpus = gpus.len();
        let first_gpu = GpuKey(first_gpu);
        let host_of = Host { cpu_milli, host_memory, first_gpu, generation: 0, view, look: None };
        self.hosts.push(host_of);
        self.refresh(host.0 as usize);
        self.go_on(0);
        Ok(host)
    }

    /// Takes a GPU out of service or puts it back: cGPUs on it stay, new ones do not come.
    ///
    /// # Errors
    /// If there is no such GPU.
    pub fn set_in_service(&mut self, gpu: GpuKey, is: bool) -> Result<(), ChangeError> {
        let found = self.gpus.get_mut(gpu.0 as usize).ok_or(ChangeError::UnknownGpu { gpu })?;
        if found.is_in_service != is {
            found.is_in_service = is;
            found.generation += 1;
            let host = found.host.0 as usize;
            self.refresh(host);
        }
        Ok(())
    }

    /// Where a request would go now. Nothing is reserved: the answer is for [`Self::commit`].
    ///
    /// It ranks the hosts anew that changed since the shape of request was last asked for; twice,
    /// while a mix is learnt, for which [`LEARN_UNITS`] are spent besides. All hosts, and of those
    /// that look alike one, are ranked only where the shape was not asked for before, or as many
    /// hosts changed since as there are, or it was not among the last 64 when a mix was learnt. A
    /// request for room that is not there looks at all hosts to say how much there is.
    ///
    /// # Errors
    /// If there is no room for all of it, or it asks for nothing or for too much.
    pub fn place(&mut self, request: &Request) -> Result<Placement, PlaceError> {
        let mut undo = Undo::new();
        let placed = self.decide(request, &mut undo);
        self.undo(undo);
        self.go_on(self.step.0);
        placed
    }

    /// Where all of these would go together, in this order, each where the earlier leave room.
    ///
    /// Equal requests find room here whenever any choice has room for all: what a host has room for
    /// of a request does not depend on which of its GPUs took the earlier ones. Of others a choice
    /// may exist all the same: to find it is bin packing.
    ///
    /// # Errors
    /// The first that finds no room, by its place in the list, and why.
    pub fn place_all(
        &mut self,
        requests: &[Request],
    ) -> Result<Vec<Placement>, (usize, PlaceError)> {
        let mut undo = Undo::new();
        let numbered = requests.iter().enumerate();
        let placed = numbered
            .map(|(number, request)| {
                self.decide(request, &mut undo).map_err(|error| (number, error))
            })
            .collect();
        self.undo(undo);
        self.go_on(self.step.0);
        placed
    }

    /// Whether there would be room for all of a request if nobody had anything and all GPUs were in
    /// service.
    pub fn could_hold(&self, request: &Request) -> bool {
        let wanted = u64::from(request.cgpus);
        let fitting = |host: &Host, one: &Request| {
            let view = host.view.emptied(host.cpu_milli, host.host_memory);
            u64::from(view.fitting(one))
        };
        match request.locality {
            Locality::LocalTo(host) => {
                let found = self.hosts.get(host.0 as usize);
                found.is_some_and(|host| fitting(host, request) >= wanted)
            }
            Locality::Local => self.hosts.iter().any(|host| fitting(host, request) >= wanted),
            Locality::Remote => {
                let one = Request { cpu_milli: 0, host_memory: 0, ..*request };
                let mut sum = 0;
                self.hosts.iter().any(|host| {
                    sum += fitting(host, &one);
                    sum >= wanted
                })
            }
        }
    }

    /// Carries out a decision, if nothing that it rests on has changed since.
    ///
    /// # Errors
    /// If something did, or there is such a grant; nothing was changed then.
    pub fn commit(&mut self, grant: GrantKey, placement: Placement) -> Result<(), CommitError> {
        self.commit_all([(grant, placement)])
    }

    /// Carries out what [`Self::place_all`] decided: all or nothing, and as one change. The
    /// generation of a GPU or host rises once, however many of them take a part of it.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_all(
        &mut self,
        decided: impl IntoIterator<Item = (GrantKey, Placement)>,
    ) -> Result<(), CommitError> {
        let decided: Vec<_> = decided.into_iter().collect();
        self.check(&decided)?;
        for (_, placement) in &decided {
            for cgpu in &placement.cgpus {
                let gpu = &mut self.gpus[cgpu.gpu.0 as usize];
                gpu.held += cgpu.memory;
                gpu.cgpus += 1;
                gpu.is_exclusive = placement.mode == Mode::Exclusive;
            }
        }
        self.touch(decided.iter().map(|(_, placement)| placement), |view, on| {
            view.cpu_milli -= on.cpu_milli;
            view.host_memory -= on.host_memory;
        });
        self.grants.extend(decided);
        Ok(())
    }

    /// Takes a grant back; what it had can be given away again.
    ///
    /// # Errors
    /// If there is no such grant.
    pub fn release(&mut self, grant: GrantKey) -> Result<Placement, ChangeError> {
        let removed = self.grants.remove(&grant);
        let placement = removed.ok_or(ChangeError::UnknownGrant { grant })?;
        for cgpu in &placement.cgpus {
            let gpu = &mut self.gpus[cgpu.gpu.0 as usize];
            gpu.held -= cgpu.memory;
            gpu.cgpus -= 1;
            gpu.is_exclusive = false;
        }
        self.touch([&placement], |view, on| {
            view.cpu_milli += on.cpu_milli;
            view.host_memory += on.host_memory;
        });
        Ok(placement)
    }

    /// Expected fragmentation of all hosts on the mix, in memory: what is free and of no use to a
    /// request drawn from it. `None` without a mix.
    pub fn fragmentation(&self) -> Option<u64> {
        let parts: u64 = self.mix.classes().iter().map(|(_, part)| part).sum();
        let sum: u128 = self.hosts.iter().map(|host| u128::from(self.of(&host.view))).sum();
        u64::try_from(sum.checked_div(u128::from(parts))?).ok()
    }

    fn of(&self, view: &View) -> u64 {
        self.mix.fragmentation(view)
    }

    /// Decides and lets the views have it, so that the next decision sees it.
    fn decide(&mut self, request: &Request, undo: &mut Undo) -> Result<Placement, PlaceError> {
        let is_local = request.locality != Locality::Remote;
        if request.cgpus > CGPUS_MAX {
            return Err(PlaceError::TooMany { asked: request.cgpus });
        }
        let wants_host = request.cpu_milli > 0 || request.host_memory > 0;
        if request.cgpus == 0 && !(is_local && wants_host) {
            return Err(PlaceError::Nothing);
        }
        if request.memory == 0 && request.cgpus > 0 && !request.is_exclusive() {
            return Err(PlaceError::Memory);
        }
        let mut cgpus = Vec::new();
        if !is_local {
            let single = request.single();
            for found in 0..request.cgpus {
                let host = self.best(&single);
                let host = host.ok_or_else(|| no_room(request, found))?;
                self.occupy(host, &single, &mut cgpus, undo);
            }
            ensure_all(request, &cgpus)?;
            return Ok(Placement { cgpus, host: None, mode: request.mode });
        }
        let host = match request.locality {
            Locality::LocalTo(host) => {
                let found = self.hosts.get(host.0 as usize);
                let view = &found.ok_or(PlaceError::UnknownHost { host })?.view;
                self.policy.rank(view, request, &self.mix).map(|_| host.0)
            }
            Locality::Local | Locality::Remote => self.best(request),
        };
        let host = host.ok_or_else(|| no_room(request, self.fitting(request)))?;
        self.occupy(host, request, &mut cgpus, undo);
        ensure_all(request, &cgpus)?;
        let Request { cpu_milli, host_memory, .. } = *request;
        let generation = self.hosts[host as usize].generation;
        let on = OnHost { host: HostKey(host), cpu_milli, host_memory, generation };
        Ok(Placement { cgpus, host: Some(on), mode: request.mode })
    }

    /// The host that the policy likes best for the request.
    fn best(&mut self, request: &Request) -> Option<u32> {
        let Self { policy, mix, hosts, rankings, looks, .. } = self;
        rankings.best(request, Ground { hosts, looks, policy: *policy, mix })
    }

    /// Goes on with the mix that is being learnt, if there is one, until so much is spent.
    fn go_on(&mut self, units: usize) {
        let Self { policy, mix, hosts, rankings, looks, .. } = self;
        let ground = Ground { hosts, looks, policy: *policy, mix };
        if let Some(learnt) = rankings.go_on(units, ground) {
            *mix = learnt;
        }
    }

    /// A host is seen so from here on.
    fn see(&mut self, host: usize, view: View) {
        let found = &mut self.hosts[host];
        found.view = view;
        let before = core::mem::replace(&mut found.look, self.looks.enter(&view));
        self.looks.leave(before);
        self.rankings.changed(narrow(host), self.hosts.len());
    }

    /// How many cGPUs of a local request the best host has room for.
    fn fitting(&self, request: &Request) -> u32 {
        let fitting = |host: &Host| host.view.fitting(request);
        match request.locality {
            Locality::LocalTo(host) => self.hosts.get(host.0 as usize).map_or(0, fitting),
            Locality::Local | Locality::Remote => self.hosts.iter().map(fitting).max().unwrap_or(0),
        }
    }

    /// Lets a host that can take the request have it, in its view only.
    fn occupy(&mut self, host: u32, request: &Request, cgpus: &mut Vec<Assigned>, undo: &mut Undo) {
        let Host { view, first_gpu, .. } = &self.hosts[host as usize];
        let after = view.with(request, self.policy.pick(), &self.mix, |choice, memory| {
            let gpu = GpuKey(first_gpu.0 + narrow(choice.gpu));
            let generation = self.gpus[gpu.0 as usize].generation;
            cgpus.push(Assigned { gpu, memory, generation });
        });
        if let Some(after) = after {
            undo.entry(host).or_insert(*view);
            self.see(host as usize, after);
        }
    }

    fn undo(&mut self, undo: Undo) {
        for (host, view) in undo {
            self.see(host as usize, view);
        }
    }

    /// Whether all of this can be carried out together.
    fn check(&self, decided: &[(GrantKey, Placement)]) -> Result<(), CommitError> {
        let mut taken: BTreeMap<GpuKey, u64> = BTreeMap::new();
        let mut on_hosts: BTreeMap<HostKey, (u64, u64)> = BTreeMap::new();
        for (number, (grant, placement)) in decided.iter().enumerate() {
            let grant = *grant;
            if self.grants.contains_key(&grant)
                || decided[..number].iter().any(|(other, _)| *other == grant)
            {
                return Err(CommitError::Twice { grant });
            }
            for cgpu in &placement.cgpus {
                self.check_gpu(cgpu, placement.mode, taken.entry(cgpu.gpu).or_insert(0))?;
            }
            if let Some(on) = &placement.host {
                let sum = on_hosts.entry(on.host).or_insert((0, 0));
                *sum = (sum.0.saturating_add(on.cpu_milli), sum.1.saturating_add(on.host_memory));
                self.check_host(on, *sum, &placement.cgpus)?;
            }
        }
        Ok(())
    }

    fn check_gpu(&self, cgpu: &Assigned, mode: Mode, taken: &mut u64) -> Result<(), CommitError> {
        let &Assigned { gpu, memory, generation } = cgpu;
        let no_room = CommitError::NoRoom { gpu };
        let Some(found) = self.gpus.get(gpu.0 as usize) else { return Err(no_room) };
        if found.generation != generation {
            return Err(CommitError::GpuChanged { gpu });
        }
        let is_alone = found.cgpus == 0 && *taken == 0 && memory == found.capacity;
        *taken = taken.saturating_add(memory);
        let fits = memory > 0 && *taken <= found.room();
        if fits && (mode == Mode::Shared || is_alone) { Ok(()) } else { Err(no_room) }
    }

    fn check_host(
        &self,
        on: &OnHost,
        (cpu_milli, host_memory): (u64, u64),
        cgpus: &[Assigned],
    ) -> Result<(), CommitError> {
        let host = on.host;
        let no_room = CommitError::NoRoomOnHost { host };
        let Some(found) = self.hosts.get(host.0 as usize) else { return Err(no_room) };
        let takes = on.cpu_milli > 0 || on.host_memory > 0;
        if takes && found.generation != on.generation {
            return Err(CommitError::HostChanged { host });
        }
        let is_here = cgpus.iter().all(|cgpu| self.gpus[cgpu.gpu.0 as usize].host == host);
        let fits = cpu_milli <= found.view.cpu_milli && host_memory <= found.view.host_memory;
        if is_here && fits { Ok(()) } else { Err(no_room) }
    }

    /// What placements take has changed, as one change: generations rise, and views follow.
    fn touch<'a>(
        &mut self,
        placements: impl IntoIterator<Item = &'a Placement>,
        change: impl Fn(&mut View, &OnHost),
    ) {
        let mut gpus: Vec<GpuKey> = Vec::new();
        let (mut hosts, mut takes): (Vec<HostKey>, Vec<HostKey>) = (Vec::new(), Vec::new());
        for placement in placements {
            gpus.extend(placement.cgpus.iter().map(|cgpu| cgpu.gpu));
            let Some(on) = &placement.host else { continue };
            change(&mut self.hosts[on.host.0 as usize].view, on);
            hosts.push(on.host);
            if on.cpu_milli > 0 || on.host_memory > 0 {
                takes.push(on.host);
            }
        }
        gpus.sort_unstable();
        gpus.dedup();
        for gpu in gpus {
            let gpu = &mut self.gpus[gpu.0 as usize];
            gpu.generation += 1;
            hosts.push(gpu.host);
        }
        takes.sort_unstable();
        takes.dedup();
        takes.into_iter().for_each(|host| self.hosts[host.0 as usize].generation += 1);
        hosts.sort_unstable();
        hosts.dedup();
        hosts.into_iter().for_each(|host| self.refresh(host.0 as usize));
    }

    /// A host's view follows its GPUs.
    pub(super) fn refresh(&mut self, host: usize) {
        let Some(found) = self.hosts.get(host) else { return };
        let first = found.first_gpu.0 as usize;
        let mut view = View::new(found.view.kind, found.view.cpu_milli, found.view.host_memory);
        for gpu in &self.gpus[first..first + found.view.gpus] {
            view.push(gpu.room(), gpu.capacity);
        }
        self.see(host, view);
    }
}

/// A host that was ranked for what it has not is a fault, and nobody gets less than was asked for.
fn ensure_all(request: &Request, cgpus: &[Assigned]) -> Result<(), PlaceError> {
    let found = u32::try_from(cgpus.len()).unwrap_or(u32::MAX);
    debug_assert_eq!(found, request.cgpus, "a rank was stale");
    if found == request.cgpus { Ok(()) } else { Err(no_room(request, found)) }
}

fn no_room(request: &Request, found: u32) -> PlaceError {
    PlaceError::NoRoom { asked: request.cgpus, found, memory: request.memory }
}

/// Keys are below 2³²: a host takes more than a hundred bytes.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
