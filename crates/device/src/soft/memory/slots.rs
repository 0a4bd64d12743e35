//! Slots of device memory, and the tables that translate it.
//!
//! The pages of a vGPU are numbered from 0, whatever else is on the device: page `p` lies at byte
//! `p × 4096` of its frame file, and its entry at `p` of its *private* table. Its pages are divided
//! into parts as long as a slot. The *physical* table has the entries that the device uses, slot by
//! slot: where the vGPU's *bases* say that a part of it is. Whoever runs has its parts' entries
//! there; the daemon copies them.

use serde::{Deserialize, Serialize};
use weft_ring::{AtomicU64, Cells, MapError, Ordering, ReadCells, SharedMemory};

use super::physical;
use crate::PAGE;

/// Words before the bases.
const BASES: usize = 8;
/// The word that says whether the vGPU lacks slots.
const LACKS: usize = 0;
/// The word that counts how often slots of the vGPU were taken or changed their place.
const TAKEN: usize = 1;
/// Words of one page of a table.
const ROW: usize = 512;

/// How the memory of a device is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Pages of a slot: a power of two.
    slot_pages: u64,
    /// Slots of the device.
    slots: usize,
    /// Parts that a vGPU may have.
    parts: usize,
}

impl Geometry {
    /// A device of `memory_bytes` in slots of `slot_bytes`, of which a vGPU may have up to
    /// `vgpu_bytes`, also if that is more. The last slot may be a part of one.
    ///
    /// # Errors
    /// A text that names what is wrong.
    pub fn new(memory_bytes: u64, vgpu_bytes: u64, slot_bytes: u64) -> Result<Self, String> {
        if !slot_bytes.is_power_of_two() || slot_bytes < PAGE {
            return Err(format!("a slot of {slot_bytes} bytes: it is a power of two of pages"));
        }
        let slots = memory_bytes.div_ceil(slot_bytes).max(1);
        let parts = vgpu_bytes.max(memory_bytes).div_ceil(slot_bytes).max(1);
        if parts > physical::PARTS {
            let most = physical::PARTS;
            return Err(format!("{parts} slots: there are at most {most}, so make slots larger"));
        }
        let [slots, parts] = [slots, parts].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        Ok(Self { slot_pages: slot_bytes / PAGE, slots, parts })
    }

    /// Slots of the device.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Pages of a slot.
    #[must_use]
    pub const fn slot_pages(&self) -> u64 {
        self.slot_pages
    }

    /// Whether a vGPU may have more than there are slots, or all of them together may.
    #[must_use]
    pub const fn lends(&self) -> bool {
        self.parts > self.slots
    }

    /// Pages that a vGPU may have.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.parts as u64 * self.slot_pages
    }

    /// The part that a page belongs to.
    #[must_use]
    pub fn part_of(&self, page: u64) -> usize {
        usize::try_from(page >> self.slot_pages.trailing_zeros()).unwrap_or(usize::MAX)
    }

    /// The pages of a part.
    #[must_use]
    pub const fn pages_of(&self, part: usize) -> std::ops::Range<u64> {
        let first = part as u64 * self.slot_pages;
        first..first + self.slot_pages
    }

    /// Bytes of a vGPU's frame file.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        index(self.pages() * PAGE)
    }

    /// Bytes of a private table.
    #[must_use]
    pub fn private_bytes(&self) -> usize {
        (self.first_entry() + index(self.pages())) * 8
    }

    /// Bytes of the physical table.
    #[must_use]
    pub fn physical_bytes(&self) -> usize {
        self.slots * index(self.slot_pages) * 8
    }

    fn first_entry(&self) -> usize {
        (BASES + self.parts).next_multiple_of(ROW)
    }

    /// Where a page's entry lies if its part is in this slot.
    fn place(&self, slot: usize, page: u64) -> usize {
        slot * index(self.slot_pages) + index(page & (self.slot_pages - 1))
    }
}

/// A vGPU's private table in the daemon's hands.
#[derive(Debug, Clone)]
pub struct PrivateTable {
    geometry: Geometry,
    lacks: Cells<AtomicU64>,
    taken: Cells<AtomicU64>,
    bases: Cells<AtomicU64>,
    entries: Cells<AtomicU64>,
}

impl PrivateTable {
    /// Views mapped memory as a private table.
    ///
    /// # Errors
    /// [`MapError`] when the memory is too small, or read-only.
    pub fn open(
        memory: &std::sync::Arc<SharedMemory>,
        geometry: Geometry,
    ) -> Result<Self, MapError> {
        Ok(Self {
            geometry,
            lacks: memory.cells(LACKS * 8, 1)?,
            taken: memory.cells(TAKEN * 8, 1)?,
            bases: memory.cells(BASES * 8, geometry.parts)?,
            entries: memory.cells(geometry.first_entry() * 8, index(geometry.pages()))?,
        })
    }

    /// The entry of a page.
    #[must_use]
    pub fn load(&self, page: u64) -> u64 {
        self.entries.get(index(page)).map_or(0, |entry| entry.load(Ordering::Acquire))
    }

    /// Writes the entry of a page: who has it, by `claim` ([`physical::requested`]), or 0.
    pub fn store(&self, page: u64, claim: u64) {
        let entry = physical::at(claim, self.geometry.part_of(page));
        if let Some(word) = self.entries.get(index(page)) {
            word.store(entry, Ordering::Release);
        }
    }

    /// Says in which slot a part is.
    pub fn set_base(&self, part: usize, slot: Option<usize>) {
        if let Some(word) = self.bases.get(part) {
            word.store(slot.map_or(0, |slot| slot as u64 + 1), Ordering::Release);
        }
    }

    /// Says whether slots of the vGPU have entries of others: then it asks for them before it runs.
    /// Say so before the entries are written.
    pub fn set_lacks(&self, lacks: bool) {
        if lacks {
            self.note_taken();
        }
        self.lacks[0].store(u64::from(lacks), Ordering::Release);
    }

    /// Says, before entries of the vGPU's slots are written over, that they are; of pages that are
    /// freed also afterwards, since nobody asks for them again. Translations that were made before
    /// are forgotten when an operation goes on. Only the daemon counts, one thread of it at a time.
    pub fn note_taken(&self) {
        let taken = self.taken[0].load(Ordering::Relaxed);
        // SYNC POINT: slots taken before their entries change.
        self.taken[0].store(taken.wrapping_add(1), Ordering::Release);
    }

    /// Forgets where parts were: they are nowhere.
    pub fn forget_bases(&self) {
        self.set_lacks(true);
        self.bases.iter().for_each(|base| base.store(0, Ordering::Release));
    }
}

/// The physical table in the daemon's hands.
#[derive(Debug)]
pub struct PhysicalTable {
    geometry: Geometry,
    entries: Cells<AtomicU64>,
    /// Entries of each slot that may be something: those behind them are 0.
    filled: Vec<usize>,
}

impl PhysicalTable {
    /// Views mapped memory as a physical table. What is in it is unknown.
    ///
    /// # Errors
    /// [`MapError`] when the memory is too small, or read-only.
    pub fn open(
        memory: &std::sync::Arc<SharedMemory>,
        geometry: Geometry,
    ) -> Result<Self, MapError> {
        let entries = memory.cells(0, geometry.physical_bytes() / 8)?;
        let filled = vec![index(geometry.slot_pages); geometry.slots];
        Ok(Self { geometry, entries, filled })
    }

    /// Copies the private entries of a part into a slot, as far as there are any: `used` says how
    /// many. How many entries were written.
    pub fn copy(&mut self, slot: usize, part: usize, used: usize, from: &PrivateTable) -> usize {
        let Some(filled) = self.filled.get_mut(slot) else { return 0 };
        let count = index(self.geometry.slot_pages);
        let used = used.min(count);
        let first = part * count;
        let (Some(to), Some(from)) = (
            self.entries.get(slot * count..(slot + 1) * count),
            from.entries.get(first..first + used),
        ) else {
            return 0;
        };
        let written = used.max(*filled);
        for (to, from) in to.iter().zip(from) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
        for rest in &to[used..written] {
            rest.store(0, Ordering::Release);
        }
        *filled = used;
        written
    }

    /// Writes the entry of one page of the vGPU whose part is in this slot.
    pub fn store(&mut self, slot: usize, page: u64, entry: u64) {
        let at = self.geometry.place(slot, page);
        if let (Some(word), Some(filled)) = (self.entries.get(at), self.filled.get_mut(slot)) {
            word.store(entry, Ordering::Release);
            let offset = at % index(self.geometry.slot_pages);
            *filled = (*filled).max(offset + 1);
        }
    }
}

/// Both tables as a worker sees them: read-only, with its own identity.
#[derive(Debug)]
pub struct Translation {
    geometry: Geometry,
    lacks: ReadCells<AtomicU64>,
    taken: ReadCells<AtomicU64>,
    bases: ReadCells<AtomicU64>,
    private: ReadCells<AtomicU64>,
    physical: ReadCells<AtomicU64>,
    /// Key of the session whose pages this worker may touch.
    pub(super) owner: u32,
}

impl Translation {
    /// Of the session with the key `owner`.
    ///
    /// # Errors
    /// [`MapError`] when a table is too small.
    pub fn open(
        private: &std::sync::Arc<SharedMemory>,
        physical: &std::sync::Arc<SharedMemory>,
        geometry: Geometry,
        owner: u32,
    ) -> Result<Self, MapError> {
        let first = geometry.first_entry() * 8;
        Ok(Self {
            geometry,
            lacks: private.read_cells(LACKS * 8, 1)?,
            taken: private.read_cells(TAKEN * 8, 1)?,
            bases: private.read_cells(BASES * 8, geometry.parts)?,
            private: private.read_cells(first, index(geometry.pages()))?,
            physical: physical.read_cells(0, geometry.physical_bytes() / 8)?,
            owner,
        })
    }

    pub(super) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether slots of the vGPU have entries of others.
    pub(super) fn lacks(&self) -> bool {
        self.lacks.load(0) != Some(0)
    }

    /// How often slots of the vGPU were taken or changed their place so far.
    pub(super) fn taken(&self) -> u64 {
        // SYNC POINT: slots taken before their entries change. Who has seen a changed entry sees
        // it counted.
        self.taken.load(0).unwrap_or(0)
    }

    /// The slot that a part is in.
    pub(super) fn base(&self, part: usize) -> Option<usize> {
        let slot = self.bases.load(part)?.checked_sub(1)?;
        usize::try_from(slot).ok().filter(|slot| *slot < self.geometry.slots)
    }

    /// The private entry of a page.
    pub(super) fn entry(&self, page: u64) -> Option<u64> {
        self.private.load(usize::try_from(page).ok()?)
    }

    /// What the device has for a page whose part is in this slot.
    pub(super) fn physical(&self, slot: usize, page: u64) -> Option<u64> {
        self.physical.load(self.geometry.place(slot, page))
    }

    /// The frame that an entry of the physical table names for a page.
    pub(super) fn frame(&self, entry: u64, page: u64) -> u64 {
        let first = self.geometry.pages_of(physical::part(entry)).start;
        first + (page & (self.geometry.slot_pages - 1))
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
