//! `weft sim flexy`: pools over several devices.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use weft_api::stolen::Processors;
use weft_sim::Outcome;
use weft_sim::flexy::{Machine, Paced, Report, compare, evaluate, read};

use super::{FLEXY, SEEDS, code, documents, made_on, write};
use crate::args::SimOptions;
use crate::bench::document::{Document, commit};
use crate::output::note;

/// Seeds of a quick run, where no number is given.
const SEEDS_QUICK: u32 = 3;

pub(super) fn sim(options: &SimOptions) -> Result<ExitCode> {
    // Before anything takes long.
    let paced = paced(options.real.as_deref())?;
    let seeds = options.seeds.unwrap_or(if options.quick { SEEDS_QUICK } else { SEEDS });
    let mut progress = |what: &str| note(&format!("sim: {what}"));
    if let Some(path) = &options.jobs {
        return given(path, options, &mut progress);
    }
    let began = Processors::now();
    let evaluation = evaluate(options.seed, u64::from(seeds), options.quick, &mut progress);
    let made_on = made_on(began);
    let all = &evaluation.summary;
    let mut document = Document::new(FLEXY, "simulated", &all.window);
    document.set_quick(options.quick);
    (0..u64::from(seeds)).for_each(|seed| document.seed(options.seed + seed));
    fill(&mut document, all);
    document.print(options.json)?;
    let end = code(all);
    if let Some(directory) = &options.report {
        let quick = if options.quick { " --quick" } else { "" };
        let seed = options.seed;
        let beside = if options.real.is_some() { " --real DIR" } else { "" };
        let command =
            format!("weft sim {FLEXY} --seed {seed} --seeds {seeds}{quick} --report DIR{beside}");
        let quick = options.quick;
        let report = Report { command, commit: commit(), made_on, quick, evaluation };
        let report = report.beside(&paced);
        let json = format!("{}\n", report.json()?);
        write(directory, &report.html(), &report.markdown(), &json)?;
    }
    Ok(end)
}

/// What was measured on nodes, by the documents in a folder.
fn paced(from: Option<&Path>) -> Result<Paced> {
    let mut paced = Paced::default();
    for path in documents(from)? {
        let text = super::read(&path)?;
        paced.take(&text).with_context(|| format!("cannot use {}", path.display()))?;
    }
    Ok(paced)
}

fn fill(document: &mut Document, all: &Outcome) {
    all.figures.iter().for_each(|(name, value)| document.figure(name, *value));
    all.baselines.iter().for_each(|(name, value)| document.baseline(name, *value));
    all.controls.iter().for_each(|(name, value)| document.control(name, *value));
}

/// Jobs from a file under every policy.
fn given(path: &Path, options: &SimOptions, progress: &mut dyn FnMut(&str)) -> Result<ExitCode> {
    let sla_ns = options.sla.0;
    if sla_ns == 0 {
        bail!("--sla none: the jobs are told apart by the time within which they must be done");
    }
    let text = match path.as_os_str() == "-" {
        true => super::read_from(std::io::stdin()).context("cannot read standard input")?,
        false => super::read(path)?,
    };
    let jobs = read(&text).with_context(|| format!("cannot use {}", path.display()))?;
    let machine = Machine { devices: options.devices, sla_ns };
    let all = compare(&jobs, machine, progress);
    let mut document = Document::new(FLEXY, "simulated", &all.window);
    fill(&mut document, &all);
    document.print(options.json)?;
    Ok(code(&all))
}
