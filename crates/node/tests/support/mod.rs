//! A real daemon in a directory of its own, and a tenant that says hello to it.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]
#![allow(dead_code, reason = "each test takes what it needs of this")]

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weft_node::admin::Client;
use weft_ring::peer;
use weft_wire::handshake::{
    Answer, HANDSHAKE_BYTES_MAX, Hello, HelloBody, PROTOCOL_VERSION, Welcome,
};

/// Longest wait for anything; only a broken system reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A daemon; it and its workers end with this value.
pub(crate) struct Node {
    pub(crate) process: Child,
    directory: TempDir,
}

impl Node {
    pub(crate) fn start(settings: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), settings)
    }

    pub(crate) fn start_in(directory: TempDir, settings: &[&str]) -> Self {
        let process = launch(&directory, settings);
        let node = Self { process, directory };
        node.wait_until_ready();
        node
    }

    /// Another daemon in the place of one that has ended.
    pub(crate) fn restart(&mut self, settings: &[&str]) {
        self.launch(settings);
        self.wait_until_ready();
    }

    /// Begins to be another daemon.
    pub(crate) fn launch(&mut self, settings: &[&str]) {
        self.process = launch(&self.directory, settings);
    }

    /// Kills the daemon and leaves its workers.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn wait_until_ready(&self) {
        eventually("the daemon to listen", || {
            Client::connect(&self.path("admin.sock")).is_ok_and(|mut client| client.node().is_ok())
        });
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("node.log")).unwrap_or_default()
    }

    pub(crate) fn admin(&self) -> Client {
        Client::connect(&self.path("admin.sock")).unwrap()
    }

    /// Sends bytes to the tenant socket; the answer and its descriptors.
    fn say(&self, bytes: &[u8]) -> (Answer, Vec<OwnedFd>) {
        let socket = peer::connect(&self.path("tenant.sock")).unwrap();
        peer::send(&socket, bytes, &[]).unwrap();
        let message = peer::receive(&socket, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
        (Answer::from_bytes(&message.bytes).unwrap(), message.descriptors)
    }

    pub(crate) fn refused(&self, bytes: &[u8]) -> (u16, String) {
        match self.say(bytes).0 {
            Answer::Refused { code, message } => Some((code, message)),
            Answer::Welcome(_) => None,
        }
        .unwrap()
    }

    pub(crate) fn attach(&self, hello: &Hello) -> (Welcome, Vec<OwnedFd>) {
        let (answer, descriptors) = self.say(&hello.to_bytes().unwrap());
        match answer {
            Answer::Welcome(welcome) => Some((welcome, descriptors)),
            Answer::Refused { .. } => None,
        }
        .unwrap()
    }

    /// Lets other users reach its sockets.
    pub(crate) fn open_to_others(&self) {
        let everyone = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.directory.path(), everyone).unwrap();
    }

    /// Descriptors of the daemon for files in a directory, with or without a name.
    pub(crate) fn open_files_below(&self, directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap();
        let lies_there = |path: &PathBuf| {
            std::fs::read_link(path).is_ok_and(|target| target.starts_with(directory))
        };
        entries.flatten().map(|entry| entry.path()).filter(lies_there).collect()
    }

    pub(crate) fn sessions(&self) -> u32 {
        self.admin().list().unwrap().iter().map(|vgpu| vgpu.sessions).sum()
    }

    /// Process ids of the daemon's workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
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
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "a failed test shows what happened")]
            {
                eprintln!("--- daemon's log ---\n{}", self.log());
            }
        }
    }
}

/// Does something as another user, in a thread of its own, whose user is nobody else's: only root
/// can.
pub(crate) fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            what()
        });
        other.join().unwrap()
    })
}

fn launch(directory: &TempDir, settings: &[&str]) -> Child {
    let path = directory.path().display();
    let log = directory.path().join("node.log");
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    Command::new(env!("CARGO_BIN_EXE_weft-node"))
        .arg(format!("sockets.runtime_dir={path}"))
        .arg(format!("state_dir={path}/state"))
        .args(settings)
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn numbers(list: &str) -> Vec<u32> {
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn hello() -> Hello {
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
