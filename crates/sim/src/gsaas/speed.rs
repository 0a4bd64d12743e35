//! What a decision costs among 100,000 GPUs. The one part here that is real time on this machine.

use std::time::Instant;

use weft_sched::placement::{
    Assigned, Cluster, GrantKey, LEARN_EVERY, Mode, NAMES, Observed, Placement, PolicyId, Request,
    by_name,
};

use super::Setup;
use super::trace::{GPU_MILLI, asked, synthetic};
use crate::outcome::{Outcome, PlotKind};
use crate::random::Random;

/// GPUs of each host.
const GPUS_OF_HOST: usize = 8;
/// Allocated when time is taken, in percent.
const FULL: u64 = 85;

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
    let sizes: &[(usize, &str)] = if setup.quick {
        &[(1_000, "1k"), (100_000, "100k")]
    } else {
        &[(1_000, "1k"), (10_000, "10k"), (100_000, "100k")]
    };
    let decisions = if setup.quick { 300 } else { 5_000 };
    let window = format!(
        "{decisions} decisions with their commits, one grant released before each, {FULL} % of the \
         GPUs allocated, the mix learnt anew with each {LEARN_EVERY}th; real time, one thread"
    );
    let mut outcome = Outcome::new("speed", "Cost of a decision", window);
    let mut lines = vec![Vec::new(); NAMES.len()];
    for (gpus, size) in sizes {
        let (full, shapes) = filled(gpus / GPUS_OF_HOST, setup.seed);
        outcome.figure(format!("rebuild_ms_{size}"), rebuilt_ms(&full));
        let (mut worst, mut longest) = (0.0_f64, 0.0_f64);
        for (line, name) in lines.iter_mut().zip(NAMES) {
            let Timed { first, later: times, learning, many, busy } =
                timed(&full, &shapes, name, decisions, setup.seed);
            outcome.figure(format!("learning_share_{size}_{name}"), busy);
            outcome.figure(format!("decision_ms_learning_{size}_{name}"), learning.at(500));
            outcome.figure(format!("decision_ms_p50_{size}_{name}"), times.at(500));
            outcome.figure(format!("decision_ms_p99_{size}_{name}"), times.at(990));
            outcome.figure(format!("decision_ms_max_{size}_{name}"), times.at(1_000));
            outcome.figure(format!("decision_ms_first_{size}_{name}"), first.at(500));
            outcome.figure(format!("decision_ms_75_remote_{size}_{name}"), many.at(500));
            worst = worst.max(times.at(990));
            longest = longest.max(times.at(1_000)).max(first.at(1_000));
            line.push((*gpus as f64, times.at(990)));
        }
        outcome.figure(format!("decision_ms_{size}"), worst);
        outcome.figure(format!("decision_ms_longest_{size}"), longest);
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
         the mix before. `first` is the first decision for a shape, when all hosts are ranked for \
         it; `75_remote` a request for 75 shared cGPUs on any hosts. `rebuild` is all hosts and \
         grants entered into an empty cluster, as after a restart, without reading them from a \
         store.",
    );
    outcome
}

/// A cluster with so many hosts that is mostly allocated, and shapes of requests.
fn filled(hosts: usize, seed: u64) -> (Cluster, Vec<Request>) {
    let trace = synthetic(400, seed);
    let mut seen = Observed::default();
    trace.requests.iter().for_each(|request| seen.record(request));
    let mut cluster = Cluster::new(by_name("best_fit").expect("a name of the registry"));
    for _ in 0..hosts {
        cluster.add_host(0, 192_000, 786_432, &[GPU_MILLI; GPUS_OF_HOST]).expect("a plain host");
    }
    cluster.set_mix(seen.mix(100));
    let mut random = Random::part(seed, 26);
    let (mut allocated, mut grant, mut refused) = (0, 0, 0);
    while allocated < hosts as u64 * GPUS_OF_HOST as u64 * GPU_MILLI * FULL / 100 {
        let request = drawn(&mut random, &trace.requests);
        let Ok(placement) = cluster.place(&request) else {
            refused += 1;
            assert!(refused < 10_000, "hosts with processors and memory for all their GPUs");
            continue;
        };
        cluster.commit(GrantKey(grant), placement).expect("nobody else asks");
        allocated += asked(&request);
        grant += 1;
    }
    (cluster, trace.requests)
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
    let request = Request::new(75, GPU_MILLI / 20, Mode::Shared);
    for _ in 0..9 {
        let began = Instant::now();
        let placed = cluster.place(&request);
        many.push(began.elapsed().as_secs_f64() * 1_000.0);
        assert!(placed.is_ok(), "a cluster with room for 75 small cGPUs");
    }
    let [first, later, learning, many] = [first, later, learning, many].map(Times::new);
    Timed { first, later, learning, many, busy }
}
