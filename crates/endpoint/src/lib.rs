//! vGPUs of another host: local lanes relayed over TLS, at both ends.
//!
//! An *endpoint* runs beside the programs ([`near`]). It is a tenant socket to them: the same
//! hello, the same shared memory, the same client library. Whatever a program puts into its lanes
//! the endpoint carries over TLS to a *gateway* beside the node ([`far`]), which puts it into the
//! lanes of a session of the node, and carries back what the worker publishes. So neither a program
//! nor the node's scheduling knows the difference, and nothing but these two touches the network.
//! See `docs/remote.md` and ADR 30. On a compute host of a cloud, [`host`] leads VMs there.

#![forbid(unsafe_code)]

pub mod delay;
pub mod far;
pub mod frame;
pub mod host;
mod left;
pub mod link;
pub mod measure;
pub mod near;
mod outage;
pub mod outbox;
mod packing;
pub mod pinned;
mod polling;
pub mod sandbox;
pub mod stream;
pub mod tls;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock's content. A panic of another thread leaves what is in it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
