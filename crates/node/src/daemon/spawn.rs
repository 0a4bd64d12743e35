//! Starting a worker, and ending one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::sockopt::{self, Timeout};
use weft_ring::peer::{self, Process};

use crate::link::{self, Ask, Reply, Start};

/// A worker must be ready within this time.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// A killed worker is gone within this time.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// A worker's process.
#[derive(Debug)]
pub(crate) struct Worker {
    /// The process.
    pub(crate) process: Process,
    /// The socket to it.
    pub(crate) link: OwnedFd,
    /// Its process id.
    pub(crate) pid: u32,
    /// It, if it is this daemon's own child.
    child: Option<Child>,
}

impl Worker {
    /// Starts a worker and waits until it is ready.
    pub(crate) fn spawn(start: &Start, fds: &[BorrowedFd<'_>]) -> anyhow::Result<Self> {
        let (link, theirs) = peer::pair()?;
        let child = Command::new("/proc/self/exe")
            // Its name in `ps`; the path to run stays right when the file was replaced.
            .arg0(std::env::args_os().next().unwrap_or_else(|| "weft".into()))
            .arg("worker")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // A signal of the terminal is for the daemon.
            .process_group(0)
            .spawn()
            .context("cannot start a worker")?;
        let pid = child.id();
        let process = Process::open(pid)?;
        let worker = Self { process, link, pid, child: Some(child) };
        match worker.start(start, fds) {
            Ok(()) => Ok(worker),
            Err(error) => {
                worker.end();
                Err(error)
            }
        }
    }

    /// A worker that an earlier daemon started.
    pub(crate) fn adopted(process: Process, link: OwnedFd, pid: u32) -> Self {
        Self { process, link, pid, child: None }
    }

    fn start(&self, start: &Start, fds: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        link::send(&self.link, start, fds)?;
        sockopt::set_socket_timeout(&self.link, Timeout::Recv, Some(READY_LIMIT))?;
        sockopt::set_socket_timeout(&self.link, Timeout::Send, Some(READY_LIMIT))?;
        match link::receive::<Ask>(&self.link)? {
            Some((Ask::Ready, _)) => {}
            Some((other, _)) => bail!("the worker said {other:?} before it was ready"),
            None => bail!("the worker ended before it was ready; its log says why"),
        }
        link::send(&self.link, &Reply::Done, &[])?;
        sockopt::set_socket_timeout(&self.link, Timeout::Recv, None)?;
        Ok(())
    }

    /// Another descriptor of the process, for who may have to kill it.
    pub(crate) fn process(&self) -> anyhow::Result<Process> {
        Ok(Process::from_descriptor(self.process.as_fd().try_clone_to_owned()?))
    }

    /// Kills the worker if it lives, and returns when it is gone.
    pub(crate) fn end(mut self) {
        if let Err(error) = self.process.kill() {
            tracing::trace!(pid = self.pid, %error, "worker was gone");
        }
        if !self.process.wait_exit(EXIT_LIMIT) {
            tracing::error!(pid = self.pid, "worker does not end");
        }
        if let Some(child) = &mut self.child {
            match child.wait() {
                Ok(status) => tracing::debug!(pid = self.pid, %status, "worker ended"),
                Err(error) => tracing::warn!(pid = self.pid, %error, "worker was not reaped"),
            }
        }
    }
}
