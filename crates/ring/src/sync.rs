//! The one place that names atomics: the machine's, or loom's while a model is checked.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::fence;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::fence;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
