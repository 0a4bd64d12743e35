//! Whose entries each slot of the physical table has, and the steps that change it.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::layout::{Layout, Place};
use crate::key::VgpuKey;

/// One step of a plan. A device with a translation table copies entries; one without copies the
/// slots' contents. Steps are carried out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// What lies in `slot` goes back to part `part` of its owner's private memory. A device whose
    /// private entries are written along with the physical ones has nothing to do here.
    Save {
        /// Whose.
        vgpu: VgpuKey,
        /// Which slot of the vGPU's own memory.
        part: usize,
        /// Which slot of the device.
        slot: usize,
    },
    /// Part `part` of the vGPU's private memory goes into `slot`.
    Copy {
        /// Whose.
        vgpu: VgpuKey,
        /// Which slot of the vGPU's own memory.
        part: usize,
        /// Which slot of the device.
        slot: usize,
    },
}

/// Which part of whom a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    vgpu: VgpuKey,
    part: usize,
}

/// What is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The vGPU in its turn would use entries that are not its own.
    #[error("{vgpu:?} runs and does not own slot {slot} as its part {part}")]
    NotOwned {
        /// Who runs.
        vgpu: VgpuKey,
        /// Which slot of its memory.
        part: usize,
        /// Which slot of the device.
        slot: usize,
    },
    /// A slot has entries of somebody who has no place there.
    #[error("slot {slot} has entries of {vgpu:?}, which has no place there")]
    Stray {
        /// Whose.
        vgpu: VgpuKey,
        /// Where.
        slot: usize,
    },
}

/// The owners of all slots.
#[derive(Clone, Debug, Default)]
pub struct Table {
    places: BTreeMap<VgpuKey, Place>,
    owners: Vec<Option<Owner>>,
    resident: Option<VgpuKey>,
}

impl Table {
    /// An empty table of so many slots.
    pub fn new(region: usize) -> Self {
        Self { owners: vec![None; region], ..Self::default() }
    }

    /// Takes over a layout. Entries of those that were moved or have left are saved and forgotten.
    /// The resident keeps its turn if it lies where it lay; otherwise nobody is resident
    /// afterwards, and it must not run before it is switched to again. The result is how many slots
    /// were forgotten.
    pub fn set_layout(&mut self, layout: &Layout, steps: &mut Vec<Step>) -> usize {
        let fresh: BTreeMap<VgpuKey, &Place> =
            layout.places.iter().map(|place| (place.vgpu, place)).collect();
        let is_same = |place: &Place| fresh.get(&place.vgpu) == Some(&place);
        let gone: Vec<Place> =
            self.places.values().filter(|place| !is_same(place)).cloned().collect();
        for Place { vgpu, .. } in &gone {
            self.places.remove(vgpu);
        }
        for (vgpu, place) in fresh {
            self.places.entry(vgpu).or_insert_with(|| place.clone());
        }
        self.forget(&gone, steps)
    }

    /// One vGPU lies there, and everybody else where they lay; as [`Self::set_layout`].
    pub fn set_place(&mut self, place: &Place, steps: &mut Vec<Step>) -> usize {
        let old = self.places.insert(place.vgpu, place.clone());
        let gone: Vec<Place> = old.into_iter().filter(|old| old != place).collect();
        self.forget(&gone, steps)
    }

    /// Those have no place any more, and everybody else lies where they lay; as
    /// [`Self::set_layout`].
    pub fn remove(&mut self, gone: &[VgpuKey], steps: &mut Vec<Step>) -> usize {
        let mut gone: Vec<VgpuKey> = gone.to_vec();
        // In the order in which a whole layout is compared.
        gone.sort_unstable();
        let gone: Vec<Place> = gone.iter().filter_map(|vgpu| self.places.remove(vgpu)).collect();
        self.forget(&gone, steps)
    }

    /// Saves and forgets what is left in places that are not there any more; how many slots.
    fn forget(&mut self, gone: &[Place], steps: &mut Vec<Step>) -> usize {
        for Place { vgpu, .. } in gone {
            self.resident.take_if(|resident| resident == vgpu);
        }
        // Slots have only what has a place there, so no other one can have lost its owner.
        let mut lost: Vec<usize> = gone.iter().flat_map(|place| self.lost(place)).collect();
        lost.sort_unstable();
        lost.iter().for_each(|slot| self.evict(*slot, steps));
        lost.len()
    }

    /// Slots of a place that is another one now which have its vGPU's entries, and are not to have
    /// them any more.
    fn lost(&self, old: &Place) -> Vec<usize> {
        let vgpu = old.vgpu;
        // In the order of the parts, as the old ones.
        let mut parts = self.places.get(&vgpu).into_iter().flat_map(Place::slots);
        let is_lost = |slot: &usize| {
            let stays = parts.next() == Some(*slot);
            !stays && self.owners[*slot].is_some_and(|owner| owner.vgpu == vgpu)
        };
        old.slots().filter(is_lost).collect()
    }

    /// The resident's turn is over: its slots may be written.
    pub fn end_turn(&mut self) {
        self.resident = None;
    }

    /// Where a vGPU lies.
    pub fn place(&self, vgpu: VgpuKey) -> Option<&Place> {
        self.places.get(&vgpu)
    }

    /// The vGPU gets its turn: writes all slots that it does not own. The result is how many,
    /// `None` if it has no place.
    pub fn switch_to(&mut self, vgpu: VgpuKey, steps: &mut Vec<Step>) -> Option<usize> {
        let missing = self.missing(vgpu)?;
        for &(part, slot) in &missing {
            self.write(Owner { vgpu, part }, slot, steps);
        }
        self.resident = Some(vgpu);
        Some(missing.len())
    }

    /// Writes one slot of a vGPU that will run soon, where that disturbs neither the resident one
    /// nor those in `before`, who run earlier. `None` when there is none left.
    pub fn prefetch(
        &mut self,
        vgpu: VgpuKey,
        before: &[VgpuKey],
        steps: &mut Vec<Step>,
    ) -> Option<usize> {
        let busy = |slot: usize| {
            let users = self.resident.iter().chain(before);
            users.filter_map(|user| self.places.get(user)).any(|place| place.has(slot))
        };
        let missing = self.missing(vgpu)?;
        let (part, slot) = missing.into_iter().find(|(_, slot)| !busy(*slot))?;
        self.write(Owner { vgpu, part }, slot, steps);
        Some(slot)
    }

    /// Slots of a vGPU that it does not own.
    pub fn lacks(&self, vgpu: VgpuKey) -> usize {
        self.missing(vgpu).map_or(0, |missing| missing.len())
    }

    /// Who is in its turn.
    pub fn resident(&self) -> Option<VgpuKey> {
        self.resident
    }

    /// Whose entries each slot has, for drawing.
    pub fn owners(&self) -> impl Iterator<Item = Option<VgpuKey>> + '_ {
        self.owners.iter().map(|owner| owner.map(|owner| owner.vgpu))
    }

    /// Holds the table against its rules: the resident vGPU owns all its slots, and whatever else
    /// is there belongs there.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Broken> {
        if let Some(vgpu) = self.resident
            && let Some((part, slot)) = self.missing(vgpu).and_then(|m| m.first().copied())
        {
            return Err(Broken::NotOwned { vgpu, part, slot });
        }
        for (slot, owner) in self.owners.iter().enumerate() {
            let Some(Owner { vgpu, part }) = *owner else { continue };
            if self.part_at(vgpu, slot) != Some(part) {
                return Err(Broken::Stray { vgpu, slot });
            }
        }
        Ok(())
    }

    /// Loses the owner of a slot, as a device that skipped a copy would. For negative tests.
    #[cfg(test)]
    pub(super) fn give_away(&mut self, slot: usize, vgpu: VgpuKey) {
        self.owners[slot] = Some(Owner { vgpu, part: 0 });
    }

    /// Parts and slots of a vGPU that it does not own, `None` if it has no place.
    fn missing(&self, vgpu: VgpuKey) -> Option<Vec<(usize, usize)>> {
        let lacks =
            |&(part, slot): &(usize, usize)| self.owners[slot] != Some(Owner { vgpu, part });
        Some(self.places.get(&vgpu)?.slots().enumerate().filter(lacks).collect())
    }

    fn part_at(&self, vgpu: VgpuKey, slot: usize) -> Option<usize> {
        self.places.get(&vgpu)?.slots().position(|own| own == slot)
    }

    fn write(&mut self, owner: Owner, slot: usize, steps: &mut Vec<Step>) {
        self.evict(slot, steps);
        let Owner { vgpu, part } = owner;
        steps.push(Step::Copy { vgpu, part, slot });
        self.owners[slot] = Some(owner);
    }

    fn evict(&mut self, slot: usize, steps: &mut Vec<Step>) {
        if let Some(Owner { vgpu, part }) = self.owners[slot].take() {
            steps.push(Step::Save { vgpu, part, slot });
        }
    }
}
