//! `weft ls`, `usage`, `create`, `set`, `rm`, `policy`, `metrics`.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use weft_node::admin::{
    DeviceReport, MoveReport, ProcessReport, Request, Share, Stats, VgpuReport, VgpuState, shares,
};
use weft_node::config::{CapSetting, SlaSetting};

use crate::accelerator;
use crate::args::{AccessSettings, BoundSettings, DeviceAction, SetOptions, Sockets, VgpuSettings};
use crate::output::{LIST, line, note, percent, seconds, size, table};
use crate::users::Names;

/// Between the two looks that a share is seen in.
const LOOK: Duration = Duration::from_millis(300);

/// `weft ls`
pub(crate) fn list(sockets: &Sockets, json: bool) -> Result<()> {
    let mut client = sockets.connect()?;
    let before = client.stats()?;
    let mut after = before.clone();
    // Of a node without work nothing is to be seen by waiting.
    if before.vgpus.iter().any(|vgpu| vgpu.sessions > 0) {
        std::thread::sleep(LOOK);
        after = client.stats()?;
    }
    let shares = shares(&before, &after);
    if json {
        line(&serde_json::to_string_pretty(&with_shares(&after, &shares)?)?);
        return Ok(());
    }
    let mut names = Names::default();
    // An accelerator's have a table of their own.
    let mut listed: Vec<_> = after.vgpus.iter().zip(&shares).collect();
    listed.retain(|(vgpu, _)| !accelerator::has(&after, vgpu));
    // Who uses the device first, and those without a program last.
    listed.sort_by_key(|(vgpu, share)| (share.entitled <= 0.0, vgpu.sessions == 0));
    let rows: Vec<_> = listed
        .into_iter()
        .map(|(vgpu, share)| {
            vec![
                vgpu.name.clone(),
                tenant(vgpu, &mut names),
                vgpu.device.clone(),
                vgpu.weight.to_string(),
                cap(vgpu),
                class(vgpu),
                doing(share).to_owned(),
                part(share),
                vgpu.sessions.to_string(),
                format!("{} / {}", size(vgpu.memory_used_bytes), size(vgpu.memory_bytes)),
                seconds(vgpu.used_ns),
                processes(vgpu),
            ]
        })
        .collect();
    let header = [
        "NAME", "USER", "DEVICE", "WEIGHT", "CAP", "CLASS", "STATE", "SHARE", "SESSIONS", "MEMORY",
        "USED", LIST,
    ];
    line(table(&header, &rows).trim_end());
    if !after.accelerators.is_empty() {
        line(&format!("\n{}", accelerator::listing(&after, &mut names).trim_end()));
    }
    Ok(())
}

/// `weft ls --devices`
pub(crate) fn devices(sockets: &Sockets, json: bool) -> Result<()> {
    let stats = sockets.connect()?.stats()?;
    if json {
        line(&serde_json::to_string_pretty(&stats.devices)?);
        return Ok(());
    }
    let row = |device: &DeviceReport| {
        let vgpus = stats.vgpus.iter().filter(|vgpu| vgpu.device == device.name);
        vec![
            device.name.clone(),
            service(device).to_owned(),
            device.pool.clone().unwrap_or_else(|| "-".to_owned()),
            device.product.clone(),
            device.backend.clone(),
            device.clock.clone(),
            device.policy.clone(),
            format!("{} / {}", size(device.memory_used_bytes), size(device.memory_bytes)),
            seconds(device.busy_ns),
            vgpus.count().to_string(),
        ]
    };
    let rows: Vec<_> = stats.devices.iter().map(row).collect();
    let header = [
        "NAME", "STATE", "POOL", "PRODUCT", "BACKEND", "CLOCK", "POLICY", "MEMORY", "BUSY", "VGPUS",
    ];
    line(table(&header, &rows).trim_end());
    Ok(())
}

/// Whether vGPUs may use a device.
pub(crate) fn service(device: &DeviceReport) -> &'static str {
    match (device.in_service, &device.failure) {
        (true, _) => "up",
        (false, Some(_)) => "failed",
        (false, None) => "down",
    }
}

/// The vGPUs as JSON, each with its part of the device.
pub(crate) fn with_shares(stats: &Stats, shares: &[Share]) -> Result<Vec<Value>> {
    let one = |(vgpu, share): (&VgpuReport, &Share)| {
        let mut object = serde_json::to_value(vgpu)?;
        object["share"] = json!({
            "of_device": share.of_device,
            "entitled": share.entitled,
            "asks_for_less": share.asks_for_less,
            "capped": share.capped,
        });
        Ok(object)
    };
    stats.vgpus.iter().zip(shares).map(one).collect()
}

/// A part of the device in words: what it had, and what it may have if that is another part.
fn part(share: &Share) -> String {
    match (share.entitled > 0.0, share.asks_for_less) {
        (false, _) => "-".to_owned(),
        (true, false) => percent(share.of_device),
        (true, true) => format!("{} asks for less", percent(share.of_device)),
    }
}

/// The processes of a vGPU, with what each has of its memory.
fn processes(vgpu: &VgpuReport) -> String {
    let one = |process: &ProcessReport| format!("{process} {}", size(process.memory_bytes));
    vgpu.processes.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// `weft usage`
pub(crate) fn usage(sockets: &Sockets, json: bool) -> Result<()> {
    let mut client = sockets.connect()?;
    let stats = client.stats()?;
    if json {
        line(&serde_json::to_string_pretty(&stats)?);
        return Ok(());
    }
    let mut names = Names::default();
    let row = |vgpu: &VgpuReport| {
        vec![
            vgpu.name.clone(),
            names.of(vgpu.owner).to_owned(),
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
        "since the node started: busy {}, charged {}, difference {:.3}%",
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
        sla_ns: bound.sla.map(|sla| sla.0),
        device: access.device,
    })?;
    Ok(())
}

/// `weft set`
pub(crate) fn set(sockets: &Sockets, options: &SetOptions) -> Result<()> {
    let VgpuSettings { weight, memory } = options.settings;
    let cap_ppm = options.bound.cap.map(|cap| cap.0);
    let sla_ns = options.bound.sla.map(|sla| sla.0);
    if weight.is_none() && memory.is_none() && cap_ppm.is_none() && sla_ns.is_none() {
        bail!("nothing to set; give --weight, --memory, --cap or --sla");
    }
    let mut client = sockets.connect()?;
    match (&options.name, options.tenant, options.process, weight) {
        (_, Some(uid), _, Some(weight)) => client.set_tenant(uid, weight)?,
        (_, _, Some(pid), Some(weight)) => client.set_session(pid, weight)?,
        (Some(name), ..) => {
            let (name, memory_bytes) = (name.clone(), memory.map(|size| size.0));
            client.call(&Request::Set { name, weight, memory_bytes, cap_ppm, sla_ns })?;
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

/// `weft move`
pub(crate) fn move_to(sockets: &Sockets, name: &str, device: &str, json: bool) -> Result<()> {
    let report = sockets.connect()?.move_vgpu(name, device)?;
    if json {
        line(&serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    let MoveReport { from, to, sessions, bytes, pause_ns } = report;
    let size = size(bytes);
    match sessions {
        0 => line(&format!("{name} lives on {to} now, not on {from}")),
        _ => line(&format!(
            "{name} moved from {from} to {to} with {sessions} sessions and {size}; they stood still \
             for {} ms",
            pause_ns / 1_000_000
        )),
    }
    Ok(())
}

/// `weft device`
pub(crate) fn device(
    sockets: &Sockets,
    action: DeviceAction,
    name: &str,
    force: bool,
) -> Result<()> {
    let mut client = sockets.connect()?;
    client.set_device(name, action == DeviceAction::Up, force)?;
    if action == DeviceAction::Down
        && let Some(words) = without(&client.stats()?, name)
    {
        note(&words);
    }
    Ok(())
}

/// What there is to say of a node without a device: its vGPUs wait for one.
fn without(stats: &Stats, name: &str) -> Option<String> {
    let stays = stats.vgpus.iter().filter(|vgpu| vgpu.device == name).count();
    let why = if !stats.devices.iter().any(|device| device.in_service) {
        "no device of the node is in service".to_owned()
    } else if stays > 0 {
        format!("{stays} vGPUs stay on {name}, for no other device of its pool has room")
    } else {
        return None;
    };
    Some(format!("weft: {why}: their programs are refused until `weft device up {name}`"))
}

/// `weft policy`
pub(crate) fn policy(
    sockets: &Sockets,
    name: Option<&str>,
    device: Option<&str>,
    json: bool,
) -> Result<()> {
    let mut client = sockets.connect()?;
    let node = match name {
        Some(name) => client.set_policy(name, device)?,
        None => client.node()?,
    };
    match json {
        true => {
            let (policy, policies) = (&node.policy, &node.policies);
            line(&serde_json::to_string_pretty(&json!({"policy": policy, "policies": policies}))?);
        }
        false => line(&node.policy),
    }
    Ok(())
}

/// `weft metrics`
pub(crate) fn metrics(sockets: &Sockets, json: bool) -> Result<()> {
    let text = sockets.connect()?.metrics()?;
    match json {
        true => line(&serde_json::to_string_pretty(&samples(&text))?),
        false => line(text.trim_end()),
    }
    Ok(())
}

/// The samples of Prometheus text: name, labels, value. Labels of this node's need no escapes.
fn samples(text: &str) -> Vec<Value> {
    let sample = |line: &str| {
        let (what, value) = line.rsplit_once(' ')?;
        let (name, labels) = what.split_once('{').unwrap_or((what, ""));
        let labels = labels.trim_end_matches('}').split(',').filter_map(|label| {
            let (key, value) = label.split_once('=')?;
            Some((key.to_owned(), Value::from(value.trim_matches('"'))))
        });
        let labels: serde_json::Map<String, Value> = labels.collect();
        let value: f64 = value.parse().ok()?;
        Some(json!({"name": name, "labels": labels, "value": value}))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

/// Whose a vGPU is, and the user's weight unless it is 1 or there are no parts of users.
pub(crate) fn tenant(vgpu: &VgpuReport, names: &mut Names) -> String {
    let name = names.of(vgpu.owner);
    match (vgpu.tenant, vgpu.tenant_weight) {
        (None, _) | (Some(_), 1) => name.to_owned(),
        (Some(_), weight) => format!("{name} (w{weight})"),
    }
}

/// A vGPU's cap, and its user's where that is the lower one: all of the user's vGPUs on the device
/// have that together.
pub(crate) fn cap(vgpu: &VgpuReport) -> String {
    let (part, together) = (vgpu.cap_part_ppm, vgpu.tenant_cap_ppm);
    let users = part.or(together).filter(|ppm| vgpu.cap_ppm.is_none_or(|own| *ppm < own));
    let own = vgpu.cap_ppm.map(|ppm| CapSetting(ppm).to_string());
    let users = users.map(|ppm| format!("{} of user", CapSetting(ppm)));
    match (own, users) {
        (Some(own), Some(users)) => format!("{own}, {users}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "-".to_owned(),
    }
}

/// A vGPU's class: batch, or the SLA of a user-facing one and the part of its responses that were
/// in time.
pub(crate) fn class(vgpu: &VgpuReport) -> String {
    match (vgpu.sla_ns, vgpu.attainment.ratio()) {
        (0, _) => "batch".to_owned(),
        (sla_ns, None) => SlaSetting(sla_ns).to_string(),
        (sla_ns, Some(in_time)) => format!("{} {}", SlaSetting(sla_ns), percent(in_time)),
    }
}

/// The state of a vGPU, or why it does not have more of its device.
pub(crate) fn doing(share: &Share) -> &'static str {
    match share {
        Share { is_closing: true, .. } => "closing",
        Share { capped: true, .. } => "capped",
        share => state(share.state),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_become_json_with_their_labels() {
        let text = "# HELP a b\n# TYPE a counter\na 1.5\nw{vgpu=\"x.y\"} 3\n";
        let expected = [
            json!({"name": "a", "labels": {}, "value": 1.5}),
            json!({"name": "w", "labels": {"vgpu": "x.y"}, "value": 3.0}),
        ];
        assert_eq!(samples(text), expected);
    }
}
