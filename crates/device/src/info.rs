//! What a device is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A CUDA device attribute number (`CUdevice_attribute`).
pub type Attribute = u32;

/// What the device can do; bounds what a policy may ask of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// A launch can be executed as ranges of thread blocks, and every operation stops at a time.
    pub slice_blocks: bool,
    /// A running operation can be aborted.
    pub cancel: bool,
    /// The device preempts by itself between contexts.
    pub preemptive: bool,
    /// What waits in its queue begins without the caller, behind what is before it. Otherwise it
    /// begins when the device is driven.
    pub runs_ahead: bool,
    /// Managed memory has slots like the device's own; otherwise it is pinned memory.
    pub managed: bool,
}

/// Fixed properties of a device, as a tenant sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Product name.
    pub name: String,
    /// Backend that drives it: `soft`, `cuda`.
    pub backend: String,
    /// Stable 16-byte identity.
    pub uuid: [u8; 16],
    /// Compute capability (major, minor).
    pub compute_capability: (u32, u32),
    /// Memory the tenant may see in all, in bytes.
    pub memory_bytes: u64,
    /// Attribute number → value; what `cuDeviceGetAttribute` answers.
    pub attributes: BTreeMap<Attribute, i32>,
    /// What it can do.
    pub capabilities: Capabilities,
}
