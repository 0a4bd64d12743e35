//! How daemons end and the next ones begin, with tenants that make it hard.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

mod support;

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, Signal};
use weft_ring::{Access, AtomicU64, MemoryFile, Ordering, peer};

use self::support::{Node, eventually, hello};

/// Overwrites the header of a session's segment, as its tenant can at any time.
fn spoil(segment: &OwnedFd) {
    let file = MemoryFile::received(segment.try_clone().unwrap()).unwrap();
    let memory = file.map(Access::ReadWrite).unwrap();
    memory.cell::<AtomicU64>(0).unwrap().store(0, Ordering::SeqCst);
}

#[test]
fn a_tenant_that_spoils_its_segment_keeps_no_daemon_from_starting() {
    let mut node = Node::start(&[]);
    let (_, honest) = node.attach(&hello());
    let (_, hostile) = node.attach(&hello());
    spoil(&hostile[0]);
    node.kill();
    node.restart(&[]);
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 1);
    assert_eq!(node.sessions(), 1, "the honest tenant's");
    eventually("the spoiled session's worker to end", || peer::has_hung_up(&hostile[2]));
    assert!(!peer::has_hung_up(&honest[2]));
}

#[test]
fn an_idle_administrator_does_not_hold_up_the_end() {
    let mut node = Node::start(&[]);
    let mut idle = node.admin();
    idle.node().unwrap();
    node.admin().shutdown().unwrap();
    eventually("the daemon to end", || node.process.try_wait().unwrap().is_some());
    node.restart(&[]);
    drop(idle);
}

#[test]
fn tenants_do_not_crowd_out_administrators() {
    let node = Node::start(&["limits.sessions=1", "limits.attach_ms=60000"]);
    let silent: Vec<OwnedFd> =
        (0..100).map(|_| peer::connect(&node.path("tenant.sock")).unwrap()).collect();
    // Those beyond the bound are turned away.
    eventually("the bound", || silent.iter().any(peer::has_hung_up));
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 0);
}

#[test]
fn a_daemon_that_is_told_to_terminate_leaves_its_sessions_to_the_next() {
    let mut node = Node::start(&[]);
    let (_, session) = node.attach(&hello());
    let daemon = Pid::from_child(&node.process);
    rustix::process::kill_process(daemon, Signal::TERM).unwrap();
    eventually("the daemon to end", || node.process.try_wait().unwrap().is_some());
    assert!(!peer::has_hung_up(session[2].as_fd()));
    node.restart(&[]);
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 1);
    rustix::process::kill_process(Pid::from_child(&node.process), Signal::INT).unwrap();
    eventually("the session to end with the daemon", || peer::has_hung_up(session[2].as_fd()));
}

#[test]
fn what_could_not_be_saved_is_not_lost() {
    let mut node = Node::start(&[]);
    let mut tenant = hello();
    tenant.body.vgpu = "kept".to_owned();
    drop(node.attach(&tenant));
    eventually("the session to end", || node.sessions() == 0);
    // Nothing can be written where changes go.
    let obstacle = node.path("state/vgpus.log");
    eventually("the last save to be over", || {
        let _ = std::fs::remove_file(&obstacle);
        std::fs::create_dir(&obstacle).is_ok()
    });
    let error = node.admin().set("kept", Some(9), None).unwrap_err().to_string();
    assert!(error.contains("could not be saved: cannot write"), "{error}");
    std::fs::remove_dir(&obstacle).unwrap();
    // Another save, of nothing new, brings it to disk.
    node.admin().shutdown().unwrap();
    eventually("the daemon to end", || node.process.try_wait().unwrap().is_some());
    node.restart(&[]);
    assert_eq!(node.admin().list().unwrap()[0].weight, 9);
}
