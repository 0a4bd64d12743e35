//! Reservations that the store has not answered yet, and who waits until it has.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Those that were begun and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    numbers: Mutex<Numbers>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Numbers {
    begun: u64,
    open: BTreeSet<u64>,
}

/// One that has begun, until it is dropped.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    of: &'a Pending,
    number: u64,
}

impl Pending {
    /// Another one begins.
    pub(crate) fn begin(&self) -> Begun<'_> {
        let mut numbers = self.lock();
        numbers.begun += 1;
        let number = numbers.begun;
        numbers.open.insert(number);
        Begun { of: self, number }
    }

    /// The last one that has begun and not ended, if there is any.
    pub(crate) fn last(&self) -> Option<u64> {
        self.lock().open.last().copied()
    }

    /// Waits until all have ended up to this one.
    pub(crate) fn wait_for(&self, last: u64) {
        let is_open = |numbers: &mut Numbers| numbers.open.first().is_some_and(|it| *it <= last);
        let waited = self.ended.wait_while(self.lock(), is_open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.of.lock().open.remove(&self.number);
        self.of.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_waits_waits_for_what_began_before_alone() {
        let pending = Pending::default();
        assert_eq!(pending.last(), None);
        pending.wait_for(7);
        let (first, second) = (pending.begin(), pending.begin());
        let last = pending.last().unwrap();
        let (say, said) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                pending.wait_for(last);
                say.send(()).unwrap();
            });
            drop(second);
            let later = pending.begin();
            // The control: the first one is still open.
            said.recv_timeout(Duration::from_millis(50)).unwrap_err();
            drop(first);
            said.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(pending.last(), Some(3));
            drop(later);
        });
        assert_eq!(pending.last(), None);
    }
}
