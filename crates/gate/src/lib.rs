#![forbid(unsafe_code)]
//! The control page: who may use the device, for how long, and what was used.
//!
//! One page per session, one writer per word. The daemon grants, revokes and prepares; the worker
//! says whether it wants the device, what it used and that it released. A node-wide page carries
//! one doorbell for the daemon and a mark per session, so the daemon sleeps on a single word.
//!
//! ```
//! use weft_gate::{
//!     Admission, ControlPage, GateDaemon, GateWorker, GrantKind, NodePage,
//! };
//! use weft_ring::Access;
//!
//! let page = ControlPage::create()?.map(Access::ReadWrite)?;
//! let node = NodePage::anonymous()?;
//! // A session with lanes sleeps on its segment's doorbell; this one on the page's own.
//! let doorbell = ControlPage::open(&page)?.doorbell().clone();
//! let mut daemon = GateDaemon::new(ControlPage::open(&page)?, doorbell);
//! let mut worker = GateWorker::new(ControlPage::open(&page)?, node.clone(), 3);
//!
//! // The worker has something to do and rings.
//! worker.set_runnable(200_000);
//! assert!(matches!(worker.admit(100_000), Admission::Wait(_)));
//! assert_eq!(node.take_dirty().collect::<Vec<_>>(), [3]);
//!
//! // The daemon grants 150 µs; two operations of 100 µs pass, a third does not.
//! daemon.grant(150_000, GrantKind::Turn);
//! assert_eq!(worker.admit(100_000), Admission::Admitted { left_ns: 150_000 });
//! assert_eq!(worker.admit(100_000), Admission::Admitted { left_ns: 50_000 });
//! assert!(matches!(worker.admit(100_000), Admission::Wait(_)));
//! worker.charge(100_000, 98_000);
//! worker.charge(100_000, 101_000);
//! assert!(worker.try_release(0));
//! assert!(!daemon.is_held());
//! assert_eq!(daemon.report().used_ns, 199_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod account;
mod daemon;
mod due;
mod node;
mod page;
mod worker;

pub use daemon::{GateDaemon, Report, Revocation};
pub use due::Due;
pub use node::{NODE_SESSIONS, NodePage};
pub use page::{Abandoned, ControlPage, Demand, Grant, GrantKind, PAGE_VERSION, PageError};
pub use worker::{Admission, GateWorker, HOLDER_SPIN, PREPARED_SPIN, WaitFor};
