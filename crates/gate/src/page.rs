//! The control page: the words between the daemon and one session, each with one writer.

#[cfg(not(loom))]
mod mapped;

use weft_ring::{AtomicU32, AtomicU64, Cell, Ordering, WakeFlag};
use weft_turn::{Abandoned, Demand, Grant, GrantKind, Report};

#[cfg(not(loom))]
pub use self::mapped::PageError;

/// Raised with every change of the layout.
pub const PAGE_VERSION: u32 = 7;
/// In a grant's kind: [`Grant::follows`].
const FOLLOWS: u32 = 2;

/// A mapped control page.
#[derive(Debug, Clone)]
pub struct ControlPage {
    pub(crate) grant_epoch: Cell<AtomicU64>,
    pub(crate) grant_budget: Cell<AtomicU64>,
    pub(crate) grant_kind: Cell<AtomicU32>,
    /// The last epoch that was revoked.
    pub(crate) revoke: Cell<AtomicU64>,
    /// The epoch of the grant that comes soon.
    pub(crate) prepare: Cell<AtomicU64>,
    pub(crate) unmanaged: Cell<AtomicU32>,
    /// Whether a holder has to earn the time for which it keeps a turn without work.
    pub(crate) earned: Cell<AtomicU32>,
    pub(crate) lead: Cell<AtomicU64>,
    pub(crate) telling: Cell<AtomicU32>,
    /// The most device time in flight in ns; 0 for no such bound.
    pub(crate) slice: Cell<AtomicU64>,
    /// The last time that the session was asked to stand still; 0 if never.
    pub(crate) pause: Cell<AtomicU64>,
    pub(crate) state: Cell<AtomicU32>,
    /// The last epoch that was released.
    pub(crate) released: Cell<AtomicU64>,
    pub(crate) used: Cell<AtomicU64>,
    pub(crate) in_flight: Cell<AtomicU64>,
    pub(crate) demand: Cell<AtomicU64>,
    pub(crate) sync_calls: Cell<AtomicU64>,
    pub(crate) idle: Cell<AtomicU64>,
    /// The caller whose result is due first, and whether it is due soon; 0 when nobody waits.
    pub(crate) due: Cell<AtomicU64>,
    /// Pieces of longer kernels that were cut off so far.
    pub(crate) pieces: Cell<AtomicU64>,
    /// Device clock from which on what is in flight is in no counter, in ns.
    pub(crate) front_since: Cell<AtomicU64>,
    doorbell: WakeFlag,
}

impl ControlPage {
    #[cfg(loom)]
    pub(crate) fn modelled() -> Self {
        let (word, wide) = (Cell::<AtomicU32>::zeroed, Cell::<AtomicU64>::zeroed);
        Self {
            grant_epoch: wide(),
            grant_budget: wide(),
            grant_kind: word(),
            revoke: wide(),
            prepare: wide(),
            unmanaged: word(),
            earned: word(),
            lead: wide(),
            telling: word(),
            slice: wide(),
            pause: wide(),
            state: word(),
            released: wide(),
            used: wide(),
            in_flight: wide(),
            demand: wide(),
            sync_calls: wide(),
            idle: wide(),
            due: wide(),
            pieces: wide(),
            front_since: wide(),
            doorbell: WakeFlag::modelled(),
        }
    }

    /// The number of the session's last grant; nothing while no gate decides.
    #[must_use]
    pub fn turn(&self) -> Option<u64> {
        let is_managed = self.unmanaged.load(Ordering::Relaxed) == 0;
        is_managed.then(|| self.grant_epoch.load(Ordering::Relaxed))
    }

    /// The page's own doorbell, for a session that has no segment to sleep on.
    #[must_use]
    pub fn doorbell(&self) -> &WakeFlag {
        &self.doorbell
    }

    pub(crate) fn store_grant(&self, grant: &Grant) {
        let kind = match grant.kind {
            GrantKind::Turn => 0,
            GrantKind::Renewing => 1,
        } | if grant.follows { FOLLOWS } else { 0 };
        self.grant_kind.store(kind, Ordering::Relaxed);
        self.grant_budget.store(grant.budget_ns, Ordering::Relaxed);
        // SYNC: publishes kind and budget to `load_grant`.
        self.grant_epoch.store(grant.epoch, Ordering::Release);
    }

    /// The last grant. The daemon writes the next one only when this one is over, so the words
    /// belong together.
    pub(crate) fn load_grant(&self) -> Grant {
        // SYNC: acquires what `store_grant` published.
        let epoch = self.grant_epoch.load(Ordering::Acquire);
        let kind = self.grant_kind.load(Ordering::Relaxed);
        let follows = kind & FOLLOWS != 0;
        let kind = match kind & !FOLLOWS {
            0 => GrantKind::Turn,
            _ => GrantKind::Renewing,
        };
        Grant { epoch, budget_ns: self.grant_budget.load(Ordering::Relaxed), kind, follows }
    }

    /// Device time of what is in flight that no counter has, in ns, were the session to end at
    /// `now_ns` of the device's clock: what its owner owes for work that it did not wait for.
    pub(crate) fn abandoned_ns(&self, now_ns: u64, abandoned: Abandoned) -> u64 {
        let in_flight_ns = self.in_flight.load(Ordering::Acquire);
        if in_flight_ns == 0 {
            return 0;
        }
        let since_ns = now_ns.saturating_sub(self.front_since.load(Ordering::Relaxed));
        match abandoned {
            Abandoned::Stays => in_flight_ns.max(since_ns),
            Abandoned::Ends => since_ns,
        }
    }

    /// When what is in flight is over, in ns of the device's clock; 0 without any.
    pub(crate) fn occupied_until_ns(&self) -> u64 {
        match self.in_flight.load(Ordering::Acquire) {
            0 => 0,
            in_flight_ns => self.front_since.load(Ordering::Relaxed).saturating_add(in_flight_ns),
        }
    }

    /// What the session says.
    pub(crate) fn report(&self) -> Report {
        // The release first: what was used before it is then visible below.
        let released = self.released.load(Ordering::Acquire);
        Report {
            released,
            demand: self.load_demand(),
            demand_ns: self.demand.load(Ordering::Relaxed),
            // In flight before used: an operation that completes in between counts twice rather
            // than never.
            in_flight_ns: self.in_flight.load(Ordering::Acquire),
            used_ns: self.used.load(Ordering::Acquire),
            idle_ns: self.idle.load(Ordering::Relaxed),
            sync_calls: self.sync_calls.load(Ordering::Relaxed),
            pieces: self.pieces.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn store_demand(&self, demand: Demand) {
        let state = match demand {
            Demand::Idle => 0,
            Demand::Runnable => 1,
        };
        self.state.store(state, Ordering::Release);
    }

    pub(crate) fn load_demand(&self) -> Demand {
        match self.state.load(Ordering::Acquire) {
            0 => Demand::Idle,
            _ => Demand::Runnable,
        }
    }
}
