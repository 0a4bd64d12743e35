//! `bench move`: how long a program stands still whose vGPU is moved between two devices.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::document::Document;
use super::tenant::Host;
use super::{Context, median};

/// The program's vGPU.
const VGPU: &str = "resident";
/// Memory of each device.
const DEVICE_MEMORY: &str = "3GiB";

/// What the program measured before it began, in ms.
#[derive(Deserialize)]
struct Before {
    /// Copying its memory to fresh shared memory, as anybody would have to.
    copy_ms: f64,
    /// Its memory to the host and back, as tools do that save and restore a program's state.
    round_trip_ms: f64,
}

#[derive(Deserialize)]
struct After {
    /// The times between two of its results that were longer than a millisecond.
    gaps_ms: Vec<f64>,
}

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (mebibytes, moves) = if context.quick { (128, 10) } else { (1024, 100) };
    let settings = [("device", "soft,soft"), ("defaults.memory", "1100MiB")];
    let memory = [("device.0.memory", DEVICE_MEMORY), ("device.1.memory", DEVICE_MEMORY)];
    let settings: Vec<_> = settings.into_iter().chain(memory).collect();
    let host = Host::node(false, &settings)?;
    let mut admin = host.daemon()?.sockets().connect()?;
    let mut command = context.program("resident");
    command.arg(mebibytes.to_string());
    let mut program = host.start_with_input(VGPU, 1, command, Stdio::piped())?;
    let before: Before = serde_json::from_value(program.line()?)?;
    let mut told_ms = Vec::new();
    for _ in 0..moves {
        let home = admin.list()?.into_iter().find(|vgpu| vgpu.name == VGPU);
        let home = home.context("the program's vGPU is gone")?.device;
        let report = admin.move_vgpu(VGPU, if home == "gpu0" { "gpu1" } else { "gpu0" })?;
        ensure!(report.sessions == 1, "the program did not go along: {report:?}");
        #[expect(clippy::cast_precision_loss, reason = "ms")]
        told_ms.push(report.pause_ns as f64 / 1e6);
    }
    let last = program.finish()?.pop().context("the program printed nothing")?;
    let After { mut gaps_ms } = serde_json::from_value(last)?;
    ensure!(gaps_ms.len() >= moves, "the program did not stand still for every move");
    gaps_ms.sort_unstable_by(f64::total_cmp);
    // Each move is one of the longest gaps, or hidden by a longer one.
    let pauses = &gaps_ms[gaps_ms.len() - moves..];
    let pause_ms = median(pauses);
    let longest_ms = pauses.last().copied().unwrap_or_default();
    let Before { copy_ms, round_trip_ms } = before;
    let window = format!("{moves} moves of {mebibytes} MiB; medians");
    let mut document = Document::new("move", "real", &window);
    #[expect(clippy::cast_precision_loss, reason = "a hundred")]
    document.figure("moves", moves as f64);
    document.figure("pause_ms", pause_ms);
    document.figure("pause_ms_max", longest_ms);
    document.figure("pause_over_copy_ms", pause_ms - copy_ms);
    document.figure("pause_over_copy_ms_max", longest_ms - copy_ms);
    document.figure("pause_told_ms", median(&told_ms));
    document.baseline("copy_ms", copy_ms);
    document.control("round_trip_over_copy_ms", round_trip_ms - copy_ms);
    Ok(document)
}
