//! Where a guest's sleepers wait: its kernel has no futex on a device's memory.

use std::time::Duration;

use crate::cells::Cell;
use crate::sync::{AtomicU32, Ordering};

/// A word of the guest's own: a count of the marks that came for a session, which its sleepers wait
/// on.
#[derive(Debug, Clone)]
pub struct WaitPage {
    count: Cell<AtomicU32>,
    #[cfg(loom)]
    model: std::sync::Arc<model::Futex>,
}

#[cfg(not(loom))]
mod mapped {
    use std::sync::Arc;

    use super::WaitPage;
    use crate::map::{Access, MapError, MemoryFile, PAGE, SharedMemory};

    impl WaitPage {
        /// A new one, and the file that the session's program maps.
        ///
        /// # Errors
        /// [`MapError`] when the system refuses.
        pub fn create() -> Result<(Self, MemoryFile), MapError> {
            let file = MemoryFile::create("weft-wait-page", PAGE)?;
            let wait_page = Self::open(&file.map(Access::ReadWrite)?)?;
            Ok((wait_page, file))
        }

        /// A mapped one.
        ///
        /// # Errors
        /// [`MapError`] when the memory is not writable.
        pub fn open(memory: &Arc<SharedMemory>) -> Result<Self, MapError> {
            Ok(Self { count: memory.cell(0)? })
        }
    }
}

impl WaitPage {
    #[cfg(loom)]
    pub(crate) fn modelled() -> Self {
        let model = std::sync::Arc::new(model::Futex::default());
        Self { count: Cell::<AtomicU32>::zeroed(), model }
    }

    /// A mark came: wakes every sleeper of the session.
    pub fn wake_all(&self) {
        // SYNC: counted before the wake; a sleeper that looked at the count earlier sees another
        // one when it goes to sleep.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.futex_wake();
    }

    /// Sleeps until a mark comes, at most for `limit`, unless `is_set` says that the flag was taken
    /// back; false when the time ran out.
    pub(crate) fn wait_while(&self, is_set: impl Fn() -> bool, limit: Duration) -> bool {
        // SYNC: looked at before the flag. Whoever takes the flag back sends a mark afterwards, and
        // that changes the count.
        let count = self.count.load(Ordering::SeqCst);
        if !is_set() {
            return true;
        }
        self.futex_wait(count, limit)
    }

    #[cfg(not(loom))]
    fn futex_wake(&self) {
        use rustix::thread::futex;

        let woken = futex::wake(&self.count, futex::Flags::empty(), i32::MAX.cast_unsigned());
        debug_assert!(woken.is_ok(), "futex wake of a mapped word failed");
    }

    #[cfg(not(loom))]
    fn futex_wait(&self, count: u32, limit: Duration) -> bool {
        use rustix::thread::{Timespec, futex};

        let timeout = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        futex::wait(&self.count, futex::Flags::empty(), count, Some(&timeout))
            != Err(rustix::io::Errno::TIMEDOUT)
    }

    #[cfg(loom)]
    fn futex_wake(&self) {
        self.model.wake_all();
    }

    #[cfg(loom)]
    fn futex_wait(&self, count: u32, _limit: Duration) -> bool {
        self.model.wait_while(&self.count, count);
        true
    }
}

#[cfg(loom)]
mod model {
    use crate::sync::{AtomicU32, Ordering};

    /// The kernel's side of a futex: compares and sleeps in one step, as seen by wakers.
    #[derive(Debug, Default)]
    pub(super) struct Futex {
        queue: loom::sync::Mutex<()>,
        sleepers: loom::sync::Condvar,
    }

    impl Futex {
        pub(super) fn wait_while(&self, word: &AtomicU32, value: u32) {
            let queue = self.queue.lock().unwrap();
            if word.load(Ordering::SeqCst) == value {
                drop(self.sleepers.wait(queue).unwrap());
            }
        }

        pub(super) fn wake_all(&self) {
            let _queue = self.queue.lock().unwrap();
            self.sleepers.notify_all();
        }
    }
}
