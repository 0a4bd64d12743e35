//! Random histories of a cluster, held against a book of grants after every step and, decision by
//! decision, against a reference that looks at every host anew and works fragmentation out from its
//! definition.

use proptest::prelude::*;
use weft_sched::codec::{Codec, Reader};
use weft_sched::placement::invariants::Audit;
use weft_sched::placement::{
    Cluster, GpuKey, GrantKey, HostKey, Kinds, Locality, Mix, Mode, NAMES, Placement, Request,
    by_name,
};

/// A host as the reference sees it: kind, processors, main memory, and room and capacity of GPUs.
#[derive(Clone)]
struct Plain {
    kind: u8,
    cpu_milli: u64,
    host_memory: u64,
    gpus: Vec<(u64, u64)>,
}

fn plain(cluster: &Cluster) -> Vec<Plain> {
    let of = |host: &weft_sched::placement::Host| Plain {
        kind: host.kind(),
        cpu_milli: host.cpu_milli_free(),
        host_memory: host.host_memory_free(),
        gpus: host
            .gpus()
            .map(|gpu| &cluster.gpus()[gpu.0 as usize])
            .map(|gpu| (gpu.room(), gpu.capacity))
            .collect(),
    };
    cluster.hosts().iter().map(of).collect()
}

/// cGPUs of a request that fit on a host, and which GPUs are of use to it.
fn fits(host: &Plain, request: &Request) -> (u64, Vec<bool>) {
    let useful = |&(room, capacity): &(u64, u64)| match request.mode {
        Mode::Exclusive => u64::from(room == capacity && capacity >= request.memory),
        Mode::Shared => room / request.memory,
    };
    let counts: Vec<u64> = host.gpus.iter().map(useful).collect();
    (counts.iter().sum(), counts.iter().map(|count| *count > 0).collect())
}

/// Of one host, in memory times parts.
fn fragmentation(host: &Plain, mix: &[(Request, u64)]) -> u64 {
    let all: u64 = host.gpus.iter().map(|gpu| gpu.0).sum();
    let of = |(request, part): &(Request, u64)| {
        if request.cgpus == 0
            || !request.kinds.has(host.kind)
            || host.cpu_milli < request.cpu_milli
            || fits(host, request).0 < u64::from(request.cgpus)
        {
            return part * all;
        }
        let useful = fits(host, request).1;
        let useless = host.gpus.iter().zip(useful).filter(|(_, is_useful)| !is_useful);
        part * useless.map(|(gpu, _)| gpu.0).sum::<u64>()
    };
    mix.iter().map(of).sum()
}

/// The GPU of a host that takes one more shared cGPU.
fn pick(policy: &str, host: &Plain, memory: u64, mix: &[(Request, u64)]) -> usize {
    let with_room = (0..host.gpus.len()).filter(|gpu| host.gpus[*gpu].0 >= memory);
    let key = |gpu: &usize| {
        let (room, capacity) = host.gpus[*gpu];
        match policy {
            "first_fit" => (0, 0, 0),
            "least_load" => (u64::MAX - room, 0, 0),
            "best_fit" | "host_fit" => (room, 0, 0),
            "fragmentation" | "gradient" => {
                let mut after = host.clone();
                after.gpus[*gpu].0 -= memory;
                (fragmentation(&after, mix), after.gpus[*gpu].0, capacity)
            }
            other => panic!("no reference for {other}: write one"),
        }
    };
    with_room.min_by_key(key).expect("the caller looked for room")
}

/// A host after it took a request, with the GPUs and memories taken.
fn with(
    policy: &str,
    host: &Plain,
    request: &Request,
    mix: &[(Request, u64)],
) -> Option<(Plain, Vec<(usize, u64)>)> {
    let mut after = host.clone();
    after.cpu_milli = after.cpu_milli.checked_sub(request.cpu_milli)?;
    after.host_memory = after.host_memory.checked_sub(request.host_memory)?;
    let (mut taken, is_of_kind) = (Vec::new(), request.kinds.has(host.kind));
    for _ in 0..request.cgpus {
        if !is_of_kind || fits(&after, request).0 == 0 {
            return None;
        }
        let (gpu, memory) = match request.mode {
            Mode::Shared => (pick(policy, &after, request.memory, mix), request.memory),
            Mode::Exclusive => {
                let useful = fits(&after, request).1;
                let empty = (0..useful.len()).filter(|gpu| useful[*gpu]);
                let gpu = empty.min_by_key(|gpu| after.gpus[*gpu].1).expect("one fits");
                (gpu, after.gpus[gpu].1)
            }
        };
        after.gpus[gpu].0 -= memory;
        taken.push((gpu, memory));
    }
    Some((after, taken))
}

fn sum(host: &Plain) -> i128 {
    host.gpus.iter().map(|gpu| i128::from(gpu.0)).sum()
}

/// How good it is to give a host the request, the least first.
fn rank(
    policy: &str,
    before: &Plain,
    (after, taken): &(Plain, Vec<(usize, u64)>),
    mix: &[(Request, u64)],
) -> (i128, i128) {
    let first = taken.first().map(|(gpu, _)| *gpu);
    let left = first.map(|gpu| i128::from(after.gpus[gpu].0));
    match policy {
        "first_fit" => (0, 0),
        "least_load" => (-first.map_or(0, |gpu| i128::from(before.gpus[gpu].0)), -sum(before)),
        "best_fit" => (left.unwrap_or(0), sum(after)),
        "host_fit" => {
            let largest = after.gpus.iter().map(|gpu| gpu.1).max().unwrap_or(1);
            let gpu = sum(after) * 500_000 / (8 * i128::from(largest));
            (i128::from(after.cpu_milli) * 500_000 / 128_000 + gpu, 0)
        }
        "fragmentation" | "gradient" => {
            let growth =
                i128::from(fragmentation(after, mix)) - i128::from(fragmentation(before, mix));
            if policy == "fragmentation" {
                return (growth.max(0), sum(after));
            }
            (growth, left.unwrap_or_else(|| i128::from(after.cpu_milli)))
        }
        other => panic!("no reference for {other}: write one"),
    }
}

/// Host, GPU and memory of each cGPU, by looking at everything.
fn reference(cluster: &Cluster, request: &Request) -> Option<Vec<(usize, usize, u64)>> {
    let policy = cluster.policy().name();
    let mix = cluster.mix().classes();
    let mut hosts = plain(cluster);
    let (steps, one) = match request.locality {
        Locality::Remote => {
            let locality = Locality::Local;
            (
                request.cgpus,
                Request { cgpus: 1, locality, cpu_milli: 0, host_memory: 0, ..*request },
            )
        }
        Locality::Local | Locality::LocalTo(_) => (1, *request),
    };
    let mut all = Vec::new();
    for _ in 0..steps {
        let may = |host: usize| match one.locality {
            Locality::LocalTo(only) => only.0 as usize == host,
            Locality::Local | Locality::Remote => true,
        };
        let possible = (0..hosts.len()).filter(|host| may(*host));
        let possible = possible.filter_map(|at| {
            let found = with(policy, &hosts[at], &one, mix)?;
            Some((rank(policy, &hosts[at], &found, mix), at, found))
        });
        let (_, at, (after, taken)) = possible.min_by_key(|(rank, at, _)| (*rank, *at))?;
        hosts[at] = after;
        all.extend(taken.into_iter().map(|(gpu, memory)| (at, gpu, memory)));
    }
    Some(all)
}

/// How many requests like this one have room together, whoever chooses: it takes only GPUs.
fn most(cluster: &Cluster, request: &Request) -> u64 {
    let hosts = plain(cluster);
    let of = |host: &Plain| if request.kinds.has(host.kind) { fits(host, request).0 } else { 0 };
    let cgpus = u64::from(request.cgpus);
    match request.locality {
        Locality::Remote => hosts.iter().map(of).sum::<u64>() / cgpus,
        Locality::Local => hosts.iter().map(|host| of(host) / cgpus).sum(),
        Locality::LocalTo(only) => hosts.get(only.0 as usize).map_or(0, |host| of(host) / cgpus),
    }
}

fn flat(cluster: &Cluster, placement: &Placement) -> Vec<(usize, usize, u64)> {
    let of = |cgpu: &weft_sched::placement::Assigned| {
        let host = cluster.gpus()[cgpu.gpu.0 as usize].host;
        let first = cluster.hosts()[host.0 as usize].first_gpu;
        (host.0 as usize, (cgpu.gpu.0 - first.0) as usize, cgpu.memory)
    };
    placement.cgpus.iter().map(of).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Give(Request),
    GiveAll(Vec<Request>),
    /// Decide, let another request in between, and commit.
    Late(Request, Request),
    Release(usize),
    Service(usize, bool),
    Learn(Vec<(Request, u64)>),
    Policy(usize),
    Restart,
}

fn request() -> impl Strategy<Value = Request> {
    let mode = prop::sample::select(vec![Mode::Exclusive, Mode::Shared]);
    let locality = prop_oneof![
        Just(Locality::Local),
        Just(Locality::Remote),
        (0u32..4).prop_map(|host| Locality::LocalTo(HostKey(host))),
    ];
    let kinds = prop_oneof![3 => Just(Kinds::ANY), 1 => (0u8..2).prop_map(Kinds::one)];
    let host = (0u64..5, 0u64..3);
    (1u32..4, 1u64..6, mode, locality, kinds, host).prop_map(
        |(cgpus, memory, mode, locality, kinds, (cpu_milli, host_memory))| {
            let cgpus = if locality == Locality::Local && cpu_milli == 4 { 0 } else { cgpus };
            Request { cgpus, memory, mode, locality, kinds, cpu_milli, host_memory }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let mix = || prop::collection::vec((request(), 1u64..9), 0..6);
    prop_oneof![
        8 => request().prop_map(Step::Give),
        2 => prop::collection::vec(request(), 1..4).prop_map(Step::GiveAll),
        2 => (request(), request()).prop_map(|(one, other)| Step::Late(one, other)),
        4 => any::<usize>().prop_map(Step::Release),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(gpu, is)| Step::Service(gpu, is)),
        2 => mix().prop_map(Step::Learn),
        1 => (0..NAMES.len()).prop_map(Step::Policy),
        1 => Just(Step::Restart),
    ]
}

/// A cluster with the book of its grants.
struct Model {
    cluster: Cluster,
    audit: Audit,
    next: u64,
    /// What a decision spends on a mix that is being learnt.
    units: usize,
    /// The mix that was wanted last.
    wanted: Mix,
}

impl Model {
    fn new(mut cluster: Cluster, units: usize) -> Self {
        cluster.set_learn_step(units);
        Self { cluster, audit: Audit::default(), next: 0, units, wanted: Mix::default() }
    }

    fn learn(&mut self, counts: &[(Request, u64)]) {
        self.wanted = Mix::new(counts);
        self.cluster.learn(self.wanted.clone());
    }

    /// Decides until the mix is in force that was wanted last.
    fn learn_to_the_end(&mut self) {
        for _ in 0..10_000 {
            if !self.cluster.is_learning() {
                break;
            }
            self.give(&Request::new(1, 1, Mode::Shared));
        }
        assert_eq!(self.cluster.mix().classes(), self.wanted.classes());
    }

    fn give(&mut self, request: &Request) {
        let expected = reference(&self.cluster, request);
        let before = plain(&self.cluster).len();
        match self.cluster.place(request) {
            Ok(placement) => {
                assert_eq!(Some(flat(&self.cluster, &placement)), expected, "{request:?}");
                self.commit(request, placement);
            }
            Err(_) => assert_eq!(expected, None, "{request:?} has room"),
        }
        assert_eq!(plain(&self.cluster).len(), before);
    }

    fn commit(&mut self, request: &Request, placement: Placement) {
        self.next += 1;
        let grant = GrantKey(self.next);
        self.audit
            .committed(&self.cluster, grant, request, &placement)
            .expect("it is what was asked for");
        self.cluster.commit(grant, placement).expect("it is what was asked for");
    }

    fn give_all(&mut self, requests: &[Request]) {
        let Ok(placements) = self.cluster.place_all(requests) else { return };
        let grants: Vec<GrantKey> =
            (1..=requests.len() as u64).map(|number| GrantKey(self.next + number)).collect();
        self.next += requests.len() as u64;
        for ((grant, request), placement) in grants.iter().zip(requests).zip(&placements) {
            self.audit
                .committed(&self.cluster, *grant, request, placement)
                .expect("it is what was asked for");
        }
        self.cluster.commit_all(grants.into_iter().zip(placements)).expect("nothing changed");
    }

    fn late(&mut self, one: &Request, other: &Request) {
        let Ok(placement) = self.cluster.place(one) else { return };
        self.give(other);
        self.next += 1;
        let (grant, before) = (GrantKey(self.next), self.cluster.gpus().to_vec());
        let is_stale = placement
            .cgpus
            .iter()
            .any(|cgpu| self.cluster.gpus()[cgpu.gpu.0 as usize].generation != cgpu.generation);
        match self.cluster.commit(grant, placement.clone()) {
            Ok(()) => {
                assert!(!is_stale, "committed what rests on an old generation");
                self.audit
                    .committed(&self.cluster, grant, one, &placement)
                    .expect("it is what was asked for");
            }
            Err(_) => assert_eq!(self.cluster.gpus(), before, "refused and changed"),
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Give(request) => self.give(request),
            Step::GiveAll(requests) => self.give_all(requests),
            Step::Late(one, other) => self.late(one, other),
            Step::Release(number) => {
                let count = self.audit.grants().count().max(1);
                let found = self.audit.grants().nth(number % count).map(|(grant, _)| *grant);
                if let Some(grant) = found {
                    self.cluster.release(grant).expect("it is there");
                    self.audit.released(grant);
                }
            }
            Step::Service(gpu, is) => {
                let gpu = gpu % self.cluster.gpus().len();
                self.cluster
                    .set_in_service(GpuKey(u32::try_from(gpu).expect("few")), *is)
                    .expect("it is there");
            }
            Step::Learn(counts) => self.learn(counts),
            Step::Policy(number) => {
                self.cluster.set_policy(by_name(NAMES[*number]).expect("a name"));
            }
            Step::Restart => self.restart(),
        }
        self.audit.check(&self.cluster).expect("the book is right");
        let mix = self.cluster.mix().classes();
        let parts: u64 = mix.iter().map(|(_, part)| part).sum();
        let sum: u64 = plain(&self.cluster).iter().map(|host| fragmentation(host, mix)).sum();
        assert_eq!(self.cluster.fragmentation(), sum.checked_div(parts));
    }

    fn restart(&mut self) {
        let mut bytes = Vec::new();
        self.cluster.put(&mut bytes);
        let mut input = Reader::new(&bytes);
        let back = Cluster::take(&mut input).expect("it was just written");
        assert_eq!((input.left(), back.gpus()), (0, self.cluster.gpus()));
        let mut again = Vec::new();
        back.put(&mut again);
        assert_eq!(bytes, again);
        self.cluster = back;
        self.cluster.set_learn_step(self.units);
    }
}

fn cluster(policy: usize, hosts: &[(u8, u64, Vec<u64>)]) -> Cluster {
    let mut cluster = Cluster::new(by_name(NAMES[policy]).expect("a name"));
    for (kind, cpu_milli, gpus) in hosts {
        cluster.add_host(*kind, *cpu_milli, 9, gpus).expect("amounts are small");
    }
    cluster
}

fn hosts() -> impl Strategy<Value = Vec<(u8, u64, Vec<u64>)>> {
    let host = (0u8..2, 2u64..20, prop::collection::vec(3u64..17, 1..5));
    prop::collection::vec(host, 1..5)
}

proptest! {
    #[test]
    fn every_policy_decides_as_the_reference_and_keeps_the_book(
        policy in 0..NAMES.len(),
        hosts in hosts(),
        mix in prop::collection::vec((request(), 1u64..9), 0..6),
        units in 1usize..100,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut model = Model::new(cluster(policy, &hosts), units);
        model.learn(&mix);
        steps.iter().for_each(|step| model.take(step));
        model.learn_to_the_end();
        let grants: Vec<GrantKey> = model.audit.grants().map(|(grant, _)| *grant).collect();
        for grant in grants {
            model.cluster.release(grant).unwrap();
            model.audit.released(grant);
        }
        model.audit.check(&model.cluster).unwrap();
        prop_assert!(model.cluster.gpus().iter().all(|gpu| gpu.held == 0 && gpu.cgpus == 0));
    }

    #[test]
    fn equal_requests_are_refused_only_where_no_choice_has_room_for_all(
        policy in 0..NAMES.len(),
        hosts in hosts(),
        steps in prop::collection::vec(step(), 0..20),
        request in request(),
        count in 1usize..12,
    ) {
        let cluster = cluster(policy, &hosts);
        let mut model = Model::new(cluster, 8_192);
        steps.iter().for_each(|step| model.take(step));
        let cgpus = request.cgpus.max(1);
        let asked = vec![Request { cgpus, cpu_milli: 0, host_memory: 0, ..request }; count];
        let (most, before) = (most(&model.cluster, &asked[0]), model.cluster.gpus().to_vec());
        let fitting = match model.cluster.place_all(&asked) {
            Ok(all) => all.len(),
            Err((fitting, _)) => fitting,
        };
        prop_assert_eq!(fitting as u64, most.min(count as u64));
        prop_assert_eq!(model.cluster.gpus(), &before[..], "deciding changes nothing");
        model.give_all(&asked);
        model.audit.check(&model.cluster).expect("the book is right");
        let changes = before.iter().zip(model.cluster.gpus());
        let mut changes = changes.map(|(before, after)| after.generation - before.generation);
        prop_assert!(changes.all(|changes| changes <= 1), "all of them are one change");
    }

    #[test]
    fn damaged_snapshots_are_refused_or_sound(
        hosts in hosts(),
        steps in prop::collection::vec(request().prop_map(Step::Give), 1..10),
        at: usize,
        byte: u8,
    ) {
        let mut model = Model::new(cluster(0, &hosts), 1);
        steps.iter().for_each(|step| model.take(step));
        let mut bytes = Vec::new();
        model.cluster.put(&mut bytes);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(cluster) = Cluster::take(&mut Reader::new(&bytes)) {
            prop_assert!(cluster.gpus().iter().all(|gpu| gpu.held <= gpu.capacity));
        }
    }
}

/// The checks find what they are for: a book that lacks a grant, and a placement nobody asked for.
#[test]
fn the_book_finds_what_is_wrong() {
    let mut cluster = cluster(0, &[(0, 10, vec![8, 8])]);
    let request = Request::new(1, 4, Mode::Shared);
    let placement = cluster.place(&request).unwrap();
    let mut audit = Audit::default();
    let other = Request { memory: 5, ..request };
    audit.committed(&cluster, GrantKey(1), &other, &placement).expect_err("nobody asked for that");
    audit
        .committed(&cluster, GrantKey(1), &request.local(), &placement)
        .expect_err("nobody asked for that");
    audit.committed(&cluster, GrantKey(1), &request, &placement).unwrap();
    audit.check(&cluster).expect_err("the cluster does not have it yet");
    cluster.commit(GrantKey(1), placement).unwrap();
    audit.check(&cluster).unwrap();
    audit.released(GrantKey(1));
    audit.check(&cluster).expect_err("the cluster still has it");
}
