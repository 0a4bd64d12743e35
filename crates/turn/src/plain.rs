//! A control page in plain memory, for simulators and tests: both halves see it as the node's see
//! theirs in shared memory.

use alloc::rc::Rc;
use core::cell::Cell;

use crate::page::{DaemonPage, Demand, Grant, GrantKind, HolderPage, Report};

/// What the daemon must be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Nothing.
    #[default]
    None,
    /// It finds out when it wakes anyway.
    Mark,
    /// It is woken.
    Ring,
}

/// A control page; clones are the same page.
#[derive(Clone, Debug)]
pub struct PlainPage(Rc<Words>);

#[derive(Debug)]
struct Words {
    grant: Cell<Grant>,
    granted_ns: Cell<u64>,
    slice_ns: Cell<Option<u64>>,
    revoked: Cell<u64>,
    prepared: Cell<u64>,
    report: Cell<Report>,
    /// What the holder wants the daemon to know of.
    signal: Cell<Signal>,
    terms: Terms,
    /// The run's clock.
    now_ns: Rc<Cell<u64>>,
}

/// What does not change while a session lasts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Device time that may still be in flight when a turn is released, in ns.
    pub lead_ns: u64,
    /// No gate applies.
    pub unmanaged: bool,
    /// Holders have to earn the time for which they keep a turn without work.
    pub earned: bool,
    /// Turns are slices of wall time, whatever the device executes meanwhile: the competitors that
    /// know nothing of device time.
    pub by_wall: bool,
}

impl PlainPage {
    /// A page of a session whose run has this clock, in ns.
    #[must_use]
    pub fn new(terms: Terms, now_ns: Rc<Cell<u64>>) -> Self {
        let grant = Grant { epoch: 0, budget_ns: 0, kind: GrantKind::Turn, follows: false };
        let report = Report {
            demand: Demand::Idle,
            demand_ns: 0,
            used_ns: 0,
            in_flight_ns: 0,
            idle_ns: 0,
            released: 0,
            sync_calls: 0,
            pieces: 0,
        };
        Self(Rc::new(Words {
            grant: Cell::new(grant),
            granted_ns: Cell::new(0),
            slice_ns: Cell::new(None),
            revoked: Cell::new(0),
            prepared: Cell::new(0),
            report: Cell::new(report),
            signal: Cell::new(Signal::None),
            terms,
            now_ns,
        }))
    }

    /// Whether turns are slices of wall time.
    #[must_use]
    pub fn is_by_wall(&self) -> bool {
        self.0.terms.by_wall
    }

    /// What the daemon must be told since the last call.
    #[must_use]
    pub fn take_signal(&self) -> Signal {
        self.0.signal.take()
    }

    fn signal(&self, signal: Signal) {
        self.0.signal.set(self.0.signal.get().max(signal));
    }

    fn change(&self, change: impl FnOnce(&mut Report)) {
        let mut report = self.0.report.get();
        change(&mut report);
        self.0.report.set(report);
    }
}

impl HolderPage for PlainPage {
    fn grant_epoch(&self) -> u64 {
        self.0.grant.get().epoch
    }

    fn grant(&self) -> Grant {
        self.0.grant.get()
    }

    fn revoked(&self) -> u64 {
        self.0.revoked.get()
    }

    fn prepared(&self) -> u64 {
        self.0.prepared.get()
    }

    fn is_unmanaged(&self) -> bool {
        self.0.terms.unmanaged
    }

    fn is_grace_earned(&self) -> bool {
        self.0.terms.earned
    }

    fn lead_ns(&self) -> u64 {
        self.0.terms.lead_ns
    }

    fn slice_ns(&self) -> Option<u64> {
        self.0.slice_ns.get()
    }

    fn report(&self) -> Report {
        self.0.report.get()
    }

    fn passed_ns(&self, _grant: &Grant) -> Option<u64> {
        self.0.terms.by_wall.then(|| self.0.now_ns.get() - self.0.granted_ns.get())
    }

    fn show_used(&self, ns: u64) {
        self.change(|report| report.used_ns = ns);
    }

    fn show_in_flight(&self, ns: u64) {
        self.change(|report| report.in_flight_ns = ns);
    }

    fn add_idle(&self, ns: u64) {
        self.change(|report| report.idle_ns += ns);
    }

    fn show_demand(&self, ns: u64) {
        self.change(|report| report.demand_ns = ns);
    }

    fn announce(&self, demand: Demand) {
        self.change(|report| report.demand = demand);
    }

    fn show_released(&self, epoch: u64) {
        self.change(|report| report.released = epoch);
    }

    fn show_sync_calls(&self, calls: u64) {
        self.change(|report| report.sync_calls = calls);
    }

    fn ring(&self) {
        self.signal(Signal::Ring);
    }

    fn mark(&self) {
        self.signal(Signal::Mark);
    }
}

impl DaemonPage for PlainPage {
    fn report(&self) -> Report {
        self.0.report.get()
    }

    fn released(&self) -> u64 {
        self.0.report.get().released
    }

    fn used_ns(&self) -> u64 {
        self.0.report.get().used_ns
    }

    fn grant(&self) -> Grant {
        self.0.grant.get()
    }

    fn store_slice(&self, ns: Option<u64>) {
        self.0.slice_ns.set(ns);
    }

    fn store_grant(&self, grant: &Grant) {
        self.0.granted_ns.set(self.0.now_ns.get());
        self.0.grant.set(*grant);
    }

    fn revoke(&self, epoch: u64) {
        self.0.revoked.set(epoch);
    }

    fn demand(&self) -> Demand {
        self.0.report.get().demand
    }

    fn prepare(&self, epoch: u64) {
        self.0.prepared.set(epoch);
    }

    /// Nobody sleeps on plain memory: whoever drives both halves sees to it.
    fn wake(&self) {}
}
