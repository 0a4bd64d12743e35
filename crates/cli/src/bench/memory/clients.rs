//! Unmodified programs, all at once on a device of few slots: tinygrad's training loop, whose
//! memory stays, and compiled examples, which are run again and again. Each checks its own result,
//! and one that does not end well ends the benchmark.

use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::super::document::Document;
use super::super::tenant::{Host, Tenant, start_after};
use super::super::{Context, Python, median};
use super::{COSTS, Cost, Counts, TOLD, WAYS, beside, mebibytes};
use crate::output::note;

/// Memory of the device, in MiB: as many slots.
const DEVICE_MIB: u64 = 8;
/// Memory of the programs for each byte of the device.
const TIMES: [u64; 2] = [2, 4];
/// Training loops, where there is a Python.
const TRAINERS: u64 = 1;
/// Units of the hidden layer for each multiple of the device: 0.8 MiB, each a step's work, too.
const HIDDEN: u64 = 4_000;
/// Compiled examples: vGPU, program, and the number of elements that makes 4, 4 and 3.5 MiB for
/// each multiple. With a training loop any two of them have more than the multiple.
const EXAMPLES: [(&str, &str, u64); 3] = [
    ("vector_add", "vector_add", 350_000),
    ("vector_add2", "vector_add", 350_000),
    ("histogram", "histogram", 7 << 19),
];
/// How often it is looked how much memory they have.
const LOOK: Duration = Duration::from_millis(10);
/// How long after the time it is looked at most.
const LATER: Duration = Duration::from_secs(60);

/// How long is looked, and how often all ways are compared, each time in another order.
#[derive(Clone, Copy)]
struct Span {
    rounds: usize,
    seconds: u64,
}

/// The programs that run at once.
#[derive(Clone, Copy)]
struct Clients<'a> {
    context: &'a Context,
    times: u64,
}

/// What they did.
struct Seen {
    /// Steps of all training loops; 0 without any.
    steps_per_s: f64,
    /// Runs of all examples.
    runs_per_s: f64,
    /// The most memory that they had at one moment.
    most_bytes: u64,
    /// Programs that ended, each with the right result.
    ended: u64,
    counts: Counts,
}

/// One way's figures, by round.
#[derive(Default)]
struct Rates {
    steps: Vec<f64>,
    runs: Vec<f64>,
}

const fn span(context: &Context) -> Span {
    match context.quick {
        true => Span { rounds: 1, seconds: 3 },
        false => Span { rounds: 3, seconds: 6 },
    }
}

/// How long is looked.
pub(super) fn in_words(context: &Context) -> String {
    let Span { rounds, seconds } = span(context);
    format!("on {DEVICE_MIB} MiB, {rounds} x {seconds} s of each way")
}

pub(super) fn run(context: &Context, document: &mut Document) -> Result<()> {
    let span = span(context);
    if context.python.is_none() {
        note("no --python with tinygrad: the part `clients` has compiled programs alone");
    }
    let trainers = if context.python.is_some() { TRAINERS } else { 0 };
    document.figure("clients_trainers", count(trainers));
    let mut ended = 0;
    for times in TIMES.into_iter().filter(|times| is_wanted(context, *times)) {
        let clients = Clients { context, times };
        // The paper's cost, and where most is swapped that of contents.
        let costs = if times == 4 && !context.quick { &COSTS[1..] } else { &COSTS[1..2] };
        for cost in costs {
            ended += clients.compare(*cost, span, document)?;
        }
        if !context.quick {
            clients.alone(span, document)?;
        }
        clients.refused(document)?;
    }
    document.figure("clients_ended_well", count(ended));
    // One that did not ended all of this.
    document.figure("clients_verified", 1.0);
    Ok(())
}

/// The names by which `--only` asks for these.
pub(super) const PARTS: [&str; 3] = ["clients", "clients_2x", "clients_4x"];

pub(super) fn is_wanted(context: &Context, times: u64) -> bool {
    context.wants(PARTS[0]) || context.wants(&format!("{}_{times}x", PARTS[0]))
}

impl Clients<'_> {
    /// All ways in turn; how many programs ended well.
    fn compare(self, cost: Cost, span: Span, document: &mut Document) -> Result<u64> {
        let times = self.times;
        let ways = if self.context.quick { &WAYS[..2] } else { cost.ways() };
        let mut rates = WAYS.map(|_| Rates::default());
        let (mut least_bytes, mut ended) = (u64::MAX, 0);
        for step in 0..span.rounds * ways.len() {
            // Another way is first in each round.
            let index = (step + step / ways.len()) % ways.len();
            let way = ways[index];
            let seen = self.contend(way, cost, span)?;
            let Seen { steps_per_s, runs_per_s, most_bytes, counts, .. } = seen;
            ensure!(
                most_bytes >= times * (DEVICE_MIB << 20),
                "{most_bytes} bytes at once are not {times} times {DEVICE_MIB} MiB"
            );
            document.row(json!({
                "load": format!("clients_{times}x_{}", cost.name), "way": way,
                "steps_per_s": steps_per_s, "runs_per_s": runs_per_s, "bytes": most_bytes,
                "switches": counts.switches, "copied_slots": counts.copied_slots,
                "faults": counts.faults, "ahead_slots": counts.ahead_slots,
            }));
            rates[index].steps.push(steps_per_s);
            rates[index].runs.push(runs_per_s);
            (least_bytes, ended) = (least_bytes.min(most_bytes), ended + seen.ended);
        }
        let label = |what: &str| format!("clients_{times}x_{what}_{}", cost.name);
        let device = count(DEVICE_MIB << 20);
        document.figure(label("memory_over_device"), count(least_bytes) / device);
        for (way, rates) in ways.iter().zip(&rates) {
            if self.context.python.is_some() {
                let name = label(&format!("steps_per_s_{way}"));
                document.figure(name, median(&rates.steps));
            }
            document.figure(label(&format!("runs_per_s_{way}")), median(&rates.runs));
        }
        // Of each way beside whole-vGPU swap, which is the second.
        let parts = rates.each_ref().map(|way| way.beside(&rates[1]));
        for (way, part) in ways.iter().zip(&parts).skip(1) {
            let over = if *way == "whole" { "swap" } else { way };
            beside(document, &label(&format!("over_{over}")), &parts[0], part);
        }
        if ways.len() == WAYS.len() {
            beside(document, &label("ahead_over_swap"), &parts[WAYS.len() - 1], &parts[1]);
        }
        Ok(ended)
    }

    /// All programs at once, under one way to deal slots out.
    fn contend(self, way: &str, cost: Cost, span: Span) -> Result<Seen> {
        // Each program may run anew before what its last run had is free.
        let lent = (2 * self.times).to_string();
        let (memory, quota) = (mebibytes(DEVICE_MIB), mebibytes(2 * self.times * DEVICE_MIB));
        let entry_ns = cost.entry_ns.to_string();
        let settings = [
            ("device.memory", memory.as_str()),
            ("device.slot", "1MiB"),
            ("device.oversubscribe", lent.as_str()),
            ("device.placement", way),
            ("device.switch_entry_ns", entry_ns.as_str()),
            ("defaults.memory", quota.as_str()),
        ];
        Host::on_node(self.context, false, &settings, |host| self.on(host, span))
    }

    fn on(self, host: &Host, span: Span) -> Result<Seen> {
        let mut trainers = self.trainers(host, span.seconds)?;
        trainers.iter_mut().try_for_each(|tenant| tenant.line().map(drop))?;
        let before = Counts::of(host)?;
        let begin = start_after(TOLD);
        let from = now() + TOLD;
        let to = from + Duration::from_secs(span.seconds);
        let is_over = AtomicBool::new(false);
        let (runs, most_bytes) = std::thread::scope(|scope| -> Result<_> {
            let is_over = &is_over;
            let runners = EXAMPLES.map(|(name, program, size)| {
                scope.spawn(move || self.again(host, name, (program, size), &(from..to), is_over))
            });
            let told = trainers.iter_mut().try_for_each(|tenant| tenant.tell(&begin));
            let most_bytes = told.and_then(|()| self.most_used(host, to));
            is_over.store(true, Ordering::Relaxed);
            let runs = runners.into_iter().map(|runner| {
                runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            Ok((runs.collect::<Result<Vec<_>>>()?, most_bytes?))
        })?;
        let counts = Counts::of(host)?.since(before);
        let (mut steps, mut ended) = (0.0, 0);
        for trainer in trainers {
            steps += steps_per_s(trainer)?;
            ended += 1;
        }
        let in_time = runs.iter().map(|runs| runs.in_time).sum();
        ended += runs.iter().map(|runs| runs.all).sum::<u64>();
        let runs_per_s = count(in_time) / count(span.seconds);
        Ok(Seen { steps_per_s: steps, runs_per_s, most_bytes, ended, counts })
    }

    /// The training loops, which wait for their input when they have their memory.
    fn trainers(self, host: &Host, seconds: u64) -> Result<Vec<Tenant>> {
        let Some(python) = &self.context.python else { return Ok(Vec::new()) };
        let start = |number: u64| {
            let command = self.training(python, seconds);
            host.start_with_input(&format!("training{number}"), 1, command, Stdio::piped())
        };
        (0..TRAINERS).map(start).collect()
    }

    fn training(self, python: &Python, seconds: u64) -> Command {
        let mut command = Command::new(&python.interpreter);
        command.arg(&python.train).arg(seconds.to_string()).args(["--start", "-"]);
        command.arg("--hidden").arg((HIDDEN * self.times).to_string()).env("DEV", "CUDA:PTX");
        command
    }

    fn example(self, (program, size): (&str, u64)) -> Command {
        let mut command = self.context.program(program);
        command.arg((self.times * size).to_string());
        command
    }

    /// Runs an example again and again until all is over, and counts runs that ended within a time.
    fn again(
        self,
        host: &Host,
        name: &str,
        example: (&str, u64),
        time: &Range<Duration>,
        is_over: &AtomicBool,
    ) -> Result<Runs> {
        let mut runs = Runs::default();
        while !is_over.load(Ordering::Relaxed) {
            host.start(name, 1, self.example(example))?.passes()?;
            runs.all += 1;
            runs.in_time += u64::from(time.contains(&now()));
        }
        Ok(runs)
    }

    /// The most memory that all had at one moment until another, or some time later if it was never
    /// as much as it should be: on a busy machine they have not been there together yet.
    fn most_used(self, host: &Host, to: Duration) -> Result<u64> {
        let mut client = host.daemon()?.sockets().connect()?;
        let (mut most, enough) = (0, self.times * (DEVICE_MIB << 20));
        while now() < to || (most < enough && now() < to + LATER) {
            let devices = client.stats()?.devices;
            most = most.max(devices.first().context("a node has a device")?.memory_used_bytes);
            std::thread::sleep(LOOK);
        }
        Ok(most)
    }

    /// The static partition: who has the device has all of it, and the others wait.
    fn alone(self, span: Span, document: &mut Document) -> Result<()> {
        let memory = mebibytes(DEVICE_MIB);
        let settings = [("device.memory", memory.as_str()), ("device.slot", "1MiB")];
        Host::on_node(self.context, false, &settings, |host| {
            for mut tenant in self.trainers(host, span.seconds)? {
                tenant.line()?;
                tenant.tell("0")?;
                let name = format!("clients_{}x_steps_per_s_static_1_at_once", self.times);
                document.baseline(name, steps_per_s(tenant)?);
            }
            Ok(())
        })
    }

    /// The part of the programs that a static partition in equal parts refuses.
    fn refused(self, document: &mut Document) -> Result<()> {
        let trainers = self.context.python.as_ref().map_or(0, |_| TRAINERS);
        let all = trainers + EXAMPLES.len() as u64;
        let (memory, quota) = (mebibytes(DEVICE_MIB), mebibytes(DEVICE_MIB / all));
        let settings = [("device.memory", memory.as_str()), ("defaults.memory", quota.as_str())];
        let refused = Host::on_node(self.context, false, &settings, |host| {
            let mut refused = 0;
            for mut tenant in self.trainers(host, 1)? {
                refused += u64::from(tenant.line().is_err());
            }
            for (name, program, size) in EXAMPLES {
                let mut command = self.example((program, size));
                command.stderr(Stdio::null());
                refused += u64::from(host.start(name, 1, command)?.passes().is_err());
            }
            Ok(refused)
        })?;
        ensure!(refused > 0, "{} times the memory fits: nothing was oversubscribed", self.times);
        let part = count(refused) / count(all);
        document.control(format!("refused_clients_{}x_static", self.times), part);
        Ok(())
    }
}

impl Rates {
    /// Each round's throughput in parts of another way's, of both kinds of programs alike.
    fn beside(&self, other: &Self) -> Vec<f64> {
        let part = |own: f64, other: &[f64]| own / median(other).max(f64::MIN_POSITIVE);
        let of_round = |(steps, runs): (&f64, &f64)| match median(&other.steps) {
            0.0 => part(*runs, &other.runs),
            _ => (part(*steps, &other.steps) + part(*runs, &other.runs)) / 2.0,
        };
        self.steps.iter().zip(&self.runs).map(of_round).collect()
    }
}

/// Runs of one example.
#[derive(Default)]
struct Runs {
    in_time: u64,
    all: u64,
}

/// Steps per second of a training loop, which must have been right.
fn steps_per_s(trainer: Tenant) -> Result<f64> {
    let lines = trainer.finish()?;
    let last = lines.last().context("a training loop said nothing")?;
    let of = |name: &str| last[name].as_f64().with_context(|| format!("it said no {name}"));
    Ok(of("steps")? / of("seconds")?)
}

/// The clock that programs wait for.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "counts and bytes of seconds")]
const fn count(number: u64) -> f64 {
    number as f64
}
