//! Connections to the database, and what rows are made of.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as _;
use std::time::Duration;

use postgres::types::ToSql;
use postgres::{Client, Row, Statement};

use super::access::Access;
use crate::store::StoreError;

/// Parameters of a statement.
pub(super) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement that runs for longer than this is given up.
const STATEMENT_MS: u32 = 30_000;

impl From<postgres::Error> for StoreError {
    fn from(error: postgres::Error) -> Self {
        // What the database said is behind what the library says.
        match error.source() {
            Some(source) => Self::Broken(source.to_string()),
            None => Self::Broken(error.to_string()),
        }
    }
}

/// A connection, with the statements that were prepared on it.
pub(super) struct Link {
    client: Client,
    statements: HashMap<&'static str, Statement>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Link {
    /// A connection. The database ends a transaction on it in which nothing is said for
    /// `transaction`.
    pub(super) fn open(access: &Access, transaction: Duration) -> Result<Self, StoreError> {
        let mut client = access.connect()?;
        // What was answered is on disk, whatever the database's owner thinks of others.
        client.batch_execute(&format!(
            "SET client_min_messages = warning;
             SET statement_timeout = {STATEMENT_MS};
             SET idle_in_transaction_session_timeout = {};
             SELECT set_config('synchronous_commit', 'on', false)
             WHERE current_setting('synchronous_commit') = 'off'",
            transaction.as_millis()
        ))?;
        Ok(Self { client, statements: HashMap::new() })
    }

    /// Whether the database has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    fn statement(&mut self, text: &'static str) -> Result<Statement, StoreError> {
        if let Some(known) = self.statements.get(text) {
            return Ok(known.clone());
        }
        let statement = self.client.prepare(text)?;
        self.statements.insert(text, statement.clone());
        Ok(statement)
    }

    /// Rows.
    pub(super) fn all(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.statement(text)?;
        Ok(self.client.query(&statement, parameters)?)
    }

    /// A row, if there is one.
    pub(super) fn one(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StoreError> {
        let statement = self.statement(text)?;
        Ok(self.client.query_opt(&statement, parameters)?)
    }

    /// Changes rows; how many.
    pub(super) fn change(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<u64, StoreError> {
        let statement = self.statement(text)?;
        Ok(self.client.execute(&statement, parameters)?)
    }

    /// Statements without parameters.
    pub(super) fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        Ok(self.client.batch_execute(text)?)
    }
}

/// A number as the database has them.
pub(super) fn int<T>(value: T) -> Result<i64, StoreError>
where
    i64: TryFrom<T>,
{
    let large = |_| StoreError::Broken("a number is larger than the database's are".to_owned());
    i64::try_from(value).map_err(large)
}

/// A number that may be missing.
pub(super) fn int_or_none<T: Copy>(value: Option<T>) -> Result<Option<i64>, StoreError>
where
    i64: TryFrom<T>,
{
    value.map(int).transpose()
}

/// A number in a row.
pub(super) fn at<T: TryFrom<i64>>(row: &Row, column: usize) -> Result<T, StoreError> {
    let number: i64 = row.try_get(column)?;
    T::try_from(number).map_err(|_| strange(number))
}

/// A number in a row that may be missing.
pub(super) fn at_or_none<T: TryFrom<i64>>(
    row: &Row,
    column: usize,
) -> Result<Option<T>, StoreError> {
    let number: Option<i64> = row.try_get(column)?;
    number.map(|number| T::try_from(number).map_err(|_| strange(number))).transpose()
}

fn strange(number: i64) -> StoreError {
    StoreError::Broken(format!("a row is not understood: it has the number {number}"))
}

/// Text that somebody else wrote. The database has none with the character zero, which becomes the
/// sign for what cannot be shown.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Text that may be missing.
pub(super) fn text_or_none(given: Option<&str>) -> Option<Cow<'_, str>> {
    given.map(text)
}
