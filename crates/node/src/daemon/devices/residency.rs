//! Which parts of vGPUs' memory are in slots of a device, and the tables that say so.
//!
//! Where they lie is decided in [`weft_sched::memory`]. A part gets a slot when an operation meets
//! it for the first time; whoever has had slots of others' parts meanwhile asks for its own before
//! the first operation of its turn, when the device is its own ([`Residency::make_resident`]).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weft_device::soft::{Geometry, PhysicalTable, PrivateTable};
use weft_sched::VgpuKey;
use weft_sched::memory::{
    Manager, ManagerConfig, MonitorConfig, Pages, PlacementId, Rule, Step, WorkingSet,
};

use crate::admin::{MemoryReport, SlotReport};

/// Time between two looks at how much everybody uses, in ns (DymGPU: 20 s).
const PERIOD_NS: u64 = 20_000_000_000;

/// How a device's slots are dealt out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How its memory is divided.
    pub(crate) geometry: Geometry,
    /// Who lies where.
    pub(crate) placement: PlacementId,
    /// What a copied entry is said to take, in ns; 0 for what it takes.
    pub(crate) entry_ns: u64,
    /// A quantum of the device.
    pub(crate) quantum_ns: u64,
}

/// The slots of a device. Locked for as long as entries are copied.
#[derive(Debug)]
pub(crate) struct Residency(Mutex<Slots>);

#[derive(Debug)]
struct Slots {
    terms: Terms,
    physical: PhysicalTable,
    manager: Manager,
    members: BTreeMap<u32, Member>,
    /// Which part of whom each slot has, with entries as they are.
    has: Vec<Option<(u32, usize)>>,
    totals: Totals,
    /// For the negative control.
    #[cfg(test)]
    fault: Fault,
}

/// Which copies are not made.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Fault {
    /// All are.
    #[default]
    None,
    /// Those into the slot that is next to be copied over.
    Next,
    /// Those into this slot.
    Slot(usize),
}

/// What switches cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Totals {
    switches: u64,
    slots: u64,
    entries: u64,
    ns: u64,
    faults: u64,
    replaced: u64,
    last_slots: u64,
}

/// A vGPU with pages.
#[derive(Debug)]
struct Member {
    table: PrivateTable,
    /// Pages in use of each part, and the entries up to the last of them.
    used: BTreeMap<usize, Use>,
    /// Parts that have a slot each, when it has the device.
    set: WorkingSet,
    /// Where its parts are, as its table says.
    bases: Vec<(usize, usize)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Use {
    pages: u64,
    entries: usize,
}

impl Residency {
    /// All slots are nobody's. What the physical table has is forgotten.
    pub(crate) fn new(terms: Terms, physical: PhysicalTable) -> Self {
        let Terms { geometry, placement, entry_ns, quantum_ns } = terms;
        // What a quantum hides: nothing where copies are real, since the processor is the device's.
        let slot_ns = entry_ns.saturating_mul(geometry.slot_pages()).max(1);
        let hidden = if entry_ns == 0 { 0 } else { quantum_ns / slot_ns };
        let manager = Manager::new(ManagerConfig {
            placement,
            rule: Rule::Gain,
            region: geometry.slots(),
            hidden: usize::try_from(hidden).unwrap_or(usize::MAX),
            monitor: MonitorConfig::default(),
            period_ns: PERIOD_NS,
            quantum_ns,
            sigma_ns: None,
        });
        let (members, totals) = (BTreeMap::new(), Totals::default());
        let has = vec![None; geometry.slots()];
        Self(Mutex::new(Slots {
            terms,
            physical,
            manager,
            members,
            has,
            totals,
            #[cfg(test)]
            fault: Fault::None,
        }))
    }

    /// A panic of another thread leaves slots that are asked for again.
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A vGPU has this table. Its parts are in no slot, whatever the table says.
    pub(crate) fn add(&self, vgpu: u32, table: PrivateTable) {
        table.forget_bases();
        let (used, set, bases) = (BTreeMap::new(), WorkingSet::default(), Vec::new());
        self.lock().members.insert(vgpu, Member { table, used, set, bases });
    }

    /// A vGPU has no pages any more.
    pub(crate) fn remove(&self, now_ns: u64, vgpu: u32) {
        let mut slots = self.lock();
        if slots.members.remove(&vgpu).is_some() {
            slots.leave(now_ns, vgpu);
        }
    }

    /// Writes the entries of pages of a vGPU, in its own table and, of parts that are in their
    /// slots, in the device's.
    pub(crate) fn write(&self, now_ns: u64, vgpu: u32, runs: &[Pages], claim: u64) {
        self.lock().write(now_ns, vgpu, runs, claim);
    }

    /// Notes pages that have entries already.
    pub(crate) fn adopt(&self, vgpu: u32, run: Pages) {
        let mut slots = self.lock();
        let geometry = slots.terms.geometry;
        if let Some(member) = slots.members.get_mut(&vgpu) {
            for piece in in_parts(geometry, run) {
                member.count(&geometry, piece, 0, true);
            }
        }
    }

    /// Brings the vGPU's parts into its slots: those that it uses, and that of a page which an
    /// operation has met. How long the device is busy with it, in ns, where that is modelled.
    pub(crate) fn make_resident(
        &self,
        now_ns: u64,
        vgpu: u32,
        page: Option<u64>,
        touched: &[u64],
    ) -> u64 {
        self.lock().make_resident(now_ns, vgpu, page, touched)
    }

    /// A turn of the vGPU is over in which it used the device for so long.
    pub(crate) fn end_turn(&self, now_ns: u64, vgpu: u32, used_ns: u64) {
        let mut slots = self.lock();
        let key = VgpuKey(vgpu);
        slots.manager.charge(now_ns, key, used_ns);
        slots.manager.rest(now_ns, key);
        let mut steps = Vec::new();
        // Demands are those that were accepted.
        let _ = slots.manager.handle_timeout(now_ns, &mut steps);
        slots.carry_out(&steps);
        slots.publish();
    }

    /// Who has which slots, and what that cost.
    pub(crate) fn report(&self, name_of: impl Fn(u32) -> Option<String>) -> MemoryReport {
        self.lock().report(name_of)
    }
}

impl Member {
    /// Pages of one part, of which so many had entries, have entries now or (without a claim) none.
    fn count(&mut self, geometry: &Geometry, (first, count): Pages, had: u64, has: bool) {
        let part = geometry.part_of(first);
        let own = self.used.entry(part).or_default();
        let place = usize::try_from(first % geometry.slot_pages()).unwrap_or(0);
        let end = place + usize::try_from(count).unwrap_or(0);
        if has {
            own.pages += count - had;
            own.entries = own.entries.max(end);
        } else {
            own.pages -= had;
            // What is given back at the end shortens it.
            if own.entries <= end {
                own.entries = own.entries.min(place);
            }
        }
        if own.pages == 0 {
            self.used.remove(&part);
        }
    }
}

/// A run of pages, in pieces of one part each.
fn in_parts(geometry: Geometry, (first, count): Pages) -> impl Iterator<Item = Pages> {
    let end = first + count;
    let mut next = first;
    std::iter::from_fn(move || {
        let begin = next;
        next = geometry.pages_of(geometry.part_of(begin)).end.min(end);
        (begin < end).then(|| (begin, next - begin))
    })
}

impl Slots {
    fn write(&mut self, now_ns: u64, vgpu: u32, runs: &[Pages], claim: u64) {
        let geometry = self.terms.geometry;
        let Some(member) = self.members.get_mut(&vgpu) else { return };
        for (first, count) in runs.iter().flat_map(|run| in_parts(geometry, *run)) {
            let own = Some((vgpu, geometry.part_of(first)));
            let slot = self.has.iter().position(|has| *has == own);
            let mut had = 0;
            for page in first..first + count {
                had += u64::from(member.table.load(page) != 0);
                member.table.store(page, claim);
                if let Some(slot) = slot {
                    self.physical.store(slot, page, member.table.load(page));
                }
            }
            member.count(&geometry, (first, count), had, claim != 0);
        }
        if claim == 0 {
            self.shrink(now_ns, vgpu);
        }
    }

    /// Parts without pages need no slot.
    fn shrink(&mut self, now_ns: u64, vgpu: u32) {
        let Some(member) = self.members.get_mut(&vgpu) else { return };
        let used = &member.used;
        if !member.set.retain(|part| used.contains_key(&part)) {
            return;
        }
        match member.set.len() {
            0 => self.leave(now_ns, vgpu),
            _ => {
                self.resize(now_ns, vgpu);
                self.publish();
            }
        }
    }

    fn leave(&mut self, now_ns: u64, vgpu: u32) {
        for has in self.has.iter_mut().filter(|has| has.is_some_and(|(own, _)| own == vgpu)) {
            *has = None;
        }
        let mut steps = Vec::new();
        // One that never had a slot is not known.
        let _ = self.manager.destroy(now_ns, VgpuKey(vgpu), &mut steps);
        self.carry_out(&steps);
        self.publish();
    }

    /// Gives the vGPU as many slots as it has parts in its working set.
    fn resize(&mut self, now_ns: u64, vgpu: u32) {
        let Some(member) = self.members.get(&vgpu) else { return };
        let (key, count) = (VgpuKey(vgpu), member.set.len());
        // Its parts move up: none of them is where the tables say.
        member.table.set_lacks(true);
        let mut steps = Vec::new();
        let resized = self.manager.resize(now_ns, key, count, &mut steps).is_ok()
            || self.manager.create(now_ns, key, count, &mut steps).is_ok();
        debug_assert!(resized, "a working set fits the region");
        self.carry_out(&steps);
    }

    fn make_resident(&mut self, now_ns: u64, vgpu: u32, page: Option<u64>, touched: &[u64]) -> u64 {
        let began = Instant::now();
        let (geometry, key) = (self.terms.geometry, VgpuKey(vgpu));
        let Some(member) = self.members.get_mut(&vgpu) else { return 0 };
        let known = |part: &usize| member.used.contains_key(part);
        let touched = touched.iter().filter_map(|part| usize::try_from(*part).ok());
        let wanted = page.map(|page| geometry.part_of(page)).filter(known);
        let change = member.set.learn(touched, wanted, geometry.slots());
        if member.set.is_empty() {
            // Its first operation says which part it needs.
            member.table.set_lacks(false);
            return 0;
        }
        if change.resized {
            self.resize(now_ns, vgpu);
        }
        let mut steps = Vec::new();
        // It is known, and demands are those that were accepted.
        let _ = self.manager.wake(now_ns, key, &mut steps);
        if self.manager.table().resident() != Some(key) {
            let _ = self.manager.end_turn(&mut steps);
        }
        // All of its slots are its own from here on.
        let _ = self.manager.switch_to(key, &mut steps);
        self.publish();
        let before = self.totals;
        self.carry_out(&steps);
        if let Some(place) = change.replaced {
            self.replace(vgpu, place);
        }
        if let Some(member) = self.members.get(&vgpu) {
            member.table.set_lacks(false);
        }
        let slots = self.totals.slots - before.slots;
        let entries = self.totals.entries - before.entries;
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let totals = &mut self.totals;
        totals.faults += u64::from(page.is_some());
        totals.replaced += u64::from(change.replaced.is_some());
        if slots > 0 {
            (totals.switches, totals.last_slots) = (totals.switches + 1, slots);
        }
        totals.ns += took_ns;
        self.terms.entry_ns.saturating_mul(entries).saturating_sub(took_ns)
    }

    /// Another part has the place of one that a vGPU with more parts than slots no longer needs.
    fn replace(&mut self, vgpu: u32, place: usize) {
        let layout = self.manager.layout();
        let slot = layout.place(VgpuKey(vgpu)).and_then(|own| own.slots().nth(place));
        if let Some(slot) = slot {
            self.copy(vgpu, place, slot);
        }
    }

    /// Does what the plan says.
    fn carry_out(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                // Its private entries were written along; it asks before it runs again.
                Step::Save { vgpu, .. } => {
                    if let Some(member) = self.members.get(&vgpu.0) {
                        member.table.set_lacks(true);
                    }
                }
                Step::Copy { vgpu, part, slot } => self.copy(vgpu.0, part, slot),
            }
        }
    }

    /// Writes the entries of the part at this place of a vGPU's working set into a slot, unless
    /// they are there.
    fn copy(&mut self, vgpu: u32, place: usize, slot: usize) {
        let Some(member) = self.members.get(&vgpu) else { return };
        let Some(part) = member.set.part(place) else { return };
        if self.has.get(slot) == Some(&Some((vgpu, part))) {
            return;
        }
        #[cfg(test)]
        let held = self.has.get(slot).copied().flatten();
        // Where it was it is no longer kept as it is.
        for has in self.has.iter_mut().filter(|has| **has == Some((vgpu, part))) {
            *has = None;
        }
        if let Some(has) = self.has.get_mut(slot) {
            *has = Some((vgpu, part));
        }
        #[cfg(test)]
        if self.fault == Fault::Next && held.is_some() {
            self.fault = Fault::Slot(slot);
        }
        #[cfg(test)]
        if self.fault == Fault::Slot(slot) {
            return;
        }
        let used = member.used.get(&part).map_or(0, |used| used.entries);
        self.totals.entries += self.physical.copy(slot, part, used, &member.table) as u64;
        self.totals.slots += 1;
    }

    /// Says in everybody's table where its parts are.
    fn publish(&mut self) {
        let layout = self.manager.layout();
        for (vgpu, member) in &mut self.members {
            let slots = layout.place(VgpuKey(*vgpu)).into_iter().flat_map(|place| place.slots());
            let parts = (0..).map_while(|place| member.set.part(place));
            let bases: Vec<(usize, usize)> = parts.zip(slots).collect();
            if bases == member.bases {
                continue;
            }
            for (part, _) in &member.bases {
                member.table.set_base(*part, None);
            }
            for (part, slot) in &bases {
                member.table.set_base(*part, Some(*slot));
            }
            member.bases = bases;
        }
    }

    fn report(&self, name_of: impl Fn(u32) -> Option<String>) -> MemoryReport {
        let name_of = |key: VgpuKey| name_of(key.0).unwrap_or_else(|| format!("#{}", key.0));
        let geometry = self.terms.geometry;
        let layout = self.manager.layout();
        let owners = self.manager.table().owners();
        let slots = owners.enumerate().map(|(slot, owner)| SlotReport {
            owner: owner.map(name_of),
            users: layout.places.iter().filter(|p| p.has(slot)).map(|p| name_of(p.vgpu)).collect(),
        });
        let Totals { switches, slots: copied, entries, ns, faults, replaced, last_slots } =
            self.totals;
        MemoryReport {
            placement: self.terms.placement.name().to_owned(),
            entry_ns: self.terms.entry_ns,
            slot_bytes: geometry.slot_pages() * weft_device::PAGE,
            slots: slots.collect(),
            switches,
            copied_slots: copied,
            copied_entries: entries,
            copying_ns: ns,
            faults,
            replaced_parts: replaced,
            last_switch_slots: last_slots,
        }
    }
}

#[cfg(test)]
mod tests;
