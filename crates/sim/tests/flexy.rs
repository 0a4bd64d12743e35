//! Flexy's workload, the runs of it, and an independent derivation of the paper's policies.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use proptest::prelude::*;
use weft_sched::pool::invariants::Limits;
use weft_sched::pool::{PoolConfig, policy};
use weft_sim::flexy::{COLUMNS, Options, Source, Spec, TraceError, csv, generate, import, run};
use weft_sim::{MS, SECOND};

fn options(name: &str, reserved: u32) -> Options {
    let policy = policy::by_name(name).unwrap();
    Options::new(PoolConfig { policy, reserved, ..PoolConfig::default() })
}

/// Percent in time at 70 % utilisation, between the means of ten seeds at several loads.
fn at_70(name: &str, reserved: u32, outstanding: Option<u32>) -> f64 {
    let point = |factor_permille: u64| {
        let (mut utilization, mut sla) = (0.0, 0.0);
        for seed in 1..=10 {
            let mut spec = Spec::new(COLUMNS[0], factor_permille, seed);
            (spec.outstanding, spec.shape_tenths) = (outstanding, 15);
            let found = run(&generate(&spec), &options(name, reserved), seed).unwrap();
            assert_eq!(found.violation, None);
            utilization += found.utilization / 10.0;
            sla += 10.0 * found.user.1 as f64 / found.user.0 as f64;
        }
        (utilization, sla)
    };
    let points: Vec<(f64, f64)> = [450, 350, 300, 250, 200].map(point).into();
    let pair = points.windows(2).find(|pair| pair[0].0 <= 0.7 && 0.7 <= pair[1].0).unwrap();
    let part = (0.7 - pair[0].0) / (pair[1].0 - pair[0].0);
    pair[0].1 + part * (pair[1].1 - pair[0].1)
}

/// W1, shape 1.5, identical tasks, 70 % utilisation: what independent scripts derived from the
/// paper's text for round robin, priority and Flexy with K = 1. The window of utilisation, the
/// average's length and the order of ties are open: up to 12 points for round robin, 8 for others.
#[test]
fn an_independent_derivation_agrees() {
    let derived = [
        (Some(8), [52.0, 81.0, 81.0]),
        (Some(4), [58.0, 90.0, 90.0]),
        (Some(2), [62.0, 95.0, 96.0]),
        (Some(1), [67.0, 98.0, 98.0]),
        (None, [25.0, 31.0, 32.0]),
    ];
    for (outstanding, expected) in derived {
        let ours = [("round_robin", 0), ("priority", 0), ("flexy", 1)]
            .map(|(name, reserved)| at_70(name, reserved, outstanding));
        println!("{outstanding:?}: {ours:.1?} beside {expected:?}");
        for (place, (ours, expected)) in ours.iter().zip(expected).enumerate() {
            let spread = if place == 0 { 12.0 } else { 8.0 };
            assert!((ours - expected).abs() <= spread, "{outstanding:?}: {ours} and {expected}");
        }
    }
}

#[test]
fn a_seed_gives_one_workload_and_one_run() {
    let spec = Spec::new(COLUMNS[1], 300, 5);
    let jobs = generate(&spec);
    assert_eq!(jobs, generate(&spec));
    assert_ne!(jobs, generate(&Spec { seed: 6, ..spec }));
    let once = || run(&jobs, &options("deadline", 0), 5).unwrap();
    assert_eq!(once().latencies_ns, once().latencies_ns);
}

/// The columns' counts are exact; lengths and gaps have the stated means over many jobs.
#[test]
fn a_workload_is_what_table_ii_says() {
    for column in COLUMNS {
        let spec = Spec { jobs: 20_000, shape_tenths: 25, ..Spec::new(column, 1_000, 3) };
        let jobs = generate(&spec);
        let user = jobs.iter().filter(|job| job.user_facing);
        assert_eq!(user.clone().count(), 200 * column.user_jobs as usize);
        let work: u64 = user.flat_map(|job| &job.tasks).map(|task| task.1).sum();
        let mean = work as f64 / (200.0 * f64::from(column.user_jobs));
        // The last task of a job rounds its length up by half a task, 45 ms, on average.
        let over = mean / column.user_ns as f64;
        assert!((0.9..1.2).contains(&over), "{}: {over}", column.name);
        let users = u64::from(column.user_jobs);
        let total = users * column.user_ns + (100 - users) * column.batch_ns;
        let gap = jobs.last().unwrap().arrival_ns as f64 / 20_000.0;
        let over = gap / (total as f64 / 100.0);
        assert!((0.95..1.05).contains(&over), "{}: {over}", column.name);
    }
}

#[test]
fn a_late_start_is_a_missed_sla_under_fifo_and_not_under_deadline() {
    let spec = Spec::new(COLUMNS[2], 275, 1);
    let jobs = generate(&spec);
    let sla = |name| {
        let found = run(&jobs, &options(name, 0), 1).unwrap();
        found.user.1 as f64 / found.user.0 as f64
    };
    assert!(sla("deadline") > 0.9);
    assert!(sla("fifo") < 0.8, "the control passes");
}

#[test]
fn resets_throw_work_away_and_are_counted() {
    let jobs = generate(&Spec::new(COLUMNS[0], 400, 2));
    let mut with = options("priority", 0);
    with.pool.reset = true;
    let found = run(&jobs, &with, 2).unwrap();
    assert_eq!(found.violation, None);
    assert!(found.resets.0 > 0 && found.resets.1 > 0);
    assert_eq!(run(&jobs, &options("deadline", 0), 2).unwrap().resets, (0, 0));
}

#[test]
fn traces_become_jobs() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                 2023-12-31 23:59:59.5000000,100,2\n2024-01-01 00:00:00.2500000,50,1\n";
    let jobs = import(Source::Azure, azure).unwrap();
    assert_eq!(jobs.iter().map(|job| job.arrival_ns).collect::<Vec<_>>(), [0, 750 * MS]);
    assert_eq!(jobs[0].tasks[0].1, 54 * MS);
    let leap = "gmt_create,predict_type,exec_time_seconds\n\
                2024-03-01 00:00:01,A,1.5\n2024-02-28 00:00:01,B,32.0\n2024-02-28 00:00:02,C,\n";
    let jobs = import(Source::Alibaba, leap).unwrap();
    assert_eq!(jobs[1].arrival_ns, 2 * 86_400 * SECOND);
    assert_eq!(jobs[1].tasks[0].1, 1_500 * MS);
    assert_eq!(csv(&jobs).lines().nth(1), Some("0,0,user-facing,1,1,34,32000000000"));
    assert!(matches!(import(Source::Azure, "a,b\n"), Err(TraceError::Column("TIMESTAMP"))));
    let wrong = "gmt_create,exec_time_seconds\n2024-03-01 00:00:01,long\n";
    let error = import(Source::Alibaba, wrong).unwrap_err().to_string();
    assert_eq!(error, "line 2 of the trace: exec_time_seconds = \"long\" cannot be read");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Any workload, any policy, devices that go: every task is done, and once.
    #[test]
    fn no_run_breaks_an_invariant(
        seed in any::<u64>(),
        column in 0usize..3,
        place in 0..policy::NAMES.len(),
        factor in 125u64..500,
        reserved in 0u32..4,
        reset in any::<bool>(),
        backlog in any::<bool>(),
        down in prop::option::of((1u32..=1, 1u64..60)),
    ) {
        let spec = Spec { backlog, jobs: 30, ..Spec::new(COLUMNS[column], factor, seed) };
        let mut options = options(policy::NAMES[place], reserved);
        options.pool.reset = reset;
        options.down = down.map(|(count, at)| (count, at * SECOND));
        if policy::NAMES[place] == "deadline" {
            options.limits = Limits {
                batch_wait_ns: Some(1_200 * MS),
                is_work_conserving: true,
                lag_longest_ns: Some(2_674 * MS),
            };
        }
        // A pool keeps fewer devices than it has, or batch tasks wait for ever.
        options.pool.reserved = reserved.min(if down.is_some() { 2 } else { 3 });
        let found = run(&generate(&spec), &options, seed).unwrap();
        prop_assert_eq!(found.violation, None);
    }
}
