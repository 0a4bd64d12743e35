//! The store in SQLite.

mod instances;
mod registry;
mod schema;
mod writer;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use self::writer::Writer;
use super::{Audit, Counts, StoreError};

/// Connections that are kept for readers.
const READERS_MAX: usize = 16;

/// How long a reader waits for a writer, which happens while the log is written back.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store in one file.
#[derive(Debug)]
pub struct Sqlite {
    path: std::path::PathBuf,
    plane: String,
    writer: Writer,
    readers: Mutex<Vec<Connection>>,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl Sqlite {
    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// If it cannot be read or written, or is a newer version's.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut connection = Connection::open(path)?;
        settle(&connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A commit that was answered outlives also the loss of power.
        connection.pragma_update(None, "synchronous", "FULL")?;
        schema::migrate(&mut connection)?;
        let plane = connection.query_row("SELECT id FROM plane", [], |row| row.get(0))?;
        let writer = Writer::start(connection)?;
        Ok(Self { path: path.to_owned(), plane, writer, readers: Mutex::new(Vec::new()) })
    }

    /// Reads in one snapshot.
    fn read<T>(
        &self,
        look: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let connection = Connection::open_with_flags(&self.path, flags)?;
                settle(&connection)?;
                connection
            }
        };
        connection.execute_batch("BEGIN")?;
        let found = look(&connection);
        connection.execute_batch("COMMIT")?;
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() < READERS_MAX {
            readers.push(connection);
        }
        found
    }
}

fn settle(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(())
}

fn add_audit(connection: &Connection, audit: &Audit) -> Result<(), StoreError> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO audit (at_ms, actor, project, action, target, status)
         VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    let Audit { at_ms, actor, project, action, target, status } = audit;
    insert.execute((at_ms, actor, project, action, target, status))?;
    Ok(())
}

fn counts(connection: &Connection) -> Result<Counts, StoreError> {
    let one = |query: &str| -> Result<u64, StoreError> {
        Ok(connection.prepare_cached(query)?.query_row([], |row| row.get(0))?)
    };
    Ok(Counts {
        instances: one("SELECT count(*) FROM instances WHERE hidden = 0")?,
        unsettled: one("SELECT count(*) FROM instances
                        WHERE ended_ms IS NULL AND (wanted = 0 OR ready_ms IS NULL)")?,
        cgpus: one("SELECT count(*) FROM cgpus WHERE to_ms IS NULL")?,
        gpus: one("SELECT count(*) FROM gpus")?,
        memory_mib: one("SELECT coalesce(sum(memory), 0) FROM gpus")?,
        held_mib: one("SELECT coalesce(sum(held), 0) FROM gpus")?,
    })
}
