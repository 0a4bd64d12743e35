//! `bench copy`: copies against memcpy, beside copies whose bytes travel through a socket and what
//! TCP and TLS move alone.

use anyhow::{Context as _, Result};

use super::document::Document;
use super::tenant::Host;
use super::via::{self, Alone, Traps, Via};
use super::{Context, median};

const RUNS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let runs = if context.quick { 1 } else { RUNS };
    if let Some(Via::Tls) = context.via {
        return via::copy(context, runs);
    }
    let window = format!("{runs} runs, each the median of 7 copies per size, 4 KiB to 256 MiB");
    let mut document = Document::new("copy", "real", &window);
    let direct = Host::direct(false)?;
    let (mut reports, mut traps, mut alone) = (Vec::new(), Traps::default(), Alone::default());
    let mut driver = Vec::new();
    Host::on_node(context, false, &[], |host| {
        for _ in 0..runs {
            reports.push(context.single(host, "copy")?);
            if matches!(direct, Host::Driver { .. }) {
                driver.push(context.single(&direct, "copy")?);
            }
            traps.measure(context, &direct)?;
            alone.measure()?;
        }
        Ok(())
    })?;
    let first = reports[0].as_object().context("copy printed no object")?;
    for name in first.keys().filter(|name| name.as_str() != "verified") {
        let values: Vec<f64> = reports.iter().filter_map(|report| report[name].as_f64()).collect();
        document.figure(name.clone(), median(&values));
        let values: Vec<f64> = driver.iter().filter_map(|report| report[name].as_f64()).collect();
        if !values.is_empty() {
            document.baseline(format!("driver_{name}"), median(&values));
        }
    }
    // The slower of the two directions; 256 MiB is the headline.
    for kind in ["pageable", "pinned"] {
        for (size, kib) in [("", 262_144), ("_1m", 1024), ("_64k", 64)] {
            let values: Vec<f64> = reports
                .iter()
                .filter_map(|report| {
                    let direction =
                        |way: &str| report[format!("{kind}_{way}_over_memcpy_{kib}K")].as_f64();
                    Some(direction("in")?.min(direction("out")?))
                })
                .collect();
            document.figure(format!("{kind}{size}_over_memcpy"), median(&values));
        }
    }
    traps.tell(&mut document);
    alone.tell(&mut document);
    Ok(document)
}
