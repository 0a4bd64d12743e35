//! `bench cosched`: how soon a thread runs after its result has come, when its processor is busy.
//!
//! Three interactive tenants with weights 1:2:3 and two hogs share one processor; the device and
//! its workers have the others. The baseline is the plain wake-up (`coscheduling = "off"`), the
//! negative control too: it must be slow. Shares are of the wall time of the shared processor. A
//! hog's fair share is what is left of it when no tenant takes more than an equal part of it
//! (max-min fairness); what the daemon takes there is missing from it too.

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::affinity::{beside, processors};
use super::document::Document;
use super::tenant::{Host, common_start, kernel};
use super::{Context, least, median};

/// Weights of the tenants.
const WEIGHTS: [u32; 3] = [1, 2, 3];
pub(super) const HOGS: u32 = 2;
pub(super) const KERNEL_US: u64 = 285;
/// How waiting threads are helped; the first is the baseline.
pub(super) const MODES: [&str; 4] = ["off", "wake", "slice", "boost"];

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (rounds, seconds) = if context.quick { (1, 2) } else { (3, 5) };
    let window = format!("{rounds} rounds of {seconds} s per mode; all waits of a mode together");
    let mut document = Document::new("cosched", "paced", &window);
    let mut modes: Vec<Mode> = MODES.iter().map(|_| Mode::default()).collect();
    for _ in 0..rounds {
        for (name, mode) in MODES.iter().zip(&mut modes) {
            measure(context, name, seconds, mode)?;
        }
    }
    let plain_p99_us = modes[0].percentile_us(99);
    let plain_rate = median(&modes[0].rates);
    let plain_hog = median(&modes[0].hogs);
    for (name, mode) in MODES.iter().zip(&modes) {
        #[expect(clippy::cast_precision_loss, reason = "some thousand waits")]
        let counts = [mode.waits as f64, mode.waits_ns.len() as f64];
        let figures = [
            (format!("waits_{name}"), counts[0]),
            (format!("waits_slept_{name}"), counts[1]),
            (format!("wake_p50_us_{name}"), mode.percentile_us(50)),
            (format!("wake_p99_us_{name}"), mode.percentile_us(99)),
            (format!("wake_p99_over_plain_{name}"), mode.percentile_us(99) / plain_p99_us),
            (format!("completion_over_plain_{name}"), plain_rate / median(&mode.rates)),
            (format!("hog_share_error_{name}"), median(&mode.errors)),
            (format!("hog_share_of_wall_{name}"), median(&mode.hogs)),
            (format!("hog_over_plain_{name}"), median(&mode.hogs) / plain_hog),
            (format!("tenants_share_of_wall_{name}"), median(&mode.tenants_parts)),
        ];
        for (figure, value) in figures {
            match *name {
                "off" => document.control(figure, value),
                _ => document.figure(figure, value),
            }
        }
    }
    document.baseline("wake_p50_us", modes[0].percentile_us(50));
    document.baseline("wake_p99_us", plain_p99_us);
    let best = &modes[MODES.len() - 1];
    document.figure("wake_p99_over_plain", best.percentile_us(99) / plain_p99_us);
    document.figure("wake_p50_over_plain", best.percentile_us(50) / modes[0].percentile_us(50));
    document.figure("hog_share_error", median(&best.errors));
    document.figure("hog_over_plain", median(&best.hogs) / plain_hog);
    Ok(document)
}

/// What was seen in one mode.
#[derive(Debug, Default)]
struct Mode {
    /// From the end of the kernel until the program ran, of every wait in which it slept, in ns.
    waits_ns: Vec<u64>,
    /// Kernels per second of all tenants, by round.
    rates: Vec<f64>,
    /// All waits, whether the program slept in them or not.
    waits: u64,
    /// Largest relative distance of a hog from its fair share, by round.
    errors: Vec<f64>,
    /// The lesser hog's part of the processor's time, by round.
    hogs: Vec<f64>,
    /// The tenants' part of it, by round.
    tenants_parts: Vec<f64>,
}

impl Mode {
    /// Another round, which counts: a void one adds nothing.
    fn add(&mut self, round: Self) {
        let Self { waits_ns, rates, waits, errors, hogs, tenants_parts } = round;
        self.waits_ns.extend(waits_ns);
        self.rates.extend(rates);
        self.waits += waits;
        self.errors.extend(errors);
        self.hogs.extend(hogs);
        self.tenants_parts.extend(tenants_parts);
    }

    fn percentile_us(&self, percent: usize) -> f64 {
        percentile_us(&self.waits_ns, percent)
    }
}

/// The time that so many percent of the waits, in ns, do not exceed, in µs.
pub(super) fn percentile_us(waits_ns: &[u64], percent: usize) -> f64 {
    let mut sorted = waits_ns.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a few seconds")]
    sorted.get(at).map_or(0.0, |ns| *ns as f64 / 1000.0)
}

#[derive(Debug, Deserialize)]
struct TenantReport {
    launches: u64,
    seconds: f64,
    processor_seconds: f64,
    waits_ns: Vec<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HogReport {
    pub(super) processor_seconds: f64,
}

fn measure(context: &Context, name: &str, seconds: u64, mode: &mut Mode) -> Result<()> {
    let (others, last) = processors()?;
    let processor = last.to_string();
    let settings = [("scheduling.coscheduling", name)];
    let start = || beside(&others, || Host::node(true, &settings));
    let round = Host::again(context, start, |host| contend(context, host, &processor, seconds))?;
    mode.add(round);
    Ok(())
}

/// A round of a mode.
fn contend(context: &Context, host: &Host, processor: &str, seconds: u64) -> Result<Mode> {
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    let wall_s = seconds as f64;
    let (start, seconds) = (common_start(), seconds.to_string());
    let mut tenants = Vec::new();
    for weight in WEIGHTS {
        let mut command = context.program("cosched");
        command.args(["tenant", &kernel(KERNEL_US), &seconds, &start, processor]);
        tenants.push(host.start(&format!("t{weight}"), weight, command)?);
    }
    let mut hogs = Vec::new();
    for hog in 0..HOGS {
        let mut command = context.program("cosched");
        command.args(["hog", &seconds, &start, processor]);
        hogs.push(host.start(&format!("hog{hog}"), 1, command)?);
    }
    let tenants = tenants.into_iter().map(|tenant| {
        let line = tenant.finish()?.into_iter().last().context("a tenant printed nothing")?;
        Ok(serde_json::from_value(line)?)
    });
    let tenants: Vec<TenantReport> = tenants.collect::<Result<_>>()?;
    let hogs = hogs.into_iter().map(|hog| {
        let line = hog.finish()?.into_iter().last().context("a hog printed nothing")?;
        Ok(serde_json::from_value::<HogReport>(line)?.processor_seconds)
    });
    let hogs: Vec<f64> = hogs.collect::<Result<_>>()?;
    let used: Vec<f64> = tenants.iter().map(|tenant| tenant.processor_seconds).collect();
    #[expect(clippy::cast_precision_loss, reason = "some thousand launches")]
    let rate: f64 = tenants.iter().map(|tenant| tenant.launches as f64 / tenant.seconds).sum();
    Ok(Mode {
        waits_ns: tenants.iter().flat_map(|tenant| &tenant.waits_ns).copied().collect(),
        rates: vec![rate],
        waits: tenants.iter().map(|tenant| tenant.launches).sum(),
        errors: vec![hog_error(&used, &hogs, wall_s)],
        hogs: vec![least(&hogs) / wall_s],
        tenants_parts: vec![used.iter().sum::<f64>() / wall_s],
    })
}

/// The largest relative distance of a hog from its fair share of a processor that was there for
/// `wall_s`, from everybody's processor time.
pub(super) fn hog_error(tenants: &[f64], hogs: &[f64], wall_s: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let (count, hog_count) = ((tenants.len() + hogs.len()) as f64, hogs.len() as f64);
    let equal = wall_s / count;
    // Who takes less than an equal part leaves the rest to the hogs; who takes more is unfair.
    let fair = (wall_s - tenants.iter().map(|used| used.min(equal)).sum::<f64>()) / hog_count;
    hogs.iter().map(|got| (got - fair).abs() / fair).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hog_is_wronged_only_by_tenants_above_an_equal_part() {
        assert!(hog_error(&[0.1, 0.1], &[0.4, 0.4], 1.0) < 1e-9);
        let error = hog_error(&[0.5], &[0.25, 0.25], 1.0);
        assert!((error - 0.25).abs() < 1e-9, "{error}");
        let error = hog_error(&[0.0], &[0.6, 0.4], 1.0);
        assert!((error - 0.2).abs() < 1e-9, "{error}");
    }

    /// The old measure, of what all of them got together, called this fair.
    #[test]
    fn time_that_nobody_got_is_missing() {
        let error = hog_error(&[0.1, 0.1], &[0.2, 0.2], 1.0);
        assert!((error - 0.5).abs() < 1e-9, "{error}");
    }

    #[test]
    fn rounds_add_up() {
        let round = |ns: u64| Mode {
            waits_ns: vec![ns],
            rates: vec![1.0],
            waits: 2,
            errors: vec![0.1],
            hogs: vec![0.3],
            tenants_parts: vec![0.4],
        };
        let mut mode = Mode::default();
        mode.add(round(7));
        mode.add(round(9));
        assert_eq!((mode.waits_ns.as_slice(), mode.waits), (&[7, 9][..], 4));
        let each = [&mode.rates, &mode.errors, &mode.hogs, &mode.tenants_parts];
        assert!(each.iter().all(|values| values.len() == 2), "{mode:?}");
    }

    #[test]
    fn percentiles_of_waits() {
        let waits_ns = (1..=100).map(|us| us * 1000).collect();
        let mode = Mode { waits_ns, ..Mode::default() };
        assert_eq!((mode.percentile_us(50), mode.percentile_us(99)), (51.0, 100.0));
        assert_eq!(Mode::default().percentile_us(99), 0.0);
    }
}
