//! The core's own tables, held against each other.

use core::fmt;

use crate::core::Core;
use crate::key::{SessionKey, TenantKey, VgpuKey};
use crate::node::{Device, Node};
use crate::tables::{SessionEntry, Tenant, Vgpu};

/// Two tables that disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What should hold.
    pub rule: &'static str,
    /// The device, vGPU or session where it does not.
    pub key: u32,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken at {}: {}", self.key, self.rule)
    }
}

/// Checks a node between two events. O(everything): for tests and fuzzing.
pub fn audit(node: &Node) -> Result<(), Broken> {
    for (key, vgpu) in node.tables.vgpus.iter() {
        audit_vgpu(node, VgpuKey(key), vgpu)?;
    }
    for (key, tenant) in node.tables.tenants.iter() {
        audit_tenant(node, TenantKey(key), tenant)?;
    }
    for (key, session) in node.tables.sessions.iter() {
        audit_session(node, SessionKey(key), session)?;
    }
    for (_, Device { core, .. }) in node.devices.iter() {
        audit_core(node, core)?;
    }
    let timer =
        node.devices.iter().filter_map(|(_, device)| device.core.deadline).min_by_key(|at| at.0);
    require(timer == node.poll_timeout(), 0, "the timer is the first deadline")
}

fn audit_vgpu(node: &Node, key: VgpuKey, vgpu: &Vgpu) -> Result<(), Broken> {
    let sessions = || vgpu.sessions().filter_map(|key| node.tables.sessions.find(key.index()));
    let rule = |holds, rule| require(holds, key.0, rule);
    rule(node.tenant(vgpu.tenant).is_some(), "a vGPU's tenant is there")?;
    rule(node.devices.find(vgpu.device.index()).is_some(), "a vGPU's device is there")?;
    let runnable = sessions().filter(|session| session.runnable).count();
    rule(vgpu.runnable as usize == runnable, "runnable sessions are counted")?;
    let in_turn =
        sessions().any(|session| node.tables.turn_of(session).is_some_and(|turn| turn.in_queue));
    rule(vgpu.in_turn == in_turn, "a vGPU in a turn has a session in a turn")?;
    let billed_ns = sessions().fold(0u64, |sum, session| sum.saturating_add(session.used_ns));
    rule(vgpu.used_ns >= billed_ns, "what sessions used is billed to their vGPU")?;
    rule(!vgpu.throttled || vgpu.runnable > 0, "only who has work is held back")?;
    let core = node.devices.find(vgpu.device.index()).map(|device| &device.core);
    let of_tenant = core.and_then(|core| core.tenant_cap(vgpu.tenant));
    let held_back = of_tenant.is_some_and(|cap| cap.waiting > 0);
    rule(
        !held_back || vgpu.runnable == 0 || vgpu.throttled,
        "a tenant's cap holds all of it back",
    )?;
    rule(!vgpu.throttled || vgpu.meter.is_some() || held_back, "only a cap holds back")
}

fn audit_tenant(node: &Node, key: TenantKey, tenant: &Tenant) -> Result<(), Broken> {
    let rule = |holds, rule| require(holds, key.0, rule);
    let own = || node.tables.vgpus.iter().filter(|(_, vgpu)| vgpu.tenant == key);
    let listed = own().all(|(vgpu, _)| tenant.vgpus.contains(&VgpuKey(vgpu)));
    rule(listed && own().count() == tenant.vgpus.len(), "a tenant knows its vGPUs")?;
    for (_, Device { core, .. }) in node.devices.iter() {
        let here = || own().map(|(_, vgpu)| vgpu).filter(|vgpu| vgpu.device == core.device);
        let cap = core.tenant_cap(key);
        rule(cap.map(|cap| cap.meter.cap) == tenant.cap, "a tenant's cap is that of each device")?;
        let Some(cap) = cap.filter(|cap| cap.waiting > 0) else { continue };
        let waiting = here().filter(|vgpu| vgpu.runnable > 0).count();
        rule(cap.waiting as usize == waiting, "vGPUs that a tenant's cap holds back are counted")?;
        rule(!here().any(|vgpu| vgpu.in_turn), "whose cap is used up has no turn")?;
    }
    Ok(())
}

fn audit_session(node: &Node, key: SessionKey, session: &SessionEntry) -> Result<(), Broken> {
    let vgpu = node.tables.vgpus.find(session.vgpu.index());
    let vgpu = vgpu.ok_or(Broken { rule: "a session's vGPU is there", key: key.0 })?;
    let known = vgpu.sessions().any(|other| other == key);
    require(known, key.0, "a vGPU knows its sessions")?;
    let Some(turn) = node.tables.turn_of(session) else { return Ok(()) };
    let holders = node.holders(vgpu.device);
    let place = holders.get(turn.place) == Some(&key);
    require(place, key.0, "who has a turn is a holder")
}

fn audit_core(node: &Node, core: &Core) -> Result<(), Broken> {
    let rule = |holds, rule| require(holds, core.device.0, rule);
    let own = || node.tables.vgpus.iter().filter(|(_, vgpu)| vgpu.device == core.device);
    let runnable: u32 = own().map(|(_, vgpu)| vgpu.runnable).sum();
    rule(core.runnable == runnable, "a device's runnable sessions are counted")?;
    let free = own().filter(|(_, vgpu)| !vgpu.throttled);
    let eligible: u32 = free.map(|(_, vgpu)| vgpu.runnable).sum();
    rule(core.eligible == eligible, "sessions that caps do not hold back are counted")?;

    let turn = |key: &SessionKey| {
        node.tables.sessions.find(key.index()).and_then(|session| node.tables.turn_of(session))
    };
    rule(core.holders.iter().all(|key| turn(key).is_some()), "a holder has a turn")?;
    let mut epochs = core.holders.iter().filter_map(|key| turn(key).map(|turn| turn.epoch));
    rule(epochs.all(|epoch| epoch < core.next_epoch), "epochs rise")?;
    let queued = core.holders.iter().filter_map(turn).filter(|turn| turn.in_queue).count();
    rule(queued <= usize::from(!core.policy.is_shared()), "one turn at a time")?;
    if !core.up || core.policy.is_shared() || !core.holders.is_empty() {
        return Ok(());
    }
    let next = core.policy.peek();
    rule(next.is_some() == (core.eligible > 0), "the policy knows who may run")?;
    let Some(next) = next else { return Ok(()) };
    let vgpu = node.tables.vgpus.find(next.index());
    rule(vgpu.is_some_and(Vgpu::is_eligible), "who is next may run")?;
    rule(core.deadline.is_some(), "who waits for a free device is granted it by a timer")
}

fn require(holds: bool, key: u32, rule: &'static str) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { rule, key }) }
}
