//! One thread writes, in the order in which it was asked, and brings many writes to disk at once:
//! each has a savepoint of its own, and all that wait share one commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::Link;
use crate::store::{StoreError, Ticket};

/// Writes that may wait; whoever asks for more waits too.
const WAITING_MAX: usize = 4_096;

/// Nobody is likely to ask for anything soon after nobody did for so long.
const RESTS_AFTER: Duration = Duration::from_millis(100);

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

/// The writing thread.
#[derive(Debug)]
pub(in crate::store) struct Writer<L> {
    jobs: SyncSender<Job<L>>,
    /// Whether the last commit came to nothing.
    has_failed: Arc<AtomicBool>,
}

impl<L: Link + 'static> Writer<L> {
    /// Starts it; it ends with the value.
    pub(in crate::store) fn start(mut desk: impl Desk<Link = L>) -> Result<Self, StoreError> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = thread::Builder::new().name("writer".to_owned());
        let has_failed = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&has_failed);
        let spawned = thread.spawn(move || write(&mut desk, &receiver, &told));
        spawned.map_err(|error| StoreError::Broken(error.to_string()))?;
        Ok(Self { jobs: sender, has_failed })
    }

    /// Whether the last commit came to nothing.
    pub(in crate::store) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
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

fn write<D: Desk>(desk: &mut D, jobs: &Receiver<Job<D::Link>>, has_failed: &AtomicBool) {
    while let Some(first) = next(desk, jobs) {
        let mut begun = desk.begin();
        let mut deliveries = vec![first(within(&mut begun))];
        while deliveries.len() < D::BATCH_MAX {
            let Ok(job) = jobs.try_recv() else { break };
            deliveries.push(job(within(&mut begun)));
        }
        let committed = begun
            .and_then(|link| desk.commit(link))
            .inspect_err(|error| tracing::error!(%error, "nothing can be written"));
        has_failed.store(committed.is_err(), Ordering::Relaxed);
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
