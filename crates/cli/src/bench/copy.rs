//! `bench copy`: copies against memcpy.

use anyhow::{Context as _, Result};

use super::document::Document;
use super::tenant::Host;
use super::via::{self, Via};
use super::{Context, median};

const RUNS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let runs = if context.quick { 1 } else { RUNS };
    if let Some(Via::Tls) = context.via {
        return via::copy(context, runs);
    }
    let window = format!("{runs} runs, each the median of 7 copies per size, 4 KiB to 256 MiB");
    let mut document = Document::new("copy", "real", &window);
    let reports = Host::on_node(context, false, &[], |host| {
        (0..runs).map(|_| context.single(host, "copy")).collect::<Result<Vec<_>>>()
    })?;
    let first = reports[0].as_object().context("copy printed no object")?;
    for name in first.keys().filter(|name| name.as_str() != "verified") {
        let values: Vec<f64> = reports.iter().filter_map(|report| report[name].as_f64()).collect();
        document.figure(name.clone(), median(&values));
    }
    // The headline: 256 MiB, the slower of the two directions.
    for kind in ["pageable", "pinned"] {
        let values: Vec<f64> = reports
            .iter()
            .filter_map(|report| {
                let direction =
                    |way: &str| report[format!("{kind}_{way}_over_memcpy_262144K")].as_f64();
                Some(direction("in")?.min(direction("out")?))
            })
            .collect();
        document.figure(format!("{kind}_over_memcpy"), median(&values));
    }
    Ok(document)
}
