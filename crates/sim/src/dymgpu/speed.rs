//! What a decision costs on this machine, in real time.

use std::hint::black_box;
use std::time::Instant;

use weft_sched::VgpuKey;
use weft_sched::memory::{self, Demand, Problem, add_last};

use super::Setup;
use crate::outcome::Outcome;
use crate::random::Random;
use crate::seeds::median;

const VGPUS: u32 = 1_000;
const SLOTS: usize = 10_000;

pub(super) fn speed(setup: &Setup) -> Outcome {
    let runs = if setup.quick { 5 } else { 51 };
    let window = format!("real time: median of {runs}; {VGPUS} vGPUs of 1 to 40 slots on {SLOTS}");
    let mut outcome = Outcome::new("speed", "Cost of a decision (real time)", window);
    let mut random = Random::part(setup.seed, 3);
    let mut number = |most| random.between(1, most);
    let demands: Vec<Demand> = (0..VGPUS)
        .map(|key| Demand {
            vgpu: VgpuKey(key),
            slots: usize::try_from(number(40)).unwrap_or(1),
            rate: u32::try_from(number(1_000)).unwrap_or(1),
        })
        .collect();
    let problem = Problem { region: SLOTS, demands: &demands, hidden: 13 };
    let time = |decide: &mut dyn FnMut()| {
        let of_run = |_| {
            let begin = Instant::now();
            decide();
            begin.elapsed().as_secs_f64() * 1e6
        };
        median(&(0..runs).map(of_run).collect::<Vec<f64>>())
    };
    let mut slowest: f64 = 0.0;
    for name in memory::NAMES {
        let placement = memory::by_name(name).expect("a name of the registry");
        let mut decide = || drop(black_box(placement.place(black_box(&problem))));
        let cost = time(&mut decide);
        outcome.figure(format!("place_all_us_{name}"), cost);
        // gScale's decision is one vGPU's, at its creation: it never places all.
        if *name != "scores" {
            slowest = slowest.max(cost);
        }
    }
    let others = Problem { demands: &demands[..demands.len() - 1], ..problem };
    let placement = memory::by_name("scores").expect("a name of the registry");
    let layout = placement.place(&others).expect("all fit");
    let mut copies: Vec<_> = (0..runs).map(|_| layout.clone()).collect();
    let add = time(&mut || {
        if let Some(mut layout) = copies.pop() {
            black_box(add_last(&problem, &mut layout)).expect("the last fits");
            black_box(layout);
        }
    });
    outcome.figure("place_one_us_scores", add);
    outcome.figure("decision_us_max", slowest.max(add));
    outcome
        .baseline("exact_is_proven_at_that_size", f64::from(u8::from(memory::is_proven(&problem))));
    outcome.note(
        "The one experiment that is real time on this machine. At that size `exact` tries a bounded \
         number of greedy layouts, and does not prove that there is no better one.",
    );
    outcome
}
