//! Virtual machines of this host.

use serde::{Deserialize, Serialize};

use super::ByteSize;

/// Virtual machines of this host whose programs have vGPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestsConfig {
    /// Machines at once; 0: none.
    pub machines: usize,
    /// The largest region of a machine. All of it counts as its user's host memory.
    pub region: ByteSize,
}

impl Default for GuestsConfig {
    fn default() -> Self {
        Self { machines: 32, region: ByteSize(1 << 30) }
    }
}
