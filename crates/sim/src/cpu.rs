//! Processor cores with a fair scheduler, and the vCPUs that they run.

use crate::program::{Behaviour, Transport};

/// Which of Linux's schedulers a core has. Both are models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuScheduler {
    /// CFS: a woken vCPU is placed a little before the others and preempts if it is behind.
    Cfs,
    /// EEVDF: a woken vCPU has no credit and waits for the end of the running one's slice.
    Eevdf,
}

impl CpuScheduler {
    /// How long a vCPU runs when others are ready, in ns.
    pub(crate) fn slice_ns(self) -> u64 {
        match self {
            Self::Cfs => 3_000_000,
            Self::Eevdf => 2_800_000,
        }
    }
}

/// A sleeper's credit under CFS, in ns of virtual time.
pub(crate) const CFS_CREDIT_NS: u64 = 3_000_000;
/// By how much a woken vCPU must be behind to preempt under CFS, in ns of virtual time.
pub(crate) const CFS_GRANULARITY_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Running,
    Ready,
    Blocked,
}

/// What a vCPU is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// The step is over: ask for the next one.
    Between,
    /// Processor work, in `left_ns`.
    Work(Then),
    /// Waiting until so many of its kernels have finished: polls, then blocks.
    Await(u64),
    /// The lane is full: waits until so many have finished.
    Space(u64),
    Asleep,
    Ended,
}

/// What follows processor work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    Submit(crate::kernel::Kernel),
    Await,
}

#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) core: usize,
    pub(crate) weight: u64,
    pub(crate) worker: Option<usize>,
    pub(crate) transport: Transport,
    pub(crate) behaviour: Box<dyn Behaviour>,
    pub(crate) place: Place,
    pub(crate) doing: Doing,
    /// Processor time left of the step; of polling, before it blocks.
    pub(crate) left_ns: u64,
    /// Weighted processor time, in ns at weight 1,024.
    pub(crate) vruntime: u64,
    pub(crate) deadline: u64,
    pub(crate) boosted: bool,
    pub(crate) waking: bool,
    /// Processor time consumed, in ns.
    pub(crate) ran_ns: u64,
    /// When it became ready after its last wake-up.
    pub(crate) woken_ns: Option<u64>,
    pub(crate) wake_delays_ns: Vec<u64>,
}

impl Vcpu {
    pub(crate) fn virtual_ns(&self, ns: u64) -> u64 {
        ns.saturating_mul(1_024) / self.weight.max(1)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Processor {
    pub(crate) current: Option<usize>,
    pub(crate) last: Option<usize>,
    /// What a coscheduling policy was told last.
    pub(crate) told: Option<usize>,
    pub(crate) since_ns: u64,
    pub(crate) slice_from_ns: u64,
    pub(crate) ready: Vec<usize>,
    pub(crate) generation: u64,
    pub(crate) floor: u64,
}
