//! What a tenant can say to a real daemon, and what it gets.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weft_node::admin::Client;
use weft_ring::{Access, MemoryFile, Segment, peer};
use weft_wire::handshake::{
    Answer, HANDSHAKE_BYTES_MAX, Hello, HelloBody, PROTOCOL_VERSION, RefusalCode, Welcome,
};

/// Longest wait for anything; only a broken system reaches it.
const DEADLINE: Duration = Duration::from_secs(60);

struct Node {
    process: Child,
    directory: TempDir,
}

impl Node {
    #[expect(clippy::unwrap_used, reason = "a panic is a test's report")]
    fn start(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let process = Command::new(env!("CARGO_BIN_EXE_weft-node"))
            .arg(format!("sockets.runtime_dir={path}"))
            .arg(format!("state_dir={path}/state"))
            .args(settings)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let node = Self { process, directory };
        eventually("the daemon to listen", || Client::connect(&node.path("admin.sock")).is_ok());
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    #[expect(clippy::unwrap_used, reason = "a panic is a test's report")]
    fn admin(&self) -> Client {
        Client::connect(&self.path("admin.sock")).unwrap()
    }

    /// Sends bytes to the tenant socket; the answer and its descriptors.
    #[expect(clippy::unwrap_used, reason = "a panic is a test's report")]
    fn say(&self, bytes: &[u8]) -> (Answer, Vec<OwnedFd>) {
        let socket = peer::connect(&self.path("tenant.sock")).unwrap();
        peer::send(&socket, bytes, &[]).unwrap();
        let message = peer::receive(&socket, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
        (Answer::from_bytes(&message.bytes).unwrap(), message.descriptors)
    }

    #[expect(clippy::unwrap_used, reason = "a panic is a test's report")]
    fn refused(&self, bytes: &[u8]) -> (u16, String) {
        match self.say(bytes).0 {
            Answer::Refused { code, message } => Some((code, message)),
            Answer::Welcome(_) => None,
        }
        .unwrap()
    }

    #[expect(clippy::unwrap_used, reason = "a panic is a test's report")]
    fn attach(&self, hello: &Hello) -> (Welcome, Vec<OwnedFd>) {
        let (answer, descriptors) = self.say(&hello.to_bytes().unwrap());
        match answer {
            Answer::Welcome(welcome) => Some((welcome, descriptors)),
            Answer::Refused { .. } => None,
        }
        .unwrap()
    }

    #[expect(clippy::unwrap_used, reason = "a panic is a test's report")]
    fn sessions(&self) -> u32 {
        self.admin().list().unwrap().iter().map(|vgpu| vgpu.sessions).sum()
    }

    /// Process ids of the daemon's workers.
    #[expect(clippy::unwrap_used, reason = "a panic is a test's report")]
    fn workers(&self) -> Vec<u32> {
        let pid = self.process.id();
        let children = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let lists = children.map(|task| std::fs::read_to_string(task.path().join("children")));
        lists.flatten().flat_map(|list| numbers(&list)).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let stopped =
            Client::connect(&self.path("admin.sock")).is_ok_and(|mut c| c.shutdown().is_ok());
        if !stopped {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

fn numbers(list: &str) -> Vec<u32> {
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn hello() -> Hello {
    let body = HelloBody {
        vgpu: String::new(),
        weight: 0,
        memory_bytes: 0,
        token: String::new(),
        pid: 1,
        program: "a\u{1b}[31mtest".to_owned(),
        device_base: 0x7000_0000_0000,
        device_bytes: 1 << 34,
        pinned_base: 0x2000_0000_0000,
        pinned_bytes: 1 << 20,
    };
    Hello { version: PROTOCOL_VERSION, body }
}

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
    assert_eq!(with(|body| body.pinned_base = 3).0, RefusalCode::Worker as u16);
    assert_eq!(with(|body| body.pinned_base = u64::MAX - 4095).0, RefusalCode::Worker as u16);
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
fn sessions_are_bounded() {
    let node = Node::start(&["limits.sessions=1"]);
    let first = node.attach(&hello());
    assert_eq!(node.refused(&hello().to_bytes().unwrap()).0, RefusalCode::Exhausted as u16);
    drop(first);
    eventually("the first session to end", || node.sessions() == 0);
    node.attach(&hello());
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
    node.process.kill().unwrap();
    node.process.wait().unwrap();
    let path = node.directory.path().display().to_string();
    node.process = Command::new(env!("CARGO_BIN_EXE_weft-node"))
        .arg(format!("sockets.runtime_dir={path}"))
        .arg(format!("state_dir={path}/state"))
        .spawn()
        .unwrap();
    eventually("the new daemon to listen", || {
        Client::connect(&node.path("admin.sock")).is_ok_and(|mut client| client.node().is_ok())
    });
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 1);
    let vgpus = node.admin().list().unwrap();
    assert_eq!((vgpus[0].name.as_str(), vgpus[0].weight, vgpus[0].sessions), ("kept", 7, 1));
    drop(descriptors);
    eventually("the session to end", || node.sessions() == 0);
}
