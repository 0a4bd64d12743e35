//! Frames from the daemon's ledger.

use std::sync::Arc;
use std::time::Instant;

use weft_device::{
    Brought, DeviceError, ForeignFrames, FrameRun, FrameSource, MemoryUse, PAGE, Room, RoomWanted,
    Wanted,
};

use super::link::Link;
use crate::link::{Ask, RUNS_MAX, Reply, Run, keep_limit, pause_limit};

/// Parts told of at once, touched and named: as many as fit a packet.
const PARTS_MAX: usize = 4096;

/// A frame source that asks the daemon.
#[derive(Debug)]
pub(crate) struct LedgerFrames {
    link: Arc<Link>,
    /// How long others may keep what a module needs, in ns.
    keep_limit_ns: u64,
    /// Requests so far.
    requests: u32,
}

impl LedgerFrames {
    /// Frames through `link`, on a device where a kernel may take so long.
    pub(crate) fn new(link: Arc<Link>, kernel_ms: Option<u64>) -> Self {
        let keep_limit = keep_limit(pause_limit(kernel_ms));
        let keep_limit_ns = u64::try_from(keep_limit.as_nanos()).unwrap_or(u64::MAX);
        Self { link, keep_limit_ns, requests: 0 }
    }

    fn give_back_some(&self, runs: &[Run]) {
        let ask = Ask::GiveBack { runs: runs.to_vec(), again: false };
        match self.link.ask(&ask) {
            Ok(Reply::Done) => {}
            // The session is over: its end frees everything.
            Err(_) => {}
            Ok(other) => tracing::error!(?other, "frames were not taken back"),
        }
    }
}

impl FrameSource for LedgerFrames {
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError> {
        let mut runs: Vec<FrameRun> = Vec::new();
        let mut left = frames;
        while left > 0 {
            self.requests = self.requests.wrapping_add(1);
            let ask = Ask::Take { frames: left, request: self.requests, again: false };
            let reply = self.link.ask(&ask);
            let Ok(Reply::Frames { runs: some }) = reply else {
                self.give_back(&runs);
                return match reply {
                    Err(over) => Err(DeviceError::Lost(over.to_string())),
                    Ok(_) => {
                        Err(DeviceError::OutOfMemory { requested: frames.saturating_mul(PAGE) })
                    }
                };
            };
            for (first, count) in some {
                left = left.saturating_sub(count);
                runs.push(FrameRun { first, count });
            }
        }
        Ok(runs)
    }

    fn give_back(&mut self, runs: &[FrameRun]) {
        for some in runs.chunks(RUNS_MAX) {
            let some: Vec<Run> = some.iter().map(|run| (run.first, run.count)).collect();
            self.give_back_some(&some);
        }
    }

    fn make_resident(&self, wanted: &Wanted) -> Brought {
        let Wanted { page, mut touched, mut named } = wanted.clone();
        touched.truncate(PARTS_MAX);
        named.truncate(PARTS_MAX - touched.len());
        let began = Instant::now();
        match self.link.ask(&Ask::Reside { page, touched, named }) {
            Ok(Reply::Resident { wait_ns, ahead_ns }) => {
                let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.link.note_exchange(took_ns.saturating_add(wait_ns).saturating_add(ahead_ns));
                Brought { wait_ns }
            }
            // The session is over, or was refused: what is not there faults.
            Ok(_) | Err(_) => Brought::default(),
        }
    }

    fn room(&self, wanted: &RoomWanted) -> Room {
        let RoomWanted { bytes, fixed_bytes, missing_bytes, stands, loads } = *wanted;
        match self.link.ask(&Ask::Room { bytes, fixed_bytes, missing_bytes, stands, loads }) {
            Ok(Reply::Done) => Room::Granted,
            Ok(Reply::Save { bytes }) => Room::Save { bytes },
            Ok(Reply::Later) => Room::Later,
            Ok(_) | Err(_) => Room::Refused,
        }
    }

    fn holds(&self, bytes: u64, fixed_bytes: u64) {
        // A daemon that does not answer has died; the next one takes all for held.
        let _ = self.link.ask(&Ask::Holds { bytes, fixed_bytes });
    }

    fn note_brought(&self, took_ns: u64) {
        self.link.note_exchange(took_ns);
        let _ = self.link.ask(&Ask::Brought { left_bytes: 0 });
    }

    fn note_bringing(&self, left_bytes: u64) {
        // A daemon that does not answer has died; the next one is told by what comes then.
        let _ = self.link.ask(&Ask::Brought { left_bytes });
    }

    fn keep_limit_ns(&self) -> u64 {
        self.keep_limit_ns
    }

    fn export(&mut self, bytes: u64, runs: &[FrameRun]) -> Result<[u8; 16], DeviceError> {
        if runs.len() > RUNS_MAX {
            return Err(DeviceError::Unsupported("sharing memory in so many pieces"));
        }
        let runs = runs.iter().map(|run| (run.first, run.count)).collect();
        match self.link.ask(&Ask::Export { bytes, runs }) {
            Ok(Reply::Exported { key }) => Ok(key),
            Ok(_) => Err(DeviceError::OutOfMemory { requested: bytes }),
            Err(over) => Err(DeviceError::Lost(over.to_string())),
        }
    }

    fn import(&mut self, key: [u8; 16]) -> Result<ForeignFrames, DeviceError> {
        match self.link.ask(&Ask::Import { key }) {
            Ok(Reply::Imported { owner, bytes, runs, number }) => {
                let runs = runs.into_iter().map(|(first, count)| FrameRun { first, count });
                Ok(ForeignFrames { owner, bytes, runs: runs.collect(), number })
            }
            Ok(_) => Err(DeviceError::NotExported),
            Err(over) => Err(DeviceError::Lost(over.to_string())),
        }
    }

    fn usage(&self) -> MemoryUse {
        match self.link.ask(&Ask::Usage) {
            Ok(Reply::Usage { free, total }) => MemoryUse { free, total },
            Ok(_) | Err(_) => MemoryUse { free: 0, total: 0 },
        }
    }
}
