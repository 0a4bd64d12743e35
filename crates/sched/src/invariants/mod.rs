//! What must hold, as predicates that property tests, the simulator and the fuzzer share.
//!
//! | invariant | predicate |
//! |---|---|
//! | the lag bound, at every level of the hierarchy | [`LagTree`], [`LagBound`] |
//! | the same on the journal of a real run | [`TraceLag`] |
//! | caps hold, apart from one quantum and one command | [`CapCheck`] |
//! | the device is not idle while somebody may use it | [`WorkConservation`] |
//! | nobody starves | [`wait_limit_ns`], [`nested_wait_limit_ns`] |
//! | every nanosecond is billed, once | [`billing_gap_ns`] |
//! | virtual time and epochs never fall | [`Rising`] |
//! | the core's own tables agree | [`audit()`] |
//!
//! All but the last are fed from outside the core: from what a device says it executed and from
//! what tenants have outstanding, never from tags. A wrong tag cannot hide a wrong share.

mod audit;
mod caps;
mod conservation;
mod hierarchy;
mod lag;
mod trace;

pub use audit::{Broken, audit};
pub use caps::{CapBroken, CapCheck};
pub use conservation::{
    Rising, WorkConservation, billing_gap_ns, nested_wait_limit_ns, wait_limit_ns,
};
pub use hierarchy::{LagTree, Level, LevelLag};
pub use lag::{Lag, LagBound, PAIRS_MAX};
pub use trace::{TraceLag, TraceSummary};
