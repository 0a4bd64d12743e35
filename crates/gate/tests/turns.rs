//! A daemon and workers over real pages, each side on its own thread.

#![expect(clippy::unwrap_used, reason = "a panic is the report")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weft_gate::{
    ControlPage, DaemonSide, GateDaemon, GateWorker, HolderSide, NODE_SESSIONS, NodePage, PageError,
};
use weft_ring::{Access, MemoryFile, PAGE, SharedMemory, WakeFlag};
use weft_turn::{Abandoned, Admission, Demand, GrantKind, Revocation, WaitFor};

fn pages() -> (GateDaemon, GateWorker, NodePage, WakeFlag) {
    let file = ControlPage::create().unwrap();
    let open = || ControlPage::open(&file.map(Access::ReadWrite).unwrap()).unwrap();
    let node = NodePage::create().unwrap();
    let node = || NodePage::open(&node.map(Access::ReadWrite).unwrap()).unwrap();
    let daemon = GateDaemon::new(DaemonSide::new(open(), open().doorbell().clone()));
    let doorbell = open().doorbell().clone();
    (daemon, GateWorker::new(HolderSide::new(open(), node(), 7)), node(), doorbell)
}

fn dirty(node: &NodePage) -> Vec<u32> {
    node.take_dirty().collect()
}

#[test]
fn a_turn_admits_its_budget_and_is_handed_over_when_drained() {
    let (mut daemon, mut worker, node, _) = pages();
    daemon.page().set_lead(100);
    worker.set_runnable(5_000);
    assert_eq!(worker.admit(10), Admission::Wait(WaitFor::Grant));
    assert_eq!(daemon.report().demand, Demand::Runnable);
    daemon.grant(1_000, GrantKind::Turn);
    assert_eq!(worker.admit(600), Admission::Admitted { left_ns: 1_000 });
    assert_eq!(worker.admit(600), Admission::Admitted { left_ns: 400 });
    assert_eq!(worker.admit(1), Admission::Wait(WaitFor::Handover));
    assert_eq!(daemon.report().admitted_ns(), 1_200);
    dirty(&node);
    assert!(!worker.try_release(101));
    assert!(daemon.is_held());
    assert!(worker.try_release(100));
    assert!(!daemon.is_held());
    assert_eq!(dirty(&node), [7]);
    // What was in flight is still charged, and the daemon hears of it when it has drained.
    worker.charge(600, 550);
    assert_eq!(dirty(&node), []);
    worker.charge(600, 700);
    assert_eq!(dirty(&node), [7]);
    let report = daemon.report();
    assert_eq!((report.used_ns, report.in_flight_ns, report.released), (1_250, 0, 1));
}

/// A kernel that outlives its estimate flies on when its turn was given back, and whoever comes
/// next waits for it: a command that would wait for what flies only while nobody does has to wait.
#[test]
fn who_gave_a_turn_back_early_is_not_alone_before_what_flies_has_drained() {
    let (mut daemon, mut worker, ..) = pages();
    daemon.page().set_lead(550);
    worker.set_runnable(0);
    daemon.grant(6_000, GrantKind::Turn);
    assert!(matches!(worker.admit(200_000), Admission::Admitted { .. }));
    assert!(!worker.is_alone());
    assert!(worker.try_release(550));
    assert!(!worker.is_alone(), "its successor waits for what flies");
    worker.charge(200_000, 230_000);
    assert!(worker.is_alone());
}

/// Work that stays is charged so much at most, in ns.
const MOST_NS: u64 = 100_000;

/// What a session owes that ends: since its oldest operation began, or what was reserved, if that
/// is more; never more than could have been since its grant.
#[test]
fn a_session_that_ends_owes_what_is_in_flight() {
    let (mut daemon, mut worker, ..) = pages();
    worker.set_runnable(0);
    daemon.grant(10_000, GrantKind::Turn);
    worker.admit(500);
    worker.page().set_front(2_000);
    let owed = |now_ns, abandoned| daemon.page().final_report(now_ns, 1_000, abandoned, MOST_NS).1;
    assert_eq!(owed(2_100, Abandoned::Ends), 100);
    assert_eq!(owed(2_100, Abandoned::Stays), 500);
    assert_eq!(owed(9_000, Abandoned::Ends), 7_000);
    assert_eq!(owed(9_000, Abandoned::Stays), 7_000);
    worker.page().set_front(0);
    assert_eq!(owed(2_000, Abandoned::Ends), 1_000, "the page says more than has passed");
    assert_eq!(owed(2_000, Abandoned::Stays), 1_000);
    // A page that lies about the future.
    worker.admit(u64::MAX / 2);
    assert_eq!(owed(2_000, Abandoned::Stays), MOST_NS);
    worker.charge(u64::MAX / 2, 0);
    worker.charge(500, 400);
    assert_eq!(owed(9_000, Abandoned::Ends), 0);
    assert_eq!(owed(9_000, Abandoned::Stays), 0);
}

#[test]
fn charges_replace_estimates_in_the_turn() {
    let (mut daemon, mut worker, ..) = pages();
    worker.set_runnable(0);
    daemon.grant(1_000, GrantKind::Turn);
    worker.admit(900);
    worker.charge(900, 100);
    assert_eq!(worker.admit(900), Admission::Admitted { left_ns: 900 });
    worker.charge(900, 2_000);
    assert_eq!(worker.admit(1), Admission::Wait(WaitFor::Handover));
}

#[test]
fn a_launch_that_would_take_for_ever_does_not_renew_the_budget() {
    let (mut daemon, mut worker, ..) = pages();
    worker.set_runnable(0);
    daemon.grant(6_000, GrantKind::Turn);
    worker.admit(3_000);
    // It is cut to what is left of the turn.
    assert_eq!(worker.admit(u64::MAX), Admission::Admitted { left_ns: 3_000 });
    worker.shorten(u64::MAX - 3_000);
    assert_eq!(daemon.report().in_flight_ns, 6_000);
    worker.charge(3_000, 3_000);
    worker.charge(3_000, 3_000);
    assert_eq!(worker.admit(u64::MAX), Admission::Wait(WaitFor::Handover));
    // Even one that cannot be cut counts for what it took.
    daemon.grant(6_000, GrantKind::Turn);
    worker.admit(3_000);
    worker.admit(u64::MAX);
    worker.charge(3_000, 3_000);
    worker.charge(u64::MAX, 3_000);
    assert_eq!(worker.admit(1), Admission::Wait(WaitFor::Handover));
    assert_eq!(daemon.report().in_flight_ns, 0);
}

#[test]
fn a_charge_after_the_turn_does_not_touch_the_next_one() {
    let (mut daemon, mut worker, ..) = pages();
    worker.set_runnable(0);
    daemon.grant(100, GrantKind::Turn);
    worker.admit(100);
    assert!(worker.try_release(0));
    daemon.grant(100, GrantKind::Turn);
    assert_eq!(worker.admit(60), Admission::Admitted { left_ns: 100 });
    // The first turn's operation took longer than it was estimated: it is used, but not this
    // turn's.
    worker.charge(100, 150);
    assert_eq!(worker.admit(60), Admission::Admitted { left_ns: 40 });
    assert_eq!(daemon.report().used_ns, 150);
}

#[test]
fn a_lone_tenant_runs_without_the_daemon() {
    let (mut daemon, mut worker, node, _) = pages();
    worker.set_runnable(0);
    daemon.grant(1_000, GrantKind::Renewing);
    dirty(&node);
    for _ in 0..100 {
        worker.admit(600);
        worker.admit(600);
        assert_eq!(worker.admit(600), Admission::Wait(WaitFor::Completion));
        assert!(!worker.try_release(0));
        worker.charge(600, 600);
        worker.charge(600, 600);
        worker.set_idle();
        worker.set_runnable(0);
    }
    assert!(daemon.is_held());
    assert_eq!(daemon.revoke(), Revocation::Asked);
    assert_eq!(worker.admit(600), Admission::Wait(WaitFor::Handover));
    assert!(worker.try_release(0));
    assert!(!daemon.is_held());
    assert_eq!(daemon.report().used_ns, 100 * 1_200);
}

/// A grant that its session has no use of is taken back without it, and gives it nothing whenever
/// it looks; the next one does.
fn is_taken_back(daemon: &mut GateDaemon, worker: &mut GateWorker, node: &NodePage) {
    assert_eq!(daemon.revoke(), Revocation::Free);
    assert!(!daemon.is_held());
    dirty(node);
    worker.set_runnable(0);
    assert_eq!(dirty(node), [7]);
    assert_eq!(worker.admit(1), Admission::Wait(WaitFor::Grant));
    daemon.grant(1_000, GrantKind::Turn);
    assert_eq!(worker.admit(1), Admission::Admitted { left_ns: 1_000 });
    assert!(daemon.is_held());
}

#[test]
fn an_idle_lone_tenant_loses_the_device_without_being_asked() {
    let (mut daemon, mut worker, node, _) = pages();
    worker.set_runnable(0);
    daemon.grant(1_000, GrantKind::Renewing);
    assert!(worker.is_holder());
    worker.set_idle();
    is_taken_back(&mut daemon, &mut worker, &node);
}

/// A grant and the end of the demand may cross, and the worker then compiles for seconds.
#[test]
fn a_turn_that_came_to_who_wants_nothing_is_taken_back_without_it() {
    let (mut daemon, mut worker, node, _) = pages();
    worker.set_runnable(0);
    worker.set_idle();
    daemon.grant(1_000, GrantKind::Turn);
    is_taken_back(&mut daemon, &mut worker, &node);
}

#[test]
fn an_idle_turn_ends_at_once() {
    let (mut daemon, mut worker, node, _) = pages();
    worker.set_runnable(0);
    daemon.grant(1_000, GrantKind::Turn);
    worker.admit(10);
    worker.charge(10, 10);
    dirty(&node);
    worker.set_idle();
    assert!(!daemon.is_held());
    assert_eq!(dirty(&node), [7]);
    assert_eq!(daemon.revoke(), Revocation::Free);
}

#[test]
fn unmanaged_admits_always_and_still_charges() {
    let (daemon, mut worker, ..) = pages();
    daemon.page().set_unmanaged(true);
    assert_eq!(worker.admit(10), Admission::Admitted { left_ns: u64::MAX });
    worker.charge(10, 12);
    assert_eq!(daemon.report().used_ns, 12);
    daemon.page().set_unmanaged(false);
    assert_eq!(worker.admit(10), Admission::Wait(WaitFor::Grant));
}

#[test]
fn a_worker_that_claims_more_than_the_clock_is_overdue() {
    let (mut daemon, mut worker, ..) = pages();
    daemon.grant(1_000, GrantKind::Turn);
    worker.admit(1);
    worker.charge(1, 500);
    assert!(!daemon.is_overdue(400, 100));
    assert!(daemon.is_overdue(399, 100));
}

#[test]
fn a_restarted_daemon_adopts_the_grant() {
    let file = ControlPage::create().unwrap();
    let open = || ControlPage::open(&file.map(Access::ReadWrite).unwrap()).unwrap();
    let daemon = || GateDaemon::new(DaemonSide::new(open(), open().doorbell().clone()));
    let mut worker = GateWorker::new(HolderSide::new(open(), NodePage::anonymous().unwrap(), 0));
    daemon().grant(1_000, GrantKind::Turn);
    worker.admit(1_000);
    let mut adopted = daemon();
    assert!(adopted.is_held());
    assert!(worker.try_release(0));
    assert!(!adopted.is_held());
    assert_eq!(adopted.grant(5, GrantKind::Turn).epoch, 2);
    assert_eq!(worker.admit(1), Admission::Admitted { left_ns: 5 });
}

#[test]
fn pages_of_another_kind_are_refused() {
    let memory = SharedMemory::anonymous(PAGE).unwrap();
    assert!(matches!(ControlPage::open(&memory), Err(PageError::Layout { found: 0 })));
    let node: MemoryFile = NodePage::create().unwrap();
    let node = node.map(Access::ReadWrite).unwrap();
    assert!(matches!(ControlPage::open(&node), Err(PageError::Layout { found: 0 })));
}

#[test]
fn every_mark_is_taken_once_and_bad_numbers_are_ignored() {
    let node = NodePage::anonymous().unwrap();
    for session in [0, 63, 64, NODE_SESSIONS - 1, NODE_SESSIONS, u32::MAX, 63] {
        node.ring(session);
    }
    assert_eq!(dirty(&node), [0, 63, 64, NODE_SESSIONS - 1]);
    assert!(dirty(&node).is_empty());
}

/// Two workers take turns under a daemon that only sleeps on the node's doorbell: nobody ever holds
/// the device together with the other, and no wake-up is lost.
#[test]
fn two_workers_alternate() {
    const TURNS: u64 = 300;
    let node = NodePage::create().unwrap();
    let node = || NodePage::open(&node.map(Access::ReadWrite).unwrap()).unwrap();
    let busy = Arc::new(AtomicBool::new(false));
    let (mut daemons, mut workers) = (Vec::new(), Vec::new());
    for session in 0..2 {
        let file = ControlPage::create().unwrap();
        let open = || ControlPage::open(&file.map(Access::ReadWrite).unwrap()).unwrap();
        daemons.push(GateDaemon::new(DaemonSide::new(open(), open().doorbell().clone())));
        let (mut worker, doorbell) =
            (GateWorker::new(HolderSide::new(open(), node(), session)), open().doorbell().clone());
        let busy = Arc::clone(&busy);
        workers.push(thread::spawn(move || {
            worker.set_runnable(1);
            let mut turns = 0;
            while turns < TURNS {
                match worker.admit(100) {
                    Admission::Admitted { .. } => {
                        assert!(!busy.swap(true, Ordering::AcqRel), "two holders");
                        worker.charge(100, 100);
                        busy.store(false, Ordering::Release);
                        turns += u64::from(worker.try_release(0));
                    }
                    Admission::Wait(_) => {
                        weft_gate::wait(&worker, &doorbell, None, || None::<()>).unwrap();
                    }
                }
            }
            worker.set_idle();
        }));
    }
    let (page, mut holder) = (node(), None::<usize>);
    loop {
        let reports: Vec<_> = daemons.iter().map(GateDaemon::report).collect();
        if reports.iter().all(|report| report.released >= TURNS) {
            break;
        }
        if holder.is_none_or(|holder| !daemons[holder].is_held()) {
            let next = (0..2)
                .filter(|&i| reports[i].demand == Demand::Runnable && !daemons[i].is_held())
                .min_by_key(|&i| reports[i].used_ns);
            if let Some(next) = next {
                daemons[next].prepare();
                daemons[next].grant(300, GrantKind::Turn);
                holder = Some(next);
            }
        }
        let limit = Some(Duration::from_secs(20));
        page.wait(Duration::ZERO, limit, || None::<()>).unwrap();
        page.take_dirty().for_each(drop);
    }
    for worker in workers {
        worker.join().unwrap();
    }
    assert!(daemons.iter().all(|daemon| daemon.report().used_ns == TURNS * 300));
}
