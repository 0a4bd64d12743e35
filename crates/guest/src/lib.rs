#![forbid(unsafe_code)]
//! vGPUs of virtual machines.
//!
//! A machine's [`server`] on the host has one region from the node daemon: the memory of an
//! `ivshmem-plain` device, in which all lanes and windows of the guest's programs lie. The
//! [`agent`] in the guest is a tenant socket like the node's. The two pass on hellos and answers,
//! and marks for those who sleep; commands never come here, they go through the region from the
//! program to its worker. `docs/guests.md` and ADR 36. A cloud's [`lender`] opens the region for a
//! server that is the machine's own user (ADR 54).

pub mod agent;
pub mod devices;
pub mod ends;
pub mod folder;
pub mod lender;
pub mod opener;
pub mod qemu;
pub mod server;

mod outbox;
mod qmp;
mod ready;
