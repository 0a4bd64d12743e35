//! What the daemon and a task runner say to each other, on a socket pair like a worker's link.
//! Neither waits for the other.

use serde::{Deserialize, Serialize};

use crate::config::LogConfig;
use crate::link::Severity;

/// The daemon's first message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The virtual accelerator.
    pub(crate) accelerator: String,
    /// The devices of its pool.
    pub(crate) devices: Vec<Place>,
    /// What its tasks may have.
    pub(crate) bounds: Bounds,
    /// What may change while it runs.
    pub(crate) owed: Owed,
    /// A device must be free within this time of being told to stop a task, in ns.
    pub(crate) slice_ns: u64,
    /// Without connections it ends after this time, in ms.
    pub(crate) idle_ms: u64,
    /// The user that it becomes; absent when it stays the daemon's.
    pub(crate) user: Option<u32>,
    /// The log.
    pub(crate) log: LogConfig,
}

/// A device of the pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Its key on the node.
    pub(crate) key: u32,
    /// Its name.
    pub(crate) name: String,
    /// The vGPU there.
    pub(crate) vgpu: String,
    /// Whether it is in service.
    pub(crate) in_service: bool,
}

/// Bounds of one accelerator.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Bounds {
    /// Tasks outstanding.
    pub(crate) tasks: u32,
    /// Bytes of their memory together.
    pub(crate) bytes: u64,
    /// Host memory of the runner, in bytes.
    pub(crate) host_bytes: u64,
}

/// What an accelerator is owed at the moment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Owed {
    /// Device memory of a task, in bytes: the quota.
    pub(crate) memory_bytes: u64,
}

/// One time that a task is on a device. Reports about an earlier one are out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The device.
    pub(crate) device: u32,
    /// The runner's number of the task.
    pub(crate) task: u32,
    /// No other run of the accelerator has it.
    pub(crate) number: u64,
}

/// What the daemon tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// A tenant's connection comes along.
    Connection,
    /// A socket on which to attach to a device comes along.
    Attach {
        /// Which.
        device: u32,
    },
    /// Runs a task, from where it stopped.
    Run {
        /// Which.
        run: Run,
        /// A kernel that takes longer is run by pieces: it may be told to stop, in ns.
        whole_ns_max: u64,
    },
    /// Stops it at the first slice boundary that is not before `at_ns`.
    Yield {
        /// Which.
        run: Run,
        /// `CLOCK_MONOTONIC`, in ns.
        at_ns: u64,
    },
    /// The accelerator is owed that from now on.
    Owed(Owed),
    /// A task that waited is gone.
    Cancelled {
        /// Which.
        task: u32,
    },
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It did what it should.
    Done,
    /// With an error.
    Failed,
    /// It was stopped because nobody wants it any more.
    Dropped,
}

/// What a runner reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// It is set up and sandboxed.
    Ready,
    /// It wants a session on a device. Answer: [`Order::Attach`].
    Wanted {
        /// Which.
        device: u32,
    },
    /// A task waits.
    Submit {
        /// The runner's number of it.
        task: u32,
        /// How long it is thought to take, in ns; 0 if nothing is known.
        estimate_ns: u64,
    },
    /// A task is over.
    Finished {
        /// Which time.
        run: Run,
        /// How.
        outcome: Outcome,
    },
    /// A task stopped because it was told to.
    Stopped {
        /// Which time.
        run: Run,
    },
    /// The session on the device broke; the task begins anew.
    Lost {
        /// Which time.
        run: Run,
    },
    /// A task is no longer wanted. Answer: [`Order::Cancelled`] if it waits.
    Cancel {
        /// Which.
        task: u32,
    },
    /// How many tenants are connected.
    Connections {
        /// So many.
        count: u32,
    },
    /// A line for the log.
    Log {
        /// How urgent.
        severity: Severity,
        /// What.
        text: String,
    },
}
