//! The gateway's process: started, and started again should it end; ended should it not answer
//! ([`pulse`]). It has no right of this process, and every session that it asks for comes with a
//! grant.

mod pulse;

use std::collections::VecDeque;
use std::io::{BufReader, ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::{OFlags, fcntl_setfl};
use weft_api::lines;
use weft_api::node::{GatewayHealth, GatewayReport};
use weft_wire::remote::{ALIVE, WELL, from_hex, to_hex};

use self::pulse::{ENDED_AFTER, LOOK_EVERY, Look, Pulse};
use super::super::log::{LogLimit, printable};
use super::super::{Daemon, STACK_BYTES};
use crate::config::RemoteConfig;
use crate::link::LINE_BYTES_MAX;

/// From one gateway's end to the next one's start.
const PAUSE: Duration = Duration::from_secs(1);

/// A gateway has said what its key is within this time.
const KEY_LIMIT: Duration = Duration::from_secs(10);

/// A gateway that has not answered for so long is ended.
pub(in crate::daemon) const SILENCE_MAX: Duration = LOOK_EVERY.saturating_mul(ENDED_AFTER);

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
    pulse: Pulse,
    /// Times that one ended, and those of them that it did not answer before.
    ends: u64,
    hangs: u64,
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
        let Said { key, address, pulse, .. } = *self.said();
        let listens_at = address.filter(|_| pulse.silent() == 0);
        self.is_wanted.then(|| GatewayReport {
            listen: listens_at.map(|address| address.to_string()),
            key: key.map(|key| to_hex(&key)).unwrap_or_default(),
        })
    }

    /// How it does, if there is to be one.
    pub(crate) fn health(&self) -> Option<GatewayHealth> {
        let Said { address, pulse, ends, hangs, .. } = *self.said();
        // A look takes a second.
        let silent_s = pulse.silent();
        let listens = address.is_some() && silent_s == 0;
        self.is_wanted.then_some(GatewayHealth { listens, silent_s, ends, hangs })
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
                Ok(child) => attend(&daemon.remote.gateway, child, LOOK_EVERY),
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

/// Hears what a gateway says, and looks at it so often, until it ends.
fn attend(gateway: &Gateway, mut child: Child, every: Duration) {
    let (out, error, asks) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
    gateway.said().pulse = Pulse::default();
    let (lives, ended) = channel();
    let why = thread::scope(|scope| {
        let watched = &mut child;
        scope.spawn(move || watch(gateway, watched, asks, &ended, every));
        let why = hear_all(gateway, out, error);
        drop(lives);
        why
    });
    let mut said = gateway.said();
    (said.address, said.pulse) = (None, Pulse::default());
    said.ends += 1;
    drop(said);
    // One that says nothing any more, and still runs, lets nobody in.
    let _ = child.kill();
    match child.wait() {
        Ok(status) => tracing::error!(%status, why, "the gateway ended; it is started again"),
        Err(error) => tracing::error!(%error, "the gateway was not reaped"),
    }
}

/// Asks a gateway again and again whether it is well, until `ended` is no longer said to; one that
/// does not answer is ended.
fn watch(
    gateway: &Gateway,
    child: &mut Child,
    mut asks: Option<ChildStdin>,
    ended: &Receiver<()>,
    every: Duration,
) {
    // A gateway that answers unasked and reads nothing keeps nobody waiting.
    if let Some(Err(error)) = asks.as_ref().map(|asks| fcntl_setfl(asks, OFlags::NONBLOCK)) {
        tracing::warn!(%error, "the gateway is not asked whether it is well");
        asks = None;
    }
    // Its standard input is open for as long: that is how it learns of this process's end.
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let mut said = gateway.said();
        let was_silent = said.pulse.silent() > 0;
        let look = said.pulse.look();
        said.hangs += u64::from(look == Look::End);
        drop(said);
        match look {
            Look::Ask => {
                if was_silent {
                    tracing::info!("the gateway answers again");
                }
                // One that has ended is soon known, and one that reads no questions, of which many
                // fit into the pipe, answers none.
                let _ = asks.as_mut().map(|asks| writeln!(asks, "{WELL}"));
            }
            Look::Wait => {}
            Look::Tell => tracing::warn!("the gateway does not answer: it hangs, or was stopped"),
            Look::End => {
                let limit_s = SILENCE_MAX.as_secs();
                tracing::error!("the gateway has not answered for {limit_s} s: it is ended");
                if let Err(error) = child.kill() {
                    tracing::error!(%error, "the gateway cannot be ended");
                }
                gateway.news.notify_all();
                return;
            }
        }
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
    if line == ALIVE {
        gateway.said().pulse.answer();
    } else if let Some(key) = line.strip_prefix("key ") {
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
    use rustix::process::{Pid, Signal, kill_process};

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

    /// From one look to the next; as many as are too many without an answer take 3 s.
    const EVERY: Duration = Duration::from_millis(200);

    /// It is looked at more often than a silent one before.
    #[test]
    fn a_gateway_that_is_stopped_is_ended_and_one_that_answers_is_left_alone() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo alive; while read -r _; do echo alive; done"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        let gateway = Gateway { is_wanted: true, ..Gateway::default() };
        let (is_left, is_told) = thread::scope(|scope| {
            let attending = scope.spawn(|| attend(&gateway, child, EVERY));
            let comes = |is_so: &dyn Fn(&Said) -> bool| {
                let limit = Duration::from_secs(60);
                let waited =
                    gateway.news.wait_timeout_while(gateway.said(), limit, |said| !is_so(said));
                !waited.unwrap().1.timed_out()
            };
            let often = u64::from(ENDED_AFTER) + 5;
            let is_left = comes(&|said| said.pulse.answers() > often);
            let is_left = is_left && gateway.said().hangs == 0 && !attending.is_finished();
            kill_process(pid, Signal::STOP).unwrap();
            let is_told = comes(&|said| said.hangs == 1);
            if !is_told {
                kill_process(pid, Signal::KILL).unwrap();
            }
            (is_left, is_told)
        });
        assert!(is_left, "one that answers");
        assert!(is_told, "one that is stopped");
        let expected = GatewayHealth { listens: false, silent_s: 0, ends: 1, hangs: 1 };
        assert_eq!(gateway.health(), Some(expected));
    }

    /// More questions than a pipe holds, each with an answer before it was read.
    #[test]
    fn a_gateway_that_answers_and_reads_nothing_keeps_nobody_waiting() {
        let mut command = Command::new("sh");
        command.args(["-c", "while echo alive; do :; done"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        // The pipe is full before it is looked at.
        let full = child.stdin.as_ref().unwrap();
        fcntl_setfl(full, OFlags::NONBLOCK).unwrap();
        while rustix::io::write(full, &[b'x'; 4096]).is_ok() {}
        fcntl_setfl(full, OFlags::empty()).unwrap();
        let gateway = Gateway { is_wanted: true, ..Gateway::default() };
        let (answers, is_told) = thread::scope(|scope| {
            scope.spawn(|| attend(&gateway, child, EVERY));
            let limit = Duration::from_secs(30);
            let comes = |is_so: &dyn Fn(&Said) -> bool| {
                let waited =
                    gateway.news.wait_timeout_while(gateway.said(), limit, |said| !is_so(said));
                !waited.unwrap().1.timed_out()
            };
            let answers = comes(&|said| said.pulse.answers() > 100) && gateway.said().hangs == 0;
            kill_process(pid, Signal::STOP).unwrap();
            // Whoever waits to ask it does not look at it.
            let is_told = comes(&|said| said.hangs == 1);
            if !is_told {
                kill_process(pid, Signal::KILL).unwrap();
            }
            (answers, is_told)
        });
        assert!(answers, "the control");
        assert!(is_told, "who watches it waits for it");
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
