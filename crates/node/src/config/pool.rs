//! Pools: devices that any task of a virtual accelerator may run on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weft_sched::pool::PoolConfig;
use weft_sched::pool::policy::{NAMES, by_name};

use super::{
    ByteSize, ConfigError, DeviceConfig, NAME_RULE, check, check_size, invalid, is_vgpu_name,
};

/// How the tasks of a pool are run, and its vGPUs spread. `[pool.NAME]`; a pool that only devices
/// name has the defaults.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSettings {
    /// Which task runs where: `deadline`, `fifo`, `round_robin`, `priority`, `flexy`, `adaptive`.
    pub policy: String,
    /// `priority`, `flexy`: so many devices are kept from batch tasks.
    pub reserved: u32,
    /// `priority`, `flexy`: batch tasks are killed for user-facing ones, and begin anew.
    pub reset: bool,
    /// What a device is thought to be away for after a reset.
    pub reset_ms: u64,
    /// The SLA that `flexy` sizes its part of the pool by.
    pub sla_ms: u64,
    /// `flexy`: averages so many execution times.
    pub recent: u32,
    /// A device is free so long after a batch task is told to stop.
    pub slice_us: u64,
    /// `deadline`: after so long without a device batch tasks get one.
    pub batch_patience_ms: u64,
    /// `deadline`: for at least so long; and so long a batch task runs before it gives way to a
    /// batch accelerator that is owed more.
    pub batch_quantum_ms: u64,
    /// `deadline`: so long a user-facing task runs before it gives way to whoever waits.
    pub user_quantum_ms: u64,
    /// `deadline`: a task that missed its SLA goes first after so long.
    pub late_patience_ms: u64,
    /// `deadline`: service by which the earliest deadline may run ahead of its vGPU's share.
    pub slack_ms: u64,
    /// Tasks of one accelerator that may be outstanding.
    pub tasks: u32,
    /// Bytes of their buffers together.
    pub task_memory: ByteSize,
    /// An accelerator's runner ends when no program was connected to it for so long.
    pub idle_ms: u64,
    /// So often a vGPU may be moved from a crowded device to one that idles; never if 0.
    pub balance_s: u64,
}

impl Default for PoolSettings {
    fn default() -> Self {
        let PoolConfig {
            reserved,
            reset,
            reset_ns,
            sla_ns,
            recent,
            slice_ns,
            batch_patience_ns,
            batch_quantum_ns,
            user_quantum_ns,
            late_patience_ns,
            slack_ns,
            ..
        } = PoolConfig::default();
        Self {
            policy: NAMES[0].to_owned(),
            reserved,
            reset,
            reset_ms: reset_ns / 1_000_000,
            sla_ms: sla_ns / 1_000_000,
            recent,
            slice_us: slice_ns / 1000,
            batch_patience_ms: batch_patience_ns / 1_000_000,
            batch_quantum_ms: batch_quantum_ns / 1_000_000,
            user_quantum_ms: user_quantum_ns / 1_000_000,
            late_patience_ms: late_patience_ns / 1_000_000,
            slack_ms: slack_ns / 1_000_000,
            tasks: 1024,
            task_memory: ByteSize(1 << 30),
            idle_ms: 10_000,
            balance_s: 10,
        }
    }
}

impl PoolSettings {
    /// As the pool's state machine takes them.
    pub(crate) fn config(&self) -> PoolConfig {
        PoolConfig {
            // An unknown name was refused with the configuration.
            policy: by_name(&self.policy).unwrap_or_default(),
            reserved: self.reserved,
            reset: self.reset,
            reset_ns: self.reset_ms * 1_000_000,
            sla_ns: self.sla_ms * 1_000_000,
            recent: self.recent,
            slice_ns: self.slice_us * 1000,
            batch_patience_ns: self.batch_patience_ms * 1_000_000,
            batch_quantum_ns: self.batch_quantum_ms * 1_000_000,
            user_quantum_ns: self.user_quantum_ms * 1_000_000,
            late_patience_ns: self.late_patience_ms * 1_000_000,
            slack_ns: self.slack_ms * 1_000_000,
            ..PoolConfig::default()
        }
    }

    fn check(&self, key: &str) -> Result<(), ConfigError> {
        if by_name(&self.policy).is_none() {
            return Err(invalid(&format!(
                "{key}.policy: `{}` is none of {}",
                self.policy,
                NAMES.join(", ")
            )));
        }
        let hour_ms = 3_600_000;
        check(&format!("{key}.reserved"), self.reserved.into(), 0, 64)?;
        check(&format!("{key}.reset_ms"), self.reset_ms, 0, hour_ms)?;
        check(&format!("{key}.sla_ms"), self.sla_ms, 1, hour_ms)?;
        check(&format!("{key}.recent"), self.recent.into(), 1, 65_536)?;
        check(&format!("{key}.slice_us"), self.slice_us, 100, 10_000_000)?;
        check(&format!("{key}.batch_patience_ms"), self.batch_patience_ms, 1, hour_ms)?;
        check(&format!("{key}.batch_quantum_ms"), self.batch_quantum_ms, 1, hour_ms)?;
        check(&format!("{key}.user_quantum_ms"), self.user_quantum_ms, 1, hour_ms)?;
        check(&format!("{key}.late_patience_ms"), self.late_patience_ms, 1, hour_ms)?;
        check(&format!("{key}.slack_ms"), self.slack_ms, 0, hour_ms)?;
        check(&format!("{key}.tasks"), self.tasks.into(), 1, 4096)?;
        check(&format!("{key}.idle_ms"), self.idle_ms, 0, 24 * hour_ms)?;
        check(&format!("{key}.balance_s"), self.balance_s, 0, 3600)?;
        check_size(&format!("{key}.task_memory"), self.task_memory.0, 4096, 1 << 40)
    }
}

/// Checks all of them; each is a pool of some device.
pub(super) fn check_all(
    pools: &BTreeMap<String, PoolSettings>,
    devices: &[DeviceConfig],
) -> Result<(), ConfigError> {
    for (name, pool) in pools {
        let key = format!("pool.{name}");
        if !is_vgpu_name(name) {
            return Err(invalid(&format!("{key}: `{name}` is no name: {NAME_RULE}")));
        }
        if devices.iter().all(|device| device.pool.as_ref() != Some(name)) {
            return Err(invalid(&format!("{key}: no device is in it (device.pool = \"{name}\")")));
        }
        pool.check(&key)?;
    }
    Ok(())
}
