//! What survives a restart of the daemon: tags, weights, totals and counters, as plain data.
//!
//! Turns are not in it: a living worker's control page says what it holds, and the driver reports
//! it with [`Event::Adopt`](crate::Event::Adopt). Sessions start idle; their first reports charge
//! what they used while no daemon was there.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::cap::{Cap, CapError, CapMeter};
use crate::class::Class;
use crate::config::Config;
use crate::core::Core;
use crate::core::debts::LeftDebt;
use crate::key::{DeviceKey, KEY_LIMIT, SessionKey, TenantKey, VgpuKey, Weight};
use crate::node::{Device, Node};
use crate::policy::{PolicyId, Setup};
use crate::tables::{SessionEntry, Tenant, Vgpu};
use crate::tag::Tag;

/// A node's lasting state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Snapshot {
    /// Devices in the order of their keys.
    pub devices: Vec<DeviceState>,
    /// Tenants in the order of their keys.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tenants: Vec<TenantState>,
    /// Tenants that are ahead of a device's virtual time, by device and tenant.
    #[cfg_attr(feature = "serde", serde(default))]
    pub debts: Vec<TenantDebt>,
    /// What removed vGPUs left their owners, by device.
    #[cfg_attr(feature = "serde", serde(default))]
    pub left: Vec<OwnerDebt>,
    /// vGPUs in the order of their keys.
    pub vgpus: Vec<VgpuState>,
    /// Sessions in the order of their keys.
    pub sessions: Vec<SessionState>,
}

/// A device's lasting state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceState {
    /// The device.
    pub device: DeviceKey,
    /// Its settings.
    #[cfg_attr(feature = "serde", serde(default))]
    pub config: Config,
    /// Its policy.
    pub policy: PolicyId,
    /// Its virtual time.
    pub virtual_time: Tag,
    /// The epoch of its next grant.
    pub next_epoch: u64,
}

/// A tenant's lasting state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TenantState {
    /// The tenant.
    pub tenant: TenantKey,
    /// Its share.
    pub weight: Weight,
    /// Its cap on each device; a new period begins at the restart.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cap: Option<Cap>,
}

/// What a tenant overdrew of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TenantDebt {
    /// The device.
    pub device: DeviceKey,
    /// The tenant.
    pub tenant: TenantKey,
    /// How far its start tag is ahead of the virtual time.
    pub ahead: Tag,
}

/// What an owner's removed vGPUs overdrew of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OwnerDebt {
    /// The device.
    pub device: DeviceKey,
    /// The tenant whose part they shared.
    pub tenant: TenantKey,
    /// The owner.
    pub owner: u32,
    /// How far the start tag that it left is ahead of the virtual time of the tenant's part.
    pub ahead: Tag,
    /// The weight of the vGPU that it was.
    pub weight: Weight,
}

/// A vGPU's lasting state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VgpuState {
    /// The vGPU.
    pub vgpu: VgpuKey,
    /// Whose it is.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tenant: TenantKey,
    /// Where it lives.
    pub device: DeviceKey,
    /// Who answers for its debts.
    #[cfg_attr(feature = "serde", serde(default))]
    pub owner: Option<u32>,
    /// Its share of the tenant's part.
    pub weight: Weight,
    /// Its cap; a new period begins at the restart.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cap: Option<Cap>,
    /// Its class.
    #[cfg_attr(feature = "serde", serde(default))]
    pub class: Class,
    /// How far its start tag is ahead of the virtual time of its tenant's part.
    pub ahead: Tag,
    /// Device time billed, in ns.
    pub used_ns: u64,
    /// Time charged to its tag, in ns.
    pub held_ns: u64,
    /// Turns begun.
    pub turns: u64,
}

/// A session's lasting state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SessionState {
    /// The session.
    pub session: SessionKey,
    /// The vGPU it is attached to.
    pub vgpu: VgpuKey,
    /// Its share of the vGPU's part.
    #[cfg_attr(feature = "serde", serde(default))]
    pub weight: Weight,
    /// Its `used` counter as last read, in ns.
    pub used_ns: u64,
    /// Its `idle` counter as last read, in ns.
    pub idle_ns: u64,
    /// Work in flight charged by prediction, in ns.
    pub predicted_ns: u64,
}

/// A snapshot that does not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// A key occurs twice or is not below [`KEY_LIMIT`].
    #[error("key {0} occurs twice or is too large")]
    Key(u32),
    /// A vGPU lives on a device that is not there.
    #[error("vGPU {0} lives on a device that is not in the snapshot")]
    VgpuWithoutDevice(VgpuKey),
    /// A vGPU belongs to a tenant that is not there.
    #[error("vGPU {0} belongs to a tenant that is not in the snapshot")]
    VgpuWithoutTenant(VgpuKey),
    /// A cap outside its range.
    #[error(transparent)]
    Cap(#[from] CapError),
    /// A session belongs to a vGPU that is not there.
    #[error("session {0} belongs to a vGPU that is not in the snapshot")]
    SessionWithoutVgpu(SessionKey),
}

impl Node {
    /// The state to keep. O(vGPUs); cheap enough to take every second.
    pub fn snapshot(&self) -> Snapshot {
        let devices = self.devices.iter().map(|(_, Device { config, core })| DeviceState {
            device: core.device,
            config: *config,
            policy: core.policy_id,
            virtual_time: core.virtual_time(),
            next_epoch: core.next_epoch,
        });
        let vgpus = self.tables.vgpus.iter().filter_map(|(key, vgpu)| {
            let key = VgpuKey(key);
            Some(VgpuState {
                vgpu: key,
                tenant: vgpu.tenant,
                device: vgpu.device,
                owner: vgpu.rest.owner,
                weight: vgpu.weight,
                cap: vgpu.meter.as_ref().map(|meter| meter.cap),
                class: vgpu.rest.class,
                ahead: self.devices.find(vgpu.device.index())?.core.policy.ahead(key),
                used_ns: vgpu.used_ns,
                held_ns: vgpu.held_ns,
                turns: vgpu.turns,
            })
        });
        let sessions = self.tables.sessions.iter().map(|(key, session)| SessionState {
            session: SessionKey(key),
            vgpu: session.vgpu,
            weight: session.weight,
            used_ns: session.used_ns,
            idle_ns: session.idle_ns,
            predicted_ns: session.predicted_ns,
        });
        Snapshot {
            devices: devices.collect(),
            tenants: self
                .tables
                .tenants
                .iter()
                .map(|(key, tenant)| TenantState {
                    tenant: TenantKey(key),
                    weight: tenant.weight,
                    cap: tenant.cap,
                })
                .collect(),
            debts: self.debts(),
            left: self.left(),
            vgpus: vgpus.collect(),
            sessions: sessions.collect(),
        }
    }

    fn debts(&self) -> Vec<TenantDebt> {
        let mut debts = Vec::new();
        for (_, Device { core, .. }) in self.devices.iter() {
            for (key, _) in self.tables.tenants.iter() {
                let (device, tenant) = (core.device, TenantKey(key));
                let ahead = core.policy.tenant_ahead(tenant);
                if ahead > Tag::ZERO {
                    debts.push(TenantDebt { device, tenant, ahead });
                }
            }
        }
        debts
    }

    fn left(&self) -> Vec<OwnerDebt> {
        let mut all = Vec::new();
        for (_, Device { core, .. }) in self.devices.iter() {
            for &LeftDebt { owner, tenant, until, weight } in core.debts.iter() {
                let time = core.policy.time_of(tenant).unwrap_or_default();
                let (device, ahead) = (core.device, until.minus(time));
                if ahead > Tag::ZERO {
                    all.push(OwnerDebt { device, tenant, owner, ahead, weight });
                }
            }
        }
        all
    }

    /// A node with the state of `snapshot`: devices are down, sessions idle and without a grant.
    /// Bring the devices up, adopt or remove each session, and report its counters.
    pub fn restore(snapshot: &Snapshot) -> Result<Self, RestoreError> {
        let mut node = Self::new();
        for &TenantState { tenant, weight, cap } in &snapshot.tenants {
            check(tenant.0, false)?;
            cap.as_ref().map_or(Ok(()), Cap::validate)?;
            node.tables.tenants.insert(tenant.index(), Tenant { cap, ..Tenant::new(weight) });
        }
        let debts: BTreeMap<(DeviceKey, TenantKey), Tag> =
            snapshot.debts.iter().map(|debt| ((debt.device, debt.tenant), debt.ahead)).collect();
        for state in &snapshot.devices {
            check(state.device.0, node.devices.find(state.device.index()).is_some())?;
            let DeviceState { device, config, policy, virtual_time, next_epoch } = *state;
            config.validate()?;
            let setup = Setup { virtual_time, config: &config };
            let mut core = Core::new(device, policy, &setup, next_epoch);
            for (key, tenant) in node.tables.tenants.iter() {
                let key = TenantKey(key);
                let ahead = debts.get(&(device, key)).copied().unwrap_or_default();
                core.policy.add_tenant(key, tenant.weight, ahead);
                core.begin_tenant_cap(key, tenant.cap, 0);
            }
            for left in snapshot.left.iter().filter(|left| left.device == device) {
                let &OwnerDebt { tenant, owner, ahead, weight, .. } = left;
                if let Some(time) = core.policy.time_of(tenant) {
                    let until = time.plus(ahead);
                    core.debts.restore(LeftDebt { owner, tenant, until, weight });
                }
            }
            node.devices.insert(device.index(), Device { config, core });
        }
        for state in &snapshot.vgpus {
            check(state.vgpu.0, node.tables.vgpus.find(state.vgpu.index()).is_some())?;
            let found = node.devices.find_mut(state.device.index());
            let core = &mut found.ok_or(RestoreError::VgpuWithoutDevice(state.vgpu))?.core;
            if node.tables.tenants.find(state.tenant.index()).is_none() {
                return Err(RestoreError::VgpuWithoutTenant(state.vgpu));
            }
            core.policy.add(state.vgpu, state.tenant, state.weight, state.ahead);
            core.policy.set_class(state.vgpu, state.class);
            let mut vgpu = Vgpu::new(state.tenant, state.device, state.weight);
            (vgpu.rest.class, vgpu.rest.owner) = (state.class, state.owner);
            if let Some(cap) = state.cap {
                cap.validate()?;
                core.reserve_cap(state.vgpu);
                vgpu.meter = Some(Box::new(CapMeter::new(cap, 0, 0)));
            }
            (vgpu.used_ns, vgpu.held_ns, vgpu.turns) = (state.used_ns, state.held_ns, state.turns);
            node.tables.add_vgpu(state.vgpu, vgpu);
        }
        for state in &snapshot.sessions {
            check(state.session.0, node.tables.sessions.find(state.session.index()).is_some())?;
            let vgpu = node.tables.vgpus.find_mut(state.vgpu.index());
            let vgpu = vgpu.ok_or(RestoreError::SessionWithoutVgpu(state.session))?;
            let local = vgpu.join(state.session, state.weight);
            if let Some(device) = node.devices.find_mut(vgpu.device.index()) {
                device.core.count_user_facing(vgpu.rest.class, 1);
            }
            let fresh = SessionEntry::new(state.vgpu, local, state.weight);
            let SessionState { used_ns, idle_ns, predicted_ns, .. } = *state;
            let session = SessionEntry { used_ns, idle_ns, predicted_ns, ..fresh };
            node.tables.sessions.insert(state.session.index(), session);
        }
        Ok(node)
    }
}

fn check(key: u32, exists: bool) -> Result<(), RestoreError> {
    if exists || key >= KEY_LIMIT { Err(RestoreError::Key(key)) } else { Ok(()) }
}
