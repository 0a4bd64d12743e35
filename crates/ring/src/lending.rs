//! One direction's work, lent to whoever does the other's.
//!
//! Each direction of a relayed session has a thread. While one call follows the other a single
//! thread does better: the one that reads what the peer sends, polling anyway, also passes on what
//! goes there. Each thread less that a call goes through is a wake-up less.

use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};

/// The work, which one thread owns and another borrows.
#[derive(Debug)]
pub struct Lending<W> {
    work: Mutex<W>,
    /// From when it is asked for until it is given back; written under the lock.
    is_wanted: AtomicBool,
    wanted: Mutex<()>,
    returned: Condvar,
}

impl<W> Lending<W> {
    /// Work that nobody wants yet.
    pub fn new(work: W) -> Self {
        Self {
            work: Mutex::new(work),
            is_wanted: AtomicBool::new(false),
            wanted: Mutex::new(()),
            returned: Condvar::new(),
        }
    }

    /// The work, for its owner.
    pub fn own(&self) -> MutexGuard<'_, W> {
        self.lend(own(&self.work))
    }

    /// Whether the owner shall lend it, and return from any waiting to do so.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    /// Lets who wants it have it, if anybody does, until it is given back.
    pub fn lend<'a>(&'a self, mut work: MutexGuard<'a, W>) -> MutexGuard<'a, W> {
        while self.is_wanted() {
            drop(work);
            let mut wanted = own(&self.wanted);
            while self.is_wanted() {
                wanted = self.returned.wait(wanted).unwrap_or_else(PoisonError::into_inner);
            }
            drop(wanted);
            work = own(&self.work);
        }
        work
    }

    /// Asks for it; `ring` has the owner return from its waiting.
    pub fn borrow(&self, ring: impl FnOnce()) -> Borrowed<'_, W> {
        self.set_wanted(true);
        ring();
        Borrowed { lending: self, work: None }
    }

    fn set_wanted(&self, is_wanted: bool) {
        let _wanted = own(&self.wanted);
        self.is_wanted.store(is_wanted, Ordering::Release);
    }
}

/// Work that was asked for. Dropped, it is its owner's again.
#[derive(Debug)]
pub struct Borrowed<'a, W> {
    lending: &'a Lending<W>,
    work: Option<MutexGuard<'a, W>>,
}

impl<W> Borrowed<'_, W> {
    /// The work, if its owner has lent it by now. Nobody waits for that: the owner may wait in turn
    /// for what the borrower is to read.
    pub fn work(&mut self) -> Option<&mut W> {
        if self.work.is_none() {
            self.work = match self.lending.work.try_lock() {
                Ok(work) => Some(work),
                Err(TryLockError::Poisoned(work)) => Some(work.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
        }
        self.work.as_deref_mut()
    }
}

impl<W> Drop for Borrowed<'_, W> {
    fn drop(&mut self) {
        drop(self.work.take());
        self.lending.set_wanted(false);
        self.lending.returned.notify_one();
    }
}

/// Whatever a thread that panicked has left.
fn own<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn the_owner_goes_on_where_the_borrower_ended() {
        let lending = Arc::new(Lending::new(0_u32));
        let owners = Arc::clone(&lending);
        let owner = thread::spawn(move || {
            let mut work = owners.own();
            while *work < 1000 {
                *work += 1;
                while !owners.is_wanted() && *work < 1000 {
                    std::hint::spin_loop();
                }
                work = owners.lend(work);
            }
        });
        let add = |more: u32| {
            let mut borrowed = lending.borrow(|| ());
            loop {
                if let Some(work) = borrowed.work() {
                    *work += more;
                    return *work;
                }
                thread::yield_now();
            }
        };
        let mut last = 0;
        for _ in 0..100 {
            last = add(5);
        }
        assert!((500..1000).contains(&last), "{last}");
        add(1000);
        owner.join().unwrap();
    }
}
