//! What a decision costs among 100,000 GPUs. The one part here that is real time on this machine.

use std::time::Instant;

use weft_sched::placement::{
    Assigned, Cluster, GrantKey, LEARN_EVERY, Mode, NAMES, Observed, Placement, PolicyId, Request,
    by_name,
};

use super::Setup;
use super::trace::{GPU_MILLI, synthetic};
use crate::outcome::{Outcome, PlotKind};
use crate::random::Random;

/// GPUs of each host.
const GPUS_OF_HOST: usize = 8;
/// Allocated when time is taken, in percent.
const FULL: u64 = 85;
/// GPUs of mixed hosts, in MiB as drivers report them: hardly two remainders are equal.
const SIZES_MIB: [u64; 4] = [15_109, 24_563, 46_067, 81_251];
/// How many memories each kind of request is asked for with on mixed hosts.
const MEMORIES: u64 = 16;

/// What GPUs decisions are timed among.
struct Size {
    gpus: usize,
    /// How figures of it end.
    name: &'static str,
    /// Hosts have GPUs of several sizes, and requests odd memories.
    is_mixed: bool,
}

const SIZES: [Size; 4] = [
    Size { gpus: 1_000, name: "1k", is_mixed: false },
    Size { gpus: 10_000, name: "10k", is_mixed: false },
    Size { gpus: 100_000, name: "100k", is_mixed: false },
    Size { gpus: 100_000, name: "100k", is_mixed: true },
];

/// Times in ms, sorted.
struct Times(Vec<f64>);

impl Times {
    fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    fn at(&self, permille: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * permille / 1_000).copied().unwrap_or(0.0)
    }
}

pub(super) fn speed(setup: &Setup) -> Outcome {
    let decisions = if setup.quick { 300 } else { 5_000 };
    let window = format!(
        "{decisions} decisions with their commits, one grant released before each, {FULL} % of the \
         GPUs allocated, the mix learnt anew with each {LEARN_EVERY}th; real time, one thread"
    );
    let mut outcome = Outcome::new("speed", "Cost of a decision", window);
    let mut lines = vec![Vec::new(); NAMES.len()];
    for size in SIZES.iter().filter(|size| !setup.quick || size.name != "10k") {
        let slowest = of_size(&mut outcome, size, decisions, setup.seed);
        if !size.is_mixed {
            let points = lines.iter_mut().zip(slowest);
            points.for_each(|(line, p99)| line.push((size.gpus as f64, p99)));
        }
    }
    let plot = outcome.plot(PlotKind::LogLines, "99 of 100 decisions take less", "GPUs", "ms");
    for (line, name) in lines.into_iter().zip(NAMES) {
        plot.series(*name, line);
    }
    outcome.note(
        "`decision_ms_100k` is the 99th percentile of the slowest policy, `max` the longest, and \
         `longest` that of all policies, with first decisions. As in the control plane requests \
         are counted and the mix is made of them again and again: the decision with which that is \
         done is among the others (alone: `learning`), and so are those that make a part of the \
         ranks by a new mix, `learning_share` of all; until those are all there, decisions are by \
         the mix before. `first` is the first decision for a shape, when hosts are ranked for it \
         that nothing is known of; `75_remote` a request for 75 shared cGPUs on any hosts. \
         `rebuild` is all hosts and grants entered into an empty cluster, as after a restart, \
         without reading them from a store.",
    );
    outcome.note(
        "`_mixed` are hosts that have GPUs of several sizes each, and requests for odd memories, \
         so that hardly two hosts are left with the same: what is known of one says nothing of \
         another. `first_max` is the longest first decision; with it hosts are sorted.",
    );
    outcome
}

/// Adds the figures; the 99th percentile of each policy.
fn of_size(outcome: &mut Outcome, size: &Size, decisions: u32, seed: u64) -> Vec<f64> {
    let Size { name: size_name, is_mixed, .. } = size;
    let (full, shapes) = filled(size, seed);
    let ending = if *is_mixed { "_mixed" } else { "" };
    let mut figure = |name: &str, policy: &str, value| {
        outcome.figure(format!("{name}_{size_name}{policy}{ending}"), value);
    };
    figure("rebuild_ms", "", rebuilt_ms(&full));
    let (mut slowest, mut longest) = (Vec::new(), 0.0_f64);
    for name in NAMES {
        let Timed { first, later: times, learning, many, busy } =
            timed(&full, &shapes, name, decisions, seed);
        let of = &format!("_{name}");
        figure("learning_share", of, busy);
        figure("decision_ms_learning", of, learning.at(500));
        figure("decision_ms_p50", of, times.at(500));
        figure("decision_ms_p99", of, times.at(990));
        figure("decision_ms_max", of, times.at(1_000));
        figure("decision_ms_first", of, first.at(500));
        figure("decision_ms_first_max", of, first.at(1_000));
        figure("decision_ms_75_remote", of, many.at(500));
        longest = longest.max(times.at(1_000)).max(first.at(1_000));
        slowest.push(times.at(990));
    }
    figure("decision_ms", "", slowest.iter().copied().fold(0.0, f64::max));
    figure("decision_ms_longest", "", longest);
    slowest
}

/// A cluster of that size that is mostly allocated, and shapes of requests.
fn filled(size: &Size, seed: u64) -> (Cluster, Vec<Request>) {
    let (mut requests, mut random) = (synthetic(400, seed).requests, Random::part(seed, 26));
    if size.is_mixed {
        requests.iter_mut().for_each(|request| request.memory = odd(request, &mut random));
    }
    let mut seen = Observed::default();
    requests.iter().for_each(|request| seen.record(request));
    let mut cluster = Cluster::new(by_name("best_fit").expect("a name of the registry"));
    for _ in 0..size.gpus / GPUS_OF_HOST {
        let memory = |_| if size.is_mixed { size_mib(&mut random) } else { GPU_MILLI };
        let gpus: [u64; GPUS_OF_HOST] = std::array::from_fn(memory);
        // A mixed host's GPUs have room for more VMs.
        let (cpu_milli, host_memory) =
            if size.is_mixed { (384_000, 1_572_864) } else { (192_000, 786_432) };
        cluster.add_host(0, cpu_milli, host_memory, &gpus).expect("a plain host");
    }
    cluster.set_mix(seen.mix(100));
    let capacity: u64 = cluster.gpus().iter().map(|gpu| gpu.capacity).sum();
    let (mut allocated, mut grant, mut refused) = (0, 0, 0);
    while allocated < capacity * FULL / 100 {
        let mut request = drawn(&mut random, &requests);
        if size.is_mixed && request.mode == Mode::Shared {
            // Many others were there before.
            request.memory += random.below(1_024);
        }
        let Ok(placement) = cluster.place(&request) else {
            refused += 1;
            assert!(refused < 10_000, "hosts with processors and memory for all their GPUs");
            continue;
        };
        allocated += placement.cgpus.iter().map(|cgpu| cgpu.memory).sum::<u64>();
        cluster.commit(GrantKey(grant), placement).expect("nobody else asks");
        grant += 1;
    }
    (cluster, requests)
}

/// What a request of the trace asks for on mixed hosts: of a part of a GPU some memory in MiB, of
/// whole ones any, and of a single one now and then a larger one.
fn odd(request: &Request, random: &mut Random) -> u64 {
    match request.mode {
        Mode::Shared => request.memory * SIZES_MIB[1] / GPU_MILLI + 61 * random.below(MEMORIES),
        Mode::Exclusive if request.cgpus == 1 => size_mib(random).min(SIZES_MIB[2]),
        Mode::Exclusive => SIZES_MIB[0].min(request.memory * SIZES_MIB[0]),
    }
}

fn size_mib(random: &mut Random) -> u64 {
    SIZES_MIB[usize::try_from(random.below(SIZES_MIB.len() as u64)).unwrap_or_default()]
}

fn drawn(random: &mut Random, of: &[Request]) -> Request {
    of[usize::try_from(random.below(of.len() as u64)).unwrap_or_default()]
}

/// A copy that is made as the control plane makes its view: all hosts and grants entered anew.
fn rebuilt_ms(full: &Cluster) -> f64 {
    let grants: Vec<(GrantKey, Placement)> =
        full.grants().map(|(grant, placement)| (grant, placement.clone())).collect();
    let began = Instant::now();
    let mut cluster = Cluster::new(PolicyId::default());
    cluster.set_mix(full.mix().clone());
    for host in full.hosts() {
        let memories = host.gpus().map(|gpu| full.gpus()[gpu.0 as usize].capacity);
        let memories: Vec<u64> = memories.collect();
        let added = cluster.add_host(host.kind(), host.cpu_milli, host.host_memory, &memories);
        added.expect("it was added before");
    }
    for (grant, Placement { cgpus, host, mode }) in grants {
        // What was decided rested on generations that are others here.
        let renewed = cgpus.into_iter().map(|cgpu| {
            let generation = cluster.gpus()[cgpu.gpu.0 as usize].generation;
            Assigned { generation, ..cgpu }
        });
        let cgpus = renewed.collect();
        let host = host.map(|mut on| {
            on.generation = cluster.hosts()[on.host.0 as usize].generation;
            on
        });
        cluster.commit(grant, Placement { cgpus, host, mode }).expect("it was there before");
    }
    began.elapsed().as_secs_f64() * 1_000.0
}

/// What decisions took, in ms.
struct Timed {
    /// The first for each shape of request.
    first: Times,
    /// All others, also those after which the mix was learnt anew.
    later: Times,
    /// Those alone.
    learning: Times,
    /// For many cGPUs.
    many: Times,
    /// Of all but those, the part with which a mix was being learnt.
    busy: f64,
}

/// Decides as the control plane does, with its counting of what was asked for.
fn timed(full: &Cluster, shapes: &[Request], policy: &str, decisions: u32, seed: u64) -> Timed {
    let mut cluster = full.clone();
    cluster.set_policy(by_name(policy).expect("a name of the registry"));
    let mut random = Random::part(seed, 27);
    let mut grants: Vec<GrantKey> = cluster.grants().map(|(grant, _)| grant).collect();
    let mut next = grants.last().map_or(0, |grant| grant.0 + 1);
    let (mut first, mut later) = (Vec::new(), Vec::new());
    let (mut learning, mut many, mut busy) = (Vec::new(), Vec::new(), 0_u32);
    let (mut known, mut seen) = (Vec::new(), Observed::default());
    shapes.iter().for_each(|request| seen.record(request));
    while later.len() < decisions as usize {
        let at = random.below(grants.len() as u64);
        let gone = grants.swap_remove(usize::try_from(at).unwrap_or_default());
        cluster.release(gone).expect("it is there");
        let request = drawn(&mut random, shapes);
        busy += u32::from(cluster.is_learning());
        let began = Instant::now();
        let placed = cluster.place(&request).ok();
        let is_given = placed.is_some_and(|one| cluster.commit(GrantKey(next), one).is_ok());
        let mix = seen.learn(&request);
        let is_learning = mix.is_some();
        if let Some(mix) = mix {
            cluster.learn(mix);
        }
        let took_ms = began.elapsed().as_secs_f64() * 1_000.0;
        if is_given {
            grants.push(GrantKey(next));
            next += 1;
        }
        if is_learning {
            learning.push(took_ms);
        }
        if known.contains(&request) {
            later.push(took_ms);
        } else {
            known.push(request);
            first.push(took_ms);
        }
    }
    let busy = f64::from(busy) / (first.len() + later.len()) as f64;
    let least = cluster.gpus().iter().map(|gpu| gpu.capacity).min().unwrap_or(GPU_MILLI);
    let request = Request::new(75, least / 20, Mode::Shared);
    for _ in 0..9 {
        let began = Instant::now();
        let placed = cluster.place(&request);
        many.push(began.elapsed().as_secs_f64() * 1_000.0);
        assert!(placed.is_ok(), "a cluster with room for 75 small cGPUs");
    }
    let [first, later, learning, many] = [first, later, learning, many].map(Times::new);
    Timed { first, later, learning, many, busy }
}
