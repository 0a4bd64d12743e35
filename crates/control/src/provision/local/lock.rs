//! Locks that say who holds them. The system frees them when the holder is gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

/// A lock that this process holds.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "the file is the lock")] File);

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    /// Its process.
    pub(super) pid: u32,
    /// When that was started, in the system's ticks: its number may be another's by and by.
    started: u64,
    /// What it said of itself.
    pub(super) what: String,
}

/// For so long somebody may look whether a lock is held, and hold it for that.
const LOOKS: Duration = Duration::from_millis(500);

impl Lock {
    /// Takes a lock that is to be held for a process's life.
    pub(super) fn take_for_life(path: &Path, what: &str) -> io::Result<Option<Self>> {
        let deadline = Instant::now() + LOOKS;
        loop {
            match Self::take(path, what)? {
                None if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
                taken => return Ok(taken),
            }
        }
    }

    /// Takes a lock with a word about oneself; none if somebody holds it.
    pub(super) fn take(path: &Path, what: &str) -> io::Result<Option<Self>> {
        let opened = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path);
        let mut file = opened?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The folder may have been taken away since the file was opened.
        let (own, there) = (file.metadata()?, fs::metadata(path)?);
        if (own.dev(), own.ino()) != (there.dev(), there.ino()) {
            return Err(ErrorKind::NotFound.into());
        }
        let pid = std::process::id();
        let started = started(pid).unwrap_or(0);
        file.set_len(0)?;
        file.write_all(format!("{pid} {started} {what}\n").as_bytes())?;
        Ok(Some(Self(file)))
    }

    /// Who holds a lock; none if nobody does, or there is none.
    pub(super) fn holder(path: &Path) -> io::Result<Option<Holder>> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            // It goes with the file.
            Ok(()) => return Ok(None),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => {}
            Err(error) => return Err(error.into()),
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // A line that is not whole is being written.
        let Some(line) = text.strip_suffix('\n') else { return Ok(None) };
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (Some(pid), Some(started)) = (number(), number()) else { return Ok(None) };
        let what = words.next().unwrap_or_default().to_owned();
        Ok(Some(Holder { pid: u32::try_from(pid).unwrap_or(0), started, what }))
    }
}

/// How often all that a holder started is looked for and ended, before it is ended itself.
const LOOKS_MAX: u32 = 500;

impl Holder {
    /// Ends it and all that it started, as far as they can be found.
    pub(super) fn kill(&self) {
        // A thread of this process that looks whether a lock is free holds it meanwhile.
        if self.pid == std::process::id() || started(self.pid) != Some(self.started) {
            return;
        }
        // It lives until the last of them has gone, so that those of a process that is ended stay
        // descendants, and are found the next time. But it may start none itself: one that came
        // between the last look and its end would be nobody's.
        signal(self.pid, Signal::STOP);
        for _ in 0..LOOKS_MAX {
            let living = descendants(self.pid);
            living.iter().copied().for_each(end);
            if living.is_empty() {
                break;
            }
        }
        end(self.pid);
    }
}

fn end(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may be gone.
        let _ = kill_process(pid, signal);
    }
}

/// The fields of `/proc/PID/stat` behind the name.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

/// When a process was started.
fn started(pid: u32) -> Option<u64> {
    stat(pid)?.get(19)?.parse().ok()
}

/// All that a process started, and those started; not those that are over.
fn descendants(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let processes = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = processes
        .filter_map(|process| {
            let stat = stat(process)?;
            let is_over = stat.first().is_some_and(|state| state == "Z" || state == "X");
            (!is_over).then_some((process, stat.get(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        let children = parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child);
        found.extend(children);
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_lock_is_one_processes_and_says_whose() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert_eq!(Lock::holder(&path).unwrap(), None);
        let lock = Lock::take(&path, "some words").unwrap().unwrap();
        assert!(Lock::take(&path, "").unwrap().is_none());
        let holder = Lock::holder(&path).unwrap().unwrap();
        assert_eq!((holder.pid, holder.what.as_str()), (std::process::id(), "some words"));
        drop(lock);
        assert_eq!(Lock::holder(&path).unwrap(), None);
    }

    #[test]
    fn who_looks_at_a_lock_does_not_end_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let _lock = Lock::take(&path, "").unwrap().unwrap();
        Lock::holder(&path).unwrap().unwrap().kill();
    }

    #[test]
    fn a_process_that_has_anothers_number_is_not_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let started = started(child.id()).unwrap();
        let holder = |started| Holder { pid: child.id(), started, what: String::new() };
        let (other, own) = (holder(started + 1), holder(started));
        other.kill();
        assert!(child.try_wait().unwrap().is_none());
        own.kill();
        assert!(!child.wait().unwrap().success());
    }

    /// A VM that is removed while it boots: it starts processes all the time.
    #[test]
    fn who_starts_others_all_the_time_leaves_none() {
        const OTHERS: &str = "sleep 600.0625";
        let script = format!("while :; do {OTHERS} & done");
        let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        while descendants(child.id()).len() < 20 {
            thread::yield_now();
        }
        Holder { pid: child.id(), started: started(child.id()).unwrap(), what: String::new() }
            .kill();
        child.wait().unwrap();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_left = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").trim() == OTHERS
        };
        let left: Vec<u32> = processes.filter(is_left).collect();
        left.iter().copied().for_each(end);
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn descendants_are_found() {
        let mut child = Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        while descendants(child.id()).is_empty() {
            thread::yield_now();
        }
        Holder { pid: child.id(), started: started(child.id()).unwrap(), what: String::new() }
            .kill();
        child.wait().unwrap();
    }
}
