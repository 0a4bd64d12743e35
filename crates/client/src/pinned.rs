//! Page-locked host memory: pieces of the window that client and worker map at the same address.

use std::sync::{Arc, Mutex};

use weft_ring::{PAGE, SharedMemory, Window};
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::pointer::{Range, RangeKind};

/// `CU_MEMHOSTALLOC_*` and `CU_MEMHOSTREGISTER_*` flags that exist.
const HOST_FLAGS: u32 = 0x0f;

/// The window with the account of what is used of it.
#[derive(Debug)]
pub(crate) struct PinnedHeap {
    window: Window,
    used: Mutex<u64>,
}

impl PinnedHeap {
    pub(crate) fn new(memory: &Arc<SharedMemory>) -> Self {
        Self { window: Window::new(Arc::clone(memory)), used: Mutex::new(0) }
    }

    /// Whether all of the range lies in the window.
    #[inline]
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        let memory = self.window.memory();
        address.checked_sub(memory.address() as u64).is_some_and(|offset| {
            offset.checked_add(bytes).is_some_and(|end| end <= memory.len() as u64)
        })
    }
}

impl Client {
    /// Allocates page-locked host memory and returns its address, which the device uses too.
    ///
    /// # Errors
    /// `INVALID_VALUE` for zero bytes or unknown flags, `OUT_OF_MEMORY` when the window or the
    /// quota is used up.
    pub fn host_alloc(&self, bytes: u64, flags: u32) -> Result<u64, Status> {
        if flags & !HOST_FLAGS != 0 {
            return Err(Status::INVALID_VALUE);
        }
        self.alloc_shared(bytes, RangeKind::Pinned(flags))
    }

    /// Allocates managed memory: pinned memory that the device uses under the same address.
    ///
    /// # Errors
    /// As [`Client::host_alloc`]; `flags` is 1 (global) or 2 (host).
    pub fn managed_alloc(&self, bytes: u64, flags: u32) -> Result<u64, Status> {
        if flags != 1 && flags != 2 {
            return Err(Status::INVALID_VALUE);
        }
        self.alloc_shared(bytes, RangeKind::Managed(flags))
    }

    fn alloc_shared(&self, bytes: u64, kind: RangeKind) -> Result<u64, Status> {
        let context = self.current()?;
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0);
        let length = length.ok_or(Status::INVALID_VALUE)?;
        let charge = bytes.checked_next_multiple_of(PAGE as u64).ok_or(Status::OUT_OF_MEMORY)?;
        let mut used = lock(&self.pinned.used);
        self.call(&Command::PinnedQuota { bytes: used.saturating_add(charge) })?;
        let Some(start) = self.pinned.window.alloc(length) else {
            self.call(&Command::PinnedQuota { bytes: *used })?;
            return Err(Status::OUT_OF_MEMORY);
        };
        *used += charge;
        drop(used);
        let start = start as u64;
        self.submit(&Command::PinnedRange { address: start, bytes: charge, used: 1 })?;
        let number = self.number();
        self.ranges.insert(Range { start, bytes, kind, context: context.handle, number });
        Ok(start)
    }

    /// Frees page-locked memory after the work that may use it.
    ///
    /// # Errors
    /// `INVALID_VALUE` when `address` is not the start of such memory.
    pub fn host_free(&self, address: u64) -> Result<(), Status> {
        let pinned = |range: &Range| matches!(range.kind, RangeKind::Pinned(_));
        let range = self.ranges.remove(address, pinned).ok_or(Status::INVALID_VALUE)?;
        self.free_shared(&range)
    }

    /// Gives a piece of the window back, zeroed.
    pub(crate) fn free_shared(&self, range: &Range) -> Result<(), Status> {
        // After a fault no work is left that could use the memory, so the outcome changes nothing.
        let context = self.contexts.get(range.context);
        let waited = context.map_or(Ok(()), |context| {
            self.call(&Command::ContextSynchronize { context: context.id })
        });
        let address = usize::try_from(range.start).map_err(|_| Status::INVALID_VALUE)?;
        let bytes = range.bytes.next_multiple_of(PAGE as u64);
        let unpin = Command::PinnedRange { address: range.start, bytes, used: 0 };
        let unpinned = self.submit(&unpin);
        self.pinned.window.free(address).ok_or(Status::INVALID_VALUE)?;
        let mut used = lock(&self.pinned.used);
        *used = used.saturating_sub(bytes);
        self.call(&Command::PinnedQuota { bytes: *used }).and(waited).and(unpinned)
    }

    /// Registers pageable memory. It stays where it is: copies from and to it are staged.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `HOST_MEMORY_ALREADY_REGISTERED`, or `NOT_SUPPORTED` when the device is to
    /// use the memory in place (`CU_MEMHOSTREGISTER_DEVICEMAP` alone is only a wish and accepted).
    pub fn host_register(&self, address: u64, bytes: u64, flags: u32) -> Result<(), Status> {
        /// `CU_MEMHOSTREGISTER_IOMEMORY`: memory of another device.
        const IO_MEMORY: u32 = 4;

        let context = self.current()?;
        if address == 0 || bytes == 0 || flags & !HOST_FLAGS != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if flags & IO_MEMORY != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        if self.ranges.overlaps(address, bytes) {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.ranges.insert(Range {
            start: address,
            bytes,
            kind: RangeKind::Registered(flags),
            context: context.handle,
            number: self.number(),
        });
        Ok(())
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`.
    pub fn host_unregister(&self, address: u64) -> Result<(), Status> {
        let registered = |range: &Range| matches!(range.kind, RangeKind::Registered(_));
        let removed = self.ranges.remove(address, registered);
        removed.map(|_| ()).ok_or(Status::HOST_MEMORY_NOT_REGISTERED)
    }

    /// The device's address of page-locked memory: the same.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other memory; registered memory is not mapped for the device.
    pub fn host_device_pointer(&self, address: u64) -> Result<u64, Status> {
        self.current()?;
        match self.pointer_range(address)?.kind {
            RangeKind::Pinned(_) | RangeKind::Managed(_) => Ok(address),
            RangeKind::Device
            | RangeKind::Pool(_)
            | RangeKind::Global(_)
            | RangeKind::Registered(_) => Err(Status::INVALID_VALUE),
        }
    }

    /// The flags that page-locked memory was made with.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other memory.
    pub fn host_flags(&self, address: u64) -> Result<u32, Status> {
        match self.pointer_range(address)?.kind {
            RangeKind::Pinned(flags) | RangeKind::Registered(flags) => Ok(flags),
            RangeKind::Device
            | RangeKind::Pool(_)
            | RangeKind::Global(_)
            | RangeKind::Managed(_) => Err(Status::INVALID_VALUE),
        }
    }
}
