//! `weft ls`, `usage`, `create`, `set`, `rm`, `policy`, `metrics`.

use anyhow::{Result, bail};
use weft_node::admin::{Request, VgpuReport, VgpuState};
use weft_node::config::CapSetting;

use crate::args::{AccessSettings, BoundSettings, SetOptions, Sockets, VgpuSettings};
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
                tenant(vgpu),
                vgpu.weight.to_string(),
                cap(vgpu),
                state(vgpu.state).to_owned(),
                vgpu.sessions.to_string(),
                format!("{} / {}", size(vgpu.memory_used_bytes), size(vgpu.memory_bytes)),
                seconds(vgpu.used_ns),
                vgpu.programs.join(", "),
            ]
        })
        .collect();
    let header =
        ["NAME", "TENANT", "WEIGHT", "CAP", "STATE", "SESSIONS", "MEMORY", "USED", "PROGRAMS"];
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
pub(crate) fn create(
    sockets: &Sockets,
    name: &str,
    settings: &VgpuSettings,
    bound: &BoundSettings,
    access: AccessSettings,
) -> Result<()> {
    sockets.connect()?.call(&Request::Create {
        name: name.to_owned(),
        weight: settings.weight,
        memory_bytes: settings.memory.map(|size| size.0),
        owner: access.owner,
        token: access.token,
        cap_ppm: bound.cap.map(|cap| cap.0),
    })?;
    Ok(())
}

/// `weft set`
pub(crate) fn set(sockets: &Sockets, options: &SetOptions) -> Result<()> {
    let VgpuSettings { weight, memory } = options.settings;
    let cap_ppm = options.bound.cap.map(|cap| cap.0);
    if weight.is_none() && memory.is_none() && cap_ppm.is_none() {
        bail!("nothing to set; give --weight, --memory or --cap");
    }
    let mut client = sockets.connect()?;
    match (&options.name, options.tenant, options.process, weight) {
        (_, Some(uid), _, Some(weight)) => client.set_tenant(uid, weight)?,
        (_, _, Some(pid), Some(weight)) => client.set_session(pid, weight)?,
        (Some(name), ..) => {
            let (name, memory_bytes) = (name.clone(), memory.map(|size| size.0));
            client.call(&Request::Set { name, weight, memory_bytes, cap_ppm })?;
        }
        (None, ..) => bail!("nothing to set; name a vGPU, or --tenant or --process with --weight"),
    }
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

/// Whose part of the device a vGPU shares: the user, and their weight unless it is 1.
pub(crate) fn tenant(vgpu: &VgpuReport) -> String {
    match (vgpu.tenant, vgpu.tenant_weight) {
        (None, _) => "-".to_owned(),
        (Some(uid), 1) => uid.to_string(),
        (Some(uid), weight) => format!("{uid} (w{weight})"),
    }
}

/// A vGPU's cap.
pub(crate) fn cap(vgpu: &VgpuReport) -> String {
    vgpu.cap_ppm.map_or_else(|| "-".to_owned(), |ppm| CapSetting(ppm).to_string())
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
