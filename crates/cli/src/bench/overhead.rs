//! `bench overhead`: a lone tenant, remoted against direct (FairGV, Figure 2).
//!
//! The control is a real transport of four system calls per request (`trap.c`): the same launches
//! over a Unix socket to a process that executes them on the same direct device. `--via tls` has
//! the tenant's vGPU on a node behind a gateway.

use anyhow::Result;

use super::document::Document;
use super::tenant::{Host, ShareReport, kernel};
use super::via::{Remote, Via};
use super::{Context, median};
use crate::demo::MODEL;

/// Kernel sizes of Figure 2, µs.
pub(super) const SIZES_US: [u64; 6] = [21, 51, 102, 172, 285, 391];
/// Pairs of a direct and a remoted run.
const PAIRS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (pairs, run_us) = if context.quick { (1, 200_000) } else { (PAIRS, 1_000_000) };
    let window = format!("{pairs} pairs of runs per size, each {} ms of kernels", run_us / 1000);
    let mut document = Document::new("overhead", "paced", &window);
    let direct = Host::direct(true)?;
    let mut measure =
        |node: &Host| remoted(context, &mut document, (&direct, node), (pairs, run_us));
    if context.via == Some(Via::Tls) {
        Host::again(context, || Ok(Host::Remote(Remote::start(Some(MODEL))?)), &mut measure)?;
    } else {
        Host::on_node(context, true, &[], &mut measure)?;
    }
    trapped(context, &mut document, &direct, (pairs, run_us))?;
    Ok(document)
}

fn remoted(
    context: &Context,
    document: &mut Document,
    (direct, node): (&Host, &Host),
    (pairs, run_us): (usize, u64),
) -> Result<()> {
    let mut lines = [const { Vec::new() }; 4];
    for us in SIZES_US {
        for sync in [false, true] {
            let kind = if sync { "sync" } else { "batch" };
            let cost = measure(context, (direct, node), us, sync, (pairs, run_us))?;
            document.figure(format!("{kind}_{us}us"), cost.over_direct);
            document.figure(format!("{kind}_{us}us_spread"), cost.spread);
            document.figure(format!("{kind}_{us}us_over_model"), cost.over_model);
            document.baseline(format!("direct_{kind}_{us}us_over_model"), cost.direct_over_model);
            let place = 2 * usize::from(sync);
            lines[place].push((us, cost.over_direct));
            lines[place + 1].push((us, cost.over_model));
        }
    }
    let names = ["overhead", "overhead_over_model", "overhead_sync", "overhead_sync_over_model"];
    for (name, line) in names.into_iter().zip(&lines) {
        document.figure(format!("{name}_21us"), line[0].1);
        document.figure(format!("{name}_max"), highest(line));
        document.figure(format!("{name}_passes_1_02_us"), passes(line, 1.02));
    }
    Ok(())
}

/// The transport that traps, against direct launches in batches.
pub(super) fn trapped(
    context: &Context,
    document: &mut Document,
    direct: &Host,
    (pairs, run_us): (usize, u64),
) -> Result<()> {
    for queued in [false, true] {
        let kind = if queued { "trap_queued" } else { "trap" };
        let mut line = Vec::new();
        for us in SIZES_US {
            let (name, count) = (kernel(us), (run_us / us).to_string());
            let mut ratios = Vec::new();
            for _ in 0..pairs {
                let alone = context.share(direct, &[&name, "0", "--count", &count])?;
                let mut words = vec![name.as_str(), &count];
                words.extend(queued.then_some("--queued"));
                let report = ShareReport::parse(vec![context.trapping(direct, &words)?])?;
                let each_s = |report: &ShareReport| {
                    #[expect(clippy::cast_precision_loss, reason = "some thousand launches")]
                    let launches = report.launches as f64;
                    report.drained_seconds / launches
                };
                ratios.push(each_s(&report) / each_s(&alone));
            }
            line.push((us, median(&ratios)));
            document.control(format!("{kind}_{us}us"), median(&ratios));
        }
        document.control(format!("{kind}_passes_1_02_us"), passes(&line, 1.02));
    }
    Ok(())
}

fn highest(line: &[(u64, f64)]) -> f64 {
    line.iter().map(|point| point.1).fold(0.0, f64::max)
}

/// The kernel size in µs below which an overhead is more than `most`, between two sizes that were
/// measured; 0 if it is at none of them, and the largest if it is there too.
pub(super) fn passes(line: &[(u64, f64)], most: f64) -> f64 {
    let Some(last) = line.iter().rposition(|point| point.1 > most) else { return 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a kernel")]
    let at = |place: usize| (line[place].0 as f64, line[place].1);
    let (us, over) = at(last);
    if last + 1 == line.len() {
        return us;
    }
    let (next_us, next_over) = at(last + 1);
    us + (next_us - us) * (over - most) / (over - next_over)
}

/// Medians over the pairs of one size.
struct Cost {
    over_direct: f64,
    /// Largest minus smallest ratio.
    spread: f64,
    over_model: f64,
    direct_over_model: f64,
}

fn measure(
    context: &Context,
    (direct, node): (&Host, &Host),
    us: u64,
    sync: bool,
    (pairs, run_us): (usize, u64),
) -> Result<Cost> {
    let (name, count) = (kernel(us), (run_us / us).to_string());
    let mut arguments = vec![name.as_str(), "0", "--count", count.as_str()];
    if sync {
        arguments.push("--sync");
    }
    let (mut ratios, mut remoted, mut native) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..pairs {
        let alone = context.share(direct, &arguments)?;
        let shared = context.share(node, &arguments)?;
        ratios.push(shared.drained_seconds / alone.drained_seconds);
        #[expect(clippy::cast_precision_loss, reason = "a second of microseconds")]
        let model_s = |launches: u64| (launches * us) as f64 / 1e6;
        remoted.push(shared.drained_seconds / model_s(shared.launches));
        native.push(alone.drained_seconds / model_s(alone.launches));
    }
    let low = ratios.iter().copied().fold(f64::MAX, f64::min);
    let high = ratios.iter().copied().fold(0.0, f64::max);
    Ok(Cost {
        over_direct: median(&ratios),
        spread: high - low,
        over_model: median(&remoted),
        direct_over_model: median(&native),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_an_overhead_is_passed() {
        let line = [(21, 1.10), (51, 1.06), (102, 1.00), (172, 1.01)];
        assert!((passes(&line, 1.02) - 85.0).abs() < 1e-9, "{}", passes(&line, 1.02));
        assert_eq!(passes(&line, 1.2), 0.0);
        assert_eq!(passes(&[(21, 1.0), (51, 1.1)], 1.02), 51.0);
    }
}
