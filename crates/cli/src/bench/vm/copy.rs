//! `bench copy --via vm`: copies of a program in a machine, each against a memcpy there.
//!
//! Both are interpreted, so only their ratio says something: whether a copy through the device's
//! memory costs more passes over the bytes than one through memory that processes share. Beside
//! them copies inside the machine whose bytes travel through a socket.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Machine, number};
use crate::bench::document::Document;
use crate::bench::{Context, median};
use crate::daemon::OwnDaemon;

/// Boots of the machine.
const RUNS: usize = 3;

/// The largest copy, in KiB: what is pinned lies in the region, half of which is for it.
const LARGEST_KIB: &str = "16384";

/// Half of this is for each of two sessions; the program's own buffers are the guest's memory.
const FLAGS: [&str; 4] = ["--region", "512MiB", "--ram", "512MiB"];

pub(super) fn run(context: &Context) -> Result<Document> {
    let runs = if context.quick { 1 } else { RUNS };
    let window = format!(
        "{runs} boots of a machine under TCG, each the median of 7 copies per size, 4 KiB to 16 MiB"
    );
    let mut document = Document::new("copy", "real", &window);
    let daemon = OwnDaemon::start(&[("scheduling.share", "vgpu")], None)?;
    let boot = |words: &[&str]| -> Result<Value> {
        let machine = Machine { name: "vm", weight: 1, flags: &FLAGS, words };
        let lines = machine.run(context, &daemon)?;
        lines.into_iter().next().context("the machine's program printed nothing")
    };
    let (mut reports, mut traps) = (Vec::new(), Vec::new());
    let trapped = format!("trap_in_GBps_{LARGEST_KIB}K");
    for _ in 0..runs {
        reports.push(boot(&["copy", LARGEST_KIB])?);
        let trap = boot(&["env", "WEFT_ATTACH=direct", "trap", "--copy", LARGEST_KIB])?;
        traps.push(number(&trap, &trapped)?);
    }
    let of = |name: &str| -> Result<Vec<f64>> {
        reports.iter().map(|report: &Value| number(report, name)).collect()
    };
    let first = reports[0].as_object().context("copy printed no object")?;
    for name in first.keys().filter(|name| name.as_str() != "verified") {
        document.figure(name.clone(), median(&of(name)?));
    }
    document.baseline(format!("trap_in_guest_in_GBps_{LARGEST_KIB}K"), median(&traps));
    for kind in ["pageable", "pinned"] {
        let [inward, outward] =
            ["in", "out"].map(|way| of(&format!("{kind}_{way}_over_memcpy_{LARGEST_KIB}K")));
        let slower: Vec<f64> = inward?.into_iter().zip(outward?).map(|(a, b)| a.min(b)).collect();
        document.figure(format!("{kind}_over_memcpy_{LARGEST_KIB}K"), median(&slower));
    }
    Ok(document)
}
