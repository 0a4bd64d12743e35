use std::process::{Child, Command};
use std::sync::Arc;

use weft_api::node::{Elsewhere, Place};
use weft_ring::peer::{Credentials, Process};
use weft_wire::handshake::HelloBody;

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

fn sleep() -> Child {
    Command::new("sleep").arg("600").spawn().unwrap()
}

/// Begins a session of a user, of which a process is the worker; its vGPU's key.
fn employ(node: &Fixture, uid: u32, name: &str, process: u32) -> u32 {
    node.reservation(uid, name).unwrap();
    let mut tables = node.daemon.tables();
    let key = tables.registry.find(name).unwrap().key;
    let entry = tables.sessions.values_mut().find(|entry| entry.vgpu == key).unwrap();
    entry.worker = Some(Arc::new(WorkerProcess::new(Process::open(process).unwrap(), process)));
    key
}

#[test]
fn who_removes_a_vgpu_ends_no_session_of_the_one_that_has_its_key_next() {
    let node = Fixture::new(&[]);
    let daemon = &node.daemon;
    let (first, mut other) = (sleep(), sleep());
    let key = employ(&node, ALICE, "x", first.id());
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
    let others_key = employ(&node, BOB, "y", other.id());
    assert_eq!(key, others_key);
    removal.join().unwrap().unwrap();
    assert!(other.try_wait().unwrap().is_none(), "another user's worker was killed");
    for mut child in [first, other] {
        let _ = child.kill();
        child.wait().unwrap();
    }
}

#[test]
fn what_a_closed_vgpu_has_used_is_final_and_it_gets_no_session_until_it_is_removed() {
    let node = Fixture::new(&[]);
    let root = Caller { uid: 0, payer: 0, role: Role::Administrator };
    let closing = request(r#"{"op":"close","name":"x"}"#);
    let close = |caller| node.daemon.answer_admin(closing.clone(), caller);
    let unknown = text(&close(root));
    assert!(unknown.contains("no vGPU `x`"), "{unknown}");
    let mut worker = sleep();
    let key = employ(&node, ALICE, "x", worker.id());
    let forbidden = text(&close(user(ALICE)));
    assert!(forbidden.contains("only administrators may close"), "{forbidden}");
    assert!(worker.try_wait().unwrap().is_none(), "nothing was ended");
    let (daemon, asked) = (Arc::clone(&node.daemon), closing.clone());
    let thread = thread::spawn(move || daemon.answer_admin(asked, root));
    assert!(Process::open(worker.id()).unwrap().wait_exit(PATIENCE));
    // What it did last is booked when its session ends.
    let mut tables = node.daemon.tables();
    let (_, session) = tables.registry.open_sessions()[0];
    tables.registry.close_session(key, session, 7);
    tables.sessions.retain(|_, entry| entry.vgpu != key);
    drop(tables);
    let used = |answer: &Answer| {
        let Answer::Vgpu(report) = answer else { panic!("{answer:?}") };
        assert_eq!((report.name.as_str(), report.sessions, report.is_closing), ("x", 0, true));
        report.used_ns
    };
    assert_eq!(used(&thread.join().unwrap()), 7);
    let ensure_closed = || {
        let refused = node.reservation(ALICE, "x").unwrap_err();
        assert!(refused.message.contains("`x` is being removed"), "{}", refused.message);
    };
    ensure_closed();
    assert_eq!(used(&close(root)), 7, "asked again");
    // Whoever may not remove it does not open it by trying.
    node.daemon.remove_vgpu("x", true, user(BOB)).unwrap_err();
    ensure_closed();
    node.daemon.remove_vgpu("x", false, root).unwrap();
    node.reservation(ALICE, "x").unwrap();
    assert_eq!(node.daemon.tables().registry.find("x").unwrap().used_ns, 0, "another one");
    let member = node.daemon.answer_admin(request(r#"{"op":"close","name":"x@gpu0"}"#), root);
    assert!(text(&member).contains("part of virtual accelerator `x`"), "{member:?}");
    let _ = worker.kill();
    worker.wait().unwrap();
}

#[test]
fn requests_in_a_burst_are_answered_in_their_order_and_what_they_made_is_saved() {
    let node = Fixture::new(&[]);
    let (near, far) = UnixStream::pair().unwrap();
    let daemon = Arc::clone(&node.daemon);
    let root = Caller { uid: 0, payer: 0, role: Role::Administrator };
    let server = thread::spawn(move || converse(&daemon, far, root));
    let create = |name: &str| format!(r#"{{"op":"create","name":"{name}","memory_bytes":4096}}"#);
    let mut lines = vec![create("a"), create("b"), create("a")];
    // Longer than what is seen at once, and more than is begun at once.
    lines.extend((0..3 * BURST_MAX).map(|number| create(&format!("vgpu-{number}"))));
    lines.push(r#"{"op":"set","name":"b","weight":7}"#.to_owned());
    let mut stream = BufReader::new(near);
    let asked = lines.len();
    assert!(lines.iter().map(String::len).sum::<usize>() > BURST_BYTES);
    let mut sender = stream.get_ref().try_clone().unwrap();
    let sending = thread::spawn(move || sender.write_all((lines.join("\n") + "\n").as_bytes()));
    let mut answers = Vec::new();
    for _ in 0..asked {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        answers.push(serde_json::from_str::<Answer>(&line).unwrap());
        if answers.len() == 1 {
            // Whoever has an answer can read it on the disk.
            let saved = saved_text(&node);
            assert!(saved.contains(r#""a""#), "{saved}");
        }
    }
    sending.join().unwrap().unwrap();
    let name = |answer: &Answer| {
        let Answer::Vgpu(vgpu) = answer else { return text(answer) };
        format!("{} {}", vgpu.name, vgpu.weight)
    };
    let weight = node.daemon.config.defaults.weight;
    assert_eq!(name(&answers[0]), format!("a {weight}"));
    assert_eq!(name(&answers[1]), format!("b {weight}"));
    assert!(matches!(&answers[2], Answer::Error { message } if message.contains("`a`")));
    for (number, answer) in answers[3..asked - 1].iter().enumerate() {
        assert_eq!(name(answer), format!("vgpu-{number} {weight}"));
    }
    assert_eq!(name(&answers[asked - 1]), "b 7");
    drop(stream);
    server.join().unwrap().unwrap();
}

/// All of them come through one process, the gateway, which is none of theirs.
#[test]
fn programs_of_other_hosts_are_known_by_their_hosts_and_not_by_the_gateway() {
    let node = Fixture::new(&[]);
    let relay = std::process::id();
    let reserve = |name: &str, program: &str, elsewhere| {
        let hello = HelloBody { program: program.to_owned(), ..HelloBody::question(name) };
        let tenant = Credentials { pid: Some(relay), uid: ALICE, gid: ALICE };
        node.daemon.reserve_session(&hello, &tenant, elsewhere).unwrap()
    };
    let address = Some("10.0.0.7".parse().unwrap());
    let far = Elsewhere { place: Place::Host, address, claimed_pid: 45 };
    // Who is elsewhere may say anything.
    let program = format!("tr\u{1b}[2J\u{202e}ain{}", "n".repeat(100));
    let _far = reserve("far", &program, Some(far.clone()));
    let guest = Elsewhere { place: Place::Machine, address: None, claimed_pid: 46 };
    let root = Caller { uid: 0, payer: 0, role: Role::Administrator };
    let report = |name: &str| {
        let Answer::Vgpus(all) = node.ask(r#"{"op":"list"}"#, root) else { panic!() };
        all.into_iter().find(|vgpu| vgpu.name == name).unwrap()
    };
    let name = format!("tr[2Jain{}", "n".repeat(64 - 8));
    let words = format!("{name} (host 10.0.0.7, says it is process 45)");
    let shown = report("far");
    assert_eq!(
        (&shown.programs[..], shown.processes[0].elsewhere.clone()),
        (&[words][..], Some(far))
    );
    let removed = node.daemon.remove_vgpu("far", false, user(ALICE)).unwrap_err().to_string();
    assert!(removed.contains("(host 10.0.0.7, says it is process 45)"), "{removed}");
    // Neither its own word nor the gateway is a process to weigh.
    let weigh = |pid| node.daemon.set_session(pid, Weight::new(2).unwrap(), user(ALICE));
    for pid in [relay, 45] {
        let refused = weigh(pid).unwrap_err().to_string();
        assert!(refused.contains("has no session on this node"), "{refused}");
    }
    // A virtual machine is its server's.
    let _guest = reserve("guest", "a", Some(guest));
    let words = format!("a (virtual machine of process {relay}, says it is process 46)");
    assert_eq!(report("guest").programs, [words]);
    weigh(relay).unwrap();
    weigh(46).unwrap_err();
}

/// Everything that the state directory has.
fn saved_text(node: &Fixture) -> String {
    let files = std::fs::read_dir(&node.daemon.config.state_dir).unwrap();
    let read = |entry: io::Result<std::fs::DirEntry>| std::fs::read(entry.unwrap().path());
    let read = files.map(|entry| String::from_utf8_lossy(&read(entry).unwrap()).into_owned());
    read.collect()
}
