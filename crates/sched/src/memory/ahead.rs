//! Who is next, and what is written for those while one runs.
//!
//! A turn order is that of the layout among vGPUs with equal tags, or bends within σ. While one
//! runs, slots of the next two are written that neither it nor an earlier one of them uses.

use alloc::vec::Vec;

use super::layout::Layout;
use super::order::TurnOrder;
use super::succession::{Candidate, successor};
use super::table::{Step, Table};
use crate::key::VgpuKey;

/// A vGPU with work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which.
    pub vgpu: VgpuKey,
    /// Its start tag: weighted service in ns.
    pub tag_ns: u64,
}

/// What the order may do, and what a turn hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// How far the order of turns may bend so that less is left to write, in ns; with 0 only equal
    /// tags are exchanged. `None` keeps to the layout's order.
    pub sigma_ns: Option<u64>,
    /// Slots that can be written during one quantum.
    pub hidden: usize,
}

impl Ahead {
    /// Whose turn is next after `last`; those without a place have none.
    pub fn next(
        &self,
        layout: &Layout,
        table: &Table,
        waiting: &[Waiting],
        last: Option<VgpuKey>,
    ) -> Option<VgpuKey> {
        self.choose(layout, table, waiting, last, |vgpu| table.lacks(vgpu))
    }

    /// During a turn of the resident: writes up to so many slots of the two that are next. The
    /// result is how many were written. A driver that writes slot by slot calls it with 1 for as
    /// long as there is time.
    pub fn write(
        &self,
        layout: &Layout,
        table: &mut Table,
        waiting: &[Waiting],
        slots: usize,
        steps: &mut Vec<Step>,
    ) -> usize {
        let mut left = slots;
        let mut before: Vec<VgpuKey> = Vec::new();
        for vgpu in self.upcoming_two(layout, table, waiting).into_iter().flatten() {
            while left > 0 && table.prefetch(vgpu, &before, steps).is_some() {
                left -= 1;
            }
            before.push(vgpu);
        }
        slots - left
    }

    fn upcoming_two(
        &self,
        layout: &Layout,
        table: &Table,
        waiting: &[Waiting],
    ) -> [Option<VgpuKey>; 2] {
        let Some(now) = table.resident() else { return [None; 2] };
        let without = |all: &[Waiting], vgpu: VgpuKey| -> Vec<Waiting> {
            all.iter().copied().filter(|one| one.vgpu != vgpu).collect()
        };
        let others = without(waiting, now);
        let next = self.upcoming(layout, table, &others, now);
        let later =
            next.and_then(|next| self.upcoming(layout, table, &without(&others, next), next));
        [next, later]
    }

    /// Who will run after `now`, as things are: what it lacks and cannot be written in time counts.
    fn upcoming(
        &self,
        layout: &Layout,
        table: &Table,
        waiting: &[Waiting],
        now: VgpuKey,
    ) -> Option<VgpuKey> {
        let visible = |vgpu: VgpuKey| {
            let (user, place) = (table.place(now), table.place(vgpu));
            let both = user.zip(place);
            let blocked = both
                .map_or(0, |(user, place)| place.slots().filter(|slot| user.has(*slot)).count());
            let free = table.lacks(vgpu).saturating_sub(blocked);
            blocked + free.saturating_sub(self.hidden)
        };
        self.choose(layout, table, waiting, Some(now), visible)
    }

    fn choose(
        &self,
        layout: &Layout,
        table: &Table,
        waiting: &[Waiting],
        last: Option<VgpuKey>,
        visible: impl Fn(VgpuKey) -> usize,
    ) -> Option<VgpuKey> {
        let order = TurnOrder::of(layout);
        let candidates: Vec<Candidate> = (0..)
            .zip(waiting)
            .filter(|(_, one)| table.place(one.vgpu).is_some())
            .filter_map(|(index, one)| {
                let bends = self.sigma_ns.is_some();
                let visible = if bends { visible(one.vgpu) } else { 0 };
                let distance = order.distance(last, one.vgpu)?;
                Some(Candidate { index, tag_ns: one.tag_ns, distance, visible })
            })
            .collect();
        successor(&candidates, self.sigma_ns.unwrap_or(0)).map(|index| waiting[index].vgpu)
    }
}
