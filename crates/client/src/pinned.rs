//! Page-locked host memory: pieces of the window that client and worker map at the same address.

use std::sync::{Arc, Mutex};

use weft_ring::{PAGE, SharedMemory, SharedSpan, Window};
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::handle::Context;
use crate::pointer::{Range, RangeKind};
use crate::registered::Registered;
use crate::session::Session;

/// `CU_MEMHOSTALLOC_*` flags that exist.
const HOST_FLAGS: u32 = 0x07;

/// The window with the account of what is used of it.
#[derive(Debug)]
pub(crate) struct PinnedHeap {
    window: Window,
    used: Mutex<u64>,
    /// Memory of the program's own that the device uses in place.
    pub(crate) registered: Mutex<Registered>,
}

impl PinnedHeap {
    pub(crate) fn new(memory: &Arc<SharedMemory>) -> Self {
        Self {
            window: Window::new(Arc::clone(memory)),
            used: Mutex::new(0),
            registered: Mutex::default(),
        }
    }

    /// A piece of the window.
    pub(crate) fn span(&self, address: u64, bytes: usize) -> Option<SharedSpan> {
        self.window.memory().span_at(usize::try_from(address).ok()?, bytes).ok()
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

impl Session {
    /// Takes a piece of the window, within the quota; its address.
    pub(crate) fn take_window(&self, bytes: u64) -> Result<u64, Status> {
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
        Ok(start as u64)
    }

    /// Gives such a piece back, zeroed.
    pub(crate) fn give_window(&self, address: u64) -> Result<(), Status> {
        let start = usize::try_from(address).map_err(|_| Status::INVALID_VALUE)?;
        let bytes = self.pinned.window.free(start).ok_or(Status::INVALID_VALUE)?;
        let mut used = lock(&self.pinned.used);
        *used = used.saturating_sub(bytes.next_multiple_of(PAGE) as u64);
        self.call(&Command::PinnedQuota { bytes: *used })
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
        let charge = bytes.checked_next_multiple_of(PAGE as u64).ok_or(Status::OUT_OF_MEMORY)?;
        let session = &context.session;
        let start = session.take_window(bytes)?;
        session.submit(&Command::PinnedRange { address: start, bytes: charge, used: 1 })?;
        let number = self.number();
        self.ranges.insert(Range { start, bytes, kind, context: context.handle, number });
        Ok(start)
    }

    /// Waits until nothing uses memory of that context any more. After a fault no work is left that
    /// could, so the outcome changes nothing.
    pub(crate) fn await_users(&self, context: Context) -> Result<(), Status> {
        self.contexts.get(context).map_or(Ok(()), |context| {
            context.session.call(&Command::ContextSynchronize { context: context.id })
        })
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
        let waited = self.await_users(range.context);
        let bytes = range.bytes.next_multiple_of(PAGE as u64);
        let unpin = Command::PinnedRange { address: range.start, bytes, used: 0 };
        let session = self.home(range.context)?;
        let unpinned = session.submit(&unpin);
        session.give_window(range.start).and(waited).and(unpinned)
    }

    /// The device's address of page-locked memory: the same.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other memory.
    pub fn host_device_pointer(&self, address: u64) -> Result<u64, Status> {
        self.current()?;
        match self.pointer_range(address)?.kind {
            RangeKind::Pinned(_) | RangeKind::Managed(_) | RangeKind::Registered(_) => Ok(address),
            RangeKind::Device
            | RangeKind::Pool(_)
            | RangeKind::Imported
            | RangeKind::Mapped
            | RangeKind::Global(_) => Err(Status::INVALID_VALUE),
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
            | RangeKind::Imported
            | RangeKind::Mapped
            | RangeKind::Global(_)
            | RangeKind::Managed(_) => Err(Status::INVALID_VALUE),
        }
    }
}
