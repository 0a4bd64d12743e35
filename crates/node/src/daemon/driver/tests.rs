//! The driver with real control pages and a process in the place of the worker.

use std::process::Command;
use std::sync::mpsc;
use std::thread;

use weft_gate::{ControlPage, GateWorker, HolderSide};
use weft_ring::peer::Process;
use weft_sched::{Class, Config};
use weft_turn::{Admission, WaitFor};

use super::*;
use crate::config::CoschedulingConfig;

const DEVICE: DeviceKey = DeviceKey(0);
const PATIENCE: Duration = Duration::from_secs(30);

fn driver(config: Config) -> (Driver, Handle, NodePage) {
    let page = NodePage::anonymous().unwrap();
    let (orders, received) = mpsc::channel();
    let handle = Handle::new(orders, page.doorbell().clone());
    let (node, memory) = (Node::new(), NodePage::create().unwrap());
    let devices = vec![DrivenDevice { key: DEVICE, config, abandoned: Abandoned::Ends }];
    let coscheduler = Coscheduler::new(CoschedulingConfig::Off, memory, 0);
    let (kept, saver) = (page.clone(), Saver::default());
    let driver =
        Driver::new(node, page, received, saver, (1, BTreeMap::new()), coscheduler, devices);
    (driver, handle, kept)
}

#[test]
fn a_flood_of_orders_keeps_nobody_from_being_looked_at() {
    let (mut driver, handle, _page) = driver(Config::default());
    let (answer, views) = mpsc::channel();
    for _ in 0..10 * ORDERS_MAX {
        handle.send(Order::View(answer.clone()));
    }
    handle.send(Order::Stop);
    for round in 1..=10 {
        assert!(!driver.carry_out_some(), "round {round} ended the driver");
        assert_eq!(views.try_iter().count(), ORDERS_MAX);
    }
    assert!(driver.carry_out_some());
}

#[test]
fn a_worker_that_claims_more_time_than_has_passed_is_killed() {
    let config = Config { overdue_ns: 1_000_000_000, ..Config::default() };
    let (driver, handle, page) = driver(config);
    let driver = thread::spawn(move || driver.run(None));
    let mut process = Command::new("sleep").arg("600").spawn().unwrap();
    let control = ControlPage::anonymous().unwrap();
    let beginning = Beginning {
        session: 0,
        id: 1,
        vgpu: 0,
        gate: GateDaemon::new(DaemonSide::new(control.clone(), control.doorbell().clone())),
        worker: Arc::new(WorkerProcess::new(Process::open(process.id()).unwrap(), process.id())),
        waiters: None,
    };
    let (device, weight) = (DEVICE, Weight::ONE);
    let place = Place {
        vgpu: 0,
        device,
        tenant: 0,
        owner: None,
        tenant_weight: weight,
        tenant_cap: None,
        weight,
        cap: None,
        class: Class::Batch,
    };
    handle.send(Order::Place(place));
    handle.send(Order::Begin(Box::new(beginning)));
    let mut worker = GateWorker::new(HolderSide::new(control, page.clone(), 0));
    worker.set_runnable(1_000);
    let deadline = Instant::now() + PATIENCE;
    while worker.admit(1_000) == Admission::Wait(WaitFor::Grant) {
        assert!(Instant::now() < deadline, "no grant came");
        thread::yield_now();
    }
    // As much as the slack allows is not taken for a lie.
    worker.charge(1_000, 900_000_000);
    page.ring(0);
    let view = handle.ask(Order::View).unwrap();
    assert_eq!(view.sessions[&0].used_ns, 900_000_000);
    assert!(process.try_wait().unwrap().is_none(), "an honest worker was killed");
    worker.charge(0, 3_600_000_000_000);
    page.ring(0);
    assert!(Process::open(process.id()).unwrap().wait_exit(PATIENCE));
    process.wait().unwrap();
    handle.send(Order::Stop);
    driver.join().unwrap();
}
