//! The folder of the sockets of a machine's ports. Whoever opens one of them is the machine.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

/// What temporary ones are called: this, the vGPU, and the server's process.
const PREFIX: &str = "weft-machine-";

/// How often to make a temporary folder that somebody takes for one that was left.
const TRIES: u32 = 8;

/// A folder of one server alone. A temporary one goes with this value.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    is_temporary: bool,
    /// Locked, so that nobody uses it too or takes it for one that was left.
    _lock: File,
}

impl Folder {
    /// One that was named; it is made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made, others may write to it, or another server has it.
    pub fn given(path: PathBuf) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        let found = fs::metadata(&path)?;
        let own = rustix::process::geteuid().as_raw();
        ensure!(
            found.uid() == own && found.mode() & 0o022 == 0,
            "{} is another user's, or others may write to it: whoever opens a socket there is \
             the machine. Name a folder of your own (--folder), or none",
            path.display()
        );
        let lock = File::open(&path)?;
        ensure!(
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
            "another server has {}: name another --folder",
            path.display()
        );
        Ok(Self { path, is_temporary: false, _lock: lock })
    }

    /// One of its own for the machine with this vGPU. What servers have left that were killed goes.
    ///
    /// # Errors
    /// The system's.
    pub fn temporary(vgpu: &str) -> Result<Self> {
        let parent = std::env::temp_dir();
        remove_left(&parent);
        let path = parent.join(format!("{PREFIX}{vgpu}-{}", std::process::id()));
        for _ in 0..TRIES {
            let made = DirBuilder::new().mode(0o700).create(&path);
            made.with_context(|| format!("cannot make {}", path.display()))?;
            // Until it is locked another server may remove it.
            let Ok(lock) = File::open(&path) else { continue };
            flock(&lock, FlockOperation::LockExclusive)?;
            if lock.metadata()?.nlink() > 0 && path.exists() {
                return Ok(Self { path, is_temporary: true, _lock: lock });
            }
        }
        bail!("{} is removed whenever it is made: name another --folder", path.display())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary {
            // It may have gone already.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes this user's temporary folders whose servers have ended.
fn remove_left(parent: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own);
        if !is_named || !is_own {
            continue;
        }
        let locked = File::open(entry.path())
            .is_ok_and(|folder| flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok());
        if locked {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_a_killed_server_left_goes_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let left = make("weft-machine-team-a-1");
        let used = make("weft-machine-team-a-2");
        let other = make("notes");
        let lock = File::open(&used).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        remove_left(parent.path());
        assert!(!left.exists() && used.exists() && other.exists());
    }

    #[test]
    fn a_temporary_folder_is_there_as_long_as_its_server() {
        let folder = Folder::temporary("folder-test").unwrap();
        remove_left(&std::env::temp_dir());
        let path = folder.path().to_owned();
        assert!(path.exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_in_which_others_may_write_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("ports");
        assert_eq!(Folder::given(path.clone()).unwrap().path(), path);
        assert!(path.exists(), "one that was named stays");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        let refused = Folder::given(path).unwrap_err().to_string();
        assert!(refused.contains("others may write"), "{refused}");
    }

    #[test]
    fn two_servers_do_not_share_a_folder() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("ports");
        let first = Folder::given(path.clone()).unwrap();
        let refused = Folder::given(path.clone()).unwrap_err().to_string();
        assert!(refused.contains("another server has"), "{refused}");
        drop(first);
        Folder::given(path).unwrap();
    }
}
