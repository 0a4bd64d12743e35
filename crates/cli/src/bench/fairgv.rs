//! `bench fairgv`: FairGV's Figures 8, 9 and 11 and Table 4 by real programs on the paced device.
//!
//! The programs are those of the paper's Table 3 as far as the device sees them: kernels of that
//! size, one after the other, with a wait after each where the paper's program makes synchronous
//! calls. Figure 8's tenants share one processor, all have equal processor weights. `strict_co`
//! needs the processor scheduler's picks and is simulated only.

use anyhow::{Context as _, Result};

use super::affinity::on_last;
use super::document::Document;
use super::fairness::{self, LONG_US};
use super::tenant::{Host, ShareReport, Tenant, common_start, kernel};
use super::{Context, least, median, min_max_ratio, most};

/// A program: name, its kernels in µs, whether it waits after each.
type Program = (&'static str, u64, bool);

const MM: Program = ("MM", 207, false);
const HS: Program = ("HS", 133, false);
const BS: Program = ("BS", 377, true);
const SRD1: Program = ("SRD1", 46, true);

/// Policies in comparison; the last two are the negative controls.
const POLICIES: [&str; 5] = ["fair", "credit_poll", "credit_hs", "round_robin", "unmanaged"];

/// A figure of the paper: its name, the weights, its programs, whether one processor is shared.
type Figure = (&'static str, &'static [u32], &'static [Program], bool);

const FIGURES: [Figure; 2] = [
    ("figure8", &[1, 2, 3], &[MM, HS, BS, SRD1], true),
    ("figure9", &[1, 2, 2, 3, 3, 4], &[BS, SRD1], false),
];
const BACKGROUND_US: [u64; 4] = [21, 391, 803, 1605];
/// Of a quick run.
const QUICK: [&str; 2] = ["fair", "unmanaged"];
const QUICK_US: [u64; 2] = [21, 1605];
/// Quanta of Table 4 in µs: a piece of the long kernel lasts as long, at 100 µs a block.
const QUANTA_US: [u64; 4] = [500, 1000, 2000, 6000];

/// How long things are measured.
#[derive(Clone, Copy)]
struct Spans {
    windows: u64,
    window_s: u64,
    alone_s: u64,
}

pub(crate) fn run(context: &Context) -> Result<Document> {
    let spans = if context.quick {
        Spans { windows: 1, window_s: 1, alone_s: 1 }
    } else {
        Spans { windows: 3, window_s: 3, alone_s: 3 }
    };
    let Spans { windows, window_s, alone_s } = spans;
    let text = format!(
        "{windows} windows of {window_s} s per point, after one of warm-up; alone for {alone_s} s"
    );
    let mut document = Document::new("fairgv", "paced", &text);
    let direct = Host::direct(true)?;
    let mut rows = Rows::default();
    for figure in FIGURES {
        rows.mmrs.clear();
        for &program in figure.2 {
            bars(context, &mut document, &direct, (figure, program), spans, &mut rows)?;
        }
        document.figure_of(&format!("{}_mmr_min", figure.0), &rows.mmrs, least);
    }
    document.figure_of("overhead_max", &rows.overheads, most);
    document.control_of("mmr_control", &rows.controls, most);
    figure11(context, &mut document, &direct, spans)?;
    table4(context, &mut document, spans)?;
    Ok(document)
}

/// What figures of several programs are of; nothing where a program's is void.
#[derive(Default)]
struct Rows {
    /// MMR of `fair`, of the programs of one figure.
    mmrs: Vec<Option<f64>>,
    /// Overhead of `fair`.
    overheads: Vec<Option<f64>>,
    /// MMR of the negative controls.
    controls: Vec<Option<f64>>,
}

/// A program of Figure 8 or 9 under each policy.
fn bars(
    context: &Context,
    document: &mut Document,
    direct: &Host,
    (figure, program): (Figure, Program),
    spans: Spans,
    rows: &mut Rows,
) -> Result<()> {
    let policies = if context.quick { &QUICK[..] } else { &POLICIES[..] };
    let name =
        |measure: &str, policy: &str| format!("{}_{measure}_{policy}_{}", figure.0, program.0);
    let alone = alone(context, direct, program, spans.alone_s);
    let alone = document.held(alone, policies.iter().map(|policy| name("overhead", policy)))?;
    for &policy in policies {
        let names = ["mmr", "overhead"].map(|measure| name(measure, policy));
        let shared = share(context, policy, figure, program, spans);
        // Without the baseline it is void already.
        let of = if alone.is_some() { 2 } else { 1 };
        let shared = document.held(shared, names.iter().take(of).cloned())?;
        let mmr = shared.as_ref().map(|shared| median(&shared.mmr));
        let overhead = shared.zip(alone).map(|(shared, alone)| alone / shared.rate);
        let is_control = matches!(policy, "round_robin" | "unmanaged");
        if policy == "fair" {
            rows.mmrs.push(mmr);
            rows.overheads.push(overhead);
        } else if is_control {
            rows.controls.push(mmr);
        }
        for (name, value) in names.into_iter().zip([mmr, overhead]) {
            let Some(value) = value else { continue };
            if is_control {
                document.control(name, value);
            } else {
                document.figure(name, value);
            }
        }
    }
    Ok(())
}

/// Device time per second of a program without Weft.
fn alone(context: &Context, direct: &Host, program: Program, seconds: u64) -> Result<f64> {
    direct.judged(context, || {
        let mut command = context.program("share");
        command.args(arguments(program, seconds));
        let report = ShareReport::parse(direct.start("alone", 1, command)?.finish()?)?;
        Ok(rate(report.completed, program.1, report.seconds))
    })
}

fn arguments((_, us, waits): Program, seconds: u64) -> Vec<String> {
    let mut arguments = vec![kernel(us), seconds.to_string()];
    arguments.extend(waits.then(|| "--sync".to_owned()));
    arguments
}

#[expect(clippy::cast_precision_loss, reason = "seconds of microseconds")]
fn rate(completed: u64, us: u64, seconds: f64) -> f64 {
    (completed * us) as f64 / 1e6 / seconds
}

/// How several tenants of the same program shared the device.
struct Shared {
    /// One per window.
    mmr: Vec<f64>,
    /// Device time per second of all of them.
    rate: f64,
}

fn share(
    context: &Context,
    policy: &str,
    (_, weights, _, pinned): Figure,
    program: Program,
    spans: Spans,
) -> Result<Shared> {
    let tenants: Vec<(u32, Program)> = weights.iter().map(|weight| (*weight, program)).collect();
    let reports = contend(context, policy, &tenants, pinned, spans)?;
    let mut mmr = Vec::new();
    for window in windows(spans) {
        let shares: Vec<f64> = reports
            .iter()
            .zip(weights)
            .map(
                |(report, weight)| Ok(window_rate(report, window, program.1)? / f64::from(*weight)),
            )
            .collect::<Result<_>>()?;
        mmr.push(min_max_ratio(&shares));
    }
    Ok(Shared { mmr, rate: reports.iter().map(|report| mean_rate(report, program.1, spans)).sum() })
}

/// All windows but the first, which is a warm-up.
fn windows(spans: Spans) -> std::ops::RangeInclusive<usize> {
    1..=usize::try_from(spans.windows).unwrap_or(1)
}

fn window_rate(report: &ShareReport, window: usize, us: u64) -> Result<f64> {
    let launches = report.windows.get(window).context("a tenant ended before its last window")?;
    Ok(rate(*launches, us, 1.0))
}

fn mean_rate(report: &ShareReport, us: u64, spans: Spans) -> f64 {
    let launches: u64 = windows(spans).filter_map(|window| report.windows.get(window)).sum();
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    let seconds = (spans.windows * spans.window_s) as f64;
    rate(launches, us, seconds)
}

/// Lets programs contend; pinned ones share the last processor.
fn contend(
    context: &Context,
    policy: &str,
    tenants: &[(u32, Program)],
    pinned: bool,
    Spans { windows, window_s, .. }: Spans,
) -> Result<Vec<ShareReport>> {
    Host::on_node(context, true, &[("scheduling.policy", policy)], |host| {
        let start = common_start();
        let started: Vec<Tenant> = tenants
            .iter()
            .enumerate()
            .map(|(place, (weight, program))| {
                let mut command = context.program("share");
                command.args(arguments(*program, (windows + 1) * window_s + 1));
                command.arg("--start").arg(&start).arg("--window").arg(window_s.to_string());
                let name = format!("t{place}");
                let run = || host.start(&name, *weight, command);
                if pinned { on_last(run) } else { run() }
            })
            .collect::<Result<_>>()?;
        started.into_iter().map(|tenant| ShareReport::parse(tenant.finish()?)).collect()
    })
}

/// Run time of a program beside kernels of another size, over that alone.
fn figure11(context: &Context, document: &mut Document, direct: &Host, spans: Spans) -> Result<()> {
    let mut deviations = Vec::new();
    let policies = ["fair", "credit_poll", "unmanaged"];
    let sizes = if context.quick { &QUICK_US[..] } else { &BACKGROUND_US[..] };
    for program in [MM, HS] {
        let name =
            |policy: &str, us: u64| format!("figure11_run_time_{policy}_{}_{us}us", program.0);
        let all = policies.iter().flat_map(|policy| sizes.iter().map(|&us| name(policy, us)));
        let alone = alone(context, direct, program, spans.alone_s);
        let Some(alone) = document.held(alone, all)? else {
            deviations.push(None);
            continue;
        };
        for policy in policies {
            for &us in sizes {
                let tenants = [(1, program), (1, ("background", us, false))];
                let name = name(policy, us);
                let reports = contend(context, policy, &tenants, false, spans);
                let reports = document.held(reports, [name.clone()])?;
                let time = reports
                    .map(|reports| alone / mean_rate(&reports[0], program.1, spans).max(1e-9));
                if policy == "fair" {
                    deviations.push(time.map(|time| (time / 2.0 - 1.0).abs()));
                }
                let Some(time) = time else { continue };
                if policy == "unmanaged" {
                    document.control(name, time);
                } else {
                    document.figure(name, time);
                }
            }
        }
    }
    document.figure_of("figure11_deviation_max", &deviations, most);
    Ok(())
}

/// What cutting a kernel costs: the device's throughput with a tenant of long kernels, in pieces of
/// a quantum, against that with short ones that need no cutting, in percent.
fn table4(context: &Context, document: &mut Document, spans: Spans) -> Result<()> {
    let mut slowdowns = Vec::new();
    let quanta = if context.quick { &QUANTA_US[1..2] } else { &QUANTA_US[..] };
    for &quantum_us in quanta {
        let quantum = quantum_us.to_string();
        let settings = [("scheduling.quantum_us", quantum.as_str())];
        let overhead = |sizes_us: &'static [u64]| {
            Host::on_node(context, true, &settings, |host| {
                let set = ("table4", &[1, 1][..], sizes_us);
                let (window_s, windows) = (spans.window_s.max(2), spans.windows);
                Ok(fairness::contend(context, host, set, window_s, windows)?.overhead)
            })
        };
        let name = format!("table4_slowdown_pieces_of_{quantum_us}us");
        let both = overhead(&[LONG_US, 285]).and_then(|cut| Ok(cut / overhead(&[285, 285])?));
        let ratio = document.held(both, [name.clone()])?;
        let slowdown = ratio.map(|ratio| 100.0 * (ratio - 1.0));
        if let Some(slowdown) = slowdown {
            document.figure(name, slowdown);
        }
        slowdowns.push(slowdown);
    }
    document.figure_of("table4_slowdown_max", &slowdowns, most);
    Ok(())
}
