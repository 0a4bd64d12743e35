//! `bench overhead`: a lone tenant, remoted against direct (FairGV, Figure 2).
//!
//! The control is a real transport of four system calls per request (`trap.c`): the same launches
//! over a Unix socket to a process that executes them on the same direct device. `--via tls` has
//! the tenant's vGPU on a node behind a gateway, and beside it shared memory. Beside each stands
//! what a kernel would take with one TCP echo after it (`tcp_echo_model_*`). On a genuine GPU
//! direct is its own driver, and there is no control: that transport's device is the software one.
//!
//! Each size is judged by itself, the native baseline as strictly as what stands over it.

use anyhow::Result;

use super::document::Document;
use super::tenant::{Host, ShareReport, kernel};
use super::via::{Alone, Remote, Via};
use super::{Context, median, most};
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
    let spans = (pairs, run_us);
    let shared = || Host::node(paced, &[]);
    if context.via == Some(Via::Tls) {
        let start = || Ok(Host::Remote(Remote::start(Some(MODEL))?));
        figure2(context, &mut document, &direct, start, spans)?;
        shared_memory(context, &mut document, &direct, shared, spans)?;
    } else {
        figure2(context, &mut document, &direct, shared, spans)?;
    }
    if paced {
        trapped(context, &mut document, &direct, spans)?;
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

/// How many pairs of runs, and µs of kernels in each.
type Spans = (usize, u64);

/// Figure 2 of what `start` starts.
fn figure2(
    context: &Context,
    document: &mut Document,
    direct: &Host,
    start: impl Fn() -> Result<Host>,
    spans: Spans,
) -> Result<()> {
    for (kind, sync) in KINDS {
        let (mut direct_line, mut model_line) = (Vec::new(), Vec::new());
        for us in SIZES_US {
            let names = ["", "_spread", "_over_model"].map(|end| format!("{kind}_{us}us{end}"));
            let native = format!("direct_{kind}_{us}us_over_model");
            let all = names.iter().chain([&native]).cloned();
            let cost = remoted(context, direct, &start, (us, sync), spans);
            let cost = document.held(cost, all)?;
            direct_line.push((us, cost.as_ref().map(|cost| cost.over_direct)));
            model_line.push((us, cost.as_ref().map(|cost| cost.over_model)));
            let Some(cost) = cost else { continue };
            let values = [cost.over_direct, cost.spread, cost.over_model];
            for (name, value) in names.into_iter().zip(values) {
                document.figure(name, value);
            }
            document.baseline(native, cost.direct_over_model);
        }
        let name = if sync { "overhead_sync" } else { "overhead" };
        summed_up(document, name, &direct_line);
        summed_up(document, &format!("{name}_over_model"), &model_line);
    }
    Ok(())
}

/// The same of a node, as what another way to it stands beside.
fn shared_memory(
    context: &Context,
    document: &mut Document,
    direct: &Host,
    start: impl Fn() -> Result<Host>,
    spans: Spans,
) -> Result<()> {
    for (kind, sync) in KINDS {
        for us in SIZES_US {
            let name = format!("shared_memory_{kind}_{us}us");
            let names = [name.clone(), format!("{name}_over_model")];
            let cost = remoted(context, direct, &start, (us, sync), spans);
            let Some(cost) = document.held(cost, names.clone())? else { continue };
            for (name, value) in names.into_iter().zip([cost.over_direct, cost.over_model]) {
                document.baseline(name, value);
            }
        }
    }
    Ok(())
}

/// Pairs of runs on the native baseline and on what `start` starts, which both keep to the model.
fn remoted(
    context: &Context,
    direct: &Host,
    start: &impl Fn() -> Result<Host>,
    (us, sync): (u64, bool),
    spans: Spans,
) -> Result<Cost> {
    direct.beside(context, start, |node| measure(context, (direct, node), us, sync, spans))
}

/// A line of Figure 2 in three numbers, of which those are void that are of a void point.
pub(super) fn summed_up(document: &mut Document, name: &str, line: &[(u64, Option<f64>)]) {
    let first = [format!("{name}_21us")];
    let all = [format!("{name}_max"), format!("{name}_passes_1_02_us")];
    match line[0].1 {
        Some(value) => document.figure(&first[0], value),
        None => document.void_with_rows([first[0].as_str()]),
    }
    match whole(line) {
        Some(line) => {
            document.figure(&all[0], highest(&line));
            document.figure(&all[1], passes(&line, 1.02));
        }
        None => document.void_with_rows(all.iter().map(String::as_str)),
    }
}

/// A line without a void point.
fn whole(line: &[(u64, Option<f64>)]) -> Option<Vec<(u64, f64)>> {
    line.iter().map(|&(us, value)| Some((us, value?))).collect()
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
    spans: Spans,
) -> Result<()> {
    for queued in [false, true] {
        let kind = if queued { "trap_queued" } else { "trap" };
        let mut line = Vec::new();
        for us in SIZES_US {
            let name = format!("{kind}_{us}us");
            let over = direct.judged(context, || traps(context, direct, us, queued, spans));
            let over = document.held(over, [name.clone()])?;
            line.push((us, over));
            if let Some(over) = over {
                document.control(name, over);
            }
        }
        let passed = format!("{kind}_passes_1_02_us");
        match whole(&line) {
            Some(line) => document.control(passed, passes(&line, 1.02)),
            None => document.void_with_rows([passed.as_str()]),
        }
        if !queued {
            // What the figure is called where a document of this benchmark is described.
            document.control_of("trap_model_21us", &[line[0].1], most);
        }
    }
    Ok(())
}

/// A launch by that transport over one of a batch.
fn traps(
    context: &Context,
    direct: &Host,
    us: u64,
    queued: bool,
    (pairs, run_us): Spans,
) -> Result<f64> {
    let (name, count) = (kernel(us), (run_us / us).to_string());
    let mut words = vec![name.as_str(), &count];
    words.extend(queued.then_some("--queued"));
    let mut ratios = Vec::new();
    for _ in 0..pairs {
        let alone = context.share(direct, &[&name, "0", "--count", &count])?;
        let report = ShareReport::parse(vec![context.trapping(direct, &words)?])?;
        let each_s = |report: &ShareReport| {
            #[expect(clippy::cast_precision_loss, reason = "some thousand launches")]
            let launches = report.launches as f64;
            report.drained_seconds / launches
        };
        ratios.push(each_s(&report) / each_s(&alone));
    }
    Ok(median(&ratios))
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
    (pairs, run_us): Spans,
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
