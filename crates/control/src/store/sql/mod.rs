//! What is kept, in SQL: every statement stands here once, for each database that it is kept in.
//!
//! Statements are of what SQLite and PostgreSQL both understand. Parameters are `$1`, `$2`, …, each
//! of which is in the statement; where nothing else says of what type one is, it is `CAST`. A flag
//! is a boolean in one and a number in the other: statements say `NOT hidden` and never compare it
//! with a number.

mod endpoints;
mod instances;
#[cfg(test)]
mod plans;
mod registry;
mod store;
mod writer;

use std::borrow::Cow;

use super::{Leading, StoreError};

pub(super) use writer::{Desk, Writer};

/// A parameter of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// Nothing.
    Null,
    /// A number.
    Int(i64),
    /// Yes or no.
    Flag(bool),
    /// Text.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(&'a [u8]),
}

/// Parameters of a statement, the first one being `$1`.
pub(super) type Parameters<'a> = &'a [Value<'a>];

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text.as_str().into())
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A number as databases have them.
pub(super) fn int<T>(number: T) -> Result<i64, StoreError>
where
    i64: TryFrom<T>,
{
    let large = |_| StoreError::Broken("a number is larger than the database's are".to_owned());
    i64::try_from(number).map_err(large)
}

/// One that may be missing.
fn int_or_none(number: Option<u64>) -> Result<Option<i64>, StoreError> {
    number.map(int).transpose()
}

/// A column of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    /// Nothing.
    Null,
    /// A number, or a flag where the database has none.
    Int(i64),
    /// Yes or no.
    Flag(bool),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row(pub(super) Vec<Cell>);

impl Row {
    fn strange(&self, column: usize) -> StoreError {
        let found = self.0.get(column);
        StoreError::Broken(format!("a row is not understood: column {column} has {found:?}"))
    }

    /// Text.
    pub(super) fn text(&self, column: usize) -> Result<String, StoreError> {
        self.text_or_none(column)?.ok_or_else(|| self.strange(column))
    }

    /// Text that may be missing.
    pub(super) fn text_or_none(&self, column: usize) -> Result<Option<String>, StoreError> {
        match self.0.get(column) {
            Some(Cell::Text(text)) => Ok(Some(text.clone())),
            Some(Cell::Null) => Ok(None),
            _ => Err(self.strange(column)),
        }
    }

    /// A number.
    pub(super) fn int<T: TryFrom<i64>>(&self, column: usize) -> Result<T, StoreError> {
        self.int_or_none(column)?.ok_or_else(|| self.strange(column))
    }

    /// A number that may be missing.
    pub(super) fn int_or_none<T: TryFrom<i64>>(
        &self,
        column: usize,
    ) -> Result<Option<T>, StoreError> {
        match self.0.get(column) {
            Some(Cell::Int(number)) => {
                T::try_from(*number).map(Some).map_err(|_| self.strange(column))
            }
            Some(Cell::Null) => Ok(None),
            _ => Err(self.strange(column)),
        }
    }

    /// Yes or no.
    pub(super) fn flag(&self, column: usize) -> Result<bool, StoreError> {
        match self.0.get(column) {
            Some(Cell::Flag(flag)) => Ok(*flag),
            Some(Cell::Int(number @ 0..=1)) => Ok(*number == 1),
            _ => Err(self.strange(column)),
        }
    }

    /// Bytes.
    pub(super) fn bytes(&self, column: usize) -> Result<&[u8], StoreError> {
        match self.0.get(column) {
            Some(Cell::Bytes(bytes)) => Ok(bytes),
            _ => Err(self.strange(column)),
        }
    }
}

/// A connection to a database.
pub(super) trait Link {
    /// Rows.
    fn all(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError>;

    /// Changes rows; how many.
    fn change(&mut self, text: &'static str, parameters: Parameters<'_>)
    -> Result<u64, StoreError>;

    /// Statements without parameters.
    fn batch(&mut self, text: &str) -> Result<(), StoreError>;

    /// Why what was begun on it cannot be committed any longer; none if it can.
    fn broken(&self) -> Option<StoreError>;

    /// A row, if there is one.
    fn one(
        &mut self,
        text: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.all(text, parameters)?.into_iter().next())
    }
}

/// A database in which everything can be kept.
pub(super) trait Base: Send + Sync + std::fmt::Debug {
    /// Its connections.
    type Link: Link + 'static;

    /// Who writes there.
    fn writer(&self) -> &Writer<Self::Link>;

    /// Reads, perhaps twice.
    fn read<T>(
        &self,
        look: impl Fn(&mut Self::Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError>;

    /// Reads more than once, as it was at one instant.
    fn snapshot<T>(
        &self,
        look: impl Fn(&mut Self::Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError>;

    /// Which control plane it has.
    fn name(&self) -> &str;

    /// Who writes, of the replicas that share it.
    fn holder(&self) -> Leading {
        Leading::Here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_has_not_is_told() {
        let row = Row(vec![Cell::Null, Cell::Int(-1), Cell::Flag(true), Cell::Int(1)]);
        assert_eq!(row.text_or_none(0).unwrap(), None);
        assert_eq!(row.int_or_none::<u32>(0).unwrap(), None);
        assert_eq!((row.int::<i64>(1).unwrap(), row.flag(2).unwrap()), (-1, true));
        assert!(row.flag(3).unwrap(), "a database without flags has numbers");
        let wrong = [
            row.text(0).map(drop),
            row.int::<u32>(1).map(drop),
            row.flag(1).map(drop),
            row.text(4).map(drop),
        ];
        for wrong in wrong {
            assert!(wrong.unwrap_err().to_string().contains("a row is not understood"));
        }
    }
}
