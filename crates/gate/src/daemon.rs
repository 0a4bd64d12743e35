//! A session's control page in the daemon's hands.

use weft_ring::{Ordering, WakeFlag, fence};
use weft_turn::{Abandoned, DaemonPage, Demand, Grant, Report};

use crate::due::{Due, Telling};
use crate::page::ControlPage;

/// A control page and the doorbell that its session sleeps on.
#[derive(Debug)]
pub struct DaemonSide {
    page: ControlPage,
    doorbell: WakeFlag,
}

impl DaemonSide {
    /// Of a session that sleeps on `doorbell`.
    #[must_use]
    pub fn new(page: ControlPage, doorbell: WakeFlag) -> Self {
        Self { page, doorbell }
    }

    /// The last report of a session whose worker is dead since `now_ns` of the device's clock, and
    /// how much of it is for what was in flight. Nobody reported that, so it is bounded by what the
    /// device could do since `granted_ns`, when the session's last grant was given, and by
    /// `most_ns` where it stays for longer.
    #[must_use]
    pub fn final_report(
        &self,
        now_ns: u64,
        granted_ns: u64,
        abandoned: Abandoned,
        most_ns: u64,
    ) -> (Report, u64) {
        let mut report = self.report();
        let owed_ns = self.page.abandoned_ns(now_ns, abandoned);
        let passed_ns = now_ns.saturating_sub(granted_ns);
        let bound_ns = match abandoned {
            Abandoned::Ends => passed_ns,
            // What a page says of the future is believed up to what a holder may take.
            Abandoned::Stays => report.in_flight_ns.min(most_ns).max(passed_ns),
        };
        let owed_ns = owed_ns.min(bound_ns);
        report.used_ns = report.used_ns.saturating_add(owed_ns);
        report.in_flight_ns = 0;
        (report, owed_ns)
    }

    /// When the session's work in flight is over if nobody takes it back, as its holder said, in ns
    /// of the device's clock; 0 without any.
    #[must_use]
    pub fn occupied_until_ns(&self) -> u64 {
        self.page.occupied_until_ns()
    }

    /// Switches the gate off or on for this session.
    pub fn set_unmanaged(&self, unmanaged: bool) {
        self.page.unmanaged.store(u32::from(unmanaged), Ordering::Release);
        self.doorbell.wake();
    }

    /// Sets whether a holder has to earn the time for which it keeps a turn without work.
    pub fn set_grace_earned(&self, earned: bool) {
        self.page.earned.store(u32::from(earned), Ordering::Relaxed);
    }

    /// Sets the device time that may still be in flight when a turn is released, in ns.
    pub fn set_lead(&self, lead_ns: u64) {
        self.page.lead.store(lead_ns, Ordering::Release);
    }

    /// Asks the session to stand still and to say so, once for each `number`.
    pub fn ask_to_pause(&self, number: u64) {
        self.page.pause.store(number, Ordering::Release);
        // Whether its worker sleeps is said in memory that its program writes to.
        self.doorbell.wake_surely();
    }

    /// Asks the session to tell of results, or no more.
    pub fn set_telling(&self, telling: Telling) {
        self.page.telling.store(telling.pack(), Ordering::Relaxed);
    }

    /// The caller whose result is due first; `None` while nobody waits for one.
    #[must_use]
    pub fn due(&self) -> Option<Due> {
        Due::unpack(self.page.due.load(Ordering::Acquire))
    }
}

impl DaemonPage for DaemonSide {
    fn report(&self) -> Report {
        self.page.report()
    }

    fn released(&self) -> u64 {
        // SYNC: acquires what the session wrote before its release.
        self.page.released.load(Ordering::Acquire)
    }

    fn used_ns(&self) -> u64 {
        self.page.used.load(Ordering::Acquire)
    }

    fn grant(&self) -> Grant {
        self.page.load_grant()
    }

    fn store_slice(&self, ns: Option<u64>) {
        // A grant, which publishes it, follows.
        self.page.slice.store(ns.unwrap_or(0), Ordering::Relaxed);
    }

    fn store_grant(&self, grant: &Grant) {
        self.page.store_grant(grant);
    }

    fn revoke(&self, epoch: u64) {
        self.page.revoke.store(epoch, Ordering::Release);
        // SYNC: the revocation is ordered before the look at the demand; pairs with
        // `HolderSide::announce`.
        fence(Ordering::SeqCst);
    }

    fn demand(&self) -> Demand {
        self.page.load_demand()
    }

    fn prepare(&self, epoch: u64) {
        self.page.prepare.store(epoch, Ordering::Release);
    }

    fn wake(&self) {
        self.doorbell.wake();
    }
}
