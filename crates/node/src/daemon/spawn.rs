//! Starting a worker, and ending one.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::sockopt::{self, Timeout};
use weft_device::{BackendConfig, DeviceInfo};
use weft_ring::peer::{self, Process};

use super::log::printable;
use super::precedence::Ranks;
use super::process::WorkerProcess;
use crate::config::DeviceConfig;
use crate::link::{self, Ask, Assignment, LINE_BYTES_MAX, Passed, Probed, Reply, Severity, Start};

/// A worker must be ready within this time. A GPU's driver makes one context after the other, up to
/// 0.5 s each, so of a hundred that start at once the last takes most of it. Whoever waits for this
/// daemon waits longer.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A driver must start within this time: the first one after a boot loads firmware.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// A killed worker is gone within this time.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// A worker whose link ended has at most this long still to go.
const LAST_MOMENT: Duration = Duration::from_millis(20);

/// A worker's process.
#[derive(Debug)]
pub(crate) struct Worker {
    /// The process.
    pub(crate) process: Arc<WorkerProcess>,
    /// The socket to it.
    pub(crate) link: OwnedFd,
    /// It, if it is this daemon's own child.
    child: Option<Child>,
}

impl Worker {
    /// Starts a worker and waits until it is ready.
    pub(crate) fn spawn(
        start: &Start,
        fds: &[(Passed, BorrowedFd<'_>)],
        ranks: Option<Ranks>,
    ) -> anyhow::Result<Self> {
        let (link, child) = spawn(&start.device.backend)?;
        let pid = child.id();
        let process = Arc::new(WorkerProcess::new(Process::open(pid)?, pid).ranked(ranks));
        let worker = Self { process, link, child: Some(child) };
        match worker.start(start, fds) {
            Ok(()) => Ok(worker),
            Err(error) => {
                worker.end();
                Err(error)
            }
        }
    }

    /// A worker that an earlier daemon started.
    pub(crate) fn adopted(process: Process, link: OwnedFd, pid: u32, ranks: Option<Ranks>) -> Self {
        let process = Arc::new(WorkerProcess::new(process, pid).ranked(ranks));
        Self { process, link, child: None }
    }

    fn start(&self, start: &Start, fds: &[(Passed, BorrowedFd<'_>)]) -> anyhow::Result<()> {
        let (passed, fds): (Vec<Passed>, Vec<BorrowedFd<'_>>) = fds.iter().copied().unzip();
        let assignment = Assignment::Work { start: Box::new(start.clone()), passed };
        link::send(&self.link, &assignment, &fds)?;
        sockopt::set_socket_timeout(&self.link, Timeout::Recv, Some(READY_LIMIT))?;
        sockopt::set_socket_timeout(&self.link, Timeout::Send, Some(READY_LIMIT))?;
        let mut last = String::from("its end");
        loop {
            match link::receive_plain::<Ask>(&self.link)? {
                Some(Ask::Ready) => break,
                Some(Ask::Log { severity: Severity::Error | Severity::Warn, text }) => {
                    last = printable(&text, LINE_BYTES_MAX);
                }
                Some(Ask::Log { .. }) => {}
                Some(other) => bail!("the worker said {other:?} before it was ready"),
                None => bail!("the worker ended before it was ready; the last it said was: {last}"),
            }
        }
        link::send(&self.link, &Reply::Done, &[])?;
        sockopt::set_socket_timeout(&self.link, Timeout::Recv, None)?;
        Ok(())
    }

    /// Kills the worker if it lives, and returns when it is gone; the signal that it died of
    /// before, if it did.
    pub(crate) fn end(mut self) -> Option<i32> {
        let pid = self.process.pid;
        // Its link may have ended a moment before itself.
        let was_gone = self.process.wait_exit(LAST_MOMENT);
        if let Err(error) = self.process.kill() {
            tracing::trace!(pid, %error, "worker was gone");
        }
        if !self.process.wait_exit(EXIT_LIMIT) {
            tracing::error!(pid, "worker does not end");
        }
        self.process.note_end(self.child.is_some());
        if let Some(child) = &mut self.child {
            match child.wait() {
                Ok(status) => {
                    tracing::debug!(pid, %status, "worker ended");
                    return status.signal().filter(|_| was_gone);
                }
                Err(error) => tracing::warn!(pid, %error, "worker was not reaped"),
            }
        }
        None
    }
}

/// Starts a worker's process.
fn spawn(backend: &BackendConfig) -> anyhow::Result<(OwnedFd, Child)> {
    spawn_process("worker", backend.environment())
}

/// Starts a process of this program, as that subcommand, with one end of a link as its standard
/// input.
pub(crate) fn spawn_process(
    subcommand: &str,
    environment: &[(&'static str, Option<&'static str>)],
) -> anyhow::Result<(OwnedFd, Child)> {
    let (link, theirs) = peer::pair()?;
    // One that was taken over sends nothing that this process would have to close. A kernel that
    // cannot refuse it drops it: see `link::receive_plain`.
    let _refuses = peer::refuse_descriptors(&link);
    let mut command = Command::new("/proc/self/exe");
    // Its name in `ps`; the path to run stays right when the file was replaced.
    command.arg0(std::env::args_os().next().unwrap_or_else(|| "weft".into())).arg(subcommand);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let child = command
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        // What it has to say comes through the link, bounded and with its name.
        .stderr(Stdio::null())
        // A signal of the terminal is for the daemon.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start a {subcommand}"))?;
    Ok((link, child))
}

/// Looks at a device; in a process of its own if that loads a driver, which leaves threads and
/// files in whoever does it.
pub(crate) fn probe(device: &DeviceConfig) -> anyhow::Result<DeviceInfo> {
    let (memory_bytes, trusting) = (device.memory_bytes(), device.trust_tenants);
    let backend = device.backend.clone();
    if !backend.loads_driver() {
        return backend.probe(memory_bytes, trusting).map_err(anyhow::Error::msg);
    }
    let (link, mut child) = spawn(&backend)?;
    let request = Assignment::Probe { backend, memory_bytes, trusting };
    let answer = link::send(&link, &request, &[]).and_then(|()| {
        sockopt::set_socket_timeout(&link, Timeout::Recv, Some(PROBE_LIMIT))?;
        link::receive_plain::<Probed>(&link)
    });
    // It has answered, or never will.
    let _ = child.kill();
    child.wait().context("the process that looked at the device was not reaped")?;
    match answer.context("the driver does not answer")? {
        Some(Ok(info)) => Ok(info),
        Some(Err(reason)) => bail!(reason),
        None => bail!("the driver ended the process that loaded it"),
    }
}
