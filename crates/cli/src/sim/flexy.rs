//! `weft sim flexy`: pools over several devices.

use std::process::ExitCode;

use anyhow::Result;
use weft_sim::flexy::{Report, evaluate};

use super::{FLEXY, SEEDS, code, write};
use crate::args::SimOptions;
use crate::bench::document::{Document, commit};
use crate::output::note;

/// Seeds of a quick run, where no number is given.
const SEEDS_QUICK: u32 = 3;

pub(super) fn sim(options: &SimOptions) -> Result<ExitCode> {
    let seeds = options.seeds.unwrap_or(if options.quick { SEEDS_QUICK } else { SEEDS });
    let mut progress = |what: &str| note(&format!("sim: {what}"));
    let evaluation = evaluate(options.seed, u64::from(seeds), options.quick, &mut progress);
    let all = &evaluation.summary;
    let mut document = Document::new(FLEXY, "simulated", &all.window);
    (0..u64::from(seeds)).for_each(|seed| document.seed(options.seed + seed));
    all.figures.iter().for_each(|(name, value)| document.figure(name, *value));
    all.baselines.iter().for_each(|(name, value)| document.baseline(name, *value));
    all.controls.iter().for_each(|(name, value)| document.control(name, *value));
    document.print(options.json)?;
    let end = code(all);
    if let Some(directory) = &options.report {
        let quick = if options.quick { " --quick" } else { "" };
        let seed = options.seed;
        let command = format!("weft sim {FLEXY} --seed {seed} --seeds {seeds}{quick} --report DIR");
        let report = Report { command, commit: commit(), quick: options.quick, evaluation };
        let json = format!("{}\n", report.json()?);
        write(directory, &report.html(), &report.markdown(), &json)?;
    }
    Ok(end)
}
