//! What goes into a pool and what comes out.

use alloc::string::String;

use super::policy::PoolPolicyId;
use crate::class::Class;
use crate::codec::codec;
use crate::key::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

/// Settings of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Who decides.
    pub policy: PoolPolicyId,
    /// `priority` and `flexy`: so many devices are kept from batch tasks (K of Flexy §II-C2), one
    /// less than are up at most.
    pub reserved: u32,
    /// `priority` and `flexy`: batch tasks are killed for user-facing ones (Flexy §II-C3).
    pub reset: bool,
    /// What a device is away for after it was reset, in ns; Flexy §II-C3 measured one second.
    pub reset_ns: u64,
    /// The SLA that `flexy` sizes its pool by, in ns (Flexy assumes one for all tasks).
    pub sla_ns: u64,
    /// `flexy` averages the execution times of so many user-facing tasks (its `k`, not stated).
    pub recent: u32,
    /// `flexy`: a device that serves a user-facing task already counts in `U`. Algorithm 1 sorts
    /// it behind the idle ones, so as printed it does not.
    pub counts_serving: bool,
    /// `deadline`: a batch task stops at a multiple of this since it began, in ns.
    pub slice_ns: u64,
    /// `deadline`: after so many ns without a device, batch tasks get one.
    pub batch_patience_ns: u64,
    /// `deadline`: for at least so many ns; and after so many a batch task gives way to a batch
    /// vGPU that is owed more.
    pub batch_quantum_ns: u64,
    /// `deadline`: after so many ns a user-facing task gives way to whoever waits.
    pub user_quantum_ns: u64,
    /// `deadline`: a hopeless task within its vGPU's share goes first after so many ns, on one
    /// device at a time.
    pub late_patience_ns: u64,
    /// `deadline`: service by which the earliest deadline may run ahead of its fair share, in ns
    /// at weight 1. It enters the lag bound.
    pub slack_ns: u64,
    /// `deadline`: tenants compete by their weights, and a tenant's vGPUs for its part by theirs.
    /// Otherwise every vGPU competes by its own.
    pub by_tenant: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            policy: PoolPolicyId::default(),
            reserved: 0,
            reset: false,
            reset_ns: 1_000_000_000,
            sla_ns: 200_000_000,
            recent: 16,
            counts_serving: false,
            slice_ns: 5_000_000,
            batch_patience_ns: 1_000_000_000,
            batch_quantum_ns: 100_000_000,
            user_quantum_ns: 1_000_000_000,
            late_patience_ns: 4_000_000_000,
            slack_ns: 2_000_000_000,
            by_tenant: false,
        }
    }
}

impl PoolConfig {
    /// The longest that a batch run of `deadline` goes on while others are owed more, in ns.
    pub fn batch_turn_ns(&self) -> u64 {
        self.batch_quantum_ns.saturating_add(self.slice_ns)
    }
}

codec!(struct PoolConfig {
    policy, reserved, reset, reset_ns, sla_ns, recent, counts_serving, slice_ns, batch_patience_ns,
    batch_quantum_ns, user_quantum_ns, late_patience_ns, slack_ns, by_tenant,
});

/// What happens to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolEvent {
    /// A device joins.
    DeviceUp {
        /// Which.
        device: DeviceKey,
    },
    /// A device is gone; what it ran waits again and begins anew.
    DeviceDown {
        /// Which.
        device: DeviceKey,
    },
    /// A tenant's share is this from now on; one that was never said is 1.
    SetTenant {
        /// Which.
        tenant: TenantKey,
        /// Its share of each class.
        weight: Weight,
    },
    /// A vGPU joins: a virtual accelerator whose tasks any device may run.
    AddVgpu {
        /// Which.
        vgpu: VgpuKey,
        /// Whose it is. What the tenant's vGPUs that left were ahead it is, too.
        tenant: TenantKey,
        /// What it is owed.
        class: Class,
        /// Its share within its class.
        weight: Weight,
    },
    /// A vGPU is owed something else from now on, its tasks that wait or run included.
    SetVgpu {
        /// Which.
        vgpu: VgpuKey,
        /// What it is owed.
        class: Class,
        /// Its share within its class.
        weight: Weight,
    },
    /// A vGPU without tasks leaves.
    RemoveVgpu {
        /// Which.
        vgpu: VgpuKey,
    },
    /// A task waits.
    Submit {
        /// A key that no task of the pool has.
        task: TaskKey,
        /// Whose it is.
        vgpu: VgpuKey,
        /// How long it is thought to take, in ns; 0 if nothing is known. Who says so is not
        /// believed: service is by the times of the events.
        estimate_ns: u64,
    },
    /// A task is done.
    Finished {
        /// Where.
        device: DeviceKey,
        /// Which.
        task: TaskKey,
    },
    /// A task stopped because the device was told to yield. It goes on later where it stopped.
    Stopped {
        /// Where.
        device: DeviceKey,
        /// Which.
        task: TaskKey,
    },
    /// A task is gone from a device that is well: its worker died. It begins anew.
    Lost {
        /// Where.
        device: DeviceKey,
        /// Which.
        task: TaskKey,
    },
    /// A task that waits is no longer wanted.
    Cancel {
        /// Which.
        task: TaskKey,
    },
    /// A reset device is back.
    ResetDone {
        /// Which.
        device: DeviceKey,
    },
}

/// What a pool wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAction {
    /// Run the task, from where it stopped.
    Run {
        /// Where: a device that is free.
        device: DeviceKey,
        /// Which.
        task: TaskKey,
    },
    /// Stop the device's task at its first slice boundary that is not before `at_ns`.
    Yield {
        /// Which.
        device: DeviceKey,
        /// When, on the clock of the events, in ns.
        at_ns: u64,
    },
    /// Kill the device's task, which waits again and begins anew, and reset the device.
    Reset {
        /// Which.
        device: DeviceKey,
    },
}

/// An event that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A key that is not there.
    #[error("{0} is not in the pool")]
    Unknown(String),
    /// A key that is there already, or at or above `KEY_LIMIT`.
    #[error("{0} cannot be added to the pool")]
    Taken(String),
    /// A report about a task that the device does not run, or a reset that was not asked for.
    #[error("{device} does not do what is reported of it")]
    NotThere {
        /// The device.
        device: DeviceKey,
    },
    /// A task that a device runs; it is not taken back from there.
    #[error("{task} runs")]
    Runs {
        /// Which.
        task: TaskKey,
    },
    /// A vGPU that still has tasks.
    #[error("{vgpu} has tasks")]
    Busy {
        /// Which.
        vgpu: VgpuKey,
    },
}
