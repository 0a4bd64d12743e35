//! Locks that say which process has something: each goes with its process.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How the lock of a network namespace is called, before and after its number.
const NAME: (&str, &str) = ("endpoint-", ".lock");

/// Whoever clears up has a lock for less than this.
const CLEAR_LIMIT: Duration = Duration::from_millis(100);

/// How often to look whether that is over.
const PAUSE: Duration = Duration::from_millis(1);

/// Takes a lock that only its user can take.
///
/// # Errors
/// If somebody has it, and the system's.
pub fn lock(path: &Path) -> Result<File> {
    let cannot = || format!("cannot open {}", path.display());
    let deadline = Instant::now() + CLEAR_LIMIT;
    loop {
        let mut options = File::options();
        let file = options.create(true).append(true).mode(0o600).open(path);
        let file = file.with_context(cannot)?;
        if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || Instant::now() > deadline {
                return Err(error.into());
            }
            thread::sleep(PAUSE);
            continue;
        }
        // Whoever clears up may have removed it before it was locked: it is nobody's then.
        match fs::metadata(path) {
            Ok(found) if found.ino() == file.metadata()?.ino() => return Ok(file),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(cannot);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Takes the lock of a network namespace with this number, among those in a folder, and removes
/// those that nobody holds: of namespaces that are gone there is one for each.
///
/// # Errors
/// If somebody has it, and the system's.
pub fn of_network(folder: &Path, network: u64) -> Result<File> {
    let (before, after) = NAME;
    let own = lock(&folder.join(format!("{before}{network}{after}")))?;
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(before)?.strip_suffix(after));
        let number = number.and_then(|number| number.parse::<u64>().ok());
        if number.is_some_and(|number| number != network) {
            clear(&entry.path());
        }
    }
    Ok(own)
}

/// Removes a lock that nobody holds. One that cannot be removed is in nobody's way.
fn clear(path: &Path) {
    let Ok(file) = File::options().append(true).open(path) else { return };
    // Under the lock: whoever takes it at this moment finds that it is another file, or none.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn locks_that_nobody_holds_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let other = of_network(folder, 1).unwrap();
        for name in ["endpoint-2.lock", "endpoint-3.lock", "endpoint-x.lock", "endpoint.sock"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let own = of_network(folder, 4).unwrap();
        let left = ["endpoint-1.lock", "endpoint-4.lock", "endpoint-x.lock", "endpoint.sock"];
        assert_eq!(names(folder), left.map(str::to_owned).into());
        for held in [1, 4] {
            of_network(folder, held).unwrap_err();
        }
        drop((other, own));
        of_network(folder, 1).unwrap();
        assert!(!folder.join("endpoint-4.lock").exists());
    }

    #[test]
    fn a_lock_that_is_removed_while_it_is_taken_is_not_held_twice() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, holders) = (folder.path(), [AtomicUsize::new(0), AtomicUsize::new(0)]);
        thread::scope(|scope| {
            for thread in 0..4 {
                let holders = &holders;
                scope.spawn(move || {
                    let network = thread % 2;
                    for _ in 0..200 {
                        // Another thread has it, or clears up.
                        let Ok(lock) = of_network(folder, network as u64) else { continue };
                        assert_eq!(holders[network].fetch_add(1, Ordering::SeqCst), 0);
                        holders[network].fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
    }
}
