//! Benchmarks of programs in a virtual machine: `--via vm`. QEMU interprets its processor, so the
//! program's own figures there, without Weft between, are the baseline.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::document::Document;
use super::{Context, median};
use crate::daemon::OwnDaemon;
use crate::vm;

/// Calls of the program `call`: synchronous ones with those that warm up, launches, and a wait for
/// each group of launches.
const CALLS: f64 = 52_000.0 + 64_000.0 + 4_000.0;

/// What a run in a machine printed: the program's figures, and what crossed the machine's border.
struct Run {
    figures: Value,
    crossed: Value,
}

/// Runs the program in a machine of its own, with words before it.
fn run(context: &Context, daemon: &OwnDaemon, words: &[&str]) -> Result<Run> {
    let image = context.guest.as_ref().context(
        "--via vm needs --guest FOLDER, which examples/guest/make-image makes with the program \
         `call` in it",
    )?;
    let mut command = vm::guest()?;
    command.args(["run", "vm", "--accel", "tcg", "--sessions", "2", "--counts", "--node"]);
    command.arg(daemon.tenant_socket());
    command.arg("--kernel").arg(image.join("vmlinuz")).arg("--initrd").arg(image.join("initrd"));
    let unpacked = image.join("qemu");
    if unpacked.exists() {
        command.arg("--qemu").arg(unpacked);
    }
    command.arg("--").args(words).arg("call").stdin(Stdio::null());
    let output = Command::output(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("the machine failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let line = |key: &str| {
        let parsed = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        parsed.into_iter().find(|value| value.get(key).is_some())
    };
    let figures = line("sync_us_p50").with_context(|| format!("no figures: {text}"))?;
    let crossed = line("marks_in").with_context(|| format!("no counts: {text}"))?;
    if figures["verified"] != Value::Bool(true) {
        bail!("the machine's program computed something wrong: {figures}");
    }
    Ok(Run { figures, crossed })
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("{name} is missing"))
}

/// `bench call --via vm`
pub(super) fn call(context: &Context, runs: usize) -> Result<Document> {
    let window = format!(
        "{runs} boots of a machine under TCG, each 50,000 synchronous calls and \
                          64,000 launches; medians"
    );
    let mut document = Document::new("call", "real", &window);
    let daemon = OwnDaemon::start(&[("scheduling.share", "vgpu")], None)?;
    let (mut lanes, mut direct, mut exits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let through = run(context, &daemon, &[])?;
        let marks = number(&through.crossed, "marks_in")? + number(&through.crossed, "marks_out")?;
        exits.push(marks / CALLS);
        lanes.push(through.figures);
        direct.push(run(context, &daemon, &["env", "WEFT_ATTACH=direct"])?.figures);
    }
    for name in ["sync_us_p50", "sync_us_p99", "submit_us_p50", "submit_us_p99"] {
        let of = |values: &[Value]| -> Result<Vec<f64>> {
            values.iter().map(|value| number(value, name)).collect()
        };
        let values = of(&lanes)?;
        document.figure(name, median(&values));
        document.figure(format!("{name}_min"), values.iter().copied().fold(f64::MAX, f64::min));
        document.figure(format!("{name}_max"), values.iter().copied().fold(0.0, f64::max));
        document.baseline(format!("direct_in_guest_{name}"), median(&of(&direct)?));
    }
    document.figure("exits_per_call", median(&exits));
    Ok(document)
}
