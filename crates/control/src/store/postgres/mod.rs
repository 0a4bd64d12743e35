//! The store in PostgreSQL, for several replicas of the control plane: all read, and the one that
//! has the lease writes.

mod access;
mod instances;
mod lease;
mod link;
mod pool;
mod registry;
mod schema;
mod writer;

use std::sync::Arc;
use std::time::Duration;

pub use self::access::Access;
pub use self::lease::{Asked, Terms};

use self::lease::Lease;
use self::link::{Link, at, int, text, text_or_none};
use self::pool::Pool;
use self::writer::Writer;
use super::{Audit, Counts, StoreError};

/// The schema is changed within this time.
const MIGRATION_LIMIT: Duration = Duration::from_secs(60);

/// A store in a database.
#[derive(Debug)]
pub struct Postgres {
    access: Access,
    plane: String,
    writer: Writer,
    pool: Pool,
    lease: Arc<Lease>,
}

impl Postgres {
    /// Opens the store in a database, or makes it in an empty one. With terms, nothing is written
    /// until the lease is there.
    ///
    /// # Errors
    /// If nothing answers there, or the store is a newer version's.
    pub fn open(access: Access, terms: Option<Terms>) -> Result<Self, StoreError> {
        let mut link = Link::open(&access, MIGRATION_LIMIT)?;
        schema::migrate(&mut link)?;
        let row = link.one("SELECT id FROM plane", &[])?;
        let row = row.ok_or_else(|| StoreError::Broken("it has no name".to_owned()))?;
        let plane = row.try_get(0)?;
        let lease = Arc::new(Lease::new(terms)?);
        let writer = Writer::start(access.clone(), Arc::clone(&lease))?;
        let pool = Pool::new(access.clone());
        Ok(Self { access, plane, writer, pool, lease })
    }

    /// Asks for the lease once.
    ///
    /// # Errors
    /// The database's.
    pub fn ask(&self) -> Result<Asked, StoreError> {
        self.lease.ask_somehow(&self.access, &mut None)
    }

    /// A thread asks for the lease, and for more of it. `won` is called when it is there, and
    /// `lost` when another replica has taken it: what this one has begun is the other's then.
    ///
    /// # Errors
    /// The system's.
    pub fn campaign(
        &self,
        won: impl FnOnce() + Send + 'static,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<(), StoreError> {
        Arc::clone(&self.lease).campaign(self.access.clone(), won, lost)
    }
}

fn add_audit(link: &mut Link, audit: &Audit) -> Result<(), StoreError> {
    let Audit { at_ms, actor, project, action, target, status } = audit;
    link.change(
        "INSERT INTO audit (at_ms, actor, project, action, target, status)
         VALUES ($1, $2, $3, $4, $5, $6)",
        &[
            &int(*at_ms)?,
            &text(actor),
            &text_or_none(project.as_deref()),
            action,
            &text(target),
            &i64::from(*status),
        ],
    )?;
    Ok(())
}

fn counts(link: &mut Link) -> Result<Counts, StoreError> {
    let row = link.one(
        "SELECT (SELECT count(*) FROM instances WHERE NOT hidden),
                (SELECT count(*) FROM instances
                 WHERE ended_ms IS NULL AND (NOT wanted OR ready_ms IS NULL)),
                (SELECT count(*) FROM cgpus WHERE to_ms IS NULL),
                count(*), coalesce(sum(memory), 0)::bigint, coalesce(sum(held), 0)::bigint
         FROM gpus",
        &[],
    )?;
    let row = row.ok_or_else(|| StoreError::Broken("it counts nothing".to_owned()))?;
    Ok(Counts {
        instances: at(&row, 0)?,
        unsettled: at(&row, 1)?,
        cgpus: at(&row, 2)?,
        gpus: at(&row, 3)?,
        memory_mib: at(&row, 4)?,
        held_mib: at(&row, 5)?,
    })
}
