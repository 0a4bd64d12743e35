//! `bench cosched --via vm`: how soon a machine's program runs after its result has come, when the
//! machine's processor shares one of the host with hogs.
//!
//! The machine has one processor. Its thread and the hogs are on the last processor of the host;
//! QEMU's other threads, the machine's server, the daemon and the workers have the others. The
//! guest's clock is not the device's, so a wait is what a launch took until the program ran again,
//! less what the kernel takes by the model: submitting, waking through QEMU and the guest's kernel
//! included, an upper bound of what the host's scheduler adds.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;
use rustix::thread::CpuSet;
use serde::Deserialize;

use weft_node::admin::CoschedulingReport;

use super::Machine;
use crate::bench::cosched::{
    HOGS, HogReport, KERNEL_US, MODES, beside, on, percentile_us, processors,
};
use crate::bench::document::Document;
use crate::bench::tenant::{Host, Tenant, common_start, kernel};
use crate::bench::{Context, median};

/// QEMU has started its processor within this time.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Hogs work as long as the program does, which begins earlier and records later.
const WARM_S: u64 = 3;

#[derive(Debug, Default)]
struct Mode {
    /// Of every wait, in ns.
    waits_ns: Vec<u64>,
    /// Kernels per second, by round.
    rates: Vec<f64>,
    /// The lesser hog's part of the processor's time, by round.
    hogs: Vec<f64>,
    /// Boosts, by round.
    boosts: Vec<f64>,
    /// Those that the bound on boosted time forbade, by round.
    capped: Vec<f64>,
    /// Those that the watchdog ended, by round.
    ended_by_watchdog: Vec<f64>,
    /// How long a boosted processor ran, in µs, by round.
    boosted_us: Vec<f64>,
}

impl Mode {
    fn count_boosts(&mut self, report: &CoschedulingReport) {
        #[expect(clippy::cast_precision_loss, reason = "some thousand boosts")]
        let [boosts, capped, ended, boosted_ns] =
            [report.boosts, report.capped, report.ended_by_watchdog, report.boosted_ns]
                .map(|count| count as f64);
        self.boosts.push(boosts);
        self.capped.push(capped);
        self.ended_by_watchdog.push(ended);
        self.boosted_us.push(boosted_ns / boosts.max(1.0) / 1000.0);
    }

    fn percentile_us(&self, percent: usize) -> f64 {
        percentile_us(&self.waits_ns, percent)
    }
}

#[derive(Debug, Deserialize)]
struct Report {
    launches: u64,
    seconds: f64,
    waits_ns: Vec<u64>,
}

pub(super) fn run(context: &Context) -> Result<Document> {
    let (rounds, seconds) = if context.quick { (1, 3) } else { (3, 5) };
    let window = format!(
        "{rounds} rounds of {seconds} s per mode in a machine under TCG; all waits of a mode \
         together"
    );
    let mut document = Document::new("cosched", "paced", &window);
    let mut modes: Vec<Mode> = MODES.iter().map(|_| Mode::default()).collect();
    for _ in 0..rounds {
        for (name, mode) in MODES.iter().zip(&mut modes) {
            measure(context, name, seconds, mode)?;
        }
    }
    let plain_p99_us = modes[0].percentile_us(99);
    for (name, mode) in MODES.iter().zip(&modes) {
        let figures = [
            (format!("wake_p50_us_{name}"), mode.percentile_us(50)),
            (format!("wake_p90_us_{name}"), mode.percentile_us(90)),
            (format!("wake_p99_us_{name}"), mode.percentile_us(99)),
            (format!("wake_p99_over_plain_{name}"), mode.percentile_us(99) / plain_p99_us),
            (format!("kernels_per_s_{name}"), median(&mode.rates)),
            (format!("hog_share_of_wall_{name}"), median(&mode.hogs)),
            (format!("boosts_{name}"), median(&mode.boosts)),
            (format!("boosts_capped_{name}"), median(&mode.capped)),
            (format!("boosts_ended_by_watchdog_{name}"), median(&mode.ended_by_watchdog)),
            (format!("boosted_us_each_{name}"), median(&mode.boosted_us)),
        ];
        for (figure, value) in figures {
            match *name {
                "off" => document.control(figure, value),
                _ => document.figure(figure, value),
            }
        }
        if *name == "boost" {
            let over = mode.percentile_us(99) / plain_p99_us;
            document.figure("wake_p99_over_plain", over);
        }
    }
    Ok(document)
}

fn measure(context: &Context, name: &str, seconds: u64, mode: &mut Mode) -> Result<()> {
    let (others, last) = processors()?;
    let settings = [("scheduling.coscheduling", name)];
    let host = beside(&others, || Host::node(true, &settings))?;
    host.judged(context, |host| contend(context, host, (&others, last), seconds, mode))
}

fn contend(
    context: &Context,
    host: &Host,
    (others, last): (&CpuSet, usize),
    seconds: u64,
    mode: &mut Mode,
) -> Result<()> {
    let daemon = host.daemon()?;
    let (step, span, processor) = (kernel(KERNEL_US), seconds.to_string(), last.to_string());
    let words = ["cosched", "tenant", &step, &span, "-", "0"];
    let machine = Machine { name: "vm", weight: 1, flags: &[], words: &words };
    let mut tenant = on(others, || machine.tenant(context, daemon))?;
    let thread = thread_of_processor(&tenant)?;
    // Its program is at work.
    tenant.json_line()?;
    let mut only = CpuSet::new();
    only.set(last);
    rustix::thread::sched_setaffinity(Some(thread), &only)?;
    let (start, hogs_s) = (common_start(), seconds + WARM_S);
    let mut hogs = Vec::new();
    for hog in 0..HOGS {
        let mut command = context.program("cosched");
        command.args(["hog", &hogs_s.to_string(), &start, &processor]);
        hogs.push(host.start(&format!("hog{hog}"), 1, command)?);
    }
    let line = tenant.finish()?.into_iter().last().context("the program printed nothing")?;
    let report: Report = serde_json::from_value(line)?;
    let kernel_ns = KERNEL_US * 1000;
    mode.waits_ns.extend(report.waits_ns.iter().map(|took| took.saturating_sub(kernel_ns)));
    #[expect(clippy::cast_precision_loss, reason = "some thousand launches")]
    mode.rates.push(report.launches as f64 / report.seconds);
    let mut least = f64::MAX;
    for hog in hogs {
        let line = hog.finish()?.into_iter().last().context("a hog printed nothing")?;
        least = least.min(serde_json::from_value::<HogReport>(line)?.processor_seconds);
    }
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    mode.hogs.push(least / hogs_s as f64);
    mode.count_boosts(&daemon.sockets().connect()?.stats()?.coscheduling);
    Ok(())
}

/// The thread of QEMU that runs the machine's only processor.
fn thread_of_processor(machine: &Tenant) -> Result<Pid> {
    let server = machine.id().context("the machine has ended")?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Some(thread) = find_processor(server) {
            return Ok(thread);
        }
        if Instant::now() > deadline {
            bail!("QEMU has no thread named after its processor");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn find_processor(server: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children")).ok()?;
    let qemu = children.split_whitespace().next()?;
    let threads = fs::read_dir(format!("/proc/{qemu}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let id = thread.file_name().to_str()?.parse().ok()?;
        name.starts_with("CPU 0/").then(|| Pid::from_raw(id)).flatten()
    })
}
