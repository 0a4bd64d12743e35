//! `bench accounting`: what was charged against what the programs know they used (FairGV, Table 2).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use weft_node::admin::Stats;

use super::document::Document;
use super::tenant::{Host, common_start};
use super::{Context, median};

/// The kernels of `phases` and their modelled times in ns.
const KERNELS: [(&str, u64); 3] =
    [("step_51us", 51_000), ("step_391us", 391_000), ("step_172us", 172_000)];
const RUNS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (runs, seconds) = if context.quick { (1, 2) } else { (RUNS, 6) };
    let window =
        format!("{runs} runs of {seconds} s, two tenants whose kernels change every 10 to 14 ms");
    let mut document = Document::new("accounting", "paced", &window);
    for (mode, prefix) in [("sampled", ""), ("every", "timing_every_request_")] {
        let (mut errors, mut closures) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let (error, closure) = measure(context, mode, seconds)?;
            errors.push(error);
            closures.push(closure);
        }
        let highest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        document.figure(format!("{prefix}error_median"), median(&errors));
        document.figure(format!("{prefix}error_max"), highest(&errors));
        document.figure(format!("{prefix}closure"), highest(&closures));
    }
    Ok(document)
}

/// The node's books when the last session's use has been entered.
fn final_stats(host: &Host) -> Result<Stats> {
    let mut client = host.daemon()?.sockets().connect()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = client.stats()?;
        if stats.vgpus.iter().all(|vgpu| vgpu.sessions == 0 && vgpu.used_ns > 0) {
            return Ok(stats);
        }
        if Instant::now() > deadline {
            bail!("a session of the benchmark did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The larger of two tenants' relative errors, and the node's closure.
fn measure(context: &Context, accounting: &str, seconds: u64) -> Result<(f64, f64)> {
    let host = Host::node(true, &[("scheduling.accounting", accounting)])?;
    let start = common_start();
    let names = ["one", "two"];
    let mut tenants = Vec::new();
    for name in names {
        let mut command = context.program("phases");
        command.arg(seconds.to_string()).arg(&start);
        tenants.push(host.start(name, 1, command)?);
    }
    let mut truths = Vec::new();
    for tenant in tenants {
        let report = tenant.finish()?.into_iter().last().context("phases printed nothing")?;
        let launches = |name: &str| report[name].as_u64().unwrap_or(0);
        truths.push(KERNELS.iter().map(|(name, ns)| launches(name) * ns).sum::<u64>());
    }
    let stats = final_stats(&host)?;
    let mut worst = 0.0_f64;
    for (name, truth_ns) in names.iter().zip(truths) {
        let vgpu = stats.vgpus.iter().find(|vgpu| vgpu.name == *name).context("a vGPU is gone")?;
        #[expect(clippy::cast_precision_loss, reason = "a relative error")]
        let error = vgpu.used_ns.abs_diff(truth_ns) as f64 / truth_ns as f64;
        worst = worst.max(error);
    }
    Ok((worst, stats.closure.error()))
}
