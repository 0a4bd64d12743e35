//! What survives a restart of the daemon: tags, weights, totals and counters, as plain data.
//!
//! Turns are not in it: a living worker's control page says what it holds, and the driver reports
//! it with [`Event::Adopt`](crate::Event::Adopt). Sessions start idle; their first reports charge
//! what they used while no daemon was there.

use alloc::vec::Vec;

use crate::config::Config;
use crate::core::Core;
use crate::key::{DeviceKey, KEY_LIMIT, SessionKey, VgpuKey, Weight};
use crate::node::Node;
use crate::policy::PolicyId;
use crate::tables::{Session, Vgpu};
use crate::tag::Tag;

/// A node's lasting state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Snapshot {
    /// Devices in the order of their keys.
    pub devices: Vec<DeviceState>,
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
    /// Its policy.
    pub policy: PolicyId,
    /// Its virtual time.
    pub virtual_time: Tag,
    /// The epoch of its next grant.
    pub next_epoch: u64,
}

/// A vGPU's lasting state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VgpuState {
    /// The vGPU.
    pub vgpu: VgpuKey,
    /// Where it lives.
    pub device: DeviceKey,
    /// Its share.
    pub weight: Weight,
    /// How far its start tag is ahead of the virtual time.
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
    /// A session belongs to a vGPU that is not there.
    #[error("session {0} belongs to a vGPU that is not in the snapshot")]
    SessionWithoutVgpu(SessionKey),
}

impl Node {
    /// The state to keep. O(vGPUs); cheap enough to take every second.
    pub fn snapshot(&self) -> Snapshot {
        let devices = self.cores.iter().map(|(_, core)| DeviceState {
            device: core.device,
            policy: core.policy_id,
            virtual_time: core.virtual_time(),
            next_epoch: core.next_epoch,
        });
        let vgpus = self.tables.vgpus.iter().filter_map(|(key, vgpu)| {
            let key = VgpuKey(key);
            Some(VgpuState {
                vgpu: key,
                device: vgpu.device,
                weight: vgpu.weight,
                ahead: self.cores.find(vgpu.device.index())?.ahead(key),
                used_ns: vgpu.used_ns,
                held_ns: vgpu.held_ns,
                turns: vgpu.turns,
            })
        });
        let sessions = self.tables.sessions.iter().map(|(key, session)| SessionState {
            session: SessionKey(key),
            vgpu: session.vgpu,
            used_ns: session.used_ns,
            idle_ns: session.idle_ns,
            predicted_ns: session.predicted_ns,
        });
        Snapshot {
            devices: devices.collect(),
            vgpus: vgpus.collect(),
            sessions: sessions.collect(),
        }
    }

    /// A node with the state of `snapshot`: devices are down, sessions idle and without a grant.
    /// Bring the devices up, adopt or remove each session, and report its counters.
    pub fn restore(config: Config, snapshot: &Snapshot) -> Result<Self, RestoreError> {
        let mut node = Self::new(config)?;
        for state in &snapshot.devices {
            check(state.device.0, node.cores.find(state.device.index()).is_some())?;
            let DeviceState { device, policy, virtual_time, next_epoch } = *state;
            node.cores.insert(device.index(), Core::new(device, policy, virtual_time, next_epoch));
        }
        for state in &snapshot.vgpus {
            check(state.vgpu.0, node.tables.vgpus.find(state.vgpu.index()).is_some())?;
            let core = node.cores.find_mut(state.device.index());
            let core = core.ok_or(RestoreError::VgpuWithoutDevice(state.vgpu))?;
            core.add_vgpu(state.vgpu, state.weight, state.ahead);
            let mut vgpu = Vgpu::new(state.device, state.weight);
            (vgpu.used_ns, vgpu.held_ns, vgpu.turns) = (state.used_ns, state.held_ns, state.turns);
            node.tables.vgpus.insert(state.vgpu.index(), vgpu);
        }
        for state in &snapshot.sessions {
            check(state.session.0, node.tables.sessions.find(state.session.index()).is_some())?;
            let vgpu = node.tables.vgpus.find_mut(state.vgpu.index());
            let vgpu = vgpu.ok_or(RestoreError::SessionWithoutVgpu(state.session))?;
            let fresh = Session::new(state.vgpu, vgpu.join(state.session));
            let SessionState { used_ns, idle_ns, predicted_ns, .. } = *state;
            let session = Session { used_ns, idle_ns, predicted_ns, ..fresh };
            node.tables.sessions.insert(state.session.index(), session);
        }
        Ok(node)
    }
}

fn check(key: u32, exists: bool) -> Result<(), RestoreError> {
    if exists || key >= KEY_LIMIT { Err(RestoreError::Key(key)) } else { Ok(()) }
}
