//! What a hostile local user tries on a real daemon, beside somebody who works.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is a test's report")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use weft_ring::peer;
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, RefusalCode};

use self::support::{DEADLINE, Node, eventually, hello};

/// A program of `tests/programs`, which `cargo xtask test` compiles, that attacks something.
struct Attack {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Attack {
    fn start(name: &str, arguments: &[PathBuf]) -> Self {
        let programs = std::env::var_os("WEFT_TEST_PROGRAMS");
        let programs = PathBuf::from(programs.expect("run the tests with `cargo xtask test`"));
        let mut command = Command::new(programs.join(name));
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Threads of the daemon that serve tenants.
fn tenant_threads(node: &Node) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.process.id())).unwrap();
    let names = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.flatten().filter(|name| name.trim() == "tenant").count()
}

#[test]
fn a_file_that_is_never_closed_holds_nobody() {
    let mut node = Node::start(&["limits.attach_ms=500"]);
    let mount = tempfile::tempdir().unwrap();
    let sockets = [node.path("tenant.sock"), node.path("admin.sock")];
    let arguments: Vec<PathBuf> = std::iter::once(mount.path().to_owned()).chain(sockets).collect();
    let mut attack = Attack::start("fuse_file", &arguments);
    let outcome = attack.line();
    if outcome.starts_with("skipped") {
        eprintln!("no file system of a user's own here: {outcome}");
        return;
    }
    eprintln!("descriptors beside a hello: {outcome}; beside a request: {}", attack.line());
    drop(node.attach(&hello()));
    eventually("the session to end", || node.sessions() == 0);
    eventually("no thread to serve the attacker", || tenant_threads(&node) == 0);
    // A daemon that closes the file in one of its threads cannot even be killed.
    node.process.kill().unwrap();
    eventually("the killed daemon to be gone", || node.process.try_wait().unwrap().is_some());
    node.restart(&[]);
    drop(node.attach(&hello()));
}

#[test]
fn a_lock_that_a_killed_daemon_cannot_let_go_of_is_nobodys() {
    let directory = tempfile::tempdir().unwrap();
    let mut held = Attack::start("held_lock", &[directory.path().join("node.lock")]);
    assert_eq!(held.line(), "held");
    let node = Node::start_in(directory, &[]);
    drop(node.attach(&hello()));
}

#[test]
fn silent_connections_cost_others_nothing() {
    let node = Node::start(&["limits.attach_ms=20000"]);
    let silent: Vec<_> = (0..600).map(|_| peer::connect(&node.path("tenant.sock"))).collect();
    let silent: Vec<_> = silent.into_iter().filter_map(Result::ok).collect();
    let refused = silent.iter().filter(|socket| peer::has_hung_up(socket)).count();
    eprintln!("{} connections, {refused} refused so far", silent.len());
    // The bound is on those who say nothing: it holds for this test's own user as for any other.
    let (last, began) = (silent.last().unwrap(), Instant::now());
    let message = peer::receive(last, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
    let Answer::Refused { code, message } = Answer::from_bytes(&message.bytes).unwrap() else {
        panic!("a connection that said nothing was welcomed");
    };
    assert_eq!(code, RefusalCode::Exhausted as u16, "{message}");
    assert!(began.elapsed() < DEADLINE);
    assert_eq!(tenant_threads(&node), 0, "a thread serves somebody who has said nothing");
    // Those who were let in and now speak are served, and so are others when they are gone.
    drop(silent);
    eventually("an attach to go through", || {
        let socket = peer::connect(&node.path("tenant.sock")).unwrap();
        peer::send(&socket, &hello().to_bytes().unwrap(), &[]).unwrap();
        let message = peer::receive(&socket, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
        matches!(Answer::from_bytes(&message.bytes).unwrap(), Answer::Welcome(_))
    });
}
