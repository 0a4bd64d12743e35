//! What the device executes.

/// A nanosecond count's names.
pub const US: u64 = 1_000;
/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// A device command as its tenant submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Which kernel: predictions go by it.
    pub key: u32,
    /// Device time of the whole grid, in ns.
    pub ns: u64,
    /// It may be executed in ranges of thread blocks.
    pub sliceable: bool,
    /// What the tenant claims that it takes, if anything; the worker believes it only until it has
    /// seen the kernel once.
    pub declared_ns: Option<u64>,
}

impl Kernel {
    /// A kernel that cannot be sliced.
    pub fn new(key: u32, ns: u64) -> Self {
        Self { key, ns, sliceable: false, declared_ns: None }
    }

    /// A kernel that can be sliced.
    pub fn sliceable(key: u32, ns: u64) -> Self {
        Self { sliceable: true, ..Self::new(key, ns) }
    }
}
