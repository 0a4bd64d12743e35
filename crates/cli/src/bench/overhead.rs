//! `bench overhead`: a lone tenant, remoted against direct (FairGV, Figure 2).
//!
//! The control is a real transport of four system calls per request (`trap.c`): the same launches
//! over a Unix socket to a process that executes them on the same direct device. `--via tls` has
//! the tenant's vGPU on a node behind a gateway, and beside it shared memory. Beside each stands
//! what a kernel would take with one TCP echo after it (`tcp_echo_model_*`). On a genuine GPU
//! direct is its own driver, and there is no control: that transport's device is the software one.

use anyhow::Result;

use super::document::Document;
use super::tenant::{Host, ShareReport, kernel};
use super::via::{Alone, Remote, Via};
use super::{Context, median};
use crate::demo::MODEL;

/// Kernel sizes of Figure 2, µs.
pub(super) const SIZES_US: [u64; 6] = [21, 51, 102, 172, 285, 391];
/// Pairs of a direct and a remoted run.
const PAIRS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (pairs, run_us) = if context.quick { (1, 200_000) } else { (PAIRS, 1_000_000) };
    let window = format!("{pairs} pairs of runs per size, each {} ms of kernels", run_us / 1000);
    let mut document = Document::new("overhead", context.pace.mode(), &window);
    let paced = context.pace.is_modelled();
    let direct = Host::direct(paced)?;
    let remoted = |node: &Host| remoted(context, (&direct, node), (pairs, run_us));
    let shared = || Host::on_node(context, paced, &[], remoted);
    if context.via == Some(Via::Tls) {
        let start = || Ok(Host::Remote(Remote::start(Some(MODEL))?));
        tell(&mut document, &Host::again(context, start, remoted)?);
        for (us, kind, cost) in shared()? {
            document.baseline(format!("shared_memory_{kind}_{us}us"), cost.over_direct);
            document.baseline(format!("shared_memory_{kind}_{us}us_over_model"), cost.over_model);
        }
    } else {
        tell(&mut document, &shared()?);
    }
    if paced {
        trapped(context, &mut document, &direct, (pairs, run_us))?;
    }
    let mut alone = Alone::default();
    for _ in 0..pairs {
        alone.measure()?;
    }
    alone.tell(&mut document);
    echoed(&mut document, "tcp_echo_model", alone.echo_us());
    Ok(document)
}

/// What kernels cost that are launched in batches, and that are waited for each.
pub(super) const KINDS: [(&str, bool); 2] = [("batch", false), ("sync", true)];

fn remoted(
    context: &Context,
    (direct, node): (&Host, &Host),
    (pairs, run_us): (usize, u64),
) -> Result<Vec<(u64, &'static str, Cost)>> {
    let mut costs = Vec::new();
    for us in SIZES_US {
        for (kind, sync) in KINDS {
            costs.push((us, kind, measure(context, (direct, node), us, sync, (pairs, run_us))?));
        }
    }
    Ok(costs)
}

fn tell(document: &mut Document, costs: &[(u64, &'static str, Cost)]) {
    for (us, kind, cost) in costs {
        document.figure(format!("{kind}_{us}us"), cost.over_direct);
        document.figure(format!("{kind}_{us}us_spread"), cost.spread);
        document.figure(format!("{kind}_{us}us_over_model"), cost.over_model);
        document.baseline(format!("direct_{kind}_{us}us_over_model"), cost.direct_over_model);
    }
    for (kind, name) in [("batch", "overhead"), ("sync", "overhead_sync")] {
        let line = |of: fn(&Cost) -> f64| -> Vec<(u64, f64)> {
            let costs = costs.iter().filter(|cost| cost.1 == kind);
            costs.map(|(us, _, cost)| (*us, of(cost))).collect()
        };
        summed_up(document, name, &line(|cost| cost.over_direct));
        summed_up(document, &format!("{name}_over_model"), &line(|cost| cost.over_model));
    }
}

/// A line of Figure 2 in three numbers.
pub(super) fn summed_up(document: &mut Document, name: &str, line: &[(u64, f64)]) {
    document.figure(format!("{name}_21us"), line[0].1);
    document.figure(format!("{name}_max"), highest(line));
    document.figure(format!("{name}_passes_1_02_us"), passes(line, 1.02));
}

/// What kernels would take over what they take, if each had an echo after it.
pub(super) fn echoed(document: &mut Document, name: &str, echo_us: f64) {
    for us in SIZES_US {
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a kernel")]
        let kernel_us = us as f64;
        document.baseline(format!("{name}_{us}us"), 1.0 + echo_us / kernel_us);
    }
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
        if !queued {
            // What the figure is called where a document of this benchmark is described.
            document.control("trap_model_21us", line[0].1);
        }
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
