//! Jobs as the model of Lublin and Feitelson generates them (*The workload on parallel
//! supercomputers*, JPDC 2003): sizes, run times that depend on them, and arrivals with a daily
//! cycle. Constants are those of the authors' `m_lublin99.c`.

use super::gamma::{gamma, gamma_cdf, uniform};
use super::swf::Job;
use crate::random::Random;

/// ln of the longest run time, in seconds: longer draws are repeated.
const RUN_LN_MAX: f64 = 12.0;
/// ln of the longest time between arrivals before the daily cycle, in seconds.
const GAP_LN_MAX: f64 = 13.0;
/// Half hours of a day.
const BUCKETS: usize = 48;
/// Seconds of each.
const BUCKET_S: f64 = 1_800.0;
/// The day begins at half past five, when the fewest jobs arrive.
const FIRST_BUCKET: usize = 11;

/// Constants of one type of jobs.
#[derive(Clone, Copy, Debug)]
struct Constants {
    serial: f64,
    power_of_two: f64,
    /// Of sizes' logarithms: least, middle, and how many lie below the middle.
    low: f64,
    low_part: f64,
    /// Shape and scale of run times' logarithms, short and long.
    short: (f64, f64),
    long: (f64, f64),
    /// The part of short ones is `slope·nodes + offset`.
    slope: f64,
    offset: f64,
    /// Shape and scale of the logarithms of times between arrivals.
    arrivals: (f64, f64),
    /// Shape and scale of the daily cycle, and what stretches arrivals to it.
    cycle: (f64, f64),
    arrival_factor: f64,
}

const BATCH: Constants = Constants {
    serial: 0.2927,
    power_of_two: 0.6686,
    low: 1.2,
    low_part: 0.875,
    short: (6.57, 0.823),
    long: (639.1, 0.0156),
    slope: -0.003,
    offset: 0.6986,
    arrivals: (6.0415, 0.8531),
    cycle: (6.1271, 5.2740),
    arrival_factor: 1.0519,
};

const INTERACTIVE: Constants = Constants {
    serial: 0.1541,
    power_of_two: 0.625,
    low: 1.0,
    low_part: 0.705,
    short: (3.8351, 0.6605),
    long: (7.073, 0.6856),
    slope: -0.0118,
    offset: 0.9156,
    arrivals: (6.5510, 0.6621),
    cycle: (8.9186, 3.6680),
    arrival_factor: 0.9797,
};

/// Jobs of no type, as most simulations use the model.
const TYPELESS: Constants = Constants {
    serial: 0.244,
    power_of_two: 0.576,
    low: 0.8,
    low_part: 0.86,
    short: (4.2, 0.94),
    long: (312.0, 0.03),
    slope: -0.0054,
    offset: 0.78,
    arrivals: (10.2303, 0.4871),
    cycle: (8.1737, 3.9631),
    arrival_factor: 1.0225,
};

/// What "at most so many nodes" means (GSaaS §V does not say).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The model's own parameter: sizes are drawn up to the limit.
    Parameter,
    /// Larger jobs are made as large as the limit.
    Clamp,
    /// Larger jobs are drawn again.
    Reject,
}

impl Limit {
    /// All readings.
    pub const ALL: [Self; 3] = [Self::Parameter, Self::Clamp, Self::Reject];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Clamp => "clamp",
            Self::Reject => "reject",
        }
    }
}

/// What is generated.
#[derive(Clone, Copy, Debug)]
pub struct Lublin {
    /// How many jobs.
    pub jobs: u32,
    /// The machine that the model is of has so many nodes (the constants are of 128).
    pub nodes: u32,
    /// No job has more nodes than this.
    pub nodes_max: u32,
    /// How that is meant.
    pub limit: Limit,
    /// Batch and interactive jobs instead of typeless ones.
    pub typed: bool,
    /// What makes this workload differ from others.
    pub seed: u64,
}

/// A machine's middle of sizes, from its largest: the authors recommend 1.5 to 3.5 less.
const MIDDLE_BELOW: f64 = 2.5;

impl Lublin {
    /// The jobs, by arrival; the first arrives when the model says.
    #[must_use]
    pub fn generate(&self) -> Vec<Job> {
        let mut random = Random::part(self.seed, 21);
        let kinds: &[Constants] = if self.typed { &[BATCH, INTERACTIVE] } else { &[TYPELESS] };
        let mut arrivals: Vec<Arrivals> = kinds.iter().map(Arrivals::new).collect();
        let mut next: Vec<u64> = arrivals.iter_mut().map(|one| one.next(&mut random)).collect();
        let mut jobs = Vec::new();
        for _ in 0..self.jobs {
            let (kind, arrival_s) =
                next.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap_or((0, 0));
            next[kind] = arrivals[kind].next(&mut random);
            let nodes = self.size(&kinds[kind], &mut random);
            let run_s = run_time(&kinds[kind], nodes, &mut random);
            jobs.push(Job { arrival_s, nodes, run_s, estimate_s: run_s });
        }
        jobs
    }

    fn size(&self, constants: &Constants, random: &mut Random) -> u32 {
        let largest = match self.limit {
            Limit::Parameter => self.nodes_max,
            Limit::Clamp | Limit::Reject => self.nodes,
        };
        let high = f64::from(largest.max(1)).log2();
        let middle = (high - MIDDLE_BELOW).max(constants.low);
        loop {
            let kind = uniform(random);
            if kind <= constants.serial {
                return 1;
            }
            let is_low = uniform(random) <= constants.low_part;
            let (from, to) = if is_low { (constants.low, middle) } else { (middle, high) };
            let mut log = from + (to - from) * uniform(random);
            if kind <= constants.serial + constants.power_of_two {
                log = log.round();
            }
            let nodes = whole(log.exp2().round());
            if nodes <= u64::from(self.nodes_max) || self.limit != Limit::Reject {
                return u32::try_from(nodes).unwrap_or(u32::MAX).clamp(1, self.nodes_max);
            }
        }
    }
}

/// Seconds, at least one.
fn run_time(constants: &Constants, nodes: u32, random: &mut Random) -> u64 {
    let part = (constants.slope * f64::from(nodes) + constants.offset).clamp(0.0, 1.0);
    loop {
        let (shape, scale) = if uniform(random) <= part { constants.short } else { constants.long };
        let log = gamma(random, shape, scale);
        if log <= RUN_LN_MAX {
            return whole(log.exp()).max(1);
        }
    }
}

/// When jobs of one type arrive.
struct Arrivals {
    constants: Constants,
    /// How dense arrivals are in each half hour, 1 in the mean.
    weights: [f64; BUCKETS],
    bucket: usize,
    bucket_start_s: f64,
    /// How far into the bucket, in units of 1,800 s of the mean half hour.
    points: f64,
}

impl Arrivals {
    fn new(constants: &Constants) -> Self {
        let (shape, scale) = constants.cycle;
        let mut weights = [0.0; BUCKETS];
        for number in FIRST_BUCKET..FIRST_BUCKET + BUCKETS {
            let at = number as f64;
            weights[number % BUCKETS] =
                gamma_cdf(at + 0.5, shape, scale) - gamma_cdf(at - 0.5, shape, scale);
        }
        let mean = weights.iter().sum::<f64>() / BUCKETS as f64;
        weights.iter_mut().for_each(|weight| *weight /= mean);
        let constants = *constants;
        Self { constants, weights, bucket: FIRST_BUCKET, bucket_start_s: 0.0, points: 0.0 }
    }

    /// The next arrival, in seconds from the beginning. What is left of a half hour is kept: an
    /// arrival does not begin it anew.
    fn next(&mut self, random: &mut Random) -> u64 {
        let (shape, scale) = self.constants.arrivals;
        let gap = loop {
            let gap = gamma(random, shape * self.constants.arrival_factor, scale);
            if gap <= GAP_LN_MAX {
                break gap;
            }
        };
        self.points += gap.exp() / BUCKET_S;
        while self.points > self.weights[self.bucket] {
            self.points -= self.weights[self.bucket];
            self.bucket = (self.bucket + 1) % BUCKETS;
            self.bucket_start_s += BUCKET_S;
        }
        whole(self.bucket_start_s + BUCKET_S * self.points / self.weights[self.bucket])
    }
}

/// Rounded down, so that machines whose logarithms differ in the last bit agree but for rare cases.
fn whole(value: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let whole = value as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(nodes: u32, nodes_max: u32, limit: Limit) -> Vec<Job> {
        Lublin { jobs: 40_000, nodes, nodes_max, limit, typed: false, seed: 3 }.generate()
    }

    fn near(value: f64, expected: f64, part: f64) {
        assert!((value / expected - 1.0).abs() < part, "{value} is not near {expected}");
    }

    /// The authors' program, typeless, 100,000 jobs: serial .245, 12.11 nodes, 4,411 s with a
    /// median of 110 s, 914 s between arrivals.
    #[test]
    fn figures_of_the_authors_program_come_out() {
        let jobs = jobs(128, 128, Limit::Parameter);
        let count = jobs.len() as f64;
        let serial = jobs.iter().filter(|job| job.nodes == 1).count() as f64 / count;
        near(serial, 0.245, 0.03);
        near(jobs.iter().map(|job| f64::from(job.nodes)).sum::<f64>() / count, 12.11, 0.05);
        near(jobs.iter().map(|job| job.run_s as f64).sum::<f64>() / count, 4_411.0, 0.05);
        let mut times: Vec<u64> = jobs.iter().map(|job| job.run_s).collect();
        times.sort_unstable();
        near(times[times.len() / 2] as f64, 110.0, 0.1);
        near(jobs.last().expect("many").arrival_s as f64 / count, 914.0, 0.05);
        assert!(jobs.windows(2).all(|pair| pair[0].arrival_s <= pair[1].arrival_s));
    }

    /// Sizes 1 to 4 in the three readings, from `facts` re-derived with another program.
    #[test]
    fn the_three_readings_of_at_most_four_nodes_differ_as_known() {
        let expected = [
            (Limit::Parameter, [0.244, 0.707, 0.010, 0.038]),
            (Limit::Clamp, [0.245, 0.115, 0.021, 0.619]),
            (Limit::Reject, [0.464, 0.218, 0.039, 0.279]),
        ];
        for (limit, parts) in expected {
            let jobs = jobs(128, 4, limit);
            for (nodes, part) in (1..).zip(parts) {
                let found = jobs.iter().filter(|job| job.nodes == nodes).count();
                let found = found as f64 / jobs.len() as f64;
                assert!((found - part).abs() < 0.01, "{limit:?}, {nodes} nodes: {found}");
            }
        }
    }

    #[test]
    fn more_jobs_arrive_by_day_than_by_night() {
        let jobs = jobs(128, 128, Limit::Parameter);
        // From half past five on: the 24 half hours until half past seventeen, against the rest.
        let is_day = |job: &&Job| job.arrival_s % 86_400 < 43_200;
        let day = jobs.iter().filter(is_day).count();
        assert!(day > jobs.len() / 2, "{day} of {}", jobs.len());
    }

    #[test]
    fn typed_jobs_are_a_mixture_and_a_seed_repeats() {
        let spec = Lublin {
            jobs: 5_000,
            nodes: 128,
            nodes_max: 128,
            limit: Limit::Parameter,
            typed: true,
            seed: 1,
        };
        assert_eq!(spec.generate(), spec.generate());
        assert_ne!(spec.generate(), Lublin { seed: 2, ..spec }.generate());
        let short = spec.generate().iter().filter(|job| job.run_s < 60).count();
        assert!(short > 1_000, "interactive jobs are short: {short}");
    }
}
