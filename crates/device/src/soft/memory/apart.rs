//! Virtual memory management: addresses without memory, and memory without addresses.

use std::collections::BTreeMap;

use super::Memory;
use super::table::Entry;
use crate::{DeviceError, FrameRun, PAGE, VirtualMemory};

/// Memory that was taken without addresses.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) runs: Vec<FrameRun>,
    bytes: u64,
    /// At how many addresses it is mapped.
    mappings: u64,
    /// Given back as soon as it is mapped nowhere.
    released: bool,
}

#[derive(Debug)]
struct Mapping {
    memory: u64,
    bytes: u64,
}

/// What of a session's addresses and memory were taken apart from each other.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// Bytes of reserved addresses, by the first one. A page behind them is nobody's.
    reserved: BTreeMap<u64, u64>,
    physical: BTreeMap<u64, Physical>,
    mapped: BTreeMap<u64, Mapping>,
    next: u64,
}

impl Apart {
    /// Whether memory is mapped at all of these addresses, in one mapping or several.
    pub(super) fn contains(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        loop {
            let below = self.mapped.range(..=at).next_back();
            match below.map(|(start, mapping)| start + mapping.bytes) {
                Some(next) if next >= end && next > at => return true,
                Some(next) if next > at => at = next,
                _ => return false,
            }
        }
    }

    /// The frames of all memory that was taken, by its number.
    pub(super) fn frames(&self) -> impl Iterator<Item = (u64, &[FrameRun])> {
        self.physical.iter().map(|(memory, physical)| (*memory, physical.runs.as_slice()))
    }

    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let below = self.reserved.range(..=address).next_back();
        let within = |(start, length): (&u64, &u64)| {
            let offset = address - start;
            offset <= *length && bytes <= length - offset
        };
        below.is_some_and(within)
    }

    fn touches(&self, address: u64, bytes: u64) -> bool {
        let below = self.mapped.range(..address.saturating_add(bytes)).next_back();
        below.is_some_and(|(start, mapping)| start + mapping.bytes > address)
    }
}

impl VirtualMemory for Memory {
    fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64, DeviceError> {
        let full = || DeviceError::OutOfMemory { requested: bytes };
        let alignment = alignment.max(PAGE);
        let guarded = bytes.checked_add(PAGE).ok_or_else(full)?;
        let reach = guarded.checked_add(alignment).ok_or_else(full)?;
        let start = self.space.take(reach).ok_or_else(full)?;
        let address = start.next_multiple_of(alignment);
        if address > start {
            self.space.give_back(start, address - start);
        }
        self.space.give_back(address + guarded, start + reach - address - guarded);
        self.apart.reserved.insert(address, bytes);
        Ok(address)
    }

    fn unreserve(&mut self, address: u64) -> Result<(), DeviceError> {
        let unknown = DeviceError::NotAnAllocation { address };
        let bytes = self.apart.reserved.get(&address).copied().ok_or(unknown)?;
        if self.apart.touches(address, bytes) {
            return Err(DeviceError::Refused("memory is mapped there".to_owned()));
        }
        self.apart.reserved.remove(&address);
        self.space.give_back(address, bytes + PAGE);
        Ok(())
    }

    fn create(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        if bytes > self.source.usage().total {
            return Err(DeviceError::OutOfMemory { requested: bytes });
        }
        let runs = self.source.take(bytes.div_ceil(PAGE))?;
        self.apart.next += 1;
        let physical = Physical { runs, bytes, mappings: 0, released: false };
        self.apart.physical.insert(self.apart.next, physical);
        Ok(self.apart.next)
    }

    fn release(&mut self, memory: u64) -> Result<(), DeviceError> {
        let physical = self.apart.physical.get_mut(&memory).filter(|p| !p.released);
        let unknown = DeviceError::NotAnAllocation { address: memory };
        physical.ok_or(unknown)?.released = true;
        self.forget_unused(memory);
        Ok(())
    }

    fn map_memory(&mut self, address: u64, memory: u64) -> Result<(), DeviceError> {
        let physical = self.apart.physical.get(&memory).filter(|p| !p.released);
        let physical = physical.ok_or(DeviceError::NotAnAllocation { address: memory })?;
        let bytes = physical.bytes;
        let fits = address.is_multiple_of(PAGE) && self.apart.is_reserved(address, bytes);
        if !fits || self.apart.touches(address, bytes) {
            return Err(DeviceError::BadRange { address, bytes });
        }
        let frames = physical.runs.iter().flat_map(FrameRun::frames);
        for (page, frame) in (address / PAGE..).zip(frames) {
            self.table.set(page, Entry { frame, bytes: PAGE });
        }
        self.apart.mapped.insert(address, Mapping { memory, bytes });
        if let Some(physical) = self.apart.physical.get_mut(&memory) {
            physical.mappings += 1;
        }
        Ok(())
    }

    fn unmap_memory(&mut self, address: u64) -> Result<(), DeviceError> {
        let unknown = DeviceError::NotAnAllocation { address };
        let Mapping { memory, bytes } = self.apart.mapped.remove(&address).ok_or(unknown)?;
        self.table.clear(address / PAGE, bytes / PAGE);
        self.generation += 1;
        if let Some(physical) = self.apart.physical.get_mut(&memory) {
            physical.mappings -= 1;
        }
        self.forget_unused(memory);
        Ok(())
    }
}

impl Memory {
    /// Gives memory back that was released and is mapped nowhere.
    fn forget_unused(&mut self, memory: u64) {
        let unused = |physical: &Physical| physical.released && physical.mappings == 0;
        if self.apart.physical.get(&memory).is_some_and(unused)
            && let Some(physical) = self.apart.physical.remove(&memory)
        {
            for run in &physical.runs {
                self.store.clear(*run);
            }
            self.source.give_back(&physical.runs);
        }
    }

    /// Gives all of it back, mapped or not.
    pub(super) fn forget_apart(&mut self) {
        for (_, physical) in std::mem::take(&mut self.apart.physical) {
            for run in &physical.runs {
                self.store.clear(*run);
            }
            self.source.give_back(&physical.runs);
        }
    }

    /// Its frames are other ones from now on.
    pub(super) fn go_apart(&mut self, mut frames: BTreeMap<u64, Vec<FrameRun>>) {
        for (memory, physical) in &mut self.apart.physical {
            physical.runs = frames.remove(memory).unwrap_or_default();
        }
        for (address, mapping) in &self.apart.mapped {
            let Some(physical) = self.apart.physical.get(&mapping.memory) else { continue };
            self.table.clear(address / PAGE, mapping.bytes / PAGE);
            let frames = physical.runs.iter().flat_map(FrameRun::frames);
            for (page, frame) in (address / PAGE..).zip(frames) {
                self.table.set(page, Entry { frame, bytes: PAGE });
            }
        }
    }
}
