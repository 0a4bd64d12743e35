//! Loom models: every interleaving of a daemon that takes the device back and a worker that is
//! about to use it, up to a few preemptions.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p weft-gate --release --lib models`

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;
use weft_ring::WakeFlag;
use weft_turn::{Admission, DaemonPage, GrantKind, HolderPage, Revocation};

use crate::{ControlPage, DaemonSide, GateDaemon, GateWorker, HolderSide, NodePage};

const BUDGET_NS: u64 = 10;

fn sides() -> (GateDaemon, GateWorker) {
    let (page, node) = (ControlPage::modelled(), NodePage::modelled());
    let daemon = GateDaemon::new(DaemonSide::new(page.clone(), WakeFlag::modelled()));
    (daemon, GateWorker::new(HolderSide::new(page, node, 0)))
}

/// A worker that finds work uses the device if it may, and gives back what it was granted.
fn work(worker: &mut GateWorker, device: &Mutex<u64>) {
    worker.set_runnable(1);
    if let Admission::Admitted { .. } = worker.admit(1) {
        *device.try_lock().expect("whoever is admitted has the device alone") += 1;
        worker.charge(1, 1);
    }
    while worker.page().report().released == 0 {
        match worker.is_holder() {
            true => worker.release_idle(),
            false => thread::yield_now(),
        }
    }
}

/// The daemon takes the device back, and has it for whoever is next.
fn take_back(daemon: &mut GateDaemon, device: &Mutex<u64>) {
    if daemon.revoke() == Revocation::Asked {
        while daemon.is_held() {
            thread::yield_now();
        }
    }
    let next = device.try_lock().expect("whoever is next has the device alone");
    assert_eq!(daemon.page().used_ns(), *next);
}

/// A grant that is revoked as soon as it was given: when the device is said to be free, or was
/// given back, its worker does not use it any more, and all that it used has been told.
#[test]
fn models_revocation() {
    loom::model(|| {
        let device = Arc::new(Mutex::new(0));
        let (mut daemon, mut worker) = sides();
        let works = thread::spawn({
            let device = Arc::clone(&device);
            move || work(&mut worker, &device)
        });
        daemon.grant(BUDGET_NS, GrantKind::Turn);
        take_back(&mut daemon, &device);
        works.join().unwrap();
    });
}

/// The same of a worker that had the device, rested and finds work again.
#[test]
fn models_revocation_of_a_renewing_grant() {
    loom::model(|| {
        let device = Arc::new(Mutex::new(0));
        let (mut daemon, mut worker) = sides();
        daemon.grant(BUDGET_NS, GrantKind::Renewing);
        worker.set_runnable(1);
        worker.set_idle();
        let works = thread::spawn({
            let device = Arc::clone(&device);
            move || work(&mut worker, &device)
        });
        take_back(&mut daemon, &device);
        works.join().unwrap();
    });
}
