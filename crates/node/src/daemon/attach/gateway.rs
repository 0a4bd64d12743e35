//! The gateway's process: started, and started again should it end. It has no right of this
//! process, and every session that it asks for comes with a grant.

use std::collections::VecDeque;
use std::io::{BufReader, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use weft_api::lines;
use weft_api::node::GatewayReport;
use weft_wire::remote::{from_hex, to_hex};

use super::super::log::{LogLimit, printable};
use super::super::{Daemon, STACK_BYTES};
use crate::config::RemoteConfig;
use crate::link::LINE_BYTES_MAX;

/// From one gateway's end to the next one's start.
const PAUSE: Duration = Duration::from_secs(1);

/// A gateway has said what its key is within this time.
const KEY_LIMIT: Duration = Duration::from_secs(10);

/// Lines of a gateway's standard error: it is not trusted to say little.
static SAID: LogLimit = LogLimit::per_second(10);

/// Lines that say where it listens, which an honest one says once.
static LISTENS: LogLimit = LogLimit::per_second(1);

/// So many lines of its standard error stand beside its end.
const LAST_LINES: usize = 4;

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
    let why = hear_all(gateway, child.stdout.take(), child.stderr.take());
    gateway.said().address = None;
    match child.wait() {
        Ok(status) => tracing::error!(%status, why, "the gateway ended; it is started again"),
        Err(error) => tracing::error!(%error, "the gateway was not reaped"),
    }
}

/// Hears both ways in which a gateway says something, to their ends; returns its last words.
fn hear_all(gateway: &Gateway, out: Option<ChildStdout>, error: Option<ChildStderr>) -> String {
    thread::scope(|scope| {
        // In a thread of its own: a gateway may say more there than a pipe holds.
        let last = error.map(|error| scope.spawn(|| overhear(error)));
        if let Some(out) = out {
            for line in lines::all(BufReader::new(out), LINE_BYTES_MAX).map_while(Result::ok) {
                hear(gateway, &String::from_utf8_lossy(&line));
            }
        }
        last.and_then(|last| last.join().ok()).unwrap_or_default()
    })
}

/// Logs what a gateway says on its standard error as it comes; returns the last lines of it.
fn overhear(error: ChildStderr) -> String {
    let mut last: VecDeque<String> = VecDeque::new();
    for line in lines::all(BufReader::new(error), LINE_BYTES_MAX).map_while(Result::ok) {
        let line = printable(&String::from_utf8_lossy(&line), LINE_BYTES_MAX);
        if let Some(suppressed) = SAID.line(Instant::now()) {
            tracing::warn!(line, suppressed, "the gateway says");
        }
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    last.make_contiguous().join("; ")
}

fn hear(gateway: &Gateway, line: &str) {
    if let Some(key) = line.strip_prefix("key ") {
        let key = from_hex(key).and_then(|key| key.try_into().ok());
        gateway.said().key = key;
    } else if let Some(address) = line.strip_prefix("listening ") {
        let address = address.parse().ok();
        gateway.said().address = address;
        if let (Some(address), Some(_)) = (address, LISTENS.line(Instant::now())) {
            tracing::info!(%address, "endpoints are let in");
        }
    }
    gateway.news.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last words of a script in a gateway's place, which ends once it was heard where it
    /// listens.
    fn last_words(script: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, error, input) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
        let gateway = Gateway::default();
        let last = thread::scope(|scope| {
            let hearing = scope.spawn(|| hear_all(&gateway, out, error));
            let silent = |said: &mut Said| said.address.is_none();
            let waited = gateway.news.wait_timeout_while(gateway.said(), KEY_LIMIT, silent);
            let is_heard = waited.unwrap().0.address.is_some();
            if !is_heard {
                child.kill().unwrap();
            }
            drop(input);
            assert!(is_heard, "it waits for a reader");
            hearing.join().unwrap()
        });
        child.wait().unwrap();
        last
    }

    /// More than a pipe holds, before it listens: it would wait for a reader for ever.
    #[test]
    fn a_gateway_that_says_much_on_its_standard_error_is_heard_all_the_same() {
        let last = last_words(
            "head -c 300000 /dev/zero | tr '\\0' 'x' | fold -w 99 >&2
            echo >&2
            echo listening 127.0.0.1:7600
            read -r _
            echo the last >&2",
        );
        assert!(last.starts_with("xxx") && last.ends_with("; the last"), "{last}");
    }

    /// 64 MiB each way, of which a line's worth is kept; what comes behind it is heard.
    #[test]
    fn of_a_gateways_line_without_an_end_no_more_is_kept_than_a_line_has() {
        let last = last_words(
            "flood() { head -c 67108864 /dev/zero | tr '\\0' 'x'; }
            flood >&2
            echo >&2
            flood
            echo
            echo listening 127.0.0.1:7600
            read -r _
            echo the last >&2",
        );
        assert_eq!(last, format!("{}; the last", "x".repeat(LINE_BYTES_MAX)));
    }
}
