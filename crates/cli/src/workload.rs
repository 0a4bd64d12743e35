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
    line(printed(options)?.trim_end());
    Ok(())
}

/// The jobs as text, in the format that was asked for.
fn printed(options: &WorkloadOptions) -> Result<String> {
    let jobs = jobs(options)?;
    match options.format {
        WorkloadFormat::Csv => Ok(csv(&jobs)),
        WorkloadFormat::Jsonl => {
            let lines = jobs.iter().map(serde_json::to_string);
            Ok(lines.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
    }
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use weft_sim::flexy::read;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: WorkloadOptions,
    }

    fn parse(line: &str) -> Result<WorkloadOptions, clap::Error> {
        let words = std::iter::once("flexy").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.options)
    }

    #[test]
    fn both_formats_are_read_as_the_same_jobs() {
        let text = |line: &str| printed(&parse(line).unwrap()).unwrap();
        let (lines, table) = (text("--jobs 20 --seed 7"), text("--jobs 20 --seed 7 --format csv"));
        assert_eq!(lines.lines().count(), 20);
        assert!(table.starts_with("job,arrival_ns,class,weight,outstanding,kernel,time_ns\n"));
        let jobs = read(&lines).unwrap();
        assert_eq!(jobs.len(), 20);
        assert_eq!(read(&table).unwrap(), jobs);
        assert!(text("--jobs 20 --seed 8") != lines, "a seed makes a workload");
    }

    #[test]
    fn the_load_is_the_papers_factor_within_its_range() {
        let span = |load: &str| {
            let jobs = jobs(&parse(&format!("--load {load}")).unwrap()).unwrap();
            jobs.last().unwrap().arrival_ns
        };
        // The paper's least and its largest: 32 times as far apart.
        let (least, largest) = (span("0.125"), span("4"));
        assert!(least.abs_diff(largest / 32) < least / 1_000, "{least} and {largest}");
        for load in ["0.0009", "1000.1", "0", "NaN", "much"] {
            let error = parse(&format!("--load {load}")).unwrap_err().to_string();
            assert!(error.contains("--load") && error.contains(load), "{error}");
        }
        for line in ["--load 0.001", "--load 1000"] {
            parse(line).unwrap();
        }
        for line in ["--shape 1", "--column 50:50", "--jobs 0", "--format xml"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert_eq!(parse("").unwrap().load, 250);
    }
}
