//! One thread writes, in the order in which it was asked. Each write has a savepoint of its own,
//! and all that wait share one commit, as in SQLite.
//!
//! Every transaction begins by locking the row of the lease and comparing its generation, so a
//! replica that another one has taken over from writes nothing, however late it wakes up.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::access::Access;
use super::lease::Lease;
use super::link::{Link, at};
use crate::store::{StoreError, Ticket};

/// Writes that may wait; whoever asks for more waits too.
const WAITING_MAX: usize = 4_096;

/// Writes that share a commit: few enough that the lease is renewed between two.
const BATCH_MAX: usize = 64;

/// Says to whoever waits how it went, once it is known whether it is kept.
type Deliver = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Writes, unless there is no transaction to write in.
type Job = Box<dyn FnOnce(Result<&mut Link, StoreError>) -> Deliver + Send>;

/// The writing thread.
#[derive(Debug)]
pub(super) struct Writer(SyncSender<Job>);

impl Writer {
    /// Starts it; it ends with the value.
    pub(super) fn start(access: Access, lease: Arc<Lease>) -> Result<Self, StoreError> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = thread::Builder::new().name("writer".to_owned());
        let mut desk = Desk { access, lease, link: None };
        let spawned = thread.spawn(move || desk.write(&receiver));
        spawned.map_err(|error| StoreError::Broken(error.to_string()))?;
        Ok(Self(sender))
    }

    /// Begins a write. It is done wholly or not at all.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut Link) -> Result<T, StoreError> + Send + 'static,
    ) -> Ticket<T> {
        let (outcome, ticket) = Ticket::new();
        let job = move |link: Result<&mut Link, StoreError>| -> Deliver {
            let written = link.and_then(|link| in_savepoint(link, write));
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
    link: &mut Link,
    write: impl FnOnce(&mut Link) -> Result<T, StoreError>,
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

/// What the thread has.
#[derive(Debug)]
struct Desk {
    access: Access,
    lease: Arc<Lease>,
    link: Option<Link>,
}

impl Desk {
    fn write(&mut self, jobs: &Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut begun = self.begin();
            let mut deliveries = vec![first(within(&mut begun))];
            while deliveries.len() < BATCH_MAX {
                let Ok(job) = jobs.try_recv() else { break };
                deliveries.push(job(within(&mut begun)));
            }
            let committed = begun.and_then(|mut link| {
                // A failed transaction is rolled back by a COMMIT that says nothing of it.
                ensure_open(&mut link)?;
                link.batch("COMMIT")?;
                self.link = Some(link);
                Ok(())
            });
            if let Err(error) = &committed {
                tracing::error!(%error, "nothing can be written");
            }
            for deliver in deliveries {
                deliver(committed.clone());
            }
        }
    }

    /// A transaction of whoever may write. A connection on which anything failed is dropped, and
    /// the database rolls back what was done on it.
    fn begin(&mut self) -> Result<Link, StoreError> {
        let kept = self.link.take().filter(|link| !link.is_closed());
        let mut link = match kept {
            Some(link) => link,
            None => Link::open(&self.access, self.lease.patience())?,
        };
        link.batch("BEGIN")?;
        let row = link.one("SELECT generation, address FROM lease FOR UPDATE", &[])?;
        let row = row.ok_or_else(|| StoreError::Broken("it has no lease".to_owned()))?;
        let compared = self.lease.compare(at(&row, 0)?, row.try_get(1)?);
        if let Err(refused) = compared {
            link.batch("ROLLBACK")?;
            self.link = Some(link);
            return Err(refused);
        }
        Ok(link)
    }
}

fn within(begun: &mut Result<Link, StoreError>) -> Result<&mut Link, StoreError> {
    match begun {
        Ok(link) if link.is_closed() => {
            Err(StoreError::Broken("the database closed the connection".to_owned()))
        }
        Ok(link) => Ok(link),
        Err(error) => Err(error.clone()),
    }
}

/// Whether the transaction can still be committed.
fn ensure_open(link: &mut Link) -> Result<(), StoreError> {
    link.batch("SAVEPOINT last")
}
