//! The tables of a device's slots, and what is in them.

use std::collections::BTreeMap;

use weft_device::PAGE;
use weft_device::soft::{Geometry, PhysicalTable, PrivateTable};
use weft_sched::memory::Pages;

use crate::admin::{LastSwitch, MemoryReport, SlotReport, VgpuMemoryReport};

/// Tables of a device and its vGPUs, with what each slot has. Decides nothing.
#[derive(Debug)]
pub(super) struct Board {
    geometry: Geometry,
    physical: PhysicalTable,
    members: BTreeMap<u32, Member>,
    /// Which part of whom each slot has, with entries as they are.
    has: Vec<Option<(u32, usize)>>,
    /// The look at which what a slot has was used last; nothing was at 0.
    used: Vec<u64>,
    /// Questions so far.
    looks: u64,
    pub(super) totals: Totals,
    /// The switch that goes on, or the last one that copied anything.
    switch: Switch,
    last: Switch,
    /// What is copied now is nobody's switch: somebody else has the device. Entries of that.
    is_ahead: bool,
    ahead_entries: u64,
    /// For the negative control.
    #[cfg(test)]
    pub(super) fault: Fault,
}

/// Which copies are not made.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Fault {
    /// All are.
    #[default]
    None,
    /// Those into the slot that is next to be copied over.
    Next,
    /// Those into this slot.
    Slot(usize),
    /// All are until the daemon is killed: at the point before which there are so many others.
    Kill(u32),
}

/// What a thread of the daemon ends with that is killed at a point.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Killed;

/// What switches cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    switches: u64,
    slots: u64,
    pub(super) entries: u64,
    ns: u64,
    faults: u64,
    pub(super) replaced: u64,
    ahead: u64,
}

/// What a switch copied.
#[derive(Debug, Clone, Default)]
struct Switch {
    vgpu: u32,
    slots: Vec<usize>,
    entries: u64,
    ns: u64,
}

/// A vGPU with pages.
#[derive(Debug)]
struct Member {
    table: PrivateTable,
    /// Pages in use of each part, and the entries up to the last of them.
    used: BTreeMap<usize, Use>,
    /// The slots that its parts have. Its table names those that have the part.
    bases: BTreeMap<usize, usize>,
    /// Entries written for it while others had the device.
    ahead_entries: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Use {
    pages: u64,
    entries: usize,
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

impl Board {
    pub(super) fn new(geometry: Geometry, physical: PhysicalTable) -> Self {
        Self {
            geometry,
            physical,
            members: BTreeMap::new(),
            has: vec![None; geometry.slots()],
            used: vec![0; geometry.slots()],
            looks: 0,
            totals: Totals::default(),
            switch: Switch::default(),
            last: Switch::default(),
            is_ahead: false,
            ahead_entries: 0,
            #[cfg(test)]
            fault: Fault::None,
        }
    }

    pub(super) fn add(&mut self, vgpu: u32, table: PrivateTable) {
        table.forget_bases();
        let (used, bases) = (BTreeMap::new(), BTreeMap::new());
        self.members.insert(vgpu, Member { table, used, bases, ahead_entries: 0 });
    }

    /// Whether it was there. Slots have nothing of it from here on.
    pub(super) fn remove(&mut self, vgpu: u32) -> bool {
        self.forget(vgpu, |_| false);
        self.members.remove(&vgpu).is_some()
    }

    /// Whether a vGPU has pages in a part.
    pub(super) fn uses(&self, vgpu: u32, part: usize) -> bool {
        self.members.get(&vgpu).is_some_and(|member| member.used.contains_key(&part))
    }

    /// The parts that a vGPU has pages in; `None` of one that is not known.
    pub(super) fn parts(&self, vgpu: u32) -> Option<Vec<usize>> {
        self.members.get(&vgpu).map(|member| member.used.keys().copied().collect())
    }

    /// The part of a page, if the vGPU has pages in it.
    pub(super) fn part_met(&self, vgpu: u32, page: Option<u64>) -> Option<usize> {
        page.map(|page| self.geometry.part_of(page)).filter(|part| self.uses(vgpu, *part))
    }

    /// Says whether slots of the vGPU have entries of others.
    pub(super) fn set_lacks(&self, vgpu: u32, lacks: bool) {
        if let Some(member) = self.members.get(&vgpu) {
            member.table.set_lacks(lacks);
        }
    }

    /// Says that slots of the vGPU are about to be written over, though it has not to ask for them
    /// before it runs.
    pub(super) fn note_taken(&self, vgpu: u32) {
        if let Some(member) = self.members.get(&vgpu) {
            member.table.note_taken();
        }
    }

    pub(super) fn write(&mut self, vgpu: u32, runs: &[Pages], claim: u64) {
        let geometry = self.geometry;
        let Some(member) = self.members.get_mut(&vgpu) else { return };
        // What had entries may have been translated by whoever imported it, before and until now.
        let mut pages = runs.iter().flat_map(|(first, count)| *first..first + count);
        let is_changed = pages.any(|page| member.table.load(page) != 0);
        if is_changed {
            member.table.note_taken();
        }
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
        if is_changed {
            member.table.note_taken();
        }
    }

    /// Notes pages that have entries already.
    pub(super) fn adopt(&mut self, vgpu: u32, run: Pages) {
        let geometry = self.geometry;
        if let Some(member) = self.members.get_mut(&vgpu) {
            for piece in in_parts(geometry, run) {
                member.count(&geometry, piece, 0, true);
            }
        }
    }

    /// Writes the entries of a part of a vGPU into a slot, unless they are there.
    pub(super) fn copy(&mut self, vgpu: u32, part: usize, slot: usize) {
        if self.is_in(vgpu, part, slot) || !self.members.contains_key(&vgpu) {
            return;
        }
        self.pass_point();
        // Where it was, its entries are not kept any more, and here those of another are not.
        self.forget(vgpu, |own| own != part);
        let other = self.has.get_mut(slot).and_then(|has| has.replace((vgpu, part)));
        if let Some(used) = self.used.get_mut(slot) {
            *used = self.looks;
        }
        self.pass_point();
        if let Some((other, lost)) = other {
            self.retract(other, lost);
        }
        self.pass_point();
        if !self.is_skipped(slot, other.is_some()) {
            self.copy_entries(vgpu, part, slot);
        }
        self.pass_point();
        let Some(member) = self.members.get(&vgpu) else { return };
        if member.bases.get(&part) == Some(&slot) {
            member.table.set_base(part, Some(slot));
        }
        self.pass_point();
    }

    /// A point at which a test kills the daemon: one after another of what is written for workers
    /// to read is before it, and the rest is not.
    #[cfg(test)]
    fn pass_point(&mut self) {
        if let Fault::Kill(points) = &mut self.fault {
            match points.checked_sub(1) {
                Some(left) => *points = left,
                None => std::panic::resume_unwind(Box::new(Killed)),
            }
        }
    }

    #[cfg(not(test))]
    const fn pass_point(&self) {}

    /// Takes over what another board noted of its slots, which nobody may of a dead daemon's.
    #[cfg(test)]
    pub(super) fn believe(&mut self, dead: &Self) {
        self.has.clone_from(&dead.has);
    }

    /// The same between any two entries that a switch writes.
    #[cfg(test)]
    fn pass_entries(&mut self, vgpu: u32, part: usize, slot: usize) {
        let Some(table) = self.members.get(&vgpu).map(|member| member.table.clone()) else {
            return;
        };
        if let Fault::Kill(_) = self.fault {
            for page in self.geometry.pages_of(part) {
                self.physical.store(slot, page, table.load(page));
                self.pass_point();
            }
        }
    }

    #[cfg(not(test))]
    const fn pass_entries(&self, _vgpu: u32, _part: usize, _slot: usize) {}

    /// Whether a copy into a slot, in which something was or not, is not to be made.
    #[cfg(test)]
    fn is_skipped(&mut self, slot: usize, held: bool) -> bool {
        if self.fault == Fault::Next && held {
            self.fault = Fault::Slot(slot);
        }
        self.fault == Fault::Slot(slot)
    }

    #[cfg(not(test))]
    const fn is_skipped(&self, _slot: usize, _held: bool) -> bool {
        false
    }

    fn copy_entries(&mut self, vgpu: u32, part: usize, slot: usize) {
        self.pass_entries(vgpu, part, slot);
        let Some(member) = self.members.get_mut(&vgpu) else { return };
        let used = member.used.get(&part).map_or(0, |used| used.entries);
        let entries = self.physical.copy(slot, part, used, &member.table) as u64;
        if self.is_ahead {
            self.totals.ahead += 1;
            self.ahead_entries += entries;
            member.ahead_entries += entries;
            return;
        }
        self.totals.entries += entries;
        self.totals.slots += 1;
        self.switch.entries += entries;
        self.switch.slots.push(slot);
    }

    /// Slots have nothing of a vGPU's parts but of those that it keeps.
    pub(super) fn forget(&mut self, vgpu: u32, keep: impl Fn(usize) -> bool) {
        let gone = |has: &(u32, usize)| has.0 == vgpu && !keep(has.1);
        let lost: Vec<_> =
            self.has.iter_mut().filter_map(|has| has.take_if(|has| gone(has))).collect();
        for (_, part) in lost {
            self.retract(vgpu, part);
        }
    }

    /// A part is in no slot: what is left of it there is not written along any more, so nobody is
    /// to find it.
    fn retract(&self, vgpu: u32, part: usize) {
        let Some(member) = self.members.get(&vgpu) else { return };
        member.table.note_taken();
        member.table.set_base(part, None);
    }

    /// Says which slots a vGPU's parts have. Its table names a slot for as long as the part is
    /// there: it may be brought later, or never.
    pub(super) fn publish(&mut self, vgpu: u32, bases: BTreeMap<usize, usize>) {
        let has = &self.has;
        let Some(member) = self.members.get_mut(&vgpu).filter(|own| own.bases != bases) else {
            return;
        };
        for part in member.bases.keys().filter(|part| !bases.contains_key(part)) {
            member.table.set_base(*part, None);
        }
        for (part, slot) in &bases {
            let is_there = has.get(*slot) == Some(&Some((vgpu, *part)));
            member.table.set_base(*part, is_there.then_some(*slot));
        }
        member.bases = bases;
        self.pass_point();
    }

    /// Notes that these parts of a vGPU were used, where they are in slots.
    pub(super) fn note_used(&mut self, vgpu: u32, parts: impl Iterator<Item = usize>) {
        let Some(member) = self.members.get(&vgpu) else { return };
        for (part, slot) in parts.filter_map(|part| Some((part, *member.bases.get(&part)?))) {
            if self.has.get(slot) == Some(&Some((vgpu, part))) {
                self.used[slot] = self.looks;
            }
        }
    }

    /// When what a slot has was used last, or written there for somebody to use.
    pub(super) fn used(&self, slot: usize) -> u64 {
        self.used.get(slot).copied().unwrap_or_default()
    }

    /// Whether a slot has this part of the vGPU.
    pub(super) fn is_in(&self, vgpu: u32, part: usize, slot: usize) -> bool {
        self.has.get(slot) == Some(&Some((vgpu, part)))
    }

    /// The vGPUs that there are.
    pub(super) fn vgpus(&self) -> Vec<u32> {
        self.members.keys().copied().collect()
    }

    /// What is copied from here on is the vGPU's switch. Entries that were written for it since
    /// the last one, while others had the device.
    pub(super) fn begin_switch(&mut self, vgpu: u32) -> u64 {
        self.looks += 1;
        self.switch = Switch { vgpu, ..Switch::default() };
        self.members.get_mut(&vgpu).map_or(0, |member| std::mem::take(&mut member.ahead_entries))
    }

    /// What `write` copies is written ahead of a switch; how many entries that are.
    pub(super) fn ahead<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> (T, u64) {
        (self.is_ahead, self.ahead_entries) = (true, 0);
        let result = write(self);
        self.is_ahead = false;
        (result, self.ahead_entries)
    }

    /// A switch is over.
    pub(super) fn end_switch(&mut self, met: bool, took_ns: u64) {
        let totals = &mut self.totals;
        totals.faults += u64::from(met);
        totals.ns += took_ns;
        if !self.switch.slots.is_empty() {
            totals.switches += 1;
            self.last = Switch { ns: took_ns, ..std::mem::take(&mut self.switch) };
        }
    }

    /// What there is to say, but for how slots are dealt out.
    pub(super) fn report(
        &self,
        users: &[Vec<u32>],
        name_of: impl Fn(u32) -> String,
    ) -> MemoryReport {
        let slots = self.has.iter().zip(users).enumerate().map(|(slot, (has, users))| SlotReport {
            owner: has.map(|(vgpu, _)| name_of(vgpu)),
            part: has.map(|(_, part)| part as u64),
            users: users.iter().map(|vgpu| name_of(*vgpu)).collect(),
            copied: self.last.slots.contains(&slot),
        });
        let Totals { switches, slots: copied, entries, ns, faults, replaced, ahead } = self.totals;
        let last_switch = (!self.last.slots.is_empty()).then(|| LastSwitch {
            vgpu: name_of(self.last.vgpu),
            slots: self.last.slots.len() as u64,
            entries: self.last.entries,
            ns: self.last.ns,
            ..LastSwitch::default()
        });
        MemoryReport {
            slot_bytes: self.geometry.slot_pages() * PAGE,
            slots: slots.collect(),
            vgpus: self.members.iter().map(|(key, own)| self.of(*key, own, &name_of)).collect(),
            switches,
            copied_slots: copied,
            copied_entries: entries,
            copying_ns: ns,
            faults,
            replaced_parts: replaced,
            ahead_slots: ahead,
            last_switch_slots: self.last.slots.len() as u64,
            last_switch,
            ..MemoryReport::default()
        }
    }

    fn of(&self, key: u32, own: &Member, name_of: impl Fn(u32) -> String) -> VgpuMemoryReport {
        let in_slots = |part: &usize| self.has.contains(&Some((key, *part)));
        let pages = |parts: &mut dyn Iterator<Item = (&usize, &Use)>| -> u64 {
            parts.map(|(_, used)| used.pages * PAGE).sum()
        };
        VgpuMemoryReport {
            name: name_of(key),
            parts: own.used.len() as u64,
            used_bytes: pages(&mut own.used.iter()),
            resident_bytes: pages(&mut own.used.iter().filter(|(part, _)| in_slots(part))),
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
