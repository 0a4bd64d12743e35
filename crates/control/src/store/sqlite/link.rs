//! Connections to the file.

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection};

use crate::store::StoreError;
use crate::store::sql::{self, Cell, Parameters, Row, Value};

/// What parameters are called in statements.
const NAMES: [&str; 12] =
    ["$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8", "$9", "$10", "$11", "$12"];

/// A connection, with the statements that were prepared on it.
#[derive(Debug)]
pub(in crate::store) struct Link(Connection);

impl Link {
    pub(super) fn new(connection: Connection) -> Self {
        Self(connection)
    }

    fn prepared(
        &self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<CachedStatement<'_>, StoreError> {
        let mut statement = self.0.prepare_cached(text)?;
        if parameters.len() != statement.parameter_count() || parameters.len() > NAMES.len() {
            let words = format!("{} parameters are not those of: {text}", parameters.len());
            return Err(StoreError::Broken(words));
        }
        for (name, value) in NAMES.iter().zip(parameters) {
            // SQLite counts them in the order in which they stand in the text.
            let at = statement.parameter_index(name)?;
            let missing = || StoreError::Broken(format!("there is no {name} in: {text}"));
            statement.raw_bind_parameter(at.ok_or_else(missing)?, value)?;
        }
        Ok(statement)
    }
}

impl sql::Link for Link {
    fn all(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut statement = self.prepared(text, parameters)?;
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let cells = (0..columns).map(|column| cell(row.get_ref(column)?));
            found.push(Row(cells.collect::<Result<_, StoreError>>()?));
        }
        Ok(found)
    }

    fn change(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<u64, StoreError> {
        Ok(self.prepared(text, parameters)?.raw_execute()? as u64)
    }

    fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        Ok(self.0.execute_batch(text)?)
    }

    fn broken(&self) -> Option<StoreError> {
        // SQLite ends a transaction by itself when the disk is full, say.
        let why = || StoreError::Away("the batch of writes was rolled back".to_owned());
        self.0.is_autocommit().then(why)
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Flag(flag) => ValueRef::Integer((*flag).into()),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn cell(value: ValueRef<'_>) -> Result<Cell, StoreError> {
    let strange = || StoreError::Broken("a row is not understood".to_owned());
    Ok(match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Int(number),
        ValueRef::Text(text) => Cell::Text(str::from_utf8(text).map_err(|_| strange())?.to_owned()),
        ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
        ValueRef::Real(_) => return Err(strange()),
    })
}
