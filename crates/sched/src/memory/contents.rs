//! A device that really has contents: the judge of plans, for tests and simulations.
//!
//! It knows nothing of layouts or owners. It carries out [`Step`]s, private copies are written back
//! only where a step says so, and a vGPU that runs must find all of its memory as it left it.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::layout::Place;
use super::table::Step;
use crate::key::VgpuKey;

/// What a part of a vGPU's memory has: whose it is, which, and how often it was written.
type Content = (VgpuKey, usize, u64);

/// A vGPU found something else than it had left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} has {found:?} and not part {part} of {vgpu:?} as written {written} times")]
pub struct Lost {
    /// Who runs.
    pub vgpu: VgpuKey,
    /// Which slot of its memory.
    pub part: usize,
    /// Which slot of the device.
    pub slot: usize,
    /// How often it had written that part.
    pub written: u64,
    /// Whose part the slot has, which one, and how often that was written.
    pub found: Option<(VgpuKey, usize, u64)>,
}

/// The contents of all slots and of all private memory.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    slots: Vec<Option<Content>>,
    private: BTreeMap<(VgpuKey, usize), Content>,
    /// How often each part was written.
    truth: BTreeMap<(VgpuKey, usize), u64>,
    /// A fault: so many copies are carried out, then one is skipped.
    skip_after: Option<usize>,
}

impl Contents {
    /// An empty device of so many slots.
    pub fn new(region: usize) -> Self {
        Self { slots: vec![None; region], ..Self::default() }
    }

    /// A device with a fault: it skips one copy, the one after so many. For negative controls.
    pub fn skipping(region: usize, after: usize) -> Self {
        Self { skip_after: Some(after), ..Self::new(region) }
    }

    /// Carries out a plan.
    pub fn carry_out(&mut self, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            match step {
                Step::Save { vgpu, part, slot } => {
                    let content = self.slots[slot].take();
                    // Of a vGPU that is gone nothing is kept.
                    if let Some(content) = content.filter(|content| content.0 == vgpu) {
                        self.private.insert((vgpu, part), content);
                    }
                }
                Step::Copy { vgpu, part, slot } => self.copy(vgpu, part, slot),
            }
        }
    }

    fn copy(&mut self, vgpu: VgpuKey, part: usize, slot: usize) {
        if self.skip_after == Some(0) {
            self.skip_after = None;
            return;
        }
        self.skip_after = self.skip_after.map(|left| left - 1);
        let fresh = (vgpu, part, 0);
        self.slots[slot] = Some(self.private.get(&(vgpu, part)).copied().unwrap_or(fresh));
    }

    /// The vGPU that has the turn uses all of its memory and writes it.
    ///
    /// # Errors
    /// The first slot that is not as it was left.
    pub fn run(&mut self, place: &Place) -> Result<(), Lost> {
        let vgpu = place.vgpu;
        for (part, slot) in place.slots().enumerate() {
            let written = self.truth.entry((vgpu, part)).or_default();
            let found = self.slots[slot];
            if found != Some((vgpu, part, *written)) {
                return Err(Lost { vgpu, part, slot, written: *written, found });
            }
            *written += 1;
            self.slots[slot] = Some((vgpu, part, *written));
        }
        Ok(())
    }

    /// Somebody is gone, with all that was private.
    pub fn forget(&mut self, vgpu: VgpuKey) {
        self.private.retain(|(owner, _), _| *owner != vgpu);
        self.truth.retain(|(owner, _), _| *owner != vgpu);
    }
}
