#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
//! Everything that crosses a process border, and the one table of driver calls.
//!
//! * [`table`]: every function of the CUDA driver API, declared once. Exports, look-up by name and
//!   version, and the coverage page come from it.
//! * [`command`]: every message that a tenant's lane carries to its worker, declared once. Codec,
//!   dispatch and fuzz targets come from it.
//! * [`handshake`]: what a tenant and the node daemon say when a tenant attaches.
//! * [`guest`]: what is said about a virtual machine whose programs have vGPUs.
//! * [`reply`]: bodies of answers to synchronous commands.
//! * [`container`]: several module images as one.
//! * [`remote`]: what an endpoint on another host says, and the grants that let it in.
//! * [`size`]: sizes that people write.
//! * [`progress`]: what the segment's progress and notice words say.
//!
//! `wire` knows messages and no memory. Decoding copies nothing and trusts nothing: it returns an
//! error for anything that is not exactly one message.

extern crate alloc;

pub mod codec;
pub mod command;
pub mod container;
pub mod guest;
pub mod handshake;
pub mod id;
pub mod name;
pub mod progress;
pub mod remote;
pub mod reply;
pub mod size;
pub mod status;
pub mod table;

pub use codec::{DecodeError, EncodeError};
pub use command::Command;
pub use status::Status;
