//! Requests of a trace packed onto its hosts until they are full: GPUs' allocation and
//! fragmentation against what Weng et al. published for the same trace.
//!
//! As theirs: the trace's requests and copies drawn from them until 130 % of all GPUs are asked
//! for, in random order; who does not fit is refused, and nobody leaves.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weft_sched::placement::invariants::Audit;
use weft_sched::placement::{
    Cluster, GrantKey, HostKey, Locality, Mix, Observed, Placement, Request, by_name,
};

use super::trace::{Trace, asked};
use super::{Inputs, Setup};
use crate::outcome::{Outcome, PlotKind};
use crate::random::Random;

/// What is asked for in the end, in percent of all GPUs.
const ARRIVED_MAX: u64 = 130;
/// Where figures are taken, in percent of all GPUs asked for.
pub(super) const AT: [u64; 2] = [100, 130];
/// Fragmentation is measured on the most frequent requests that are so many percent, as published.
const TYPICAL_PERCENT: u64 = 95;
/// The book is held against the cluster after so many requests.
const CHECKED_EVERY: usize = 500;
/// The mix is learnt anew each time this many percent of all GPUs were asked for.
const LEARNT_EVERY: u64 = 2;

/// How requests are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packer {
    name: &'static str,
    policy: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The whole trace's mix is known beforehand, as published.
    Known,
    /// Only what was asked for so far is known.
    Online,
    /// Any host that can take it: the negative control.
    Random,
    /// All that is asked for up to 100 % is known and placed from the largest on.
    Offline,
}

const fn packer(name: &'static str, policy: &'static str, kind: Kind) -> Packer {
    Packer { name, policy, kind }
}

const PACKERS: [Packer; 9] = [
    packer("fragmentation", "fragmentation", Kind::Known),
    packer("fragmentation_online", "fragmentation", Kind::Online),
    packer("gradient", "gradient", Kind::Known),
    packer("best_fit", "best_fit", Kind::Known),
    packer("host_fit", "host_fit", Kind::Known),
    packer("first_fit", "first_fit", Kind::Known),
    packer("least_load", "least_load", Kind::Known),
    packer("random", "first_fit", Kind::Random),
    packer("offline", "fragmentation", Kind::Offline),
];

/// Published: parts of all GPUs that are allocated and that are fragments when 100 % and 130 % of
/// all GPUs were asked for; means of the ten seeds in the authors' simulator's own results
/// (`experiments/analysis/expected_results` of hkust-adsl/kubernetes-scheduler-simulator, trace
/// `openb_pod_list_default`).
const PUBLISHED: [(&str, [f64; 2], [f64; 2]); 3] = [
    ("gradient", [0.9523, 0.9539], [0.0473, 0.0457]),
    ("host_fit", [0.9286, 0.9308], [0.0705, 0.0685]),
    ("random", [0.8630, 0.8747], [0.1349, 0.1243]),
];

/// Parts of all GPUs, by percent of all GPUs asked for.
#[derive(Clone, Debug, Default)]
struct Curve {
    allocated: BTreeMap<u64, f64>,
    fragments: BTreeMap<u64, f64>,
    decisions: u64,
    violation: Option<String>,
}

pub(super) fn packing(setup: &Setup, inputs: &Inputs) -> Outcome {
    let trace = &inputs.trace;
    let window = format!(
        "{} on {} hosts with {} GPUs; 130 % of them asked for, nobody leaves",
        inputs.trace_name,
        trace.nodes.len(),
        trace.capacity() / super::trace::GPU_MILLI
    );
    let mut outcome = Outcome::new("packing", "Packing policies on a GPU trace", window);
    let arrivals = arrivals(trace, setup.seed);
    let mut seen = Observed::default();
    trace.requests.iter().for_each(|request| seen.record(request));
    let known = seen.mix(TYPICAL_PERCENT);
    let curves: Vec<(Packer, Curve)> = PACKERS
        .into_iter()
        .map(|packer| (packer, pack(packer, trace, &arrivals, &known, setup.seed)))
        .collect();
    for (packer, curve) in &curves {
        figures(&mut outcome, packer, curve, inputs.is_alibaba);
    }
    compare_policies(&mut outcome, trace);
    outcome.baseline("bound_allocated_100", bound(trace, &arrivals));
    plots(&mut outcome, &curves);
    outcome.note(
        "`bound_allocated_100` is what a clairvoyant could allocate at most of what is asked for up to \
         100 %, if GPUs and processors of all hosts were one: no packing is better. `offline` knows all \
         that will come and places it from the largest on, those without GPUs last: no oracle, but what \
         knowing the future and sorting alone give.",
    );
    outcome.note(
        "`host_fit` and `gradient` are models of Weng et al.'s best fit and FGD; theirs round scores to \
         101 steps and draw among equals. `fragmentation_online` learns the mix from what was asked for \
         so far, the others that use it know it, as published. How `fragmentation` ranks equals was \
         chosen on seeds 100 to 103 of this trace.",
    );
    outcome
}

/// The trace's requests and copies of them, in random order.
fn arrivals(trace: &Trace, seed: u64) -> Vec<Request> {
    let mut random = Random::part(seed, 23);
    let mut all = trace.requests.clone();
    let mut sum: u64 = all.iter().map(asked).sum();
    while sum * 100 < trace.capacity() * ARRIVED_MAX {
        let one = trace.requests[below(&mut random, trace.requests.len())];
        sum += asked(&one);
        all.push(one);
    }
    for place in (1..all.len()).rev() {
        all.swap(place, below(&mut random, place + 1));
    }
    all
}

fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).unwrap_or_default()
}

/// Requests up to 100 % of all GPUs, the largest first.
fn largest_first(trace: &Trace, arrivals: &[Request]) -> Vec<Request> {
    let mut sum = 0;
    let capacity = trace.capacity();
    let until = arrivals.iter().take_while(|one| {
        sum += asked(one);
        sum <= capacity
    });
    let mut all: Vec<Request> = until.copied().collect();
    all.sort_by_key(|one| Reverse((asked(one), one.cpu_milli, one.host_memory)));
    all
}

fn pack(packer: Packer, trace: &Trace, arrivals: &[Request], known: &Mix, seed: u64) -> Curve {
    let mut cluster = trace.cluster(by_name(packer.policy).expect("a name of the registry"));
    if packer.kind != Kind::Online {
        cluster.set_mix(known.clone());
    }
    let sorted = (packer.kind == Kind::Offline).then(|| largest_first(trace, arrivals));
    let arrivals = sorted.as_deref().unwrap_or(arrivals);
    let (mut audit, mut seen, mut curve) =
        (Audit::default(), Observed::default(), Curve::default());
    let mut random = Random::part(seed, 24);
    let (mut arrived, mut allocated, mut percent) = (0_u64, 0_u64, 0_u64);
    for (number, request) in arrivals.iter().enumerate() {
        seen.record(request);
        arrived += asked(request);
        let placed = match packer.kind {
            Kind::Random => anywhere(&mut cluster, request, &mut random),
            Kind::Known | Kind::Online | Kind::Offline => cluster.place(request).ok(),
        };
        curve.decisions += 1;
        if let Some(placement) = placed {
            allocated += asked(request);
            let grant = GrantKey(number as u64);
            let given = audit.committed(&cluster, grant, request, &placement);
            note(&mut curve, number, given.map_err(|error| error.to_string()));
            let done = cluster.commit(grant, placement);
            note(&mut curve, number, done.map_err(|error| error.to_string()));
        }
        if number % CHECKED_EVERY == 0 || number + 1 == arrivals.len() {
            let checked = audit.check(&cluster);
            note(&mut curve, number, checked.map_err(|error| error.to_string()));
        }
        let is_last = number + 1 == arrivals.len();
        let now =
            if is_last { ARRIVED_MAX } else { (arrived * 100 / trace.capacity()).min(ARRIVED_MAX) };
        while percent < now {
            percent += 1;
            curve.allocated.insert(percent, allocated as f64 / trace.capacity() as f64);
            if AT.contains(&percent) {
                let part = fragments(&cluster, known) / trace.capacity() as f64;
                curve.fragments.insert(percent, part);
            }
            if packer.kind == Kind::Online && percent % LEARNT_EVERY == 0 {
                cluster.learn(seen.mix(TYPICAL_PERCENT));
            }
        }
    }
    curve
}

fn note(curve: &mut Curve, number: usize, result: Result<(), String>) {
    if let Err(error) = result {
        curve.violation.get_or_insert_with(|| format!("request {number}: {error}"));
    }
}

/// On a host drawn among those that can take it.
fn anywhere(cluster: &mut Cluster, request: &Request, random: &mut Random) -> Option<Placement> {
    let hosts = u32::try_from(cluster.hosts().len()).ok()?;
    let on = |host| Request { locality: Locality::LocalTo(HostKey(host)), ..*request };
    let mut left: Vec<u32> = (0..hosts).collect();
    while !left.is_empty() {
        let host = left.swap_remove(below(random, left.len()));
        if let Ok(placement) = cluster.place(&on(host)) {
            return Some(placement);
        }
    }
    None
}

/// Expected fragmentation on the known mix, in thousandths of GPUs.
fn fragments(cluster: &Cluster, known: &Mix) -> f64 {
    let mut measured = cluster.clone();
    measured.set_mix(known.clone());
    measured.fragmentation().unwrap_or(0) as f64
}

/// The most that can be allocated of what is asked for up to 100 %, if all hosts were one.
fn bound(trace: &Trace, arrivals: &[Request]) -> f64 {
    let mut wanted = largest_first(trace, arrivals);
    wanted.retain(|one| asked(one) > 0);
    // The most GPU for each processor first; the last one in part.
    wanted.sort_by(|one, other| {
        let (left, right) = (asked(one) * other.cpu_milli, asked(other) * one.cpu_milli);
        right.cmp(&left)
    });
    let mut cpu = trace.nodes.iter().map(|node| node.cpu_milli).sum::<u64>() as f64;
    let mut sum = 0.0;
    for one in &wanted {
        let part = if one.cpu_milli == 0 { 1.0 } else { (cpu / one.cpu_milli as f64).min(1.0) };
        sum += part * asked(one) as f64;
        cpu -= part * one.cpu_milli as f64;
    }
    (sum / trace.capacity() as f64).min(1.0)
}

fn figures(outcome: &mut Outcome, packer: &Packer, curve: &Curve, is_alibaba: bool) {
    let name = packer.name;
    for at in AT {
        // Offline stops at what is asked for up to 100 %.
        if packer.kind == Kind::Offline && at != 100 {
            continue;
        }
        let of = |values: &BTreeMap<u64, f64>| values.get(&at).copied().unwrap_or(0.0);
        let values = [("allocated", of(&curve.allocated)), ("fragments", of(&curve.fragments))];
        for (what, value) in values {
            let figure = format!("{what}_{at}_{name}");
            match packer.kind {
                Kind::Random => outcome.control(figure, value),
                Kind::Offline => outcome.baseline(figure, value),
                Kind::Known | Kind::Online => outcome.figure(figure, value),
            }
        }
    }
    for (published, allocated, fragments) in PUBLISHED {
        if published == name && is_alibaba {
            for (at, value) in AT.into_iter().zip(allocated) {
                outcome.baseline(format!("published_allocated_{at}_{name}"), value);
            }
            for (at, value) in AT.into_iter().zip(fragments) {
                outcome.baseline(format!("published_fragments_{at}_{name}"), value);
            }
        }
    }
    outcome.decisions += curve.decisions;
    if let Some(violation) = &curve.violation {
        outcome.other_violations += 1;
        outcome.first_violation.get_or_insert_with(|| format!("packing, {name}: {violation}"));
    }
}

/// Fragmentation against the better of the two best fits.
fn compare_policies(outcome: &mut Outcome, trace: &Trace) {
    let of = |name: &str| outcome.figures[&format!("allocated_100_{name}")];
    let best = of("best_fit").max(of("host_fit"));
    let gpus = (trace.capacity() / super::trace::GPU_MILLI) as f64;
    let mut found = Vec::new();
    for (name, key) in [("fragmentation", "frag"), ("fragmentation_online", "frag_online")] {
        found.push((format!("{key}_over_best_fit"), of(name) / best));
        found.push((format!("{key}_unallocated_over_best_fit"), (1.0 - of(name)) / (1.0 - best)));
        found.push((format!("{key}_gpus_gained"), (of(name) - best) * gpus));
    }
    found.push(("frag_over_host_fit".to_owned(), of("fragmentation") / of("host_fit")));
    found.push(("frag_over_gradient".to_owned(), of("fragmentation") / of("gradient")));
    found.into_iter().for_each(|(name, value)| outcome.figure(name, value));
    outcome.control("least_load_over_best_fit", {
        let spread = outcome.figures["allocated_100_least_load"];
        spread / best
    });
}

fn plots(outcome: &mut Outcome, curves: &[(Packer, Curve)]) {
    let shown = |packer: &Packer| packer.kind != Kind::Offline;
    let plot = outcome.plot(
        PlotKind::Lines,
        "GPUs allocated",
        "asked for, percent of all GPUs",
        "allocated, percent",
    );
    for (packer, curve) in curves.iter().filter(|(packer, _)| shown(packer)) {
        let points = curve.allocated.iter().filter(|(at, _)| **at >= 80 && *at % 5 == 0);
        plot.series(packer.name, points.map(|(at, value)| (*at as f64, value * 100.0)));
    }
    let names: Vec<&str> =
        curves.iter().filter(|(packer, _)| shown(packer)).map(|(packer, _)| packer.name).collect();
    let plot = outcome.plot(
        PlotKind::Bars,
        "GPUs that nobody has when 100 % are asked for",
        "",
        "percent of all GPUs",
    );
    let unallocated = curves.iter().filter(|(packer, _)| shown(packer));
    plot.groups(names).bars(
        "unallocated",
        unallocated.map(|(_, curve)| 100.0 - 100.0 * curve.allocated.get(&100).unwrap_or(&0.0)),
    );
}

/// The published figures beside the medians.
pub(super) fn compare(outcome: &mut Outcome) {
    let percent = |value: Option<&f64>| {
        value.map_or_else(|| "–".to_owned(), |at| format!("{:.2} %", at * 100.0))
    };
    let mut rows = Vec::new();
    let names = [
        ("gradient", "FGD"),
        ("host_fit", "BestFit"),
        ("random", "Random"),
        ("fragmentation", "Weft's"),
        ("best_fit", "tightest GPU"),
        ("fragmentation_online", "mix learnt as requests come"),
        ("first_fit", "first fit"),
        ("least_load", "least load"),
    ];
    for what in ["allocated", "fragments"] {
        for (name, published) in names {
            let key = format!("{what}_100_{name}");
            let ours = outcome.figures.get(&key).or_else(|| outcome.controls.get(&key));
            let paper = outcome.baselines.get(&format!("published_{key}"));
            rows.push((
                format!("GPUs {what} at 100 % asked for: `{name}` ({published})"),
                paper.map_or_else(|| "not published".to_owned(), |_| percent(paper)),
                percent(ours),
            ));
        }
    }
    rows.iter().for_each(|(what, paper, ours)| outcome.compare(what, paper, ours.clone()));
}
