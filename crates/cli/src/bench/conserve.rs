//! `bench conserve`: the device stays busy beside a co-runner that sleeps (FairGV, Figure 10).

use anyhow::Result;

use super::document::Document;
use super::tenant::{Host, ShareReport, common_start, kernel};
use super::{Context, least, median};

/// How much of its time the co-runner sleeps, in percent.
const SLEEP_PERCENT: [u64; 4] = [50, 60, 70, 80];
const KERNEL_US: u64 = 285;
const RUNS: usize = 3;
/// The control is FairGV without its work-conserving policy (§5.4.5): a vGPU without work keeps the
/// device, polling, for a slice of 6 ms.
const SLICE_US: &str = "6000";

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (runs, seconds) = if context.quick { (1, 2) } else { (RUNS, 5) };
    let window = format!("{runs} runs of {seconds} s per sleep ratio; medians");
    let mut document = Document::new("conserve", context.pace.mode(), &window);
    // All figures are parts of this one.
    let alone = utilization(context, &[], None, (runs, seconds));
    let parts = ["utilization_min", "utilization_control_min"].map(str::to_owned);
    let Some(alone) = document.held(alone, parts)? else { return Ok(document) };
    document.baseline("alone", alone);
    let (mut shares, mut controls) = (Vec::new(), Vec::new());
    let holding = [("scheduling.yield_us", SLICE_US)];
    for percent in SLEEP_PERCENT {
        let name = format!("utilization_{percent}");
        let share = utilization(context, &[], Some(percent), (runs, seconds));
        let share = document.held(share, [name.clone()])?.map(|share| share / alone);
        if let Some(share) = share {
            document.figure(name, share);
        }
        shares.push(share);
        let name = format!("utilization_holding_{percent}");
        let control = utilization(context, &holding, Some(percent), (runs, seconds));
        let control = document.held(control, [name.clone()])?.map(|control| control / alone);
        if let Some(control) = control {
            document.control(name, control);
        }
        controls.push(control);
    }
    document.figure_of("utilization_min", &shares, least);
    document.figure_of("utilization_control_min", &controls, least);
    Ok(document)
}

/// Device time of the work that the tenants completed per second of wall time.
fn utilization(
    context: &Context,
    settings: &[(&str, &str)],
    sleeper: Option<u64>,
    (runs, seconds): (usize, u64),
) -> Result<f64> {
    let mut shares = Vec::new();
    for _ in 0..runs {
        shares.push(Host::on_node(context, context.pace.is_modelled(), settings, |host| {
            contend(context, host, sleeper, seconds)
        })?);
    }
    Ok(median(&shares))
}

fn contend(context: &Context, host: &Host, sleeper: Option<u64>, seconds: u64) -> Result<f64> {
    let start = common_start();
    let mut command = context.program("share");
    command.arg(kernel(KERNEL_US)).arg(seconds.to_string()).arg("--start").arg(&start);
    let mut tenants = vec![host.start("busy", 1, command)?];
    if let Some(percent) = sleeper {
        let mut command = context.program("share");
        command.arg(kernel(KERNEL_US)).arg(seconds.to_string()).arg("--start").arg(&start);
        command.arg("--sleep").arg(percent.to_string());
        tenants.push(host.start("sleeper", 1, command)?);
    }
    let mut used = 0.0;
    for tenant in tenants {
        let report = ShareReport::parse(tenant.finish()?)?;
        #[expect(clippy::cast_precision_loss, reason = "seconds of microseconds")]
        let work_s = (report.completed * KERNEL_US) as f64 / 1e6;
        used += work_s / report.seconds;
    }
    Ok(used)
}
