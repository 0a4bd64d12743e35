//! The journals of the pools, each in a folder of its own beside the node's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use weft_sched::pool::Pool;

use super::dispatch::{Dispatch, PoolDecision, Witness};
use crate::config::NodeConfig;
use crate::daemon::recorder::{self, Files, Recorder};
use crate::journal::pool_folder;

/// All pools' journals together may have this part of what the node's may.
const PART: u64 = 4;

/// The journals of a node's pools.
#[derive(Debug, Default)]
pub(super) struct Journals {
    recorders: Recorders,
    /// Who write the files.
    writers: Vec<JoinHandle<()>>,
}

/// By the pool's name.
type Recorders = Arc<Mutex<BTreeMap<String, Recorder<Pool>>>>;

/// Records what pools decide.
#[derive(Debug)]
struct Recording(Recorders);

impl Witness for Recording {
    fn decided(&mut self, decision: &PoolDecision<'_>) {
        let &PoolDecision { name, pool, now_ns, ref event, result, actions } = decision;
        let mut recorders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(recorder) = recorders.get_mut(name) else { return };
        recorder.record_with(pool, |writer, out| {
            writer.record(now_ns, event, result, actions, out);
        });
        if recorder.is_over() {
            recorders.remove(name);
        }
    }
}

impl Journals {
    /// Keeps journals of these pools if the configuration wants one, from their state now.
    ///
    /// # Errors
    /// A folder cannot be made or read, or there is no thread.
    pub(super) fn start(config: &NodeConfig, dispatch: &mut Dispatch) -> anyhow::Result<Self> {
        let journal = &config.journal;
        let Some(dir) = &journal.dir else { return Ok(Self::default()) };
        let (mut recorders, mut writers) = (BTreeMap::new(), Vec::new());
        let pools = dispatch.pools().count().max(1) as u64;
        let file_bytes_max = journal.max_bytes.0 / journal.files as u64 / PART / pools;
        for (name, pool) in dispatch.pools() {
            let dir = pool_folder(dir, name);
            let files = Files::open(dir.clone(), journal.files)
                .with_context(|| format!("cannot keep a journal in {}", dir.display()))?;
            let (sender, chunks) = recorder::queue();
            let recorder = Recorder::start(pool, sender, files.trouble(), file_bytes_max);
            recorders.insert(name.to_owned(), recorder);
            let thread = thread::Builder::new().name("pool journal".to_owned());
            writers.push(thread.spawn(move || files.run(&chunks))?);
        }
        let recorders = Arc::new(Mutex::new(recorders));
        dispatch.watch(Some(Box::new(Recording(Arc::clone(&recorders)))));
        Ok(Self { recorders, writers })
    }

    /// Hands on what was recorded.
    pub(super) fn flush(&self) {
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        recorders.values_mut().for_each(Recorder::flush);
    }

    /// Ends the journals, and waits until they are written.
    pub(super) fn end(&mut self, dispatch: &mut Dispatch) {
        self.flush();
        dispatch.watch(None);
        self.recorders.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for writer in self.writers.drain(..) {
            if writer.join().is_err() {
                tracing::error!("a pool's journal was not written to its end");
            }
        }
    }
}
