//! What vGPUs had of their device beyond what they used.

use serde::{Deserialize, Serialize};

/// What a vGPU had of the device besides the time it used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// Device time held while others waited, in ns.
    pub(crate) held_ns: u64,
    /// Turns.
    pub(crate) turns: u64,
}

impl Holding {
    /// Both added up.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            held_ns: self.held_ns.saturating_add(other.held_ns),
            turns: self.turns.saturating_add(other.turns),
        }
    }

    /// What this has beyond `other`.
    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            held_ns: self.held_ns.saturating_sub(other.held_ns),
            turns: self.turns.saturating_sub(other.turns),
        }
    }

    /// The later of two counts of one scheduling core.
    pub(super) fn later(self, other: Self) -> Self {
        Self { held_ns: self.held_ns.max(other.held_ns), turns: self.turns.max(other.turns) }
    }
}
