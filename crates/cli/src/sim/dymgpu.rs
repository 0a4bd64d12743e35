//! `weft sim dymgpu`: where vGPUs' memory lies, and what that costs.

use std::process::ExitCode;

use anyhow::Result;
use weft_api::stolen::Processors;
use weft_sim::dymgpu::{self, Report, Setup};

use super::{DYMGPU, SEEDS, code, document, made_on, real_runs, write};
use crate::args::SimOptions;
use crate::bench::document::commit;
use crate::output::note;

/// The benchmark whose document stands beside.
const BENCH: &str = "memory";

pub(super) fn sim(options: &SimOptions) -> Result<ExitCode> {
    // Before anything takes long.
    let real = real_runs(options.real.as_deref())?;
    let setup = Setup { seed: options.seed, quick: options.quick };
    let seeds = options.seeds.unwrap_or(if options.quick { 2 } else { SEEDS });
    let began = Processors::now();
    let outcomes =
        dymgpu::run(setup, u64::from(seeds), &mut |what| note(&format!("sim: {what} done")));
    let made_on = made_on(began);
    let summary = dymgpu::summary(&outcomes);
    // So that the document names all seeds.
    let options = SimOptions { seeds: Some(seeds), ..options.clone() };
    document(DYMGPU, &summary, &options).print(options.json)?;
    let end = code(&summary);
    if let Some(directory) = &options.report {
        let quick = if setup.quick { " --quick" } else { "" };
        let seed = setup.seed;
        let beside = if options.real.is_some() { " --real DIR" } else { "" };
        let command =
            format!("weft sim dymgpu --seed {seed} --seeds {seeds}{quick} --report DIR{beside}");
        let seeds = u64::from(seeds);
        let report = Report::new(command, commit(), made_on, setup, seeds, summary, outcomes);
        let runs = real.iter().filter(|run| run.name == BENCH);
        let report = runs.fold(report, |report, run| report.beside(run));
        let json = format!("{}\n", serde_json::to_string_pretty(&report.json())?);
        write(directory, &report.html(), &report.markdown(), &json)?;
    }
    Ok(end)
}
