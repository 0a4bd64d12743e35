//! What a run came to, real or simulated, by the same sums.

use super::draw::Configuration;
use crate::experiments::min_max_ratio;
use crate::seeds::median;

/// What the tenants of a configuration counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Of each tenant, device time of its finished work within the window, in s.
    pub work_s: Vec<f64>,
    /// Of each tenant, how long each answer took, in µs; empty of those without requests.
    pub answers_us: Vec<Vec<f64>>,
}

impl Seen {
    /// Runs of the same configuration as one, as long as all of them.
    pub fn together(runs: &[Self]) -> Self {
        let mut all = Self::default();
        for run in runs {
            let tenants = all.work_s.len().max(run.work_s.len());
            all.work_s.resize(tenants, 0.0);
            all.answers_us.resize(tenants, Vec::new());
            all.work_s.iter_mut().zip(&run.work_s).for_each(|(sum, work)| *sum += work);
            for (answers, more) in all.answers_us.iter_mut().zip(&run.answers_us) {
                answers.extend_from_slice(more);
            }
        }
        all
    }
}

/// Shares, fairness and answers of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Of each tenant, its part of its device's time.
    pub shares: Vec<f64>,
    /// Of each device, the MMR of the tenants that always have work.
    pub mmr: Vec<f64>,
    /// Of each tenant with requests, the time within which 99 of 100 are answered, in µs.
    pub p99_us: Vec<Option<f64>>,
    /// The same of half of them.
    pub p50_us: Vec<Option<f64>>,
}

/// By how much one run's figures differ from another's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    /// The largest difference of a share.
    pub share: f64,
    /// The largest difference of a device's MMR.
    pub mmr: f64,
    /// The largest difference of a P99, over the other run's; of batch and of user-facing tenants.
    pub p99: [f64; 2],
    /// The largest difference of a median answer, over the other run's.
    pub p50: f64,
}

impl Errors {
    /// The larger of each.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            share: self.share.max(other.share),
            mmr: self.mmr.max(other.mmr),
            p99: [self.p99[0].max(other.p99[0]), self.p99[1].max(other.p99[1])],
            p50: self.p50.max(other.p50),
        }
    }

    /// The larger of both classes'.
    pub fn p99_max(&self) -> f64 {
        self.p99[0].max(self.p99[1])
    }
}

impl Figures {
    /// The figures of a run with this window.
    pub fn of(configuration: &Configuration, seen: &Seen, window_s: f64) -> Self {
        let shares: Vec<f64> = seen.work_s.iter().map(|work| work / window_s).collect();
        let mmr = (0..configuration.devices).map(|device| {
            let normalised = configuration.tenants.iter().zip(&shares);
            let normalised: Vec<f64> = normalised
                .filter(|(tenant, _)| tenant.device == device && tenant.is_endless())
                .map(|(tenant, share)| share / f64::from(tenant.weight))
                .collect();
            min_max_ratio(&normalised)
        });
        let mmr = mmr.collect();
        let of = |part| seen.answers_us.iter().map(|answers| quantile(answers, part)).collect();
        Self { shares, mmr, p99_us: of(99), p50_us: of(50) }
    }

    /// Of several runs of the same configuration, the median of each figure.
    ///
    /// # Panics
    /// If there is none.
    pub fn median(all: &[Self]) -> Self {
        let first = &all[0];
        let of = |pick: &dyn Fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = all.iter().filter_map(pick).collect();
            (!values.is_empty()).then(|| median(&values))
        };
        let shares = (0..first.shares.len()).filter_map(|at| of(&|one| Some(one.shares[at])));
        let mmr = (0..first.mmr.len()).filter_map(|at| of(&|one| Some(one.mmr[at])));
        let p99_us = (0..first.p99_us.len()).map(|at| of(&|one| one.p99_us[at]));
        let p50_us = (0..first.p50_us.len()).map(|at| of(&|one| one.p50_us[at])).collect();
        Self { shares: shares.collect(), mmr: mmr.collect(), p99_us: p99_us.collect(), p50_us }
    }

    /// By how much these differ from the figures of what really ran.
    pub fn errors(&self, configuration: &Configuration, real: &Self) -> Errors {
        let largest = |ours: &[f64], theirs: &[f64]| {
            let off = ours.iter().zip(theirs).map(|(one, other)| (one - other).abs());
            off.fold(0.0, f64::max)
        };
        let mut p99 = [0.0_f64; 2];
        let pairs = self.p99_us.iter().zip(&real.p99_us);
        for (tenant, (ours, theirs)) in configuration.tenants.iter().zip(pairs) {
            let of = &mut p99[usize::from(tenant.user_facing)];
            *of = of.max(off(*ours, *theirs).unwrap_or(0.0));
        }
        let p50 = self.p50_us.iter().zip(&real.p50_us).filter_map(|pair| off(*pair.0, *pair.1));
        let p50 = p50.fold(0.0, f64::max);
        let (share, mmr) = (largest(&self.shares, &real.shares), largest(&self.mmr, &real.mmr));
        Errors { share, mmr, p99, p50 }
    }
}

/// By how much a value differs from a real one, over that; none where there is none.
fn off(ours: Option<f64>, real: Option<f64>) -> Option<f64> {
    Some((ours? / real? - 1.0).abs())
}

/// The value that so many of 100 do not exceed.
fn quantile(values: &[f64], part: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() * part / 100).copied()
}

#[cfg(test)]
mod tests {
    use super::super::draw::{Load, Tenant};
    use super::*;

    #[test]
    fn figures_are_by_device_and_by_class() {
        let endless = |device, weight| {
            let load = Load::Kernels { us: 102 };
            Tenant { device, weight, user_facing: false, load }
        };
        let load = Load::Requests { us: 172, launches: 1, period_us: 9_000, seed: 1 };
        let service = Tenant { user_facing: true, load, ..endless(0, 1) };
        let tenants = vec![endless(0, 1), endless(0, 3), service, endless(1, 2), endless(1, 1)];
        let configuration = Configuration { devices: 2, quantum_us: 6_000, tenants };
        let answers = (1..=100).map(f64::from).collect();
        let seen = Seen {
            work_s: vec![2.0, 6.0, 1.0, 8.0, 3.0],
            answers_us: vec![vec![], vec![], answers, vec![], vec![]],
        };
        let figures = Figures::of(&configuration, &seen, 8.0);
        let twice = Seen::together(&[seen.clone(), seen]);
        assert_eq!(twice.answers_us[2].len(), 200);
        assert_eq!(Figures::of(&configuration, &twice, 16.0), figures);
        assert_eq!(figures.mmr, [1.0, 0.75]);
        assert_eq!(figures.p99_us, [None, None, Some(100.0), None, None]);
        let mut other = figures.clone();
        (other.p99_us[2], other.mmr[1], other.shares[0]) = (Some(80.0), 0.5, 0.35);
        let errors = figures.errors(&configuration, &other);
        assert_eq!((errors.p99, errors.mmr), ([0.0, 0.25], 0.25));
        assert!((errors.share - 0.1).abs() < 1e-12);
    }
}
