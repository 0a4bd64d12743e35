//! Slots dealt out by a placement: each vGPU has as many as its working set has parts.

use std::collections::{BTreeMap, BTreeSet};

use weft_device::Wanted;
use weft_sched::VgpuKey;
use weft_sched::memory::{
    Brings, HeldSlot, Layout, Learned, Manager, ManagerConfig, PlacementId, Rule, Search, Step,
    TurnOrder, WorkingSet, arrange,
};

use super::board::Board;
use super::{Dealer, Question, Terms, Written};

/// What it costs an operation to meet a part that is not there, in ns: it stops, and its worker
/// asks the daemon and is woken by the answer. An estimate. Copies that cost less are made for any
/// part of the working set, also if it may not be touched.
const MET_NS: u64 = 100_000;

/// Turns in which a vGPU lacked nothing after which it is asked all the same what it touches, where
/// others have too few slots: it may have some that it needs no more.
const ASKED_AFTER: u64 = 32;

#[derive(Debug)]
pub(super) struct Placed {
    placement: PlacementId,
    manager: Manager,
    /// Parts that have a slot each, when their vGPU has the device.
    sets: BTreeMap<u32, WorkingSet>,
    /// Turns of each since it was asked.
    unasked: BTreeMap<u32, u64>,
    /// Those that have fewer parts than before, or are gone: their slots are theirs until somebody
    /// has time for it.
    shrunk: BTreeSet<u32>,
    /// The layout that everybody's table tells of.
    published: Option<u64>,
    /// The layout whose order of turns was told.
    ordered: Option<u64>,
    slots: usize,
    /// Writing a slot costs less than it costs an operation to meet its part.
    is_cheap: bool,
}

impl Placed {
    pub(super) fn new(terms: &Terms, placement: PlacementId) -> Self {
        let Terms { geometry, entry_ns, quantum_ns, monitor, period_ns, .. } = *terms;
        // What a quantum hides: nothing where copies are real, since the processor is the device's.
        let slot_ns = entry_ns.saturating_mul(geometry.slot_pages()).max(1);
        let hidden = if entry_ns == 0 { 0 } else { quantum_ns / slot_ns };
        let manager = Manager::new(ManagerConfig {
            placement,
            rule: Rule::Gain,
            region: geometry.slots(),
            hidden: usize::try_from(hidden).unwrap_or(usize::MAX),
            monitor,
            period_ns,
            quantum_ns,
            defers: true,
        });
        Self {
            placement,
            manager,
            sets: BTreeMap::new(),
            unasked: BTreeMap::new(),
            shrunk: BTreeSet::new(),
            published: None,
            ordered: None,
            slots: geometry.slots(),
            is_cheap: slot_ns < MET_NS,
        }
    }

    /// Gives the vGPU as many slots as it has parts in its working set.
    fn resize(&mut self, board: &mut Board, now_ns: u64, vgpu: u32) {
        let Some(set) = self.sets.get(&vgpu) else { return };
        let (key, count) = (VgpuKey(vgpu), set.len());
        // Its parts move up: none of them is where the tables say.
        board.set_lacks(vgpu, true);
        let mut steps = Vec::new();
        let resized = self.manager.resize(now_ns, key, count, &mut steps).is_ok()
            || self.manager.create(now_ns, key, count, &mut steps).is_ok();
        debug_assert!(resized, "a working set fits the region");
        self.carry_out(board, &steps);
    }

    /// Does what the plan says. What it copies for one that is brought is settled there.
    fn carry_out(&self, board: &mut Board, steps: &[Step]) {
        for step in steps {
            match *step {
                // Its private entries were written along; it asks before it runs again.
                Step::Save { vgpu, .. } => board.set_lacks(vgpu.0, true),
                Step::Copy { vgpu, part: place, slot } => {
                    let set = self.sets.get(&vgpu.0).filter(|set| self.is_brought(set, place));
                    if let Some(part) = set.and_then(|set| set.part(place)) {
                        board.copy(vgpu.0, part, slot);
                    }
                }
            }
        }
    }

    /// Whether the part at this place of a working set is brought before an operation meets it.
    /// The plan gives it its slot in any case, and leaves there what is there.
    fn is_brought(&self, set: &WorkingSet, place: usize) -> bool {
        match self.placement.brings() {
            Brings::Touched | Brings::Ahead => self.is_cheap || set.is_expected(place),
            Brings::Everything => true,
        }
    }

    /// Whether the part at this place is met, or brought before an operation meets it.
    fn is_due(&self, set: &WorkingSet, place: usize, wanted: Option<usize>) -> bool {
        self.is_brought(set, place) || (wanted.is_some() && wanted == set.part(place))
    }

    /// Gives what is about to come those of the vGPU's slots whose contents were used longest ago.
    fn arrange(&mut self, board: &Board, vgpu: u32, wanted: Option<usize>) {
        let layout = self.manager.layout();
        let slots = layout.place(VgpuKey(vgpu)).into_iter().flat_map(|place| place.slots());
        let Some(set) = self.sets.get(&vgpu) else { return };
        let held = |(place, slot): (usize, usize)| {
            let is_there = set.part(place).is_some_and(|part| board.is_in(vgpu, part, slot));
            // What an operation of this turn has windows into stays where it is.
            let is_due = self.is_due(set, place, wanted) || set.is_touched(place);
            HeldSlot { is_due, is_there, used: board.used(slot) }
        };
        let held: Vec<HeldSlot> = (0..set.len()).zip(slots).map(held).collect();
        let pairs = arrange(&held);
        if let Some(set) = self.sets.get_mut(&vgpu) {
            pairs.into_iter().for_each(|(one, other)| set.exchange(one, other));
        }
    }

    /// Writes each part of a vGPU's working set that is `wanted` or brought, and not in its slot:
    /// the plan knows slots, and not which part of the vGPU has a place. It may be another one than
    /// before.
    fn settle(&self, board: &mut Board, vgpu: u32, wanted: Option<usize>) {
        let layout = self.manager.layout();
        let slots = layout.place(VgpuKey(vgpu)).into_iter().flat_map(|place| place.slots());
        let Some(set) = self.sets.get(&vgpu) else { return };
        for (place, slot) in slots.enumerate() {
            let Some(part) = set.part(place) else { return };
            if self.is_due(set, place, wanted) && !board.is_in(vgpu, part, slot) {
                board.note_taken(vgpu);
                board.copy(vgpu, part, slot);
            }
        }
    }

    /// A turn of the vGPU is over: one that has lacked nothing for long is asked what it touches,
    /// if somebody lacks slots.
    fn note_turn(&mut self, board: &Board, vgpu: u32) {
        if !self.sets.contains_key(&vgpu) {
            return;
        }
        let turns = self.unasked.entry(vgpu).or_default();
        *turns += 1;
        let is_due = *turns >= ASKED_AFTER;
        if is_due && self.sets.values().map(WorkingSet::len).sum::<usize>() > self.slots {
            board.set_lacks(vgpu, true);
        }
    }

    /// Whether a vGPU has a place and owns all of it.
    fn has_all(&self, key: VgpuKey) -> bool {
        let table = self.manager.table();
        table.place(key).is_some() && table.lacks(key) == 0
    }

    /// The vGPU's turn begins: nobody else's slots are its own until it ends.
    fn begin(&mut self, board: &mut Board, key: VgpuKey, wanted: Option<usize>) {
        let mut steps = Vec::new();
        if self.manager.table().resident() != Some(key) {
            // Demands are those that were accepted.
            let _ = self.manager.end_turn(&mut steps);
        }
        // All of its slots are its own from here on.
        let _ = self.manager.switch_to(key, &mut steps);
        self.arrange(board, key.0, wanted);
        self.publish(board, key.0);
        self.carry_out(board, &steps);
        self.settle(board, key.0, wanted);
    }

    /// Says in a vGPU's table which slots its parts have, and in everybody's after a change of the
    /// layout.
    fn publish(&mut self, board: &mut Board, vgpu: u32) {
        let version = self.manager.version();
        if self.published.replace(version) == Some(version) {
            let place = self.manager.layout().place(VgpuKey(vgpu));
            let slots = place.into_iter().flat_map(|place| place.slots());
            self.publish_one(board, vgpu, slots);
            return;
        }
        let places = self.manager.layout().places.iter().map(|place| (place.vgpu.0, place));
        let places: BTreeMap<u32, _> = places.collect();
        for vgpu in board.vgpus() {
            let slots = places.get(&vgpu).into_iter().flat_map(|place| place.slots());
            self.publish_one(board, vgpu, slots);
        }
    }

    fn publish_one(&self, board: &mut Board, vgpu: u32, slots: impl Iterator<Item = usize>) {
        let set = self.sets.get(&vgpu);
        let parts = (0..).map_while(|place| set.and_then(|set| set.part(place)));
        board.publish(vgpu, parts.zip(slots).collect());
    }

    /// Takes what has no pages any more out of a vGPU's working set.
    fn tidy_one(&mut self, board: &mut Board, now_ns: u64, vgpu: u32) {
        let Some(set) = self.sets.get_mut(&vgpu) else { return };
        if !set.retain(|part| board.uses(vgpu, part)) {
            return;
        }
        if set.is_empty() {
            self.sets.remove(&vgpu);
            self.unasked.remove(&vgpu);
            board.forget(vgpu, |_| false);
            let mut steps = Vec::new();
            // One that never had a slot is not known.
            let _ = self.manager.destroy(now_ns, VgpuKey(vgpu), &mut steps);
            self.carry_out(board, &steps);
        } else {
            self.resize(board, now_ns, vgpu);
        }
        self.publish(board, vgpu);
    }
}

impl Dealer for Placed {
    fn make_resident(&mut self, board: &mut Board, question: Question<'_>) -> bool {
        let Question { now_ns, vgpu, wanted: Wanted { page, touched, named } } = question;
        let Some(parts) = board.parts(vgpu) else { return false };
        let wanted = board.part_met(vgpu, *page);
        if self.shrunk.remove(&vgpu) {
            self.tidy_one(board, now_ns, vgpu);
        }
        let set = self.sets.entry(vgpu).or_default();
        if wanted.is_none() {
            // The turn before is one that the look itself counts.
            let turns = self.unasked.insert(vgpu, 0).unwrap_or_default();
            set.pass(turns.saturating_sub(1));
        }
        let touched = touched.iter().filter_map(|part| usize::try_from(*part).ok());
        board.note_used(vgpu, touched.clone());
        let change = match self.placement.brings() {
            Brings::Touched | Brings::Ahead => {
                let change = set.learn(touched, wanted, self.slots);
                let named = named.iter().filter_map(|part| usize::try_from(*part).ok());
                let named = named.filter(|part| parts.contains(part));
                let is_new = wanted.is_none() && set.name(named, self.slots);
                Learned { resized: change.resized | is_new, ..change }
            }
            Brings::Everything => {
                let all = touched.chain(parts.iter().copied());
                let change = set.learn(all, wanted, self.slots);
                Learned { resized: change.resized | set.fill(parts, self.slots), ..change }
            }
        };
        // Its first operation says which part it needs.
        if !set.is_empty() {
            board.totals.replaced += u64::from(change.replaced.is_some());
            if change.resized {
                self.resize(board, now_ns, vgpu);
            }
            // It is known, and demands are those that were accepted.
            let mut steps = Vec::new();
            let _ = self.manager.wake(now_ns, VgpuKey(vgpu), &mut steps);
            self.carry_out(board, &steps);
            self.begin(board, VgpuKey(vgpu), wanted);
        }
        board.set_lacks(vgpu, false);
        change.replaced.is_some()
    }

    fn write_ahead(&mut self, board: &mut Board, holder: u32, next: &[u32]) -> Written {
        if self.placement.brings() != Brings::Ahead {
            return Written::Nothing;
        }
        if self.manager.table().resident() != Some(VgpuKey(holder)) {
            // It needed nothing, so it did not ask; or it has yet to ask, and those before it have
            // work left.
            if !self.has_all(VgpuKey(holder)) {
                return Written::NotYet;
            }
            self.begin(board, VgpuKey(holder), None);
        }
        let (mut steps, mut before) = (Vec::new(), vec![VgpuKey(holder)]);
        let is_written = next.iter().any(|next| {
            let is_written = self.manager.prefetch(VgpuKey(*next), &before, &mut steps).is_some();
            before.push(VgpuKey(*next));
            is_written
        });
        self.carry_out(board, &steps);
        if is_written { Written::Slot { ns: 0 } } else { Written::Nothing }
    }

    fn new_order(&mut self) -> Option<TurnOrder> {
        let version = self.manager.version();
        let is_new = self.ordered.replace(version) != Some(version);
        is_new.then(|| TurnOrder::of(self.manager.layout()))
    }

    fn note_shrunk(&mut self, vgpu: u32) {
        self.shrunk.insert(vgpu);
    }

    fn tidy(&mut self, board: &mut Board, now_ns: u64) {
        while let Some(vgpu) = self.shrunk.pop_first() {
            self.tidy_one(board, now_ns, vgpu);
        }
    }

    fn end_turn(&mut self, board: &mut Board, now_ns: u64, vgpu: u32, used_ns: u64) {
        let key = VgpuKey(vgpu);
        self.note_turn(board, vgpu);
        self.manager.charge(now_ns, key, used_ns);
        self.manager.rest(now_ns, key);
        let mut steps = Vec::new();
        if self.manager.table().resident() == Some(key) {
            // Nobody may have asked since, and a better layout may move it now. Demands are those
            // that were accepted.
            let _ = self.manager.end_turn(&mut steps);
        }
        let _ = self.manager.handle_timeout(now_ns, &mut steps);
        self.carry_out(board, &steps);
        self.publish(board, vgpu);
    }

    fn search(&mut self) -> Option<Search> {
        self.manager.search()
    }

    fn take(&mut self, board: &mut Board, search: &Search, found: Layout) {
        let mut steps = Vec::new();
        if self.manager.take(search, found, &mut steps).is_some() {
            self.carry_out(board, &steps);
            board.vgpus().first().into_iter().for_each(|any| self.publish(board, *any));
        }
    }

    fn users(&self) -> Vec<Vec<u32>> {
        let mut users = vec![Vec::new(); self.slots];
        for place in &self.manager.layout().places {
            place.slots().for_each(|slot| users[slot].push(place.vgpu.0));
        }
        users
    }

    #[cfg(test)]
    fn check(&self) -> Result<(), String> {
        self.manager.table().check().map_err(|broken| broken.to_string())
    }
}
