//! Records what the scheduling core is told and what it answers, without ever waiting.
//!
//! The driver fills chunks and offers them to a bounded queue; who writes them works in a thread of
//! its own. When the queue is full the chunk is given up and its records are counted as lost; the
//! next chunk that finds room begins with the core's state at that moment, so what follows a gap
//! replays like everything else.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use weft_sched::journal::Writer;
use weft_sched::{Action, Event, EventError, Node};

use crate::journal::{Begins, JournalFile, files};

/// A chunk is offered when it has so many bytes, a few thousand records.
const CHUNK_BYTES: usize = 64 << 10;

/// A chunk is offered after this time while records come.
const CHUNK_AGE: Duration = Duration::from_millis(500);

/// In a gap, the core's state is offered again after this time: making it takes time itself.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Chunks that may wait to be written: 8 MiB.
const CHUNKS_MAX: usize = 128;

/// Bytes of a journal, and how its file begins if they begin one.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// How.
    pub(crate) begins: Option<Begins>,
    /// What.
    pub(crate) bytes: Vec<u8>,
}

/// A queue for chunks, bounded.
pub(crate) fn queue() -> (SyncSender<Chunk>, Receiver<Chunk>) {
    sync_channel(CHUNKS_MAX)
}

/// The driver's end of one journal.
#[derive(Debug)]
pub(crate) struct Recorder {
    chunks: SyncSender<Chunk>,
    /// Absent in a gap.
    writer: Option<Writer>,
    chunk: Chunk,
    /// Records in the chunk.
    records: u64,
    /// Records lost since the last chunk that was taken.
    lost: u64,
    /// When the chunk got its first bytes.
    since: Instant,
    file_bytes: u64,
    /// The file ends when it has so many bytes.
    file_bytes_max: u64,
    /// Nobody takes chunks any more.
    over: bool,
}

impl Recorder {
    /// A journal that begins with the state of `node`, in files of about `file_bytes_max`.
    pub(crate) fn start(node: &Node, chunks: SyncSender<Chunk>, file_bytes_max: u64) -> Self {
        let mut recorder = Self {
            chunks,
            writer: None,
            chunk: Chunk { begins: None, bytes: Vec::new() },
            records: 0,
            lost: 0,
            since: Instant::now(),
            file_bytes: 0,
            file_bytes_max,
            over: false,
        };
        recorder.begin(node, Begins::Start);
        recorder
    }

    /// Whether nobody takes what is recorded.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Records one event; `node` is as it left it.
    pub(crate) fn record(
        &mut self,
        node: &Node,
        now_ns: u64,
        event: &Event,
        result: Result<(), EventError>,
        actions: &[Action],
    ) {
        let Some(writer) = &mut self.writer else {
            self.lost += 1;
            if self.since.elapsed() < RETRY_AFTER {
                return;
            }
            // The state alone, to see whether there is room again.
            self.begin(node, Begins::Lost { records: self.lost });
            self.flush();
            return;
        };
        let before = self.chunk.bytes.len();
        writer.record(now_ns, event, result, actions, &mut self.chunk.bytes);
        self.records += 1;
        self.file_bytes += (self.chunk.bytes.len() - before) as u64;
        if self.file_bytes >= self.file_bytes_max {
            self.flush();
            if self.writer.is_some() {
                self.begin(node, Begins::Next);
            }
        } else if self.chunk.bytes.len() >= CHUNK_BYTES {
            self.flush();
        } else if self.records.is_multiple_of(64) {
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
        let next = Chunk { begins: None, bytes: Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8) };
        let chunk = std::mem::replace(&mut self.chunk, next);
        let records = std::mem::take(&mut self.records);
        self.since = Instant::now();
        if chunk.bytes.is_empty() {
            return;
        }
        match self.chunks.try_send(chunk) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(_)) => {
                if self.lost == 0 {
                    tracing::warn!("the journal is not written fast enough: it has a gap");
                }
                self.lost += records;
                self.writer = None;
            }
            Err(TrySendError::Disconnected(_)) => self.over = true,
        }
    }

    fn begin(&mut self, node: &Node, begins: Begins) {
        self.since = Instant::now();
        self.chunk.begins = Some(begins);
        self.writer = Some(Writer::begin(node, &mut self.chunk.bytes));
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
    file: Option<File>,
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
        Ok(Self { dir, kept, files_max, next, file: None })
    }

    /// Writes what comes until the recorder is gone.
    pub(crate) fn run(mut self, chunks: &Receiver<Chunk>) {
        while let Ok(chunk) = chunks.recv() {
            if let Err(error) = self.write(&chunk) {
                tracing::error!(dir = %self.dir.display(), %error, "the journal cannot be written");
                // What follows does not fit what is there; the next file begins afresh.
                self.file = None;
            }
        }
    }

    fn write(&mut self, chunk: &Chunk) -> io::Result<()> {
        if let Some(begins) = chunk.begins {
            self.begin(begins)?;
        }
        match &mut self.file {
            Some(file) => file.write_all(&chunk.bytes),
            None => Ok(()),
        }
    }

    fn begin(&mut self, begins: Begins) -> io::Result<()> {
        while self.kept.len() >= self.files_max
            && let Some(oldest) = self.kept.pop_front()
        {
            std::fs::remove_file(&oldest.path)?;
        }
        let file = JournalFile::new(&self.dir, self.next, begins);
        self.next += 1;
        self.file = Some(File::create_new(&file.path)?);
        self.kept.push_back(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::journal::Replay;
    use weft_sched::{Actions, Config, DeviceKey};

    use super::*;

    /// A node that is told `count` things, and a recorder of all of them.
    fn tell(node: &mut Node, recorder: &mut Recorder, count: u64) {
        let mut actions = Actions::new();
        for _ in 0..count {
            let now_ns = node.next_epoch(DeviceKey(0)).unwrap_or(0) + count;
            let event = Event::DeviceUp { device: DeviceKey(0) };
            let result = node.handle(now_ns, event, &mut actions);
            recorder.record(node, now_ns, &event, result, actions.as_slice());
            actions.clear();
        }
    }

    #[test]
    fn files_rotate_and_each_replays() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::default()).unwrap();
        for run in 1..=2 {
            let (sender, receiver) = queue();
            let mut recorder = Recorder::start(&node, sender, 2_000);
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
        let mut node = Node::new(Config::default()).unwrap();
        let (sender, receiver) = sync_channel(1);
        let mut recorder = Recorder::start(&node, sender, u64::MAX);
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
}
