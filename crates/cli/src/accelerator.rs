//! Virtual accelerators: `weft create --tasks`, and how `weft ls` and `weft top` show them.

use anyhow::Result;
use weft_node::admin::{AcceleratorReport, AskedAccelerator, Request, Stats, VgpuReport};
use weft_node::config::SlaSetting;

use crate::args::{AccessSettings, BoundSettings, Sockets, VgpuSettings};
use crate::output::{percent, seconds, table};
use crate::users::Names;

/// `weft create --tasks`
pub(crate) fn create(
    sockets: &Sockets,
    name: &str,
    settings: &VgpuSettings,
    bound: &BoundSettings,
    access: AccessSettings,
) -> Result<()> {
    sockets.connect()?.call(&Request::CreateAccelerator(AskedAccelerator {
        name: name.to_owned(),
        pool: access.device.unwrap_or_default(),
        weight: settings.weight,
        memory_bytes: settings.memory.map(|size| size.0),
        owner: access.owner,
        sla_ns: bound.sla.map(|sla| sla.0),
        token: access.token,
    }))?;
    Ok(())
}

/// Whether a vGPU is part of an accelerator.
pub(crate) fn has(stats: &Stats, vgpu: &VgpuReport) -> bool {
    stats.accelerators.iter().any(|accelerator| accelerator.vgpus.contains(&vgpu.name))
}

/// All of a node's accelerators as a table.
pub(crate) fn listing(stats: &Stats, names: &mut Names) -> String {
    let row = |accelerator: &AcceleratorReport| {
        let tasks = &accelerator.tasks;
        vec![
            accelerator.name.clone(),
            names.of(accelerator.owner).to_owned(),
            accelerator.pool.clone(),
            accelerator.weight.to_string(),
            class(accelerator),
            accelerator.connections.to_string(),
            tasks.waiting.to_string(),
            tasks.running.to_string(),
            tasks.done.to_string(),
            tasks.failed.to_string(),
            seconds(accelerator.used_ns),
        ]
    };
    let rows: Vec<_> = stats.accelerators.iter().map(row).collect();
    let header = [
        "ACCELERATOR",
        "USER",
        "POOL",
        "WEIGHT",
        "CLASS",
        "PROGRAMS",
        "WAITING",
        "RUNNING",
        "DONE",
        "FAILED",
        "USED",
    ];
    table(&header, &rows)
}

/// Its class: batch, or the SLA of a user-facing one and the part of its tasks that were in time.
pub(crate) fn class(accelerator: &AcceleratorReport) -> String {
    match (accelerator.sla_ns, in_time(accelerator)) {
        (0, _) => "batch".to_owned(),
        (sla_ns, None) => SlaSetting(sla_ns).to_string(),
        (sla_ns, Some(in_time)) => format!("{} {}", SlaSetting(sla_ns), percent(in_time)),
    }
}

/// The part of its tasks that were in time, 0–1; `None` of a batch one and without any.
pub(crate) fn in_time(accelerator: &AcceleratorReport) -> Option<f64> {
    let tasks = &accelerator.tasks;
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    (accelerator.sla_ns > 0 && tasks.done > 0).then(|| tasks.in_time as f64 / tasks.done as f64)
}
