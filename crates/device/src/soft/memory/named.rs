//! Which of a vGPU's memory an operation names.
//!
//! A launch's arguments that are addresses say where an allocation is used from on, and not how
//! much of it: all that follows is named. Who learns from this holds it against what was touched.

use super::{Geometry, Memory};
use crate::{CopyShape, Endpoint, Fill, Launch, Op, PAGE, Place};

impl Memory {
    /// The parts that an operation names, each once, in rising order; none where they are more than
    /// the device has slots for.
    pub(super) fn named(&self, geometry: &Geometry, op: &Op) -> Vec<u64> {
        let mut parts = match op {
            Op::Launch(launch) => self.of_arguments(geometry, launch),
            Op::Copy { dst, src, shape } => {
                let sides = [dst, src].into_iter().filter_map(|end| reach(end, shape));
                sides.flat_map(|(start, end)| self.parts_in(geometry, start, end)).collect()
            }
            Op::Fill(fill) => self.parts_in(geometry, fill.address, end_of(fill)).collect(),
        };
        parts.sort_unstable();
        parts.dedup();
        if parts.len() > geometry.slots() { Vec::new() } else { parts }
    }

    fn of_arguments(&self, geometry: &Geometry, launch: &Launch) -> Vec<u64> {
        let (words, _) = launch.params.as_chunks::<8>();
        let addresses = words.iter().map(|word| u64::from_le_bytes(*word));
        let ranges = addresses.filter_map(|address| Some((address, self.end_at(address)?)));
        ranges.flat_map(|(start, end)| self.parts_in(geometry, start, end)).collect()
    }

    /// Where the allocation ends that an address lies in, or its page if it is mapped alone.
    fn end_at(&self, address: u64) -> Option<u64> {
        let (start, own) = self.allocations.range(..=address).next_back()?;
        let end = start + own.pages * PAGE;
        if address < end {
            return Some(end);
        }
        let page = address / PAGE;
        self.table.chunk(page)?.get(page).map(|_| (page + 1) * PAGE)
    }

    /// The parts of the pages from one address to another. A part's pages lie together, but for
    /// what was allocated in pieces: then a part may be passed over.
    fn parts_in(&self, geometry: &Geometry, start: u64, end: u64) -> impl Iterator<Item = u64> {
        let (mut page, last) = (start / PAGE, end.div_ceil(PAGE));
        let (slot_pages, slots) = (geometry.slot_pages(), geometry.slots());
        let next = move || {
            let frame = self.table.chunk(page).filter(|_| page < last)?.get(page)?.frame;
            page += slot_pages - frame % slot_pages;
            Some(frame / slot_pages)
        };
        // One more than there are slots says that they are too many.
        std::iter::from_fn(next).take(slots + 1)
    }
}

/// From where to where one side of a copy reaches, if it is on the device.
fn reach(end: &Endpoint, shape: &CopyShape) -> Option<(u64, u64)> {
    let Place::Device(address) = end.place else { return None };
    let rows = end.pitch.saturating_mul(shape.height.saturating_sub(1));
    let slices = end.slice.saturating_mul(shape.depth.saturating_sub(1));
    Some((address, address.saturating_add(rows).saturating_add(slices).saturating_add(shape.width)))
}

fn end_of(fill: &Fill) -> u64 {
    let rows = fill.pitch.saturating_mul(fill.height.saturating_sub(1));
    let row = fill.width.saturating_mul(u64::from(fill.element));
    fill.address.saturating_add(rows).saturating_add(row)
}
