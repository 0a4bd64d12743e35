//! `weft sim gsaas`: placement on a cluster, and jobs in a queue.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use weft_api::stolen::Processors;
use weft_sim::gsaas::{self, Inputs, Report, Setup, swf, trace};

use super::{GSAAS, SEEDS, code, document, made_on, read, write};
use crate::args::SimOptions;
use crate::bench::document::commit;
use crate::output::note;

/// Seeds of a quick run, where no number is given.
const SEEDS_QUICK: u32 = 2;

pub(super) fn sim(options: &SimOptions) -> Result<ExitCode> {
    let setup = Setup { seed: options.seed, quick: options.quick };
    let seeds = options.seeds.unwrap_or(if options.quick { SEEDS_QUICK } else { SEEDS });
    let inputs = inputs(options, &setup)?;
    let mut progress = |what: &str| note(&format!("sim: {what} done"));
    let began = Processors::now();
    let outcomes = gsaas::run(setup, &inputs, u64::from(seeds), &mut progress);
    let made_on = made_on(began);
    let summary = gsaas::summary(&outcomes);
    // So that the document names all seeds.
    let options = SimOptions { seeds: Some(seeds), ..options.clone() };
    document(GSAAS, &summary, &options).print(options.json)?;
    let end = code(&summary);
    if let Some(directory) = &options.report {
        let command = command(&options, seeds);
        let seeds = u64::from(seeds);
        let report = Report { command, commit: commit(), made_on, setup, seeds, summary, outcomes };
        let json = format!("{}\n", serde_json::to_string_pretty(&report.json())?);
        write(directory, &report.html(), &report.markdown(), &json)?;
    }
    Ok(end)
}

fn inputs(options: &SimOptions, setup: &Setup) -> Result<Inputs> {
    let mut inputs = Inputs::stand_in(setup);
    if let (Some(pods), Some(nodes)) = (&options.pods, &options.nodes) {
        let trace = trace::import(&read(nodes)?, &read(pods)?);
        let both = || format!("cannot use {} with {}", nodes.display(), pods.display());
        inputs = inputs.with_trace(trace.with_context(both)?);
    }
    for path in &options.swf {
        let jobs = swf::import(&read(path)?);
        let jobs = jobs.with_context(|| format!("cannot use {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // A name of figures.
        let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        inputs.logs.push((name.to_lowercase(), jobs));
    }
    Ok(inputs)
}

/// What makes the same report, with places for the user's files.
fn command(options: &SimOptions, seeds: u32) -> String {
    let mut command = format!("weft sim {GSAAS} --seed {} --seeds {seeds}", options.seed);
    let given = [
        (options.quick, " --quick"),
        (options.pods.is_some(), " --pods PODS.csv --nodes NODES.csv"),
    ];
    given.iter().filter(|(is, _)| *is).for_each(|(_, text)| command.push_str(text));
    for path in &options.swf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        command.push_str(&format!(" --swf {name}"));
    }
    command.push_str(" --report DIR");
    command
}
