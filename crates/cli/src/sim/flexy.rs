//! `weft sim flexy`: pools over several devices.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use weft_sim::flexy::{Report, evaluate};

use super::{FLEXY, code};
use crate::args::SimOptions;
use crate::bench::document::{Document, commit};
use crate::output::note;

/// Seeds, where no number is given.
const SEEDS: u32 = 10;
const SEEDS_QUICK: u32 = 3;

pub(super) fn run(options: &SimOptions) -> Result<ExitCode> {
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
        fs::create_dir_all(directory)?;
        let files = [
            ("index.html", report.html()),
            ("README.md", report.markdown()),
            ("report.json", format!("{}\n", report.json()?)),
        ];
        for (name, text) in files {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        note(&format!("the report is {}", directory.join("index.html").display()));
    }
    Ok(end)
}
