//! Runs of many seeds, and curves of attainment against utilisation.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use weft_sched::pool::invariants::Limits;
use weft_sched::pool::{PoolConfig, policy};

use super::oracle::{Rule, clairvoyant};
use super::run::{Found, Options, run};
use super::workload::{Job, Spec, generate};
use crate::MS;

/// Shared by a scheduler and its settings: a line of every plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) policy: &'static str,
    pub(super) reserved: u32,
    pub(super) reset: bool,
    pub(super) kind: Kind,
}

/// What differs beside policy and K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// Devices that serve user-facing tasks count in U.
    Packed,
    /// Exact times, batch stops at once, nothing is owed to batch or shares.
    Clairvoyant,
    /// Of each seed the best of that and of the orders of [`clairvoyant`].
    Ceiling,
    /// Batch tasks are not cut.
    Unsliced,
    /// Times vary by 10 %.
    Jitter,
    /// Times vary by 10 %, estimates by 30 % beside that.
    Noisy,
    /// The ceiling where times vary by 10 %.
    JitterCeiling,
}

const fn entry(name: &'static str, policy: &'static str, reserved: u32, reset: bool) -> Entry {
    Entry { name, policy, reserved, reset, kind: Kind::Plain }
}

pub(super) const DEADLINE: Entry = entry("deadline", "deadline", 0, false);
pub(super) const CLAIRVOYANT: Entry =
    Entry { kind: Kind::Clairvoyant, ..entry("clairvoyant_edf", "deadline", 0, false) };
pub(super) const CEILING: Entry =
    Entry { kind: Kind::Ceiling, ..entry("ceiling", "deadline", 0, false) };
pub(super) const JITTER: Entry =
    Entry { kind: Kind::Jitter, ..entry("deadline_jitter", "deadline", 0, false) };
pub(super) const JITTER_CEILING: Entry =
    Entry { kind: Kind::JitterCeiling, ..entry("ceiling_jitter", "deadline", 0, false) };
pub(super) const UNSLICED: Entry =
    Entry { kind: Kind::Unsliced, ..entry("deadline_unsliced", "deadline", 0, false) };
pub(super) const NOISY: Entry =
    Entry { kind: Kind::Noisy, ..entry("deadline_noisy", "deadline", 0, false) };

/// Every policy with every K, Flexy's resets, plain FIFO, and what knows all.
pub(super) const ENTRIES: [Entry; 17] = [
    DEADLINE,
    CLAIRVOYANT,
    CEILING,
    entry("fifo", "fifo", 0, false),
    entry("round_robin", "round_robin", 0, false),
    entry("priority_k0", "priority", 0, false),
    entry("priority_k1", "priority", 1, false),
    entry("priority_k2", "priority", 2, false),
    entry("priority_k3", "priority", 3, false),
    entry("priority_reset", "priority", 0, true),
    entry("flexy_k0", "flexy", 0, false),
    entry("flexy_k1", "flexy", 1, false),
    entry("flexy_k2", "flexy", 2, false),
    entry("flexy_k3", "flexy", 3, false),
    entry("flexy_reset", "flexy", 0, true),
    Entry { kind: Kind::Packed, ..entry("flexy_packed_k1", "flexy", 1, false) },
    entry("adaptive", "adaptive", 0, false),
];

/// The entry of that name.
pub(super) fn by_name(name: &str) -> Entry {
    ENTRIES.into_iter().find(|entry| entry.name == name).unwrap_or(DEADLINE)
}

/// No generated user-facing task takes longer (Table I), with the noise of [`Kind::Noisy`].
const USER_LONGEST_NS: u64 = 200 * MS;

impl Entry {
    /// Whether it knows what no policy does.
    pub(super) fn is_clairvoyant(&self) -> bool {
        matches!(self.kind, Kind::Clairvoyant | Kind::Ceiling | Kind::JitterCeiling)
    }

    fn has_jitter(&self) -> bool {
        matches!(self.kind, Kind::Jitter | Kind::Noisy | Kind::JitterCeiling)
    }

    /// How its runs of generated jobs are done.
    pub(super) fn options(&self, sla_ns: u64) -> Options {
        self.options_for(sla_ns, USER_LONGEST_NS)
    }

    /// How its runs are done where no user-facing task takes longer than `longest_ns`.
    pub(super) fn options_for(&self, sla_ns: u64, longest_ns: u64) -> Options {
        let policy = policy::by_name(self.policy).unwrap_or_default();
        let (reserved, reset) = (self.reserved, self.reset);
        let mut pool = PoolConfig { policy, reserved, reset, sla_ns, ..PoolConfig::default() };
        pool.counts_serving = self.kind == Kind::Packed;
        match self.kind {
            Kind::Clairvoyant | Kind::Ceiling | Kind::JitterCeiling => {
                pool.slice_ns = 1;
                pool.batch_patience_ns = u64::MAX;
                pool.late_patience_ns = u64::MAX;
                pool.slack_ns = u64::MAX;
            }
            // Longer than any run.
            Kind::Unsliced => pool.slice_ns = 1 << 60,
            Kind::Plain | Kind::Packed | Kind::Jitter | Kind::Noisy => {}
        }
        let mut options = Options::new(pool);
        options.clairvoyant = self.is_clairvoyant();
        options.error_permille = if self.kind == Kind::Noisy { 300 } else { 0 };
        let keeps = reserved > 0 || policy.keeps_devices();
        let is_bounded = policy.bounds_batch_wait() && !self.is_clairvoyant();
        let bound_ns = pool.batch_patience_ns.saturating_add(longest_ns);
        // A batch run that is never cut has no turns.
        let takes_turns = is_bounded && self.kind != Kind::Unsliced;
        options.limits = Limits {
            batch_wait_ns: is_bounded.then_some(bound_ns),
            turn_longest_ns: takes_turns.then_some(pool.batch_turn_ns()),
            is_work_conserving: !keeps,
            ..Limits::default()
        };
        options
    }
}

/// What several seeds found at one load.
#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    /// Means.
    pub(super) utilization: f64,
    /// In percent.
    pub(super) sla: f64,
    /// Half the width of the 95 % interval of `sla`, in points.
    pub(super) half: f64,
    /// In percent, of each seed.
    pub(super) each: Vec<f64>,
    /// Per run.
    pub(super) resets: f64,
    /// The longest of all seeds: no batch task anywhere, one without service, one until its end.
    pub(super) batch_dry_ns: u64,
    pub(super) batch_wait_ns: u64,
    pub(super) batch_longest_ns: u64,
    /// What batch vGPUs had while one of them waited, in thousandths of its bound, the most.
    pub(super) turn_permille: u64,
    /// The longest latency of a user-facing task, and those that 999, 990 and 500 of 1,000 do not
    /// exceed, of all seeds.
    pub(super) user_longest_ns: u64,
    pub(super) user_p999_ns: u64,
    pub(super) user_p99_ns: u64,
    pub(super) user_p50_ns: u64,
}

/// Attainment of one entry against load, by rising utilisation.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) is_clairvoyant: bool,
    pub(super) points: Vec<Point>,
}

impl Curve {
    /// Percent of user-facing tasks in time at a utilisation (0 to 1), between measured points;
    /// none beyond them.
    pub(super) fn at(&self, utilization: f64) -> Option<f64> {
        self.between(utilization, |point| point.sla)
    }

    /// Half the width of the 95 % interval of that, in points, between measured points as well.
    pub(super) fn half_at(&self, utilization: f64) -> Option<f64> {
        self.between(utilization, |point| point.half)
    }

    fn between(&self, utilization: f64, of: impl Fn(&Point) -> f64) -> Option<f64> {
        let mut points: Vec<_> =
            self.points.iter().map(|point| (point.utilization, of(point))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let pair =
            points.windows(2).find(|pair| pair[0].0 <= utilization && utilization <= pair[1].0)?;
        let part = (utilization - pair[0].0) / (pair[1].0 - pair[0].0).max(1e-12);
        Some(pair[0].1 + part * (pair[1].1 - pair[0].1))
    }
}

/// Seeds, and what all runs together found.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) seed: u64,
    pub(super) seeds: u64,
    pub(super) violations: AtomicUsize,
    pub(super) runs: AtomicUsize,
    pub(super) events: AtomicU64,
    pub(super) first: Mutex<Option<String>>,
}

impl Bench {
    pub(super) fn new(seed: u64, seeds: u64) -> Self {
        Self {
            seed,
            seeds,
            violations: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            events: AtomicU64::new(0),
            first: Mutex::new(None),
        }
    }

    /// One curve for each entry; `spec` is read but for its factor and seed.
    pub(super) fn curves(
        &self,
        spec: &Spec,
        sla_ns: u64,
        entries: &[Entry],
        factors: &[u64],
    ) -> Vec<Curve> {
        self.curves_of(self.seeds, spec, sla_ns, entries, factors)
    }

    /// The same with the first `seeds` of the seeds.
    pub(super) fn curves_of(
        &self,
        seeds: u64,
        spec: &Spec,
        sla_ns: u64,
        entries: &[Entry],
        factors: &[u64],
    ) -> Vec<Curve> {
        let places = entries.len() * factors.len();
        let points = self.all(places, |place| {
            let entry = entries[place / factors.len()];
            let spec = Spec { factor_permille: factors[place % factors.len()], ..*spec };
            self.point(seeds, &spec, sla_ns, &entry)
        });
        let of = |(place, entry): (usize, &Entry)| Curve {
            name: entry.name,
            is_clairvoyant: entry.is_clairvoyant(),
            points: points[place * factors.len()..(place + 1) * factors.len()].to_vec(),
        };
        entries.iter().enumerate().map(of).collect()
    }

    /// Runs so many tasks on all processors; the results are in order.
    pub(super) fn all<T: Send>(&self, count: usize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let place = next.fetch_add(1, Ordering::Relaxed);
                        if place >= count {
                            return;
                        }
                        let result = one(place);
                        found.lock().unwrap_or_else(PoisonError::into_inner).push((place, result));
                    }
                });
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(place, _)| *place);
        found.into_iter().map(|(_, result)| result).collect()
    }

    fn point(&self, seeds: u64, spec: &Spec, sla_ns: u64, entry: &Entry) -> Point {
        let runs = (self.seed..self.seed + seeds).map(|seed| {
            let mut spec = Spec { seed, ..*spec };
            if entry.has_jitter() {
                spec.jitter_permille = 100;
            }
            (seed, generate(&spec))
        });
        self.point_of(entry, &entry.options(sla_ns), runs)
    }

    /// What an entry makes of these runs, each a seed and its jobs.
    pub(super) fn point_of<J: AsRef<[Job]>>(
        &self,
        entry: &Entry,
        options: &Options,
        runs: impl Iterator<Item = (u64, J)>,
    ) -> Point {
        let mut point = Point::default();
        let (mut utilizations, mut latencies_ns) = (Vec::new(), Vec::new());
        for (seed, jobs) in runs {
            let jobs = jobs.as_ref();
            let mut found = self.run_jobs(jobs, options, seed);
            let mut sla = percent(found.user);
            if matches!(entry.kind, Kind::Ceiling | Kind::JitterCeiling) {
                let (devices, sla_ns) = (options.devices, options.pool.sla_ns);
                let of = |rule| percent(clairvoyant(jobs, devices, sla_ns, rule));
                sla = Rule::ALL.into_iter().map(of).fold(sla, f64::max);
            }
            utilizations.push(found.utilization);
            latencies_ns.append(&mut found.latencies_ns);
            point.each.push(sla);
            point.batch_dry_ns = point.batch_dry_ns.max(found.batch_dry_ns);
            point.resets += found.resets.0 as f64;
            point.batch_wait_ns = point.batch_wait_ns.max(found.batch_wait_ns);
            point.turn_permille = point.turn_permille.max(found.turn_permille);
            point.batch_longest_ns = point.batch_longest_ns.max(found.batch_longest_ns);
        }
        point.resets /= point.each.len().max(1) as f64;
        latencies_ns.sort_unstable();
        point.user_longest_ns = latencies_ns.last().copied().unwrap_or(0);
        let ranked = |permille: usize| {
            let rank = (latencies_ns.len() * permille).div_ceil(1_000).saturating_sub(1);
            latencies_ns.get(rank).copied().unwrap_or(0)
        };
        (point.user_p999_ns, point.user_p99_ns) = (ranked(999), ranked(990));
        point.user_p50_ns = ranked(500);
        (point.sla, point.half) = interval(&point.each);
        point.utilization = interval(&utilizations).0;
        point
    }

    /// One run, whose violations count.
    pub(super) fn run(&self, spec: &Spec, options: &Options) -> Found {
        let seed = spec.seed;
        self.run_jobs(&generate(spec), options, seed)
    }

    pub(super) fn run_jobs(&self, jobs: &[Job], options: &Options, seed: u64) -> Found {
        let found = run(jobs, options, seed).unwrap_or_else(|error| Found {
            violation: Some(format!("the pool refused an event: {error}")),
            ..Found::default()
        });
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(found.events, Ordering::Relaxed);
        if let Some(broken) = &found.violation {
            self.violations.fetch_add(1, Ordering::Relaxed);
            let policy = options.pool.policy.name();
            let text = format!("{policy}, seed {seed}, {broken}");
            let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(text);
        }
        found
    }
}

pub(super) fn percent((all, good): (u64, u64)) -> f64 {
    100.0 * good as f64 / all.max(1) as f64
}

/// Mean, and half the width of its 95 % interval by Student's t.
pub(super) fn interval(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    // Of 1, 2, 3 … degrees of freedom; beyond the list the normal distribution's is near enough.
    let t = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14];
    let t = t.get(values.len() - 2).copied().unwrap_or(2.09);
    (mean, t * (squares / (count - 1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_and_its_interval_are_students() {
        assert_eq!(interval(&[7.0]), (7.0, 0.0));
        // Two values that differ by two: a deviation of √2, over √2, times 12.71.
        let (mean, half) = interval(&[4.0, 6.0]);
        assert!((mean - 5.0).abs() < 1e-9 && (half - 12.71).abs() < 1e-9, "{mean} {half}");
        let (mean, half) = interval(&[1.0, 2.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-9 && (half - 4.30 / 3f64.sqrt()).abs() < 1e-9, "{half}");
    }

    #[test]
    fn a_curve_is_straight_between_its_points_and_ends_with_them() {
        let point = |utilization: f64, sla| Point {
            utilization,
            sla,
            half: utilization,
            ..Point::default()
        };
        // By rising utilisation, however they were measured.
        let points = vec![point(0.8, 60.0), point(0.4, 100.0), point(0.6, 90.0)];
        let curve = Curve { name: "deadline", is_clairvoyant: false, points };
        assert_eq!((curve.at(0.4), curve.at(0.8)), (Some(100.0), Some(60.0)));
        assert!((curve.at(0.7).unwrap() - 75.0).abs() < 1e-9);
        assert!((curve.at(0.45).unwrap() - 97.5).abs() < 1e-9);
        assert_eq!((curve.at(0.39), curve.at(0.81)), (None, None));
        // So is its interval, which is as wide as the utilisation here.
        assert!((curve.half_at(0.7).unwrap() - 0.7).abs() < 1e-9);
        assert_eq!(curve.half_at(0.81), None);
    }

    #[test]
    fn a_point_is_the_mean_of_its_runs_and_the_longest_of_their_times() {
        let job = |arrival_ns: u64, ms: &[u64]| Job {
            arrival_ns,
            user_facing: true,
            weight: 1,
            outstanding: 1,
            tasks: ms.iter().map(|ms| (0, ms * MS)).collect(),
        };
        // On one device, with 200 ms: 300 of 500 ms busy and one of two in time; then 100 and all.
        let long = vec![job(0, &[100, 200]), job(500 * MS, &[1])];
        let long = [long, vec![job(0, &[100]), job(500 * MS, &[1])]];
        let late = vec![job(0, &[100, 250]), job(500 * MS, &[1])];
        let runs = [late, long[1].clone()];
        let entry = by_name("fifo");
        let options = Options { devices: 1, ..entry.options(200 * MS) };
        let bench = Bench::new(1, 2);
        let point = bench.point_of(&entry, &options, (1..).zip(&runs));
        assert_eq!(point.each, [50.0, 100.0]);
        assert!((point.sla - 75.0).abs() < 1e-9);
        assert!((point.utilization - (0.7 + 0.2) / 2.0).abs() < 1e-9, "{}", point.utilization);
        assert_eq!((point.user_p50_ns, point.user_longest_ns), (100 * MS, 250 * MS));
        assert_eq!((bench.runs.into_inner(), bench.violations.into_inner()), (2, 0));
        // The SLA itself is in time.
        let point = Bench::new(1, 1).point_of(&entry, &options, (1..).zip(&long));
        assert_eq!(point.each, [100.0, 100.0]);
    }
}
