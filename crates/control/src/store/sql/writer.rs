//! One thread writes, in the order in which it was asked, and brings many writes to disk at once:
//! each has a savepoint of its own, and all that wait share one commit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Link;
use crate::store::{StoreError, Ticket};

/// Writes that may wait; whoever asks for more waits too.
const WAITING_MAX: usize = 4_096;

/// Nobody is likely to ask for anything soon after nobody did for so long.
const RESTS_AFTER: Duration = Duration::from_millis(100);

/// Writes have come to disk after this time, or the disk, or the database, hangs.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// Says to whoever waits how it went, once it is known whether it is kept.
type Deliver = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Writes, unless there is no transaction to write in.
type Job<L> = Box<dyn FnOnce(Result<&mut L, StoreError>) -> Deliver + Send>;

/// What the writing thread works at: a database's transactions.
pub(in crate::store) trait Desk: Send + 'static {
    /// Its connections.
    type Link: Link + 'static;

    /// Writes that share a commit.
    const BATCH_MAX: usize;

    /// A transaction of whoever may write.
    fn begin(&mut self) -> Result<Self::Link, StoreError>;

    /// Commits it, or undoes it.
    fn commit(&mut self, link: Self::Link) -> Result<(), StoreError>;

    /// Nobody has asked for anything for a while.
    fn rest(&mut self) {}
}

/// How the writing thread gets on.
#[derive(Debug, Default)]
struct Progress {
    /// Whether the last commit came to nothing.
    has_failed: AtomicBool,
    /// Since when it is at the writes that share the next one, if it is at any.
    begun: Mutex<Option<Instant>>,
}

impl Progress {
    fn set_begun(&self, begun: Option<Instant>) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = begun;
    }
}

/// The writing thread.
#[derive(Debug)]
pub(in crate::store) struct Writer<L> {
    jobs: SyncSender<Job<L>>,
    progress: Arc<Progress>,
}

impl<L: Link + 'static> Writer<L> {
    /// Starts it; it ends with the value.
    pub(in crate::store) fn start(mut desk: impl Desk<Link = L>) -> Result<Self, StoreError> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = thread::Builder::new().name("writer".to_owned());
        let progress = Arc::<Progress>::default();
        let told = Arc::clone(&progress);
        let spawned = thread.spawn(move || write(&mut desk, &receiver, &told));
        spawned.map_err(|error| StoreError::Broken(error.to_string()))?;
        Ok(Self { jobs: sender, progress })
    }

    /// Whether the last commit came to nothing.
    pub(in crate::store) fn has_failed(&self) -> bool {
        self.progress.has_failed.load(Ordering::Relaxed)
    }

    /// Refuses, in words, once writes have been under way for too long then: whoever asks for more
    /// would wait behind them.
    pub(in crate::store) fn ensure_moving(&self, now: Instant) -> Result<(), StoreError> {
        let begun = *self.progress.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = begun.map(|begun| now.saturating_duration_since(begun));
        match waited.filter(|waited| *waited > HANGS_AFTER) {
            Some(waited) => {
                let words = format!("what is written has not come to disk for {waited:.0?}");
                Err(StoreError::Away(words))
            }
            None => Ok(()),
        }
    }

    /// Begins a write. It is done wholly or not at all.
    pub(in crate::store) fn begin<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut L) -> Result<T, StoreError> + Send + 'static,
    ) -> Ticket<T> {
        let (outcome, ticket) = Ticket::new();
        let job = move |link: Result<&mut L, StoreError>| -> Deliver {
            let written = link.and_then(|link| in_savepoint(link, write));
            Box::new(move |committed| {
                // Whoever asked may have gone.
                let _ = outcome.send(committed.and(written));
            })
        };
        // A closed channel drops the job, and the ticket says so.
        let _ = self.jobs.send(Box::new(job));
        ticket
    }
}

fn in_savepoint<L: Link, T>(
    link: &mut L,
    write: impl FnOnce(&mut L) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    link.batch("SAVEPOINT one")?;
    let written = write(link);
    link.batch(if written.is_ok() {
        "RELEASE SAVEPOINT one"
    } else {
        "ROLLBACK TO SAVEPOINT one; RELEASE SAVEPOINT one"
    })?;
    written
}

/// The next write. Before a long wait for it the desk may do what would keep one waiting.
fn next<D: Desk>(desk: &mut D, jobs: &Receiver<Job<D::Link>>) -> Option<Job<D::Link>> {
    match jobs.recv_timeout(RESTS_AFTER) {
        Err(RecvTimeoutError::Timeout) => {
            desk.rest();
            jobs.recv().ok()
        }
        soon => soon.ok(),
    }
}

fn write<D: Desk>(desk: &mut D, jobs: &Receiver<Job<D::Link>>, progress: &Progress) {
    while let Some(first) = next(desk, jobs) {
        progress.set_begun(Some(Instant::now()));
        let mut begun = desk.begin();
        let mut deliveries = vec![first(within(&mut begun))];
        while deliveries.len() < D::BATCH_MAX {
            let Ok(job) = jobs.try_recv() else { break };
            deliveries.push(job(within(&mut begun)));
        }
        let committed = begun
            .and_then(|link| desk.commit(link))
            .inspect_err(|error| tracing::error!(%error, "nothing can be written"));
        progress.has_failed.store(committed.is_err(), Ordering::Relaxed);
        progress.set_begun(None);
        for deliver in deliveries {
            deliver(committed.clone());
        }
    }
}

/// What was written after the transaction broke would be kept although everybody is told that
/// nothing was.
fn within<L: Link>(begun: &mut Result<L, StoreError>) -> Result<&mut L, StoreError> {
    match begun {
        Ok(link) => match link.broken() {
            Some(why) => Err(why),
            None => Ok(link),
        },
        Err(error) => Err(error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::{Parameters, Row};

    /// A disk that is quick.
    struct Disk;

    struct Nothing;

    impl Link for Nothing {
        fn all(
            &mut self,
            _text: &'static str,
            _parameters: Parameters<'_>,
        ) -> Result<Vec<Row>, StoreError> {
            Ok(Vec::new())
        }

        fn change(
            &mut self,
            _text: &'static str,
            _parameters: Parameters<'_>,
        ) -> Result<u64, StoreError> {
            Ok(0)
        }

        fn batch(&mut self, _text: &str) -> Result<(), StoreError> {
            Ok(())
        }

        fn broken(&self) -> Option<StoreError> {
            None
        }
    }

    impl Desk for Disk {
        type Link = Nothing;

        const BATCH_MAX: usize = 1;

        fn begin(&mut self) -> Result<Nothing, StoreError> {
            Ok(Nothing)
        }

        fn commit(&mut self, _link: Nothing) -> Result<(), StoreError> {
            Ok(())
        }
    }

    #[test]
    fn writes_that_hang_are_told_and_none_that_are_done() {
        let writer = Writer::start(Disk).unwrap();
        let later = || Instant::now() + 2 * HANGS_AFTER;
        writer.ensure_moving(later()).unwrap();
        let ((begins, has_begun), (goes_on, waits)) = (sync_channel(1), sync_channel(1));
        let ticket = writer.begin(move |_| {
            begins.send(()).unwrap();
            waits.recv().unwrap();
            Ok(())
        });
        has_begun.recv().unwrap();
        writer.ensure_moving(Instant::now()).unwrap();
        let hangs = writer.ensure_moving(later()).unwrap_err();
        assert!(matches!(&hangs, StoreError::Away(_)), "{hangs}");
        assert!(hangs.to_string().contains("has not come to disk for"), "{hangs}");
        goes_on.send(()).unwrap();
        ticket.wait().unwrap();
        writer.ensure_moving(later()).unwrap();
    }
}
