//! Settings that are one of a few words.

use serde::{Deserialize, Serialize};
use weft_turn::{Accounting, Slicing};

/// How device time is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountingConfig {
    /// Every operation is timed: free on a software device.
    Every,
    /// The first operations of a turn are timed, the others predicted, the turn settled exactly.
    Sampled,
}

impl From<AccountingConfig> for Accounting {
    fn from(config: AccountingConfig) -> Self {
        match config {
            AccountingConfig::Every => Self::Every,
            AccountingConfig::Sampled => Self::Sampled,
        }
    }
}

/// How kernels that are longer than a turn are cut between thread blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlicingConfig {
    /// At the turn's end, in pieces of at least 50 times what a piece costs, by measurement.
    Time,
    /// FairGV §5.5.2: kernels of more than 600 × 600 blocks, in pieces of at least 1,500.
    Fairgv,
    /// Not at all: a control.
    Never,
}

impl From<SlicingConfig> for Slicing {
    fn from(config: SlicingConfig) -> Self {
        match config {
            SlicingConfig::Time => Self::Time,
            SlicingConfig::Fairgv => Self::Fairgv,
            SlicingConfig::Never => Self::Never,
        }
    }
}

/// What compiling a tenant's modules may take of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompilingConfig {
    /// No turn, and of processors an allowance; beyond it one session of a tenant compiles at a
    /// time, at the lowest priority.
    #[default]
    Bounded,
    /// No turn, and as much of the processors as it gets: a control.
    Unbounded,
    /// The turn that its session has or is given meanwhile: a control.
    InTurn,
}

/// Whose weights compete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareConfig {
    /// Users compete by their weights; a user's vGPUs share the user's part by theirs.
    User,
    /// Every vGPU competes by its own weight.
    Vgpu,
}

/// How threads that wait for the device are helped to run when their result comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoschedulingConfig {
    /// By the best means that works here, where they share a processor with others.
    Auto,
    /// Not at all.
    Off,
    /// They are woken when the device switches to them.
    Wake,
    /// They get a short slice of their own.
    Slice,
    /// They become real-time for a moment.
    Boost,
}

impl CoschedulingConfig {
    /// As it is written in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Wake => "wake",
            Self::Slice => "slice",
            Self::Boost => "boost",
        }
    }
}
