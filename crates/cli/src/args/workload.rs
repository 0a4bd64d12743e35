//! What `weft workload` is told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `weft workload`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum WorkloadCommand {
    /// Jobs as Flexy generates them (Tables I and II), or requests of a public trace.
    Flexy(WorkloadOptions),
    /// Jobs of the Lublin-Feitelson model in the standard workload format (SWF).
    Lublin(LublinOptions),
    /// Hosts or pods of the stand-in for Alibaba's GPU trace, as CSV.
    Gpus(GpuTraceOptions),
}

/// `weft workload lublin`
#[derive(Debug, Args)]
pub(crate) struct LublinOptions {
    /// Jobs to generate.
    #[arg(long, default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) jobs: u32,
    /// Nodes of the machine that the model is of.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) nodes: u32,
    /// No job has more nodes than this. [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) max: Option<u32>,
    /// How --max is meant: sizes drawn up to it, larger jobs made that large or drawn again.
    #[arg(long, value_enum, default_value = "clamp")]
    pub(crate) limit: JobLimit,
    /// Batch and interactive jobs instead of typeless ones.
    #[arg(long)]
    pub(crate) typed: bool,
    /// What makes this workload differ from others.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What becomes of jobs above the largest size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobLimit {
    /// The model's own parameter.
    Parameter,
    /// They are made as large as allowed.
    Clamp,
    /// They are drawn again.
    Reject,
}

/// `weft workload gpus`
#[derive(Debug, Args)]
pub(crate) struct GpuTraceOptions {
    /// Hosts, or pods that ask for as many GPUs as the hosts have.
    #[arg(value_enum)]
    pub(crate) what: GpuTracePart,
    /// How many hosts.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) hosts: u32,
    /// What makes this trace differ from others.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// A file of a GPU trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GpuTracePart {
    /// A line for each host.
    Nodes,
    /// A line for each request.
    Pods,
}

/// `weft workload flexy`
#[derive(Debug, Args)]
pub(crate) struct WorkloadOptions {
    /// Column of Table II, by user-facing to batch jobs: 80:20, 40:60 or 20:80.
    #[arg(long, default_value = "80:20", value_parser = column)]
    pub(crate) column: weft_sim::flexy::Column,
    /// Mean time between jobs over what keeps one device busy; the paper has 0.125 to 4.
    #[arg(long, default_value = "0.25", value_name = "F", value_parser = factor)]
    pub(crate) load: u64,
    /// The most tasks that a job keeps outstanding; 0 for all of them at once.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) outstanding: u32,
    /// Shape of the Pareto distribution of jobs' lengths, above 1.
    #[arg(long, default_value = "1.8", value_parser = shape)]
    pub(crate) shape: u32,
    /// Batch jobs stand from the beginning, enough for four devices.
    #[arg(long)]
    pub(crate) backlog: bool,
    /// The tasks of a job differ.
    #[arg(long)]
    pub(crate) mixed: bool,
    /// Jobs to generate.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) jobs: u32,
    /// What makes this workload differ from others.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Read requests of Azure's LLM trace of 2023 from this file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "alibaba")]
    pub(crate) azure: Option<PathBuf>,
    /// Read requests of Alibaba's GenAI trace (`lora_request_trace.csv`) from this file instead.
    #[arg(long, value_name = "FILE")]
    pub(crate) alibaba: Option<PathBuf>,
    /// What to print: a JSON object a job, or a CSV line a task.
    #[arg(long, value_enum, default_value = "jsonl")]
    pub(crate) format: WorkloadFormat,
}

/// How a workload is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadFormat {
    /// A JSON object for each job, on a line.
    Jsonl,
    /// A line for each task, behind a header.
    Csv,
}

fn column(text: &str) -> Result<weft_sim::flexy::Column, String> {
    let columns = weft_sim::flexy::COLUMNS;
    let names = columns.map(|column| column.name).join(", ");
    let found = columns.into_iter().find(|column| column.name == text);
    found.ok_or_else(|| format!("`{text}` is none of {names}"))
}

/// In thousandths.
fn factor(text: &str) -> Result<u64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if !(0.001..=1_000.0).contains(&value) {
        return Err(format!("`{text}` is not 0.001 to 1000"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let permille = (value * 1_000.0).round() as u64;
    Ok(permille)
}

/// In tenths.
fn shape(text: &str) -> Result<u32, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if !(1.1..=100.0).contains(&value) {
        return Err(format!("`{text}` is not 1.1 to 100"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let tenths = (value * 10.0).round() as u32;
    Ok(tenths)
}
