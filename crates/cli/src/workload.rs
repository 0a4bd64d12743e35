//! `weft workload`: tasks to run or simulate, as text.

use std::fs;

use anyhow::{Context as _, Result};
use weft_sim::flexy::{Job, Source, Spec, csv, generate, import};

use weft_sim::gsaas::{Limit, Lublin, swf, trace};

use crate::args::{
    GpuTraceOptions, GpuTracePart, JobLimit, LublinOptions, WorkloadCommand, WorkloadFormat,
    WorkloadOptions,
};
use crate::output::line;

/// `weft workload`
pub(crate) fn workload(what: &WorkloadCommand) -> Result<()> {
    match what {
        WorkloadCommand::Flexy(options) => return flexy(options),
        WorkloadCommand::Lublin(options) => lublin(options),
        WorkloadCommand::Gpus(options) => gpus(options),
    }
    Ok(())
}

/// `weft workload lublin`
fn lublin(options: &LublinOptions) {
    let &LublinOptions { jobs, nodes, typed, seed, .. } = options;
    let limit = match options.limit {
        JobLimit::Parameter => Limit::Parameter,
        JobLimit::Clamp => Limit::Clamp,
        JobLimit::Reject => Limit::Reject,
    };
    let nodes_max = options.max.unwrap_or(nodes);
    let spec = Lublin { jobs, nodes, nodes_max, limit, typed, seed };
    let comment = format!(
        "the Lublin-Feitelson model, {nodes} nodes, jobs of at most {nodes_max} ({}), seed {seed}",
        limit.name()
    );
    line(swf::export(&spec.generate(), &comment).trim_end());
}

/// `weft workload gpus`
fn gpus(options: &GpuTraceOptions) {
    let trace = trace::synthetic(options.hosts as usize, options.seed);
    let text = match options.what {
        GpuTracePart::Nodes => trace::nodes_csv(&trace),
        GpuTracePart::Pods => trace::pods_csv(&trace),
    };
    line(text.trim_end());
}

/// `weft workload flexy`
fn flexy(options: &WorkloadOptions) -> Result<()> {
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
