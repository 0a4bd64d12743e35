//! `weft sim predict`: drawn configurations run real on paced devices, and simulated.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use weft_api::stolen::Processors;
use weft_node::admin::Request;
use weft_sim::Calibration;
use weft_sim::predict::{
    Configuration, Errors, Figures, LONG_BLOCKS, Load, Model, SLA_NS, Seen, Tenant, draw, simulate,
};
use weft_sim::seeds::median;

use super::{PREDICT, machine};
use crate::args::SimOptions;
use crate::bench::Context;
use crate::bench::document::Document;
use crate::bench::several::{Model as DeviceModel, borrowed};
use crate::bench::tenant::{Host, ShareReport, common_start, kernel};
use crate::demo::MODEL;
use crate::output::note;
use crate::programs;

/// Configurations of a whole run and of a quick one.
const COUNTS: (u64, u64) = (20, 3);
/// Before the window, in s; the window, and that of a quick run.
const WARM_UP_S: u64 = 1;
const WINDOWS_S: (u64, u64) = (10, 4);
/// The window of a run that a cost is fitted to, in s.
const CALIBRATION_S: u64 = 4;
/// Configurations during which no more of the processors' time was stolen are told by themselves.
const STOLEN_MAX: f64 = 0.002;
/// Real runs of each configuration, which are judged together; how much their P99s differ is told.
const RUNS: u64 = 2;
/// Times that each configuration is simulated, with requests at other phases of the turns: the
/// median is what is predicted, their difference what a run differs by from itself.
const PHASES: u64 = 5;
/// What the simulator's policy is in the control.
const OTHER_POLICY: &str = "round_robin";

/// A configuration and what became of it.
struct Judged {
    number: u64,
    configuration: Configuration,
    real: Figures,
    simulated: Figures,
    /// Of the simulation, of that with another policy, and of one in which nothing costs anything.
    errors: [Errors; 3],
    /// By how much a P99 of one phase differs from the median of all at most, over that.
    spread: f64,
    /// By how much a P99 of one real run differs from the other's at most, over that.
    repeat: f64,
    /// The part of the processors' time that a hypervisor gave to others while it ran.
    stolen: f64,
}

pub(super) fn sim(options: &SimOptions, costs: Calibration) -> Result<ExitCode> {
    let before = Processors::now();
    let context = Context::new(programs::example_dir(options.programs.as_deref())?, options.quick);
    let (count, window_s) = match options.quick {
        true => (COUNTS.1, WINDOWS_S.1),
        false => (COUNTS.0, WINDOWS_S.0),
    };
    let model = calibrate(&context, costs)?;
    let mut judged = Vec::new();
    for number in 0..count {
        let one = judge(&context, options.seed, number, window_s, &model)?;
        note(&format!("sim: {PREDICT}: configuration {number}: {}", one.words()));
        judged.push(one);
    }
    let window = format!(
        "{RUNS} runs of {window_s} s after {WARM_UP_S} s in each of {count} configurations; as \
         long simulated {PHASES} times, medians"
    );
    let mut document = Document::new(PREDICT, "paced", &window);
    document.seed(options.seed);
    let costs = &model.costs;
    for (name, cost) in [
        ("wake", &costs.wake),
        ("timer_late", &costs.timer_late),
        ("device_switch", &costs.device_switch),
        ("slice", &costs.slice),
    ] {
        #[expect(clippy::cast_precision_loss, reason = "a short time")]
        document.baseline(format!("{name}_us"), cost.ns as f64 / 1e3);
    }
    for (name, part) in [("program_late_us_p50", 50), ("program_late_us_p99", 99)] {
        let late_ns = model.lateness_ns.get(model.lateness_ns.len() * part / 100);
        #[expect(clippy::cast_precision_loss, reason = "a short time")]
        document.baseline(name, late_ns.map_or(0.0, |ns| *ns as f64 / 1e3));
    }
    report(&mut document, &judged);
    context.tell(&mut document);
    document.set_stolen(Processors::now().stolen_since(before));
    document.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// What this machine's node costs, by runs that are not among the judged ones.
fn calibrate(context: &Context, costs: Calibration) -> Result<Model> {
    note(&format!("sim: {PREDICT}: calibrating"));
    let (costs, late_ns) =
        machine::measured(costs, || real(context, &machine::busy(), CALIBRATION_S))?;
    let model = Model {
        warm_up_s: WARM_UP_S,
        window_s: CALIBRATION_S,
        lateness_ns: late_ns.into(),
        ..Model::new(costs.clone(), "fair")
    };
    let costs = machine::fitted(
        costs,
        |configuration| real(context, configuration, CALIBRATION_S),
        &model,
    )?;
    Ok(Model { costs, ..model })
}

fn judge(
    context: &Context,
    seed: u64,
    number: u64,
    window_s: u64,
    model: &Model,
) -> Result<Judged> {
    let configuration = draw(seed, number);
    let before = Processors::now();
    let runs = (0..RUNS).map(|_| real(context, &configuration, window_s));
    let runs = runs.collect::<Result<Vec<Seen>>>()?;
    let stolen = Processors::now().stolen_since(before);
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    let (one_s, all_s) = (window_s as f64, (RUNS * window_s) as f64);
    let each: Vec<Figures> =
        runs.iter().map(|run| Figures::of(&configuration, run, one_s)).collect();
    let repeats = each.iter().map(|run| run.errors(&configuration, &each[0]).p99_max());
    let repeat = repeats.fold(0.0, f64::max);
    let real = Figures::of(&configuration, &Seen::together(&runs), all_s);
    let phases = |model: &Model| -> Result<Vec<Figures>> {
        let one = |phase| {
            let model = Model { window_s: RUNS * window_s, ..model.at(phase) };
            Ok(Figures::of(&configuration, &simulate(&configuration, &model)?, all_s))
        };
        (0..PHASES).map(one).collect()
    };
    let ours = phases(model)?;
    let simulated = Figures::median(&ours);
    let spread = ours.iter().map(|one| one.errors(&configuration, &simulated).p99_max());
    let spread = spread.fold(0.0, f64::max);
    let other = Model { policy: OTHER_POLICY, ..model.clone() };
    let free = Model { warm_up_s: WARM_UP_S, ..Model::new(Calibration::free(), "fair") };
    let [other, free] = [phases(&other)?, phases(&free)?].map(|all| Figures::median(&all));
    let errors = [&simulated, &other, &free].map(|one| one.errors(&configuration, &real));
    Ok(Judged { number, configuration, real, simulated, errors, spread, repeat, stolen })
}

/// Runs a configuration on a node of its own.
fn real(context: &Context, configuration: &Configuration, window_s: u64) -> Result<Seen> {
    let model = DeviceModel::new(MODEL)?;
    let mut settings = model.settings(configuration.devices, None);
    let quantum_us = configuration.quantum_us.to_string();
    settings.push(("scheduling.quantum_us".to_owned(), quantum_us));
    let start = || Host::node_with(None, &borrowed(&settings));
    Host::again(context, start, |host| contend(context, host, configuration, window_s))
}

#[derive(Deserialize)]
struct Answers {
    answers_us: Vec<f64>,
}

/// All tenants at once; what they counted themselves, and verified.
fn contend(
    context: &Context,
    host: &Host,
    configuration: &Configuration,
    window_s: u64,
) -> Result<Seen> {
    let mut admin = host.daemon()?.sockets().connect()?;
    let name = |place: usize| format!("t{place}");
    for (place, tenant) in configuration.tenants.iter().enumerate() {
        admin.call(&Request::Create {
            name: name(place),
            weight: Some(tenant.weight),
            memory_bytes: None,
            device: Some(format!("gpu{}", tenant.device)),
            owner: None,
            token: None,
            cap_ppm: None,
            sla_ns: tenant.user_facing.then_some(SLA_NS),
        })?;
    }
    let start = common_start();
    let tenants = configuration.tenants.iter().enumerate().map(|(place, tenant)| {
        host.start(&name(place), tenant.weight, program(context, tenant, window_s, &start))
    });
    let tenants = tenants.collect::<Result<Vec<_>>>()?;
    let mut seen = Seen::default();
    for (tenant, of) in tenants.into_iter().zip(&configuration.tenants) {
        let lines = tenant.finish()?;
        let (units, answers_us) = match of.load {
            Load::Requests { launches, .. } => {
                let last = lines.into_iter().next_back().context("a service printed nothing")?;
                let Answers { answers_us } = serde_json::from_value(last)?;
                (answers_us.len() as u64 * launches, answers_us)
            }
            Load::Kernels { .. } | Load::Long => {
                let windows = ShareReport::parse(lines)?.windows;
                let (from, to) = (usize::try_from(WARM_UP_S)?, usize::try_from(window_s)?);
                let counted = windows.get(from..from + to);
                (counted.context("a tenant ended before its window")?.iter().sum(), Vec::new())
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "seconds of microseconds")]
        let work_s = (units * of.unit_us()) as f64 / 1e6;
        #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
        let part = match of.is_endless() {
            true => 1.0,
            // It counted while others warmed up, too.
            false => window_s as f64 / (window_s + WARM_UP_S) as f64,
        };
        seen.work_s.push(work_s * part);
        seen.answers_us.push(answers_us);
    }
    Ok(seen)
}

/// The program of a tenant, which works a little longer than the window, or asks until its end.
fn program(context: &Context, tenant: &Tenant, window_s: u64, start: &str) -> Command {
    let asks_s = WARM_UP_S + window_s;
    let works_s = (asks_s + 1).to_string();
    match tenant.load {
        Load::Kernels { us } => {
            let mut command = context.program("share");
            command.args([&kernel(us), &works_s, "--start", start, "--window", "1"]);
            command
        }
        Load::Long => {
            let mut command = context.program("long");
            let blocks = LONG_BLOCKS.to_string();
            command.args([&works_s, "--blocks", &blocks, "--start", start, "--window", "1"]);
            command
        }
        Load::Requests { us, launches, period_us, seed } => {
            let mut command = context.program("request");
            let numbers = [launches, period_us, asks_s].map(|number| number.to_string());
            command.arg(kernel(us)).args(numbers).args([start, &seed.to_string()]);
            command
        }
    }
}

impl Judged {
    fn words(&self) -> String {
        let [ours, other, free] = &self.errors;
        format!(
            "{:.1} % stolen; errors: share {:.4}, MMR {:.4}, P99 {:.1} % (batch) and {:.1} % (user-facing), phases \
             {:.1} %, repeated {:.1} %; {OTHER_POLICY} {:.4}, {:.0} %; free {:.4}, {:.1} %",
            100.0 * self.stolen,
            ours.share,
            ours.mmr,
            100.0 * ours.p99[0],
            100.0 * ours.p99[1],
            100.0 * self.spread,
            100.0 * self.repeat,
            other.mmr,
            100.0 * other.p99_max(),
            free.mmr,
            100.0 * free.p99_max(),
        )
    }

    fn row(&self) -> Value {
        let tenant = |(place, of): (usize, &Tenant)| {
            let (real, simulated) = (&self.real, &self.simulated);
            json!({
                "device": of.device,
                "weight": of.weight,
                "class": if of.user_facing { "user-facing" } else { "batch" },
                "load": words(of),
                "share": real.shares[place],
                "share_simulated": simulated.shares[place],
                "p99_us": real.p99_us[place],
                "p99_us_simulated": simulated.p99_us[place],
                "p50_us": real.p50_us[place],
                "p50_us_simulated": simulated.p50_us[place],
            })
        };
        json!({
            "configuration": self.number,
            "quantum_us": self.configuration.quantum_us,
            "mmr": self.real.mmr,
            "mmr_simulated": self.simulated.mmr,
            "share_error": self.errors[0].share,
            "mmr_error": self.errors[0].mmr,
            "p99_error": self.errors[0].p99_max(),
            "p99_phases": self.spread,
            "p99_repeat": self.repeat,
            "stolen": self.stolen,
            "tenants": self.configuration.tenants.iter().enumerate().map(tenant).collect::<Vec<_>>(),
        })
    }
}

fn words(tenant: &Tenant) -> String {
    match tenant.load {
        Load::Kernels { us } => format!("kernels of {us} µs"),
        Load::Long => format!("kernels of {} ms in blocks", LONG_BLOCKS * tenant.unit_us() / 1000),
        Load::Requests { us, launches, period_us, .. } => {
            format!("requests of {launches} kernels of {us} µs every {period_us} µs")
        }
    }
}

fn report(document: &mut Document, judged: &[Judged]) {
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    document.figure("configurations", judged.len() as f64);
    let largest = |place: usize| {
        judged.iter().fold(Errors::default(), |all, one| all.max(&one.errors[place]))
    };
    let ours = largest(0);
    document.figure("p99_error_max", ours.p99_max());
    document.figure("p99_error_max_batch", ours.p99[0]);
    document.figure("p99_error_max_user_facing", ours.p99[1]);
    document.figure("p50_error_max", ours.p50);
    document.figure("mmr_error_max", ours.mmr);
    document.figure("share_error_max", ours.share);
    let middle = |of: fn(&Judged) -> f64| median(&judged.iter().map(of).collect::<Vec<_>>());
    document.figure("p99_error_median", middle(|one| one.errors[0].p99_max()));
    document.figure("mmr_error_median", middle(|one| one.errors[0].mmr));
    add_calm(document, judged);
    let spread = judged.iter().map(|one| one.spread).fold(0.0, f64::max);
    document.baseline("p99_phases_max", spread);
    let repeats: Vec<f64> = judged.iter().map(|one| one.repeat).collect();
    document.baseline("p99_repeat_median", median(&repeats));
    document.baseline("p99_repeat_max", repeats.into_iter().fold(0.0, f64::max));
    for (place, name) in [(1, OTHER_POLICY), (2, "free")] {
        let control = largest(place);
        document.control(format!("p99_error_max_{name}"), control.p99_max());
        document.control(format!("mmr_error_max_{name}"), control.mmr);
    }
    judged.iter().for_each(|one| document.row(one.row()));
}

/// The errors of the configurations whose machine was there all the time; without any, there is no
/// such error, and no figure of it.
fn add_calm(document: &mut Document, judged: &[Judged]) {
    let calm: Vec<&Judged> = judged.iter().filter(|one| one.stolen <= STOLEN_MAX).collect();
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    document.figure("configurations_calm", calm.len() as f64);
    if calm.is_empty() {
        return;
    }
    let errors = calm.iter().fold(Errors::default(), |all, one| all.max(&one.errors[0]));
    document.figure("p99_error_max_calm", errors.p99_max());
    document.figure("mmr_error_max_calm", errors.mmr);
}
