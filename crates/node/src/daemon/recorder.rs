//! Records what the scheduling core is told and what it answers, without ever waiting.
//!
//! The driver fills chunks and offers them to a bounded queue; who writes them works in a thread of
//! its own. When the queue is full the chunk is given up and its records are counted as lost; the
//! next chunk that finds room begins with the core's state at that moment, so what follows a gap
//! replays like everything else. A file that cannot be written ends in the same way.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use weft_sched::Node;
use weft_sched::journal::{PoolWriter, Writer};
use weft_sched::pool::Pool;
use weft_turn::Decision;

use crate::journal::{Begins, JournalFile, files};

/// A chunk is offered when it has so many bytes, a few thousand records.
const CHUNK_BYTES: usize = 64 << 10;

/// A chunk is offered after this time while records come.
const CHUNK_AGE: Duration = Duration::from_millis(500);

/// In a gap, the core's state is offered again after this time: making it takes time itself.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// After a file that could not be written the next one is tried after this time.
const FILE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Chunks that may wait to be written: 8 MiB.
const CHUNKS_MAX: usize = 128;

/// Bytes of a journal, and how its file begins if they begin one.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// How.
    pub(crate) begins: Option<Begins>,
    /// What.
    pub(crate) bytes: Vec<u8>,
    /// Records in it.
    records: u64,
}

/// What the writer of the files tells the recorder.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// A file could not be written: the next one needs the core's state.
    failed: AtomicBool,
    /// Records that were taken and are in no file, ever.
    lost: AtomicU64,
}

/// A queue for chunks, bounded.
pub(crate) fn queue() -> (SyncSender<Chunk>, Receiver<Chunk>) {
    sync_channel(CHUNKS_MAX)
}

/// A state machine of which a journal is kept.
pub(crate) trait Recorded {
    /// What writes its records.
    type Writer: std::fmt::Debug + Send;

    /// Appends the header of a journal that begins with its state.
    fn begin(&self, out: &mut Vec<u8>) -> Self::Writer;
}

impl Recorded for Node {
    type Writer = Writer;

    fn begin(&self, out: &mut Vec<u8>) -> Writer {
        Writer::begin(self, out)
    }
}

impl Recorded for Pool {
    type Writer = PoolWriter;

    fn begin(&self, out: &mut Vec<u8>) -> PoolWriter {
        PoolWriter::begin(self, out)
    }
}

/// The driver's end of one journal.
#[derive(Debug)]
pub(crate) struct Recorder<M: Recorded = Node> {
    chunks: SyncSender<Chunk>,
    trouble: Arc<Trouble>,
    /// Absent in a gap.
    writer: Option<M::Writer>,
    chunk: Chunk,
    /// In a gap, the core's state is offered after this time.
    retry_after: Duration,
    /// Records lost since the last chunk that was taken.
    lost: u64,
    /// Records lost ever.
    lost_ever: u64,
    /// When the chunk got its first bytes.
    since: Instant,
    file_bytes: u64,
    /// The file ends when it has so many bytes.
    file_bytes_max: u64,
    /// Nobody takes chunks any more.
    over: bool,
}

impl Recorder {
    /// Records one decision.
    pub(crate) fn record(&mut self, decision: &Decision<'_>) {
        let Decision { node, now_ns, event, result, actions } = *decision;
        self.record_with(node, |writer, out| writer.record(now_ns, &event, result, actions, out));
    }
}

impl<M: Recorded> Recorder<M> {
    /// A journal that begins with the state of `machine`, in files of about `file_bytes_max`.
    pub(crate) fn start(
        machine: &M,
        chunks: SyncSender<Chunk>,
        trouble: Arc<Trouble>,
        file_bytes_max: u64,
    ) -> Self {
        let mut recorder = Self {
            chunks,
            trouble,
            writer: None,
            chunk: Chunk { begins: None, bytes: Vec::new(), records: 0 },
            retry_after: RETRY_AFTER,
            lost: 0,
            lost_ever: 0,
            since: Instant::now(),
            file_bytes: 0,
            file_bytes_max,
            over: false,
        };
        recorder.begin(machine, Begins::Start);
        recorder
    }

    /// Whether nobody takes what is recorded.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Records that were lost so far: what the gaps should hold.
    pub(crate) fn lost_ever(&self) -> u64 {
        self.lost_ever + self.trouble.lost.load(Ordering::Relaxed)
    }

    /// Records one decision of `machine`, which `write` appends.
    pub(crate) fn record_with(
        &mut self,
        machine: &M,
        write: impl FnOnce(&mut M::Writer, &mut Vec<u8>),
    ) {
        if self.trouble.failed.swap(false, Ordering::Relaxed) {
            self.give_up(FILE_RETRY_AFTER);
        }
        let Some(writer) = &mut self.writer else {
            self.lose(1);
            if self.since.elapsed() < self.retry_after {
                return;
            }
            // The state alone, to see whether there is room again.
            self.begin(machine, Begins::Lost { records: self.lost });
            self.flush();
            return;
        };
        let before = self.chunk.bytes.len();
        write(writer, &mut self.chunk.bytes);
        self.chunk.records += 1;
        self.file_bytes += (self.chunk.bytes.len() - before) as u64;
        if self.file_bytes >= self.file_bytes_max {
            self.flush();
            if self.writer.is_some() {
                self.begin(machine, Begins::Next);
            }
        } else if self.chunk.bytes.len() >= CHUNK_BYTES {
            self.flush();
        } else if self.chunk.records.is_multiple_of(64) {
            self.flush_if_old();
        }
    }

    /// Offers the chunk if it is old; otherwise the time after which to ask again.
    pub(crate) fn flush_if_old(&mut self) -> Option<Duration> {
        if self.chunk.bytes.is_empty() {
            return None;
        }
        let left = CHUNK_AGE.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            self.flush();
            return None;
        }
        Some(left)
    }

    /// Offers the chunk.
    pub(crate) fn flush(&mut self) {
        let bytes = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8);
        let next = Chunk { begins: None, bytes, records: 0 };
        let chunk = std::mem::replace(&mut self.chunk, next);
        self.since = Instant::now();
        if chunk.bytes.is_empty() {
            return;
        }
        match self.chunks.try_send(chunk) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(chunk)) => {
                if self.lost == 0 {
                    tracing::warn!("the journal is not written fast enough: it has a gap");
                }
                self.chunk = chunk;
                self.give_up(RETRY_AFTER);
            }
            Err(TrySendError::Disconnected(_)) => self.over = true,
        }
    }

    /// Gives the chunk up; the next one begins with the core's state, after some time.
    fn give_up(&mut self, retry_after: Duration) {
        self.lose(self.chunk.records);
        self.chunk = Chunk { begins: None, bytes: Vec::new(), records: 0 };
        self.writer = None;
        self.since = Instant::now();
        self.retry_after = retry_after;
    }

    fn lose(&mut self, records: u64) {
        self.lost += records;
        self.lost_ever += records;
    }

    fn begin(&mut self, machine: &M, begins: Begins) {
        self.since = Instant::now();
        self.chunk.begins = Some(begins);
        self.writer = Some(machine.begin(&mut self.chunk.bytes));
        self.file_bytes = self.chunk.bytes.len() as u64;
    }
}

/// Writes the files of a journal, the oldest of which go.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    kept: VecDeque<JournalFile>,
    files_max: usize,
    next: u64,
    /// Absent after one that could not be written.
    file: Option<File>,
    /// What the file has.
    file_bytes: u64,
    /// Records lost since the last chunk that was written.
    lost: u64,
    failing: bool,
    trouble: Arc<Trouble>,
}

impl Files {
    /// Continues the journal in `dir`, of which `files_max` files are kept.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub(crate) fn open(dir: PathBuf, files_max: usize) -> io::Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let kept: VecDeque<JournalFile> = files(&dir)?.into();
        let next = kept.back().map_or(1, |last| last.number + 1);
        Ok(Self {
            dir,
            kept,
            files_max,
            next,
            file: None,
            file_bytes: 0,
            lost: 0,
            failing: false,
            trouble: Arc::default(),
        })
    }

    /// What the recorder is told.
    pub(crate) fn trouble(&self) -> Arc<Trouble> {
        Arc::clone(&self.trouble)
    }

    /// Writes what comes until the recorder is gone.
    pub(crate) fn run(mut self, chunks: &Receiver<Chunk>) {
        while let Ok(chunk) = chunks.recv() {
            self.take(&chunk);
        }
    }

    fn take(&mut self, chunk: &Chunk) {
        match self.write(chunk) {
            Ok(true) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!(dir = %self.dir.display(), "the journal is written again");
                }
                self.lost = 0;
                return;
            }
            // It follows what is lost.
            Ok(false) => {}
            Err(error) => {
                // One line until it is written again, however often it is tried.
                if !self.failing {
                    let dir = self.dir.display();
                    tracing::error!(%dir, %error, "the journal cannot be written: it has a gap");
                }
                self.failing = true;
                self.trouble.failed.store(true, Ordering::Relaxed);
            }
        }
        self.lost += chunk.records;
        if let Some(Begins::Lost { records }) = chunk.begins {
            self.lost += records;
        }
        self.trouble.lost.fetch_add(chunk.records, Ordering::Relaxed);
    }

    /// Whether there is a file for it.
    fn write(&mut self, chunk: &Chunk) -> io::Result<bool> {
        if let Some(begins) = chunk.begins {
            self.file = None;
            self.begin(match begins {
                Begins::Lost { records } => Begins::Lost { records: records + self.lost },
                Begins::Start | Begins::Next if self.lost > 0 => {
                    Begins::Lost { records: self.lost }
                }
                Begins::Start | Begins::Next => begins,
            })?;
        }
        let Some(file) = &mut self.file else { return Ok(false) };
        let written = file.write_all(&chunk.bytes);
        match &written {
            Ok(()) => self.file_bytes += chunk.bytes.len() as u64,
            Err(_) => self.end_file(),
        }
        written.map(|()| true)
    }

    /// Ends the file before the chunk that could not be written: what follows does not fit it.
    fn end_file(&mut self) {
        let Some(file) = self.file.take() else { return };
        let ended = if self.file_bytes > 0 {
            file.set_len(self.file_bytes)
        } else {
            self.kept.pop_back().map_or(Ok(()), |file| std::fs::remove_file(file.path))
        };
        if let Err(error) = ended {
            // Who replays it sees that its last record is cut.
            tracing::debug!(%error, "the journal's file ends in the middle of a record");
        }
    }

    fn begin(&mut self, begins: Begins) -> io::Result<()> {
        while self.kept.len() >= self.files_max
            && let Some(oldest) = self.kept.front()
        {
            match std::fs::remove_file(&oldest.path) {
                // Somebody else has made room.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
            self.kept.pop_front();
        }
        let file = JournalFile::new(&self.dir, self.next, begins);
        self.next += 1;
        self.file = Some(File::create_new(&file.path)?);
        self.file_bytes = 0;
        self.kept.push_back(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::journal::Replay;
    use weft_sched::{Actions, Config, DeviceKey, Event};

    use super::*;

    /// A node that is told `count` things, and a recorder of all of them.
    fn tell(node: &mut Node, recorder: &mut Recorder, count: u64) {
        let mut actions = Actions::new();
        for _ in 0..count {
            let now_ns = node.next_epoch(DeviceKey(0)).unwrap_or(0) + count;
            let event = Event::DeviceUp { device: DeviceKey(0), config: Config::default() };
            let result = node.handle(now_ns, event, &mut actions);
            let wanted = actions.as_slice();
            recorder.record(&Decision { node, now_ns, event, result, actions: wanted });
            actions.clear();
        }
    }

    #[test]
    fn files_rotate_and_each_replays() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = Node::new();
        for run in 1..=2 {
            let (sender, receiver) = queue();
            let mut recorder = Recorder::start(&node, sender, Arc::default(), 2_000);
            tell(&mut node, &mut recorder, 3_000);
            recorder.flush();
            drop(recorder);
            Files::open(dir.path().to_owned(), 3).unwrap().run(&receiver);
            let kept = files(dir.path()).unwrap();
            assert_eq!(kept.len(), 3, "run {run}: {kept:?}");
            assert!(kept.iter().all(|file| file.begins == Begins::Next), "{kept:?}");
            for file in &kept {
                let bytes = std::fs::read(&file.path).unwrap();
                let summary = Replay::new(&bytes).unwrap().run().unwrap();
                assert!(!summary.cut, "{file:?}");
            }
        }
    }

    #[test]
    fn a_full_queue_is_a_gap_with_a_count_and_a_fresh_state() {
        let mut node = Node::new();
        let (sender, receiver) = sync_channel(1);
        let mut recorder = Recorder::start(&node, sender, Arc::default(), u64::MAX);
        tell(&mut node, &mut recorder, 10);
        recorder.flush();
        // Nobody takes the chunk: this one is lost, and so is what comes before there is room.
        tell(&mut node, &mut recorder, 20);
        recorder.flush();
        std::thread::sleep(RETRY_AFTER);
        tell(&mut node, &mut recorder, 5);
        let first = receiver.recv().unwrap();
        assert_eq!(Replay::new(&first.bytes).unwrap().run().unwrap().records, 10);
        let mut lost = 25;
        let after = loop {
            tell(&mut node, &mut recorder, 1);
            lost += 1;
            if let Ok(chunk) = receiver.try_recv() {
                break chunk;
            }
        };
        assert_eq!(after.begins, Some(Begins::Lost { records: lost }));
        assert_eq!(recorder.lost_ever(), lost);
        tell(&mut node, &mut recorder, 4);
        recorder.flush();
        let mut bytes = after.bytes;
        let rest = receiver.recv().unwrap();
        assert_eq!(rest.begins, None);
        bytes.extend(rest.bytes);
        assert_eq!(Replay::new(&bytes).unwrap().run().unwrap().records, 4);
        drop(receiver);
        tell(&mut node, &mut recorder, 1);
        recorder.flush();
        assert!(recorder.is_over());
    }

    #[test]
    fn after_a_write_error_a_new_file_begins_with_what_was_lost_in_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = Node::new();
        let (sender, receiver) = queue();
        let mut files_of = Files::open(dir.path().to_owned(), 3).unwrap();
        let mut recorder = Recorder::start(&node, sender, files_of.trouble(), u64::MAX);
        let mut pass = |recorder: &mut Recorder, full: bool| {
            recorder.flush();
            for chunk in receiver.try_iter() {
                if full {
                    let device = File::options().write(true).open("/dev/full").unwrap();
                    files_of.file = Some(device);
                }
                files_of.take(&chunk);
            }
        };
        tell(&mut node, &mut recorder, 10);
        pass(&mut recorder, false);
        tell(&mut node, &mut recorder, 20);
        pass(&mut recorder, true);
        assert_eq!(recorder.lost_ever(), 20);
        // The pause: nothing is tried, and what comes is lost.
        tell(&mut node, &mut recorder, 4);
        pass(&mut recorder, false);
        assert_eq!(files(dir.path()).unwrap().len(), 1);
        recorder.since = recorder.since.checked_sub(FILE_RETRY_AFTER).unwrap();
        tell(&mut node, &mut recorder, 1);
        tell(&mut node, &mut recorder, 7);
        pass(&mut recorder, false);
        assert_eq!(recorder.lost_ever(), 25);
        let kept = files(dir.path()).unwrap();
        let begin: Vec<Begins> = kept.iter().map(|file| file.begins).collect();
        assert_eq!(begin, [Begins::Start, Begins::Lost { records: 25 }]);
        let records = kept.iter().map(|file| {
            let bytes = std::fs::read(&file.path).unwrap();
            Replay::new(&bytes).unwrap().run().unwrap().records
        });
        assert_eq!(records.collect::<Vec<_>>(), [10, 7]);
    }
}
