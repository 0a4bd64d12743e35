//! What any of several threads may do, one at a time, and none waits for another to have done.
//!
//! Who finds that another thread does it leaves it to that one, which looks again before it leaves:
//! whatever was asked for before [`Duty::attend`] is done by then or by somebody who will see it,
//! unless that one broke off.

use std::ops::ControlFlow;
use std::sync::PoisonError;

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// The duty, and what whoever does it needs.
#[derive(Debug, Default)]
pub struct Duty<W> {
    is_taken: AtomicBool,
    work: Mutex<W>,
}

impl<W> Duty<W> {
    /// A duty that nobody does.
    pub fn new(work: W) -> Self {
        Self { is_taken: AtomicBool::new(false), work: Mutex::new(work) }
    }

    /// Does it, and again for as long as `is_left` says so; `work` may end that early. Nothing when
    /// another thread does it, or when nothing is left.
    pub fn attend<T>(
        &self,
        mut work: impl FnMut(&mut W) -> ControlFlow<T>,
        is_left: impl Fn() -> bool,
    ) -> Option<T> {
        loop {
            if self.is_taken.swap(true, Ordering::AcqRel) {
                return None;
            }
            let taken = Taken(&self.is_taken);
            let mut held = self.hold();
            let flow = work(&mut held);
            // In this order: whoever comes after a [`Self::hold`] that waited for this finds it
            // free.
            drop(taken);
            drop(held);
            if let ControlFlow::Break(ended) = flow {
                return Some(ended);
            }
            if !is_left() {
                return None;
            }
        }
    }

    /// Keeps others from doing it, once whoever does it has stopped; they wait for that.
    pub fn hold(&self) -> MutexGuard<'_, W> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody does it, until it is dropped.
struct Taken<'a>(&'a AtomicBool);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // SYNC: a swap, since it acquires from whoever found the duty taken what that one asked for
        // before. A mere store would let both miss each other.
        self.0.swap(false, Ordering::AcqRel);
    }
}
