//! Managed memory: one address for the program and the device, and slots like any other memory.
//!
//! Its bytes lie behind the pinned window, in a file that tenant and worker share and that is never
//! anybody else's. For each page the vGPU has a frame: it is paid for, entries of it are written at
//! switches, and an operation that meets it has its part brought into a slot. No byte of the frame
//! is ever used.

use super::{Allocation, Kind, Memory};
use crate::{DeviceError, PAGE};

impl Memory {
    /// Where the bytes at `address` lie, if managed memory may be there.
    pub(super) fn managed(&self, address: u64) -> Option<*mut u8> {
        self.host.as_ref()?.managed(address)
    }

    /// Makes whole pages behind the pinned window managed memory.
    ///
    /// # Errors
    /// As [`crate::Device::manage`].
    pub(crate) fn manage(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let bad = DeviceError::BadRange { address, bytes };
        let is_whole = [address, bytes].iter().all(|x| x.is_multiple_of(PAGE)) && bytes > 0;
        let end = address.checked_add(bytes).filter(|_| is_whole).ok_or_else(|| bad.clone())?;
        let is_inside = self.managed(address).is_some() && self.managed(end - 1).is_some();
        let before = self.allocations.range(..end).next_back();
        let is_free = before.is_none_or(|(start, own)| start + own.pages * PAGE <= address);
        if !is_inside || !is_free {
            return Err(bad);
        }
        let pages = bytes / PAGE;
        if bytes > self.source.usage().total {
            return Err(DeviceError::OutOfMemory { requested: bytes });
        }
        let runs = self.source.take(pages)?;
        self.map(address, bytes, &runs);
        self.allocations.insert(address, Allocation { bytes, pages, runs, kind: Kind::Managed });
        Ok(())
    }

    /// What is there of it is going to be used: its parts are among those that were.
    pub(crate) fn expect(&self, address: u64, bytes: u64) {
        for page in address / PAGE..address.saturating_add(bytes).div_ceil(PAGE) {
            let entry = self.table.chunk(page).and_then(|chunk| chunk.get(page));
            match entry {
                Some(entry) => self.touch(entry.frame),
                None => return,
            }
        }
    }
}
