//! Starting, finding and stopping node daemons.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use weft_node::NodeConfig;
use weft_node::admin::{AdminError, Client};

use crate::args::{NodeOptions, Sockets};
use crate::output;

/// A daemon of ours must listen within this time.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// A daemon must end within this time after it was told to.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

impl Sockets {
    fn settings(&self) -> Vec<(String, String)> {
        self.runtime_dir
            .iter()
            .map(|dir| ("sockets.runtime_dir".to_owned(), dir.display().to_string()))
            .collect()
    }

    /// The configuration that a daemon on these sockets has, as far as sockets go.
    pub(crate) fn config(&self) -> Result<NodeConfig> {
        Ok(NodeConfig::load(None, |name| std::env::var(name).ok(), &self.settings())?)
    }

    /// Connects to the daemon's admin socket.
    pub(crate) fn connect(&self) -> Result<Client> {
        Ok(Client::connect(&self.config()?.admin_socket())?)
    }
}

/// `weft node`
pub(crate) fn serve(sockets: &Sockets, options: &NodeOptions) -> Result<()> {
    let mut settings = sockets.settings();
    settings.extend(options.device.iter().map(|device| ("device".to_owned(), device.clone())));
    if let Some(dir) = &options.journal {
        settings.push(("journal.dir".to_owned(), dir.display().to_string()));
    }
    settings.extend(options.settings.iter().cloned());
    let config =
        NodeConfig::load(options.config.as_deref(), |name| std::env::var(name).ok(), &settings)?;
    weft_node::run_node(config)
}

/// `weft stop`
pub(crate) fn stop(sockets: &Sockets) -> Result<()> {
    let socket = sockets.config()?.admin_socket();
    Client::connect(&socket)?.shutdown()?;
    let deadline = Instant::now() + STOP_DEADLINE;
    while !matches!(Client::connect(&socket), Err(AdminError::NotRunning { .. })) {
        if Instant::now() > deadline {
            bail!("the daemon at {} did not stop in {STOP_DEADLINE:?}", socket.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A daemon of our own, in its own directory; ends with this value.
#[derive(Debug)]
pub(crate) struct OwnDaemon {
    process: Child,
    directory: TempDir,
}

impl OwnDaemon {
    /// Starts one with these settings, on top of the usual environment.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Result<Self> {
        Self::start_with_model(settings, None)
    }

    /// The same on the paced device with this model (TOML).
    pub(crate) fn start_with_model(settings: &[(&str, &str)], model: Option<&str>) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("weft-run-")
            .tempdir()
            .context("cannot create a directory for the daemon")?;
        let path = directory.path();
        let log = path.join("node.log");
        let log_file = fs::File::create(&log).context("cannot create the daemon's log")?;
        let executable = std::env::current_exe().context("cannot find this executable")?;
        let mut command = Command::new(executable);
        command.arg("node").arg("--runtime-dir").arg(path);
        command.arg("--set").arg(format!("state_dir={}", path.join("state").display()));
        if let Some(model) = model {
            let file = path.join("model.toml");
            fs::write(&file, model)?;
            command.arg("--set").arg(format!("device=soft:paced:{}", file.display()));
        }
        for (key, value) in settings {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command.env_remove("WEFT_SOCKET").env_remove("WEFT_ADMIN_SOCKET");
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log_file)
            .spawn()
            .context("cannot start a node daemon")?;
        let mut daemon = Self { process, directory };
        daemon.wait_until_ready(&log)?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Ok(mut client) = self.sockets().connect()
                && client.node().is_ok()
            {
                return Ok(());
            }
            let ended = self.process.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let text = fs::read_to_string(log).unwrap_or_default();
                bail!("the node daemon did not start:\n{}", text.trim_end());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
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
        if std::thread::panicking() || stop(&self.sockets()).is_err() {
            let _ = self.process.kill();
        }
        if let Err(error) = self.process.wait() {
            output::note(&format!("warning: cannot wait for the node daemon: {error}"));
        }
    }
}
