//! A session's memory on its way to another software device.
//!
//! Contents are copied first, while the memory stays usable where it is; then all addresses are
//! translated to the new frames at once. What nobody ever wrote is not copied.

use std::collections::BTreeMap;
use std::mem;

use super::{FrameStore, Kind, Memory, physical};
use crate::{DeviceError, FrameRun, MovedRun, PAGE};

/// Bytes copied between two requests for pages to copy to: the system clears those, and what is
/// still in the caches is written to twice as fast.
const PIECE: u64 = 128 << 10;

/// The copy of a session's memory on another device.
#[derive(Debug)]
pub(crate) struct Copied {
    store: FrameStore,
    /// The frames of each allocation, by its address; none of one whose frames another session has
    /// freed.
    runs: BTreeMap<u64, Vec<FrameRun>>,
    /// The frames of memory that was taken without addresses, by its number.
    apart: BTreeMap<u64, Vec<FrameRun>>,
}

impl Memory {
    /// Copies what the session has to `store`, where its frames and those that it borrows are
    /// `moved`.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] when `moved` leaves frames of its own out;
    /// [`DeviceError::Lost`] when the system gives no memory.
    pub(crate) fn copy_to(
        &self,
        mut store: FrameStore,
        moved: &[MovedRun],
    ) -> Result<Copied, DeviceError> {
        let left_out = || {
            let why = "frames of the session have no place on the other device";
            DeviceError::Refused(why.to_owned())
        };
        let mut runs = BTreeMap::new();
        for (address, allocation) in &self.allocations {
            let translated: Option<Vec<Vec<FrameRun>>> =
                allocation.runs.iter().map(|run| MovedRun::of(*run, moved)).collect();
            let new: Vec<FrameRun> = match translated {
                Some(new) if allocation.kind != Kind::Borrowed => {
                    self.store.copy(&allocation.runs, &store, &new)?;
                    new.into_iter().flatten().collect()
                }
                Some(new) if self.store.lends(&allocation.runs, &mut store, &new) => {
                    new.into_iter().flatten().collect()
                }
                _ if allocation.kind == Kind::Borrowed => Vec::new(),
                _ => return Err(left_out()),
            };
            runs.insert(*address, new);
        }
        let mut apart = BTreeMap::new();
        for (memory, frames) in self.apart.frames() {
            let new = frames.iter().map(|run| MovedRun::of(*run, moved));
            let new = new.collect::<Option<Vec<_>>>().ok_or_else(left_out)?;
            self.store.copy(frames, &store, &new)?;
            apart.insert(memory, new.into_iter().flatten().collect());
        }
        Ok(Copied { store, runs, apart })
    }

    /// Uses the copy from now on. The frames that it had belong to whoever counts them; what is
    /// returned is their mapping, which takes long to drop while they are not cleared.
    pub(crate) fn go(&mut self, copied: Copied) -> FrameStore {
        let left = mem::replace(&mut self.store, copied.store);
        for (address, runs) in copied.runs {
            let Some(allocation) = self.allocations.get_mut(&address) else { continue };
            allocation.runs.clone_from(&runs);
            let (bytes, pages) = (allocation.bytes, allocation.pages);
            self.table.clear(address / PAGE, pages);
            self.map(address, bytes, &runs);
        }
        self.go_apart(copied.apart);
        self.generation += 1;
        left
    }
}

impl FrameStore {
    /// Copies the contents of `runs` to `new`, a list of runs for each, of another store.
    fn copy(&self, runs: &[FrameRun], to: &Self, new: &[Vec<FrameRun>]) -> Result<(), DeviceError> {
        for (run, new) in runs.iter().zip(new) {
            let mut first = run.first;
            for part in new {
                self.copy_run(first, to, *part)?;
                first += part.count;
            }
        }
        Ok(())
    }

    fn copy_run(&self, first: u64, to: &Self, new: FrameRun) -> Result<(), DeviceError> {
        let lost = |error| DeviceError::Lost(format!("copying frames: {error}"));
        let (start, target) = (first * PAGE, new.first * PAGE);
        let end = start + new.count * PAGE;
        let mut next = start;
        while next < end
            && let Some(at) = self.file.next_data(next).map_err(lost)?.filter(|at| *at < end)
        {
            let len = PIECE.min(end - at);
            let span = |store: &Self, offset: u64| {
                let [offset, len] = [offset, len].map(|n| usize::try_from(n).unwrap_or(0));
                store.memory.span(offset, len)
            };
            let (from, into) = (span(self, at), span(to, target + (at - start)));
            let (from, into) = (from.map_err(lost)?, into.map_err(lost)?);
            into.populate().map_err(lost)?;
            from.copy_to(&into).map_err(lost)?;
            next = at + len;
        }
        Ok(())
    }

    /// Lets the other store borrow what this one borrows, if it still does: whether it does.
    fn lends(&self, runs: &[FrameRun], to: &mut Self, new: &[Vec<FrameRun>]) -> bool {
        let (Some(own), Some(there)) = (&self.table, &to.table) else { return false };
        let old = runs.iter().flat_map(FrameRun::frames);
        let new = new.iter().flatten().flat_map(FrameRun::frames);
        let entry = |(old, new): (u64, u64)| {
            let before = own.entry(old).filter(|_| self.borrows(own, old))?;
            let after = there.entry(new)?;
            let same = physical::owner(before).is_some_and(|one| physical::is_owned(after, one));
            same.then_some((new, after))
        };
        let entries: Option<Vec<(u64, u64)>> = old.zip(new).map(entry).collect();
        let Some(entries) = entries else { return false };
        to.foreign.extend(entries);
        true
    }
}
