//! What a tenant can say to a real daemon, and what it gets.

mod support;

use std::os::fd::OwnedFd;

use weft_ring::{Access, MemoryFile, Segment, peer};
use weft_wire::handshake::{HANDSHAKE_BYTES_MAX, HelloBody, RefusalCode};

use self::support::{Node, eventually, hello};

#[test]
fn nonsense_is_refused_in_words() {
    let node = Node::start(&["limits.attach_ms=200"]);
    assert_eq!(node.refused(b"GET / HTTP/1.1").0, RefusalCode::Malformed as u16);
    let mut newer = hello().to_bytes().unwrap();
    newer[4] = 0xff;
    let (code, message) = node.refused(&newer);
    assert_eq!(code, RefusalCode::Version as u16);
    assert!(message.contains("newer"), "{message}");
    let mut cut = hello().to_bytes().unwrap();
    cut.pop();
    assert_eq!(node.refused(&cut).0, RefusalCode::Malformed as u16);
    // A silent tenant is told so, and nobody waits for it meanwhile.
    let silent = peer::connect(&node.path("tenant.sock")).unwrap();
    drop(node.attach(&hello()));
    assert!(peer::receive(&silent, HANDSHAKE_BYTES_MAX).unwrap().is_some());
}

#[test]
fn impossible_wishes_are_refused() {
    let node = Node::start(&[]);
    let with = |change: fn(&mut HelloBody)| {
        let mut hello = hello();
        change(&mut hello.body);
        node.refused(&hello.to_bytes().unwrap())
    };
    assert!(with(|body| body.vgpu = "../escape".to_owned()).1.contains("name"));
    assert!(with(|body| body.memory_bytes = u64::MAX).1.contains("range"));
    assert!(with(|body| body.weight = 10_001).1.contains("10000"));
    // The window lies where the worker cannot have it.
    assert_eq!(with(|body| body.pinned_base = 3).0, RefusalCode::Malformed as u16);
    assert_eq!(with(|body| body.pinned_base = u64::MAX - 4095).0, RefusalCode::Malformed as u16);
    eventually("the failed sessions to be gone", || node.sessions() == 0);
    node.attach(&hello());
}

#[test]
fn a_vgpu_with_a_token_needs_it() {
    let node = Node::start(&[]);
    let mut hello = hello();
    hello.body.vgpu = "mine".to_owned();
    hello.body.token = "secret".to_owned();
    drop(node.attach(&hello));
    hello.body.token = "wrong".to_owned();
    let (code, message) = node.refused(&hello.to_bytes().unwrap());
    assert_eq!(code, RefusalCode::Permission as u16, "{message}");
}

#[test]
fn what_comes_with_an_endpoints_key_is_a_grant_or_nothing() {
    let node = Node::start(&[]);
    let mut hello = hello();
    hello.body.vgpu = "squatted".to_owned();
    for grant in ["x", "weft1", "weft1.00"] {
        hello.body.token = format!("{grant}.{}", "09".repeat(32));
        let (code, message) = node.refused(&hello.to_bytes().unwrap());
        assert_eq!(code, RefusalCode::Permission as u16, "{message}");
        assert!(message.contains("not a grant"), "{message}");
    }
    assert!(node.admin().stats().unwrap().vgpus.iter().all(|vgpu| vgpu.name != "squatted"));
}

#[test]
fn sessions_are_bounded() {
    let node = Node::start(&["limits.sessions=1"]);
    let first = node.attach(&hello());
    assert_eq!(node.refused(&hello().to_bytes().unwrap()).0, RefusalCode::Exhausted as u16);
    drop(first);
    eventually("the first session to end", || node.sessions() == 0);
    node.attach(&hello());
}

#[test]
fn a_user_does_not_fill_the_registry() {
    let node = Node::start(&["limits.vgpus_per_user=2"]);
    let named = |name: &str| {
        let mut hello = hello();
        hello.body.vgpu = name.to_owned();
        hello
    };
    drop(node.attach(&named("a")));
    drop(node.attach(&named("b")));
    let (code, message) = node.refused(&named("c").to_bytes().unwrap());
    assert_eq!(code, RefusalCode::Exhausted as u16);
    assert!(message.contains("limits.vgpus_per_user"), "{message}");
    drop(node.attach(&named("a")));
    // An administrator may give more.
    node.admin().create("c", None, None).unwrap();
    drop(node.attach(&named("c")));
}

#[test]
fn a_tenant_chooses_no_more_than_the_administrator_lets_it() {
    // The test's own user administrates the node: only what is said of it by number binds it.
    let own = rustix::process::getuid().as_raw();
    let bounds = ["weight=3", "weight_total=4", "memory=64MiB"];
    let bounds = bounds.map(|bound| format!("limits.users.{own}.{bound}"));
    let node = Node::start(&bounds.each_ref().map(String::as_str));
    let wish = |name: &str, weight: u32, memory_bytes: u64| {
        let mut hello = hello();
        hello.body.vgpu = name.to_owned();
        (hello.body.weight, hello.body.memory_bytes) = (weight, memory_bytes);
        hello
    };
    for (name, weight, memory, word) in [
        ("heavy", 10_000, 0, "limits.users.*.weight"),
        ("large", 0, 65 << 20, "limits.users.*.memory"),
    ] {
        let (code, message) = node.refused(&wish(name, weight, memory).to_bytes().unwrap());
        assert_eq!(code, RefusalCode::Permission as u16, "{message}");
        assert!(message.contains(word), "{message}");
    }
    let (welcome, _session) = node.attach(&wish("fits", 3, 0));
    assert_eq!(welcome.memory_bytes, 64 << 20, "who asks for nothing gets what it may have");
    let (code, message) = node.refused(&wish("more", 2, 0).to_bytes().unwrap());
    assert_eq!(code, RefusalCode::Permission as u16, "{message}");
    assert!(message.contains("weight_total"), "{message}");
    drop(node.attach(&wish("more", 1, 0)));
}

#[test]
fn where_attaching_creates_nothing_an_administrator_does() {
    let own = rustix::process::getuid().as_raw();
    let node = Node::start(&[&format!("limits.users.{own}.create=false")]);
    let mut hello = hello();
    hello.body.vgpu = "given".to_owned();
    let (code, message) = node.refused(&hello.to_bytes().unwrap());
    assert_eq!(code, RefusalCode::Permission as u16, "{message}");
    assert!(message.contains("weft create"), "{message}");
    node.admin().create("given", None, None).unwrap();
    drop(node.attach(&hello));
}

#[test]
fn the_name_of_another_users_own_vgpu_is_not_to_be_had() {
    let node = Node::start(&[]);
    let other = rustix::process::getuid().as_raw() + 1000;
    let mut hello = hello();
    hello.body.vgpu = format!("user-{other}");
    let (code, message) = node.refused(&hello.to_bytes().unwrap());
    assert_eq!(code, RefusalCode::Permission as u16, "{message}");
    assert!(message.contains(&other.to_string()), "{message}");
}

#[test]
fn closing_the_lifeline_ends_the_session() {
    let node = Node::start(&[]);
    let (_, descriptors) = node.attach(&hello());
    assert_eq!(descriptors.len(), 3);
    assert_eq!(node.sessions(), 1);
    drop(descriptors);
    eventually("the session to end", || node.sessions() == 0);
    assert!(node.workers().is_empty());
}

#[test]
fn a_dead_worker_is_told_through_the_lifeline_and_the_segment() {
    let node = Node::start(&[]);
    let (_, descriptors) = node.attach(&hello());
    let [segment, _pinned, lifeline] = <[OwnedFd; 3]>::try_from(descriptors).unwrap();
    let memory = MemoryFile::received(segment).unwrap().map(Access::ReadWrite).unwrap();
    Segment::open(memory).unwrap();
    let workers = node.workers();
    assert_eq!(workers.len(), 1);
    peer::Process::open(workers[0]).unwrap().kill().unwrap();
    eventually("the lifeline to hang up", || peer::has_hung_up(&lifeline));
    eventually("the session to end", || node.sessions() == 0);
}

#[test]
fn a_worker_is_sandboxed() {
    let node = Node::start(&[]);
    let session = node.attach(&hello());
    let workers = node.workers();
    let status = std::fs::read_to_string(format!("/proc/{}/status", workers[0])).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(field("Seccomp:"), "2", "system calls are filtered");
    assert_eq!(field("NoNewPrivs:"), "1");
    drop(session);
}

#[test]
fn the_registry_outlives_the_daemon_and_survivors_are_adopted() {
    let mut node = Node::start(&[]);
    let mut hello = hello();
    hello.body.vgpu = "kept".to_owned();
    hello.body.weight = 7;
    let (_, descriptors) = node.attach(&hello);
    eventually("the vGPU to be saved", || node.path("state/vgpus.json").exists());
    node.kill();
    node.restart(&[]);
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 1);
    let vgpus = node.admin().list().unwrap();
    assert_eq!((vgpus[0].name.as_str(), vgpus[0].weight, vgpus[0].sessions), ("kept", 7, 1));
    drop(descriptors);
    eventually("the session to end", || node.sessions() == 0);
}
