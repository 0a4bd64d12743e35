//! `weft sim dymgpu`: where vGPUs' memory lies, and what that costs.

use std::process::ExitCode;

use anyhow::Result;
use weft_sim::dymgpu::{self, Report, Setup};

use super::{DYMGPU, SEEDS, code, document, write};
use crate::args::SimOptions;
use crate::bench::document::commit;
use crate::output::note;

pub(super) fn sim(options: &SimOptions) -> Result<ExitCode> {
    let setup = Setup { seed: options.seed, quick: options.quick };
    let seeds = options.seeds.unwrap_or(if options.quick { 2 } else { SEEDS });
    let outcomes =
        dymgpu::run(setup, u64::from(seeds), &mut |what| note(&format!("sim: {what} done")));
    let summary = dymgpu::summary(&outcomes);
    // So that the document names all seeds.
    let options = SimOptions { seeds: Some(seeds), ..options.clone() };
    document(DYMGPU, &summary, &options).print(options.json)?;
    let end = code(&summary);
    if let Some(directory) = &options.report {
        let quick = if setup.quick { " --quick" } else { "" };
        let seed = setup.seed;
        let command = format!("weft sim dymgpu --seed {seed} --seeds {seeds}{quick} --report DIR");
        let report = Report::new(command, commit(), setup, u64::from(seeds), summary, outcomes);
        let json = format!("{}\n", serde_json::to_string_pretty(&report.json())?);
        write(directory, &report.html(), &report.markdown(), &json)?;
    }
    Ok(end)
}
