#![forbid(unsafe_code)]
//! One session on a device: what a tenant may ask of it, in which order it happens, and who is
//! told.
//!
//! A [`Session`] takes a tenant's commands ([`Session::accept`]) in ticket order, validates
//! everything a hostile tenant could send, keeps streams, events, modules, memory and graphs, and
//! hands device operations to a [`weft_device::Device`] one by one, so that whoever drives it can
//! ask for permission first. It knows no socket, ring or clock but the device's, and never blocks:
//! a wait is an entry that is answered when it is due. Everything it says goes through an
//! [`Output`].
//!
//! # Driving a session
//!
//! ```text
//! loop {
//!     for each record in ticket order:  session.accept(command, caller, out)?
//!     while let Some(ready) = session.next_op():      // a kernel, a copy or a fill
//!         if the gate admits `ready`:   session.start_next(cut, opens, out) else break
//!     match session.drive(slice_ns, out):             // executes, completes, answers
//!         Busy => again soon; Idle / WaitUntil(t) => sleep until t, session.deadline_ns() or news
//! }
//! ```
//!
//! # Order
//!
//! Streams are first-in first-out. A command of the legacy stream waits for everything accepted
//! before it on blocking streams, and they wait for it. All contexts of a session share one legacy
//! stream: a stricter order than CUDA's, never a weaker one. Device operations of one stream are
//! started ahead of each other's completion; everything else acts when it reaches the front.
//!
//! # Errors
//!
//! * A *violation* is something no client of ours sends ([`Violation`]): the session is over.
//! * A *refusal* is a command that cannot be done (a stale handle, an unmapped range, a launch
//!   beyond the limits). A synchronous command is answered with CUDA's code. An asynchronous one is
//!   dropped; the first such code is kept and answered once, by the next synchronisation, query or
//!   ping that would have succeeded.
//! * A *fault* is a kernel that misbehaved (or a lost device). It is sticky for the whole session:
//!   queued work is dropped, waits are answered with the code, later commands too. Only the
//!   destruction of every context that lived at the fault clears it, which is what
//!   `cuDevicePrimaryCtxReset` does.
//!
//! Every arena block that an accepted command names is released exactly once.

mod border;
mod commands;
mod error;
mod event;
mod fault;
mod graph;
mod host;
mod launch;
mod limits;
mod memory;
mod module;
mod order;
mod output;
mod printed;
mod ranges;
mod release;
mod room;
mod session;
mod shape;
mod shared_event;
mod stream;
mod table;
mod virtual_memory;
mod wait;
mod words;

pub use border::Shared;
pub use error::Violation;
pub use fault::status_of;
pub use limits::Limits;
pub use order::{Cut, Ready, Started, Work};
pub use output::{Caller, Finished, Output};
pub use session::{Accepted, Session};
