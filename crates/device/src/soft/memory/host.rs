//! Host memory of the tenant that kernels may use: what it took of the pinned window, pages of its
//! own that lie in the window under other addresses, and what lies behind it for managed memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_ring::SharedMemory;

use super::tlb::Window;
use crate::DeviceError;
use crate::PAGE;

/// Most ranges of own pages.
const RANGES_MAX: usize = 1 << 16;

/// Memory that a tenant and its device share.
#[derive(Debug)]
pub struct HostWindow {
    /// Its address in the tenant.
    pub base: u64,
    /// All of it: the pinned window, and behind it what managed memory may have.
    pub memory: Arc<SharedMemory>,
    /// How much of it is for managed memory, in bytes.
    pub managed_bytes: u64,
}

/// The window as the tenant sees it.
#[derive(Debug)]
pub(crate) struct HostMemory {
    base: u64,
    memory: Arc<SharedMemory>,
    /// Bytes of it that are the pinned window.
    pinned_bytes: u64,
    /// What of it is in use: bytes by first address.
    taken: BTreeMap<u64, u64>,
    /// Ranges of the tenant's own pages by their start.
    own: BTreeMap<u64, OwnPages>,
}

#[derive(Debug, Clone, Copy)]
struct OwnPages {
    bytes: u64,
    /// Where they lie in the window, in bytes.
    offset: u64,
}

impl HostMemory {
    pub(crate) fn new(window: HostWindow) -> Self {
        let HostWindow { base, memory, managed_bytes } = window;
        let pinned_bytes = (memory.len() as u64).saturating_sub(managed_bytes);
        let (taken, own) = (BTreeMap::new(), BTreeMap::new());
        Self { base, memory, pinned_bytes, taken, own }
    }

    /// Where the bytes at `address` lie, if that is behind the pinned window.
    pub(crate) fn managed(&self, address: u64) -> Option<*mut u8> {
        let offset = address.wrapping_sub(self.base);
        let is_managed = (self.pinned_bytes..self.memory.len() as u64).contains(&offset);
        let offset = usize::try_from(offset).ok().filter(|_| is_managed)?;
        Some(self.memory.as_ptr().wrapping_add(offset))
    }

    /// Gives managed memory back to the system, so that it reads as zero.
    pub(crate) fn discard(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let bad = DeviceError::BadRange { address, bytes };
        let (offset, len) = (address.wrapping_sub(self.base), bytes);
        let (Ok(offset), Ok(len)) = (usize::try_from(offset), usize::try_from(len)) else {
            return Err(bad);
        };
        self.memory.discard(offset, len).map_err(|_| bad)
    }

    /// A piece of the pinned window is in use from here on. What does not lie in it is not.
    pub(crate) fn take(&mut self, address: u64, bytes: u64) {
        let offset = address.wrapping_sub(self.base);
        if offset < self.pinned_bytes && bytes <= self.pinned_bytes - offset {
            self.taken.insert(address, bytes);
        }
    }

    /// It is no longer.
    pub(crate) fn give_back(&mut self, address: u64) {
        self.taken.remove(&address);
    }

    pub(crate) fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// The range around `address`, if it is such memory and in use. Nothing outside of the window
    /// is ever in it, whatever the tenant claims.
    pub(crate) fn window(&self, address: u64) -> Option<Window> {
        let (lo, pages) = if address.wrapping_sub(self.base) < self.pinned_bytes {
            let (start, bytes) = self.taken.range(..=address).next_back()?;
            (*start, OwnPages { bytes: *bytes, offset: *start - self.base })
        } else {
            let (start, pages) = self.own.range(..=address).next_back()?;
            (*start, *pages)
        };
        let offset = usize::try_from(pages.offset).ok()?;
        (address - lo < pages.bytes).then(|| Window {
            lo,
            len: pages.bytes,
            host: self.memory.as_ptr().wrapping_add(offset),
            shared: true,
        })
    }

    /// Lets kernels find the window's pages from `address` on at `host`.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] when they are no whole pages of the window or something is mapped
    /// there already, [`DeviceError::OutOfMemory`] when there are too many ranges.
    pub(crate) fn map(&mut self, host: u64, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let bad = DeviceError::BadRange { address: host, bytes };
        let whole = [host, address, bytes].iter().all(|x| x.is_multiple_of(PAGE)) && bytes > 0;
        let offset = address.wrapping_sub(self.base);
        let len = self.pinned_bytes;
        let inside = offset <= len && bytes <= len - offset;
        let end = host.checked_add(bytes).filter(|_| whole && inside).ok_or_else(|| bad.clone())?;
        let in_window = host < self.base.saturating_add(len) && end > self.base;
        let before = self.own.range(..end).next_back();
        if in_window || before.is_some_and(|(start, pages)| start + pages.bytes > host) {
            return Err(bad);
        }
        if self.own.len() >= RANGES_MAX {
            return Err(DeviceError::OutOfMemory { requested: bytes });
        }
        self.own.insert(host, OwnPages { bytes, offset });
        Ok(())
    }

    /// Ends what [`Self::map`] began at `host`.
    ///
    /// # Errors
    /// [`DeviceError::NotAnAllocation`].
    pub(crate) fn unmap(&mut self, host: u64) -> Result<(), DeviceError> {
        self.own.remove(&host).map(drop).ok_or(DeviceError::NotAnAllocation { address: host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2000_0000_0000;
    const HOST: u64 = 0x7000_0000_0000;

    fn host_memory() -> HostMemory {
        let memory = SharedMemory::anonymous(10 * 4096).unwrap();
        HostMemory::new(HostWindow { base: BASE, memory, managed_bytes: 2 * PAGE })
    }

    #[test]
    fn own_pages_lie_in_the_window_and_nowhere_else() {
        let mut host = host_memory();
        host.map(HOST, BASE + 2 * PAGE, 3 * PAGE).unwrap();
        let window = host.window(HOST + 5000).unwrap();
        assert_eq!((window.lo, window.len, window.shared), (HOST, 3 * PAGE, true));
        assert_eq!(window.host, host.memory.as_ptr().wrapping_add(2 * 4096));
        assert!(host.window(HOST - 1).is_none() && host.window(HOST + 3 * PAGE).is_none());
        for (at, address, bytes) in [
            (HOST, BASE, PAGE),
            (HOST + 2 * PAGE, BASE, PAGE),
            (HOST - PAGE, BASE, 2 * PAGE),
            (2 * HOST, BASE + 7 * PAGE, 2 * PAGE),
            (2 * HOST, BASE - PAGE, PAGE),
            (2 * HOST, !(PAGE - 1), 2 * PAGE),
            (!(PAGE - 1), BASE, 2 * PAGE),
            (2 * HOST, BASE, 0),
            (2 * HOST, BASE + 8, PAGE),
            (2 * HOST + 8, BASE, PAGE),
            (2 * HOST, BASE, 8),
            (BASE + PAGE, BASE, PAGE),
            (BASE - PAGE, BASE, 2 * PAGE),
        ] {
            let refused = host.map(at, address, bytes);
            assert!(matches!(refused, Err(DeviceError::BadRange { .. })), "{at:#x} {address:#x}");
        }
        host.take(BASE + 7 * PAGE, PAGE);
        for (at, is_managed) in [(BASE + 8 * PAGE - 1, false), (BASE + 8 * PAGE, true)] {
            assert_eq!(
                (host.managed(at).is_some(), host.window(at).is_none()),
                (is_managed, is_managed)
            );
        }
        assert!(host.managed(BASE + 10 * PAGE).is_none() && host.managed(BASE - 1).is_none());
        host.map(HOST + 3 * PAGE, BASE, PAGE).unwrap();
        host.unmap(HOST).unwrap();
        assert!(host.unmap(HOST).is_err() && host.window(HOST).is_none());
        assert!(host.window(HOST + 3 * PAGE).is_some() && host.window(BASE).is_none());
    }

    #[test]
    fn only_what_is_taken_of_the_window_is_there() {
        let mut host = host_memory();
        for (address, bytes) in
            [(BASE - PAGE, PAGE), (BASE + 7 * PAGE, 2 * PAGE), (BASE + 8 * PAGE, PAGE)]
        {
            host.take(address, bytes);
            assert!(host.window(address).is_none() && host.taken.is_empty(), "{address:#x}");
        }
        host.take(BASE + PAGE, 2 * PAGE);
        let window = host.window(BASE + 3 * PAGE - 1).unwrap();
        assert_eq!((window.lo, window.len), (BASE + PAGE, 2 * PAGE));
        assert_eq!(window.host, host.memory.as_ptr().wrapping_add(4096));
        assert!(host.window(BASE).is_none() && host.window(BASE + 3 * PAGE).is_none());
        host.give_back(BASE + PAGE);
        assert!(host.window(BASE + PAGE).is_none());
    }
}
