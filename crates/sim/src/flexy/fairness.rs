//! Weights inside each pool: service by windows, and lags over their bounds.

use super::run::Options;
use super::study::{Bench, DEADLINE, by_name};
use super::workload::{BATCH_TASKS, COLUMNS, Job, Spec, USER_TASKS};
use crate::outcome::Outcome;
use crate::random::Random;
use crate::seeds::median;
use crate::{MS, SECOND};

/// Windows of a run, and the length of each.
const WINDOWS: u32 = 5;
const WINDOW_S: u64 = 60;
/// The longest user-facing task of Table I, in ns.
const USER_LONGEST_NS: u64 = 178 * MS;

/// Three vGPUs of each class with weights 1:2:3 that always have work.
pub(super) fn fairness(bench: &Bench, all: &mut Outcome, sla_ns: u64) -> Outcome {
    let title = "weights 1:2:3 inside each pool";
    let window = format!(
        "MMR, least over largest service per weight: median and minimum of {WINDOWS} windows of \
         {WINDOW_S} s, each with every seed"
    );
    let mut outcome = Outcome::new("fairness", title, window);
    for name in ["deadline", "priority_k1", "flexy_k1", "round_robin", "fifo"] {
        for (pool, user_facing) in [("user", true), ("batch", false)] {
            let found = mmrs(bench, name, user_facing, sla_ns);
            let least = found.iter().copied().fold(f64::MAX, f64::min);
            let middle = median(&found);
            outcome.figure(format!("{name}_{pool}_mmr_min"), least);
            outcome.figure(format!("{name}_{pool}_mmr_median"), middle);
            if name == "deadline" {
                super::experiments::low(all, "pool_mmr_min", least);
                super::experiments::low(all, "pool_mmr_median", middle);
            } else {
                all.control(format!("{name}_{pool}_mmr"), middle);
            }
        }
    }
    lags(bench, all, &mut outcome, sla_ns);
    outcome
        .note("User-facing work here is more than four devices can do, batch work beside little.");
    outcome
}

/// A batch task is stopped at the first slice boundary after its quantum if others are owed more.
fn hold_to_quantum(options: &mut Options) {
    options.limits.lag_longest_ns = Some(options.pool.batch_turn_ns());
}

/// Of each seed and window.
fn mmrs(bench: &Bench, name: &str, user_facing: bool, sla_ns: u64) -> Vec<f64> {
    let seeds = usize::try_from(bench.seeds).unwrap_or(1);
    let of_seed = |place: usize| {
        let seed = bench.seed + place as u64;
        let jobs = contenders(user_facing, seed);
        let mut options = by_name(name).options(sla_ns);
        options.windows = WINDOWS;
        if name == "deadline" {
            options.limits.user_lag_ns = Some((USER_LONGEST_NS, options.pool.slack_ns));
            hold_to_quantum(&mut options);
        }
        let found = bench.run_jobs(&jobs, &options, seed);
        let mmr = |window: &Vec<u64>| {
            let each: Vec<f64> =
                (0..3).map(|job| window[job] as f64 / f64::from(jobs[job].weight)).collect();
            let least = each.iter().copied().fold(f64::MAX, f64::min);
            least / each.iter().copied().fold(1.0, f64::max)
        };
        found.windows_ns.iter().map(mmr).collect::<Vec<f64>>()
    };
    bench.all(seeds, of_seed).into_iter().flatten().collect()
}

/// The largest lag over its bound in the columns' workloads under overload, of each class.
fn lags(bench: &Bench, all: &mut Outcome, outcome: &mut Outcome, sla_ns: u64) {
    let mut options = DEADLINE.options(sla_ns);
    hold_to_quantum(&mut options);
    options.limits.user_lag_ns = Some((USER_LONGEST_NS, options.pool.slack_ns));
    let found = bench.all(COLUMNS.len(), |place| {
        let seeds = bench.seed..bench.seed + bench.seeds;
        let runs = seeds.map(|seed| bench.run(&Spec::new(COLUMNS[place], 250, seed), &options));
        runs.fold((0, 0), |most, run| {
            (most.0.max(run.lag_permille), most.1.max(run.user_lag_permille))
        })
    });
    let share =
        |of: fn(&(u64, u64)) -> u64| found.iter().map(of).max().unwrap_or(0) as f64 / 1_000.0;
    for (name, value) in [
        ("batch_lag_over_bound_max", share(|of| of.0)),
        ("user_lag_over_bound_max", share(|of| of.1)),
    ] {
        all.figure(name, value);
        outcome.figure(name, value);
    }
}

/// Jobs of one class with more work than the window holds, and a little of the other class.
fn contenders(user_facing: bool, seed: u64) -> Vec<Job> {
    let mut random = Random::part(seed, 9);
    let of = if user_facing { &USER_TASKS[..] } else { &BATCH_TASKS[..] };
    let first = if user_facing { 0 } else { USER_TASKS.len() };
    let end_s = u64::from(WINDOWS) * WINDOW_S;
    let mut jobs = Vec::new();
    for weight in 1..=3 {
        let (mut tasks, mut sum_ns) = (Vec::new(), 0);
        while sum_ns < 4 * end_s * SECOND {
            let kernel = usize::try_from(random.below(of.len() as u64)).unwrap_or(0);
            tasks.push((u32::try_from(first + kernel).unwrap_or(0), of[kernel].1 * MS));
            sum_ns += of[kernel].1 * MS;
        }
        jobs.push(Job { arrival_ns: 0, user_facing, weight, outstanding: 16, tasks });
    }
    // The last arrival ends the last window.
    let kernel = u32::try_from(USER_TASKS.len() + BATCH_TASKS.len()).unwrap_or(0);
    jobs.extend((1..=end_s).map(|second| Job {
        arrival_ns: second * SECOND,
        user_facing: !user_facing,
        weight: 1,
        outstanding: 1,
        tasks: vec![(kernel, 50 * MS)],
    }));
    jobs
}
