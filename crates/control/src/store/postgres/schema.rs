//! The schema and its changes.

use super::link::Link;
use crate::store::StoreError;
use crate::store::sql::Link as _;

/// Each entry brings a database from its index to the next version; entries never change, only
/// more are added. A replica of the version before may still be at work, so a change adds and does
/// not take away.
const MIGRATIONS: &[&str] = &[
    include_str!("0001.sql"),
    include_str!("0002.sql"),
    include_str!("0003.sql"),
    include_str!("0004.sql"),
    include_str!("0005.sql"),
    include_str!("0006.sql"),
];

/// Brings a database up to date. Of several replicas that start, one does it and the others wait.
pub(super) fn migrate(link: &mut Link) -> Result<(), StoreError> {
    link.batch("BEGIN")?;
    let migrated = within(link);
    link.batch(if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    migrated
}

fn within(link: &mut Link) -> Result<(), StoreError> {
    // Indexes of large tables take longer than a statement may otherwise, and others wait for that.
    link.batch("SET LOCAL statement_timeout = 0")?;
    link.batch("SELECT pg_advisory_xact_lock(hashtext('weft-control'), hashtext('schema'))")?;
    link.batch("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")?;
    let row = link.one("SELECT coalesce(max(version), 0) FROM schema_version", &[])?;
    let found: usize = row.map_or(Ok(0), |row| row.int(0))?;
    if found > MIGRATIONS.len() {
        return Err(StoreError::Broken(format!(
            "it was written by a newer version (schema {found}, this one knows {}): install that \
             one, or restore a copy from before",
            MIGRATIONS.len()
        )));
    }
    if found > 0 && found < MIGRATIONS.len() {
        // Who leads takes this row before all others, so neither waits for what the other has.
        link.batch("SELECT 1 FROM lease FOR UPDATE")?;
    }
    for change in &MIGRATIONS[found..] {
        link.batch(change)?;
    }
    if found < MIGRATIONS.len() {
        link.batch("DELETE FROM schema_version")?;
        link.batch(&format!("INSERT INTO schema_version VALUES ({})", MIGRATIONS.len()))?;
    }
    Ok(())
}
