//! `bench call --via vm`: what a call costs a program in a machine.
//!
//! Beside it the same program twice with everything inside the machine: on a node of the guest's
//! own, which is what a process pays on that interpreter through shared memory, and with the device
//! in its own process; requests of four system calls each, which is what trapping costs there, and
//! echoes by TCP over the guest's loopback. Shared memory of the host's own processors is beside it
//! too.
//! What crosses the machine's border is counted in boots of their own: of calls that both sides
//! poll for, and as a control of waits that outlast the polling. So are, by QEMU itself, what its
//! processor and its devices notify each other of, beyond that of a boot that calls nothing.

use std::io::{BufRead as _, BufReader};

use anyhow::Result;
use serde_json::Value;

use super::{Machine, TWO, Tcp, line, number};
use crate::bench::document::Document;
use crate::bench::tenant::Host;
use crate::bench::via::TRAPS;
use crate::bench::{Context, median};
use crate::daemon::OwnDaemon;

/// Calls of the program `call`: synchronous ones with those that warm up, launches, and a wait for
/// each group of launches.
const CALLS: f64 = 52_000.0 + 64_000.0 + 4_000.0;

/// Boots of each kind of machine.
const RUNS: usize = 5;

const NAMES: [&str; 4] = ["sync_us_p50", "sync_us_p99", "submit_us_p50", "submit_us_p99"];

/// What a request of them takes.
const TRAPPED: &str = "trap_sync_us_p50";

pub(super) fn run(context: &Context) -> Result<Document> {
    let runs = if context.quick { 1 } else { RUNS };
    let window = format!(
        "{runs} boots of a machine under TCG, each 50,000 synchronous calls and 64,000 launches; \
         medians"
    );
    let mut document = Document::new("call", "real", &window);
    let daemon = OwnDaemon::start(&[("scheduling.share", "vgpu")], None)?;
    let (mut lanes, mut own, mut direct) = (Vec::new(), Vec::new(), Vec::new());
    let (mut exits, mut polled, mut blocked) = (Vec::new(), Vec::new(), Vec::new());
    let (mut notified, mut notified_by_waits) = (Vec::new(), Vec::new());
    let (mut traps, mut echoes, mut host) = (Vec::new(), Vec::new(), Vec::new());
    let node = Host::node(false, &[])?;
    for _ in 0..runs {
        let boot = |flags: &[&str], words: &[&str]| {
            Machine { name: "vm", weight: 1, flags, words }.run(context, &daemon)
        };
        let through = boot(&["--counts"], &["call"])?;
        exits.push(marks(&through)? / CALLS);
        for (phase, per_call) in [("polled", &mut polled), ("blocked", &mut blocked)] {
            let lines = boot(&["--counts"], &["call", phase])?;
            per_call.push(marks(&lines)? / number(line(&lines, "calls")?, "calls")?);
        }
        for (phase, calls, per_call) in
            [("polled", "50000", &mut notified), ("blocked", "400", &mut notified_by_waits)]
        {
            let besides = notifications(context, &daemon, &["call", phase, "0"])?;
            let all = notifications(context, &daemon, &["call", phase, calls])?;
            per_call.push((all - besides) / calls.parse::<f64>()?);
        }
        lanes.push(line(&through, NAMES[0])?.clone());
        own.push(line(&boot(&TWO, &["guest-node.sh", "call"])?, NAMES[0])?.clone());
        let words = ["env", "WEFT_ATTACH=direct", "call"];
        direct.push(line(&boot(&[], &words)?, NAMES[0])?.clone());
        let words = ["env", "WEFT_ATTACH=direct", "trap", TRAPS[0], TRAPS[1]];
        let lines = boot(&TWO, &words)?;
        traps.push(number(line(&lines, TRAPPED)?, TRAPPED)?);
        echoes.push(Tcp::measure(context, &daemon)?.echo_us);
        host.push(context.single(&node, "call")?);
    }
    for name in NAMES {
        let of = |values: &[Value]| -> Result<Vec<f64>> {
            values.iter().map(|value| number(value, name)).collect()
        };
        let (values, own) = (of(&lanes)?, of(&own)?);
        document.figure(name, median(&values));
        document.figure(format!("{name}_min"), values.iter().copied().fold(f64::MAX, f64::min));
        document.figure(format!("{name}_max"), values.iter().copied().fold(0.0, f64::max));
        document.figure(format!("{name}_over_node_in_guest"), median(&values) / median(&own));
        document.baseline(format!("node_in_guest_{name}"), median(&own));
        document.baseline(format!("direct_in_guest_{name}"), median(&of(&direct)?));
        document.baseline(format!("shared_memory_of_host_{name}"), median(&of(&host)?));
    }
    document.baseline("trap_in_guest_sync_us_p50", median(&traps));
    let calls: Vec<f64> = lanes.iter().map(|lane| number(lane, NAMES[0])).collect::<Result<_>>()?;
    let over: Vec<f64> = calls.iter().zip(&echoes).map(|(call, echo)| call / echo).collect();
    document.figure("over_tcp_echo_in_guest", median(&over));
    document.baseline("tcp_echo_in_guest_us_p50", median(&echoes));
    document.figure("exits_per_call", median(&polled));
    document.figure("exits_per_call_with_waits", median(&exits));
    document.control("exits_per_blocked_wait", median(&blocked));
    document.figure("notifications_per_call", median(&notified));
    document.control("notifications_per_blocked_wait", median(&notified_by_waits));
    Ok(document)
}

/// How often a machine's processor and its devices notified each other, by QEMU's own trace: under
/// KVM each leaves the guest, or enters it.
fn notifications(context: &Context, daemon: &OwnDaemon, words: &[&str]) -> Result<f64> {
    let log = tempfile::NamedTempFile::new()?;
    let path = log.path().display().to_string();
    let traced = ["-D", &path, "-trace", "enable=virtio_*notify*"];
    let flags = traced.map(|word| format!("--qemu-arg={word}"));
    let flags = flags.each_ref().map(String::as_str);
    Machine { name: "vm", weight: 1, flags: &flags, words }.run(context, daemon)?;
    let mut count = 0.0;
    for line in BufReader::new(log.as_file()).lines() {
        count += f64::from(u8::from(line?.starts_with("virtio_")));
    }
    Ok(count)
}

/// What crossed the machine's border, both ways together.
fn marks(lines: &[Value]) -> Result<f64> {
    let crossed = line(lines, "marks_in")?;
    Ok(number(crossed, "marks_in")? + number(crossed, "marks_out")?)
}
