//! Connections to the database.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use bytes::BytesMut;
use postgres::fallible_iterator::FallibleIterator as _;
use postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use postgres::{Client, Statement};

use super::access::Access;
use crate::store::StoreError;
use crate::store::sql::{self, Cell, Parameters, Row, Value};

/// A statement that runs for longer than this is given up.
const STATEMENT_MS: u32 = 30_000;

impl From<postgres::Error> for StoreError {
    fn from(error: postgres::Error) -> Self {
        // What the database said is behind what the library says.
        let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        if is_away(&error) { Self::Away(words) } else { Self::Broken(words) }
    }
}

/// Whether nothing is wrong but that the database does not answer, or takes nobody now.
fn is_away(error: &postgres::Error) -> bool {
    match error.code() {
        // Connections (08), resources such as their number or the disk (53), and what its owner
        // does (57P): it is stopped, starting or was killed.
        Some(code) => ["08", "53", "57P"].iter().any(|class| code.code().starts_with(class)),
        None => {
            let source = error.source();
            let is_io = source.is_some_and(<dyn Error>::is::<std::io::Error>);
            // The library has no other sign of a connection that was not made in time.
            error.is_closed() || is_io || error.to_string().starts_with("timeout")
        }
    }
}

/// A connection, with the statements that were prepared on it.
pub(in crate::store) struct Link {
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

    /// From here on it is told what others say on a channel.
    pub(super) fn listen(&mut self, channel: &'static str) -> Result<(), StoreError> {
        Ok(self.client.batch_execute(&format!("LISTEN {channel}"))?)
    }

    /// Waits until somebody says something there, or for so long.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<(), StoreError> {
        self.client.notifications().timeout_iter(limit).next()?;
        Ok(())
    }

    fn statement(&mut self, text: &'static str) -> Result<Statement, StoreError> {
        if let Some(known) = self.statements.get(text) {
            return Ok(known.clone());
        }
        let statement = self.client.prepare(text)?;
        self.statements.insert(text, statement.clone());
        Ok(statement)
    }
}

/// Parameters as the client takes them.
fn lent<'a>(parameters: Parameters<'a>) -> Vec<&'a (dyn ToSql + Sync)> {
    parameters.iter().map(|value| value as _).collect()
}

impl sql::Link for Link {
    fn all(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.statement(text)?;
        let rows = self.client.query(&statement, &lent(parameters))?;
        rows.iter().map(row).collect()
    }

    fn change(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<u64, StoreError> {
        let statement = self.statement(text)?;
        Ok(self.client.execute(&statement, &lent(parameters))?)
    }

    fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        Ok(self.client.batch_execute(text)?)
    }

    fn broken(&self) -> Option<StoreError> {
        let why = || StoreError::Away("the database closed the connection".to_owned());
        self.client.is_closed().then(why)
    }
}

impl ToSql for Value<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(number) => number.to_sql_checked(kind, out),
            Self::Flag(flag) => flag.to_sql_checked(kind, out),
            // The database has no text with the character zero, which becomes the sign for what
            // cannot be shown.
            Self::Text(text) if text.contains('\0') => {
                text.replace('\0', "\u{fffd}").to_sql_checked(kind, out)
            }
            Self::Text(text) => text.to_sql_checked(kind, out),
            Self::Bytes(bytes) => bytes.to_sql_checked(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        // Each value looks for itself.
        true
    }

    to_sql_checked!();
}

fn row(row: &postgres::Row) -> Result<Row, StoreError> {
    let cells = row.columns().iter().enumerate().map(|(at, column)| cell(row, at, column.type_()));
    Ok(Row(cells.collect::<Result<_, StoreError>>()?))
}

fn cell(row: &postgres::Row, at: usize, kind: &Type) -> Result<Cell, StoreError> {
    Ok(match *kind {
        Type::INT8 => row.try_get::<_, Option<i64>>(at)?.map_or(Cell::Null, Cell::Int),
        Type::INT4 => {
            row.try_get::<_, Option<i32>>(at)?.map_or(Cell::Null, |one| Cell::Int(one.into()))
        }
        Type::BOOL => row.try_get::<_, Option<bool>>(at)?.map_or(Cell::Null, Cell::Flag),
        Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at)?.map_or(Cell::Null, Cell::Bytes),
        _ => row.try_get::<_, Option<String>>(at)?.map_or(Cell::Null, Cell::Text),
    })
}
