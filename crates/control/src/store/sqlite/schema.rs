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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever had more than is given without being asked for keeps as much, and no more.
    #[test]
    fn projects_of_before_keep_the_weight_and_the_class_that_they_have() {
        let mut connection = Connection::open_in_memory().unwrap();
        for change in &MIGRATIONS[..4] {
            connection.execute_batch(change).unwrap();
        }
        connection.pragma_update(None, "user_version", 4).unwrap();
        let rows = "
            INSERT INTO projects (name, quota_cgpus, quota_memory, quota_exclusive)
                VALUES ('greedy', 4, 100, 1), ('plain', 4, 100, 1);
            INSERT INTO instances (id, name, project, wanted, spec, slot, operation, created_ms)
                VALUES ('i', 'i', 'greedy', 1, '{\"sla_us\": 5}', 1, 'o', 0),
                       ('j', 'j', 'plain', 1, '{\"sla_us\": 0}', 2, 'p', 0);
            INSERT INTO cgpus (id, instance, project, ordinal, gpu, node, device, memory, exclusive,
                               weight, from_ms, to_ms)
                VALUES ('i-0', 'i', 'greedy', 0, 1, 'n', 'a', 1, 0, 10000, 0, NULL),
                       ('i-1', 'i', 'greedy', 1, 1, 'n', 'b', 1, 1, 10000, 0, NULL),
                       ('j-0', 'j', 'plain', 0, 1, 'n', 'a', 1, 0, 2, 0, NULL),
                       ('j-1', 'j', 'plain', 1, 1, 'n', 'a', 1, 0, 900, 0, 7);";
        connection.execute_batch(rows).unwrap();
        migrate(&mut connection).unwrap();
        let of = |name: &str| -> [Option<i64>; 4] {
            let query = "SELECT quota_weight, used_weight, quota_user_facing, used_user_facing
                         FROM projects WHERE name = ?1";
            let column =
                |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]);
            connection.query_row(query, [name], column).unwrap()
        };
        assert_eq!(of("greedy"), [Some(10_000), Some(10_000), Some(2), Some(2)]);
        assert_eq!(of("plain"), [None, Some(2), Some(0), Some(0)]);
    }
}
