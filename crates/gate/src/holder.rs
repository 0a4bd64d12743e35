//! A session's control page in the hands of its holder: the worker, or the interposed shim.

use std::time::Duration;

use weft_ring::{Ordering, Unready, WakeFlag, fence};
use weft_turn::{Abandoned, Demand, Grant, Holder, HolderPage, Report};

use crate::due::{Due, Telling};
use crate::node::{NodePage, sleep_on};
use crate::page::ControlPage;

/// A control page, and the node page on which its session rings.
#[derive(Debug)]
pub struct HolderSide {
    page: ControlPage,
    node: NodePage,
    session: u32,
}

impl HolderSide {
    /// Of the session with this number in the node page.
    #[must_use]
    pub fn new(page: ControlPage, node: NodePage, session: u32) -> Self {
        Self { page, node, session }
    }

    /// The oldest operation in flight is in no counter from `since_ns` of the device's clock on: it
    /// began then, or its predecessor was charged up to there. For whoever charges a session that
    /// ends.
    pub fn set_front(&self, since_ns: u64) {
        self.page.front_since.store(since_ns, Ordering::Relaxed);
    }

    /// Device time that the session owes for what is in flight should it end at `now_ns` of the
    /// device's clock.
    #[must_use]
    pub fn abandoned_ns(&self, now_ns: u64, abandoned: Abandoned) -> u64 {
        self.page.abandoned_ns(now_ns, abandoned)
    }

    /// Counts a piece that was cut off a kernel: for whoever watches.
    pub fn count_piece(&self) {
        let pieces = self.page.pieces.load(Ordering::Relaxed).wrapping_add(1);
        self.page.pieces.store(pieces, Ordering::Relaxed);
    }

    /// The number of the last time that the daemon asked the session to stand still; 0 if never.
    #[must_use]
    pub fn pause_asked(&self) -> u64 {
        self.page.pause.load(Ordering::Relaxed)
    }

    /// Whether the daemon wants to hear before a result comes.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.telling() != Telling::Nothing
    }

    fn telling(&self) -> Telling {
        Telling::unpack(self.page.telling.load(Ordering::Relaxed))
    }

    /// Shows whose result is due first. Rings the daemon, once per call, when it comes soon and the
    /// daemon wants to hear that, and when another call has come and it wants to hear that too.
    pub fn set_due(&self, due: Option<Due>) {
        let word = Due::pack(due);
        let before = self.page.due.load(Ordering::Relaxed);
        if word == before {
            return;
        }
        self.page.due.store(word, Ordering::Release);
        if self.telling().wants(Due::unpack(before), due) {
            self.ring();
        }
    }
}

impl HolderPage for HolderSide {
    fn grant_epoch(&self) -> u64 {
        self.page.grant_epoch.load(Ordering::Acquire)
    }

    fn grant(&self) -> Grant {
        self.page.load_grant()
    }

    fn revoked(&self) -> u64 {
        self.page.revoke.load(Ordering::Acquire)
    }

    fn prepared(&self) -> u64 {
        self.page.prepare.load(Ordering::Relaxed)
    }

    fn is_unmanaged(&self) -> bool {
        self.page.unmanaged.load(Ordering::Relaxed) != 0
    }

    fn is_grace_earned(&self) -> bool {
        self.page.earned.load(Ordering::Relaxed) != 0
    }

    fn lead_ns(&self) -> u64 {
        self.page.lead.load(Ordering::Relaxed)
    }

    fn slice_ns(&self) -> Option<u64> {
        Some(self.page.slice.load(Ordering::Relaxed)).filter(|ns| *ns > 0)
    }

    fn report(&self) -> Report {
        self.page.report()
    }

    fn show_used(&self, ns: u64) {
        self.page.used.store(ns, Ordering::Release);
    }

    fn show_in_flight(&self, ns: u64) {
        self.page.in_flight.store(ns, Ordering::Release);
    }

    fn add_idle(&self, ns: u64) {
        let before_ns = self.page.idle.load(Ordering::Relaxed);
        self.page.idle.store(before_ns.saturating_add(ns), Ordering::Relaxed);
    }

    fn show_demand(&self, ns: u64) {
        self.page.demand.store(ns, Ordering::Relaxed);
    }

    fn announce(&self, demand: Demand) {
        self.page.store_demand(demand);
        // SYNC: the demand is ordered before the look at `revoke`; pairs with the fence in
        // `DaemonSide::revoke`. Either this side sees the revocation or the daemon sees that the
        // session uses its grant.
        fence(Ordering::SeqCst);
    }

    fn show_released(&self, epoch: u64) {
        // SYNC: publishes used, in flight and demand to a daemon that sees the release.
        self.page.released.store(epoch, Ordering::Release);
    }

    fn show_sync_calls(&self, calls: u64) {
        self.page.sync_calls.store(calls, Ordering::Relaxed);
    }

    fn ring(&self) {
        self.node.ring(self.session);
    }

    fn mark(&self) {
        self.node.mark(self.session);
    }
}

/// Sleeps on a session's `doorbell` until its daemon has news for `holder` (`None`) or `other`
/// gives something.
///
/// # Errors
/// [`Unready::TimedOut`] when `limit` passed.
pub fn wait<T>(
    holder: &Holder<HolderSide>,
    doorbell: &WakeFlag,
    limit: Option<Duration>,
    mut other: impl FnMut() -> Option<T>,
) -> Result<Option<T>, Unready> {
    let ready = || other().map(Some).or_else(|| holder.has_news().then_some(None));
    sleep_on(doorbell, holder.spin(), limit, ready)
}
