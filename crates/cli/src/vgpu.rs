//! `weft ls`, `usage`, `create`, `set`, `rm`, `policy`, `metrics`.

use anyhow::{Result, bail};
use weft_node::admin::{VgpuReport, VgpuState};

use crate::args::{Sockets, VgpuSettings};
use crate::output::{line, seconds, size, table};

/// `weft ls`
pub(crate) fn list(sockets: &Sockets, json: bool) -> Result<()> {
    let vgpus = sockets.connect()?.list()?;
    if json {
        line(&serde_json::to_string_pretty(&vgpus)?);
        return Ok(());
    }
    let rows: Vec<_> = vgpus
        .iter()
        .map(|vgpu| {
            vec![
                vgpu.name.clone(),
                vgpu.weight.to_string(),
                state(vgpu.state).to_owned(),
                vgpu.sessions.to_string(),
                format!("{} / {}", size(vgpu.memory_used_bytes), size(vgpu.memory_bytes)),
                seconds(vgpu.used_ns),
                vgpu.programs.join(", "),
            ]
        })
        .collect();
    let header = ["NAME", "WEIGHT", "STATE", "SESSIONS", "MEMORY", "USED", "PROGRAMS"];
    line(table(&header, &rows).trim_end());
    Ok(())
}

/// `weft usage`
pub(crate) fn usage(sockets: &Sockets, json: bool) -> Result<()> {
    let mut client = sockets.connect()?;
    let stats = client.stats()?;
    if json {
        line(&serde_json::to_string_pretty(&stats)?);
        return Ok(());
    }
    let row = |vgpu: &VgpuReport| {
        vec![
            vgpu.name.clone(),
            vgpu.owner.to_string(),
            vgpu.weight.to_string(),
            seconds(vgpu.used_ns),
            seconds(vgpu.held_ns),
            vgpu.turns.to_string(),
            vgpu.sessions_total.to_string(),
        ]
    };
    let rows: Vec<_> = stats.vgpus.iter().map(row).collect();
    let header = ["NAME", "OWNER", "WEIGHT", "USED", "HELD", "TURNS", "SESSIONS"];
    line(table(&header, &rows).trim_end());
    line(&format!(
        "device busy {}, charged {}, difference {:.3}%",
        seconds(stats.closure.busy_ns),
        seconds(stats.closure.charged_ns),
        100.0 * stats.closure.error()
    ));
    Ok(())
}

/// `weft create`
pub(crate) fn create(sockets: &Sockets, name: &str, settings: &VgpuSettings) -> Result<()> {
    let memory = settings.memory.map(|size| size.0);
    sockets.connect()?.create(name, settings.weight, memory).map(drop)?;
    Ok(())
}

/// `weft set`
pub(crate) fn set(sockets: &Sockets, name: &str, settings: &VgpuSettings) -> Result<()> {
    if settings.weight.is_none() && settings.memory.is_none() {
        bail!("nothing to set; give --weight, --memory or both");
    }
    sockets.connect()?.set(name, settings.weight, settings.memory.map(|size| size.0)).map(drop)?;
    Ok(())
}

/// `weft rm`
pub(crate) fn remove(sockets: &Sockets, name: &str, force: bool) -> Result<()> {
    sockets.connect()?.remove(name, force)?;
    Ok(())
}

/// `weft policy`
pub(crate) fn policy(sockets: &Sockets, name: Option<&str>) -> Result<()> {
    let mut client = sockets.connect()?;
    let node = match name {
        Some(name) => client.set_policy(name)?,
        None => client.node()?,
    };
    line(&node.policy);
    Ok(())
}

/// `weft metrics`
pub(crate) fn metrics(sockets: &Sockets) -> Result<()> {
    line(sockets.connect()?.metrics()?.trim_end());
    Ok(())
}

/// A state as one word.
pub(crate) fn state(state: VgpuState) -> &'static str {
    match state {
        VgpuState::Detached => "detached",
        VgpuState::Idle => "idle",
        VgpuState::Waiting => "waiting",
        VgpuState::Running => "running",
    }
}
