//! `bench reweight`: weights that change while all tenants work. Each phase gives the device to
//! three tenants by other weights; the change comes at the beginning of a window, and that window
//! counts like the others.

use std::time::Duration;

use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};

use super::document::Document;
use super::tenant::{Host, ShareReport, common_start, kernel};
use super::{Context, median};

/// Weights of the tenants, phase by phase.
const PHASES: [[u32; 3]; 4] = [[1, 2, 3], [3, 2, 1], [1, 1, 8], [1, 2, 3]];
/// Windows of a phase.
const WINDOWS: u64 = 3;
const KERNEL_US: u64 = 285;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let window_s = if context.quick { 1_u64 } else { 5 };
    let text = format!("{} phases of {WINDOWS} windows of {window_s} s", PHASES.len());
    let mut document = Document::new("reweight", context.pace.mode(), &text);
    let names = ["share_error_p50", "share_error_max", "share_error_of_change_max"];
    let errors = change(context, "fair", window_s);
    if let Some(errors) = document.held(errors, names.map(str::to_owned))? {
        document.figure(names[0], median(&errors.settled));
        document.figure(names[1], largest(&errors.settled));
        document.figure(names[2], largest(&errors.changed));
    }
    let name = "share_error_p50_round_robin";
    let control = change(context, "round_robin", window_s);
    if let Some(control) = document.held(control, [name.to_owned()])? {
        document.control(name, median(&control.settled));
    }
    Ok(document)
}

/// |share − expected share| / expected share, of each tenant and window.
#[derive(Default)]
struct Errors {
    /// Of the windows that begin with a change.
    changed: Vec<f64>,
    /// Of the others.
    settled: Vec<f64>,
}

fn change(context: &Context, policy: &str, window_s: u64) -> Result<Errors> {
    let policy = [("scheduling.policy", policy)];
    let paced = context.pace.is_modelled();
    Host::on_node(context, paced, &policy, |host| contend(context, host, window_s))
}

fn contend(context: &Context, host: &Host, window_s: u64) -> Result<Errors> {
    let mut admin = host.daemon()?.sockets().connect()?;
    let start = common_start();
    let (phases, seconds) = (PHASES.len() as u64, PHASES.len() as u64 * WINDOWS * window_s + 1);
    let mut tenants = Vec::new();
    for (index, weight) in PHASES[0].iter().enumerate() {
        let mut command = context.program("share");
        command.arg(kernel(KERNEL_US)).arg(seconds.to_string());
        command.arg("--start").arg(&start).arg("--window").arg(window_s.to_string());
        tenants.push(host.start(&name(index), *weight, command)?);
    }
    let start_s: f64 = start.parse()?;
    for (phase, weights) in (0_u64..).zip(PHASES).skip(1) {
        #[expect(clippy::cast_precision_loss, reason = "a few minutes")]
        sleep_until(start_s + (phase * WINDOWS * window_s) as f64);
        for (index, weight) in weights.iter().enumerate() {
            admin.set(&name(index), Some(*weight), None)?;
        }
    }
    let reports = tenants
        .into_iter()
        .map(|tenant| ShareReport::parse(tenant.finish()?))
        .collect::<Result<Vec<_>>>()?;
    let mut errors = Errors::default();
    for window in 0..phases * WINDOWS {
        let index = usize::try_from(window)?;
        let phase = usize::try_from(window / WINDOWS)?;
        let list = if window % WINDOWS == 0 { &mut errors.changed } else { &mut errors.settled };
        // The very first window is a warm-up.
        if window > 0 {
            list.extend(errors_of(&reports, index, &PHASES[phase])?);
        }
    }
    Ok(errors)
}

fn errors_of(reports: &[ShareReport], window: usize, weights: &[u32; 3]) -> Result<Vec<f64>> {
    let work: Vec<u64> =
        reports.iter().filter_map(|report| report.windows.get(window)).copied().collect();
    if work.len() != reports.len() {
        bail!("a tenant ended before window {window}");
    }
    let (total, of_weights) = (work.iter().sum::<u64>().max(1), weights.iter().sum::<u32>());
    let error = |(work, weight): (&u64, &u32)| {
        #[expect(clippy::cast_precision_loss, reason = "launches of a window")]
        let share = *work as f64 / total as f64;
        let expected = f64::from(*weight) / f64::from(of_weights);
        (share - expected).abs() / expected
    };
    Ok(work.iter().zip(weights).map(error).collect())
}

fn name(index: usize) -> String {
    format!("t{index}")
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Sleeps until a time of `CLOCK_MONOTONIC`, in seconds.
fn sleep_until(at_s: f64) {
    let now = clock_gettime(ClockId::Monotonic);
    #[expect(clippy::cast_precision_loss, reason = "microseconds matter, not more")]
    let left_s = at_s - (now.tv_sec as f64 + now.tv_nsec as f64 / 1e9);
    std::thread::sleep(Duration::from_secs_f64(left_s.max(0.0)));
}
