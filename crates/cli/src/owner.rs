//! The process that this one is for.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process whose end is waited for, by a descriptor: its number may be another's by then.
#[derive(Debug)]
pub(crate) struct Owner {
    process: OwnedFd,
}

impl Owner {
    /// `purpose` completes "the process 7 …" if it is gone.
    pub(crate) fn open(pid: i32, purpose: &str) -> Result<Self> {
        let gone = || format!("the process {pid} {purpose} is gone");
        let pid = Pid::from_raw(pid).with_context(gone)?;
        Ok(Self { process: pidfd_open(pid, PidfdFlags::empty()).with_context(gone)? })
    }

    /// Waits for its end, at most so long if there is a limit; whether it has ended.
    pub(crate) fn ends_within(&self, limit: Option<&Timespec>) -> Result<bool> {
        match rustix::event::poll(&mut [PollFd::new(&self.process, PollFlags::IN)], limit) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn an_end_is_seen_and_no_sooner() {
        let mut process = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(process.id()).unwrap();
        let owner = Owner::open(pid, "that was meant").unwrap();
        let instant = Timespec::default();
        assert!(!owner.ends_within(Some(&instant)).unwrap());
        process.kill().unwrap();
        while !owner.ends_within(None).unwrap() {}
        process.wait().unwrap();
        let error = Owner::open(pid, "that was meant").unwrap_err().to_string();
        assert_eq!(error, format!("the process {pid} that was meant is gone"));
    }
}
