//! How SQLite carries out what is asked often, or by anybody: by an index, and not by looking at
//! all that was ever written.

use std::path::Path;

use rusqlite::Connection;

use super::instances::{self, Which};
use super::{Link, Parameters, Row};
use crate::store::sqlite::Sqlite;
use crate::store::{Part, StoreError};

/// A connection that tells how queries would be carried out, and finds nothing.
struct Explaining {
    connection: Connection,
    plans: Vec<String>,
}

impl Explaining {
    fn of(path: &Path) -> Self {
        Sqlite::open(path).unwrap();
        Self { connection: Connection::open(path).unwrap(), plans: Vec::new() }
    }

    /// The plans of all queries since it was asked last.
    fn told(&mut self) -> String {
        std::mem::take(&mut self.plans).join("; ")
    }
}

impl Link for Explaining {
    fn all(&mut self, text: &'static str, _: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        let mut explained = self.connection.prepare(&format!("EXPLAIN QUERY PLAN {text}"))?;
        let mut rows = explained.raw_query();
        while let Some(row) = rows.next()? {
            self.plans.push(row.get(3)?);
        }
        Ok(Vec::new())
    }

    fn change(&mut self, text: &'static str, _: Parameters<'_>) -> Result<u64, StoreError> {
        panic!("it only looks: {text}")
    }

    fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        panic!("it only looks: {text}")
    }

    fn broken(&self) -> Option<StoreError> {
        None
    }
}

#[test]
fn what_a_project_lists_and_what_the_view_reads_is_found_by_an_index() {
    let scratch = tempfile::tempdir().unwrap();
    let mut link = Explaining::of(&scratch.path().join("db"));
    let part = Part { limit: 100, after: None, project: Some("p".into()) };
    instances::shown(&mut link, &part, 7).unwrap();
    let plan = link.told();
    assert!(plan.contains("USING INDEX instances_shown (project=? AND seq>?)"), "{plan}");
    // An administrator's list passes over what nobody is shown any longer.
    instances::shown(&mut link, &Part { limit: 100, after: None, project: None }, 7).unwrap();
    let plan = link.told();
    assert!(plan.contains("USING INDEX instances_shown_all (seq>?)"), "{plan}");
    instances::cgpus(&mut link, &part, 7, Which::All).unwrap();
    let plan = link.told();
    assert!(plan.contains("USING INDEX cgpus_project (project=? AND seq>?)"), "{plan}");
    instances::newest(&mut link, Some("p"), 20).unwrap();
    let plan = link.told();
    assert!(plan.contains("USING INDEX cgpus_project (project=?)"), "{plan}");
    instances::taken(&mut link).unwrap();
    let plan = link.told();
    assert!(plan.contains("cgpus_live") && !plan.contains("TEMP B-TREE"), "{plan}");
    // The control: what asks for a project or none is carried out by looking at everybody's.
    link.all(
        "SELECT seq FROM cgpus WHERE CAST($2 AS text) IS NULL OR project = $2 ORDER BY seq",
        &[],
    )
    .unwrap();
    let plan = link.told();
    assert!(plan.contains("SCAN cgpus"), "{plan}");
}
