//! Device memory as the daemon keeps it: the ledger, the physical table, and one frame file per
//! vGPU.
//!
//! Every frame's entry in the table names the *session* that has it, so that sessions of one vGPU
//! do not see each other's memory either, and so that the next daemon can rebuild the ledger from
//! the table.
//!
//! Frames are cleared in three steps, so that nobody else waits for the second, which takes long
//! for many frames: the ledger takes them from their session ([`Dirty`]); they are cleared, without
//! the tables' lock; the table's entries go and the frames are free ([`Frames::recycle`]). Until
//! then their entries name the session, so a daemon that dies in between leaves its successor
//! frames that are a living session's still, or are cleared as a dead one's: never free ones that
//! are not clear.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use weft_device::soft::physical;
use weft_device::{FrameRun, MovedRun, PAGE};
use weft_ring::{Access, AtomicU64, Cells, MemoryFile, Ordering};

use super::exports::{Export, Exports};
use super::ledger::{Ledger, LedgerError};
use crate::link::{MovedFrames, RUNS_MAX, Run};

/// Device memory.
#[derive(Debug)]
pub(crate) struct Frames {
    ledger: Ledger,
    table_file: MemoryFile,
    table: Cells<AtomicU64>,
    files: BTreeMap<u32, Arc<MemoryFile>>,
    memory_bytes: u64,
    exports: Exports,
    /// Numbers of sessions, of which none is used twice, by their keys.
    numbers: BTreeMap<u32, u64>,
}

/// What a session has on a device.
#[derive(Debug)]
pub(crate) struct Holding {
    number: Option<u64>,
    /// Its frames and their entries in the table.
    runs: Vec<(Run, u64)>,
    pinned_bytes: u64,
}

/// No session has this key: the next daemon clears frames whose entries have it.
const NOBODY: u32 = physical::OWNERS - 2;

/// Frames that nobody has any more and that are not clear yet.
#[must_use = "they are out of use until they are cleared and recycled"]
#[derive(Debug)]
pub(crate) struct Dirty {
    /// Absent when none was ever written to.
    file: Option<Arc<MemoryFile>>,
    runs: Vec<Run>,
}

/// Frames that were to be cleared.
#[must_use = "they are out of use until they are recycled"]
#[derive(Debug)]
pub(crate) struct Cleared {
    clear: Vec<Run>,
    /// The system refused these.
    dirty: Vec<Run>,
}

impl Dirty {
    /// Clears them. Takes long for many.
    pub(crate) fn clear(self) -> Cleared {
        let file = self.file.as_deref();
        let is_clear = |(first, count): &Run| file.is_none_or(|file| punch(file, *first, *count));
        let (clear, dirty) = self.runs.into_iter().partition(is_clear);
        Cleared { clear, dirty }
    }
}

impl Frames {
    /// A device of `memory_bytes`; `table` is an earlier daemon's physical table.
    pub(crate) fn new(memory_bytes: u64, table: Option<MemoryFile>) -> anyhow::Result<Self> {
        let count = memory_bytes / PAGE;
        let entries = usize::try_from(count)?;
        let table_file = match table {
            Some(file) => reopen(&file, OFlags::RDWR)?,
            None => MemoryFile::create("weft-physical", entries * 8)?,
        };
        let table = table_file.map(Access::ReadWrite)?.cells(0, entries)?;
        let ledger = Ledger::new(count);
        let (files, exports, numbers) = (BTreeMap::new(), Exports::default(), BTreeMap::new());
        Ok(Self { ledger, table_file, table, files, memory_bytes, exports, numbers })
    }

    /// The ledger, to read.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Adds a vGPU or changes its quota.
    pub(crate) fn set_quota(&mut self, vgpu: u32, bytes: u64) {
        self.ledger.set_quota(vgpu, bytes);
    }

    /// Says whose a vGPU is, and how much all vGPUs of that user may have together.
    pub(crate) fn set_owner(&mut self, vgpu: u32, uid: u32, bytes: u64) {
        self.ledger.set_owner(vgpu, uid, bytes);
    }

    /// Forgets a vGPU without sessions.
    pub(crate) fn remove_vgpu(&mut self, vgpu: u32) {
        self.ledger.remove_vgpu(vgpu);
        self.files.remove(&vgpu);
    }

    /// Adds a session, which has this number, to a vGPU.
    pub(crate) fn add_session(&mut self, session: u32, number: u64, vgpu: u32) {
        self.numbers.insert(session, number);
        self.ledger.add_session(session, vgpu);
    }

    /// The vGPU's frame file, created when first needed.
    pub(crate) fn file(&mut self, vgpu: u32) -> anyhow::Result<MemoryFile> {
        if let Some(file) = self.files.get(&vgpu) {
            return Ok(file.try_clone()?);
        }
        let file = MemoryFile::create("weft-frames", usize::try_from(self.memory_bytes)?)?;
        let clone = file.try_clone()?;
        self.files.insert(vgpu, Arc::new(file));
        Ok(clone)
    }

    /// The physical table, to read only.
    pub(crate) fn table(&self) -> anyhow::Result<OwnedFd> {
        Ok(reopen(&self.table_file, OFlags::RDONLY)?.into())
    }

    /// Hands frames to a session. `again`: it asked an earlier daemon already, whose answer it may
    /// not have got; what the table says of that request is the answer then.
    pub(crate) fn take(
        &mut self,
        session: u32,
        frames: u64,
        request: u32,
        again: bool,
    ) -> Result<Vec<Run>, LedgerError> {
        let number = *self.numbers.get(&session).ok_or(LedgerError::Unknown)?;
        let entry = physical::requested(session, number, request);
        if again {
            let answered = self.runs_of(entry);
            if !answered.is_empty() {
                return Ok(answered);
            }
        }
        let runs = self.ledger.take(session, frames, RUNS_MAX)?;
        self.write(&runs, entry);
        Ok(runs)
    }

    /// The frames with this entry; no more runs than were written at once.
    fn runs_of(&self, entry: u64) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let frames = (0_u64..).zip(self.table.iter());
        for (frame, _) in frames.filter(|(_, word)| word.load(Ordering::Acquire) == entry) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == frame => *count += 1,
                _ => runs.push((frame, 1)),
            }
        }
        runs
    }

    /// Takes frames back from a session. `again`: it asked an earlier daemon already, so some may
    /// be back.
    pub(crate) fn give_back(
        &mut self,
        session: u32,
        vgpu: u32,
        runs: &[Run],
        again: bool,
    ) -> Result<Dirty, LedgerError> {
        let given = match again {
            true => self.ledger.give_back_rest(session, runs)?,
            false => self.ledger.give_back(session, runs).map(|()| runs.to_vec())?,
        };
        // Only what was the session's: others export what they have.
        self.exports.forget_frames(&given);
        Ok(self.dirty(vgpu, given))
    }

    /// What a session has here.
    pub(crate) fn holding(&self, session: u32) -> Holding {
        let mut runs: Vec<(Run, u64)> = Vec::new();
        for (first, count) in self.ledger.runs_of(session) {
            let entries = self.table.iter().enumerate().skip(to_index(first)).take(to_index(count));
            for (frame, entry) in entries {
                let (frame, entry) = (frame as u64, entry.load(Ordering::Acquire));
                match runs.last_mut() {
                    Some(((first, count), same)) if *first + *count == frame && *same == entry => {
                        *count += 1;
                    }
                    _ => runs.push(((frame, 1), entry)),
                }
            }
        }
        let pinned_bytes = self.ledger.pinned_bytes(session);
        Holding { number: self.numbers.get(&session).copied(), runs, pinned_bytes }
    }

    /// Takes as many frames for a session as it has on another device, with the same entries; where
    /// each of those is here.
    ///
    /// # Errors
    /// As [`Self::take`]; some may have been taken then.
    pub(crate) fn receive(
        &mut self,
        session: u32,
        vgpu: u32,
        held: Holding,
    ) -> Result<Vec<MovedFrames>, LedgerError> {
        let number = held.number.ok_or(LedgerError::Unknown)?;
        self.add_session(session, number, vgpu);
        let mut moved = Vec::new();
        for ((mut first, count), entry) in held.runs {
            let taken = self.ledger.take(session, count, usize::MAX)?;
            self.write(&taken, entry);
            for (to, count) in taken {
                moved.push([first, count, to]);
                first += count;
            }
        }
        self.ledger.set_pinned(session, held.pinned_bytes, u64::MAX)?;
        Ok(moved)
    }

    /// What sessions of the vGPU let each other use.
    pub(crate) fn exports_of(&self, vgpu: u32) -> Vec<([u8; 16], Export)> {
        self.exports.of_vgpu(vgpu)
    }

    /// The same of a vGPU that comes from another device: found under the same keys.
    pub(crate) fn take_over(&mut self, exports: Vec<([u8; 16], Export)>, moved: &[MovedFrames]) {
        let moved: Vec<MovedRun> = moved.iter().map(moved_run).collect();
        for (key, export) in exports {
            let runs = export.runs.iter().map(|&(first, count)| FrameRun { first, count });
            let there: Option<Vec<Vec<FrameRun>>> =
                runs.map(|run| MovedRun::of(run, &moved)).collect();
            // Its session has just given them back.
            let Some(there) = there else { continue };
            let runs = there.into_iter().flatten().map(|run| (run.first, run.count)).collect();
            if self.exports.add(key, Export { runs, ..export }).is_none() {
                tracing::warn!("shared memory of a vGPU that moves cannot be imported any more");
            }
        }
    }

    /// Ends a session whose worker is dead. Until its frames are recycled its key is not another's:
    /// their entries have it.
    pub(crate) fn remove_session(&mut self, session: u32, vgpu: u32) -> Dirty {
        self.exports.forget_session(session);
        self.numbers.remove(&session);
        let runs = self.ledger.remove_session(session);
        self.dirty(vgpu, runs)
    }

    /// Lets other sessions of the vGPU find frames of this one under the key; nothing beyond a
    /// bound.
    ///
    /// # Errors
    /// [`LedgerError::NotTheirs`].
    pub(crate) fn export(
        &mut self,
        fresh: [u8; 16],
        export: Export,
    ) -> Result<Option<[u8; 16]>, LedgerError> {
        let owned = |run: &&Run| self.ledger.holds(export.session, **run);
        match export.runs.iter().find(|run| !owned(run)) {
            Some(&(first, count)) => Err(LedgerError::NotTheirs(first, count)),
            None => Ok(self.exports.add(fresh, export)),
        }
    }

    /// What another session of the vGPU exports under this key.
    pub(crate) fn import(&mut self, key: [u8; 16], session: u32, vgpu: u32) -> Option<&Export> {
        self.exports.find(key, session, vgpu)
    }

    fn dirty(&self, vgpu: u32, runs: Vec<Run>) -> Dirty {
        Dirty { file: self.files.get(&vgpu).cloned(), runs }
    }

    /// Makes cleared frames free. Those that are not clear are nobody's while this daemon runs.
    pub(crate) fn recycle(&mut self, cleared: &Cleared) {
        self.write(&cleared.clear, 0);
        self.ledger.recycle(&cleared.clear);
        self.write(&cleared.dirty, physical::requested(NOBODY, 0, 0));
        self.ledger.withdraw(&cleared.dirty);
    }

    /// Forgets the file of a vGPU without sessions, to be dropped.
    pub(crate) fn forget_file(&mut self, vgpu: u32) -> Option<Arc<MemoryFile>> {
        self.files.remove(&vgpu)
    }

    /// Notes a session's pinned memory.
    pub(crate) fn set_pinned(
        &mut self,
        session: u32,
        bytes: u64,
        limit: u64,
    ) -> Result<(), LedgerError> {
        self.ledger.set_pinned(session, bytes, limit)
    }

    /// Takes over the frame file of an adopted session's vGPU.
    pub(crate) fn adopt_file(&mut self, vgpu: u32, file: MemoryFile) {
        self.files.entry(vgpu).or_insert_with(|| Arc::new(file));
    }

    /// Rebuilds the ledger from the table: frames of sessions in `living` are theirs, others are
    /// cleared of their owner.
    pub(crate) fn rebuild(&mut self, living: &[u32]) -> anyhow::Result<()> {
        let mut run: Option<(u64, u64, u64)> = None;
        let entries: Vec<u64> = self.table.iter().map(|e| e.load(Ordering::Acquire)).collect();
        for (frame, entry) in (0_u64..).zip(entries).chain([(self.memory_bytes / PAGE, 0)]) {
            run = match run {
                Some((first, count, owner)) if owner == entry => Some((first, count + 1, owner)),
                before => {
                    if let Some((first, count, owner)) = before {
                        self.rebuild_run(first, count, owner, living)?;
                    }
                    (entry != 0).then_some((frame, 1, entry))
                }
            };
        }
        Ok(())
    }

    fn rebuild_run(
        &mut self,
        first: u64,
        count: u64,
        entry: u64,
        living: &[u32],
    ) -> anyhow::Result<()> {
        match living.iter().find(|session| physical::is_owned(entry, **session)) {
            Some(&session) => self
                .ledger
                .adopt(session, first, count)
                .with_context(|| format!("adopting frames {first}+{count}")),
            None => {
                // Its vGPU's file is gone with the session, or is another session's too.
                self.punch_everywhere(first, count);
                self.write(&[(first, count)], 0);
                Ok(())
            }
        }
    }

    fn punch_everywhere(&self, first: u64, count: u64) {
        for file in self.files.values() {
            punch(file, first, count);
        }
    }

    fn write(&self, runs: &[Run], entry: u64) {
        for &(first, count) in runs {
            for word in self.table.iter().skip(to_index(first)).take(to_index(count)) {
                word.store(entry, Ordering::Release);
            }
        }
    }
}

fn to_index(frames: u64) -> usize {
    usize::try_from(frames).unwrap_or(usize::MAX)
}

/// As devices know it.
fn moved_run([first, count, to]: &MovedFrames) -> MovedRun {
    MovedRun { from: FrameRun { first: *first, count: *count }, to: *to }
}

/// Clears frames; whether they are clear.
fn punch(file: &MemoryFile, first: u64, count: u64) -> bool {
    let offset = usize::try_from(first * PAGE).unwrap_or(usize::MAX);
    let len = usize::try_from(count * PAGE).unwrap_or(usize::MAX);
    let punched = file.punch(offset, len);
    if let Err(error) = &punched {
        tracing::error!(%error, first, count, "frames could not be cleared");
    }
    punched.is_ok()
}

/// Another open file of the same memory, with other access.
fn reopen(file: &MemoryFile, access: OFlags) -> anyhow::Result<MemoryFile> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let fd = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
        .context("cannot open a memory file again")?;
    Ok(MemoryFile::received(fd)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(table: Option<MemoryFile>) -> Frames {
        let mut frames = Frames::new(64 * PAGE, table).unwrap();
        frames.set_quota(1, 64 * PAGE);
        frames.add_session(10, 100, 1);
        frames
    }

    #[test]
    fn entries_name_the_session_and_only_while_it_has_the_frames() {
        let mut frames = frames(None);
        let file = MemoryFile::received(frames.table().unwrap()).unwrap();
        let seen = file.map(Access::ReadOnly).unwrap().read_cells::<AtomicU64>(0, 64).unwrap();
        let runs = frames.take(10, 3, 1, false).unwrap();
        assert_eq!(seen.load(2), Some(physical::requested(10, 100, 1)));
        assert!(file.map(Access::ReadWrite).is_err(), "workers cannot write the table");
        let dirty = frames.give_back(10, 1, &runs, false).unwrap();
        assert_eq!(
            seen.load(2),
            Some(physical::requested(10, 100, 1)),
            "a dead daemon's successor asks"
        );
        frames.recycle(&dirty.clear());
        assert_eq!(seen.load(2), Some(0));
    }

    #[test]
    fn others_get_frames_while_some_are_cleared_and_those_only_when_they_are_zero() {
        let mut frames = frames(None);
        frames.add_session(11, 110, 1);
        let memory = frames.file(1).unwrap().map(Access::ReadWrite).unwrap();
        let bytes = memory.len();
        let is_zero = || memory.span(0, bytes).unwrap().to_vec().iter().all(|byte| *byte == 0);
        let given = frames.take(10, 60, 1, false).unwrap();
        memory.span(0, bytes).unwrap().fill(7).unwrap();
        let given_back = frames.give_back(10, 1, &given, false).unwrap();
        // Nothing is cleared yet, and nothing of it is in the way.
        assert_eq!(frames.take(11, 4, 1, false).unwrap(), [(60, 4)]);
        assert_eq!(frames.take(11, 1, 2, false), Err(LedgerError::Clearing));
        let of_dead = frames.remove_session(11, 1);
        frames.add_session(12, 120, 1);
        assert_eq!(frames.take(12, 1, 1, false), Err(LedgerError::Clearing));
        assert!(!is_zero());
        // In the other order than they were given back.
        frames.recycle(&of_dead.clear());
        assert_eq!(frames.take(12, 64, 1, false), Err(LedgerError::Clearing));
        frames.recycle(&given_back.clear());
        assert!(is_zero());
        assert_eq!(frames.take(12, 64, 2, false).unwrap(), [(0, 64)]);
    }

    #[test]
    fn frames_that_cannot_be_cleared_are_nobodys() {
        let mut frames = frames(None);
        let runs = frames.take(10, 64, 1, false).unwrap();
        let cleared = frames.give_back(10, 1, &runs, false).unwrap().clear();
        assert_eq!((cleared.clear, cleared.dirty), (vec![(0, 64)], vec![]));
        frames.recycle(&Cleared { clear: vec![(0, 60)], dirty: vec![(60, 4)] });
        assert_eq!(frames.take(10, 61, 2, false), Err(LedgerError::Device));
        frames.take(10, 60, 3, false).unwrap();
        let table = MemoryFile::received(frames.table().unwrap()).unwrap();
        let mut second = self::frames(Some(table));
        second.rebuild(&[10]).unwrap();
        second.take(10, 4, 4, false).unwrap();
    }

    #[test]
    fn a_daemon_that_dies_while_it_clears_leaves_no_frame_that_is_free_and_not_clear() {
        let mut first = frames(None);
        first.add_session(11, 110, 1);
        let file = first.file(1).unwrap();
        let memory = file.map(Access::ReadWrite).unwrap();
        let of_living = first.take(10, 2, 1, false).unwrap();
        let of_dead = first.take(11, 62, 1, false).unwrap();
        memory.span(0, memory.len()).unwrap().fill(7).unwrap();
        let unfinished = first.give_back(10, 1, &of_living, false).unwrap();
        let unfinished = (unfinished, first.give_back(11, 1, &of_dead, false).unwrap());
        let table = MemoryFile::received(first.table().unwrap()).unwrap();
        drop((first, unfinished));
        let mut second = frames(Some(table));
        second.adopt_file(1, file);
        second.rebuild(&[10]).unwrap();
        let again = second.give_back(10, 1, &of_living, true).unwrap();
        second.recycle(&again.clear());
        assert_eq!(second.take(10, 64, 2, false).unwrap(), [(0, 64)]);
        assert!(memory.span(0, memory.len()).unwrap().to_vec().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_next_daemon_rebuilds_the_ledger_from_the_table() {
        let mut first = frames(None);
        first.add_session(11, 110, 1);
        first.take(10, 5, 1, false).unwrap();
        first.take(11, 7, 1, false).unwrap();
        let unheard = first.take(10, 2, 2, false).unwrap();
        let table = MemoryFile::received(first.table().unwrap()).unwrap();
        drop(first);
        let mut second = frames(Some(table));
        second.rebuild(&[10]).unwrap();
        assert_eq!(second.ledger().used_bytes(1), 7 * PAGE);
        assert_eq!(second.take(10, 2, 2, true).unwrap(), unheard, "the answer that got lost");
        assert_eq!(second.ledger().used_bytes(1), 7 * PAGE, "nothing was handed out twice");
        let fresh = second.take(10, 57, 3, true).unwrap();
        assert_eq!(fresh.iter().map(|(_, count)| count).sum::<u64>(), 57, "no answer got lost");
    }
    /// A session that imported its predecessor's memory must not have the successor's.
    #[test]
    fn a_successor_with_the_same_key_has_other_entries_for_the_same_frames() {
        let mut frames = frames(None);
        let table = MemoryFile::received(frames.table().unwrap()).unwrap();
        let seen = table.map(Access::ReadOnly).unwrap().read_cells::<AtomicU64>(0, 64).unwrap();
        let given = frames.take(10, 3, 1, false).unwrap();
        let imported = seen.load(2);
        let dirty = frames.remove_session(10, 1);
        frames.recycle(&dirty.clear());
        frames.add_session(10, 101, 1);
        assert_eq!(frames.take(10, 3, 1, false).unwrap(), given);
        assert_ne!(seen.load(2), imported);
        assert!(seen.load(2).is_some_and(|entry| physical::is_owned(entry, 10)));
    }
}
