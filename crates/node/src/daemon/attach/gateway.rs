//! The gateway's process: started, and started again should it end. It has no right of this
//! process, and every session that it asks for comes with a grant.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use weft_api::node::GatewayReport;
use weft_wire::remote::{from_hex, to_hex};

use super::super::{Daemon, STACK_BYTES};
use crate::config::RemoteConfig;

/// From one gateway's end to the next one's start.
const PAUSE: Duration = Duration::from_secs(1);

/// A gateway has said what its key is within this time.
const KEY_LIMIT: Duration = Duration::from_secs(10);

/// What the gateway has said.
#[derive(Debug, Default)]
pub(crate) struct Gateway {
    is_wanted: bool,
    said: Mutex<Said>,
    news: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct Said {
    key: Option<[u8; 32]>,
    address: Option<SocketAddr>,
}

impl Gateway {
    /// The gateway of a node with this configuration.
    pub(crate) fn new(config: &RemoteConfig) -> Self {
        Self { is_wanted: config.listen.is_some(), ..Self::default() }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Digest of its public key; it may just be starting.
    pub(crate) fn key(&self) -> anyhow::Result<[u8; 32]> {
        if !self.is_wanted {
            bail!(
                "this node lets nobody in from other hosts: set remote.listen to an address, such \
                 as \"10.0.0.1:7600\", and start it again"
            );
        }
        let waited =
            self.news.wait_timeout_while(self.said(), KEY_LIMIT, |said| said.key.is_none());
        let said = waited.unwrap_or_else(PoisonError::into_inner).0;
        said.key.context("the gateway does not start; the node's log says why")
    }

    /// The gateway as users see it, if there is to be one.
    pub(crate) fn report(&self) -> Option<GatewayReport> {
        let Said { key, address } = *self.said();
        self.is_wanted.then(|| GatewayReport {
            listen: address.map(|address| address.to_string()),
            key: key.map(|key| to_hex(&key)).unwrap_or_default(),
        })
    }

    /// Where it listens, once it does.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.said().address
    }
}

/// Starts the gateway if the node is to have one.
pub(crate) fn start(daemon: &Arc<Daemon>) -> anyhow::Result<()> {
    let Some(listen) = daemon.config.remote.listen else { return Ok(()) };
    if !listen.ip().is_loopback() {
        tracing::info!(%listen, "endpoints on other hosts are let in");
    }
    let program = program(&daemon.config.remote)?;
    let daemon = Arc::clone(daemon);
    let thread = thread::Builder::new().name("gateway".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || {
        loop {
            match spawn(&daemon, listen, &program) {
                Ok(child) => attend(&daemon.remote.gateway, child),
                Err(error) => tracing::error!("{error:#}"),
            }
            thread::sleep(PAUSE);
        }
    })?;
    Ok(())
}

/// What the gateway is started from.
pub(in crate::daemon) fn program(config: &RemoteConfig) -> anyhow::Result<PathBuf> {
    let program = match &config.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("weft-endpoint"),
    };
    if !program.exists() {
        bail!(
            "remote.listen is set, and the gateway's program {} is not there: install it there, or \
             set remote.program",
            program.display()
        );
    }
    Ok(program)
}

/// What is to be said of the address at which the gateway is to listen: it is started again and
/// again where this host does not have that, for an address may come later.
pub(in crate::daemon) fn warning(listen: SocketAddr) -> Option<String> {
    let attempt = TcpListener::bind((listen.ip(), 0)).map(drop);
    let error = attempt.err().filter(|error| error.kind() == ErrorKind::AddrNotAvailable)?;
    let port = listen.port();
    Some(format!(
        "remote.listen: {listen} is no address of this host now ({error}); one of its own, or \
         0.0.0.0:{port} for all of them"
    ))
}

fn spawn(daemon: &Daemon, listen: SocketAddr, program: &PathBuf) -> anyhow::Result<Child> {
    let config = &daemon.config;
    let remote = &config.remote;
    let mut command = Command::new(program);
    command.arg("serve").arg("--listen").arg(listen.to_string());
    command.arg("--socket").arg(config.tenant_socket());
    command.arg("--key").arg(config.state_dir.join("gateway.key"));
    for (name, number) in [
        ("--grace-ms", u64::from(remote.grace_ms)),
        ("--sessions", remote.sessions as u64),
        ("--pending", remote.pending as u64),
        ("--patience-ms", u64::from(remote.patience_ms)),
    ] {
        command.arg(name).arg(number.to_string());
    }
    if let Some(user) = config.gateway_user() {
        command.arg("--user").arg(user.to_string());
    }
    // Its standard input ends with this process: that is how it learns of it.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

/// Hears what a gateway says until it ends.
fn attend(gateway: &Gateway, mut child: Child) {
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            hear(gateway, &line);
        }
    }
    let mut why = String::new();
    if let Some(error) = child.stderr.take() {
        for line in BufReader::new(error).lines().map_while(Result::ok).take(4) {
            why.push_str(&line);
        }
    }
    gateway.said().address = None;
    match child.wait() {
        Ok(status) => tracing::error!(%status, why, "the gateway ended; it is started again"),
        Err(error) => tracing::error!(%error, "the gateway was not reaped"),
    }
}

fn hear(gateway: &Gateway, line: &str) {
    if let Some(key) = line.strip_prefix("key ") {
        let key = from_hex(key).and_then(|key| key.try_into().ok());
        gateway.said().key = key;
    } else if let Some(address) = line.strip_prefix("listening ") {
        gateway.said().address = address.parse().ok();
        tracing::info!(address, "endpoints are let in");
    }
    gateway.news.notify_all();
}
