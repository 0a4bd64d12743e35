//! Flexy's figures, the sensitivity to what it leaves open, and what goes past it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use weft_sched::pool::bench_support::SaturatedPool;
use weft_sched::pool::{PoolConfig, policy};

use super::study::{
    Bench, CEILING, Curve, DEADLINE, ENTRIES, Entry, NOISY, UNSLICED, by_name, interval,
};
use super::workload::{COLUMNS, Column, Job, Spec};
use crate::outcome::{Outcome, PlotKind};
use crate::seeds::median;
use crate::{MS, SECOND};

/// The SLA of the paper, in ns.
const SLA_NS: u64 = 200 * MS;
/// The longer one of Figure 7.
const LONG_SLA_NS: u64 = SECOND;
/// Loads of the curves, `f` in thousandths; the paper has 125 to 4,000.
const FACTORS: [u64; 11] = [4_000, 2_000, 1_000, 500, 400, 350, 300, 275, 250, 200, 125];
const FACTORS_QUICK: [u64; 3] = [400, 300, 250];
/// Loads between which 70 % and 85 % lie.
const FACTORS_GRID: [u64; 4] = [450, 350, 275, 225];
/// Where policies are compared.
const UTILIZATIONS: [f64; 8] = [0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9];
/// The utilisation of the goal.
const GOAL: f64 = 0.85;

/// Everything that `weft sim flexy` found.
#[derive(Debug)]
pub struct Evaluation {
    /// The figures of design §9 and the controls.
    pub summary: Outcome,
    /// The sections of the report.
    pub sections: Vec<Outcome>,
}

/// Runs the evaluation with `seeds` seeds from `seed` on; `quick` for checking that it works.
/// `progress` is told what begins.
pub fn evaluate(seed: u64, seeds: u64, quick: bool, progress: &mut dyn FnMut(&str)) -> Evaluation {
    let bench = Bench::new(seed, seeds);
    let factors = if quick { &FACTORS_QUICK[..] } else { &FACTORS[..] };
    let mut all = Outcome::new("flexy", "Flexy's evaluation and past it", window(seeds));
    let mut sections = Vec::new();
    for column in COLUMNS {
        for sla_ns in [SLA_NS, LONG_SLA_NS] {
            progress(&format!("{} with {} ms", column.name, sla_ns / MS));
            let curves = bench.curves(&Spec::new(column, 0, 0), sla_ns, &ENTRIES, factors);
            if sla_ns == SLA_NS {
                goals(&mut all, column, &curves);
            }
            sections.push(section(&mut all, column, sla_ns, &curves));
        }
    }
    progress("the paper's statements");
    sections.insert(0, statements(&bench, quick));
    progress("what the paper leaves open");
    sections.push(sensitivity(&bench, &mut all, quick));
    progress("ablations");
    sections.push(ablations(&bench, &mut all));
    progress("fairness inside the pools");
    sections.push(fairness(&bench, &mut all));
    progress("the time series");
    sections.push(series(&bench));
    progress("a device that goes away");
    departure(&bench, &mut all);
    progress("the cost of a decision");
    let batches = if quick { 51 } else { 501 };
    let cost = |name: &str| decision_ns(name, 64, 10_000, batches);
    all.figure("decision_ns_p50", cost("deadline"));
    for name in policy::NAMES.iter().filter(|name| **name != "deadline") {
        all.baseline(format!("decision_ns_p50_{name}"), cost(name));
    }
    finish(&bench, &mut all);
    Evaluation { summary: all, sections }
}

fn window(seeds: u64) -> String {
    format!("100 jobs on 4 devices until the last arrival, means of {seeds} seeds")
}

fn finish(bench: &Bench, all: &mut Outcome) {
    let violations = bench.violations.load(Ordering::Relaxed);
    all.figure("invariant_violations", violations as f64);
    all.figure("runs", bench.runs.load(Ordering::Relaxed) as f64);
    all.figure("events", bench.events.load(Ordering::Relaxed) as f64);
    all.other_violations = violations as u64;
    all.first_violation = bench.first.lock().unwrap_or_else(PoisonError::into_inner).clone();
}

fn find<'a>(curves: &'a [Curve], name: &str) -> Option<&'a Curve> {
    curves.iter().find(|curve| curve.name == name)
}

/// The figures of the goals, at the measured load of least utilisation at or above the goal's.
fn goals(all: &mut Outcome, column: Column, curves: &[Curve]) {
    let (Some(ours), Some(ceiling)) = (find(curves, "deadline"), find(curves, "ceiling")) else {
        return;
    };
    let order = |one: &usize, other: &usize| {
        ours.points[*one].utilization.total_cmp(&ours.points[*other].utilization)
    };
    let places = 0..ours.points.len();
    let enough = places.clone().filter(|place| ours.points[*place].utilization >= GOAL);
    let Some(place) = enough.min_by(order).or_else(|| places.max_by(order)) else { return };
    let (point, best) = (&ours.points[place], &ceiling.points[place]);
    let gaps: Vec<f64> =
        best.each.iter().zip(&point.each).map(|(one, other)| one - other).collect();
    let (gap, half) = interval(&gaps);
    let name = column.name.replace(':', "_");
    all.figure(format!("deadline_sla_{name}"), point.sla / 100.0);
    all.figure(format!("deadline_sla_half_interval_{name}"), point.half / 100.0);
    all.figure(format!("deadline_utilization_{name}"), point.utilization);
    all.figure(format!("gap_to_ceiling_points_{name}"), gap);
    all.figure(format!("gap_to_ceiling_half_interval_{name}"), half);
    all.baseline(format!("ceiling_sla_{name}"), best.sla / 100.0);
    let resets: f64 = ours.points.iter().map(|point| point.resets).sum();
    let wait = ours.points.iter().map(|point| point.batch_wait_ns).max().unwrap_or(0);
    low(all, "deadline_sla_min", point.sla / 100.0);
    low(all, "deadline_sla_of_feasible_min", point.sla / best.sla.max(1e-9));
    low(all, "deadline_utilization", point.utilization);
    high(all, "gap_to_ceiling_points", gap);
    high(all, "deadline_resets", resets);
    high(all, "batch_wait_max_s", wait as f64 / 1e9);
    for name in ["fifo", "round_robin"] {
        if let Some(of) = find(curves, name) {
            let control = format!("{name}_sla_{}", column.name.replace(':', "_"));
            all.control(control, of.points[place].sla / 100.0);
        }
    }
}

fn low(all: &mut Outcome, name: &str, value: f64) {
    let value = all.figures.get(name).map_or(value, |known| known.min(value));
    all.figure(name, value);
}

fn high(all: &mut Outcome, name: &str, value: f64) {
    let value = all.figures.get(name).map_or(value, |known| known.max(value));
    all.figure(name, value);
}

/// Curves of one column and SLA, and where `deadline` is not the best.
fn section(all: &mut Outcome, column: Column, sla_ns: u64, curves: &[Curve]) -> Outcome {
    let ms = sla_ns / MS;
    let name = format!("{} within {ms} ms", column.name);
    let title = format!("jobs {} (the paper's {}), SLA {ms} ms", column.name, column.paper);
    let mut outcome = Outcome::new(&name, &title, "outstanding at most 8, shape 1.8, no backlog");
    draw(&mut outcome, "Policies", &POLICY_LINES, curves);
    draw(&mut outcome, "K reserved devices", &K_LINES, curves);
    for curve in curves {
        for at in [0.5, 0.7, GOAL] {
            if let Some(value) = curve.at(at) {
                outcome.figure(format!("{}_at_{:.0}", curve.name, 100.0 * at), value);
            }
        }
        let resets = curve.points.iter().map(|point| point.resets).fold(0.0, f64::max);
        if resets > 0.0 {
            outcome.figure(format!("{}_resets_per_run_max", curve.name), resets);
        }
        let longest = curve.points.iter().map(|point| point.batch_wait_ns).max().unwrap_or(0);
        outcome.figure(format!("{}_batch_wait_max_s", curve.name), longest as f64 / 1e9);
        let turnaround = curve.points.iter().map(|point| point.batch_longest_ns).max();
        let seconds = turnaround.unwrap_or(0) as f64 / 1e9;
        outcome.figure(format!("{}_batch_task_longest_s", curve.name), seconds);
    }
    compare(all, &mut outcome, curves);
    outcome
}

/// Lines of the first plot of a column, and of the second; a plot has eight colours.
const POLICY_LINES: [&str; 8] = [
    "deadline",
    "ceiling",
    "fifo",
    "round_robin",
    "priority_k1",
    "flexy_k1",
    "flexy_reset",
    "adaptive",
];
const K_LINES: [&str; 8] = [
    "flexy_k0",
    "flexy_k1",
    "flexy_k2",
    "flexy_k3",
    "priority_k0",
    "priority_k1",
    "priority_k2",
    "priority_k3",
];

fn draw(outcome: &mut Outcome, what: &str, names: &[&str], curves: &[Curve]) {
    let title = format!("{what}: user-facing tasks in time against utilisation");
    let plot = outcome.plot(PlotKind::Lines, &title, "utilisation, %", "in time, %");
    for curve in names.iter().filter_map(|name| find(curves, name)) {
        let points = curve.points.iter().map(|point| (100.0 * point.utilization, point.sla));
        match curve.name {
            "ceiling" => plot.dashed(curve.name, points),
            _ => plot.series(curve.name, points),
        };
        if let Some(last) = plot.series.last_mut() {
            let ends =
                |point: &super::study::Point| (point.sla - point.half, point.sla + point.half);
            last.ranges = curve.points.iter().map(ends).collect();
        }
    }
}

/// Says where another policy is ahead of `deadline`.
fn compare(all: &mut Outcome, outcome: &mut Outcome, curves: &[Curve]) {
    let Some(ours) = find(curves, "deadline") else { return };
    let others = || curves.iter().filter(|curve| !matches!(curve.name, "deadline" | "ceiling"));
    let mut places = 0.0;
    let mut behind = Vec::new();
    for at in UTILIZATIONS {
        let Some(value) = ours.at(at) else { continue };
        places += 1.0;
        for other in others() {
            if let Some(ahead) = other.at(at).filter(|other| *other > value) {
                let percent = 100.0 * at;
                behind.push(format!("{} at {percent:.0} %: {ahead:.2}", other.name));
            }
        }
    }
    let count = all.figures.get("compared_utilizations").copied().unwrap_or(0.0) + places;
    all.figure("compared_utilizations", count);
    let worse = all.figures.get("deadline_not_best").copied().unwrap_or(0.0);
    all.figure("deadline_not_best", worse + behind.len() as f64);
    let ours = if behind.is_empty() { "nowhere".to_owned() } else { behind.join(", ") };
    outcome.compare("Utilisations at which another policy is ahead of deadline", "–", ours);
}

/// A spec of the readings under which the paper's statements are held.
fn reading(column: Column, outstanding: Option<u32>, shape_tenths: u32, backlog: bool) -> Spec {
    Spec { outstanding, shape_tenths, backlog, ..Spec::new(column, 0, 0) }
}

/// Statement, column, utilisation, entries, and what the paper says.
type Statement = (&'static str, usize, f64, &'static [&'static str], &'static str);

const STATEMENTS: [Statement; 9] = [
    ("K = 1 in W1 at 70 %", 0, 0.7, &["flexy_k1", "priority_k1"], "98 (abstract), > 95 (§IV-A)"),
    ("K = 0 in W1 at 80 %", 0, 0.8, &["flexy_k0", "priority_k0"], "85"),
    ("K = 0 in W1 at 70 %", 0, 0.7, &["flexy_k0", "priority_k0"], "20 (§IV-A) and 90 (§IV-D)"),
    ("round robin in W1 above 80 %", 0, 0.82, &["round_robin"], "< 30"),
    ("resets in W1 at 45 %", 0, 0.45, &["flexy_reset", "priority_reset"], "65, 52"),
    (
        "K = 1 in W2 at 60 % (its count column is 40:60; the label says 20-80)",
        1,
        0.6,
        &["flexy_k1", "priority_k1"],
        "77",
    ),
    ("K = 0 in W2 at 60 %", 1, 0.6, &["flexy_k0", "priority_k0"], "65"),
    (
        "K = 1 in W3 at 57 % (its count column is 20:80; the label says 60-40)",
        2,
        0.57,
        &["flexy_k1", "priority_k1"],
        "97",
    ),
    ("K = 0 in W3 at 57 %", 2, 0.57, &["flexy_k0", "priority_k0"], "95"),
];

/// Outstanding tasks of a job; none is all at once.
const OUTSTANDING: [Option<u32>; 5] = [Some(1), Some(2), Some(4), Some(8), None];

fn spell(outstanding: Option<u32>) -> String {
    outstanding.map_or_else(|| "all".to_owned(), |most| format!("≤{most}"))
}

fn statements(bench: &Bench, quick: bool) -> Outcome {
    let window = "shape 1.5, no backlog; in time, %, by outstanding tasks per job";
    let mut outcome = Outcome::new("statements", "what the paper says, and this model", window);
    let names = ["flexy_k0", "flexy_k1", "priority_k0", "priority_k1", "round_robin"];
    let resets = ["flexy_reset", "priority_reset"];
    let entries: Vec<Entry> = names.iter().chain(&resets).map(|name| by_name(name)).collect();
    let factors = if quick { &FACTORS_QUICK[..] } else { &[700, 550, 450, 350, 275, 225, 175][..] };
    let readings = if quick { &OUTSTANDING[3..4] } else { &OUTSTANDING[..] };
    let mut found = Vec::new();
    for column in COLUMNS {
        for outstanding in readings {
            let spec = reading(column, *outstanding, 15, false);
            found.push((column, *outstanding, bench.curves(&spec, SLA_NS, &entries, factors)));
        }
    }
    for (what, column, at, names, paper) in STATEMENTS {
        let of_column = found.iter().filter(|(of, ..)| *of == COLUMNS[column]);
        let texts = of_column.map(|(_, outstanding, curves)| {
            let values: Vec<String> = names
                .iter()
                .map(|name| find(curves, name).and_then(|curve| curve.at(at)))
                .map(|value| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.0}")))
                .collect();
            format!("{}: {}", spell(*outstanding), values.join(", "))
        });
        let ours = texts.collect::<Vec<_>>().join("; ");
        outcome.compare(&format!("{what} ({})", names.join(", ")), paper, ours);
    }
    for (column, outstanding, curves) in &found {
        for curve in curves {
            let (column, of) = (column.name.replace(':', "_"), spell(*outstanding));
            if let Some(value) = curve.at(0.7) {
                outcome.figure(format!("{}_{column}_{of}_at_70", curve.name), value);
            }
        }
    }
    outcome.note(
        "Table II is headed \"user-facing to batch\"; its durations give the job counts 80:20, 40:60 \
         and 20:80, so results are named by counts. \"–\": that utilisation is not reached.",
    );
    outcome.note(
        "\"Remaining task execution time is less than the reset overhead\" (§II-C3) is read as \
         greater. The window of the average execution time is 16 tasks here; the paper has no number.",
    );
    outcome.note(
        "Algorithm 1 sorts devices by completion, so idle ones stand before those that serve a \
         user-facing task: `flexy` follows it. In `flexy_packed` devices that serve count in U, as \
         the text (\"packs all user-facing tasks to a subset\") can also be read.",
    );
    outcome
}

fn sensitivity(bench: &Bench, all: &mut Outcome, quick: bool) -> Outcome {
    let title = "outstanding × shape × backlog";
    let window = "in time, %, at 70 % and 85 % utilisation, or at the highest load with a backlog";
    let mut outcome = Outcome::new("sensitivity", title, window);
    let names = ["round_robin", "priority_k0", "priority_k1", "flexy_k0", "flexy_k1"];
    let mut entries: Vec<Entry> = names.iter().map(|name| by_name(name)).collect();
    entries.extend([DEADLINE, CEILING]);
    let shapes = if quick { &[18][..] } else { &[15, 18, 25][..] };
    let outstandings = if quick { &OUTSTANDING[3..4] } else { &OUTSTANDING[..] };
    let factors = if quick { &FACTORS_QUICK[1..2] } else { &FACTORS_GRID[..] };
    let (mut cells, mut behind, mut widest) = (0.0, 0.0, f64::MIN);
    for column in COLUMNS {
        for outstanding in outstandings {
            for shape in shapes {
                for backlog in [false, true] {
                    let spec = reading(column, *outstanding, *shape, backlog);
                    let curves = bench.curves(&spec, SLA_NS, &entries, factors);
                    let (row, best, gap) = cell(&curves, backlog);
                    cells += 1.0;
                    behind += f64::from(u8::from(!best));
                    widest = widest.max(gap);
                    let stand = if backlog { "standing" } else { "no" };
                    let shape = f64::from(*shape) / 10.0;
                    let of = spell(*outstanding);
                    let what = format!(
                        "{}, {of} outstanding, shape {shape}, {stand} backlog",
                        column.name
                    );
                    outcome.compare(&what, "–", row);
                }
            }
        }
    }
    all.figure("sensitivity_cells", cells);
    all.figure("sensitivity_cells_deadline_not_best", behind);
    all.figure("sensitivity_gap_to_ceiling_points_max", widest);
    outcome
}

/// A cell's row; whether `deadline` is the best; its largest gap to the ceiling at a load.
fn cell(curves: &[Curve], backlog: bool) -> (String, bool, f64) {
    let last = |curve: &Curve| curve.points.last().map(|point| point.sla);
    let mut texts = Vec::new();
    let mut is_best = true;
    for curve in curves {
        let values: Vec<String> = if backlog {
            last(curve).iter().map(|value| format!("{value:.1}")).collect()
        } else {
            let at = [0.7, GOAL].map(|at| curve.at(at));
            at.map(|value| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.1}")))
                .into()
        };
        texts.push(format!("{} {}", curve.name, values.join("/")));
    }
    let Some(ours) = find(curves, "deadline") else { return (String::new(), false, 0.0) };
    for other in curves.iter().filter(|other| !matches!(other.name, "deadline" | "ceiling")) {
        let pairs = other.points.iter().zip(&ours.points);
        is_best &= pairs.clone().all(|(other, ours)| other.sla <= ours.sla);
    }
    let ceiling = find(curves, "ceiling");
    let gaps = ceiling.into_iter().flat_map(|ceiling| ceiling.points.iter().zip(&ours.points));
    let gap = gaps.map(|(best, ours)| best.sla - ours.sla).fold(f64::MIN, f64::max);
    (texts.join(", "), is_best, gap)
}

/// `deadline` with one thing taken away or made worse.
fn ablations(bench: &Bench, all: &mut Outcome) -> Outcome {
    let title = "deadline without slices, and with wrong estimates";
    let mut outcome = Outcome::new("ablations", title, "f = 0.275, in time, %");
    let entries = [DEADLINE, UNSLICED, NOISY];
    for column in COLUMNS {
        for mixed in [false, true] {
            let spec = Spec { mixed, ..Spec::new(column, 0, 0) };
            let curves = bench.curves(&spec, SLA_NS, &entries, &[275]);
            let tasks = if mixed { "mixed" } else { "identical" };
            for curve in &curves {
                let name = column.name.replace(':', "_");
                let value = curve.points[0].sla;
                outcome.figure(format!("{}_{name}_{tasks}", curve.name), value);
                if curve.name == UNSLICED.name && !mixed {
                    all.control(format!("deadline_unsliced_sla_{name}"), value / 100.0);
                }
                if curve.name == NOISY.name && !mixed {
                    low(all, "deadline_noisy_sla_min", value / 100.0);
                }
            }
        }
    }
    outcome.note(
        "`deadline_noisy`: task times vary by up to 10 %, estimates by up to 30 % beside that. \
         `mixed`: the tasks of a job differ.",
    );
    outcome
}

/// Three vGPUs of each class with weights 1:2:3 that always have work.
fn fairness(bench: &Bench, all: &mut Outcome) -> Outcome {
    let title = "weights 1:2:3 inside each pool";
    let window = "MMR over 60 s: least over largest service per weight";
    let mut outcome = Outcome::new("fairness", title, window);
    for name in ["deadline", "priority_k1", "flexy_k1", "round_robin", "fifo"] {
        for (pool, user_facing) in [("user", true), ("batch", false)] {
            let jobs = contenders(user_facing);
            let found = bench.run_jobs(&jobs, &by_name(name).options(SLA_NS), bench.seed);
            let per_weight: Vec<f64> = (0..3)
                .map(|job| found.service_ns[job] as f64 / f64::from(jobs[job].weight))
                .collect();
            let least = per_weight.iter().copied().fold(f64::MAX, f64::min);
            let mmr = least / per_weight.iter().copied().fold(1.0, f64::max);
            outcome.figure(format!("{name}_{pool}_mmr"), mmr);
            match name {
                "deadline" => low(all, "pool_mmr_min", mmr),
                _ => all.control(format!("{name}_{pool}_mmr"), mmr),
            }
        }
    }
    let mut options = DEADLINE.options(SLA_NS);
    options.limits.lag_longest_ns = Some(2_674 * MS);
    let lags = bench.all(COLUMNS.len(), |place| {
        let seeds = bench.seed..bench.seed + bench.seeds;
        let specs = seeds.map(|seed| Spec::new(COLUMNS[place], 250, seed));
        specs.map(|spec| bench.run(&spec, &options).lag_permille).max()
    });
    let share = lags.into_iter().flatten().max().unwrap_or(0) as f64 / 1_000.0;
    all.figure("batch_lag_over_bound_max", share);
    outcome.figure("batch_lag_over_bound_max", share);
    outcome
        .note("User-facing work here is more than four devices can do, batch work beside little.");
    outcome
}

fn contenders(user_facing: bool) -> Vec<Job> {
    let (ms, count) = if user_facing { (50, 6_000) } else { (512, 600) };
    let job = |weight| Job {
        arrival_ns: 0,
        user_facing,
        weight,
        outstanding: 16,
        tasks: vec![(0, ms * MS); count],
    };
    let mut jobs: Vec<Job> = (1..=3).map(job).collect();
    // The last arrival ends the window; until then a little work of the other class.
    let last = [(1, 50 * MS)].to_vec();
    jobs.extend((1..=60).map(|second| Job {
        arrival_ns: second * SECOND,
        user_facing: !user_facing,
        weight: 1,
        outstanding: 1,
        tasks: last.clone(),
    }));
    jobs
}

/// Figure 8: devices and latencies over time, for Flexy with K = 1 and `deadline`.
fn series(bench: &Bench) -> Outcome {
    let window = "jobs 80:20, f = 0.3, one seed";
    let mut outcome = Outcome::new("figure8", "devices and latencies over time", window);
    let spec = Spec::new(COLUMNS[0], 300, bench.seed);
    for name in ["flexy_k1", "deadline"] {
        let mut options = by_name(name).options(SLA_NS);
        options.series = true;
        let found = bench.run(&spec, &options);
        let end = found.served.last().map_or(1.0, |last| last.0).min(60.0);
        let every = end / 300.0;
        let title = format!("{name}: devices for user-facing tasks, and running batch tasks");
        let plot = outcome.plot(PlotKind::Lines, &title, "time, s", "devices");
        let (mut user, mut batch, mut next) = (Vec::new(), Vec::new(), 0.0);
        for (at, of_user, of_batch) in found.devices.iter().filter(|(at, ..)| *at <= end) {
            if *at >= next {
                user.push((*at, f64::from(*of_user)));
                batch.push((*at, f64::from(*of_batch)));
                next = at + every;
            }
        }
        plot.series("user-facing", user);
        plot.series("batch", batch);
        let title = format!("{name}: latency of user-facing tasks");
        let plot = outcome.plot(PlotKind::Lines, &title, "time, s", "ms");
        plot.line_at(200.0, "SLA");
        plot.series("latency", found.served.iter().filter(|(at, _)| *at <= end).copied());
    }
    outcome
}

/// Two of four devices go in the middle of a run: every task is done all the same.
fn departure(bench: &Bench, all: &mut Outcome) {
    let before = bench.violations.load(Ordering::Relaxed);
    for name in ["deadline", "flexy_k1", "priority_reset"] {
        for seed in bench.seed..bench.seed + bench.seeds {
            let mut options = by_name(name).options(SLA_NS);
            options.down = Some((2, 40 * SECOND));
            bench.run(&Spec::new(COLUMNS[1], 400, seed), &options);
        }
    }
    let lost = bench.violations.load(Ordering::Relaxed) - before;
    all.figure("departure_violations", lost as f64);
}

/// Decisions of one batch.
const BATCH: u32 = 200;

/// What a task costs a pool's core on this machine, its end and its submission, in ns of real time:
/// the median over batches.
#[must_use]
pub fn decision_ns(name: &str, devices: u32, tasks: u32, batches: u32) -> f64 {
    let policy = policy::by_name(name).unwrap_or_default();
    let config = PoolConfig { policy, ..PoolConfig::default() };
    let mut pool = SaturatedPool::new(config, devices, tasks);
    for _ in 0..2 * tasks {
        std::hint::black_box(pool.decide());
    }
    let costs: Vec<f64> = (0..batches)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..BATCH {
                std::hint::black_box(pool.decide());
            }
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    median(&costs)
}
