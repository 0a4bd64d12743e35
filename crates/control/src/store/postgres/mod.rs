//! The store in PostgreSQL, for several replicas of the control plane: all read, and the one that
//! has the lease writes.

mod access;
mod desk;
mod lease;
mod link;
mod pool;
mod schema;

use std::sync::Arc;
use std::time::Duration;

pub use self::access::Access;
pub use self::lease::{Asked, Terms};

use self::desk::Leased;
use self::lease::Lease;
use self::link::Link;
use self::pool::Pool;
use super::sql::{Base, Link as _, Writer};
use super::{Leading, StoreError};

/// A change of the schema in which nothing is said for so long is ended by the database.
const MIGRATION_LIMIT: Duration = Duration::from_secs(60);

/// A store in a database.
#[derive(Debug)]
pub struct Postgres {
    access: Access,
    plane: String,
    writer: Writer<Link>,
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
        let plane = row.text(0)?;
        let lease = Arc::new(Lease::new(terms)?);
        let writer = Writer::start(Leased::new(access.clone(), Arc::clone(&lease)))?;
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

    /// Gives the lease back, if this replica has it: whoever waits for it has it at once. From here
    /// on nothing is written here.
    ///
    /// # Errors
    /// The database's; then the lease ends by itself.
    pub fn give_back(&self) -> Result<(), StoreError> {
        self.lease.give_back(&self.access)
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

impl Base for Postgres {
    type Link = Link;

    fn writer(&self) -> &Writer<Link> {
        &self.writer
    }

    fn read<T>(&self, look: impl Fn(&mut Link) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.pool.read(look)
    }

    fn snapshot<T>(
        &self,
        look: impl Fn(&mut Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.pool.snapshot(look)
    }

    fn name(&self) -> &str {
        &self.plane
    }

    fn holder(&self) -> Leading {
        self.lease.leading()
    }
}
