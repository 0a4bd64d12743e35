//! The thread that writes state to disk, so that nobody who schedules or answers waits for it.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::mem;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use weft_sched::Snapshot;

use super::registry::Holding;

/// Whether something is on disk, or why not.
pub(crate) type Saved = Result<(), String>;

/// What is to be written, for the thread that writes. Of whole files only the newest waits, however
/// slow the disk is, and what is appended waits as one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saver(Arc<(Mutex<Waiting>, Condvar)>);

/// What waits.
#[derive(Debug, Default)]
struct Waiting {
    /// In this order: at most a whole file and what is appended after it.
    documents: Vec<Document>,
    /// Who waits for the registry: a thread each.
    answers: Vec<Sender<Saved>>,
    schedule: Option<Schedule>,
    /// Nothing more comes: the daemon ends.
    ends: bool,
    /// Nobody writes any more.
    over: bool,
}

impl Saver {
    /// Saves the registry: it is forced to disk, or given up and logged. `document` is what
    /// changed, if anything did; `done` is told the outcome, and dropped when nobody writes any
    /// more.
    pub(crate) fn registry(&self, document: Option<Document>, done: Sender<Saved>) {
        self.put(|waiting| {
            if !waiting.over {
                waiting.answers.push(done);
                if let Some(document) = document {
                    waiting.add(document);
                }
            }
        });
    }

    /// Saves the driver's state: it survives the daemon, not the machine.
    pub(crate) fn schedule(&self, schedule: Schedule) {
        let older = self.put(|waiting| waiting.schedule.replace(schedule));
        drop(older);
    }

    /// Ends the thread when all is written.
    pub(crate) fn end(&self) {
        self.put(|waiting| waiting.ends = true);
    }

    fn put<T>(&self, put: impl FnOnce(&mut Waiting) -> T) -> T {
        let told = put(&mut self.waiting());
        self.0.1.notify_one();
        told
    }

    /// Waits for something to do.
    fn take(&self) -> Waiting {
        let is_idle = |waiting: &mut Waiting| {
            !waiting.ends && waiting.answers.is_empty() && waiting.schedule.is_none()
        };
        let waited = self.0.1.wait_while(self.waiting(), is_idle);
        mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self, document: Document) {
        match (document, self.documents.last_mut()) {
            (Document::Lines { bytes: more, .. }, Some(Document::Lines { bytes, .. })) => {
                bytes.extend_from_slice(&more);
            }
            (whole @ Document::Whole { .. }, _) => self.documents = vec![whole],
            (lines @ Document::Lines { .. }, _) => self.documents.push(lines),
        }
    }
}

/// Answers those who wait when nobody writes any more, by dropping what they wait on.
struct Over<'a>(&'a Saver);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let waiting =
            mem::replace(&mut *self.0.waiting(), Waiting { over: true, ..Waiting::default() });
        drop(waiting);
    }
}

/// What the driver knows and the next daemon needs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// The scheduling core.
    pub(crate) core: Snapshot,
    /// Numbers of the sessions, by their keys in the core.
    pub(crate) sessions: BTreeMap<u32, u64>,
    /// Device time of vGPUs that were removed, by device.
    #[serde(default)]
    pub(crate) forgotten_ns: BTreeMap<u32, u64>,
    /// Number of the scheduling core, as the registry counts them.
    #[serde(default)]
    pub(crate) number: u64,
}

impl Schedule {
    /// What a vGPU had held when this was saved.
    pub(crate) fn holding(&self, vgpu: u32) -> Holding {
        let found = self.core.vgpus.iter().find(|state| state.vgpu.0 == vgpu);
        found.map_or_else(Holding::default, |state| Holding {
            held_ns: state.held_ns,
            turns: state.turns,
        })
    }

    /// Device time that a session had used when this was saved.
    pub(crate) fn used_ns(&self, session: u64) -> Option<u64> {
        let (key, _) = self.sessions.iter().find(|(_, number)| **number == session)?;
        let states = &self.core.sessions;
        states.iter().find(|state| state.session.0 == *key).map(|state| state.used_ns)
    }
}

/// What is to be written of the registry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// A file's new content, and the file of lines that it makes obsolete.
    Whole {
        /// Where.
        path: PathBuf,
        /// What.
        bytes: Vec<u8>,
        /// What is emptied afterwards.
        obsolete: PathBuf,
    },
    /// Lines at the end of a file.
    Lines {
        /// Where.
        path: PathBuf,
        /// What.
        bytes: Vec<u8>,
    },
}

impl Document {
    fn path(&self) -> &Path {
        match self {
            Self::Whole { path, .. } | Self::Lines { path, .. } => path,
        }
    }

    /// Writes it and forces it to disk.
    pub(crate) fn write(&self) -> io::Result<()> {
        match self {
            Self::Whole { path, bytes, obsolete } => {
                super::registry::replace(path, bytes)?;
                // Lines that are left over are known as such: they belong to the file before.
                match std::fs::remove_file(obsolete) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    Ok(()) | Err(_) => Ok(()),
                }
            }
            Self::Lines { path, bytes } => {
                let mut options = File::options();
                let mut file = options.create(true).append(true).mode(0o600).open(path)?;
                file.write_all(bytes)?;
                file.sync_data()
            }
        }
    }
}

/// What the thread that writes knows of the registry's files.
#[derive(Debug)]
struct Written {
    /// The outcome of the last document.
    saved: Saved,
    /// A line may have been cut, or a whole file be missing: what is added behind that is not read.
    needs_whole: bool,
}

impl Written {
    /// Writes a document, unless it is lines that nobody would read.
    fn write(&mut self, document: &Document) {
        let path = document.path().display();
        if self.needs_whole && matches!(document, Document::Lines { .. }) {
            self.saved = Err(format!(
                "cannot add to {path}: the write before failed, and only the whole file, which the \
                 next change writes, makes up for it"
            ));
            return;
        }
        let written = document.write();
        self.needs_whole = written.is_err();
        if let Err(error) = &written {
            tracing::error!(%path, %error, "the vGPUs could not be saved");
        }
        self.saved = written.map_err(|error| format!("cannot write {path}: {error}"));
    }
}

/// Writes what comes until the daemon ends. Of what waits only the newest is written: when
/// many sessions begin at once, one write to disk answers them all.
pub(crate) fn run(saver: &Saver, schedule_path: &Path) {
    let _over = Over(saver);
    let mut written = Written { saved: Ok(()), needs_whole: false };
    let mut ends = false;
    while !ends {
        let waiting = saver.take();
        let Waiting { documents, answers, schedule, .. } = waiting;
        ends = waiting.ends;
        documents.iter().for_each(|document| written.write(document));
        for done in answers {
            // Who asked may not care.
            let _ = done.send(written.saved.clone());
        }
        if let Some(schedule) = schedule
            && let Err(error) = write_schedule(schedule_path, &schedule)
        {
            tracing::warn!(%error, "the scheduling state could not be saved");
        }
    }
}

fn write_schedule(path: &Path, schedule: &Schedule) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut options = File::options();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&beside)?;
    // One that was there keeps the mode it had. What each user does is nobody else's business.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(&serde_json::to_vec(schedule)?)?;
    std::fs::rename(&beside, path)
}

/// The state that an earlier daemon saved, if it left any that can be read.
pub(crate) fn read_schedule(path: &Path) -> Option<Schedule> {
    let bytes = std::fs::read(path).ok()?;
    match serde_json::from_slice(&bytes) {
        Ok(schedule) => Some(schedule),
        Err(error) => {
            tracing::warn!(%error, "the saved scheduling state is not understood");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn only_the_newest_of_each_kind_waits_for_a_slow_disk_and_all_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let (path, schedule_path) = (dir.path().join("vgpus.json"), dir.path().join("schedule"));
        let saver = Saver::default();
        let (done, written) = mpsc::channel();
        for round in 1..=1000 {
            saver.schedule(Schedule { number: round, ..Schedule::default() });
            let (path, obsolete) = (path.clone(), dir.path().join("obsolete"));
            let bytes = round.to_string().into_bytes();
            let document = Document::Whole { path, bytes, obsolete };
            saver.registry((round <= 900).then_some(document), done.clone());
        }
        saver.end();
        run(&saver, &schedule_path);
        assert_eq!(std::fs::read(&path).unwrap(), b"900");
        assert_eq!(read_schedule(&schedule_path).unwrap().number, 1000);
        saver.registry(None, done);
        // The last one is not answered: nobody writes any more.
        assert_eq!(written.iter().collect::<Vec<_>>(), vec![Ok(()); 1000]);
    }

    #[test]
    fn lines_are_added_to_what_is_there_and_a_whole_file_ends_them() {
        let dir = tempfile::tempdir().unwrap();
        let (path, lines) = (dir.path().join("whole"), dir.path().join("lines"));
        let mut waiting = Waiting::default();
        let append = |text: &str| {
            let bytes = text.as_bytes().to_vec();
            Document::Lines { path: lines.clone(), bytes }
        };
        let write = |waiting: &mut Waiting| {
            mem::take(&mut waiting.documents).iter().for_each(|document| document.write().unwrap());
        };
        waiting.add(append("a\n"));
        waiting.add(append("b\n"));
        write(&mut waiting);
        waiting.add(append("c\n"));
        write(&mut waiting);
        assert_eq!(std::fs::read(&lines).unwrap(), b"a\nb\nc\n");
        waiting.add(append("d\n"));
        let (path, obsolete) = (path.clone(), lines.clone());
        waiting.add(Document::Whole { path, bytes: b"w".to_vec(), obsolete });
        waiting.add(append("e\n"));
        write(&mut waiting);
        assert_eq!(std::fs::read(&lines).unwrap(), b"e\n");
        assert_eq!(std::fs::read(dir.path().join("whole")).unwrap(), b"w");
    }

    #[test]
    fn nothing_is_added_behind_a_line_that_was_cut_until_a_whole_file_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, lines) = (dir.path().join("whole"), dir.path().join("lines"));
        let append = |text: &str| {
            let bytes = text.as_bytes().to_vec();
            Document::Lines { path: lines.clone(), bytes }
        };
        let whole = || {
            let (path, obsolete) = (path.clone(), lines.clone());
            Document::Whole { path, bytes: b"w".to_vec(), obsolete }
        };
        let mut written = Written { saved: Ok(()), needs_whole: false };
        let mut is_saved = |document: &Document| {
            written.write(document);
            written.saved.is_ok()
        };
        assert!(is_saved(&whole()));
        std::os::unix::fs::symlink("/dev/full", &lines).unwrap();
        assert!(!is_saved(&append("a\n")));
        std::fs::remove_file(&lines).unwrap();
        std::fs::write(&lines, "cut").unwrap();
        // The disk has room again.
        assert!(!is_saved(&append("b\n")));
        assert_eq!(std::fs::read(&lines).unwrap(), b"cut");
        assert!(is_saved(&whole()) && !lines.exists());
        assert!(is_saved(&append("c\n")));
        assert_eq!(std::fs::read(&lines).unwrap(), b"c\n");
    }

    #[test]
    fn the_schedule_is_for_the_daemons_eyes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("schedule.json");
        // As an earlier version left it.
        std::fs::write(path.with_extension("new"), "").unwrap();
        write_schedule(&path, &Schedule::default()).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_comes_while_nothing_waits_is_written_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (schedule_path, saver) = (dir.path().join("schedule"), Saver::default());
        let (thread_saver, thread_path) = (saver.clone(), schedule_path.clone());
        let thread = thread::spawn(move || run(&thread_saver, &thread_path));
        let (done, written) = mpsc::channel();
        for round in 1..=3 {
            saver.schedule(Schedule { number: round, ..Schedule::default() });
            saver.registry(None, done.clone());
            assert_eq!(written.recv().unwrap(), Ok(()));
        }
        saver.end();
        thread.join().unwrap();
        assert_eq!(read_schedule(&schedule_path).unwrap().number, 3);
    }
}
