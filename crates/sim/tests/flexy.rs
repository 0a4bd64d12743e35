//! Flexy's workload, the runs of it, and an independent derivation of the paper's policies.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use proptest::prelude::*;
use weft_sched::pool::invariants::Limits;
use weft_sched::pool::{PoolConfig, policy};
use weft_sim::flexy::{
    COLUMNS, Job, Machine, Options, Rule, Source, Spec, TraceError, clairvoyant, compare, csv,
    evaluate, generate, import, read, run,
};
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

fn part(all: &[f64], beyond: f64) -> f64 {
    all.iter().filter(|value| **value > beyond).count() as f64 / all.len() as f64
}

/// Gaps are exponential: 1/e of them are longer than their mean, 1/e² than twice that. Lengths are
/// Pareto's: none is below `mean·(shape − 1)/shape`, and 2^−shape of them are beyond twice that.
#[test]
fn gaps_are_exponential_and_lengths_have_paretos_tail() {
    for column in COLUMNS {
        let spec = Spec { jobs: 20_000, shape_tenths: 25, ..Spec::new(column, 1_000, 4) };
        let jobs = generate(&spec);
        let gaps: Vec<f64> =
            jobs.windows(2).map(|pair| (pair[1].arrival_ns - pair[0].arrival_ns) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        for (times, expected) in [(1.0, (-1f64).exp()), (2.0, (-2f64).exp())] {
            let found = part(&gaps, times * mean);
            assert!((found - expected).abs() < 0.015, "{}: {found} past {times}", column.name);
        }
        let user = jobs.iter().filter(|job| job.user_facing);
        let work = |job: &Job| job.tasks.iter().map(|task| task.1).sum::<u64>() as f64;
        let lengths: Vec<f64> = user.map(work).collect();
        let least = 0.6 * column.user_ns as f64;
        assert_eq!(part(&lengths, least - 1_000.0), 1.0, "{}", column.name);
        // The last task rounds a length up, by no more than the longest there is.
        let rounded = 2.0 * least - 178e6;
        let (low, high) = (0.5f64.powf(2.5), (least / rounded).powf(2.5));
        let found = part(&lengths, 2.0 * least);
        let name = column.name;
        assert!((low - 0.02..high + 0.02).contains(&found), "{name}: {found}, {low} to {high}");
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

/// A device that is back sooner than the pool thinks has been away for less.
#[test]
fn a_reset_lasts_as_long_as_it_does() {
    let jobs = [job(0, false, &[60_000]), job(MS, true, &[100]), job(2 * SECOND, false, &[1])];
    let mut thought = Options { devices: 1, ..options("priority", 0) };
    thought.pool.reset = true;
    let real = Options { reset_ns: Some(40 * MS), ..thought };
    let [thought, real] = [thought, real].map(|options| run(&jobs, &options, 1).unwrap());
    assert_eq!((thought.resets.0, real.resets.0), (1, 1));
    assert_eq!(thought.latencies_ns, [SECOND + 100 * MS]);
    assert_eq!(real.latencies_ns, [140 * MS]);
}

/// A device is taken for longer than its kernels last, by as much for each run.
#[test]
fn what_a_task_costs_beside_its_kernel_takes_a_device_and_is_no_use() {
    let jobs = [job(0, true, &[10; 100]), job(1_000_000_000, true, &[1])];
    let free = Options { devices: 1, ..options("fifo", 0) };
    let costly = Options { overhead_ns: 2_000_000, ..free };
    let (free, costly) = (run(&jobs, &free, 1).unwrap(), run(&jobs, &costly, 1).unwrap());
    assert_eq!((free.utilization, free.useful), (1.0, 1.0));
    assert_eq!(costly.utilization, 1.0);
    // Of 12 ms each time 10 are the kernel's; the last one has just begun.
    assert!((costly.useful - 10.0 / 12.0).abs() < 0.003, "{}", costly.useful);
    assert_eq!(free.latencies_ns[0] + 2_000_000, costly.latencies_ns[0]);
}

/// Whoever waits for a result before the next submission finds its device taken by then, and waits
/// for the end of the slice.
#[test]
fn a_submission_that_comes_after_a_round_trip_waits_for_a_slice() {
    let user = Job { outstanding: 1, ..job(1, true, &[10; 20]) };
    let jobs = [job(0, false, &[60_000]), user, job(900 * MS, true, &[1])];
    let prompt = Options { devices: 1, ..options("deadline", 0) };
    let slow = Options { round_trip_ns: 500_000, ..prompt };
    let (prompt, slow) = (run(&jobs, &prompt, 1).unwrap(), run(&jobs, &slow, 1).unwrap());
    assert_eq!(prompt.latencies_ns[1..20], [10 * MS; 19]);
    assert_eq!(slow.latencies_ns[1..20], [10 * MS + 4_500_000; 19]);
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

/// An hour of 24 is not midnight, and a time that no u64 of ns holds no panic.
#[test]
fn a_trace_with_impossible_times_is_refused() {
    let line = |time: &str, tokens: &str| {
        format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{time},{tokens},1\n")
    };
    assert_eq!(import(Source::Azure, &line("2024-01-01 23:59:60.5", "1")).unwrap().len(), 1);
    for (time, tokens) in [
        ("2024-01-01 24:00:00", "1"),
        ("2024-01-01 00:60:00", "1"),
        ("2024-01-01 00:00:61", "1"),
        ("2180-12-31 00:00:18446744073", "1"),
        ("2024-01-01 99999999999999:00:00", "1"),
        ("2024-01-01 00:00:00", "9999999999999999999"),
    ] {
        let found = import(Source::Azure, &line(time, tokens));
        let is_refused = matches!(found, Err(TraceError::Value { line: 2, .. }));
        assert!(is_refused, "{time} {tokens}: {found:?}");
    }
}

fn job(arrival_ns: u64, user_facing: bool, ms: &[u64]) -> Job {
    let tasks: Vec<(u32, u64)> = ms.iter().map(|ms| (0, ms * MS)).collect();
    let outstanding = u32::try_from(tasks.len()).unwrap();
    Job { arrival_ns, user_facing, weight: 1, outstanding, tasks }
}

/// Attainment has the window of utilisation: tasks whose SLA ends by the last arrival.
#[test]
fn a_task_counts_if_it_was_due_in_the_window() {
    let mut jobs = vec![job(0, true, &[100, 150]), job(250 * MS, true, &[10])];
    let mut one = options("deadline", 0);
    one.devices = 1;
    // The first job's tasks are due at 200 ms, the second one's at 450: after the last arrival.
    let found = run(&jobs, &one, 1).unwrap();
    assert_eq!((found.user, found.latencies_ns.len()), ((2, 1), 2));
    assert_eq!(clairvoyant(&jobs, 1, 200 * MS, Rule::Earliest), (2, 1));
    jobs.push(job(450 * MS, false, &[10]));
    assert_eq!(run(&jobs, &one, 1).unwrap().user.0, 3);
}

/// One batch task waits while another one runs: batch has a device all the time, the task has none.
#[test]
fn the_wait_of_one_batch_task_is_not_the_wait_of_all() {
    let jobs = [job(0, false, &[3_000]), job(0, false, &[500])];
    let mut one = options("fifo", 0);
    one.devices = 1;
    let found = run(&jobs, &one, 1).unwrap();
    assert_eq!((found.batch_wait_ns, found.batch_dry_ns), (3_000 * MS, 0));
    assert_eq!(found.batch_longest_ns, 3_500 * MS);
}

/// In the columns' workloads a batch vGPU that waits has its turn within what batch vGPUs may have
/// meanwhile. Without turns one vGPU's long tasks keep another one waiting beyond that.
#[test]
fn a_batch_vgpu_has_its_turn_within_the_bound() {
    let worst = |name: &str| {
        let mut options = options(name, 0);
        options.limits.turn_longest_ns = Some(options.pool.batch_turn_ns());
        let found = COLUMNS.map(|column| {
            run(&generate(&Spec::new(column, 200, 3)), &options, 3).unwrap().violation
        });
        found.into_iter().flatten().next()
    };
    assert_eq!(worst("deadline"), None);
    assert!(worst("fifo").is_some_and(|broken| broken.contains("waited while batch tasks")));
}

/// `deadline` is near what knows all in the columns, at the loads of the goal.
#[test]
fn deadline_is_half_a_point_below_the_clairvoyant_orders() {
    let percent = |(all, good): (u64, u64)| 100.0 * good as f64 / all as f64;
    for (column, factor) in COLUMNS.into_iter().zip([200, 250, 250]) {
        let gap = |slack_ns: Option<u64>| {
            let gaps = (1..=10).map(|seed| {
                let jobs = generate(&Spec::new(column, factor, seed));
                let mut options = options("deadline", 0);
                options.pool.slack_ns = slack_ns.unwrap_or(options.pool.slack_ns);
                let ours = run(&jobs, &options, seed).unwrap();
                let best = Rule::ALL.map(|rule| percent(clairvoyant(&jobs, 4, 200 * MS, rule)));
                best.into_iter().fold(f64::MIN, f64::max) - percent(ours.user)
            });
            gaps.sum::<f64>() / 10.0
        };
        let (ours, strict) = (gap(None), gap(Some(0)));
        println!("{}: {ours:.3} points, without slack {strict:.3}", column.name);
        assert!(ours <= 0.5, "{}: {ours}", column.name);
        assert!(strict > 0.5, "{}: the control passes with {strict}", column.name);
    }
}

/// On one device with 200 ms, by hand. Until 2 s, when the last one comes, 850 ms are busy.
///
/// | arrives | task | fifo | deadline |
/// |---|---|---|---|
/// | 0 | user-facing, 100 ms | done at 100 | the same |
/// | 0 | user-facing, 150 ms | done at 250: late | the same |
/// | 1 s | batch, 500 ms | done at 1.5 s | stops at 1.1 s, done at 1.6 s |
/// | 1.1 s | user-facing, 100 ms | done at 1.6 s: late | done at 1.2 s |
/// | 2 s | user-facing, 10 ms | due after the window | the same |
#[test]
fn given_jobs_under_every_policy_come_to_what_a_hand_reckons() {
    let mut jobs = vec![
        job(0, true, &[100]),
        job(0, true, &[150]),
        job(SECOND, false, &[500]),
        job(1_100 * MS, true, &[100]),
        job(2 * SECOND, true, &[10]),
    ];
    // No time says anything of another one's.
    for (kernel, job) in (0..).zip(&mut jobs) {
        job.tasks[0].0 = kernel;
    }
    let machine = Machine { devices: 1, sla_ns: 200 * MS };
    let all = compare(&jobs, machine, &mut |_| {});
    assert_eq!(all.first_violation, None);
    let near = |value: Option<&f64>, expected: f64| {
        let value = *value.unwrap();
        assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
    };
    let figure = |name: &str, expected: f64| near(all.figures.get(name), expected);
    figure("tasks_user_facing", 4.0);
    figure("tasks_batch", 1.0);
    figure("load", 0.860 / 2.0);
    for name in ["fifo", "priority_k0"] {
        figure(&format!("{name}_utilization"), 0.425);
        figure(&format!("{name}_latency_p50_s"), 0.250);
        figure(&format!("{name}_latency_max_s"), 0.500);
    }
    near(all.controls.get("fifo_sla"), 1.0 / 3.0);
    figure("priority_k0_sla", 1.0 / 3.0);
    figure("deadline_sla", 2.0 / 3.0);
    figure("deadline_utilization", 0.425);
    figure("deadline_latency_p50_s", 0.100);
    figure("deadline_latency_max_s", 0.250);
    figure("deadline_batch_wait_max_s", 0.100);
    figure("deadline_resets", 0.0);
    // Killed at 1.1 s; the device is back at 2.1 s, 100 ms of work are lost.
    figure("priority_reset_resets", 1.0);
    figure("priority_reset_utilization", 0.175);
    near(all.baselines.get("ceiling_sla"), 2.0 / 3.0);
}

/// What `weft workload flexy` writes is read back, and an imported trace runs under all policies.
#[test]
fn an_imported_trace_is_written_read_and_run() {
    let trace = "gmt_create,exec_time_seconds\n2024-03-01 00:00:00,1.5\n\
                 2024-03-01 00:00:01,2\n2024-03-01 00:00:02,0.5\n2024-03-01 00:00:20,1\n";
    let jobs = import(Source::Alibaba, trace).unwrap();
    let lines: Vec<String> = jobs.iter().map(|job| serde_json::to_string(job).unwrap()).collect();
    assert_eq!(read(&lines.join("\n")).unwrap(), jobs);
    assert_eq!(read(&csv(&jobs)).unwrap(), jobs);
    let generated = generate(&Spec::new(COLUMNS[0], 300, 1));
    let mut read_back = read(&csv(&generated)).unwrap();
    // The first arrival is at 0, and a job without a task has no line.
    let first_ns = generated[0].arrival_ns;
    read_back.iter_mut().for_each(|job| job.arrival_ns += first_ns);
    assert_eq!(read_back, generated);
    let all = compare(&jobs, Machine { devices: 2, sla_ns: 2 * SECOND }, &mut |_| {});
    assert_eq!((all.other_violations, all.figures["tasks_user_facing"]), (0, 4.0));
    // 1.5, 2 and 0.5 s on two devices: nobody waits. The fourth is due after the window.
    assert!((all.figures["deadline_utilization"] - 0.1).abs() < 1e-9);
    assert!((all.figures["deadline_sla"] - 1.0).abs() < 1e-9);
}

#[test]
fn a_file_that_holds_no_jobs_is_refused_and_says_where() {
    let good = r#"{"arrival_ns":5,"user_facing":true,"weight":1,"outstanding":1,"tasks":[[0,7]]}"#;
    let with = |from: &str, to: &str| format!("{good}\n{}\n", good.replace(from, to));
    let error = |text: &str| read(text).unwrap_err().to_string();
    assert_eq!(read(&with(":5", ":8")).unwrap().len(), 2);
    let years = ["[0,1000000000000000000]"; 2].join(",");
    let long = with(":5", ":8").replace("[0,7]", &years);
    for (text, words) in [
        (String::new(), "no request"),
        (good.to_owned(), "arrive at once"),
        (with("weight\":1", "weight\":0"), "line 2 is no job: its weight is 0"),
        (with("outstanding\":1", "outstanding\":0"), "line 2"),
        (with("[0,7]", "[0,0]"), "a task's time"),
        (with("[0,7]", "[4000000000,7]"), "a task's kernel"),
        (with(":5", ":18000000000000000000"), "its arrival"),
        (with(":5,", ":8,\"x\":"), "line 2"),
        (long, "more work"),
        (
            "job,arrival_ns,class,weight,outstanding,kernel,time_ns\n0,1,best,1,1,0,1\n".into(),
            "best",
        ),
        ("job,arrival_ns,class,weight,outstanding,kernel,time_ns\n0,1,batch\n".into(), "3 columns"),
    ] {
        assert!(error(&text).contains(words), "{text}: {}", error(&text));
    }
}

/// The whole evaluation in its quick form, as `weft sim flexy --quick` runs it: what it says in
/// sum is what its parts say.
#[test]
fn the_evaluation_sums_its_columns_up() {
    let mut told = 0;
    let found = evaluate(1, 1, true, &mut |_| told += 1);
    let all = &found.summary;
    assert!(told >= 6 && found.sections.len() >= 6, "{told}");
    assert_eq!((all.first_violation.as_deref(), all.figures["invariant_violations"]), (None, 0.0));
    let columns = ["80_20", "40_60", "20_80"];
    let of = |kind: &str| columns.map(|column| all.figures[&format!("{kind}_{column}")]);
    let least = |values: [f64; 3]| values.into_iter().fold(f64::MAX, f64::min);
    let largest = |values: [f64; 3]| values.into_iter().fold(f64::MIN, f64::max);
    let same = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} and {other}");
    same(all.figures["deadline_sla_min"], least(of("deadline_sla")));
    same(all.figures["deadline_utilization"], least(of("deadline_utilization")));
    same(all.figures["gap_to_ceiling_points"], largest(of("gap_to_ceiling_points")));
    for column in columns {
        let ours = all.figures[&format!("deadline_sla_{column}")];
        let ceiling = all.baselines[&format!("ceiling_sla_{column}")];
        let gap = all.figures[&format!("gap_to_ceiling_points_{column}")];
        same(gap, 100.0 * (ceiling - ours));
        assert!(all.controls[&format!("fifo_sla_{column}")] < ours, "the control passes");
    }
    same(all.figures["deadline_resets"], 0.0);
    let wait = all.figures["batch_wait_over_bound_max"];
    assert!(wait > 0.0 && wait <= 1.0, "{wait}");
    assert!(all.figures["decision_ns_p50_by_tenant"] > 0.0);
    assert!(all.figures["runs"] > 0.0 && all.figures["events"] > all.figures["runs"]);
}

/// The most tasks of one task each that any schedule serves in time: every order of every subset,
/// each task on the device that is free first.
fn exhaustive(jobs: &[Job], free: &mut Vec<u64>, left: &mut Vec<usize>, sla_ns: u64) -> u64 {
    let mut most = 0;
    for place in 0..left.len() {
        let of = left.remove(place);
        let (device, at_ns) =
            free.iter().copied().enumerate().min_by_key(|(_, at_ns)| *at_ns).unwrap();
        let end_ns = at_ns.max(jobs[of].arrival_ns) + jobs[of].tasks[0].1;
        if end_ns <= jobs[of].arrival_ns + sla_ns {
            free[device] = end_ns;
            most = most.max(1 + exhaustive(jobs, free, left, sla_ns));
            free[device] = at_ns;
        }
        left.insert(place, of);
    }
    most
}

/// Small random cases: user-facing tasks in a burst, the end of the window much later.
fn small_case(seed: u64, devices: usize) -> (Vec<Job>, u64) {
    let lengths = [82, 29, 130, 48, 158, 87, 178, 69, 97, 14];
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut jobs: Vec<Job> = (0..7)
        .map(|_| job(next(250) * MS, true, &[lengths[usize::try_from(next(10)).unwrap()]]))
        .collect();
    jobs.sort_by_key(|job| job.arrival_ns);
    let (mut free, mut left) = (vec![0; devices], (0..jobs.len()).collect());
    let best = exhaustive(&jobs, &mut free, &mut left, 200 * MS);
    jobs.push(job(10 * SECOND, false, &[1]));
    (jobs, best)
}

/// No order is better than the best of all schedules; the ceiling, the best of the orders, is at
/// most a little below it, and earliest deadline alone further.
#[test]
fn the_ceiling_is_held_against_exhaustive_search() {
    let (mut best_sum, mut ceiling_sum, mut edf_sum) = (0, 0, 0);
    for seed in 0..150 {
        let devices = 1 + usize::try_from(seed % 2).unwrap();
        let (jobs, best) = small_case(seed, devices);
        let on = u32::try_from(devices).unwrap();
        let each = Rule::ALL.map(|rule| clairvoyant(&jobs, on, 200 * MS, rule));
        for (rule, found) in Rule::ALL.iter().zip(each) {
            assert_eq!(found.0, 7);
            assert!(found.1 <= best, "seed {seed}: {rule:?} has {} of {best}", found.1);
        }
        best_sum += best;
        ceiling_sum += each.map(|found| found.1).into_iter().max().unwrap();
        edf_sum += each[0].1;
    }
    println!("exhaustive {best_sum}, ceiling {ceiling_sum}, earliest deadline {edf_sum}");
    assert!(ceiling_sum * 100 >= best_sum * 95, "{ceiling_sum} of {best_sum}");
    assert!(edf_sum < ceiling_sum, "earliest deadline alone is as good");
}

/// The judged core with all knowledge and the order written without it agree where both are
/// earliest deadline first: within a point of each other.
#[test]
fn two_derivations_of_clairvoyant_edf_agree() {
    for (seed, column) in (1..).zip(COLUMNS) {
        let jobs = generate(&Spec::new(column, 275, seed));
        let mut exact = options("deadline", 0);
        exact.clairvoyant = true;
        (exact.pool.slice_ns, exact.pool.slack_ns) = (1, u64::MAX);
        (exact.pool.batch_patience_ns, exact.pool.late_patience_ns) = (u64::MAX, u64::MAX);
        let of = |(all, good): (u64, u64)| 100.0 * good as f64 / all as f64;
        let core = of(run(&jobs, &exact, seed).unwrap().user);
        let order = of(clairvoyant(&jobs, 4, 200 * MS, Rule::Earliest));
        println!("{}: core {core:.2}, order {order:.2}", column.name);
        assert!((core - order).abs() < 1.0, "{}: {core} and {order}", column.name);
    }
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
        reserved in 0u32..6,
        reset in any::<bool>(),
        backlog in any::<bool>(),
        down in prop::option::of((1u32..=3, 1u64..60)),
    ) {
        let spec = Spec { backlog, jobs: 30, ..Spec::new(COLUMNS[column], factor, seed) };
        let mut options = options(policy::NAMES[place], reserved);
        options.pool.reset = reset;
        options.down = down.map(|(count, at)| (count, at * SECOND));
        if policy::NAMES[place] == "deadline" {
            options.limits = Limits {
                batch_wait_ns: Some(1_200 * MS),
                is_work_conserving: true,
                lag_longest_ns: Some(105 * MS),
                turn_longest_ns: Some(105 * MS),
                user_lag_ns: Some((178 * MS, options.pool.slack_ns)),
                by_tenant: false,
            };
        }
        let found = run(&generate(&spec), &options, seed).unwrap();
        prop_assert_eq!(found.violation, None);
    }
}
