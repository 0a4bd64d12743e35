//! One thread writes, in the order in which it was asked, and brings many writes to disk at once:
//! each has a savepoint of its own, and all that wait share one commit.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rusqlite::Connection;

use crate::store::{StoreError, Ticket};

/// Writes that may wait; whoever asks for more waits too.
const WAITING_MAX: usize = 4_096;

/// Writes that share a commit.
const BATCH_MAX: usize = 256;

/// Says to whoever waits how it went, once it is known whether it is on disk.
type Deliver = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Writes, unless there is no transaction to write in.
type Job = Box<dyn FnOnce(Result<&Connection, StoreError>) -> Deliver + Send>;

/// The writing thread.
#[derive(Debug)]
pub(super) struct Writer(SyncSender<Job>);

impl Writer {
    /// Starts it; it ends with the value.
    pub(super) fn start(connection: Connection) -> Result<Self, StoreError> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = thread::Builder::new().name("writer".to_owned());
        let spawned = thread.spawn(move || write(&connection, &receiver));
        spawned.map_err(|error| StoreError::Broken(error.to_string()))?;
        Ok(Self(sender))
    }

    /// Begins a write. It is done wholly or not at all.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Ticket<T> {
        let (outcome, ticket) = Ticket::new();
        let job = move |connection: Result<&Connection, StoreError>| -> Deliver {
            let written = connection.and_then(|connection| in_savepoint(connection, write));
            Box::new(move |committed| {
                // Whoever asked may have gone.
                let _ = outcome.send(committed.and(written));
            })
        };
        // A closed channel drops the job, and the ticket says so.
        let _ = self.0.send(Box::new(job));
        ticket
    }
}

fn in_savepoint<T>(
    connection: &Connection,
    write: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.execute_batch("SAVEPOINT one")?;
    let written = write(connection);
    let end = if written.is_ok() { "RELEASE one" } else { "ROLLBACK TO one; RELEASE one" };
    connection.execute_batch(end)?;
    written
}

fn write(connection: &Connection, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(StoreError::from);
        // SQLite ends a transaction by itself when the disk is full, say. What came after would be
        // kept although everybody is told that nothing was.
        let within = || match &begun {
            Ok(()) if connection.is_autocommit() => {
                Err(StoreError::Broken("the batch of writes was rolled back".to_owned()))
            }
            Ok(()) => Ok(connection),
            Err(error) => Err(error.clone()),
        };
        let mut deliveries = vec![first(within())];
        while deliveries.len() < BATCH_MAX {
            let Ok(job) = jobs.try_recv() else { break };
            deliveries.push(job(within()));
        }
        let committed = begun
            .and_then(|()| connection.execute_batch("COMMIT").map_err(StoreError::from))
            .inspect_err(|error| tracing::error!(%error, "nothing can be written"));
        if committed.is_err() {
            // There may be nothing to roll back.
            let _ = connection.execute_batch("ROLLBACK");
        }
        for deliver in deliveries {
            deliver(committed.clone());
        }
    }
}
