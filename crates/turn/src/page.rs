//! What the daemon and a session's holder tell each other: the words of a control page.

use weft_sched::Usage;

/// How a grant limits the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantKind {
    /// The budget is the device time of the whole turn.
    Turn,
    /// The budget bounds the device time in flight; the turn lasts until it is revoked. For a lone
    /// tenant.
    Renewing,
}

/// The right to use the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Numbers the session's grants from 1.
    pub epoch: u64,
    /// Device time in ns.
    pub budget_ns: u64,
    /// What the budget bounds.
    pub kind: GrantKind,
    /// It goes on with a turn, or the device's last one was of the same vGPU: what was brought is
    /// there.
    pub follows: bool,
}

/// Whether the session wants the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// No unexecuted device command.
    Idle,
    /// At least one unexecuted device command.
    Runnable,
}

/// What becomes of work in flight when its worker dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abandoned {
    /// It ends there and then, and occupied the device from its beginning until now.
    Ends,
    /// It occupies the device for as long as it would have: its time was reserved at its start.
    /// What outlived its time occupied it until now.
    Stays,
}

/// What a session says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Whether it wants the device.
    pub demand: Demand,
    /// About how much device time it wants, in ns.
    pub demand_ns: u64,
    /// Device time of its completed operations, in ns; only grows.
    pub used_ns: u64,
    /// Estimated device time of operations that were admitted and have not completed, in ns.
    pub in_flight_ns: u64,
    /// Time that it held a grant with nothing to do, in ns; only grows.
    pub idle_ns: u64,
    /// The last grant that it gave back.
    pub released: u64,
    /// Its synchronous calls so far.
    pub sync_calls: u64,
    /// Pieces of longer kernels that it has cut off so far.
    pub pieces: u64,
}

impl Report {
    /// Device time admitted so far, completed or not, in ns: what a turn took is the growth of
    /// this.
    #[must_use]
    pub fn admitted_ns(&self) -> u64 {
        self.used_ns.saturating_add(self.in_flight_ns)
    }

    /// As the scheduling core is told.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { used_ns: self.used_ns, in_flight_ns: self.in_flight_ns, idle_ns: self.idle_ns }
    }
}

/// A control page as the session's holder sees it. The daemon writes what is read here.
pub trait HolderPage {
    /// The number of the newest grant.
    fn grant_epoch(&self) -> u64;
    /// The newest grant.
    fn grant(&self) -> Grant;
    /// The last grant that was revoked.
    fn revoked(&self) -> u64;
    /// The number of the grant that comes soon.
    fn prepared(&self) -> u64;
    /// Whether no gate applies.
    fn is_unmanaged(&self) -> bool;
    /// Whether a holder has to earn the time for which it keeps a turn without work
    /// ([`crate::Grace`]).
    fn is_grace_earned(&self) -> bool;
    /// Device time that may still be in flight when a turn is released, in ns.
    fn lead_ns(&self) -> u64;
    /// The most device time that the session may have in flight, in ns: somebody who wakes waits
    /// for no more. `None` where only the grant bounds it.
    fn slice_ns(&self) -> Option<u64>;
    /// What the page says of the session: a worker that starts again goes on from there.
    fn report(&self) -> Report;
    /// Wall time since `grant` in ns, where turns are slices of wall time (competitors that know
    /// no device time).
    fn passed_ns(&self, grant: &Grant) -> Option<u64> {
        let _ = grant;
        None
    }

    /// Shows the device time of completed operations, in ns.
    fn show_used(&self, ns: u64);
    /// Shows the estimates of what is in flight, in ns.
    fn show_in_flight(&self, ns: u64);
    /// Adds time in which the session held its turn with nothing to do, in ns.
    fn add_idle(&self, ns: u64);
    /// Shows about how much device time the session wants, in ns.
    fn show_demand(&self, ns: u64);
    /// Shows whether the session wants the device, ordered before the next look at
    /// [`revoked`](Self::revoked): either that look sees a revocation, or the daemon that revokes
    /// sees the demand.
    fn announce(&self, demand: Demand);
    /// Shows that a grant is given back, and with it all that was shown before.
    fn show_released(&self, epoch: u64);
    /// Shows the synchronous calls so far.
    fn show_sync_calls(&self, calls: u64);
    /// Marks the session as changed and wakes the daemon.
    fn ring(&self);
    /// Marks the session as changed; the daemon sees it when something else wakes it.
    fn mark(&self);
}

/// A control page as the daemon sees it. The holder writes what is read here.
pub trait DaemonPage {
    /// What the session says. `released` is read first: what was shown before a release is then
    /// seen; `in_flight_ns` before `used_ns`: an operation that completes in between counts twice
    /// rather than never.
    fn report(&self) -> Report;
    /// The last grant that the session gave back.
    fn released(&self) -> u64;
    /// Device time of completed operations, in ns.
    fn used_ns(&self) -> u64;
    /// The newest grant.
    fn grant(&self) -> Grant;
    /// Bounds the device time that the session may have in flight, in ns, or no more.
    fn store_slice(&self, ns: Option<u64>);
    /// Gives the session a grant.
    fn store_grant(&self, grant: &Grant);
    /// Revokes a grant, ordered before the next look at [`demand`](Self::demand): the other side of
    /// [`HolderPage::announce`].
    fn revoke(&self, epoch: u64);
    /// Whether the session wants the device.
    fn demand(&self) -> Demand;
    /// Says that the grant `epoch` comes soon.
    fn prepare(&self, epoch: u64);
    /// Wakes the session.
    fn wake(&self);
}
