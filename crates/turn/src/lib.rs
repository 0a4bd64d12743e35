#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
//! Taking turns on a device, both halves, written once.
//!
//! The *daemon's half* ([`Turns`]) turns what control pages say into events of the scheduling core
//! and the core's actions into grants and revocations. The *holder's half* ([`Holder`]) admits
//! operations to a turn, charges them and gives the turn back; [`Meter`] says what an operation is
//! charged, [`Predictor`] what it will take, [`Pieces`] where it is cut. Between them lies a
//! control page, which each side sees through a trait ([`DaemonPage`], [`HolderPage`]): shared
//! memory in the node, plain cells in the simulator. Both drive this code; there is no clock, no
//! memory and no thread in it. [`Ahead`] says how many operations fly at once whose length is only
//! predicted.
//!
//! | rule | source |
//! |---|---|
//! | A grant is a budget of device time, the holder releases by itself when it is used up | FairGV §3.3.2 |
//! | The first five requests of a turn are timed, the others predicted | FairGV §3.3.1 |
//! | A kernel that is longer than what is left of a turn runs in pieces | FairGV §5.5.2, Weft |
//! | A turn that is over is given back while the rest of it drains | Weft |
//! | A lone tenant's grant bounds what is in flight and lasts until it is revoked | Weft |
//! | A holder without work keeps its turn for as long as it has earned | Weft |
//! | A turn that began with an exchange of memory is kept for as long as that took | Weft |
//! | A timer that is due is told before what has happened meanwhile | Weft |

extern crate alloc;

pub mod account;
mod ahead;
mod daemon;
mod gate;
mod grace;
mod holder;
mod meter;
mod page;
mod pieces;
mod plain;
mod predict;

pub use ahead::{Ahead, PREDICTED_DEPTH};
pub use daemon::{Contender, Decision, Effect, Host, Turns};
pub use gate::{Gate, Revocation};
pub use grace::{Grace, Pause};
pub use holder::{Admission, HOLDER_SPIN, Holder, Length, PREPARED_SPIN, WaitFor};
pub use meter::{Accounting, Meter, SETTLE_NS};
pub use page::{Abandoned, DaemonPage, Demand, Grant, GrantKind, HolderPage, Report};
pub use pieces::{Cut, Limit, Operation, Pieces, Size, Slicing};
pub use plain::{PlainPage, Signal, Terms};
pub use predict::Predictor;

/// A worker releases its turn this long before its successor may start, in ns: what the daemon
/// needs to hear of it.
const RELEASE_LEAD_NS: u64 = 300_000;

/// How long before its last work has drained a worker gives its turn back, in ns.
#[must_use]
pub fn lead_ns(config: &weft_sched::Config) -> u64 {
    config.overlap_ns.saturating_add(RELEASE_LEAD_NS)
}

/// Waiting callers are woken this long before their answer comes, in ns: the cost of a wake.
pub const ANNOUNCE_NS: u64 = 70_000;

/// An operation that outlives its estimate by more than this is a surprise, in ns, not a variation.
const SURPRISE_NS: u64 = 500_000;

/// Whether nobody knows any more when an operation ends that has run for `ran_ns` and was thought
/// to take `estimate_ns`.
#[must_use]
pub fn is_surprise(ran_ns: u64, estimate_ns: u64) -> bool {
    ran_ns > estimate_ns.saturating_add(SURPRISE_NS)
}
