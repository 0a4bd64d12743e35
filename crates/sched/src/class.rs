//! What a vGPU's work is owed: an answer in time, or its share in the long run.

use crate::codec::codec;

/// A vGPU's class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Class {
    /// Work is worth most if it ends within so many ns of when it came.
    UserFacing {
        /// The service level agreement, in ns.
        sla_ns: u64,
    },
    /// Work may wait.
    #[default]
    Batch,
}

codec!(enum Class { 0 UserFacing { sla_ns }, 1 Batch {} });

impl Class {
    /// Whether it has an SLA.
    pub fn is_user_facing(self) -> bool {
        matches!(self, Self::UserFacing { .. })
    }

    /// Its SLA in ns, if it has one.
    pub fn sla_ns(self) -> Option<u64> {
        match self {
            Self::UserFacing { sla_ns } => Some(sla_ns),
            Self::Batch => None,
        }
    }
}
