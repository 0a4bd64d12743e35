//! `bench copy --via vm`: copies of a program in a machine, each against a memcpy there.
//!
//! Both are interpreted, so only their ratio says something: whether a copy through the device's
//! memory costs more passes over the bytes than one through memory that processes share. Beside
//! them the same copies on a node inside the machine, which are of that kind, copies inside it
//! whose bytes travel through a socket, and bytes that go by TCP over the guest's loopback.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Machine, TWO, Tcp, number};
use crate::bench::document::Document;
use crate::bench::{Context, median};
use crate::daemon::OwnDaemon;

/// Boots of the machine.
const RUNS: usize = 3;

/// The largest copy, in KiB: what is pinned lies in the region, half of which is for it.
const LARGEST_KIB: &str = "16384";

/// Half of this is for each of two sessions; the program's own buffers are the guest's memory.
const FLAGS: [&str; 4] = ["--region", "512MiB", "--ram", "512MiB"];

/// The node inside the machine has its device's memory there, and a processor for its worker.
const NODE_FLAGS: [&str; 6] = ["--region", "512MiB", "--ram", "2GiB", TWO[0], TWO[1]];

pub(super) fn run(context: &Context) -> Result<Document> {
    let runs = if context.quick { 1 } else { RUNS };
    let window = format!(
        "{runs} boots of a machine under TCG, each the median of 7 copies per size, 4 KiB to 16 MiB"
    );
    let mut document = Document::new("copy", "real", &window);
    let daemon = OwnDaemon::start(&[("scheduling.share", "vgpu")], None)?;
    let boot = |flags: &[&str], words: &[&str]| -> Result<Value> {
        let machine = Machine { name: "vm", weight: 1, flags, words };
        let lines = machine.run(context, &daemon)?;
        lines.into_iter().next().context("the machine's program printed nothing")
    };
    let (mut reports, mut own) = (Vec::new(), Vec::new());
    let (mut traps, mut tcp) = (Vec::new(), Vec::new());
    let trapped = format!("trap_in_GBps_{LARGEST_KIB}K");
    for _ in 0..runs {
        reports.push(boot(&FLAGS, &["copy", LARGEST_KIB])?);
        own.push(boot(&NODE_FLAGS, &["guest-node.sh", "copy", LARGEST_KIB])?);
        let trap = boot(&FLAGS, &["env", "WEFT_ATTACH=direct", "trap", "--copy", LARGEST_KIB])?;
        traps.push(number(&trap, &trapped)?);
        tcp.push(Tcp::measure(context, &daemon)?.gb_per_s);
    }
    let median_of = |reports: &[Value], name: &str| -> Result<f64> {
        let values: Result<Vec<f64>> = reports.iter().map(|report| number(report, name)).collect();
        Ok(median(&values?))
    };
    let first = reports[0].as_object().context("copy printed no object")?;
    for name in first.keys().filter(|name| name.as_str() != "verified") {
        document.figure(name.clone(), median_of(&reports, name)?);
        document.baseline(format!("node_in_guest_{name}"), median_of(&own, name)?);
    }
    document.baseline("tcp_in_guest_GBps", median(&tcp));
    document.baseline(format!("trap_in_guest_in_GBps_{LARGEST_KIB}K"), median(&traps));
    for kind in ["pageable", "pinned"] {
        let slower = |report: &Value| -> Result<f64> {
            let [inward, outward] = ["in", "out"]
                .map(|way| number(report, &format!("{kind}_{way}_over_memcpy_{LARGEST_KIB}K")));
            Ok(inward?.min(outward?))
        };
        let slower: Vec<f64> = reports.iter().map(slower).collect::<Result<_>>()?;
        document.figure(format!("{kind}_over_memcpy_{LARGEST_KIB}K"), median(&slower));
    }
    Ok(document)
}
