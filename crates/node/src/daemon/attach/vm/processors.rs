//! Which threads of this host run a machine's processors.
//!
//! The machine's server says so, which is a tenant: what it names is believed only of a process of
//! its own user that maps the machine's region, which nobody else can. The guest names numbers of
//! processors and never a thread, so the worst that it can do is to have another processor of its
//! own machine helped.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{fstat, major, minor};
use weft_ring::MemoryFile;
use weft_ring::peer::Process;
use weft_wire::guest;

use crate::daemon::cosched::began_at;

/// So much of a process's list of mappings is looked at: some ten thousand of them.
const MAPS_BYTES_MAX: u64 = 2 << 20;

/// The threads of a machine's processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Processors {
    /// Their process.
    pub(crate) process: u32,
    /// When that began, in clock ticks since the system started.
    pub(crate) began: u64,
    /// Of each processor, in the order of the guest's numbers. Whether one is a thread of the
    /// process is looked up when it matters: threads end.
    pub(crate) threads: Vec<u32>,
}

/// Why nobody is helped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTheMachine {
    /// Another user's process.
    #[error("process {0} is another user's")]
    Foreign(u32),
    /// It is no process of the machine.
    #[error("process {0} does not map the machine's region")]
    Elsewhere(u32),
    /// The system refused, or the process is gone.
    #[error("process {process} cannot be looked at")]
    System {
        /// The process.
        process: u32,
        /// Why.
        source: io::Error,
    },
}

impl Processors {
    /// What a server of user `uid` said, if it can be so.
    pub(super) fn verify(
        said: guest::Processors,
        uid: u32,
        region: &MemoryFile,
    ) -> Result<Self, NotTheMachine> {
        let guest::Processors { process, threads } = said;
        let system = |source| NotTheMachine::System { process, source };
        // From here on the number means this process, for as long as it has not exited.
        let held = Process::open(process).map_err(system)?;
        let owner = std::fs::metadata(format!("/proc/{process}")).map_err(system)?.uid();
        if owner != uid {
            return Err(NotTheMachine::Foreign(process));
        }
        let began = began_at(process).map_err(system)?;
        let maps = File::open(format!("/proc/{process}/maps")).map_err(system)?;
        let wanted = Inode::of(region).map_err(system)?;
        let mut lines = BufReader::new(maps.take(MAPS_BYTES_MAX)).lines().map_while(Result::ok);
        if !lines.any(|line| Inode::of_mapping(&line) == Some(wanted)) {
            return Err(NotTheMachine::Elsewhere(process));
        }
        if held.has_exited() {
            return Err(system(io::ErrorKind::NotFound.into()));
        }
        Ok(Self { process, began, threads })
    }
}

/// What tells a file from all others of the host, while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inode {
    device: (u32, u32),
    number: u64,
}

impl Inode {
    pub(super) fn of(file: &MemoryFile) -> io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self { device: (major(stat.st_dev), minor(stat.st_dev)), number: stat.st_ino })
    }

    /// Of a line of `/proc/PID/maps`: range, rights, offset, device, number, name.
    fn of_mapping(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(3);
        let (major, minor) = words.next()?.split_once(':')?;
        let hexadecimal = |word| u32::from_str_radix(word, 16).ok();
        let device = (hexadecimal(major)?, hexadecimal(minor)?);
        Some(Self { device, number: words.next()?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use weft_ring::{Access, PAGE};

    use super::*;

    fn said(process: u32) -> guest::Processors {
        guest::Processors { process, threads: vec![process] }
    }

    #[test]
    fn only_a_process_that_maps_the_region_is_the_machine() {
        let (own, uid) = (std::process::id(), rustix::process::getuid().as_raw());
        let region = MemoryFile::create("region", PAGE).unwrap();
        let other = MemoryFile::create("region", PAGE).unwrap();
        let _mapped = region.map(Access::ReadWrite).unwrap();
        let found = Processors::verify(said(own), uid, &region).unwrap();
        assert_eq!((found.process, found.threads), (own, vec![own]));
        assert_eq!(found.began, began_at(own).unwrap());
        let refused = |said, uid, region: &MemoryFile| {
            Processors::verify(said, uid, region).unwrap_err().to_string()
        };
        assert!(refused(said(own), uid, &other).contains("does not map"));
        assert!(refused(said(own), uid + 1, &region).contains("another user's"));
        assert!(refused(said(u32::MAX >> 1), uid, &region).contains("cannot be looked at"));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(refused(said(child.id()), uid, &region).contains("does not map"));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn lines_of_mappings() {
        let line = "7f00-7f10 rw-s 00000000 00:01 1078  /memfd:weft-region (deleted)";
        assert_eq!(Inode::of_mapping(line), Some(Inode { device: (0, 1), number: 1078 }));
        for odd in ["", "7f00-7f10 rw-s 00000000", "a b c d e", "a b c 00:01 x"] {
            assert_eq!(Inode::of_mapping(odd), None);
        }
    }
}
