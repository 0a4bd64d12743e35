//! `bench fairness --via vm` and `bench fairgv --via vm`: machines of weights 1:2:3, with FairGV's
//! Figure 8 and, of three at once, its Figure 2.
//!
//! Windows are of this host's clock and the node's ledger, since a guest's clock is another one.
//! That the ledger is of work that was done is checked at the end: each program verifies what its
//! launches computed, and the time that they have by the device's model must be what was charged.
//!
//! Three interpreters keep two processors busy, and a paced device executes on these processors,
//! too: its workers must begin in time, or the device is no model of anything. So machines share
//! the last processor, as FairGV's of Figure 8 share one, and node and device have the others, as
//! its vGPUs do. What machines lack is their own, and shows. A size or a program that is void all
//! the same is void by itself, and its control is left out.

use std::time::Duration;

use anyhow::{Result, bail};
use weft_node::admin::Stats;

use super::Machine;
use crate::bench::affinity::{beside, on_last, processors};
use crate::bench::document::Document;
use crate::bench::overhead::SIZES_US;
use crate::bench::tenant::{Host, ShareReport, Tenant, kernel};
use crate::bench::{Context, least, median, min_max_ratio, most};

/// A program: name, its kernels in µs, whether it waits after each.
type Program = (&'static str, u64, bool);

const EQUAL: Program = ("equal", 285, false);
/// Those of FairGV's Figure 8, with the kernels of the paper's Table 3.
const FIGURE8: [Program; 4] =
    [("MM", 207, false), ("HS", 133, false), ("BS", 377, true), ("SRD1", 46, true)];

/// Names Figure 2 for `--only`.
const FIGURE2: &str = "figure2";
/// Its kernels in a quick run.
const QUICK_US: [u64; 2] = [21, 391];

/// Weights of the machines.
const WEIGHTS: [u32; 3] = [1, 2, 3];

/// Programs work so long beyond the windows: machines that boot side by side do not boot alike.
const BOOT_S: u64 = 30;

/// The longest time by which what was charged may differ from what the launches take by the model:
/// more is no ledger of that work.
const LEDGER_ERROR_MAX: f64 = 0.002;

/// A run takes more than a minute, and what is void three times is hardly ever void by chance. A
/// control is tried once.
const RUNS_MAX: usize = 3;

/// The policy that is measured.
const FAIR: &str = "fair";

/// The lag bound does not hold without a gate; the windows of the control are one.
const CONTROL_WINDOWS: u64 = 1;

pub(super) fn fairness(context: &Context) -> Result<Document> {
    let (mut document, spans) = document(context, "fairness", 5);
    let overheads = shares(context, &mut document, &[EQUAL], spans)?;
    document.figure_of("overhead_max", &overheads, most);
    Ok(document)
}

pub(super) fn fairgv(context: &Context) -> Result<Document> {
    let (mut document, spans) = document(context, "fairgv", 3);
    context.check_only(FIGURE8.iter().map(|program| program.0).chain([FIGURE2]))?;
    if FIGURE8.iter().any(|program| context.wants(program.0)) {
        shares(context, &mut document, &FIGURE8, spans)?;
    }
    if context.wants(FIGURE2) {
        figure2(context, &mut document, spans)?;
    }
    Ok(document)
}

/// Windows, and how long each is in seconds.
type Spans = (u64, u64);

fn document(context: &Context, name: &'static str, windows: u64) -> (Document, Spans) {
    let (window_s, windows) = if context.quick { (2, 2) } else { (10, windows) };
    let text = format!(
        "{windows} windows of {window_s} s per program, three machines of one processor under TCG, \
         which share the last processor; node and device have the others"
    );
    let mut document = Document::new(name, "paced", &text);
    #[expect(clippy::cast_precision_loss, reason = "some seconds")]
    document.figure("window_s", window_s as f64);
    (document, (windows, window_s))
}

/// The overhead of three machines together by the size of their kernels: what the device could do
/// over what it did for them. The control is the transport of four system calls a request in each
/// machine, between the program and a process that has its vGPU.
fn figure2(context: &Context, document: &mut Document, spans: Spans) -> Result<()> {
    let sizes = if context.quick { &QUICK_US[..] } else { &SIZES_US[..] };
    let (mut overheads, mut mmrs) = (Vec::new(), Vec::new());
    for &us in sizes {
        let [overhead, mmr, trapped] = [
            format!("figure2_overhead_{us}us"),
            format!("figure2_mmr_{us}us"),
            format!("figure2_trap_overhead_{us}us"),
        ];
        let load = Load { us, waits: false, traps: false };
        let names = [overhead.clone(), mmr.clone(), trapped.clone()];
        let fair = document.held(share(context, FAIR, load, spans), names)?;
        overheads.push(fair.as_ref().map(Shared::overhead));
        mmrs.push(fair.as_ref().map(|fair| median(&fair.mmr)));
        let Some(fair) = fair else { continue };
        document.figure(overhead, fair.overhead());
        document.figure(mmr, median(&fair.mmr));
        let load = Load { traps: true, ..load };
        let trap = share(context, FAIR, load, (CONTROL_WINDOWS, spans.1));
        if let Some(trap) = document.held(trap, [trapped.clone()])? {
            document.control(trapped, trap.overhead());
        }
    }
    document.figure_of("figure2_overhead_max", &overheads, most);
    document.figure_of("figure2_mmr_min", &mmrs, least);
    Ok(())
}

/// What machines with these programs had each; what the device could do over what it did, by
/// program, which says something of programs that fill it.
fn shares(
    context: &Context,
    document: &mut Document,
    programs: &[Program],
    spans: Spans,
) -> Result<Vec<Option<f64>>> {
    let (mut mmrs, mut controls, mut overheads) = (Vec::new(), Vec::new(), Vec::new());
    for &program in programs.iter().filter(|program| context.wants(program.0)) {
        let load = Load { us: program.1, waits: program.2, traps: false };
        let name = program.0;
        let of_control = [format!("mmr_unmanaged_{name}"), format!("utilization_unmanaged_{name}")];
        let of_fair = [
            format!("mmr_{name}"),
            format!("mmr_{name}_min"),
            format!("utilization_{name}"),
            format!("ledger_error_{name}"),
        ];
        let names = of_fair.iter().chain(&of_control).cloned();
        let fair = document.held(share(context, FAIR, load, spans), names)?;
        mmrs.push(fair.as_ref().map(|fair| median(&fair.mmr)));
        overheads.push(fair.as_ref().map(Shared::overhead));
        let Some(fair) = fair else {
            controls.push(None);
            continue;
        };
        let values = [median(&fair.mmr), least(&fair.mmr), fair.utilization, fair.ledger_error];
        for (figure, value) in of_fair.into_iter().zip(values) {
            document.figure(figure, value);
        }
        let control = share(context, "unmanaged", load, (CONTROL_WINDOWS, spans.1));
        let control = document.held(control, of_control.clone())?;
        controls.push(control.as_ref().map(|control| median(&control.mmr)));
        if let Some(control) = control {
            let values = [median(&control.mmr), control.utilization];
            for (figure, value) in of_control.into_iter().zip(values) {
                document.control(figure, value);
            }
        }
    }
    document.figure_of("mmr_min", &mmrs, least);
    document.control_of("mmr_control", &controls, most);
    Ok(overheads)
}

/// What the program of each machine launches.
#[derive(Clone, Copy)]
struct Load {
    us: u64,
    /// It waits after each kernel.
    waits: bool,
    /// Its launches go through a socket to a process of the machine that has the vGPU.
    traps: bool,
}

impl Load {
    /// The program, for so many seconds. It prints a line when it is at work.
    fn words(self, seconds: u64) -> Vec<String> {
        let words = if self.traps {
            vec!["trap".to_owned(), kernel(self.us), format!("{seconds}s"), "--queued".to_owned()]
        } else {
            let words = ["share", &kernel(self.us), &seconds.to_string(), "--window", "1"];
            words.map(str::to_owned).to_vec()
        };
        words.into_iter().chain(self.waits.then(|| "--sync".to_owned())).collect()
    }
}

struct Shared {
    /// One per window.
    mmr: Vec<f64>,
    /// Device time of all of them over the windows' time.
    utilization: f64,
    /// The largest part by which a vGPU's charges differ from its verified work.
    ledger_error: f64,
}

impl Shared {
    /// What the device could do over what it did.
    fn overhead(&self) -> f64 {
        1.0 / self.utilization
    }
}

fn share(context: &Context, policy: &str, load: Load, spans: Spans) -> Result<Shared> {
    let (others, _) = processors()?;
    let settings = [("scheduling.policy", policy)];
    let start = || beside(&others, || Host::node(true, &settings));
    let is_control = load.traps || policy != FAIR;
    let runs_max = if is_control { 1 } else { RUNS_MAX };
    Host::up_to(context, runs_max, start, |host| contend(context, host, load, spans))
}

fn contend(
    context: &Context,
    host: &Host,
    load: Load,
    (windows, window_s): Spans,
) -> Result<Shared> {
    let daemon = host.daemon()?;
    let words = load.words(windows * window_s + BOOT_S);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let names = WEIGHTS.map(|weight| format!("w{weight}"));
    let mut machines: Vec<Tenant> = Vec::new();
    for (name, weight) in names.iter().zip(WEIGHTS) {
        let machine = Machine { name, weight, flags: &[], words: &words };
        machines.push(on_last(|| machine.tenant(context, daemon))?);
    }
    for machine in &mut machines {
        // It has booted and is at work.
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
            (used_ns_of(&last, name) as f64, (report.launches * load.us * 1000) as f64);
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
