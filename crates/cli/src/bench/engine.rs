//! `bench engine`: the software GPU on one core.

use anyhow::Result;

use super::document::Document;
use super::tenant::Host;
use super::{Context, median};

const RUNS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let runs = if context.quick { 1 } else { RUNS };
    let window = format!("{runs} runs, each the median of 9 launches, in process");
    let mut document = Document::new("engine", "real", &window);
    let host = Host::direct(false)?;
    let mut reports = Vec::new();
    for _ in 0..runs {
        reports.push(context.single(&host, "engine")?);
    }
    for name in ["saxpy_ms", "matmul_naive_ms", "matmul_tiled_ms", "reduction_ms"] {
        let values: Vec<f64> = reports.iter().filter_map(|report| report[name].as_f64()).collect();
        document.figure(name, median(&values));
        document.figure(format!("{name}_min"), values.iter().copied().fold(f64::MAX, f64::min));
        document.figure(format!("{name}_max"), values.iter().copied().fold(0.0, f64::max));
    }
    Ok(document)
}
