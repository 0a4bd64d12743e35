//! Small clusters, where every way to place the requests can be tried: how far policies are from
//! it.

use weft_sched::placement::{GrantKey, Mix, Mode, NAMES, Request, by_name};

use super::Setup;
use super::trace::{GPU_MILLI, Node, Trace, asked};
use crate::outcome::{Outcome, PlotKind};
use crate::random::Random;

/// What is asked for: GPUs, thousandths of each, processors in thousandths.
const SHAPES: [(u32, u64, u64); 7] = [
    (1, 300, 2_000),
    (1, 450, 6_000),
    (1, 500, 3_000),
    (1, 700, 4_000),
    (1, 1_000, 5_000),
    (2, 1_000, 8_000),
    (0, 0, 6_000),
];
/// Requests of a case.
const REQUESTS: usize = 8;

pub(super) fn small(setup: &Setup) -> Outcome {
    let cases = if setup.quick { 10 } else { 60 };
    let window = format!("{cases} cases of {REQUESTS} requests for two hosts with two GPUs");
    let mut outcome = Outcome::new("small", "Small clusters against exhaustive placement", window);
    let mut random = Random::part(setup.seed, 25);
    let mut sums = vec![0.0; NAMES.len()];
    let mix = Mix::new(&SHAPES.map(|shape| (request(shape), 1)));
    for case in 0..cases {
        let requests: Vec<Request> = (0..REQUESTS)
            .map(|_| request(SHAPES[usize::try_from(random.below(7)).unwrap_or(0)]))
            .collect();
        let best = Search::new(&requests).best();
        for (name, sum) in NAMES.iter().zip(&mut sums) {
            let found = online(name, &requests, &mix);
            if found > best {
                outcome.other_violations += 1;
                let what = format!("small, case {case}, {name}: {found} of at most {best}");
                outcome.first_violation.get_or_insert(what);
            }
            *sum += if best == 0 { 1.0 } else { found as f64 / best as f64 };
        }
    }
    let cases = f64::from(cases);
    for (name, sum) in NAMES.iter().zip(&sums) {
        outcome.figure(format!("of_optimum_{name}"), sum / cases);
    }
    let plot = outcome.plot(
        PlotKind::Bars,
        "GPUs allocated over the most that can be",
        "",
        "mean of the cases",
    );
    plot.groups(NAMES.iter().copied()).bars("of the optimum", sums.iter().map(|sum| sum / cases));
    outcome.note(
        "The optimum knows all requests and may refuse any; policies see one after the other and refuse \
         what does not fit.",
    );
    outcome
}

fn hosts() -> Trace {
    let node = Node { cpu_milli: 12_000, memory_mib: 0, gpus: 2, kind: 0 };
    Trace { models: vec!["one".to_owned()], nodes: vec![node.clone(), node], requests: Vec::new() }
}

fn request((cgpus, milli, cpu_milli): (u32, u64, u64)) -> Request {
    let mode = if milli == GPU_MILLI { Mode::Exclusive } else { Mode::Shared };
    Request { cpu_milli, ..Request::new(cgpus, milli, mode).local() }
}

/// What a policy allocates, request by request.
fn online(policy: &str, requests: &[Request], mix: &Mix) -> u64 {
    let mut cluster = hosts().cluster(by_name(policy).expect("a name of the registry"));
    cluster.set_mix(mix.clone());
    let mut sum = 0;
    for (grant, request) in (0..).map(GrantKey).zip(requests) {
        if let Ok(placement) = cluster.place(request) {
            cluster.commit(grant, placement).expect("nobody else asks");
            sum += asked(request);
        }
    }
    sum
}

/// Every request on every GPU of every host, or nowhere. It has its own books: processors and parts
/// of GPUs that are left.
struct Search<'a> {
    requests: &'a [Request],
    best: u64,
}

type Left = [(u64, [u64; 2]); 2];

impl<'a> Search<'a> {
    fn new(requests: &'a [Request]) -> Self {
        Self { requests, best: 0 }
    }

    fn best(mut self) -> u64 {
        self.go(0, 0, [(12_000, [GPU_MILLI; 2]); 2]);
        self.best
    }

    fn go(&mut self, number: usize, sum: u64, left: Left) {
        self.best = self.best.max(sum);
        let rest: u64 = self.requests[number..].iter().map(asked).sum();
        let Some(request) = self.requests.get(number).filter(|_| sum + rest > self.best) else {
            return;
        };
        for host in 0..2 {
            for gpu in 0..2 {
                let mut after = left;
                if take(&mut after[host], request, gpu) {
                    self.go(number + 1, sum + asked(request), after);
                }
            }
        }
        self.go(number + 1, sum, left);
    }
}

fn take((cpu, gpus): &mut (u64, [u64; 2]), request: &Request, gpu: usize) -> bool {
    let Some(cpu_left) = cpu.checked_sub(request.cpu_milli) else { return false };
    *cpu = cpu_left;
    match request.cgpus {
        0 => gpu == 0,
        1 => {
            let Some(left) = gpus[gpu].checked_sub(asked(request)) else { return false };
            gpus[gpu] = left;
            true
        }
        _ => {
            let is_empty = gpu == 0 && *gpus == [GPU_MILLI; 2];
            *gpus = [0; 2];
            is_empty
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::placement::{Cluster, HostKey, Locality};

    use super::*;

    fn fits(cluster: &mut Cluster, host: u32, request: &Request) -> bool {
        let on = Request { locality: Locality::LocalTo(HostKey(host)), ..*request };
        cluster.place(&on).is_ok()
    }

    #[test]
    fn the_search_and_the_core_agree_on_what_fits() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let mut cluster = hosts().cluster(by_name("first_fit").expect("a name"));
            let mut left: Left = [(12_000, [GPU_MILLI; 2]); 2];
            for grant in 0..6 {
                let one = request(SHAPES[usize::try_from(random.below(7)).expect("few")]);
                let host = usize::try_from(random.below(2)).expect("few");
                let can = (0..2).any(|gpu| take(&mut left[host].clone(), &one, gpu));
                let key = u32::try_from(host).expect("few");
                assert_eq!(fits(&mut cluster, key, &one), can, "{one:?} on {left:?}");
                if can {
                    let locality = Locality::LocalTo(HostKey(key));
                    let placed = cluster.place(&Request { locality, ..one }).expect("it fits");
                    let first = placed.cgpus.first().map_or(0, |cgpu| cgpu.gpu.0 % 2);
                    let at = if one.cgpus == 1 { first as usize } else { 0 };
                    assert!(take(&mut left[host], &one, at));
                    cluster.commit(GrantKey(grant), placed).expect("nobody else asks");
                }
            }
        }
    }

    #[test]
    fn the_search_finds_what_is_best() {
        let of = |shapes: &[(u32, u64, u64)]| {
            let requests: Vec<Request> = shapes.iter().map(|shape| request(*shape)).collect();
            Search::new(&requests).best()
        };
        assert_eq!(of(&[(1, 700, 0), (1, 300, 0)]), 1_000);
        // Nine halves: four GPUs take eight.
        assert_eq!(of(&[(1, 500, 0); 9]), 4_000);
        // Processors for two only.
        assert_eq!(of(&[(1, 500, 12_000); 4]), 1_000);
        assert_eq!(of(&[(2, 1_000, 0); 3]), 4_000);
    }
}
