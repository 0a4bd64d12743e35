//! The runtime directory: one daemon at a time, its sockets, and its workers' doors.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::FlockOperation;
use weft_ring::peer;

use super::process::{self, Stat};
use crate::config::NodeConfig;

/// Tenants that may wait to be accepted.
const BACKLOG: u16 = 128;

/// The claimed runtime directory. Sockets are removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Runtime {
    doors: PathBuf,
    tenant_path: PathBuf,
    admin_path: PathBuf,
    _lock: File,
    _state_lock: Option<File>,
}

/// The sockets of a daemon.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Where tenants attach.
    pub(crate) tenant: OwnedFd,
    /// Where administrators ask.
    pub(crate) admin: OwnedFd,
}

impl Runtime {
    /// Makes the directory ours, or says who has it.
    pub(crate) fn claim(config: &NodeConfig) -> anyhow::Result<Self> {
        let dir = &config.sockets.runtime_dir;
        make_dir(dir, 0o755)?;
        ensure_ours(dir)?;
        let doors = dir.join("workers");
        make_dir(&doors, 0o700)?;
        let lock = take_lock(dir, "sockets.runtime_dir, WEFT_RUNTIME_DIR")?;
        // Two daemons would overwrite each other's vGPUs.
        let state = &config.state_dir;
        make_dir(state, 0o755)?;
        let state_lock = match same_place(state, dir) {
            true => None,
            false => Some(lock_state(state)?),
        };
        let (tenant_path, admin_path) = (config.tenant_socket(), config.admin_socket());
        Ok(Self { doors, tenant_path, admin_path, _lock: lock, _state_lock: state_lock })
    }

    /// Binds the sockets. What lies at their paths is a dead daemon's: the lock says so.
    pub(crate) fn listen(&self, config: &NodeConfig) -> anyhow::Result<Listeners> {
        let tenant = &self.tenant_path;
        let tenant_fd = listen_packets(tenant, config.sockets.tenant_mode)
            .with_context(|| format!("cannot listen on {}", tenant.display()))?;
        if let Some(user) = config.gateway_user() {
            let_in(tenant, user, config.sockets.tenant_mode)
                .with_context(|| format!("cannot let user {user} open {}", tenant.display()))?;
        }
        let admin = &self.admin_path;
        remove_stale(admin).with_context(|| format!("cannot replace {}", admin.display()))?;
        let admin_fd = peer::listen_stream(admin, config.sockets.admin_mode, BACKLOG)
            .with_context(|| format!("cannot listen on {}", admin.display()))?;
        if !peer::refuse_descriptors(&tenant_fd) || !peer::refuse_descriptors(&admin_fd) {
            tracing::debug!("this kernel lets anybody send descriptors to a socket");
        }
        Ok(Listeners { tenant: tenant_fd, admin: admin_fd.into() })
    }

    /// A door for a worker to be adopted through: a listening socket.
    pub(crate) fn make_door(&self, session: u64) -> anyhow::Result<OwnedFd> {
        let path = self.door_path(session);
        listen_packets(&path, 0o600).with_context(|| format!("cannot listen on {}", path.display()))
    }

    /// A record for a worker to leave its last counter in, should it end while no daemon runs.
    pub(crate) fn make_record(&self, session: u64) -> anyhow::Result<File> {
        let path = self.record_path(session);
        let mut options = File::options();
        options.create(true).write(true).truncate(true).mode(0o600);
        options.open(&path).with_context(|| format!("cannot create {}", path.display()))
    }

    /// What a worker left in its record: the device time that its session used.
    pub(crate) fn read_record(&self, session: u64) -> Option<u64> {
        std::fs::read_to_string(self.record_path(session)).ok()?.trim().parse().ok()
    }

    /// Removes a dead worker's door and record.
    pub(crate) fn remove_door(&self, session: u64) {
        for path in [self.door_path(session), self.record_path(session)] {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "was gone");
            }
        }
    }

    /// Removes doors and records of all sessions but the `living`.
    pub(crate) fn remove_others(&self, living: &[u64]) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.doors)? {
            let path = entry?.path();
            let session = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            if let Some(session) = session.filter(|session| !living.contains(session)) {
                self.remove_door(session);
            }
        }
        Ok(())
    }

    /// Doors that an earlier daemon left, by session. Those nobody listens at are removed.
    pub(crate) fn open_doors(&self) -> io::Result<Vec<(u64, OwnedFd)>> {
        let mut open = Vec::new();
        for entry in std::fs::read_dir(&self.doors)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "sock") {
                continue;
            }
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let Some(session) = stem.and_then(|stem| stem.parse().ok()) else { continue };
            match peer::connect(&path) {
                Ok(link) => open.push((session, link)),
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "nobody at the door");
                    std::fs::remove_file(&path)?;
                }
            }
        }
        Ok(open)
    }

    fn door_path(&self, session: u64) -> PathBuf {
        self.doors.join(format!("{session}.sock"))
    }

    fn record_path(&self, session: u64) -> PathBuf {
        self.doors.join(format!("{session}.used"))
    }
}

impl Runtime {
    /// Removes the sockets, at which nobody listens any more.
    pub(crate) fn remove_sockets(&self) {
        for path in [&self.tenant_path, &self.admin_path] {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::debug!(path = %path.display(), %error, "socket was gone");
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.remove_sockets();
    }
}

/// Takes the lock at `path`, or says which process has it.
///
/// A daemon that was killed can be kept from ending by a thread that waits for somebody else's
/// file, and so keep what it locked. Its first thread is dead then, which a daemon's never is: that
/// lock is nobody's, and a new file takes the old one's place.
///
/// Answers the lock, and what keeps others from looking who has it until that is written there.
fn lock(path: &Path) -> io::Result<Result<(File, File), String>> {
    // One at a time may decide that.
    let taking = open_lock(&path.with_extension("taking"))?;
    rustix::fs::flock(&taking, FlockOperation::LockExclusive)?;
    let lock = open_lock(path)?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
        return Ok(Ok((lock, taking)));
    }
    let pid = std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    if !is_dead(&pid) {
        return Ok(Err(pid));
    }
    tracing::warn!(
        pid,
        "a daemon that was killed still keeps its lock; this one goes on without it"
    );
    std::fs::remove_file(path)?;
    let lock = open_lock(path)?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(Ok((lock, taking)))
}

fn open_lock(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

/// Whether the first thread of a process has ended.
fn is_dead(pid: &str) -> bool {
    pid.parse().ok().and_then(|pid| process::stat(pid).ok()).is_some_and(Stat::is_dead)
}

/// Whether the directories of a configuration are there and safe, or could be made.
pub(crate) fn check_dirs(config: &NodeConfig) -> anyhow::Result<()> {
    let dirs = [
        ("sockets.runtime_dir", Some(&config.sockets.runtime_dir)),
        ("state_dir", Some(&config.state_dir)),
        ("journal.dir", config.journal.dir.as_ref()),
    ];
    for (key, dir) in dirs {
        let Some(dir) = dir else { continue };
        let existing =
            dir.ancestors().find(|place| place.exists()).unwrap_or_else(|| Path::new("/"));
        if !existing.is_dir() {
            bail!("{key}: {} is no directory; set {key} to one", existing.display());
        }
        // Permissions say less than an attempt: nothing can be made in `/proc`, by nobody.
        let attempt = existing.join(format!(".weft-check-{}", std::process::id()));
        let made = std::fs::create_dir(&attempt).and_then(|()| std::fs::remove_dir(&attempt));
        made.with_context(|| {
            let place = existing.display();
            format!("cannot write to {place}; set {key} to a directory that this user may write")
        })?;
        if existing == dir && key == "sockets.runtime_dir" {
            ensure_ours(dir)?;
        }
    }
    Ok(())
}

fn make_dir(dir: &Path, mode: u32) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(dir)
        .with_context(|| format!("cannot create the directory {}", dir.display()))
}

/// Refuses a directory in which somebody else could put what is opened and replaced there: anybody
/// may make `/tmp/weft-1000` before user 1000 does.
fn ensure_ours(dir: &Path) -> anyhow::Result<()> {
    let found =
        std::fs::metadata(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    let (owner, own) = (found.uid(), rustix::process::geteuid().as_raw());
    let is_ours = owner == own || owner == 0;
    if !is_ours || found.mode() & 0o022 != 0 {
        bail!(
            "the directory {} is not safe: it belongs to user {owner} and has mode {:04o}; choose \
             one that only user {own} can write to (sockets.runtime_dir, WEFT_RUNTIME_DIR)",
            dir.display(),
            found.mode() & 0o7777
        );
    }
    Ok(())
}

/// Takes the lock of a directory, or says which daemon has it. Workers do not hold it: it closes at
/// their start. `choices` names what another directory is chosen with.
fn take_lock(dir: &Path, choices: &str) -> anyhow::Result<File> {
    let path = dir.join("node.lock");
    let (lock, _taking) = lock(&path)
        .with_context(|| {
            format!(
                "cannot open the lock {}: run as the user that {} belongs to, or choose another \
                 directory ({choices})",
                path.display(),
                dir.display()
            )
        })?
        .map_err(|pid| {
            anyhow::anyhow!(
                "a node daemon (process {pid}) runs already on {}; stop it, or choose another \
                 directory ({choices})",
                dir.display()
            )
        })?;
    let own = format!("{}\n", std::process::id());
    let written = lock.set_len(0).and_then(|()| io::Write::write_all(&mut &lock, own.as_bytes()));
    written.with_context(|| {
        let place = path.display();
        format!(
            "cannot write {place}; if there is no space left, make room, or choose another \
             directory ({choices})"
        )
    })?;
    Ok(lock)
}

fn lock_state(dir: &Path) -> anyhow::Result<File> {
    take_lock(dir, "state_dir, WEFT_STATE_DIR")
        .with_context(|| format!("the vGPUs in {} cannot be kept", dir.display()))
}

fn same_place(left: &Path, right: &Path) -> bool {
    let of = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((of(left), of(right)), (Ok(left), Ok(right)) if left == right)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Lets the gateway, a process of a user and group of its own, open a socket that others may not.
/// It does not own the socket: it could shut everybody out.
fn let_in(socket: &Path, gateway: u32, mode: u32) -> io::Result<()> {
    const OTHERS: u32 = 0o006;
    const GROUP: u32 = 0o060;
    if mode & OTHERS == OTHERS {
        return Ok(());
    }
    std::os::unix::fs::chown(socket, None, Some(gateway))?;
    std::fs::set_permissions(socket, Permissions::from_mode(mode | GROUP))
}

fn listen_packets(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    remove_stale(path)?;
    peer::listen(path, mode, BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> NodeConfig {
        config_with_state(dir, &dir.join("state"))
    }

    fn config_with_state(dir: &Path, state: &Path) -> NodeConfig {
        let set = |key: &str, path: &Path| (key.to_owned(), path.display().to_string());
        let settings = [set("sockets.runtime_dir", dir), set("state_dir", state)];
        NodeConfig::load(None, |_| None, &settings).unwrap()
    }

    #[test]
    fn the_gateways_group_may_open_a_socket_that_others_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let group = rustix::process::getegid().as_raw();
        for (before, after) in [(0o600, 0o660), (0o660, 0o660), (0o666, 0o666)] {
            let socket = dir.path().join(format!("{before:o}"));
            File::create(&socket).unwrap();
            std::fs::set_permissions(&socket, Permissions::from_mode(before)).unwrap();
            let_in(&socket, group, before).unwrap();
            assert_eq!(std::fs::metadata(&socket).unwrap().mode() & 0o777, after);
        }
    }

    #[test]
    fn two_daemons_do_not_share_a_state_directory() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let state = first.path().join("state");
        let held = Runtime::claim(&config_with_state(first.path(), &state)).unwrap();
        let other = config_with_state(second.path(), &state);
        let error = format!("{:#}", Runtime::claim(&other).unwrap_err());
        let pid = std::process::id().to_string();
        for word in [pid.as_str(), "WEFT_STATE_DIR", &state.display().to_string()] {
            assert!(error.contains(word), "no {word} in {error}");
        }
        drop(held);
        drop(Runtime::claim(&other).unwrap());
        // One directory for both is one lock.
        Runtime::claim(&config_with_state(second.path(), second.path())).unwrap();
    }

    #[test]
    fn a_socket_is_open_to_nobody_before_it_has_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("door");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let guest = scope.spawn(|| {
                let (mut early, mut seen) = (0, 0);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    // The file may be replaced between the connection and the look at its mode.
                    let Ok(before) = std::fs::metadata(&path) else { continue };
                    let of = |file: &std::fs::Metadata| (file.ino(), file.modified().ok());
                    if std::os::unix::net::UnixStream::connect(&path).is_ok()
                        && let Ok(found) = std::fs::metadata(&path)
                        && of(&found) == of(&before)
                    {
                        seen += 1;
                        early += u32::from(found.mode() & 0o777 != 0o600);
                    }
                }
                (early, seen)
            });
            for _ in 0..3_000 {
                remove_stale(&path).unwrap();
                drop(peer::listen_stream(&path, 0o600, 8).unwrap());
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            let (early, seen) = guest.join().unwrap();
            assert_eq!(early, 0, "of {seen} connections");
        });
    }

    #[test]
    fn a_second_daemon_is_told_about_the_first_and_a_dead_ones_sockets_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        std::fs::write(config.tenant_socket(), "stale").unwrap();
        let first = Runtime::claim(&config).unwrap();
        let listeners = first.listen(&config).unwrap();
        let error = Runtime::claim(&config).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop((listeners, first));
        assert!(!config.tenant_socket().exists());
        Runtime::claim(&config).unwrap();
    }

    #[test]
    fn of_daemons_that_start_at_once_those_who_lose_are_told_who_won() {
        let pid = format!("(process {})", std::process::id());
        for _ in 0..100 {
            let dir = tempfile::tempdir().unwrap();
            let start = std::sync::Barrier::new(3);
            let claim = || {
                start.wait();
                take_lock(dir.path(), "")
            };
            let claims: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(claim)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let errors: Vec<_> = claims.iter().filter_map(|claim| claim.as_ref().err()).collect();
            assert_eq!(errors.len(), 2);
            assert!(errors.iter().all(|error| error.to_string().contains(&pid)), "{errors:?}");
        }
    }

    #[test]
    fn a_directory_that_takes_no_more_bytes_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join("node.lock")).unwrap();
        let error = Runtime::claim(&config(dir.path())).unwrap_err().to_string();
        let lock = dir.path().join("node.lock").display().to_string();
        assert!(error.contains(&lock) && error.contains("WEFT_RUNTIME_DIR"), "{error}");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let error = Runtime::claim(&config(dir.path())).unwrap_err().to_string();
        assert!(error.contains("0777"), "{error}");
        assert!(!dir.path().join("node.lock").exists(), "nothing was touched");
    }

    #[test]
    fn only_doors_with_somebody_behind_are_open() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::claim(&config(dir.path())).unwrap();
        let kept = runtime.make_door(5).unwrap();
        drop(runtime.make_door(6).unwrap());
        let open: Vec<u64> = runtime.open_doors().unwrap().into_iter().map(|(id, _)| id).collect();
        assert_eq!(open, [5]);
        drop(kept);
        assert!(runtime.open_doors().unwrap().is_empty());
    }
}
