//! The gamma distribution: numbers drawn from it, and its cumulative function.

use crate::random::Random;

/// A number evenly from (0, 1].
pub(super) fn uniform(random: &mut Random) -> f64 {
    (random.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64
}

/// A standard normal number (Box and Muller).
fn normal(random: &mut Random) -> f64 {
    let (radius, angle) = (uniform(random), uniform(random));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// A number of the gamma distribution with a shape of at least 1 (Marsaglia and Tsang, *A simple
/// method for generating gamma variables*, ACM TOMS 2000).
pub(super) fn gamma(random: &mut Random, shape: f64, scale: f64) -> f64 {
    let reduced = shape - 1.0 / 3.0;
    let width = 1.0 / (9.0 * reduced).sqrt();
    loop {
        let at = normal(random);
        let cube = (1.0 + width * at).powi(3);
        if cube > 0.0 {
            let accepted = 0.5 * at * at + reduced * (1.0 - cube + cube.ln());
            if uniform(random).ln() < accepted {
                return reduced * cube * scale;
            }
        }
    }
}

/// The part of numbers up to `x`: the regularised lower incomplete gamma function, by its series.
pub(super) fn gamma_cdf(x: f64, shape: f64, scale: f64) -> f64 {
    let at = x / scale;
    if at <= 0.0 {
        return 0.0;
    }
    let (mut term, mut sum, mut divisor) = (1.0 / shape, 1.0 / shape, shape);
    // The terms fall faster than a geometric series once the divisor exceeds x.
    while term > sum * 1e-16 {
        divisor += 1.0;
        term *= at / divisor;
        sum += term;
    }
    (sum.ln() + shape * at.ln() - at - ln_gamma(shape)).exp().min(1.0)
}

/// ln Γ(x) for x ≥ 1 (Stirling's series after a shift).
fn ln_gamma(x: f64) -> f64 {
    let (mut shift, mut at) = (0.0, x);
    while at < 15.0 {
        shift -= at.ln();
        at += 1.0;
    }
    let inverse = 1.0 / at;
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1_260.0));
    shift + (at - 0.5) * at.ln() - at + 0.5 * std::f64::consts::TAU.ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_come_out() {
        assert!((ln_gamma(5.0) - 24.0_f64.ln()).abs() < 1e-9);
        // An exponential distribution is a gamma distribution of shape 1.
        assert!((gamma_cdf(2.0, 1.0, 1.0) - (1.0 - (-2.0_f64).exp())).abs() < 1e-9);
        // Of shape 2: 1 − (1 + x)·e^−x.
        assert!((gamma_cdf(6.0, 2.0, 2.0) - (1.0 - 4.0 * (-3.0_f64).exp())).abs() < 1e-9);
        assert!(gamma_cdf(0.0, 2.0, 1.0).abs() < 1e-12);
    }

    #[test]
    fn draws_have_the_mean_and_the_spread() {
        let mut random = Random::new(1);
        for (shape, scale) in [(4.2, 0.94), (312.0, 0.03), (1.0, 2.0)] {
            let drawn: Vec<f64> = (0..50_000).map(|_| gamma(&mut random, shape, scale)).collect();
            let count = drawn.len() as f64;
            let mean = drawn.iter().sum::<f64>() / count;
            let spread = drawn.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count;
            assert!((mean / (shape * scale) - 1.0).abs() < 0.02, "{mean}");
            assert!((spread / (shape * scale * scale) - 1.0).abs() < 0.05, "{spread}");
            let below = drawn.iter().filter(|one| **one <= shape * scale).count() as f64 / count;
            assert!((below - gamma_cdf(shape * scale, shape, scale)).abs() < 0.01, "{below}");
        }
    }
}
