//! The lease: which of several replicas writes. It is a row with a holder, a generation that grows
//! with each holder, and a time by the database's clock after which another may take it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::access::Access;
use super::link::Link;
use crate::random;
use crate::store::sql::{Link as _, int};
use crate::store::{Leading, StoreError};

/// A lease is renewed so many times while it holds.
const RENEWALS: u32 = 4;

/// A database that does not answer is asked again after this time.
const PAUSE: Duration = Duration::from_millis(200);

/// A transaction in which nothing is said for this time is ended where there is no lease.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(10);

/// Where it is said that the lease was given back: those that wait for it ask at once.
const CHANNEL: &str = "weft_lease";

/// Bytes by which a replica is told from others.
const HOLDER_BYTES: usize = 8;

/// A replica's part in it.
#[derive(Debug)]
pub(super) struct Lease {
    /// Nothing where nobody else is kept from writing, by a command that makes a token, say.
    terms: Option<Terms>,
    state: Mutex<State>,
}

/// What a replica asks for.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Where it answers, for those that ask another one.
    pub address: String,
    /// For how long it has the lease when it does not renew it.
    pub length: Duration,
}

#[derive(Debug, Default)]
struct State {
    holder: String,
    /// That this replica has, or had.
    generation: Option<u64>,
    /// Until when nobody else can have taken it.
    until: Option<Instant>,
    is_lost: bool,
    /// Where the one that has it answers.
    leader: Option<String>,
}

/// What came of asking for the lease, or for more of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// This replica has it.
    Held,
    /// Another one has it.
    Waits,
    /// This replica had it, and another one took it.
    Lost,
}

impl Lease {
    pub(super) fn new(terms: Option<Terms>) -> Result<Self, StoreError> {
        let broken = |error: std::io::Error| StoreError::Broken(error.to_string());
        let holder = random::hex(HOLDER_BYTES).map_err(broken)?;
        Ok(Self { terms, state: Mutex::new(State { holder, ..State::default() }) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a transaction of this replica may say nothing. One that is stopped within a
    /// transaction must not keep the row locked for longer than it has the lease.
    pub(super) fn patience(&self) -> Duration {
        self.terms.as_ref().map_or(TRANSACTION_LIMIT, |terms| terms.length / 2)
    }

    /// Whether this replica may write in a transaction that has locked the lease.
    pub(super) fn compare(&self, generation: u64, address: String) -> Result<(), StoreError> {
        if self.terms.is_none() {
            return Ok(());
        }
        let mut state = self.lock();
        if state.generation == Some(generation) && !state.is_lost {
            return Ok(());
        }
        state.is_lost |= state.generation.is_some();
        state.leader = Some(address).filter(|address| !address.is_empty());
        Err(StoreError::NotLeader(state.leader.clone()))
    }

    /// Who writes, as far as this replica knows.
    pub(super) fn leading(&self) -> Leading {
        let state = self.lock();
        let is_held = !state.is_lost && state.until.is_some_and(|until| Instant::now() < until);
        if self.terms.is_none() || is_held {
            return Leading::Here;
        }
        // It may not have heard of the database for longer than its lease.
        let own = self.terms.as_ref().map(|terms| &terms.address);
        Leading::Elsewhere(state.leader.clone().filter(|leader| Some(leader) != own))
    }

    /// Takes the lease if nobody has it, or renews it.
    pub(super) fn ask(&self, link: &mut Link) -> Result<Asked, StoreError> {
        let Some(terms) = &self.terms else { return Ok(Asked::Held) };
        let (holder, held) = {
            let state = self.lock();
            if state.is_lost {
                return Ok(Asked::Lost);
            }
            (state.holder.clone(), state.generation)
        };
        // What the database's clock shows is not before this.
        let begun = Instant::now();
        let length_ms = int(terms.length.as_millis())?;
        let row = if held.is_some() {
            link.one(
                "UPDATE lease
                 SET expires_at = clock_timestamp()
                                  + CAST($2 AS bigint) * interval '1 millisecond'
                 WHERE holder = $1 RETURNING generation",
                &[(&holder).into(), length_ms.into()],
            )?
        } else {
            link.one(
                "UPDATE lease
                 SET holder = $1, address = $2, generation = generation + 1,
                     expires_at = clock_timestamp()
                                  + CAST($3 AS bigint) * interval '1 millisecond'
                 WHERE expires_at < clock_timestamp() RETURNING generation",
                &[(&holder).into(), (&terms.address).into(), length_ms.into()],
            )?
        };
        let generation: Option<u64> = row.map(|row| row.int(0)).transpose()?;
        if let Some(generation) = generation {
            let mut state = self.lock();
            (state.generation, state.until) = (Some(generation), Some(begun + terms.length));
            state.leader = Some(terms.address.clone());
            return Ok(Asked::Held);
        }
        let row = link.one("SELECT address, expires_at > clock_timestamp() FROM lease", &[])?;
        let row = row.ok_or_else(|| StoreError::Broken("it has no lease".to_owned()))?;
        let (address, is_held): (String, bool) = (row.text(0)?, row.flag(1)?);
        let mut state = self.lock();
        state.leader = Some(address).filter(|address| is_held && !address.is_empty());
        state.is_lost = held.is_some();
        Ok(if state.is_lost { Asked::Lost } else { Asked::Waits })
    }

    /// Ends this replica's part: what it is writing is kept, and nothing that comes later. The
    /// lease is free for another one, if this one has it.
    pub(super) fn give_back(&self, access: &Access) -> Result<(), StoreError> {
        let holder = {
            let mut state = self.lock();
            state.is_lost = true;
            state.generation.map(|_| state.holder.clone())
        };
        let Some(holder) = holder else { return Ok(()) };
        let mut link = Link::open(access, self.patience())?;
        // A transaction that is at work has locked the row, and ends first. Without a holder the
        // row cannot be renewed.
        let given = link.change(
            "UPDATE lease SET holder = '', address = '', expires_at = '-infinity'
             WHERE holder = $1",
            &[(&holder).into()],
        )?;
        if given > 0 {
            link.batch(&format!("NOTIFY {CHANNEL}"))?;
        }
        Ok(())
    }

    /// Asks for the lease and then for more of it, until it is lost.
    pub(super) fn campaign(
        self: Arc<Self>,
        access: Access,
        won: impl FnOnce() + Send + 'static,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<(), StoreError> {
        // Who leads is known before the first client asks; a failure is seen again by the thread.
        let _ = self.ask_somehow(&access, &mut None);
        let every = self.terms.as_ref().map_or(PAUSE, |terms| terms.length / RENEWALS);
        let thread = thread::Builder::new().name("lease".to_owned());
        let spawned = thread.spawn(move || {
            let (mut link, mut won) = (None, Some(won));
            loop {
                match self.ask_somehow(&access, &mut link) {
                    Ok(Asked::Held) => {
                        if let Some(won) = won.take() {
                            won();
                        }
                        thread::sleep(every);
                    }
                    Ok(Asked::Waits) => {
                        // It is a hint: who does not hear it asks a little later.
                        let waited = link.as_mut().map_or(Ok(()), |link| link.wait(every));
                        if waited.is_err() {
                            link = None;
                        }
                    }
                    Ok(Asked::Lost) => return lost(),
                    Err(error) => {
                        link = None;
                        tracing::warn!(%error, "the lease cannot be asked for");
                        thread::sleep(PAUSE);
                    }
                }
            }
        });
        spawned.map(|_| ()).map_err(|error| StoreError::Broken(error.to_string()))
    }

    /// The same, over a connection that may have to be made.
    pub(super) fn ask_somehow(
        &self,
        access: &Access,
        link: &mut Option<Link>,
    ) -> Result<Asked, StoreError> {
        let link = match link {
            Some(link) => link,
            None => {
                let mut fresh = Link::open(access, self.patience())?;
                fresh.listen(CHANNEL)?;
                link.insert(fresh)
            }
        };
        self.ask(link)
    }
}
