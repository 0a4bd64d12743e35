//! Transactions of the replica that has the lease.
//!
//! Every transaction begins by locking the row of the lease and comparing its generation, so a
//! replica that another one has taken over from writes nothing, however late it wakes up.

use std::sync::Arc;

use super::access::Access;
use super::lease::Lease;
use super::link::Link;
use crate::store::StoreError;
use crate::store::sql::{Desk, Link as _};

/// What the writing thread has.
#[derive(Debug)]
pub(super) struct Leased {
    access: Access,
    lease: Arc<Lease>,
    link: Option<Link>,
}

impl Leased {
    pub(super) fn new(access: Access, lease: Arc<Lease>) -> Self {
        Self { access, lease, link: None }
    }
}

impl Desk for Leased {
    type Link = Link;

    /// Few enough that the lease is renewed between two.
    const BATCH_MAX: usize = 64;

    /// A transaction of whoever may write. A connection on which anything failed is dropped, and
    /// the database rolls back what was done on it.
    fn begin(&mut self) -> Result<Link, StoreError> {
        let kept = self.link.take().filter(|link| link.broken().is_none());
        let mut link = match kept {
            Some(link) => link,
            None => Link::open(&self.access, self.lease.patience())?,
        };
        link.batch("BEGIN")?;
        let row = link.one("SELECT generation, address FROM lease FOR UPDATE", &[])?;
        let row = row.ok_or_else(|| StoreError::Broken("it has no lease".to_owned()))?;
        let compared = self.lease.compare(row.int(0)?, row.text(1)?);
        if let Err(refused) = compared {
            link.batch("ROLLBACK")?;
            self.link = Some(link);
            return Err(refused);
        }
        Ok(link)
    }

    fn commit(&mut self, mut link: Link) -> Result<(), StoreError> {
        // A failed transaction is rolled back by a COMMIT that says nothing of it.
        link.batch("SAVEPOINT last")?;
        link.batch("COMMIT")?;
        self.link = Some(link);
        Ok(())
    }
}
