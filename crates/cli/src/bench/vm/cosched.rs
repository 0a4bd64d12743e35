//! `bench cosched --via vm`: how soon a machine's program runs after its result has come, when the
//! machine's processor shares one of the host with hogs.
//!
//! The machine has one processor. Its thread and the hogs are on the last processor of the host;
//! QEMU's other threads, the machine's server, the daemon and the workers have the others. The
//! guest's clock is not the device's, so a wait is what a launch took until the program ran again,
//! less what the kernel takes by the model: submitting, waking through QEMU and the guest's kernel
//! included, an upper bound of what the host's scheduler adds. Shares of the processor are what the
//! system says that the machine's thread and the hogs had of it while all of them worked.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;
use rustix::thread::CpuSet;
use serde::Deserialize;

use weft_node::admin::CoschedulingReport;

use super::Machine;
use crate::bench::affinity::{beside, on, only, processors};
use crate::bench::cosched::{HOGS, KERNEL_US, MODES, hog_error, percentile_us};
use crate::bench::document::Document;
use crate::bench::tenant::{Host, LEAD, Tenant, kernel, start_after};
use crate::bench::{Context, median};

/// QEMU has started its processor within this time.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The program records nothing at first, while the hogs begin, and hogs work beyond its end.
const WARM_S: u64 = 3;

#[derive(Debug, Default)]
struct Mode {
    /// Of every wait, in ns.
    waits_ns: Vec<u64>,
    /// Kernels per second, by round.
    rates: Vec<f64>,
    /// The lesser hog's part of the processor's time, by round.
    hogs: Vec<f64>,
    /// The machine's part of it, by round.
    machines: Vec<f64>,
    /// Largest relative distance of a hog from its fair share, by round.
    errors: Vec<f64>,
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
    /// Another round, which counts: a void one adds nothing.
    fn add(&mut self, round: Self) {
        self.waits_ns.extend(round.waits_ns);
        for (all, more) in [
            (&mut self.rates, round.rates),
            (&mut self.hogs, round.hogs),
            (&mut self.machines, round.machines),
            (&mut self.errors, round.errors),
            (&mut self.boosts, round.boosts),
            (&mut self.capped, round.capped),
            (&mut self.ended_by_watchdog, round.ended_by_watchdog),
            (&mut self.boosted_us, round.boosted_us),
        ] {
            all.extend(more);
        }
    }

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

    fn count_shares(&mut self, used: &Used) {
        let Used { machine_s, hogs_s, wall_s } = used;
        self.hogs.push(hogs_s.iter().copied().fold(f64::MAX, f64::min) / wall_s);
        self.machines.push(machine_s / wall_s);
        self.errors.push(hog_error(&[*machine_s], hogs_s, *wall_s));
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
            (format!("hog_share_error_{name}"), median(&mode.errors)),
            (format!("hog_share_of_wall_{name}"), median(&mode.hogs)),
            (format!("machine_share_of_wall_{name}"), median(&mode.machines)),
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
            document.figure("hog_share_error", median(&mode.errors));
        }
    }
    Ok(document)
}

fn measure(context: &Context, name: &str, seconds: u64, mode: &mut Mode) -> Result<()> {
    let (others, last) = processors()?;
    let settings = [("scheduling.coscheduling", name)];
    let start = || beside(&others, || Host::node(true, &settings));
    let round = |host: &Host| contend(context, host, (&others, last), seconds);
    mode.add(Host::again(context, start, round)?);
    Ok(())
}

/// A round of a mode.
fn contend(
    context: &Context,
    host: &Host,
    (others, last): (&CpuSet, usize),
    seconds: u64,
) -> Result<Mode> {
    let mut mode = Mode::default();
    let daemon = host.daemon()?;
    let (step, span, processor) = (kernel(KERNEL_US), seconds.to_string(), last.to_string());
    let words = ["cosched", "tenant", &step, &span, "-", "0"];
    let machine = Machine { name: "vm", weight: 1, flags: &[], words: &words };
    let mut tenant = on(others, || machine.tenant(context, daemon))?;
    let thread = thread_of_processor(&tenant)?;
    // Its program is at work.
    tenant.json_line()?;
    rustix::thread::sched_setaffinity(Some(thread), &only(last))?;
    let (start, hogs_s) = (start_after(LEAD), seconds + WARM_S);
    let mut hogs = Vec::new();
    for hog in 0..HOGS {
        let mut command = context.program("cosched");
        command.args(["hog", &hogs_s.to_string(), &start, &processor]);
        hogs.push(host.start(&format!("hog{hog}"), 1, command)?);
    }
    std::thread::sleep(LEAD);
    mode.count_shares(&Used::during(Duration::from_secs(seconds), thread, &hogs)?);
    let line = tenant.finish()?.into_iter().last().context("the program printed nothing")?;
    let report: Report = serde_json::from_value(line)?;
    let kernel_ns = KERNEL_US * 1000;
    mode.waits_ns.extend(report.waits_ns.iter().map(|took| took.saturating_sub(kernel_ns)));
    #[expect(clippy::cast_precision_loss, reason = "some thousand launches")]
    mode.rates.push(report.launches as f64 / report.seconds);
    for hog in hogs {
        hog.finish()?;
    }
    mode.count_boosts(&daemon.sockets().connect()?.stats()?.coscheduling);
    Ok(mode)
}

/// What was had of a processor.
struct Used {
    machine_s: f64,
    hogs_s: Vec<f64>,
    wall_s: f64,
}

impl Used {
    /// Within so much time from now on, which all of them work for.
    fn during(span: Duration, machine: Pid, hogs: &[Tenant]) -> Result<Self> {
        let hogs: Vec<u32> = hogs.iter().filter_map(Tenant::id).collect();
        let now = || -> Result<_> {
            let hogs: Vec<u64> = hogs.iter().map(|hog| used_ns(*hog)).collect::<Result<_>>()?;
            let machine = machine.as_raw_nonzero().get().unsigned_abs();
            Ok((Instant::now(), used_ns(machine)?, hogs))
        };
        let (began, machine_before, hogs_before) = now()?;
        std::thread::sleep(span);
        let (ended, machine, hogs) = now()?;
        let seconds = |now: u64, before| Duration::from_nanos(now - before).as_secs_f64();
        Ok(Self {
            machine_s: seconds(machine, machine_before),
            hogs_s: hogs.iter().zip(hogs_before).map(|(now, then)| seconds(*now, then)).collect(),
            wall_s: (ended - began).as_secs_f64(),
        })
    }
}

/// Processor time of a thread so far.
fn used_ns(thread: u32) -> Result<u64> {
    let path = format!("/proc/{thread}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let first = text.split_whitespace().next().context("the system says no processor time")?;
    Ok(first.parse()?)
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
