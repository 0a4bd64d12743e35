//! `weft sim`: experiments in the simulator, which drives the daemon's scheduling core.

mod dymgpu;
mod flexy;
mod gsaas;
mod machine;
mod predict;
mod seeds;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use weft_sim::experiments::{self, EXPERIMENTS, Experiment, Lab};
use weft_sim::report::{RealRun, Report};
use weft_sim::{Calibration, Outcome};

use crate::args::SimOptions;
use crate::bench::document::Document;
use crate::output::note;

/// All experiments together.
const ALL: &str = "fairgv";
/// Imported profiles beside each other.
const PROFILES: &str = "profiles";
/// The placement of memory.
const DYMGPU: &str = "dymgpu";
/// Pools over several devices.
const FLEXY: &str = "flexy";
/// Placement on a cluster, and jobs in a queue.
const GSAAS: &str = "gsaas";
/// Drawn configurations, real and simulated.
const PREDICT: &str = "predict";
/// Seeds of all experiments together.
const SEEDS: u32 = 10;

/// `weft sim`
pub(crate) fn sim(options: &SimOptions) -> Result<ExitCode> {
    if options.jobs.is_some() && options.name != FLEXY {
        bail!("--jobs is for `weft sim {FLEXY}`");
    }
    match options.name.as_str() {
        DYMGPU => return dymgpu::sim(options),
        FLEXY => return flexy::sim(options),
        GSAAS => return gsaas::sim(options),
        _ => {}
    }
    let costs = match &options.calibration {
        Some(path) => Calibration::parse(&read(path)?)
            .with_context(|| format!("cannot use {}", path.display()))?,
        None => Calibration::default(),
    };
    if options.name == PREDICT {
        return predict::sim(options, costs);
    }
    let calibration =
        costs.list().into_iter().map(|(name, cost)| (name.to_owned(), cost.ns, cost.from.clone()));
    let calibration = calibration.collect();
    if options.name == PROFILES {
        let mut progress = |what: &str| note(&format!("sim: {what}"));
        let mut lab = Lab::new(options.seed, options.quick, costs, &mut progress);
        let outcome = profiles(&mut lab, options)?;
        document(PROFILES, &outcome, options).print(options.json)?;
        return Ok(code(&outcome));
    }
    let chosen: Vec<&'static Experiment> = if options.name == ALL {
        EXPERIMENTS.iter().collect()
    } else if let Some(experiment) = experiments::by_name(&options.name) {
        vec![experiment]
    } else {
        bail!("{} is no experiment; there are {}", options.name, names());
    };
    let outcomes = seeds::run(&chosen, options, &costs)?;
    let summary = experiments::summary(&outcomes);
    let (name, shown) = match (options.name == ALL, outcomes.first()) {
        (false, Some(outcome)) => (chosen[0].name, outcome),
        _ => (ALL, &summary),
    };
    document(name, shown, options).print(options.json)?;
    let end = code(shown);
    if let Some(directory) = &options.report {
        report(directory, options, calibration, summary, outcomes)?;
    }
    Ok(end)
}

/// Seeds of the paper's experiments.
fn seeds_of(options: &SimOptions) -> u32 {
    options.seeds.unwrap_or(if options.name == ALL && !options.quick { SEEDS } else { 1 })
}

/// The names that `weft sim` takes.
pub(crate) fn names() -> String {
    let names: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
    format!(
        "{ALL} (all of them), {}, {FLEXY}, {DYMGPU}, {GSAAS}, {PREDICT}, {PROFILES}",
        names.join(", ")
    )
}

/// A violation fails the command and says what replays it.
fn code(outcome: &Outcome) -> ExitCode {
    match &outcome.first_violation {
        None => ExitCode::SUCCESS,
        Some(first) => {
            let count = outcome.lag_bound_violations + outcome.other_violations;
            note(&format!("{count} violations of invariants; the first: {first}"));
            ExitCode::from(1)
        }
    }
}

fn document(name: &'static str, outcome: &Outcome, options: &SimOptions) -> Document {
    let mode = if name == "decisions" { "real" } else { "simulated" };
    let mut document = Document::new(name, mode, &outcome.window);
    for seed in 0..u64::from(seeds_of(options)) {
        document.seed(options.seed + seed);
    }
    for (name, value) in &outcome.figures {
        document.figure(name, *value);
    }
    if outcome.seeds > 1 {
        for (name, (low, high)) in &outcome.intervals {
            let name = name.replace(':', "_");
            document.baseline(format!("seeds_{name}_least"), *low);
            document.baseline(format!("seeds_{name}_largest"), *high);
        }
    }
    for (name, value) in &outcome.baselines {
        document.baseline(name, *value);
    }
    for (name, value) in &outcome.controls {
        document.control(name, *value);
    }
    // Those that run the scheduling core, each by itself.
    if ![ALL, DYMGPU, GSAAS].contains(&name) {
        document.figure("lag_bound_share_max", outcome.lag_share_max);
        document.figure("lag_bound_violations", count(outcome.lag_bound_violations));
        document.figure("other_violations", count(outcome.other_violations));
        document.figure("decisions", count(outcome.decisions));
    }
    document
}

fn count(number: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
    let value = number as f64;
    value
}

fn profiles(lab: &mut Lab<'_>, options: &SimOptions) -> Result<Outcome> {
    let mut tenants = Vec::new();
    for (weight, path) in &options.profiles {
        let launches = weft_sim::import::profile(&read(path)?)
            .with_context(|| format!("cannot use {}", path.display()))?;
        tenants.push((*weight, launches));
    }
    if tenants.is_empty() {
        bail!("{PROFILES} needs at least one --profile WEIGHT:FILE");
    }
    Ok(experiments::profiles(lab, &tenants)?)
}

fn report(
    directory: &Path,
    options: &SimOptions,
    calibration: Vec<(String, u64, String)>,
    summary: Outcome,
    outcomes: Vec<Outcome>,
) -> Result<()> {
    let mut real = Vec::new();
    if let Some(from) = &options.real {
        let mut paths: Vec<_> = fs::read_dir(from)
            .with_context(|| format!("cannot read {}", from.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .collect();
        paths.sort();
        for path in paths {
            real.push(
                RealRun::parse(&read(&path)?)
                    .with_context(|| format!("cannot use {}", path.display()))?,
            );
        }
    }
    let quick = if options.quick { " --quick" } else { "" };
    let beside = if options.real.is_some() { " --real DIR" } else { "" };
    let (name, seed) = (&options.name, options.seed);
    let seeds = u64::from(seeds_of(options));
    let command =
        format!("weft sim {name} --seed {seed} --seeds {seeds}{quick} --report DIR{beside}");
    let (commit, quick) = (crate::bench::document::commit(), options.quick);
    let report =
        Report { command, commit, seed, seeds, quick, calibration, summary, outcomes, real };
    let json = format!("{}\n", serde_json::to_string_pretty(&report)?);
    write(directory, &report.html(), &report.markdown(), &json)
}

fn write(directory: &Path, html: &str, markdown: &str, json: &str) -> Result<()> {
    fs::create_dir_all(directory)?;
    for (name, text) in [("index.html", html), ("README.md", markdown), ("report.json", json)] {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    note(&format!("the report is {}", directory.join("index.html").display()));
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
