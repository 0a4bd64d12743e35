//! Demand paging: nobody has a place. A part comes when an operation meets it, into the slot that
//! was used longest ago, whoever used it.

use alloc::vec;
use alloc::vec::Vec;

use crate::key::VgpuKey;

/// What a configuration calls it, beside the placements' names.
pub const DEMAND: &str = "demand";

/// The slots of a device and who used each when. Time is counted in looks.
#[derive(Clone, Debug)]
pub struct Pager {
    slots: Vec<Option<Paged>>,
    looks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Paged {
    vgpu: VgpuKey,
    part: usize,
    touched: u64,
}

/// A part that comes into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageIn {
    /// The slot.
    pub slot: usize,
    /// What was there: whose, and which part.
    pub evicted: Option<(VgpuKey, usize)>,
}

impl Pager {
    /// So many slots, of nobody.
    pub fn new(slots: usize) -> Self {
        Self { slots: vec![None; slots], looks: 0 }
    }

    /// A look at what a vGPU touched since the last one.
    pub fn touch(&mut self, vgpu: VgpuKey, parts: &[usize]) {
        self.looks += 1;
        for own in self.slots.iter_mut().flatten() {
            if own.vgpu == vgpu && parts.contains(&own.part) {
                own.touched = self.looks;
            }
        }
    }

    /// An operation meets a part of a vGPU: where it comes to lie, `None` if it has a slot already.
    pub fn bring(&mut self, vgpu: VgpuKey, part: usize) -> Option<PageIn> {
        self.looks += 1;
        if self.slot_of(vgpu, part).is_some() {
            self.touch(vgpu, &[part]);
            return None;
        }
        // A slot that nobody has is older than any.
        let age = |slot: &usize| self.slots[*slot].map_or(0, |own| own.touched);
        let slot = (0..self.slots.len()).min_by_key(age)?;
        let evicted = self.slots[slot].map(|own| (own.vgpu, own.part));
        self.slots[slot] = Some(Paged { vgpu, part, touched: self.looks });
        Some(PageIn { slot, evicted })
    }

    /// A vGPU has only these parts.
    pub fn retain(&mut self, vgpu: VgpuKey, keep: impl Fn(usize) -> bool) {
        for slot in &mut self.slots {
            slot.take_if(|own| own.vgpu == vgpu && !keep(own.part));
        }
    }

    /// The slot that a part has.
    pub fn slot_of(&self, vgpu: VgpuKey, part: usize) -> Option<usize> {
        let is_it = |own: &Paged| own.vgpu == vgpu && own.part == part;
        self.slots.iter().position(|own| own.as_ref().is_some_and(is_it))
    }

    /// Who has each slot, with which part.
    pub fn owners(&self) -> impl Iterator<Item = Option<(VgpuKey, usize)>> + '_ {
        self.slots.iter().map(|own| own.map(|own| (own.vgpu, own.part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: VgpuKey = VgpuKey(1);
    const B: VgpuKey = VgpuKey(2);

    #[test]
    fn what_was_used_longest_ago_gives_way_whoever_used_it() {
        let mut pager = Pager::new(3);
        assert_eq!(pager.bring(A, 7), Some(PageIn { slot: 0, evicted: None }));
        assert_eq!(pager.bring(A, 8), Some(PageIn { slot: 1, evicted: None }));
        assert_eq!(pager.bring(B, 7), Some(PageIn { slot: 2, evicted: None }));
        assert_eq!(pager.bring(A, 7), None, "it is there, and was used now");
        assert_eq!(pager.bring(B, 1), Some(PageIn { slot: 1, evicted: Some((A, 8)) }));
        pager.touch(A, &[7]);
        pager.touch(B, &[1]);
        assert_eq!(pager.bring(A, 8), Some(PageIn { slot: 2, evicted: Some((B, 7)) }));
        assert_eq!((pager.slot_of(B, 7), pager.slot_of(B, 1)), (None, Some(1)));
    }

    #[test]
    fn what_is_no_longer_there_leaves_its_slot() {
        let mut pager = Pager::new(2);
        pager.bring(A, 0);
        pager.bring(B, 0);
        pager.retain(A, |_| false);
        let owners: Vec<_> = pager.owners().collect();
        assert_eq!(owners, [None, Some((B, 0))]);
        assert_eq!(pager.bring(B, 1), Some(PageIn { slot: 0, evicted: None }));
    }
}
