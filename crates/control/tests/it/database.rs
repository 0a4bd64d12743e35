//! A PostgreSQL of the test's own, in a folder, that listens at a socket there and nowhere else.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use postgres::{Client, NoTls};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::eventually;
use crate::tls::file;

/// Says that the tests must not be skipped.
const VARIABLE: &str = "WEFT_TEST_POSTGRES";

/// The number in a socket's name.
const PORT: u16 = 5432;

/// A database server.
pub(crate) struct Cluster {
    folder: TempDir,
    port: u16,
    process: Child,
}

/// Whoever runs it: PostgreSQL does not run as root.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl Cluster {
    /// Starts one; none where PostgreSQL is not installed, which is said.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(PORT, |_, _| vec!["listen_addresses=".to_owned()])
    }

    /// One that speaks TLS too, at a port of this host.
    pub(crate) fn start_with_tls() -> Option<(Self, u16)> {
        // Nobody else has it at this moment.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = |folder: &Path, user: Option<User>| {
            let key = folder.join("key.pem");
            fs::copy(file("key.pem"), &key).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&key, mode).unwrap();
            let shown = folder.join("certificate.pem");
            fs::copy(file("certificate.pem"), &shown).unwrap();
            if let Some(User { uid, gid }) = user {
                std::os::unix::fs::chown(&key, Some(uid), Some(gid)).unwrap();
                std::os::unix::fs::chown(&shown, Some(uid), Some(gid)).unwrap();
            }
            vec![
                "listen_addresses=127.0.0.1".to_owned(),
                "ssl=on".to_owned(),
                format!("ssl_cert_file={}", shown.display()),
                format!("ssl_key_file={}", key.display()),
            ]
        };
        Some((Self::start_with(port, settings)?, port))
    }

    fn start_with(
        port: u16,
        settings: impl Fn(&Path, Option<User>) -> Vec<String>,
    ) -> Option<Self> {
        let Some(programs) = programs() else {
            assert!(
                std::env::var_os(VARIABLE).is_none(),
                "PostgreSQL is not installed and {VARIABLE} is set: apt-get install postgresql"
            );
            let words = b"skipped: PostgreSQL is not installed (apt-get install postgresql)\n";
            std::io::stderr().write_all(words).unwrap();
            return None;
        };
        let folder = tempfile::Builder::new().prefix("weft-db-").tempdir().unwrap();
        let user = unprivileged();
        if let Some(User { uid, gid }) = user {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let data = folder.path().join("data");
        let mut made = command(&programs.join("initdb"), folder.path(), user);
        made.arg("-D").arg(&data);
        made.args(["-U", "weft", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync"]);
        let made = made.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut server = command(&programs.join("postgres"), folder.path(), user);
        server.arg("-D").arg(&data).arg("-k").arg(folder.path());
        server.args(["-c", "fsync=off", "-c", "shared_buffers=16MB", "-p", &port.to_string()]);
        for setting in settings(folder.path(), user) {
            server.args(["-c", &setting]);
        }
        let process = server.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let cluster = Self { folder, port, process };
        eventually("the database to start", || cluster.connect("postgres").is_ok());
        Some(cluster)
    }

    fn connect(&self, name: &str) -> Result<Client, postgres::Error> {
        Client::connect(&self.url(name), NoTls)
    }

    fn url(&self, name: &str) -> String {
        let (folder, port) = (self.folder.path().display(), self.port);
        format!("postgres://weft@/{name}?host={folder}&port={port}")
    }

    /// An empty database; its address.
    pub(crate) fn database(&self, name: &str) -> String {
        let mut client = self.connect("postgres").unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        self.url(name)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Immediately: nobody needs what is in it any more.
        let number = i32::try_from(self.process.id()).unwrap();
        let _ = kill_process(Pid::from_raw(number).unwrap(), Signal::QUIT);
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
            let _ = std::io::stderr().write_all(&log);
        }
    }
}

fn command(program: &Path, folder: &Path, user: Option<User>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    if let Some(User { uid, gid }) = user {
        command.uid(uid).gid(gid);
    }
    command
}

/// Where the newest version's programs are: Debian has them outside `PATH`.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &Path| -> Option<u32> { path.file_name()?.to_str()?.parse().ok() };
    let of_debian = versions.map(|entry| entry.path()).max_by_key(|path| number(path));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = of_debian.map(|path| path.join("bin")).into_iter().collect::<Vec<_>>();
    folders.extend(std::env::split_paths(&paths));
    folders.into_iter().find(|path| path.join("initdb").exists() && path.join("postgres").exists())
}

/// The user that Debian's package makes, or nobody; this one if it is not root.
fn unprivileged() -> Option<User> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let named = |name: &str| users.lines().find(|line| line.split(':').next() == Some(name));
    let line = named("postgres").or_else(|| named("nobody")).unwrap();
    let number = |at: usize| line.split(':').nth(at).unwrap().parse().unwrap();
    Some(User { uid: number(2), gid: number(3) })
}
