//! The store in SQLite.

mod link;
mod schema;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use self::link::Link;
use super::StoreError;
use super::sql::{Base, Desk, Link as _, Writer};

/// Connections that are kept for readers.
const READERS_MAX: usize = 16;

/// How long a reader waits for a writer, which happens while the log is written back.
const PATIENCE: Duration = Duration::from_secs(10);

/// The log is brought into the file after so many commits, when nobody waits.
const RESTING_COMMITS: u32 = 64;

/// And while somebody waits when it has so many pages, 8 MiB.
const CHECKPOINT_PAGES: u32 = 2_048;

/// A store in one file.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    plane: String,
    writer: Writer<Link>,
    readers: Mutex<Vec<Link>>,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{
            CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly, SystemIoFailure,
        };
        let is_away = |code| {
            let passing =
                [CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly, SystemIoFailure];
            passing.contains(&code)
        };
        let is_away = error.sqlite_error_code().is_some_and(is_away);
        let words = error.to_string();
        if is_away { Self::Away(words) } else { Self::Broken(words) }
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
        // Savepoints of large writes stay off the disk: they are of no use after a crash.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        schema::migrate(&mut connection)?;
        let plane = connection.query_row("SELECT id FROM plane", [], |row| row.get(0))?;
        let writer = Writer::start(OneFile { link: Some(Link::new(connection)), commits: 0 })?;
        Ok(Self { path: path.to_owned(), plane, writer, readers: Mutex::default() })
    }

    fn reader(&self) -> Result<Link, StoreError> {
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(link) = kept {
            return Ok(link);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        settle(&connection)?;
        Ok(Link::new(connection))
    }
}

fn settle(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(())
}

impl Base for Sqlite {
    type Link = Link;

    fn writer(&self) -> &Writer<Link> {
        &self.writer
    }

    fn read<T>(&self, look: impl Fn(&mut Link) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.snapshot(look)
    }

    fn snapshot<T>(
        &self,
        look: impl Fn(&mut Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut link = self.reader()?;
        link.batch("BEGIN")?;
        let found = look(&mut link);
        link.batch("COMMIT")?;
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() < READERS_MAX {
            readers.push(link);
        }
        found
    }

    fn name(&self) -> &str {
        &self.plane
    }
}

/// The connection that writes, and the commits since its log was last brought into the file.
struct OneFile {
    link: Option<Link>,
    commits: u32,
}

impl Desk for OneFile {
    type Link = Link;

    const BATCH_MAX: usize = 256;

    fn begin(&mut self) -> Result<Link, StoreError> {
        let lost = || StoreError::Broken("the connection is lost".to_owned());
        let mut link = self.link.take().ok_or_else(lost)?;
        match link.batch("BEGIN IMMEDIATE") {
            Ok(()) => Ok(link),
            Err(error) => {
                self.link = Some(link);
                Err(error)
            }
        }
    }

    fn commit(&mut self, mut link: Link) -> Result<(), StoreError> {
        let committed = link.batch("COMMIT");
        if committed.is_err() {
            // There may be nothing to roll back.
            let _ = link.batch("ROLLBACK");
        }
        self.link = Some(link);
        self.commits = self.commits.saturating_add(1);
        committed
    }

    fn rest(&mut self) {
        if self.commits < RESTING_COMMITS {
            return;
        }
        if let Some(link) = &mut self.link {
            // What is not brought into the file now is later; a reader may be in the way.
            let _ = link.batch("PRAGMA wal_checkpoint(PASSIVE)");
            self.commits = 0;
        }
    }
}
