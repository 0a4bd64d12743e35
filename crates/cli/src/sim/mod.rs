//! `weft sim`: experiments in the simulator, which drives the daemon's scheduling core.

mod dymgpu;
mod flexy;
mod gsaas;
mod machine;
mod predict;
mod seeds;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use weft_api::figures;
use weft_api::stolen::Processors;
use weft_sim::experiments::{self, EXPERIMENTS, Experiment, Lab};
use weft_sim::report::{RealRun, Report};
use weft_sim::{Calibration, MadeOn, Outcome};

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
/// The longest file that is read: no experiment replays so much of one.
const INPUT_BYTES_MAX: u64 = 256 << 20;
/// Seeds of all experiments together.
const SEEDS: u32 = 10;

/// `weft sim`
pub(crate) fn sim(options: &SimOptions) -> Result<ExitCode> {
    let chosen: Vec<&'static Experiment> = match options.name.as_str() {
        ALL => EXPERIMENTS.iter().collect(),
        DYMGPU | FLEXY | GSAAS | PREDICT | PROFILES => Vec::new(),
        name => {
            let none = || anyhow!("{name} is no experiment; there are {}", names());
            vec![experiments::by_name(name).with_context(none)?]
        }
    };
    ensure_read(options)?;
    if let Some(directory) = &options.report {
        // Not after minutes of runs.
        let made = fs::create_dir_all(directory);
        made.with_context(|| format!("--report: cannot make {}", directory.display()))?;
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

/// Refuses options that the experiment would not read.
fn ensure_read(options: &SimOptions) -> Result<()> {
    let name = options.name.as_str();
    let is_paper = ![DYMGPU, FLEXY, GSAAS, PREDICT, PROFILES].contains(&name);
    for (option, is_given, of) in [
        ("--seeds", options.seeds.is_some(), &[DYMGPU, FLEXY, GSAAS][..]),
        ("--report", options.report.is_some(), &[DYMGPU, FLEXY, GSAAS]),
        ("--calibration", options.calibration.is_some(), &[PREDICT, PROFILES]),
        ("--real", options.real.is_some(), &[DYMGPU, FLEXY]),
    ] {
        if is_given && !is_paper && !of.contains(&name) {
            let of: String = of.iter().map(|of| format!(", `{of}`")).collect();
            bail!("{option} means nothing to `weft sim {name}`: it is for {ALL}, its parts{of}");
        }
    }
    for (option, is_given, of) in [
        ("--jobs", options.jobs.is_some(), FLEXY),
        ("--pods", options.pods.is_some(), GSAAS),
        ("--swf", !options.swf.is_empty(), GSAAS),
        ("--programs", options.programs.is_some(), PREDICT),
        ("--profile", !options.profiles.is_empty(), PROFILES),
    ] {
        if is_given && name != of {
            bail!("{option} is for `weft sim {of}`");
        }
    }
    Ok(())
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
    document.set_quick(options.quick);
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
    let real = real_runs(options.real.as_deref())?;
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

/// The machine of a report whose run began then.
fn made_on(began: Processors) -> MadeOn {
    MadeOn { machine: figures::machine(), stolen: Processors::now().stolen_since(began) }
}

/// The documents of `weft bench` in a folder, by their files' names; without those of programs in
/// machines and on other hosts, which nothing simulates.
fn real_runs(from: Option<&Path>) -> Result<Vec<RealRun>> {
    let run = |path: &PathBuf| {
        RealRun::parse(&read(path)?).with_context(|| format!("cannot use {}", path.display()))
    };
    let runs: Vec<RealRun> = documents(from)?.iter().map(run).collect::<Result<_>>()?;
    Ok(runs.into_iter().filter(|run| run.via.is_none()).collect())
}

/// The paths of the documents in a folder, by their names.
fn documents(from: Option<&Path>) -> Result<Vec<PathBuf>> {
    let Some(from) = from else { return Ok(Vec::new()) };
    let mut paths: Vec<_> = fs::read_dir(from)
        .with_context(|| format!("cannot read {}", from.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    paths.sort();
    Ok(paths)
}

fn write(directory: &Path, html: &str, markdown: &str, json: &str) -> Result<()> {
    for (name, text) in [("index.html", html), ("README.md", markdown), ("report.json", json)] {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    note(&format!("the report is {}", directory.join("index.html").display()));
    Ok(())
}

/// A file of which no more is read than anybody has reason to simulate.
fn read(path: &Path) -> Result<String> {
    let file = fs::File::open(path);
    let file = file.with_context(|| format!("cannot read {}", path.display()))?;
    read_from(file).with_context(|| format!("cannot read {}", path.display()))
}

/// The same, of what has been opened.
fn read_from(file: impl Read) -> Result<String> {
    let mut text = String::new();
    file.take(INPUT_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > INPUT_BYTES_MAX {
        bail!("it has more than {} MiB: give a part of it", INPUT_BYTES_MAX >> 20);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: SimOptions,
    }

    fn refused(line: &str) -> String {
        let words = std::iter::once("sim").chain(line.split(' '));
        let Line { options } = Line::try_parse_from(words).unwrap();
        format!("{:#}", sim(&options).unwrap_err())
    }

    /// Before anything runs.
    #[test]
    fn what_an_experiment_does_not_read_is_refused() {
        for (line, words) in [
            ("gsaas --calibration /nonexistent", "--calibration means nothing to `weft sim gsaas`"),
            ("gsaas --report /tmp --real /tmp", "--real means nothing to `weft sim gsaas`"),
            ("predict --seeds 2", "--seeds means nothing to `weft sim predict`"),
            ("profiles --report /tmp", "--report means nothing to `weft sim profiles`"),
            ("figure2 --swf /nonexistent", "--swf is for `weft sim gsaas`"),
            ("figure2 --pods a --nodes b", "--pods is for `weft sim gsaas`"),
            ("fairgv --jobs -", "--jobs is for `weft sim flexy`"),
            ("fairgv --profile 1:/nonexistent", "--profile is for `weft sim profiles`"),
            ("flexy --programs /tmp", "--programs is for `weft sim predict`"),
            ("nothing --swf /nonexistent", "nothing is no experiment; there are fairgv"),
        ] {
            let error = refused(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    /// Before anything runs, and by their names.
    #[test]
    fn files_that_are_none_are_refused() {
        let report = refused("gsaas --report /dev/null");
        assert!(report.contains("--report: cannot make /dev/null"), "{report}");
        let endless = refused("gsaas --quick --swf /dev/zero");
        assert!(endless.contains("cannot read /dev/zero: it has more than"), "{endless}");
        let real = refused("flexy --report /tmp --real /nonexistent");
        assert!(real.contains("cannot read /nonexistent"), "{real}");
        let missing = refused("figure2 --calibration /nonexistent");
        assert!(missing.contains("cannot read /nonexistent"), "{missing}");
    }
}
