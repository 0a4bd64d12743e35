//! Connections of readers: so many at once, and kept between reads.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::access::Access;
use super::link::Link;
use crate::store::StoreError;
use crate::store::sql::Link as _;

/// Connections of readers at once. Databases have room for a hundred, if nobody says otherwise.
const READERS_MAX: usize = 16;

/// A reader says something within this time, or the database ends its transaction.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(10);

/// Connections.
#[derive(Debug)]
pub(super) struct Pool {
    access: Access,
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Link>,
    used: usize,
}

impl Pool {
    pub(super) fn new(access: Access) -> Self {
        Self { access, state: Mutex::default(), given_back: Condvar::new() }
    }

    /// Reads, and once more if the connection had been closed since it was used last.
    pub(super) fn read<T>(
        &self,
        look: impl Fn(&mut Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let kept = self.take();
        let found = self.read_on(kept, &look);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used -= 1;
        let (found, link) = found;
        // The others may have been closed as well.
        match link {
            Some(link) => state.idle.push(link),
            None => state.idle.clear(),
        }
        drop(state);
        self.given_back.notify_one();
        found
    }

    fn take(&self) -> Option<Link> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.used >= READERS_MAX {
            state = self.given_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.used += 1;
        state.idle.pop()
    }

    fn read_on<T>(
        &self,
        kept: Option<Link>,
        look: &impl Fn(&mut Link) -> Result<T, StoreError>,
    ) -> (Result<T, StoreError>, Option<Link>) {
        if let Some(mut link) = kept {
            let found = look(&mut link);
            if link.broken().is_none() {
                return (found, Some(link));
            }
        }
        match Link::open(&self.access, TRANSACTION_LIMIT) {
            Err(error) => (Err(error), None),
            Ok(mut link) => {
                let found = look(&mut link);
                let is_open = link.broken().is_none();
                (found, is_open.then_some(link))
            }
        }
    }

    /// Reads more than once, as it was at one instant.
    pub(super) fn snapshot<T>(
        &self,
        look: impl Fn(&mut Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.read(|link| {
            link.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
            let found = look(link);
            link.batch("ROLLBACK")?;
            found
        })
    }
}
