use std::process::Command;
use std::sync::Arc;

use weft_ring::peer::Process;

use super::*;
use crate::daemon::process::WorkerProcess;
use crate::daemon::registry::name_of_user;
use crate::daemon::roles::Role;
use crate::daemon::tests::{ALICE, BOB, Fixture};

const PATIENCE: Duration = Duration::from_secs(30);

fn user(uid: u32) -> Caller {
    Caller { uid, payer: uid, role: Role::User }
}

fn request(json: &str) -> Request {
    serde_json::from_str(json).unwrap()
}

fn text(answer: &Answer) -> String {
    serde_json::to_string(answer).unwrap()
}

#[test]
fn what_is_not_there_is_not_changed_and_what_is_somebody_elses_neither() {
    let node = Fixture::new(&[]);
    let name = name_of_user(ALICE);
    let change = request(&format!(r#"{{"op":"set","name":"{name}","weight":1}}"#));
    let removal = request(&format!(r#"{{"op":"remove","name":"{name}","force":true}}"#));
    let ask = |request: &Request| {
        let answer = node.daemon.answer_admin(request.clone(), user(BOB));
        (matches!(answer, Answer::Error { .. }), text(&answer))
    };
    for request in [&change, &removal] {
        let (is_refused, text) = ask(request);
        assert!(is_refused && text.contains("no vGPU"), "{text}");
    }
    node.reservation(ALICE, "").unwrap();
    let before = node.daemon.tables().registry.find(&name).unwrap().clone();
    for request in [&change, &removal] {
        let (is_refused, text) = ask(request);
        assert!(is_refused && text.contains(&ALICE.to_string()), "{text}");
    }
    assert_eq!(*node.daemon.tables().registry.find(&name).unwrap(), before);
}

/// The two used to take the lock one after the other.
#[test]
fn permission_is_asked_under_the_lock_that_acts() {
    let node = Fixture::new(&[]);
    let change = Change { weight: Some(1), ..Change::default() };
    node.daemon.set_vgpus(&["x".to_owned()], &change, user(BOB)).unwrap_err();
    node.reservation(ALICE, "x").unwrap();
    // Whoever calls what acts, without asking before, is refused all the same.
    node.daemon.set_vgpus(&["x".to_owned()], &change, user(BOB)).unwrap_err();
    node.daemon.remove_vgpu("x", true, user(BOB)).unwrap_err();
    node.daemon.set_vgpus(&["x".to_owned()], &change, user(ALICE)).unwrap();
}

#[test]
fn who_removes_a_vgpu_ends_no_session_of_the_one_that_has_its_key_next() {
    let node = Fixture::new(&[]);
    let daemon = &node.daemon;
    let sleep = || Command::new("sleep").arg("600").spawn().unwrap();
    let (first, mut other) = (sleep(), sleep());
    let employ = |uid, name: &str, process: u32| {
        let reservation = node.reservation(uid, name).unwrap();
        let mut tables = daemon.tables();
        let key = tables.registry.find(name).unwrap().key;
        let entry = tables.sessions.values_mut().find(|entry| entry.vgpu == key).unwrap();
        entry.worker = Some(WorkerProcess::new(Process::open(process).unwrap(), process));
        (reservation, key)
    };
    let (_seat, key) = employ(ALICE, "x", first.id());
    let removing = Arc::clone(daemon);
    let removal = thread::spawn(move || removing.remove_vgpu("x", true, user(ALICE)));
    assert!(Process::open(first.id()).unwrap().wait_exit(PATIENCE));
    let refused = node.reservation(ALICE, "x").unwrap_err();
    assert!(refused.message.contains("`x` is being removed"), "{}", refused.message);
    // Its session ends, another request removes it, and Bob's vGPU gets the key: in one step for
    // the one that still waits.
    let mut tables = daemon.tables();
    tables.sessions.retain(|_, entry| entry.vgpu != key);
    tables.registry.remove("x").unwrap();
    drop(tables);
    let (_seat, others_key) = employ(BOB, "y", other.id());
    assert_eq!(key, others_key);
    removal.join().unwrap().unwrap();
    assert!(other.try_wait().unwrap().is_none(), "another user's worker was killed");
    for mut child in [first, other] {
        let _ = child.kill();
        child.wait().unwrap();
    }
}
