//! The device: which backend, and what it is told.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use weft_device::soft::PacedModel;
use weft_device::{DeviceSpec, SoftClock};

use super::{ByteSize, ConfigError, insert, invalid};

/// Memory of a software device unless configured otherwise, in bytes.
const SOFT_MEMORY_BYTES: u64 = 4 << 30;

/// Quantum on a device that preempts by itself, in µs: a switch of contexts costs it more.
const PREEMPTIVE_QUANTUM_US: i64 = 30_000;

/// Which clock a software device runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockConfig {
    /// As fast as the CPU allows.
    Real,
    /// By the configured model.
    Paced,
}

/// Which kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The software GPU.
    Soft,
    /// A genuine GPU, through its driver's `libcuda`.
    Cuda,
}

/// The device.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// Backend.
    pub kind: DeviceKind,
    /// Clock of a software device.
    pub clock: ClockConfig,
    /// Device memory that the vGPUs may have in all: 4 GiB of a software device if absent, all that
    /// a GPU has.
    pub memory: Option<ByteSize>,
    /// Times of a paced device.
    pub model: PacedModel,
    /// The genuine driver's library; `libcuda.so.1` where the system finds it if absent.
    pub library: Option<PathBuf>,
    /// Which of the driver's devices.
    pub ordinal: u32,
    /// No tenant of this node is hostile, so a GPU is allowed whose kernels reach all memory of
    /// their worker: what keeps tenants apart lies open to them there.
    pub trust_tenants: bool,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            kind: DeviceKind::Soft,
            clock: ClockConfig::Real,
            memory: None,
            model: PacedModel::default(),
            library: None,
            ordinal: 0,
            trust_tenants: false,
        }
    }
}

impl DeviceConfig {
    /// Device memory in bytes, once the daemon knows what a GPU has.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.map_or(SOFT_MEMORY_BYTES, |memory| memory.0)
    }
}

/// Writes a device's name (`soft:paced:MODEL.toml`, `cuda:1`) out as keys.
pub(super) fn apply(table: &mut Table, text: &str) -> Result<(), ConfigError> {
    let spec = DeviceSpec::parse(text).map_err(|error| invalid(&error.to_string()))?;
    let mut set = |key: &str, value: Value| insert(table, key, value);
    match spec {
        DeviceSpec::Soft { clock, model } => {
            set("device.kind", Value::String("soft".to_owned()))?;
            match clock {
                Some(SoftClock::Real) => set("device.clock", Value::String("real".to_owned()))?,
                Some(SoftClock::Paced) => set("device.clock", Value::String("paced".to_owned()))?,
                None => {}
            }
            if let Some(model) = model {
                let model = Value::try_from(model).map_err(|error| invalid(&error.to_string()))?;
                set("device.model", model)?;
            }
        }
        DeviceSpec::Cuda { ordinal } => {
            set("device.kind", Value::String("cuda".to_owned()))?;
            if let Some(ordinal) = ordinal {
                set("device.ordinal", Value::Integer(ordinal.into()))?;
            }
        }
    }
    Ok(())
}

/// Defaults that depend on the kind of device.
pub(super) fn complete(table: &mut Table) -> Result<(), ConfigError> {
    let of = |table: &Table, part: &str, key: &str| table.get(part)?.get(key).cloned();
    let is_cuda = of(table, "device", "kind").is_some_and(|kind| kind.as_str() == Some("cuda"));
    if is_cuda && of(table, "scheduling", "quantum_us").is_none() {
        insert(table, "scheduling.quantum_us", Value::Integer(PREEMPTIVE_QUANTUM_US))?;
    }
    Ok(())
}
