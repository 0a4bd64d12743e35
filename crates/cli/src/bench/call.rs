//! `bench call`: what a call costs the client.

use anyhow::{Context as _, Result};

use super::document::Document;
use super::tenant::Host;
use super::via::{self, Alone, Via};
use super::{Context, median};

/// Runs of the program, each with its own session.
const RUNS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let names = ["sync_us_p50", "sync_us_p99", "submit_us_p50", "submit_us_p99"];
    let runs = if context.quick { 1 } else { RUNS };
    match context.via {
        Some(Via::Tls) => return via::call(context, runs),
        Some(Via::Vm) | None => {}
    }
    let window = format!("{runs} runs of 50,000 synchronous calls and 64,000 launches; medians");
    let mut document = Document::new("call", "real", &window);
    let direct = Host::direct(false)?;
    let (mut remoted, mut native, mut traps) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lines, mut alone) = (Vec::new(), Alone::default());
    Host::on_node(context, false, &[], |host| {
        for _ in 0..runs {
            remoted.push(context.single(host, "call")?);
            native.push(context.single(&direct, "call")?);
            traps.push(context.trapping(&direct, &via::TRAPS)?);
            lines.push(context.single_with(&direct, "call", &["line"])?);
            alone.measure()?;
        }
        Ok(())
    })?;
    let pick = |values: &[serde_json::Value], name: &str| {
        let number =
            |value: &serde_json::Value| value[name].as_f64().context("a figure is missing");
        values.iter().map(number).collect::<Result<Vec<_>>>()
    };
    for name in names {
        let values = pick(&remoted, name)?;
        document.figure(name, median(&values));
        document.figure(format!("{name}_min"), values.iter().copied().fold(f64::MAX, f64::min));
        document.figure(format!("{name}_max"), values.iter().copied().fold(0.0, f64::max));
        document.baseline(format!("direct_{name}"), median(&pick(&native, name)?));
    }
    document.baseline("trap_sync_us_p50", median(&pick(&traps, "trap_sync_us_p50")?));
    let lines = pick(&lines, "line_exchange_us_p50")?;
    let calls = pick(&remoted, names[0])?;
    let over: Vec<f64> = calls.iter().zip(&lines).map(|(call, line)| call / line).collect();
    document.figure("sync_over_line_exchange", median(&over));
    document.baseline("line_exchange_us_p50", median(&lines));
    alone.tell(&mut document);
    Ok(document)
}
