//! What a tenant has taken of its window: the only part of it that commands and kernels may use.
//!
//! The node pays for a page that its worker touches first, so no page is touched that was not
//! granted. What was given back counts until the work that may still use it has ended and its pages
//! are the system's again.

use std::collections::BTreeMap;

use weft_device::PAGE;
use weft_wire::Status;

/// Ranges of the window by their first address; whole pages that never overlap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges {
    /// What may be pinned in all, in bytes.
    granted: u64,
    taken: BTreeMap<u64, Range>,
    /// Given back, but perhaps still in use: first address and bytes.
    leaving: Vec<(u64, u64)>,
    /// Where pages lie that are the tenant's own, by the tenant's address.
    own: BTreeMap<u64, u64>,
    /// Bytes of what is pinned, and of what is leaving.
    pinned_bytes: u64,
    leaving_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    bytes: u64,
    /// Paid for as device memory.
    is_managed: bool,
}

impl Ranges {
    /// Whether all of it was taken at once.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        self.around(address).is_some_and(|(start, range)| {
            let offset = address - start;
            offset < range.bytes && bytes <= range.bytes - offset
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.taken.len() + self.leaving.len() + self.own.len()
    }

    /// Host memory that the tenant may have touched by its worker, in bytes.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes + self.leaving_bytes
    }

    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// So much may be pinned in all.
    pub(crate) fn grant(&mut self, bytes: u64) -> Result<(), Status> {
        if bytes < self.pinned_bytes {
            return Err(Status::INVALID_VALUE);
        }
        self.granted = bytes;
        Ok(())
    }

    /// Takes a range, out of what was granted.
    pub(crate) fn pin(&mut self, address: u64, bytes: u64) -> Result<(), Status> {
        self.check_free(address, bytes)?;
        if bytes > self.granted.saturating_sub(self.pinned_bytes()) {
            return Err(Status::OUT_OF_MEMORY);
        }
        self.taken.insert(address, Range { bytes, is_managed: false });
        self.pinned_bytes += bytes;
        Ok(())
    }

    /// Gives such a range back; its bytes.
    pub(crate) fn unpin(&mut self, address: u64) -> Result<u64, Status> {
        let range = self.taken.get(&address).filter(|range| !range.is_managed).copied();
        let bytes = range.ok_or(Status::INVALID_VALUE)?.bytes;
        self.taken.remove(&address);
        self.leaving.push((address, bytes));
        self.pinned_bytes -= bytes;
        self.leaving_bytes += bytes;
        Ok(bytes)
    }

    /// Takes a range that the device pays for.
    pub(crate) fn manage(&mut self, address: u64, bytes: u64) -> Result<(), Status> {
        self.check_free(address, bytes)?;
        self.taken.insert(address, Range { bytes, is_managed: true });
        Ok(())
    }

    /// Gives that back.
    pub(crate) fn unmanage(&mut self, address: u64) -> Result<u64, Status> {
        if !self.is_managed(address) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(self.taken.remove(&address).map_or(0, |range| range.bytes))
    }

    /// Whether a managed range begins there.
    pub(crate) fn is_managed(&self, address: u64) -> bool {
        self.taken.get(&address).is_some_and(|range| range.is_managed)
    }

    /// A taken range is the tenant's own pages from `host` on.
    pub(crate) fn set_own(&mut self, host: u64, address: u64) {
        self.own.insert(host, address);
    }

    /// They are no longer; where they lay.
    pub(crate) fn end_own(&mut self, host: u64) -> Option<u64> {
        self.own.remove(&host)
    }

    /// Nothing uses any more what was given back so far.
    pub(crate) fn take_leaving(&mut self) -> Vec<(u64, u64)> {
        self.leaving_bytes = 0;
        std::mem::take(&mut self.leaving)
    }

    fn around(&self, address: u64) -> Option<(u64, Range)> {
        self.taken.range(..=address).next_back().map(|(start, range)| (*start, *range))
    }

    /// Whole pages of which none is taken or leaving.
    fn check_free(&self, address: u64, bytes: u64) -> Result<(), Status> {
        let is_whole = [address, bytes].iter().all(|x| x.is_multiple_of(PAGE)) && bytes > 0;
        let end = address.checked_add(bytes).filter(|_| is_whole).ok_or(Status::INVALID_VALUE)?;
        let before = self.around(end - 1);
        let is_taken = before.is_some_and(|(start, range)| start + range.bytes > address);
        let overlaps = |&(start, bytes): &(u64, u64)| start < end && address < start + bytes;
        if is_taken || self.leaving.iter().any(overlaps) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2000_0000_0000;

    #[test]
    fn only_what_was_taken_is_there_and_never_more_than_was_granted() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.pin(BASE, PAGE), Err(Status::OUT_OF_MEMORY));
        ranges.grant(4 * PAGE).unwrap();
        ranges.pin(BASE + PAGE, 2 * PAGE).unwrap();
        for (at, bytes) in [(0, 2 * PAGE), (PAGE, PAGE), (2 * PAGE, 2 * PAGE), (0, 4 * PAGE)] {
            assert_eq!(ranges.pin(BASE + at, bytes), Err(Status::INVALID_VALUE), "{at} {bytes}");
        }
        for (at, bytes) in [(0, 0), (8, PAGE), (0, 8), (!BASE & !(PAGE - 1), PAGE)] {
            assert!(ranges.pin(BASE + at, bytes).is_err(), "{at} {bytes}");
        }
        assert_eq!(ranges.pin(BASE + 4 * PAGE, 3 * PAGE), Err(Status::OUT_OF_MEMORY));
        assert!(ranges.contains(BASE + PAGE, 2 * PAGE) && ranges.contains(BASE + PAGE + 8, 0));
        for (at, bytes) in [(0, PAGE), (PAGE - 1, 2), (2 * PAGE, PAGE + 1), (3 * PAGE, 0)] {
            assert!(!ranges.contains(BASE + at, bytes), "{at} {bytes}");
        }
        assert_eq!(ranges.grant(PAGE), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn what_is_given_back_counts_until_nothing_uses_it() {
        let mut ranges = Ranges::default();
        ranges.grant(4 * PAGE).unwrap();
        ranges.pin(BASE, 3 * PAGE).unwrap();
        assert_eq!(ranges.unpin(BASE), Ok(3 * PAGE));
        assert_eq!(ranges.unpin(BASE), Err(Status::INVALID_VALUE));
        assert!(!ranges.contains(BASE, 1) && ranges.is_leaving());
        assert_eq!(ranges.pin(BASE + 4 * PAGE, 2 * PAGE), Err(Status::OUT_OF_MEMORY));
        assert_eq!(ranges.pin(BASE + 2 * PAGE, PAGE), Err(Status::INVALID_VALUE));
        ranges.grant(0).unwrap();
        assert_eq!(ranges.pinned_bytes(), 3 * PAGE);
        assert_eq!(ranges.take_leaving(), [(BASE, 3 * PAGE)]);
        assert_eq!((ranges.pinned_bytes(), ranges.count()), (0, 0));
    }

    #[test]
    fn managed_ranges_are_the_devices_to_pay() {
        let mut ranges = Ranges::default();
        ranges.manage(BASE, 2 * PAGE).unwrap();
        assert!(ranges.contains(BASE + PAGE, PAGE) && ranges.pinned_bytes() == 0);
        assert_eq!(ranges.unpin(BASE), Err(Status::INVALID_VALUE));
        assert_eq!(ranges.manage(BASE + PAGE, PAGE), Err(Status::INVALID_VALUE));
        ranges.unmanage(BASE).unwrap();
        assert_eq!(ranges.unmanage(BASE), Err(Status::INVALID_VALUE));
        assert_eq!(ranges.count(), 0);
    }
}
