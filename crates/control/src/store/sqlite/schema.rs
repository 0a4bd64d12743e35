//! The schema and its changes.

use rusqlite::Connection;

use crate::store::StoreError;

/// Each entry brings a store from its index to the next version; entries never change, only more
/// are added.
const MIGRATIONS: &[&str] = &[
    include_str!("0001.sql"),
    include_str!("0002.sql"),
    include_str!("0003.sql"),
    include_str!("0004.sql"),
    include_str!("0005.sql"),
    include_str!("0006.sql"),
    include_str!("0007.sql"),
    include_str!("0008.sql"),
    include_str!("0009.sql"),
];

/// Brings a store up to date.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let query = "PRAGMA user_version";
    let found: usize = connection.query_row(query, [], |row| row.get(0))?;
    if found > MIGRATIONS.len() {
        return Err(StoreError::Broken(format!(
            "it was written by a newer version (schema {found}, this one knows {}): install that \
             one, or restore a copy from before",
            MIGRATIONS.len()
        )));
    }
    for (at, change) in MIGRATIONS.iter().enumerate().skip(found) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(change)?;
        transaction.pragma_update(None, "user_version", at + 1)?;
        transaction.commit()?;
    }
    Ok(())
}
