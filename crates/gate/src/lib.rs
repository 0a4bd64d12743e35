#![forbid(unsafe_code)]
//! The control page: who may use the device, for how long, and what was used.
//!
//! One page per session, one writer per word. The daemon grants, revokes and prepares; the worker
//! says whether it wants the device, what it used and that it released. A node-wide page carries
//! one doorbell for the daemon and a mark per session, so the daemon sleeps on a single word.
//!
//! Nothing is decided here: the two halves of taking turns are `weft_turn`'s, and see the page
//! through [`DaemonSide`] and [`HolderSide`].
//!
//! ```
//! use weft_gate::{ControlPage, GateDaemon, GateWorker, NodePage, DaemonSide, HolderSide};
//! use weft_ring::Access;
//! use weft_turn::{Admission, GrantKind};
//!
//! let page = ControlPage::create()?.map(Access::ReadWrite)?;
//! let node = NodePage::anonymous()?;
//! // A session with lanes sleeps on its segment's doorbell; this one on the page's own.
//! let doorbell = ControlPage::open(&page)?.doorbell().clone();
//! let mut daemon = GateDaemon::new(DaemonSide::new(ControlPage::open(&page)?, doorbell));
//! let mut worker =
//!     GateWorker::new(HolderSide::new(ControlPage::open(&page)?, node.clone(), 3));
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

mod daemon;
mod due;
mod holder;
#[cfg(all(loom, test))]
mod models;
mod node;
mod page;

pub use daemon::DaemonSide;
pub use due::{Due, Telling};
pub use holder::{HolderSide, wait};
pub use node::{NODE_SESSIONS, NodePage};
#[cfg(not(loom))]
pub use page::PageError;
pub use page::{ControlPage, PAGE_VERSION};

/// A session's gate as the daemon keeps it.
pub type GateDaemon = weft_turn::Gate<DaemonSide>;

/// A session's gate as the worker (or the interposed shim) passes it.
pub type GateWorker = weft_turn::Holder<HolderSide>;
