//! Frames of 4 KiB: what device memory is handed out in, by the node's ledger or a local list.

use std::ops::Range;

use crate::{DeviceError, MemoryUse};

/// Bytes of a frame and of a page.
pub const PAGE: u64 = 4096;

/// Adjacent frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRun {
    /// Number of the first frame.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl FrameRun {
    /// Their numbers.
    pub fn frames(&self) -> Range<u64> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// Adjacent frames that are adjacent again on another device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedRun {
    /// Where they were.
    pub from: FrameRun,
    /// Number of the first one now.
    pub to: u64,
}

impl MovedRun {
    /// Where the frames of a run are now, by `moved` (ordered by the first frame), in runs; nothing
    /// if it does not say so of all of them.
    pub fn of(run: FrameRun, moved: &[Self]) -> Option<Vec<FrameRun>> {
        let mut found: Vec<FrameRun> = Vec::new();
        let Range { start: mut frame, end } = run.frames();
        let mut at = moved.partition_point(|moved| moved.from.frames().end <= frame);
        while frame < end {
            let part = moved.get(at).filter(|moved| moved.from.frames().contains(&frame))?;
            let first = part.to + (frame - part.from.first);
            let count = (part.from.frames().end - frame).min(end - frame);
            match found.last_mut() {
                Some(last) if last.frames().end == first => last.count += count,
                _ => found.push(FrameRun { first, count }),
            }
            (frame, at) = (frame + count, at + 1);
        }
        Some(found)
    }
}

/// Hands out frames of the device: the daemon's ledger, or a local list.
pub trait FrameSource: std::fmt::Debug + Send {
    /// Takes that many frames, zeroed, in as few runs as possible.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] when the quota or the device is exhausted.
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError>;

    /// Gives frames back. Their contents are already zeroed.
    fn give_back(&mut self, runs: &[FrameRun]);

    /// What the vGPU has and may have, in bytes.
    fn usage(&self) -> MemoryUse;

    /// Has what the vGPU needs of its memory brought into slots of the device before it goes on:
    /// all parts that it uses, and the one of a page. What cannot be brought faults.
    fn make_resident(&self, _wanted: &Wanted) -> Brought {
        Brought::default()
    }

    /// Asks for room on a device that lends more than it has.
    fn room(&self, wanted: &RoomWanted) -> Room {
        // What a device has that lends no more: all that was paid for, if the driver has it.
        if wanted.missing_bytes == 0 { Room::Granted } else { Room::Refused }
    }

    /// So many bytes of the session's are on the device now, and so many of them stay there.
    fn holds(&self, _bytes: u64, _fixed_bytes: u64) {}

    /// What was saved of the session's is back, so long after it asked for room, in ns.
    fn note_brought(&self, _took_ns: u64) {}

    /// So many bytes of it are yet to come.
    fn note_bringing(&self, _left_bytes: u64) {}

    /// How long somebody may keep what a module of the session's needs, in ns.
    fn keep_limit_ns(&self) -> u64 {
        600_000_000_000
    }

    /// Lets other sessions of the vGPU learn of these frames, which hold `bytes`; the key for it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where there is nobody to tell, or for too many runs;
    /// [`DeviceError::OutOfMemory`] beyond a bound.
    fn export(&mut self, _bytes: u64, _runs: &[FrameRun]) -> Result<[u8; 16], DeviceError> {
        Err(DeviceError::Unsupported("memory that several sessions use"))
    }

    /// The frames that another session exported under this key.
    ///
    /// # Errors
    /// [`DeviceError::NotExported`], [`DeviceError::Unsupported`].
    fn import(&mut self, _key: [u8; 16]) -> Result<ForeignFrames, DeviceError> {
        Err(DeviceError::Unsupported("memory that several sessions use"))
    }
}

/// What of a vGPU's memory is to be in slots of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// A page of the session's own that an operation has met, if that is why.
    pub page: Option<u64>,
    /// Parts of the vGPU's memory that operations used since the last time.
    pub touched: Vec<u64>,
    /// Parts of it that the operation names which begins: where arguments of a launch point to,
    /// what a copy or a fill is about. Nothing where an operation has met a page.
    pub named: Vec<u64>,
}

/// Room on a device for a session's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoomWanted {
    /// Bytes that are to be there in all.
    pub bytes: u64,
    /// Bytes of those that will stay there: what the driver takes for variables.
    pub fixed_bytes: u64,
    /// Bytes that the driver did not have after there was said to be room.
    pub missing_bytes: u64,
    /// Nothing of the session is in flight: it can save some of its own.
    pub stands: bool,
    /// It is for a module: no operation needs the rest of the session's memory now.
    pub loads: bool,
}

/// Whether there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// There is.
    Granted,
    /// So many bytes of the session's own have to be saved before it asks again.
    Save {
        /// How many, at least.
        bytes: u64,
    },
    /// Not while something of it is in flight, or not yet.
    Later,
    /// There is none.
    Refused,
}

/// What became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Brought {
    /// How long the device is busy with it from now on, in ns, where that is modelled.
    pub wait_ns: u64,
}

/// Frames of another session of the vGPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignFrames {
    /// Whose they are in the physical table.
    pub owner: u32,
    /// Bytes that they hold.
    pub bytes: u64,
    /// Which.
    pub runs: Vec<FrameRun>,
    /// How often they were imported, this time included.
    pub number: u32,
}

/// A frame source for a device that one process has to itself.
#[derive(Debug)]
pub struct LocalFrames {
    free: Vec<FrameRun>,
    total: u64,
    taken: u64,
}

impl LocalFrames {
    /// A device of `bytes` of memory (rounded down to frames).
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let total = bytes / PAGE;
        Self { free: vec![FrameRun { first: 0, count: total }], total, taken: 0 }
    }
}

impl FrameSource for LocalFrames {
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError> {
        if frames > self.total - self.taken {
            return Err(DeviceError::OutOfMemory { requested: frames.saturating_mul(PAGE) });
        }
        self.taken += frames;
        if let Some(run) = self.free.iter_mut().find(|r| r.count >= frames) {
            let first = run.first;
            run.first += frames;
            run.count -= frames;
            self.free.retain(|r| r.count > 0);
            return Ok(vec![FrameRun { first, count: frames }]);
        }
        let mut rest = frames;
        let mut runs = Vec::new();
        while rest > 0 {
            let Some(run) = self.free.pop() else { break };
            let count = run.count.min(rest);
            runs.push(FrameRun { first: run.first, count });
            if run.count > count {
                self.free.push(FrameRun { first: run.first + count, count: run.count - count });
            }
            rest -= count;
        }
        Ok(runs)
    }

    fn give_back(&mut self, runs: &[FrameRun]) {
        for run in runs {
            self.taken -= run.count;
            self.free.push(*run);
        }
        self.free.sort_by_key(|r| r.first);
        self.free.dedup_by(|next, run| {
            let adjacent = run.first + run.count == next.first;
            if adjacent {
                run.count += next.count;
            }
            adjacent
        });
    }

    fn usage(&self) -> MemoryUse {
        MemoryUse { free: (self.total - self.taken) * PAGE, total: self.total * PAGE }
    }
}
