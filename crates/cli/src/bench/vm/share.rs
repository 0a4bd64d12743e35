//! `bench fairness --via vm` and `bench fairgv --via vm`: machines of weights 1:2:3.
//!
//! Windows are of this host's clock and the node's ledger, since a guest's clock is another one.
//! That the ledger is of work that was done is checked at the end: each program verifies what its
//! launches computed, and the time that they have by the device's model must be what was charged.

use std::time::Duration;

use anyhow::{Result, bail};
use weft_node::admin::Stats;

use super::Machine;
use crate::bench::document::Document;
use crate::bench::tenant::{Host, ShareReport, Tenant, kernel};
use crate::bench::{Context, median, min_max_ratio};

/// A program: name, its kernels in µs, whether it waits after each.
type Program = (&'static str, u64, bool);

const EQUAL: Program = ("equal", 285, false);
/// Those of FairGV's Figure 8, with the kernels of the paper's Table 3.
const FIGURE8: [Program; 4] =
    [("MM", 207, false), ("HS", 133, false), ("BS", 377, true), ("SRD1", 46, true)];

/// Weights of the machines.
const WEIGHTS: [u32; 3] = [1, 2, 3];

/// Programs work so long beyond the windows: machines that boot side by side do not boot alike.
const BOOT_S: u64 = 30;

/// The longest time by which what was charged may differ from what the launches take by the model:
/// more is no ledger of that work.
const LEDGER_ERROR_MAX: f64 = 0.02;

/// The lag bound does not hold without a gate; the windows of the control are one.
const CONTROL_WINDOWS: u64 = 1;

pub(super) fn fairness(context: &Context) -> Result<Document> {
    document(context, "fairness", &[EQUAL], 5)
}

pub(super) fn figure8(context: &Context) -> Result<Document> {
    document(context, "fairgv", &FIGURE8, 3)
}

fn document(
    context: &Context,
    name: &'static str,
    programs: &[Program],
    windows: u64,
) -> Result<Document> {
    let (window_s, windows) = if context.quick { (2, 2) } else { (10, windows) };
    let text = format!(
        "{windows} windows of {window_s} s per program, three machines of one processor under TCG"
    );
    let mut document = Document::new(name, "paced", &text);
    let (mut worst, mut control_max) = (f64::MAX, 0.0_f64);
    for &program in programs.iter().filter(|program| context.wants(program.0)) {
        let fair = share(context, "fair", program, (windows, window_s))?;
        let name = program.0;
        let mmr = median(&fair.mmr);
        document.figure(format!("mmr_{name}"), mmr);
        let least = fair.mmr.iter().copied().fold(f64::MAX, f64::min);
        document.figure(format!("mmr_{name}_min"), least);
        document.figure(format!("utilization_{name}"), fair.utilization);
        document.figure(format!("ledger_error_{name}"), fair.ledger_error);
        worst = worst.min(mmr);
        let control = share(context, "unmanaged", program, (CONTROL_WINDOWS, window_s))?;
        document.control(format!("mmr_unmanaged_{name}"), median(&control.mmr));
        document.control(format!("utilization_unmanaged_{name}"), control.utilization);
        control_max = control_max.max(median(&control.mmr));
    }
    document.figure("mmr_min", worst);
    document.control("mmr_control", control_max);
    Ok(document)
}

struct Shared {
    /// One per window.
    mmr: Vec<f64>,
    /// Device time of all of them over the windows' time.
    utilization: f64,
    /// The largest part by which a vGPU's charges differ from its verified work.
    ledger_error: f64,
}

fn share(context: &Context, policy: &str, program: Program, spans: (u64, u64)) -> Result<Shared> {
    let settings = [("scheduling.policy", policy)];
    Host::on_node(context, true, &settings, |host| contend(context, host, program, spans))
}

fn contend(
    context: &Context,
    host: &Host,
    (_, us, waits): Program,
    (windows, window_s): (u64, u64),
) -> Result<Shared> {
    let daemon = host.daemon()?;
    let (step, seconds) = (kernel(us), (windows * window_s + BOOT_S).to_string());
    let mut words = vec!["share", &step, &seconds, "--window", "1"];
    words.extend(waits.then_some("--sync"));
    let names = WEIGHTS.map(|weight| format!("w{weight}"));
    let mut machines: Vec<Tenant> = Vec::new();
    for (name, weight) in names.iter().zip(WEIGHTS) {
        let machine = Machine { name, weight, flags: &[], words: &words };
        machines.push(machine.tenant(context, daemon)?);
    }
    for machine in &mut machines {
        // The line of its first window: it has booted and is at work.
        machine.json_line()?;
    }
    let mut client = daemon.sockets().connect()?;
    let mut before = client.stats()?;
    let (mut mmr, mut used_ns, first_ns) = (Vec::new(), 0, before.now_ns);
    for _ in 0..windows {
        std::thread::sleep(Duration::from_secs(window_s));
        let after = client.stats()?;
        let used =
            names.each_ref().map(|name| used_ns_of(&after, name) - used_ns_of(&before, name));
        used_ns += used.iter().sum::<u64>();
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of some seconds")]
        let shares: Vec<f64> = used
            .iter()
            .zip(WEIGHTS)
            .map(|(used, weight)| *used as f64 / f64::from(weight))
            .collect();
        mmr.push(min_max_ratio(&shares));
        before = after;
    }
    for machine in &mut machines {
        if machine.has_ended()? {
            bail!("a machine's program ended within the last window: it booted too early");
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of some seconds")]
    let utilization = used_ns as f64 / (before.now_ns - first_ns) as f64;
    let mut ledger_error = 0.0_f64;
    let reports: Vec<ShareReport> = machines
        .into_iter()
        .map(|machine| ShareReport::parse(machine.finish()?))
        .collect::<Result<_>>()?;
    let last = client.stats()?;
    for (name, report) in names.iter().zip(reports) {
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of some seconds")]
        let (charged, worked) =
            (used_ns_of(&last, name) as f64, (report.launches * us * 1000) as f64);
        ledger_error = ledger_error.max((charged / worked - 1.0).abs());
    }
    if ledger_error > LEDGER_ERROR_MAX {
        bail!("charges differ from the verified work by {ledger_error:.3}");
    }
    Ok(Shared { mmr, utilization, ledger_error })
}

fn used_ns_of(stats: &Stats, name: &str) -> u64 {
    stats.vgpus.iter().find(|vgpu| vgpu.name == name).map_or(0, |vgpu| vgpu.used_ns)
}
