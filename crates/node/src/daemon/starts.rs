//! Whose workers start: one of a tenant at a time, while others have sessions.
//!
//! A worker's start takes some milliseconds of a processor, for which nobody has a turn. A tenant
//! that begins with many sessions at once would take the processors for as long as all their starts
//! last, and somebody's kernel would stand still meanwhile. One after the other they take as long,
//! and a kernel has its part of the processor beside each.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who waits looks this often whether there still are others.
const LOOK: Duration = Duration::from_millis(100);

/// Tenants of which a worker starts.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    tenants: Mutex<BTreeSet<u32>>,
    done: Condvar,
}

/// A worker starts, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Starting<'a> {
    starts: &'a Starts,
    /// The tenant, where the next worker of it waits for this one.
    tenant: Option<u32>,
}

impl Starts {
    /// A worker of `tenant` is about to start: returns when it may. However long that takes: the
    /// one that it waits for becomes ready or fails.
    pub(crate) fn begin(&self, tenant: u32, has_others: impl Fn() -> bool) -> Starting<'_> {
        let mut tenants = self.lock();
        loop {
            if tenants.insert(tenant) {
                return Starting { starts: self, tenant: Some(tenant) };
            }
            if !has_others() {
                return Starting { starts: self, tenant: None };
            }
            let waited = self.done.wait_timeout(tenants, LOOK);
            (tenants, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if let Some(tenant) = self.tenant {
            self.starts.lock().remove(&tenant);
            self.starts.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The most workers that start at once where eight threads each start ten.
    fn most_at_once(tenant: impl Fn(u32) -> u32 + Sync, has_others: bool) -> usize {
        let (starts, now, most) = (Starts::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let all_began = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (starts, now, most, all_began) = (&starts, &now, &most, &all_began);
                let tenant = tenant(thread);
                scope.spawn(move || {
                    all_began.wait();
                    for _ in 0..10 {
                        let _starting = starts.begin(tenant, || has_others);
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(starts.lock().is_empty(), "a start that is over is forgotten");
        most.into_inner()
    }

    #[test]
    fn a_tenants_workers_start_one_after_the_other_beside_others() {
        assert_eq!(most_at_once(|_| 1, true), 1);
    }

    #[test]
    fn nobody_waits_for_another_tenants_start_nor_where_there_are_no_others() {
        let starts = Starts::default();
        let first = starts.begin(1, || true);
        let another = starts.begin(2, || panic!("it is the first of its tenant"));
        let alone = starts.begin(1, || false);
        assert_eq!((first.tenant, another.tenant, alone.tenant), (Some(1), Some(2), None));
        // The end of one that waited for nobody lets nobody else go on.
        drop(alone);
        assert!(starts.lock().contains(&1));
    }

    #[test]
    fn who_waits_goes_on_when_the_others_are_gone() {
        let (starts, looks) = (Starts::default(), AtomicUsize::new(0));
        let _first = starts.begin(1, || true);
        let second = starts.begin(1, || looks.fetch_add(1, Ordering::SeqCst) < 2);
        assert_eq!((second.tenant, looks.load(Ordering::SeqCst)), (None, 3));
    }
}
