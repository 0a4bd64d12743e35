//! Device memory as the daemon keeps it: the ledger, and a frame file and a private table for each
//! vGPU. Where its parts lie on the device is [`Residency`]'s.
//!
//! Every frame's entry names the *session* that has it, so that sessions of one vGPU do not see
//! each other's memory either, and so that the next daemon can rebuild the ledger from the tables.
//!
//! Frames are cleared in three steps, so that nobody else waits for the second, which takes long
//! for many frames: the ledger takes them from their session ([`Dirty`]); they are cleared, without
//! the tables' lock; their entries go and the frames are free ([`Frames::recycle`]). Until
//! then their entries name the session, so a daemon that dies in between leaves its successor
//! frames that are a living session's still, or are cleared as a dead one's: never free ones that
//! are not clear.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use weft_device::soft::{Geometry, PhysicalTable, PrivateTable, physical};
use weft_device::{FrameRun, MovedRun, PAGE};
use weft_ring::{Access, MemoryFile};
use weft_sched::memory::{Ledger, LedgerError};

use super::exports::{Export, Exports};
use super::lending::Lender;
use super::residency::{Residency, Terms};
use crate::admin::{MemoryReport, VgpuMemoryReport};
use crate::config::ByteSize;
use crate::daemon::clock;
use crate::link::{MovedFrames, RUNS_MAX, Run};

/// Device memory.
#[derive(Debug)]
pub(crate) struct Frames {
    ledger: Ledger,
    geometry: Geometry,
    physical_file: MemoryFile,
    residency: Arc<Residency>,
    /// Where the device's memory is lent session by session.
    lender: Option<Arc<Lender>>,
    spaces: BTreeMap<u32, Space>,
    exports: Exports,
    /// Numbers of sessions, of which none is used twice, by their keys.
    numbers: BTreeMap<u32, u64>,
    /// Where frames lie in files; in the host's memory if absent.
    swap_dir: Option<PathBuf>,
}

/// A vGPU's memory.
#[derive(Debug)]
struct Space {
    file: Arc<MemoryFile>,
    table_file: MemoryFile,
    table: PrivateTable,
}

impl Space {
    /// In the host's memory, or in a file without a name in `swap_dir`.
    fn new(geometry: Geometry, swap_dir: Option<&Path>) -> anyhow::Result<Self> {
        let bytes = geometry.frame_bytes();
        let file = match swap_dir {
            Some(dir) => MemoryFile::create_in(dir, bytes)
                .with_context(|| format!("device.swap_dir = {}", dir.display()))?,
            None => MemoryFile::create("weft-frames", bytes)?,
        };
        let table_file = MemoryFile::create("weft-private", geometry.private_bytes())?;
        Self::of(file, table_file, geometry)
    }

    fn of(file: MemoryFile, table_file: MemoryFile, geometry: Geometry) -> anyhow::Result<Self> {
        let table = PrivateTable::open(&table_file.map(Access::ReadWrite)?, geometry)?;
        Ok(Self { file: Arc::new(file), table_file, table })
    }
}

/// Shared memory of a vGPU on a device, for its workers.
#[derive(Debug)]
pub(crate) struct VgpuFiles {
    /// Its frames.
    pub(crate) frames: MemoryFile,
    /// Its private table, to read only.
    pub(crate) table: OwnedFd,
    /// The device's physical table, to read only.
    pub(crate) physical: OwnedFd,
}

/// What a session has on a device.
#[derive(Debug)]
pub(crate) struct Holding {
    number: Option<u64>,
    /// Its frames and by which requests they came.
    runs: Vec<(Run, u64)>,
    pinned_bytes: u64,
}

/// No session has this key: the next daemon clears frames whose entries have it.
const NOBODY: u32 = physical::OWNERS - 2;

/// Frames that nobody has any more and that are not clear yet.
#[must_use = "they are out of use until they are cleared and recycled"]
#[derive(Debug)]
pub(crate) struct Dirty {
    vgpu: u32,
    /// Absent when none was ever written to.
    file: Option<Arc<MemoryFile>>,
    runs: Vec<Run>,
}

/// Frames that were to be cleared.
#[must_use = "they are out of use until they are recycled"]
#[derive(Debug)]
pub(crate) struct Cleared {
    vgpu: u32,
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
        Cleared { vgpu: self.vgpu, clear, dirty }
    }
}

/// Refuses a folder in which no frames can be kept. What is to be said of one that has room for
/// less than is lent.
pub(crate) fn ensure_swaps(dir: &Path, lent_bytes: u64) -> anyhow::Result<Option<String>> {
    let some = rustix::param::page_size();
    let kept = MemoryFile::create_in(dir, some).and_then(|file| file.reserve(0, some));
    kept.with_context(|| format!("device.swap_dir = {}", dir.display()))?;
    let room = rustix::fs::statvfs(dir).map(|of| of.f_bavail.saturating_mul(of.f_frsize));
    let short = room.ok().filter(|room_bytes| *room_bytes < lent_bytes);
    Ok(short.map(|room_bytes| {
        let [room, lent] = [room_bytes, lent_bytes].map(ByteSize);
        let dir = dir.display();
        format!(
            "device.swap_dir = {dir}: {room} are free there and {lent} are lent; programs are out \
             of memory when it is full"
        )
    }))
}

impl Frames {
    /// A device on these terms that lends `lent_bytes` in all; `physical` is an earlier daemon's
    /// physical table.
    pub(crate) fn new(
        terms: Terms,
        lent_bytes: u64,
        physical: Option<MemoryFile>,
        swap_dir: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let geometry = terms.geometry;
        // One that cannot be used is said so now, and not to the first tenant.
        if let Some(dir) = &swap_dir {
            if let Some(short) = ensure_swaps(dir, lent_bytes)? {
                tracing::warn!("{short}");
            }
            drop(Space::new(geometry, Some(dir))?);
        }
        let physical_file = match physical {
            Some(file) => reopen(&file, OFlags::RDWR)?,
            None => MemoryFile::create("weft-physical", geometry.physical_bytes())?,
        };
        let table = PhysicalTable::open(&physical_file.map(Access::ReadWrite)?, geometry)?;
        let residency = Arc::new(Residency::new(terms, table));
        let ledger = Ledger::new(lent_bytes / PAGE, geometry.pages());
        let (spaces, exports, numbers) = (BTreeMap::new(), Exports::default(), BTreeMap::new());
        let lender = None;
        Ok(Self {
            ledger,
            geometry,
            physical_file,
            residency,
            lender,
            spaces,
            exports,
            numbers,
            swap_dir,
        })
    }

    /// The device lends its memory session by session.
    pub(crate) fn lent_by(mut self, lender: Lender) -> Self {
        self.lender = Some(Arc::new(lender));
        self
    }

    /// Who has how much on the device, where that is so.
    pub(crate) fn lender(&self) -> Option<&Arc<Lender>> {
        self.lender.as_ref()
    }

    /// Who has which slots, or how much of the device.
    pub(crate) fn report(&self, name_of: impl Fn(u32) -> Option<String>) -> MemoryReport {
        let mut report = self.residency.report(clock::now_ns(), &name_of);
        if let Some(lender) = &self.lender {
            let name_of = |key: u32| name_of(key).unwrap_or_else(|| format!("#{key}"));
            report.vgpus = self
                .spaces
                .keys()
                .map(|vgpu| self.lent_to(lender, *vgpu, name_of(*vgpu)))
                .collect();
            lender.describe(&mut report, name_of);
        }
        report
    }

    fn lent_to(&self, lender: &Lender, vgpu: u32, name: String) -> VgpuMemoryReport {
        let used_bytes = self.used_bytes(vgpu);
        let resident_bytes = lender.held_by_vgpu(vgpu).min(used_bytes);
        let parts = used_bytes.div_ceil(self.geometry.slot_pages() * PAGE);
        VgpuMemoryReport { name, parts, used_bytes, resident_bytes }
    }

    /// Where parts of vGPUs are.
    pub(crate) fn residency(&self) -> &Arc<Residency> {
        &self.residency
    }

    /// What a vGPU may still take and its quota, in bytes.
    pub(crate) fn usage(&self, vgpu: u32) -> (u64, u64) {
        let (left, quota) = self.ledger.usage(vgpu);
        (left * PAGE, quota * PAGE)
    }

    /// What a vGPU has, in bytes.
    pub(crate) fn used_bytes(&self, vgpu: u32) -> u64 {
        self.ledger.used_by(vgpu) * PAGE
    }

    /// What a session has, in bytes.
    pub(crate) fn session_bytes(&self, session: u32) -> u64 {
        self.ledger.held_by(session) * PAGE
    }

    /// Pinned memory of a session, in bytes.
    pub(crate) fn pinned_bytes(&self, session: u32) -> u64 {
        self.ledger.pinned_bytes(session)
    }

    /// What the session has that has most, but for one of them, in bytes.
    pub(crate) fn largest_beside(&self, session: u32) -> u64 {
        let others = self.numbers.keys().filter(|other| **other != session);
        others.map(|other| self.session_bytes(*other)).max().unwrap_or(0)
    }

    /// What all vGPUs have, in bytes.
    pub(crate) fn used_bytes_total(&self) -> u64 {
        self.ledger.used() * PAGE
    }

    /// Whether so many bytes can be had, but not before others are clear.
    pub(crate) fn must_clear(&self, bytes: u64) -> bool {
        self.ledger.must_clear(bytes / PAGE)
    }

    /// Whether a session may have so much pinned memory.
    pub(crate) fn check_pinned(
        &self,
        session: u32,
        bytes: u64,
        limit: u64,
    ) -> Result<(), LedgerError> {
        self.ledger.check_pinned(session, bytes, limit)
    }

    /// Adds a vGPU or changes its quota.
    pub(crate) fn set_quota(&mut self, vgpu: u32, bytes: u64) {
        self.ledger.set_quota(vgpu, bytes / PAGE);
    }

    /// Says whose a vGPU is, and how much all vGPUs of that user may have together.
    pub(crate) fn set_owner(&mut self, vgpu: u32, uid: u32, bytes: u64) {
        self.ledger.set_owner(vgpu, uid, bytes / PAGE);
    }

    /// Forgets a vGPU without sessions.
    pub(crate) fn remove_vgpu(&mut self, vgpu: u32) {
        self.ledger.remove_vgpu(vgpu);
        drop(self.forget_file(vgpu));
    }

    /// Adds a session, which has this number, to a vGPU.
    pub(crate) fn add_session(&mut self, session: u32, number: u64, vgpu: u32) {
        self.numbers.insert(session, number);
        self.ledger.add_session(session, vgpu);
        if let Some(lender) = &self.lender {
            lender.begin(clock::now_ns(), session, vgpu, 0);
        }
    }

    /// What a worker of the vGPU needs, created when first needed.
    pub(crate) fn files(&mut self, vgpu: u32) -> anyhow::Result<VgpuFiles> {
        let space = self.space(vgpu)?;
        let (frames, table) = (space.file.try_clone()?, reopen(&space.table_file, OFlags::RDONLY)?);
        let physical = reopen(&self.physical_file, OFlags::RDONLY)?;
        Ok(VgpuFiles { frames, table: table.into(), physical: physical.into() })
    }

    fn space(&mut self, vgpu: u32) -> anyhow::Result<&Space> {
        if !self.spaces.contains_key(&vgpu) {
            let space = Space::new(self.geometry, self.swap_dir.as_deref())?;
            self.residency.add(vgpu, space.table.clone());
            self.spaces.insert(vgpu, space);
        }
        Ok(&self.spaces[&vgpu])
    }

    fn vgpu_of(&self, session: u32) -> Result<u32, LedgerError> {
        self.ledger.vgpu_of(session).ok_or(LedgerError::Unknown)
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
        let claim = physical::requested(session, number, request);
        let vgpu = self.vgpu_of(session)?;
        if again {
            let answered = self.runs_of(vgpu, claim);
            if !answered.is_empty() {
                return Ok(answered);
            }
        }
        // One without files has no worker that could ask.
        self.space(vgpu).map_err(|_| LedgerError::Device)?;
        // An operation needs all of its session's memory there.
        let all = self.session_bytes(session).saturating_add(frames.saturating_mul(PAGE));
        if let Some(lender) = &self.lender
            && all > lender.capacity().saturating_sub(lender.all_fixed_beside(session))
        {
            return Err(LedgerError::Device);
        }
        let runs = self.ledger.take(session, frames, RUNS_MAX)?;
        self.reserve(session, vgpu, &runs)?;
        self.write(vgpu, &runs, claim);
        Ok(runs)
    }

    /// Takes room for frames that were just taken, where they lie in a file: a kernel that finds
    /// none there is killed. Without room they are nobody's again.
    fn reserve(&mut self, session: u32, vgpu: u32, runs: &[Run]) -> Result<(), LedgerError> {
        let Some(space) = self.spaces.get(&vgpu).filter(|space| !space.file.is_sealed()) else {
            return Ok(());
        };
        let file = Arc::clone(&space.file);
        let has_room = |&(first, count): &Run| {
            let [offset, len] =
                [first, count].map(|pages| usize::try_from(pages * PAGE).unwrap_or(usize::MAX));
            let reserved = file.reserve(offset, len);
            reserved.inspect_err(|error| tracing::debug!(%error, "no room for frames")).is_ok()
        };
        if runs.iter().all(has_room) {
            return Ok(());
        }
        self.ledger.give_back(session, runs)?;
        let dirty = self.dirty(vgpu, runs.to_vec());
        self.recycle(&dirty.clear());
        Err(LedgerError::Swap)
    }

    /// The frames of a vGPU that came by this request; no more runs than were written at once.
    fn runs_of(&self, vgpu: u32, claim: u64) -> Vec<Run> {
        let Some(space) = self.spaces.get(&vgpu) else { return Vec::new() };
        let mut runs: Vec<Run> = Vec::new();
        let is_of_it = |frame: &u64| physical::claim_of(space.table.load(*frame)) == claim;
        for frame in (0..self.geometry.pages()).filter(is_of_it) {
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
        self.exports.forget_frames(vgpu, &given);
        Ok(self.dirty(vgpu, given))
    }

    /// What a session has here.
    pub(crate) fn holding(&self, session: u32) -> Holding {
        let mut runs: Vec<(Run, u64)> = Vec::new();
        let space = self.ledger.vgpu_of(session).and_then(|vgpu| self.spaces.get(&vgpu));
        for (first, count) in self.ledger.runs_of(session) {
            for frame in first..first + count {
                let entry = space.map_or(0, |space| space.table.load(frame));
                let claim = physical::claim_of(entry);
                match runs.last_mut() {
                    Some(((first, count), same)) if *first + *count == frame && *same == claim => {
                        *count += 1;
                    }
                    _ => runs.push(((frame, 1), claim)),
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
        self.space(vgpu).map_err(|_| LedgerError::Device)?;
        self.add_session(session, number, vgpu);
        let mut moved = Vec::new();
        for ((mut first, count), entry) in held.runs {
            let taken = self.ledger.take(session, count, usize::MAX)?;
            self.reserve(session, vgpu, &taken)?;
            self.write(vgpu, &taken, entry);
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
        if let Some(lender) = &self.lender {
            lender.end(session);
        }
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
        Dirty { vgpu, file: self.spaces.get(&vgpu).map(|space| Arc::clone(&space.file)), runs }
    }

    /// Makes cleared frames free. Those that are not clear are nobody's while this daemon runs.
    pub(crate) fn recycle(&mut self, cleared: &Cleared) {
        let Cleared { vgpu, clear, dirty } = cleared;
        self.write(*vgpu, clear, 0);
        self.ledger.recycle(*vgpu, clear);
        self.write(*vgpu, dirty, physical::requested(NOBODY, 0, 0));
        self.ledger.withdraw(*vgpu, dirty);
    }

    /// Forgets the memory of a vGPU without sessions, to be dropped.
    pub(crate) fn forget_file(&mut self, vgpu: u32) -> Option<Arc<MemoryFile>> {
        self.residency.remove(vgpu);
        self.ledger.renew(vgpu);
        self.spaces.remove(&vgpu).map(|space| space.file)
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

    /// Takes over the memory of an adopted session's vGPU.
    pub(crate) fn adopt_files(
        &mut self,
        vgpu: u32,
        file: MemoryFile,
        table: &MemoryFile,
    ) -> anyhow::Result<()> {
        if !self.spaces.contains_key(&vgpu) {
            let space = Space::of(file, reopen(table, OFlags::RDWR)?, self.geometry)?;
            self.residency.add(vgpu, space.table.clone());
            self.spaces.insert(vgpu, space);
        }
        Ok(())
    }

    /// Rebuilds the ledger from the tables: frames of sessions in `living` are theirs, others are
    /// cleared of their owner.
    pub(crate) fn rebuild(&mut self, living: &[u32]) -> anyhow::Result<()> {
        let vgpus: Vec<u32> = self.spaces.keys().copied().collect();
        for vgpu in vgpus {
            let pages = self.geometry.pages();
            let table = self.spaces[&vgpu].table.clone();
            let mut run: Option<(u64, u64, u64)> = None;
            for frame in 0..=pages {
                // Behind the end there is another entry.
                let claim = physical::claim_of(if frame < pages { table.load(frame) } else { 0 });
                run = match run {
                    Some((first, count, same)) if same == claim && frame < pages => {
                        Some((first, count + 1, same))
                    }
                    before => {
                        if let Some((first, count, claim)) = before {
                            self.rebuild_run(vgpu, (first, count), claim, living)?;
                        }
                        (claim != 0).then_some((frame, 1, claim))
                    }
                };
            }
        }
        if let Some(lender) = &self.lender {
            // All of it may be there; each says what is when it is asked to save some.
            living.iter().for_each(|key| lender.adopt(*key, self.session_bytes(*key)));
        }
        Ok(())
    }

    fn rebuild_run(
        &mut self,
        vgpu: u32,
        (first, count): Run,
        claim: u64,
        living: &[u32],
    ) -> anyhow::Result<()> {
        self.residency.adopt(vgpu, (first, count));
        let is_of_it = |session: &&u32| {
            physical::is_owned(claim, **session) && self.ledger.vgpu_of(**session) == Some(vgpu)
        };
        match living.iter().find(is_of_it) {
            Some(&session) => self
                .ledger
                .adopt(session, first, count)
                .with_context(|| format!("adopting frames {first}+{count}")),
            None => {
                punch(&self.spaces[&vgpu].file, first, count);
                self.write(vgpu, &[(first, count)], 0);
                Ok(())
            }
        }
    }

    fn write(&self, vgpu: u32, runs: &[Run], claim: u64) {
        self.residency.write(vgpu, runs, claim);
    }
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

    fn terms(memory_bytes: u64) -> Terms {
        Terms {
            geometry: Geometry::new(memory_bytes, memory_bytes, 16 * PAGE).unwrap(),
            dealing: crate::config::Dealing::by_name("exact").unwrap(),
            entry_ns: 0,
            quantum_ns: 6_000_000,
            monitor: weft_sched::memory::MonitorConfig::default(),
            period_ns: weft_sched::memory::PERIOD_NS,
        }
    }

    fn frames(survivor: Option<(MemoryFile, VgpuFiles)>) -> Frames {
        let (physical, vgpu) = survivor.unzip();
        let mut frames = Frames::new(terms(64 * PAGE), 64 * PAGE, physical, None).unwrap();
        frames.set_quota(1, 64 * PAGE);
        frames.add_session(10, 100, 1);
        if let Some(files) = vgpu {
            let table = MemoryFile::received(files.table).unwrap();
            frames.adopt_files(1, files.frames, &table).unwrap();
        }
        frames
    }

    /// What a worker leaves the next daemon.
    fn survivor(frames: &mut Frames) -> (MemoryFile, VgpuFiles) {
        let files = frames.files(1).unwrap();
        let physical = files.physical.try_clone().unwrap();
        (MemoryFile::received(physical).unwrap(), files)
    }

    fn claim(frames: &Frames, page: u64) -> u64 {
        physical::claim_of(frames.spaces[&1].table.load(page))
    }

    #[test]
    fn entries_name_the_session_and_only_while_it_has_the_frames() {
        let mut frames = frames(None);
        let VgpuFiles { table, physical, .. } = frames.files(1).unwrap();
        let runs = frames.take(10, 3, 1, false).unwrap();
        assert_eq!(claim(&frames, 2), physical::requested(10, 100, 1));
        for table in [table, physical] {
            let file = MemoryFile::received(table).unwrap();
            assert!(file.map(Access::ReadWrite).is_err(), "workers cannot write the tables");
        }
        let dirty = frames.give_back(10, 1, &runs, false).unwrap();
        assert_eq!(
            claim(&frames, 2),
            physical::requested(10, 100, 1),
            "a dead daemon's successor asks"
        );
        frames.recycle(&dirty.clear());
        assert_eq!(claim(&frames, 2), 0);
    }

    #[test]
    fn others_get_frames_while_some_are_cleared_and_those_only_when_they_are_zero() {
        let mut frames = frames(None);
        frames.add_session(11, 110, 1);
        let memory = frames.files(1).unwrap().frames.map(Access::ReadWrite).unwrap();
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
        frames.recycle(&Cleared { vgpu: 1, clear: vec![(0, 60)], dirty: vec![(60, 4)] });
        assert_eq!(frames.take(10, 61, 2, false), Err(LedgerError::Device));
        frames.take(10, 60, 3, false).unwrap();
        let left = survivor(&mut frames);
        let mut second = self::frames(Some(left));
        second.rebuild(&[10]).unwrap();
        second.take(10, 4, 4, false).unwrap();
    }

    #[test]
    fn a_daemon_that_dies_while_it_clears_leaves_no_frame_that_is_free_and_not_clear() {
        let mut first = frames(None);
        first.add_session(11, 110, 1);
        let left = survivor(&mut first);
        let memory = left.1.frames.map(Access::ReadWrite).unwrap();
        let of_living = first.take(10, 2, 1, false).unwrap();
        let of_dead = first.take(11, 62, 1, false).unwrap();
        memory.span(0, memory.len()).unwrap().fill(7).unwrap();
        let unfinished = first.give_back(10, 1, &of_living, false).unwrap();
        let unfinished = (unfinished, first.give_back(11, 1, &of_dead, false).unwrap());
        drop((first, unfinished));
        let mut second = frames(Some(left));
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
        let left = survivor(&mut first);
        drop(first);
        let mut second = frames(Some(left));
        second.rebuild(&[10]).unwrap();
        assert_eq!(second.used_bytes(1), 7 * PAGE);
        assert_eq!(second.take(10, 2, 2, true).unwrap(), unheard, "the answer that got lost");
        assert_eq!(second.used_bytes(1), 7 * PAGE, "nothing was handed out twice");
        let fresh = second.take(10, 57, 3, true).unwrap();
        assert_eq!(fresh.iter().map(|(_, count)| count).sum::<u64>(), 57, "no answer got lost");
    }

    /// A session that imported its predecessor's memory must not have the successor's.
    #[test]
    fn a_successor_with_the_same_key_has_other_entries_for_the_same_frames() {
        let mut frames = frames(None);
        let given = frames.take(10, 3, 1, false).unwrap();
        let imported = claim(&frames, 2);
        let dirty = frames.remove_session(10, 1);
        frames.recycle(&dirty.clear());
        frames.add_session(10, 101, 1);
        assert_eq!(frames.take(10, 3, 1, false).unwrap(), given);
        assert_ne!(claim(&frames, 2), imported);
        assert!(physical::is_owned(claim(&frames, 2), 10));
    }
}
