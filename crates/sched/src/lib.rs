#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
//! Every scheduling decision of a node, as one pure state machine.
//!
//! [`Node::handle`] takes the time and one [`Event`], and appends [`Action`]s to a buffer. There is
//! no clock, no thread, no random order and, once keys are known, no allocation: the same events
//! give the same actions, bit for bit, in the daemon, in the simulator and in a replayed journal.
//!
//! # The rules, and where they come from
//!
//! | rule | source |
//! |---|---|
//! | Start and finish tags, smallest start tag runs, `V` the smallest among the runnable | FairGV §3.2.1 |
//! | On waking `S = max(S, V)`: an overrun is not forgotten by sleeping | FairGV §3.2.1, sharpened |
//! | A holder with nothing to do gives way after a *time*, not after a count of spins | FairGV §3.2.2 |
//! | The holder releases by itself when its budget is used up | FairGV §3.3.2 |
//! | The budget's overrun by a command that cannot be cut is charged like any service | FairGV §3.3.2 |
//! | More than 10 synchronous calls per 10 ms make a vGPU interactive | FairGV §3.2.3 |
//! | A lone tenant keeps the device without being granted again | Weft |
//! | Work in flight is charged at the release by prediction and corrected when it finishes | Weft |
//! | A bound on the lag of any two backlogged vGPUs, checked from the device's own report | Weft |
//!
//! `docs/scheduling.md` explains them, with the bound and a worked example of a new policy.

extern crate alloc;

mod action;
pub mod balance;
pub mod bench_support;
mod cap;
mod class;
pub mod codec;
mod config;
mod core;
mod event;
mod fair_queue;
mod heap;
pub mod invariants;
pub mod journal;
mod key;
pub mod memory;
mod node;
pub mod placement;
mod places;
pub mod policy;
pub mod pool;
mod row;
mod snapshot;
mod sync_rate;
mod tables;
mod tag;
mod turn;
mod waste;

pub use action::{Action, Actions, TimerReason, UNLIMITED};
pub use cap::{Cap, CapError};
pub use class::Class;
pub use config::{Config, ConfigError, PREEMPTIVE_QUANTUM_NS};
pub use event::{Event, EventError, Usage};
pub use key::{DeviceKey, KEY_LIMIT, SessionKey, TaskKey, TenantKey, VgpuKey, Weight, WeightError};
pub use node::{Node, VgpuView};
pub use policy::{PolicyId, UnknownPolicy};
pub use snapshot::{
    DeviceState, OwnerDebt, RestoreError, SessionState, Snapshot, TenantDebt, TenantState,
    VgpuState,
};
pub use tag::Tag;
