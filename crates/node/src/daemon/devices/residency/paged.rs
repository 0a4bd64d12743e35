//! Slots dealt out by demand paging: a vGPU's turn begins with whatever is left of it, and each
//! part that it meets comes by itself.

use std::collections::BTreeSet;

use weft_device::Wanted;
use weft_sched::VgpuKey;
use weft_sched::memory::{PageIn, Pager};

use super::board::Board;
use super::{Dealer, Question, Terms};

#[derive(Debug)]
pub(super) struct Paged {
    pager: Pager,
    /// Those that have fewer parts than before, or are gone.
    shrunk: BTreeSet<u32>,
}

impl Paged {
    pub(super) fn new(terms: &Terms) -> Self {
        Self { pager: Pager::new(terms.geometry.slots()), shrunk: BTreeSet::new() }
    }

    /// Says in a vGPU's table where its parts are.
    fn publish(&self, board: &mut Board, vgpu: u32) {
        let owners = self.pager.owners().enumerate();
        let own = |(slot, owner): (usize, Option<(VgpuKey, usize)>)| {
            owner.filter(|(key, _)| key.0 == vgpu).map(|(_, part)| (part, slot))
        };
        board.publish(vgpu, owners.filter_map(own).collect());
    }
}

impl Dealer for Paged {
    fn make_resident(&mut self, board: &mut Board, question: Question<'_>) -> bool {
        let Question { now_ns, vgpu, wanted: Wanted { page, touched, .. } } = question;
        self.tidy(board, now_ns);
        let touched: Vec<usize> =
            touched.iter().filter_map(|part| usize::try_from(*part).ok()).collect();
        self.pager.touch(VgpuKey(vgpu), &touched);
        let mut is_own = false;
        if let Some(part) = board.part_met(vgpu, *page)
            && let Some(PageIn { slot, evicted }) = self.pager.bring(VgpuKey(vgpu), part)
        {
            if let Some((VgpuKey(other), _)) = evicted {
                is_own = other == vgpu;
                board.totals.replaced += 1;
                board.note_taken(other);
                self.publish(board, other);
            }
            self.publish(board, vgpu);
            board.copy(vgpu, part, slot);
        }
        // Its bases say what it has: what it lacks it meets.
        board.set_lacks(vgpu, false);
        is_own
    }

    fn note_shrunk(&mut self, vgpu: u32) {
        self.shrunk.insert(vgpu);
    }

    fn tidy(&mut self, board: &mut Board, _now_ns: u64) {
        while let Some(vgpu) = self.shrunk.pop_first() {
            self.pager.retain(VgpuKey(vgpu), |part| board.uses(vgpu, part));
            let pager = &self.pager;
            board.forget(vgpu, |part| pager.slot_of(VgpuKey(vgpu), part).is_some());
            self.publish(board, vgpu);
        }
    }

    fn end_turn(&mut self, _board: &mut Board, _now_ns: u64, _vgpu: u32, _used_ns: u64) {}

    fn users(&self) -> Vec<Vec<u32>> {
        let one = |owner: Option<(VgpuKey, usize)>| owner.map(|(key, _)| key.0);
        self.pager.owners().map(|owner| one(owner).into_iter().collect()).collect()
    }

    #[cfg(test)]
    fn check(&self) -> Result<(), String> {
        let owners: Vec<_> = self.pager.owners().flatten().collect();
        let distinct: BTreeSet<_> = owners.iter().collect();
        if distinct.len() == owners.len() { Ok(()) } else { Err(format!("twice in {owners:?}")) }
    }
}
