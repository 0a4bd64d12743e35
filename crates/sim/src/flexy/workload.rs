//! Jobs as Flexy §III generates them: Table I's tasks, Table II's columns.

use serde::{Deserialize, Serialize};

use crate::random::Random;
use crate::{MS, SECOND};

/// Tasks of user-facing jobs (Table I): name and time in ms.
pub const USER_TASKS: [(&str, u64); 10] = [
    ("Histogram", 82),
    ("Euclid", 29),
    ("Convolution", 130),
    ("Particle", 48),
    ("Black&Scholes", 158),
    ("Pathfinder", 87),
    ("Monte Carlo", 178),
    ("NW", 69),
    ("BFS", 97),
    ("Hot spot", 14),
];

/// Tasks of batch jobs (Table I).
pub const BATCH_TASKS: [(&str, u64); 4] =
    [("Darkgray", 226), ("Lava MD", 1_158), ("Gausian", 2_674), ("Hot spot3D", 512)];

/// A column of Table II, named by its numbers of jobs: the paper's own labels contradict its
/// durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// User-facing to batch jobs of each 100.
    pub name: &'static str,
    /// The paper's name.
    pub paper: &'static str,
    /// User-facing jobs of each 100.
    pub user_jobs: u32,
    /// Mean length of a user-facing job, in ns of work.
    pub user_ns: u64,
    /// Mean length of a batch job, in ns of work.
    pub batch_ns: u64,
}

/// Table II. The counts follow from total over average duration: 80/1 and 320/16, 200/5 and
/// 900/15, 160/8 and 640/8.
pub const COLUMNS: [Column; 3] = [
    Column { name: "80:20", paper: "W1", user_jobs: 80, user_ns: SECOND, batch_ns: 16 * SECOND },
    Column {
        name: "40:60",
        paper: "W2",
        user_jobs: 40,
        user_ns: 5 * SECOND,
        batch_ns: 15 * SECOND,
    },
    Column { name: "20:80", paper: "W3", user_jobs: 20, user_ns: 8 * SECOND, batch_ns: 8 * SECOND },
];

/// What a workload is made of.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Which column of Table II.
    pub column: Column,
    /// The mean time between jobs is this many thousandths of what keeps one device busy (the
    /// paper's `f`, 125 to 4,000).
    pub factor_permille: u64,
    /// A job keeps up to so many tasks outstanding, drawn evenly from 1; all of them if none.
    pub outstanding: Option<u32>,
    /// Pareto shape of the jobs' lengths, in tenths; above 10.
    pub shape_tenths: u32,
    /// Batch jobs stand from the beginning, enough for all devices.
    pub backlog: bool,
    /// Tasks of a job differ.
    pub mixed: bool,
    /// Jobs.
    pub jobs: u32,
    /// Each task's time is off Table I's by up to so many thousandths.
    pub jitter_permille: u64,
    /// What makes it differ from others.
    pub seed: u64,
}

impl Spec {
    /// The reading that the goals are stated for: up to 8 outstanding tasks, shape 1.8, no standing
    /// backlog, identical tasks.
    pub fn new(column: Column, factor_permille: u64, seed: u64) -> Self {
        Self {
            column,
            factor_permille,
            outstanding: Some(8),
            shape_tenths: 18,
            backlog: false,
            mixed: false,
            jobs: 100,
            jitter_permille: 0,
            seed,
        }
    }
}

/// One job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// When it arrives, in ns.
    pub arrival_ns: u64,
    /// It has an SLA.
    pub user_facing: bool,
    /// Its share within its class.
    pub weight: u32,
    /// So many of its tasks are outstanding at a time.
    pub outstanding: u32,
    /// Its tasks: the kernel's number, and its time in ns.
    pub tasks: Vec<(u32, u64)>,
}

/// The jobs of a spec, by arrival.
pub fn generate(spec: &Spec) -> Vec<Job> {
    let mut random = Random::part(spec.seed, 7);
    let column = &spec.column;
    let user_work = u64::from(column.user_jobs) * column.user_ns;
    let work_ns = user_work + u64::from(100 - column.user_jobs) * column.batch_ns;
    let mean_gap_ns = work_ns / 100 * spec.factor_permille / 1_000;
    // Exactly the column's counts, in random order.
    let mut classes: Vec<bool> = (0..spec.jobs).map(|job| job % 100 < column.user_jobs).collect();
    for place in (1..classes.len()).rev() {
        classes.swap(place, below(&mut random, place + 1));
    }
    let mut now_ns = 0;
    let mut jobs = Vec::new();
    for user_facing in classes {
        now_ns += exponential(&mut random, mean_gap_ns);
        let arrival_ns = if spec.backlog && !user_facing { 0 } else { now_ns };
        jobs.push(job(spec, &mut random, arrival_ns, user_facing));
    }
    if spec.backlog {
        stand(spec, &mut random, now_ns, &mut jobs);
    }
    jobs.sort_by_key(|job| job.arrival_ns);
    for (place, job) in (0u32..).zip(&mut jobs) {
        job.weight = place % 3 + 1;
    }
    jobs
}

/// Adds batch jobs until four devices cannot finish them before `until_ns`.
fn stand(spec: &Spec, random: &mut Random, until_ns: u64, jobs: &mut Vec<Job>) {
    let work = |job: &Job| job.tasks.iter().map(|(_, ns)| *ns).sum::<u64>();
    let mut have_ns: u64 = jobs.iter().filter(|job| !job.user_facing).map(work).sum();
    while have_ns < 5 * until_ns {
        let more = job(spec, random, 0, false);
        have_ns += work(&more);
        jobs.push(more);
    }
}

fn job(spec: &Spec, random: &mut Random, arrival_ns: u64, user_facing: bool) -> Job {
    let column = &spec.column;
    let mean_ns = if user_facing { column.user_ns } else { column.batch_ns };
    let length_ns = pareto(random, mean_ns, spec.shape_tenths);
    let of = if user_facing { &USER_TASKS[..] } else { &BATCH_TASKS[..] };
    let first = if user_facing { 0 } else { USER_TASKS.len() };
    let (mut tasks, mut sum_ns) = (Vec::new(), 0);
    let mut kernel = below(random, of.len());
    while sum_ns < length_ns {
        if spec.mixed {
            kernel = below(random, of.len());
        }
        let ms = of[kernel].1;
        let time_ns = random.jitter(ms * MS, spec.jitter_permille);
        tasks.push((narrow(first + kernel), time_ns));
        sum_ns += time_ns;
    }
    let all = narrow(tasks.len());
    let outstanding = spec.outstanding.map_or(all, |most| narrow(below(random, most as usize) + 1));
    Job { arrival_ns, user_facing, weight: 1, outstanding, tasks }
}

fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).unwrap_or_default()
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A number evenly from (0, 1].
fn unit(random: &mut Random) -> f64 {
    (random.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64
}

/// Rounded to a microsecond, so that machines whose logarithms differ in the last bit agree.
fn whole(ns: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let us = (ns / 1_000.0).round() as u64;
    us.saturating_mul(1_000)
}

fn exponential(random: &mut Random, mean_ns: u64) -> u64 {
    whole(-unit(random).ln() * mean_ns as f64)
}

/// Of that mean: the least is `mean·(shape − 1)/shape`.
fn pareto(random: &mut Random, mean_ns: u64, shape_tenths: u32) -> u64 {
    let shape = f64::from(shape_tenths) / 10.0;
    let least = mean_ns as f64 * (shape - 1.0) / shape;
    // A draw of one in 2^53 would last for weeks.
    whole((least * unit(random).powf(-1.0 / shape)).min(1_000.0 * mean_ns as f64))
}
