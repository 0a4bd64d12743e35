//! Memory of the software GPU as one session sees it.
//!
//! A device address is translated twice: by the session's [`PageTable`] to a page of the vGPU, and
//! that by the device's tables ([`slots`]) to a frame. An entry that is somebody else's faults.
//! Each allocation begins on its own page and has an unmapped guard page behind it.

mod apart;
mod copy;
mod frames;
mod host;
mod managed;
mod moving;
mod named;
mod route;
mod slots;
mod space;
mod table;
pub(crate) mod tlb;

use std::collections::BTreeMap;

pub(crate) use copy::{Copying, Filling};
pub use frames::{FrameStore, physical};
pub use host::HostWindow;
pub(crate) use moving::Copied;
pub(crate) use route::Via;
pub use slots::{Geometry, PhysicalTable, PrivateTable, Translation};

use self::apart::Apart;
use self::host::HostMemory;
use self::space::AddressSpace;
use self::table::{Entry, PageTable};
use self::tlb::{Stamp, Window};
use crate::{DeviceError, ForeignFrames, FrameRun, FrameSource, Import, MemoryUse, PAGE};

/// The end of an allocation is exact to this many bytes, as on a GPU.
const GRANULE: u64 = 256;
/// The same where bounds are exact.
const EXACT: u64 = 1;

/// What a session's memory is made of.
#[derive(Debug)]
pub struct MemoryConfig {
    /// Where frames lie.
    pub store: FrameStore,
    /// Who hands them out.
    pub source: Box<dyn FrameSource>,
    /// First device address.
    pub base: u64,
    /// Bytes of device addresses.
    pub len: u64,
    /// Host memory that kernels may access.
    pub window: Option<HostWindow>,
    /// Allocations, and blocks' shared memory, end at the byte that was asked for, not at the end
    /// of the unit that a GPU hands out.
    pub exact_bounds: bool,
}

#[derive(Debug)]
struct Allocation {
    bytes: u64,
    pages: u64,
    runs: Vec<FrameRun>,
    kind: Kind,
}

/// Whose memory an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The session's, in the device's own memory.
    Own,
    /// Another session's.
    Borrowed,
    /// The session's, and the tenant's too: its bytes lie in the window, its frames only pay for
    /// them and say which slot they need.
    Managed,
}

/// A session's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    store: FrameStore,
    source: Box<dyn FrameSource>,
    space: AddressSpace,
    table: PageTable,
    allocations: BTreeMap<u64, Allocation>,
    apart: Apart,
    host: Option<HostMemory>,
    /// The last copies that followed each other.
    run: std::cell::Cell<copy::Run>,
    /// Counts mappings that went away.
    generation: u64,
    /// Counts questions to the daemon.
    asked: std::cell::Cell<u64>,
    /// In what units memory is handed out, in bytes.
    granule: u64,
    /// Parts of the vGPU's memory that were translated since the daemon was last told, a bit each.
    touched: std::cell::RefCell<Vec<u64>>,
    /// What bringing parts in the middle of an operation is said to have taken and was not waited
    /// for yet, in ns.
    owed_ns: std::cell::Cell<u64>,
}

impl Memory {
    /// Empty memory.
    #[must_use]
    pub(crate) fn new(config: MemoryConfig) -> Self {
        Self {
            store: config.store,
            source: config.source,
            space: AddressSpace::new(config.base, config.len),
            table: PageTable::default(),
            allocations: BTreeMap::new(),
            apart: Apart::default(),
            host: config.window.map(HostMemory::new),
            run: std::cell::Cell::default(),
            generation: 0,
            asked: std::cell::Cell::new(0),
            granule: if config.exact_bounds { EXACT } else { GRANULE },
            touched: std::cell::RefCell::default(),
            owed_ns: std::cell::Cell::new(0),
        }
    }

    /// Use and quota of the vGPU.
    #[must_use]
    pub(crate) fn usage(&self) -> MemoryUse {
        self.source.usage()
    }

    /// What translations are of that are made from here on.
    pub(crate) fn stamp(&self) -> Stamp {
        let taken = self.store.table.as_ref().map_or(0, Translation::taken);
        Stamp { unmapped: self.generation, taken, asked: self.asked.get() }
    }

    /// Allocates `bytes`, zeroed, page-aligned.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let refused = DeviceError::OutOfMemory { requested: bytes };
        let bytes_exact =
            bytes.max(1).checked_next_multiple_of(self.granule).ok_or_else(|| refused.clone())?;
        let pages = bytes_exact.div_ceil(PAGE);
        let reach = (pages + 1).checked_mul(PAGE).ok_or_else(|| refused.clone())?;
        let usage = self.source.usage();
        if pages.saturating_mul(PAGE) > usage.total {
            return Err(refused);
        }
        let start = self.space.take(reach).ok_or(refused)?;
        let runs = match self.source.take(pages) {
            Ok(runs) => runs,
            Err(error) => {
                self.space.give_back(start, reach);
                return Err(error);
            }
        };
        self.map(start, bytes_exact, &runs);
        let (bytes, kind) = (bytes_exact, Kind::Own);
        self.allocations.insert(start, Allocation { bytes, pages, runs, kind });
        Ok(start)
    }

    fn map(&mut self, start: u64, bytes: u64, runs: &[FrameRun]) {
        let frames = runs.iter().flat_map(FrameRun::frames);
        let mut left = bytes;
        for (page, frame) in (start / PAGE..).zip(frames) {
            self.table.set(page, Entry { frame, bytes: left.min(PAGE) });
            left = left.saturating_sub(PAGE);
        }
    }

    /// Lets other sessions of the vGPU use an allocation; the key for it.
    ///
    /// # Errors
    /// As [`crate::Device::export`].
    pub(crate) fn export(&mut self, address: u64) -> Result<[u8; 16], DeviceError> {
        let own = self.allocations.get(&address).filter(|own| own.kind == Kind::Own);
        let own = own.ok_or(DeviceError::NotAnAllocation { address })?;
        self.source.export(own.bytes, &own.runs)
    }

    /// Maps an allocation of another session.
    ///
    /// # Errors
    /// As [`crate::Device::import`].
    pub(crate) fn import(&mut self, key: [u8; 16]) -> Result<Import, DeviceError> {
        let foreign = self.source.import(key)?;
        let bytes = foreign.bytes;
        let pages = foreign.runs.iter().map(|run| run.count).sum::<u64>();
        if bytes == 0 || bytes.div_ceil(PAGE) != pages {
            return Err(DeviceError::NotExported);
        }
        let reach = (pages + 1) * PAGE;
        let start = self.space.take(reach);
        let address = start.ok_or(DeviceError::OutOfMemory { requested: bytes })?;
        if let Err(error) = self.store.borrow(&foreign) {
            self.space.give_back(address, reach);
            return Err(error);
        }
        let ForeignFrames { runs, number, .. } = foreign;
        self.map(address, bytes, &runs);
        self.allocations.insert(address, Allocation { bytes, pages, runs, kind: Kind::Borrowed });
        Ok(Import { address, bytes, number })
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// [`DeviceError::NotAnAllocation`].
    pub(crate) fn free(&mut self, address: u64) -> Result<(), DeviceError> {
        let allocation =
            self.allocations.remove(&address).ok_or(DeviceError::NotAnAllocation { address })?;
        self.table.clear(address / PAGE, allocation.pages);
        self.generation += 1;
        match allocation.kind {
            Kind::Borrowed => self.store.return_borrowed(&allocation.runs),
            Kind::Own => {
                for run in &allocation.runs {
                    self.store.clear(*run);
                }
                self.source.give_back(&allocation.runs);
            }
            Kind::Managed => {
                self.source.give_back(&allocation.runs);
                let host = self.host.as_ref();
                return host.map_or(Ok(()), |host| host.discard(address, allocation.pages * PAGE));
            }
        }
        self.space.give_back(address, (allocation.pages + 1) * PAGE);
        Ok(())
    }

    /// Whether the bytes are mapped device memory.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.is_host(address, bytes) {
            return Ok(());
        }
        let inside = self.allocations.range(..=address).next_back().is_some_and(|(start, a)| {
            let offset = address - start;
            offset <= a.bytes && bytes <= a.bytes - offset
        });
        let mapped = inside || self.apart.contains(address, bytes);
        if mapped { Ok(()) } else { Err(DeviceError::BadRange { address, bytes }) }
    }

    /// Whether all of it is host memory, perhaps in several ranges.
    fn is_host(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while let Some(window) = self.pinned(at) {
            at = window.lo.saturating_add(window.len);
            if at >= end {
                return true;
            }
        }
        false
    }

    fn pinned(&self, address: u64) -> Option<Window> {
        self.host.as_ref()?.window(address)
    }

    /// A piece of the pinned window is in use.
    pub(crate) fn pin_host(&mut self, address: u64, bytes: u64) {
        if let Some(host) = &mut self.host {
            host.take(address, bytes);
        }
    }

    /// It is no longer.
    pub(crate) fn unpin_host(&mut self, address: u64) {
        if let Some(host) = &mut self.host {
            host.give_back(address);
            self.generation += 1;
        }
    }

    /// Lets kernels find pages of the pinned window at `host` too.
    ///
    /// # Errors
    /// As [`crate::Device::map_host`].
    pub(crate) fn map_host(
        &mut self,
        host: u64,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let without = DeviceError::Unsupported("host memory without a pinned window");
        self.host.as_mut().ok_or(without)?.map(host, address, bytes)
    }

    /// Ends that.
    ///
    /// # Errors
    /// As [`crate::Device::unmap_host`].
    pub(crate) fn unmap_host(&mut self, host: u64) -> Result<(), DeviceError> {
        let without = DeviceError::NotAnAllocation { address: host };
        self.host.as_mut().ok_or(without)?.unmap(host)?;
        self.generation += 1;
        Ok(())
    }
}

impl Drop for Memory {
    /// Frames outlive the session (they belong to the vGPU), so they go back one by one.
    fn drop(&mut self) {
        let starts: Vec<u64> = self.allocations.keys().copied().collect();
        for start in starts {
            let freed = self.free(start);
            debug_assert!(freed.is_ok(), "a listed allocation is live");
        }
        self.forget_apart();
    }
}
