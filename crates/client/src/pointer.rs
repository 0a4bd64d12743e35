//! Which addresses belong to what: a local shadow of all allocations.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use weft_wire::Status;

use crate::client::Client;
use crate::handle::{Context, MemPool, Module};
use crate::session::Session;

/// What an address range is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeKind {
    /// Device memory of `cuMemAlloc`.
    Device,
    /// Device memory of a pool.
    Pool(MemPool),
    /// Device memory of another process of the vGPU.
    Imported,
    /// Memory that was mapped at reserved addresses.
    Mapped,
    /// A variable of a module.
    Global(Module),
    /// Page-locked host memory in the shared window, with its `CU_MEMHOSTALLOC_*` flags.
    Pinned(u32),
    /// Managed memory: in the shared window, with its attach flags.
    Managed(u32),
    /// Memory of the application's own that it registered, with its flags.
    Registered(u32),
}

/// A live range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: RangeKind,
    /// The context it was made in.
    pub context: Context,
    /// A number that no other range of the session ever had.
    pub number: u64,
}

impl Range {
    /// Whether the memory is the device's own.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(
            self.kind,
            RangeKind::Device
                | RangeKind::Pool(_)
                | RangeKind::Imported
                | RangeKind::Mapped
                | RangeKind::Global(_)
        )
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// All live ranges by their first address.
#[derive(Debug, Default)]
pub(crate) struct Ranges(RwLock<BTreeMap<u64, Range>>);

impl Ranges {
    pub(crate) fn insert(&self, range: Range) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(range.start, range);
    }

    /// Takes out the range that starts at `start`, if `wanted`.
    pub(crate) fn remove(&self, start: u64, wanted: impl Fn(&Range) -> bool) -> Option<Range> {
        let mut ranges = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !wanted(ranges.get(&start)?) {
            return None;
        }
        ranges.remove(&start)
    }

    /// The range that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Range> {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (_, range) = ranges.range(..=address).next_back()?;
        (address < range.end()).then_some(*range)
    }

    /// Whether any range touches `start..start + bytes`.
    pub(crate) fn overlaps(&self, start: u64, bytes: u64) -> bool {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let before = ranges.range(..start.saturating_add(bytes)).next_back();
        before.is_some_and(|(_, range)| range.start.saturating_add(range.bytes) > start)
    }

    pub(crate) fn forget_context(&self, context: Context) {
        let mut ranges = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let stays = |range: &Range| !range.is_device() || range.kind == RangeKind::Mapped;
        ranges.retain(|_, range| range.context != context || stays(range));
    }

    pub(crate) fn forget_module(&self, module: Module) {
        let mut ranges = self.0.write().unwrap_or_else(PoisonError::into_inner);
        ranges.retain(|_, range| range.kind != RangeKind::Global(module));
    }
}

impl Client {
    /// The live allocation that holds `address`, for `cuPointerGetAttribute` and the generic
    /// copies.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the address belongs to no allocation: ordinary pageable memory.
    pub fn pointer_range(&self, address: u64) -> Result<Range, Status> {
        self.ranges.find(address).ok_or(Status::INVALID_VALUE)
    }

    /// Start and length of the device allocation that holds `address`.
    ///
    /// # Errors
    /// `NOT_FOUND` when no allocation holds it.
    pub fn address_range(&self, address: u64) -> Result<(u64, u64), Status> {
        let range = self.ranges.find(address);
        range.map(|range| (range.start, range.bytes)).ok_or(Status::NOT_FOUND)
    }

    /// Whether a generic copy must treat `address` as a device address.
    #[must_use]
    pub fn is_device_address(&self, address: u64) -> bool {
        self.ranges.find(address).is_some_and(|range| range.is_device())
    }

    /// Checks that `address..address + bytes` can be used by the session's device.
    pub(crate) fn check_device_span(
        &self,
        session: &Session,
        address: u64,
        bytes: u64,
    ) -> Result<(), Status> {
        if bytes == 0 {
            return Ok(());
        }
        let end = address.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
        let own = |range: &Range| range.context.ordinal() == session.ordinal;
        let mut range = self.ranges.find(address).filter(own).ok_or(Status::INVALID_VALUE)?;
        // Mappings that touch are as good as one.
        while range.end() < end {
            let joined = |range: &Range| range.kind == RangeKind::Mapped;
            let next = self.ranges.find(range.end()).filter(|next| joined(next) && own(next));
            range = next.filter(|_| joined(&range)).ok_or(Status::INVALID_VALUE)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, bytes: u64) -> Range {
        let context = Context::from_raw(1);
        Range { start, bytes, kind: RangeKind::Device, context, number: start }
    }

    #[test]
    fn an_address_finds_its_range_only() {
        let ranges = Ranges::default();
        ranges.insert(range(0x1000, 600));
        ranges.insert(range(0x3000, 512));
        assert_eq!(ranges.find(0xfff), None);
        assert_eq!(ranges.find(0x1000), Some(range(0x1000, 600)));
        assert_eq!(ranges.find(0x1257), Some(range(0x1000, 600)));
        assert_eq!(ranges.find(0x1258), None);
        assert_eq!(ranges.remove(0x1001, |_| true), None);
        assert!(ranges.overlaps(0x0fff, 2) && !ranges.overlaps(0x0fff, 1));
        assert!(ranges.overlaps(0x1257, 1) && !ranges.overlaps(0x1258, 1));
        assert!(ranges.remove(0x1000, Range::is_device).is_some());
        assert_eq!(ranges.find(0x1000), None);
    }
}
