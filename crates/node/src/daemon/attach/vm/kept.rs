//! The file of a region that an earlier daemon made and in which no session is: its machine's
//! server has it open, and there this daemon finds it.
//!
//! A descriptor that the server sent could be one whose closing takes as long as the server likes.
//! So none is taken. What a path in `/proc` leads to is held without being opened, and opened if it
//! is a memory file, of this daemon's user and of the region's name: nobody else makes such.

use std::fs::{read_dir, read_link, read_to_string};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use weft_ring::peer::{Credentials, Process};
use weft_ring::{MapError, MemoryFile, PAGE};

/// The name of regions' files.
pub(super) const NAME: &str = "weft-region";

/// So many of a process's descriptors are looked at: a server has its region early.
const LOOKED_AT_MAX: usize = 256;

/// Why a region is not taken over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    /// The process is in another namespace, or another user's by now.
    #[error("the node does not see the process of the machine's server")]
    Unseen,
    /// It has none.
    #[error("the machine's server keeps no such memory")]
    None,
    /// The system refused.
    #[error("the memory of the machine's server cannot be looked at: {0}")]
    System(#[from] io::Error),
    /// No memory to compare with.
    #[error(transparent)]
    Memory(#[from] MapError),
}

/// The first memory file of a region that a server's process has and that is `wanted`.
pub(super) fn find(
    server: &Credentials,
    wanted: impl Fn(&MemoryFile) -> bool,
) -> Result<MemoryFile, NotKept> {
    let process = server.pid.ok_or(NotKept::Unseen)?;
    // From here on the number means this process, for as long as it has not exited.
    let held = Process::open(process).map_err(|_| NotKept::Unseen)?;
    let folder = PathBuf::from(format!("/proc/{process}/fd"));
    if std::fs::metadata(&folder)?.uid() != server.uid {
        return Err(NotKept::Unseen);
    }
    let mount = Mount::of_memory()?;
    let entries = read_dir(&folder)?.take(LOOKED_AT_MAX).filter_map(Result::ok);
    let mut files = entries.filter_map(|entry| memory_at(&entry.path(), &mount));
    let found = files.find(wanted).ok_or(NotKept::None)?;
    if held.has_exited() { Err(NotKept::Unseen) } else { Ok(found) }
}

/// What a path leads to, if it is a sealed file that this daemon's user made as a region.
fn memory_at(path: &Path, mount: &Mount) -> Option<MemoryFile> {
    let name = format!("/memfd:{NAME} (deleted)");
    if read_link(path).ok()? != Path::new(&name) {
        return None;
    }
    // Nothing of it is asked yet: a file system of the server's own would answer when it likes.
    let place = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if Mount::of(&place).ok()? != *mount {
        return None;
    }
    let own = format!("/proc/self/fd/{}", place.as_raw_fd());
    // Whoever has a lease on it would have others wait.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(own.as_str(), flags, Mode::empty()).ok()?;
    let is_ours = fstat(&file).ok()?.st_uid == geteuid().as_raw();
    is_ours.then(|| MemoryFile::received(file).ok()).flatten()
}

/// Where a file lies, as the system says without asking its file system.
#[derive(Debug, PartialEq, Eq)]
struct Mount(String);

impl Mount {
    fn of(file: &OwnedFd) -> io::Result<Self> {
        let text = read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        Ok(Self(id.ok_or(io::ErrorKind::InvalidData)?.trim().to_owned()))
    }

    /// Of all memory files.
    fn of_memory() -> Result<Self, NotKept> {
        let file: OwnedFd = MemoryFile::create("weft-mount", PAGE)?.into();
        Ok(Self::of(&file)?)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::super::processors::Inode;
    use super::*;

    const BYTES: usize = 24 * PAGE;

    fn is_wanted(file: &MemoryFile) -> bool {
        file.len() == BYTES
    }

    #[test]
    fn only_a_sealed_file_with_a_regions_name_is_taken_over() {
        let uid = geteuid().as_raw();
        let own = Credentials { pid: Some(std::process::id()), uid, gid: 0 };
        let _other = MemoryFile::create("weft-other", BYTES).unwrap();
        let unsealed = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, BYTES as u64).unwrap();
        assert!(matches!(find(&own, is_wanted), Err(NotKept::None)));
        let region = MemoryFile::create(NAME, BYTES).unwrap();
        let found = find(&own, is_wanted).unwrap();
        assert_eq!(Inode::of(&found).unwrap(), Inode::of(&region).unwrap());
        assert!(matches!(find(&own, |_| false), Err(NotKept::None)));
        for stranger in [Credentials { uid: uid + 1, ..own }, Credentials { pid: None, ..own }] {
            assert!(matches!(find(&stranger, is_wanted), Err(NotKept::Unseen)));
        }
    }

    #[test]
    fn a_file_elsewhere_is_on_another_mount() {
        let file = tempfile::tempfile().unwrap();
        assert_ne!(Mount::of(&file.into()).unwrap(), Mount::of_memory().unwrap());
    }
}
