//! The thread that writes state to disk, so that nobody who schedules or answers waits for it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};

use serde::{Deserialize, Serialize};
use weft_sched::Snapshot;

/// Something to write.
#[derive(Debug)]
pub(crate) enum Save {
    /// The registry: forced to disk (or given up and logged), then answered.
    Registry {
        /// The whole file.
        document: Document,
        /// Told when it is on disk.
        done: Sender<()>,
    },
    /// The driver's state: survives the daemon, not the machine.
    Schedule(Schedule),
}

/// What the driver knows and the next daemon needs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// The scheduling core.
    pub(crate) core: Snapshot,
    /// Numbers of the sessions, by their keys in the core.
    pub(crate) sessions: BTreeMap<u32, u64>,
    /// Device time of vGPUs that were removed.
    pub(crate) forgotten_ns: u64,
}

impl Schedule {
    /// Device time that a session had used when this was saved.
    pub(crate) fn used_ns(&self, session: u64) -> Option<u64> {
        let (key, _) = self.sessions.iter().find(|(_, number)| **number == session)?;
        let states = &self.core.sessions;
        states.iter().find(|state| state.session.0 == *key).map(|state| state.used_ns)
    }
}

/// A file's new content.
#[derive(Debug)]
pub(crate) struct Document {
    /// Where.
    pub(crate) path: PathBuf,
    /// What.
    pub(crate) bytes: Vec<u8>,
}

/// Writes what comes until all senders are gone. Of what waits only the newest is written: when
/// many sessions begin at once, one write to disk answers them all.
pub(crate) fn run(saves: &Receiver<Save>, schedule_path: &Path) {
    while let Ok(first) = saves.recv() {
        let (mut document, mut schedule, mut waiting) = (None, None, Vec::new());
        for save in std::iter::once(first).chain(saves.try_iter()) {
            match save {
                Save::Registry { document: newer, done } => {
                    document = Some(newer);
                    waiting.push(done);
                }
                Save::Schedule(newer) => schedule = Some(newer),
            }
        }
        if let Some(Document { path, bytes }) = document
            && let Err(error) = super::registry::replace(&path, &bytes)
        {
            tracing::error!(path = %path.display(), %error, "the vGPUs could not be saved");
        }
        for done in waiting {
            // Who asked may not care.
            let _ = done.send(());
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
    std::fs::write(&beside, serde_json::to_vec(schedule)?)?;
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
