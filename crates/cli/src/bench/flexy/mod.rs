//! `bench flexy`: Flexy's workload on four paced devices through the task interface, every output
//! verified, and the same arrivals simulated around the same pool core.

mod orders;
mod real;
mod verdict;
mod work;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use weft_sched::pool::{PoolConfig, policy};
use weft_sim::flexy::{COLUMNS, Column, Found, Options, Rule, clairvoyant, run as simulate};

use self::orders::Orders;
use self::real::Costs;
use self::verdict::Verdict;
use self::work::Work;
use super::Context;
use super::document::Document;
use super::several::{Model, borrowed};
use super::tenant::{Host, Kept};

/// Devices of the pool, as in Flexy's evaluation.
const DEVICES: u32 = 4;
/// Seed of the arrivals: the first with which every column can keep the pool as busy as asked
/// within the window (with the seed 1, `40:60` ends at 0.71).
const SEED: u64 = 2;
/// The utilisation that the load is chosen for, by simulation: a little more than the goal's, since
/// a node loses some time between tasks.
const UTILIZATION: f64 = 0.86;
/// Of a quick run, which is over before the pool has filled.
const UTILIZATION_QUICK: f64 = 0.6;

/// A policy with its settings: name of the figures, policy, reserved devices, resets.
#[derive(Debug, Clone, Copy)]
struct Entry {
    name: &'static str,
    policy: &'static str,
    reserved: u32,
    reset: bool,
    /// What must be seen to fail.
    is_control: bool,
}

const fn entry(name: &'static str, policy: &'static str, reserved: u32, reset: bool) -> Entry {
    Entry { name, policy, reserved, reset, is_control: false }
}

const DEADLINE: Entry = entry("deadline", "deadline", 0, false);
const FIFO: Entry = Entry { is_control: true, ..entry("fifo", "fifo", 0, false) };

/// The policies of the first column; in the others `deadline` runs.
const ENTRIES: [Entry; 5] = [
    DEADLINE,
    FIFO,
    entry("priority_k1", "priority", 1, false),
    entry("flexy_k1", "flexy", 1, false),
    entry("flexy_reset", "flexy", 0, true),
];

impl Entry {
    fn pool(&self) -> PoolConfig {
        let policy = policy::by_name(self.policy).unwrap_or_default();
        let (reserved, reset) = (self.reserved, self.reset);
        PoolConfig { policy, reserved, reset, sla_ns: work::SLA_NS, ..PoolConfig::default() }
    }
}

/// What all runs together come to.
#[derive(Debug, Default)]
struct Totals {
    lost: u64,
    resets: u64,
    stops: u64,
    sim_error: f64,
    /// Of `deadline`, by column: percent in time, utilisation.
    deadline: Vec<(f64, f64)>,
    control: f64,
    /// The largest of `deadline`'s columns.
    free_p99_ns: Option<u64>,
    /// Names of those that are of a run that is void.
    void: Vec<&'static str>,
}

/// Figures of a run.
const FIGURES: [&str; 10] = [
    "sla_pct",
    "utilization",
    "user_tasks",
    "p99_ms",
    "batch_wait_max_s",
    "stops",
    "resets",
    "lost_tasks",
    "sim_error_points",
    "free_ms_p99",
];

/// What is said of several runs, of which this entry's is one.
fn of_which(entry: Entry) -> &'static [&'static str] {
    match entry.policy {
        name if name == DEADLINE.policy => &[
            "sla_pct_at_85",
            "utilization",
            "resets",
            "stops",
            "free_ms_p99",
            "lost_tasks",
            "sim_error_points",
        ],
        name if name == FIFO.policy => &["lost_tasks", "sim_error_points", "sla_pct_fifo"],
        _ => &["lost_tasks", "sim_error_points"],
    }
}

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (seconds, target) = window(context.quick);
    let window = format!(
        "{seconds} s of arrivals per policy and column, Table I's times, up to 8 outstanding tasks, \
         shape 1.8, the load that the simulator has at a utilisation of {target}; each job's \
         kernel was loaded and run once on every device before, with the buffers of its longest \
         task, which is not judged"
    );
    let mut document = Document::new("flexy", "paced", &window);
    document.seed(SEED);
    let mut totals = Totals::default();
    let planned = plan(context)?;
    for (column, entries) in planned {
        let work = Work::at(column, SEED, seconds, target, DEADLINE.pool())?;
        baselines(&mut document, &work);
        for entry in entries {
            let name = format!("{}_{}", entry.name, work.name());
            let names = FIGURES.map(|figure| format!("{figure}_{name}"));
            let Some((real, kept)) = document.held(measure(context, entry, &work), names)? else {
                totals.void.extend_from_slice(of_which(entry));
                continue;
            };
            let free = Costs { reset_ns: real.costs.reset_ns, ..Costs::default() };
            let free = percent(simulated(entry, &work, free)?.user);
            let simulated = simulated(entry, &work, real.costs)?;
            document.baseline(format!("sim_sla_pct_without_overhead_{name}"), free);
            document.baseline(format!("overran_pct_{name}"), 100.0 * kept.overruns);
            totals.add(entry, &real, &simulated);
            report(&mut document, entry, &name, &real, &simulated);
        }
    }
    totals.report(&mut document);
    Ok(document)
}

/// Seconds of arrivals, and the utilisation that the load is chosen for.
fn window(quick: bool) -> (u64, f64) {
    if quick { (12, UTILIZATION_QUICK) } else { (36, UTILIZATION) }
}

/// What runs: all policies in the first column, `deadline` in the others; in a quick run two
/// policies in one column.
fn plan(context: &Context) -> Result<Vec<(Column, Vec<Entry>)>> {
    let columns = if context.quick { &COLUMNS[..1] } else { &COLUMNS[..] };
    let all = columns.iter().enumerate().map(|(place, column)| {
        let entries = match (place, context.quick) {
            (0, false) => &ENTRIES[..],
            (0, true) => &[DEADLINE, FIFO][..],
            _ => &[DEADLINE][..],
        };
        (*column, entries.to_vec())
    });
    let mut parts: Vec<(Column, Vec<Entry>)> = all.collect();
    let name = |column: &Column, entry: &Entry| format!("{}_{}", entry.name, work::name_of(column));
    let of_part = |(column, entries): &(Column, Vec<Entry>)| {
        entries.iter().map(|entry| name(column, entry)).collect::<Vec<_>>()
    };
    let names: Vec<String> = parts.iter().flat_map(of_part).collect();
    context.check_only(names.iter().map(String::as_str))?;
    for (column, entries) in &mut parts {
        entries.retain(|entry| context.wants(&name(column, entry)));
    }
    parts.retain(|(_, entries)| !entries.is_empty());
    Ok(parts)
}

/// One run of a policy on a node of its own.
fn measure(context: &Context, entry: Entry, work: &Work) -> Result<(Verdict, Kept)> {
    let model = Model::new(&work::model())?;
    // In flight on a device as much as the pool's slice is: the pool says who yields.
    let slice_us = (entry.pool().slice_ns / 1_000).to_string();
    let (reserved, reset) = (entry.reserved.to_string(), entry.reset.to_string());
    let mut settings = model.settings(DEVICES, Some(work::POOL));
    for (key, value) in
        [("policy", entry.policy), ("reserved", reserved.as_str()), ("reset", reset.as_str())]
    {
        settings.push((format!("pool.{}.{key}", work::POOL), value.to_owned()));
    }
    settings.push(("scheduling.slice_us".to_owned(), slice_us));
    let journal = model.folder();
    settings.push(("journal.dir".to_owned(), journal.display().to_string()));
    let start = || Host::node_with(None, &borrowed(&settings));
    let prepare = |host: &Host| real::prepare(host.daemon()?, work, entry.reserved);
    let (mut verdict, kept) = Host::prepared(context, start, prepare, |host, prepared| {
        let seen = real::run(host.daemon()?, work, &prepared)?;
        Ok(Verdict::of(&seen, work, DEVICES))
    })?;
    let orders = Orders::of(&journal)?;
    verdict.costs.reset_ns = orders.reset_mean_ns();
    verdict.free_p99_ns = orders.free_p99_ns();
    Ok((verdict, kept))
}

/// The same arrivals around the same core. Estimates are exact, as on the node after each kernel
/// ran once.
fn simulated(entry: Entry, work: &Work, costs: Costs) -> Result<Found> {
    let Costs { overhead_ns, round_trip_ns, reset_ns } = costs;
    let plain = Options { devices: DEVICES, clairvoyant: true, ..Options::new(entry.pool()) };
    let options = Options { overhead_ns, round_trip_ns, reset_ns, ..plain };
    let found = simulate(&work.jobs, &options, SEED)?;
    ensure!(found.violation.is_none(), "the simulated pool broke a promise: {found:?}");
    Ok(found)
}

fn baselines(document: &mut Document, work: &Work) {
    let name = work.name();
    document.baseline(format!("jobs_{name}"), count(work.jobs.len() as u64));
    document.baseline(format!("load_factor_{name}"), count(work.factor_permille) / 1e3);
    let of = |rule| percent(clairvoyant(&work.jobs, DEVICES, work::SLA_NS, rule));
    let ceiling = Rule::ALL.into_iter().map(of).fold(0.0, f64::max);
    document.baseline(format!("sla_pct_clairvoyant_{name}"), ceiling);
}

fn report(document: &mut Document, entry: Entry, name: &str, real: &Verdict, simulated: &Found) {
    let sim_pct = percent(simulated.user);
    let figures = [
        ("sla_pct", real.sla_pct()),
        ("utilization", real.utilization),
        ("user_tasks", count(real.user.0)),
        ("p99_ms", real.p99_ms),
        ("batch_wait_max_s", real.batch_wait_s),
        ("stops", count(real.stops)),
        ("resets", count(real.resets)),
        ("lost_tasks", count(real.lost)),
        ("sim_error_points", (real.sla_pct() - sim_pct).abs()),
    ];
    let free = real.free_p99_ns.map(|ns| ("free_ms_p99", count(ns) / 1e6));
    for (figure, value) in figures.into_iter().chain(free) {
        let figure = format!("{figure}_{name}");
        if entry.is_control {
            document.control(figure, value);
        } else {
            document.figure(figure, value);
        }
    }
    document.baseline(format!("sim_sla_pct_{name}"), sim_pct);
    document.baseline(format!("task_overhead_ms_{name}"), count(real.costs.overhead_ns) / 1e6);
    document.baseline(format!("task_round_trip_ms_{name}"), count(real.costs.round_trip_ns) / 1e6);
    if let Some(reset_ns) = real.costs.reset_ns {
        document.baseline(format!("reset_ms_{name}"), count(reset_ns) / 1e6);
    }
    document.baseline(format!("sim_utilization_{name}"), simulated.useful);
    document.baseline(format!("sim_resets_{name}"), count(simulated.resets.0));
}

impl Totals {
    fn add(&mut self, entry: Entry, real: &Verdict, simulated: &Found) {
        self.lost += real.lost;
        let error = (real.sla_pct() - percent(simulated.user)).abs();
        self.sim_error = self.sim_error.max(error);
        if entry.policy == DEADLINE.policy {
            self.resets += real.resets;
            self.stops += real.stops;
            self.free_p99_ns = self.free_p99_ns.max(real.free_p99_ns);
            self.deadline.push((real.sla_pct(), real.utilization));
        }
        if entry.policy == FIFO.policy {
            self.control = self.control.max(real.sla_pct());
        }
    }

    fn report(&self, document: &mut Document) {
        let least = |of: fn(&(f64, f64)) -> f64| self.deadline.iter().map(of).reduce(f64::min);
        if let (Some(sla_pct), Some(utilization)) = (least(|one| one.0), least(|one| one.1)) {
            document.figure("sla_pct_at_85", sla_pct);
            document.figure("utilization", utilization);
        }
        document.figure("resets", count(self.resets));
        document.figure("stops", count(self.stops));
        if let Some(ns) = self.free_p99_ns {
            document.figure("free_ms_p99", count(ns) / 1e6);
        }
        document.figure("lost_tasks", count(self.lost));
        document.figure("sim_error_points", self.sim_error);
        document.control("sla_pct_fifo", self.control);
        if !self.void.is_empty() {
            let names: BTreeSet<&str> = self.void.iter().copied().collect();
            document.void_with_rows(names);
        }
    }
}

fn percent((all, good): (u64, u64)) -> f64 {
    100.0 * count(good) / count(all).max(1.0)
}

fn count(number: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
    let value = number as f64;
    value
}
