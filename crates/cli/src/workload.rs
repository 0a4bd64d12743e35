//! `weft workload`: tasks to run or simulate, as text.

use std::fs;

use anyhow::{Context as _, Result};
use weft_sim::flexy::{Job, Source, Spec, csv, generate, import};

use crate::args::{WorkloadFormat, WorkloadOptions};
use crate::output::line;

/// `weft workload flexy`
pub(crate) fn flexy(options: &WorkloadOptions) -> Result<()> {
    let jobs = jobs(options)?;
    match options.format {
        WorkloadFormat::Csv => line(csv(&jobs).trim_end()),
        WorkloadFormat::Jsonl => {
            for job in &jobs {
                line(&serde_json::to_string(job)?);
            }
        }
    }
    Ok(())
}

fn jobs(options: &WorkloadOptions) -> Result<Vec<Job>> {
    let files = [(Source::Azure, &options.azure), (Source::Alibaba, &options.alibaba)];
    for (source, path) in files {
        if let Some(path) = path {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            return import(source, &text).with_context(|| format!("cannot use {}", path.display()));
        }
    }
    Ok(generate(&Spec {
        outstanding: Some(options.outstanding).filter(|most| *most > 0),
        shape_tenths: options.shape,
        backlog: options.backlog,
        mixed: options.mixed,
        jobs: options.jobs,
        ..Spec::new(options.column, options.load, options.seed)
    }))
}
