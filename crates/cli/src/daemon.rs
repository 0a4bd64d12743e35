//! Starting, finding and stopping node daemons.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use weft_node::NodeConfig;
use weft_node::admin::{AdminError, Client};
use weft_node::config::search_places;

use crate::args::{NodeOptions, Sockets};
use crate::output;
use crate::owner::Owner;

/// A daemon of ours must listen within this time.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// A daemon must end within this time after it was told to.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// How the names of directories of our own begin.
pub(crate) const DIRECTORY_PREFIX: &str = "weft-run-";
/// What a daemon of ours says, in its directory.
const LOG: &str = "node.log";

impl Sockets {
    fn settings(&self) -> Result<Vec<(String, String)>> {
        let Some(dir) = self.dir() else { return Ok(Vec::new()) };
        // Programs may change their working directory before they attach.
        let dir = std::path::absolute(dir).context("cannot find the working directory")?;
        Ok(vec![("sockets.runtime_dir".to_owned(), dir.display().to_string())])
    }

    /// The configuration that a daemon on these sockets has, as far as sockets go.
    pub(crate) fn config(&self) -> Result<NodeConfig> {
        Ok(NodeConfig::load(None, |name| std::env::var(name).ok(), &self.settings()?)?)
    }

    /// Connects to the admin socket of the node that there is.
    pub(crate) fn connect(&self) -> Result<Client> {
        Ok(self.find()?.client?)
    }

    /// The node that there is: the one that was named, else the machine's, else the user's own. One
    /// that listens comes before one that does not any more.
    pub(crate) fn find(&self) -> Result<Found> {
        if self.is_named() {
            let config = self.config()?;
            let client = Client::connect(&config.admin_socket());
            return Ok(Found { config, client });
        }
        let (mut dead, mut tried, mut last) = (None, Vec::new(), None);
        for dir in search_places() {
            let config = at(&dir)?;
            match Client::connect_found(&config.admin_socket()) {
                Err(AdminError::NotRunning { paths, source }) => {
                    tried.extend(paths);
                    if dead.is_none() && config.tenant_socket().exists() {
                        dead = Some(config.clone());
                    }
                    last = Some((config, source));
                }
                client => return Ok(Found { config, client }),
            }
        }
        let (config, source) = last.context("there is nowhere to look for a node")?;
        let client = Err(AdminError::NotRunning { paths: tried, source });
        Ok(Found { config: dead.unwrap_or(config), client })
    }

    /// The tenant socket that the environment names, unless `--runtime-dir` names a node.
    pub(crate) fn named_socket(&self) -> Option<PathBuf> {
        set_variable("WEFT_SOCKET").filter(|_| !self.is_flag())
    }

    /// The directory that was named, by the flag or its variable; an empty variable is not set.
    fn dir(&self) -> Option<&PathBuf> {
        self.runtime_dir.as_ref().filter(|dir| !dir.as_os_str().is_empty())
    }

    /// Refuses an empty `--runtime-dir`, which names nothing: a script's variable was not set,
    /// perhaps, and another node than the one that was meant would answer.
    pub(crate) fn check(&self) -> Result<()> {
        let is_empty = self.runtime_dir.is_some() && self.dir().is_none();
        if is_empty && std::env::var_os("WEFT_RUNTIME_DIR").is_none_or(|value| !value.is_empty()) {
            bail!(
                "--runtime-dir is empty: name the directory of a node's sockets, or leave it out"
            );
        }
        Ok(())
    }

    /// Whether `--runtime-dir` was given, and not its variable alone.
    pub(crate) fn is_flag(&self) -> bool {
        let variable = set_variable("WEFT_RUNTIME_DIR");
        self.dir().is_some_and(|dir| Some(dir) != variable.as_ref())
    }

    /// Whether somebody said where the node is.
    fn is_named(&self) -> bool {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        self.dir().is_some() || is_set("WEFT_SOCKET") || is_set("WEFT_ADMIN_SOCKET")
    }
}

/// An environment variable with a path; an empty one is not set.
fn set_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A node, or where one was looked for.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its sockets.
    pub(crate) config: NodeConfig,
    /// A connection to it, or why there is none.
    pub(crate) client: Result<Client, AdminError>,
}

/// The sockets of a node in a directory.
fn at(dir: &Path) -> Result<NodeConfig> {
    let set = ("sockets.runtime_dir".to_owned(), dir.display().to_string());
    Ok(NodeConfig::load(None, |_| None, &[set])?)
}

/// `weft node`
pub(crate) fn serve(sockets: &Sockets, options: &NodeOptions) -> Result<()> {
    let mut settings = sockets.settings()?;
    settings.extend(options.device.iter().map(|device| ("device".to_owned(), device.clone())));
    if let Some(dir) = &options.journal {
        settings.push(("journal.dir".to_owned(), dir.display().to_string()));
    }
    settings.extend(options.settings.iter().cloned());
    let config =
        NodeConfig::load(options.config.as_deref(), |name| std::env::var(name).ok(), &settings)?;
    if options.check {
        output::line(weft_node::check_node(&config)?.trim_end());
        return Ok(());
    }
    let Some(owner) = options.owner else { return weft_node::run_node(config) };
    let directory = config.sockets.runtime_dir.clone();
    end_with(owner, config.admin_socket())?;
    weft_node::run_node(config)?;
    // The owner may have removed it already.
    let _ = fs::remove_dir_all(directory);
    Ok(())
}

/// Stops the daemon of this process when the process `owner` ends, however it ends.
fn end_with(owner: i32, admin_socket: PathBuf) -> Result<()> {
    let owner = Owner::open(owner, "that this daemon is for")?;
    std::thread::Builder::new().name("owner".to_owned()).spawn(move || {
        while !owner.ends_within(None).unwrap_or(true) {}
        // It may have ended while the daemon was starting.
        while Client::connect(&admin_socket).and_then(|mut node| node.shutdown()).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
    })?;
    Ok(())
}

/// Starts a daemon that ends with the process `owner`; `directory` is its runtime directory, and
/// it removes it. Called in a process that ends now, so that the daemon is nobody's child: a
/// program may wait for all its children.
pub(crate) fn start_for(owner: i32, directory: &Path, device: Option<&str>) -> Result<()> {
    let settings = device.map(|device| ("device", device));
    let mut node = spawn(directory, owner, settings.as_slice())?;
    wait_until_ready(&mut node, directory)
}

/// `weft stop`
pub(crate) fn stop(sockets: &Sockets, force: bool) -> Result<()> {
    let Found { config, client } = sockets.find()?;
    let mut client = client?;
    match force {
        true => client.shutdown()?,
        false => client.shutdown_if_unused()?,
    }
    let socket = config.admin_socket();
    // Its sockets go before its locks do, which the next one takes.
    client.await_end(STOP_DEADLINE).with_context(|| {
        format!("the daemon at {} has not ended {STOP_DEADLINE:?} later", socket.display())
    })
}

/// A daemon of our own, in its own directory; ends with this value, or with this process.
#[derive(Debug)]
pub(crate) struct OwnDaemon {
    process: Child,
    directory: TempDir,
}

impl OwnDaemon {
    /// Starts one with these settings on top of the usual environment; with a model (TOML), on the
    /// paced device with it.
    pub(crate) fn start(settings: &[(&str, &str)], model: Option<&str>) -> Result<Self> {
        let directory = own_directory()?;
        let mut all = settings.to_vec();
        let file = directory.path().join("model.toml");
        let device = format!("soft:paced:{}", file.display());
        if let Some(model) = model {
            fs::write(&file, model).with_context(|| format!("cannot write {}", file.display()))?;
            all.insert(0, ("device", &device));
        }
        let owner = rustix::process::getpid().as_raw_nonzero().get();
        let process = spawn(directory.path(), owner, &all)?;
        let mut daemon = Self { process, directory };
        wait_until_ready(&mut daemon.process, daemon.directory.path())?;
        Ok(daemon)
    }

    /// Its sockets.
    pub(crate) fn sockets(&self) -> Sockets {
        Sockets { runtime_dir: Some(self.path().to_owned()) }
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Its tenant socket.
    pub(crate) fn tenant_socket(&self) -> PathBuf {
        self.path().join("tenant.sock")
    }
}

impl Drop for OwnDaemon {
    fn drop(&mut self) {
        if std::thread::panicking() || stop(&self.sockets(), true).is_err() {
            let _ = self.process.kill();
        }
        if let Err(error) = self.process.wait() {
            output::note(&format!("warning: cannot wait for the node daemon: {error}"));
        }
    }
}

/// A new runtime directory for a daemon of our own.
pub(crate) fn own_directory() -> Result<TempDir> {
    let parent = std::env::temp_dir();
    let named = tempfile::Builder::new().prefix(DIRECTORY_PREFIX).tempdir_in(&parent);
    named.with_context(|| {
        format!("cannot create a directory for the daemon in {}", parent.display())
    })
}

fn spawn(directory: &Path, owner: i32, settings: &[(&str, &str)]) -> Result<Child> {
    let log_file =
        fs::File::create(directory.join(LOG)).context("cannot create the daemon's log")?;
    let executable = std::env::current_exe().context("cannot find this executable")?;
    let mut command = Command::new(executable);
    command.arg("node").arg("--runtime-dir").arg(directory);
    command.arg("--owner").arg(owner.to_string());
    command.arg("--set").arg(format!("state_dir={}", directory.join("state").display()));
    // Its tenants are this user's own programs.
    command.arg("--set").arg("device.trust_tenants=true");
    for (key, value) in settings {
        command.arg("--set").arg(format!("{key}={value}"));
    }
    command.env_remove("WEFT_SOCKET").env_remove("WEFT_ADMIN_SOCKET");
    // A Ctrl-C is for the program, which may want its device to clean up.
    command.process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file)
        .spawn()
        .context("cannot start a node daemon")
}

/// Waits until the daemon answers. One that does not is ended, and the error is what it said.
fn wait_until_ready(process: &mut Child, directory: &Path) -> Result<()> {
    let sockets = Sockets { runtime_dir: Some(directory.to_owned()) };
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        if let Ok(mut client) = sockets.connect()
            && client.node().is_ok()
        {
            return Ok(());
        }
        let ended = process.try_wait()?;
        if ended.is_some() || Instant::now() > deadline {
            let _ = process.kill();
            let log = directory.join(LOG);
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.is_empty() {
                bail!(
                    "the node daemon did not start ({}) and could not say why in {}: is the disk \
                     full?",
                    process.wait()?,
                    log.display()
                );
            }
            bail!("the node daemon did not start:\n{}", text.trim_end());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
