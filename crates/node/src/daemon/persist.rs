//! The thread that writes state to disk, so that nobody who schedules or answers waits for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};

use weft_sched::Snapshot;

/// Something to write.
#[derive(Debug)]
pub(crate) enum Save {
    /// The registry: forced to disk, then answered.
    Registry {
        /// The whole file.
        document: Document,
        /// Told when it is on disk.
        done: Sender<io::Result<()>>,
    },
    /// The scheduling core's state: survives the daemon, not the machine.
    Snapshot(Snapshot),
}

/// A file's new content.
#[derive(Debug)]
pub(crate) struct Document {
    /// Where.
    pub(crate) path: PathBuf,
    /// What.
    pub(crate) bytes: Vec<u8>,
}

/// Writes what comes until all senders are gone.
pub(crate) fn run(saves: &Receiver<Save>, snapshot_path: &Path) {
    while let Ok(save) = saves.recv() {
        match save {
            Save::Registry { document, done } => {
                let written = super::registry::replace(&document.path, &document.bytes);
                if let Err(error) = &written {
                    let path = document.path.display();
                    tracing::error!(%path, %error, "the vGPUs could not be saved");
                }
                // Who asked may not care.
                let _ = done.send(written);
            }
            Save::Snapshot(snapshot) => {
                if let Err(error) = write_snapshot(snapshot_path, &snapshot) {
                    tracing::warn!(%error, "the scheduling state could not be saved");
                }
            }
        }
    }
}

fn write_snapshot(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, serde_json::to_vec(snapshot)?)?;
    std::fs::rename(&beside, path)
}

/// The state that an earlier daemon saved, if it left any that can be read.
pub(crate) fn read_snapshot(path: &Path) -> Option<Snapshot> {
    let bytes = std::fs::read(path).ok()?;
    match serde_json::from_slice(&bytes) {
        Ok(snapshot) => Some(snapshot),
        Err(error) => {
            tracing::warn!(%error, "the saved scheduling state is not understood");
            None
        }
    }
}
