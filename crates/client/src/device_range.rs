//! Device addresses that nothing else in the process may have.
//!
//! A device pointer must not coincide with a host pointer, or a copy between the two would be
//! guessed wrong. The node's devices use the range that the client reserved; a genuine driver
//! chooses some addresses itself (variables of modules; everything, if it is old), and those are
//! reserved here when they become known.

use std::collections::BTreeMap;
use std::sync::Mutex;

use weft_ring::{PAGE, Reservation};
use weft_wire::Status;

use crate::client::lock;

/// The range that was reserved at the start, and pages beside it.
#[derive(Debug)]
pub(crate) struct DeviceRange {
    range: Reservation,
    strays: Mutex<BTreeMap<usize, Reservation>>,
}

impl DeviceRange {
    pub(crate) fn new(range: Reservation) -> Self {
        Self { range, strays: Mutex::default() }
    }

    /// Keeps a range of device addresses from the process's other uses. Pages stay kept: a driver
    /// uses them again.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the process has host memory there.
    pub(crate) fn keep(&self, address: u64, bytes: u64) -> Result<(), Status> {
        let full = |_| Status::OUT_OF_MEMORY;
        let start = usize::try_from(address).map_err(full)? / PAGE * PAGE;
        let end = address.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
        let end = end.and_then(|end| end.checked_next_multiple_of(PAGE));
        let end = end.ok_or(Status::OUT_OF_MEMORY)?;
        let base = self.range.address();
        if base <= start && end <= base + self.range.len() {
            return Ok(());
        }
        let mut strays = lock(&self.strays);
        let mut at = start;
        while at < end {
            let held = strays.range(..=at).next_back().map(|(first, held)| first + held.len());
            if let Some(held_end) = held.filter(|held_end| *held_end > at) {
                at = held_end;
                continue;
            }
            let next = strays.range(at..).next().map_or(end, |(first, _)| end.min(*first));
            let held = Reservation::at(at, next - at).map_err(|_| Status::OUT_OF_MEMORY)?;
            strays.insert(at, held);
            at = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_beside_the_range_are_reserved_once() {
        let range = DeviceRange::new(Reservation::anywhere(1 << 20).unwrap());
        let inside = range.range.address() as u64;
        range.keep(inside, 1 << 20).unwrap();
        // A place that is free: reserved, and given up again.
        let free = Reservation::anywhere(8 * PAGE).unwrap();
        let (first, page) = (free.address() as u64, PAGE as u64);
        drop(free);
        range.keep(first + page, page).unwrap();
        range.keep(first + 3 * page + 7, 1).unwrap();
        range.keep(first, 6 * page).unwrap();
        let bytes: usize = lock(&range.strays).values().map(Reservation::len).sum();
        assert_eq!(bytes, 6 * PAGE);
        Reservation::at(usize::try_from(first).unwrap(), PAGE).unwrap_err();
    }

    #[test]
    fn host_memory_is_no_device_memory() {
        let range = DeviceRange::new(Reservation::anywhere(1 << 20).unwrap());
        let host = Box::new([0_u8; 64]);
        let address = host.as_ptr().addr() as u64;
        assert_eq!(range.keep(address, 64), Err(Status::OUT_OF_MEMORY));
    }
}
