//! Flexy's figures, the sensitivity to what it leaves open, and what goes past it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use weft_sched::pool::bench_support::SaturatedPool;
use weft_sched::pool::{PoolConfig, policy};

use super::fairness::fairness;
use super::paper::{figure7, section_name, statements};
use super::study::{
    Bench, CEILING, CLAIRVOYANT, Curve, DEADLINE, ENTRIES, Entry, JITTER, JITTER_CEILING, NOISY,
    Point, UNSLICED, by_name, interval,
};
use super::workload::{COLUMNS, Column, Spec};
use crate::outcome::{Outcome, PlotKind, Span, Timeline};
use crate::seeds::median;
use crate::{MS, SECOND};

/// The SLA of the paper, in ns.
pub(super) const SLA_NS: u64 = 200 * MS;
/// The longer one of Figure 7.
pub(super) const LONG_SLA_NS: u64 = SECOND;
/// Loads of the curves, `f` in thousandths; the paper has 125 to 4,000.
const FACTORS: [u64; 11] = [4_000, 2_000, 1_000, 500, 400, 350, 300, 275, 250, 200, 125];
pub(super) const FACTORS_QUICK: [u64; 3] = [400, 300, 250];
/// Loads between which 70 % and 85 % lie.
const FACTORS_GRID: [u64; 4] = [450, 350, 275, 225];
/// Seeds of a cell of the grid at most: it has a multiple of the columns' runs.
const GRID_SEEDS: u64 = 10;
/// The negative control.
const FIFO: &str = "fifo";
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
            let wait = find(&curves, "deadline")
                .map_or(0.0, |curve| longest_s(curve, |point| point.batch_wait_ns));
            high(&mut all, "batch_wait_max_s", wait);
            let turns = find(&curves, "deadline").into_iter().flat_map(|curve| &curve.points);
            let most = turns.map(|point| point.turn_permille).max().unwrap_or(0);
            high(&mut all, "batch_wait_over_bound_max", most as f64 / 1_000.0);
            if sla_ns == SLA_NS {
                goals(&mut all, column, &curves);
            }
            sections.push(section(&mut all, column, sla_ns, &curves));
        }
    }
    progress("the paper's statements");
    sections.insert(0, statements(&bench, quick));
    progress("latencies with resets");
    sections.push(figure7(&bench));
    progress("what the paper leaves open");
    sections.push(sensitivity(&bench, &mut all, quick));
    progress("ablations");
    sections.push(ablations(&bench, &mut all));
    progress("fairness inside the pools");
    sections.push(fairness(&bench, &mut all, SLA_NS));
    progress("the time series");
    sections.push(series(&bench));
    progress("a device that goes away");
    departure(&bench, &mut all);
    progress("the cost of a decision");
    let batches = if quick { 51 } else { 501 };
    let cost = |name: &str, by_tenant| decision_ns(name, by_tenant, 64, 10_000, batches);
    all.figure("decision_ns_p50", cost("deadline", false));
    all.figure("decision_ns_p50_by_tenant", cost("deadline", true));
    for name in policy::NAMES.iter().filter(|name| **name != "deadline") {
        all.baseline(format!("decision_ns_p50_{name}"), cost(name, false));
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

pub(super) fn find<'a>(curves: &'a [Curve], name: &str) -> Option<&'a Curve> {
    curves.iter().find(|curve| curve.name == name)
}

/// The figures of the goals, at the measured load of least utilisation at or above the goal's.
fn goals(all: &mut Outcome, column: Column, curves: &[Curve]) {
    let (Some(ours), Some(ceiling)) = (find(curves, "deadline"), find(curves, CEILING.name)) else {
        return;
    };
    let Some(place) = goal_load(ours) else { return };
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
    if let Some(of) = find(curves, CLAIRVOYANT.name) {
        all.baseline(format!("clairvoyant_edf_sla_{name}"), of.points[place].sla / 100.0);
    }
    let resets: f64 = ours.points.iter().map(|point| point.resets).sum();
    low(all, "deadline_sla_min", point.sla / 100.0);
    low(all, "deadline_sla_of_ceiling_min", point.sla / best.sla.max(1e-9));
    low(all, "deadline_utilization", point.utilization);
    high(all, "gap_to_ceiling_points", gap);
    high(all, "deadline_resets", resets);
    high(all, "batch_dry_max_s", longest_s(ours, |point| point.batch_dry_ns));
    high(all, "batch_turnaround_max_s", longest_s(ours, |point| point.batch_longest_ns));
    high(all, "user_latency_p999_s", point.user_p999_ns as f64 / 1e9);
    high(all, "user_latency_max_s", point.user_longest_ns as f64 / 1e9);
    for name in [FIFO, "round_robin"] {
        if let Some(of) = find(curves, name) {
            let control = format!("{name}_sla_{}", column.name.replace(':', "_"));
            all.control(control, of.points[place].sla / 100.0);
        }
    }
}

/// The longest of all loads, in s.
fn longest_s(curve: &Curve, of: impl Fn(&Point) -> u64) -> f64 {
    curve.points.iter().map(of).max().unwrap_or(0) as f64 / 1e9
}

/// The place of the load of least utilisation at or above the goal's, or of the largest.
fn goal_load(ours: &Curve) -> Option<usize> {
    let order = |one: &usize, other: &usize| {
        ours.points[*one].utilization.total_cmp(&ours.points[*other].utilization)
    };
    let places = 0..ours.points.len();
    let enough = places.clone().filter(|place| ours.points[*place].utilization >= GOAL);
    enough.min_by(order).or_else(|| places.max_by(order))
}

pub(super) fn low(all: &mut Outcome, name: &str, value: f64) {
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
    let name = section_name(column, sla_ns);
    let title = format!("jobs {} (the paper's {}), SLA {ms} ms", column.name, column.paper);
    let mut outcome = Outcome::new(&name, &title, "outstanding at most 8, shape 1.8, no backlog");
    let load = find(curves, "deadline").and_then(goal_load);
    draw(&mut outcome, "Policies", &POLICY_LINES, curves);
    draw(&mut outcome, "K reserved devices", &K_LINES, curves);
    for curve in curves {
        for at in [0.5, 0.7, GOAL] {
            if let (Some(value), Some(half)) = (curve.at(at), curve.half_at(at)) {
                outcome.figure(format!("{}_at_{:.0}", curve.name, 100.0 * at), value);
                outcome.figure(format!("{}_half_at_{:.0}", curve.name, 100.0 * at), half);
            }
        }
        let resets = curve.points.iter().map(|point| point.resets).fold(0.0, f64::max);
        if resets > 0.0 {
            outcome.figure(format!("{}_resets_per_run_max", curve.name), resets);
        }
        if curve.name == CEILING.name {
            continue;
        }
        let mut tell = |what: &str, value| {
            outcome.figure(format!("{}_{what}", curve.name), value);
        };
        tell("batch_wait_max_s", longest_s(curve, |point| point.batch_wait_ns));
        tell("batch_dry_max_s", longest_s(curve, |point| point.batch_dry_ns));
        tell("batch_turnaround_max_s", longest_s(curve, |point| point.batch_longest_ns));
        if let Some(point) = load.and_then(|load| curve.points.get(load)) {
            tell("batch_wait_at_goal_s", point.batch_wait_ns as f64 / 1e9);
            tell("user_p999_at_goal_s", point.user_p999_ns as f64 / 1e9);
            tell("user_longest_at_goal_s", point.user_longest_ns as f64 / 1e9);
        }
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
            "ceiling" | "clairvoyant_edf" => plot.dashed(curve.name, points),
            _ => plot.series(curve.name, points),
        };
        if let Some(last) = plot.series.last_mut() {
            let ends = |point: &Point| (point.sla - point.half, point.sla + point.half);
            last.ranges = curve.points.iter().map(ends).collect();
        }
    }
}

/// Says where another policy is ahead of `deadline`, and `flexy` behind `priority`.
fn compare(all: &mut Outcome, outcome: &mut Outcome, curves: &[Curve]) {
    let Some(ours) = find(curves, "deadline") else { return };
    let (mut texts, mut furthest) = (Vec::new(), 0.0f64);
    for other in curves.iter().filter(|curve| !curve.is_clairvoyant && curve.name != ours.name) {
        let compared = Behind::of(ours, other);
        add(all, "compared_utilizations", compared.compared);
        add(all, "deadline_not_best", compared.places.len());
        furthest = furthest.max(compared.furthest);
        if !compared.places.is_empty() {
            texts.push(format!("{} {}", other.name, compared.text()));
        }
    }
    high(all, "deadline_behind_points_max", furthest);
    let text = if texts.is_empty() { "nowhere".to_owned() } else { texts.join("; ") };
    outcome.compare("Where another policy is ahead of deadline", "–", text);
    let pair = |end: &str| {
        let (flexy, priority) = (format!("flexy_{end}"), format!("priority_{end}"));
        let found = Behind::of(find(curves, &flexy)?, find(curves, &priority)?);
        Some(format!("{end} {}", found.text()))
    };
    let texts: Vec<String> =
        ["k0", "k1", "k2", "k3", "reset"].into_iter().filter_map(pair).collect();
    outcome.compare("Where flexy is behind priority", "–", texts.join("; "));
}

/// Where a curve is behind another, at every whole percent of utilisation that both reach.
struct Behind {
    compared: usize,
    places: Vec<u32>,
    furthest: f64,
}

impl Behind {
    fn of(ours: &Curve, other: &Curve) -> Self {
        let mut found = Self { compared: 0, places: Vec::new(), furthest: 0.0 };
        for percent in 1..=100u32 {
            let at = f64::from(percent) / 100.0;
            let (Some(ours), Some(other)) = (ours.at(at), other.at(at)) else { continue };
            found.compared += 1;
            if other > ours {
                found.places.push(percent);
                found.furthest = found.furthest.max(other - ours);
            }
        }
        found
    }

    fn text(&self) -> String {
        let (Some(first), Some(last)) = (self.places.first(), self.places.last()) else {
            return format!("nowhere of {}", self.compared);
        };
        let (count, all, most) = (self.places.len(), self.compared, self.furthest);
        format!("at {count} of {all} between {first} and {last} %, by up to {most:.3} points")
    }
}

fn add(all: &mut Outcome, name: &str, count: usize) {
    let known = all.figures.get(name).copied().unwrap_or(0.0);
    all.figure(name, known + count as f64);
}

/// A spec of the readings under which the paper's statements are held.
pub(super) fn reading(
    column: Column,
    outstanding: Option<u32>,
    shape_tenths: u32,
    backlog: bool,
) -> Spec {
    Spec { outstanding, shape_tenths, backlog, ..Spec::new(column, 0, 0) }
}

/// Outstanding tasks of a job; none is all at once.
pub(super) const OUTSTANDING: [Option<u32>; 5] = [Some(1), Some(2), Some(4), Some(8), None];

pub(super) fn spell(outstanding: Option<u32>) -> String {
    outstanding.map_or_else(|| "all".to_owned(), |most| format!("≤{most}"))
}

fn sensitivity(bench: &Bench, all: &mut Outcome, quick: bool) -> Outcome {
    let title = "outstanding × shape × backlog";
    let seeds = bench.seeds.min(GRID_SEEDS);
    let window = format!(
        "in time, %, at 70 % and 85 % utilisation, or at the highest load with a backlog, with the \
         best of the other policies there; {seeds} seeds, with half the width of the 95 % interval"
    );
    let mut outcome = Outcome::new("sensitivity", title, window);
    let shapes = if quick { &[18][..] } else { &[15, 18, 25][..] };
    let outstandings = if quick { &OUTSTANDING[3..4] } else { &OUTSTANDING[..] };
    let factors = if quick { &FACTORS_QUICK[1..2] } else { &FACTORS_GRID[..] };
    let (mut cells, mut behind, mut widest) = (0.0, 0.0, f64::MIN);
    for column in COLUMNS {
        for outstanding in outstandings {
            for shape in shapes {
                for backlog in [false, true] {
                    let spec = reading(column, *outstanding, *shape, backlog);
                    let curves = bench.curves_of(seeds, &spec, SLA_NS, &ENTRIES, factors);
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

/// A cell's row; whether `deadline` is the best at every load; its largest gap to the ceiling at
/// one.
fn cell(curves: &[Curve], backlog: bool) -> (String, bool, f64) {
    let Some(ours) = find(curves, "deadline") else { return (String::new(), false, 0.0) };
    let rivals = || curves.iter().filter(|curve| !curve.is_clairvoyant && curve.name != ours.name);
    let values = |curve: &Curve| -> Vec<Option<(f64, f64)>> {
        if backlog {
            return vec![curve.points.last().map(|point| (point.sla, point.half))];
        }
        [0.7, GOAL].map(|at| Some((curve.at(at)?, curve.half_at(at)?))).into()
    };
    let spell = |(value, half): (f64, f64)| format!("{value:.1} ± {half:.1}");
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    let mut texts = Vec::new();
    let told = [Some(ours), find(curves, CEILING.name), find(curves, FIFO)];
    for curve in told.into_iter().flatten() {
        let of: Vec<String> =
            values(curve).into_iter().map(|value| or_none(value.map(spell))).collect();
        texts.push(format!("{} {}", curve.name, of.join(" / ")));
    }
    let best = |place: usize| {
        let each = rivals().filter_map(|curve| Some((values(curve)[place]?, curve.name)));
        let most = each.max_by(|one, other| one.0.0.total_cmp(&other.0.0));
        or_none(most.map(|(value, name)| format!("{name} {}", spell(value))))
    };
    let bests: Vec<String> = (0..values(ours).len()).map(best).collect();
    texts.push(format!("best other {}", bests.join(" / ")));
    let is_best = rivals().all(|other| {
        other.points.iter().zip(&ours.points).all(|(other, ours)| other.sla <= ours.sla)
    });
    let ceiling = find(curves, CEILING.name);
    let gaps = ceiling.into_iter().flat_map(|ceiling| ceiling.points.iter().zip(&ours.points));
    let gap = gaps.map(|(best, ours)| best.sla - ours.sla).fold(f64::MIN, f64::max);
    (texts.join(", "), is_best, gap)
}

/// `deadline` with one thing taken away or made worse.
fn ablations(bench: &Bench, all: &mut Outcome) -> Outcome {
    let title = "deadline without slices, and with wrong estimates";
    let mut outcome = Outcome::new("ablations", title, "f = 0.275, in time, %");
    let entries = [DEADLINE, CEILING, UNSLICED, JITTER, NOISY, JITTER_CEILING];
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
            for (what, ours, ceiling) in [
                ("plain", DEADLINE, CEILING),
                ("jitter", JITTER, JITTER_CEILING),
                ("noisy", NOISY, JITTER_CEILING),
            ] {
                let of = |entry: Entry| find(&curves, entry.name).map(|curve| curve.points[0].sla);
                if let (Some(ours), Some(ceiling)) = (of(ours), of(ceiling)) {
                    let name = format!("gap_to_ceiling_points_{tasks}_{what}");
                    high(all, &name, ceiling - ours);
                    high(&mut outcome, &name, ceiling - ours);
                }
            }
        }
    }
    outcome.note(
        "`jitter`: task times vary by up to 10 %, so that the last run of a kernel is no longer its \
         time. `noisy`: estimates are off by up to 30 % beside that. `mixed`: the tasks of a job \
         differ. Gaps are the largest of the columns.",
    );
    outcome
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
    for name in ["flexy_k1", "priority_reset", "deadline"] {
        let mut options = by_name(name).options(SLA_NS);
        options.series = true;
        let found = bench.run(&spec, &options);
        outcome.timelines.push(timeline(name, options.devices, found.spans));
    }
    outcome
}

/// A part of the run in which the devices have work.
const TIMELINE_S: (f64, f64) = (30.0, 36.0);

fn timeline(name: &str, devices: u32, mut spans: Vec<Span>) -> Timeline {
    let (from_s, to_s) = TIMELINE_S;
    spans.retain(|span| span.to_s > from_s && span.from_s < to_s);
    let title = format!("{name}: which device served whom, s {from_s} to {to_s}");
    let lanes = (0..devices).map(|device| format!("device {device}")).collect();
    Timeline { title, lanes, from_s, to_s, spans }
}

/// Two of four devices go in the middle of a run: every task is done all the same.
fn departure(bench: &Bench, all: &mut Outcome) {
    let before = bench.violations.load(Ordering::Relaxed);
    for name in ["deadline", "flexy_k1", "flexy_k3", "priority_k1", "priority_reset"] {
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
/// the median over batches. By tenant is how a node's pools share.
#[must_use]
pub fn decision_ns(name: &str, by_tenant: bool, devices: u32, tasks: u32, batches: u32) -> f64 {
    let policy = policy::by_name(name).unwrap_or_default();
    let config = PoolConfig { policy, by_tenant, ..PoolConfig::default() };
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
