//! Memory that program and device share: pieces of the window that client and worker map at the
//! same address. Page-locked host memory lies in its first part; behind that lies managed memory
//! which the device places like its own.

use std::sync::{Arc, Mutex};

use weft_ring::{PAGE, SharedMemory, SharedSpan, Window};
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::context::ContextState;
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
    /// What the device places; empty where managed memory is pinned memory.
    managed: Window,
    /// Memory of the program's own that the device uses in place.
    pub(crate) registered: Mutex<Registered>,
}

impl PinnedHeap {
    /// The last bytes of it are for managed memory: so many.
    pub(crate) fn new(memory: &Arc<SharedMemory>, managed_bytes: u64) -> Self {
        let behind = usize::try_from(managed_bytes).unwrap_or(usize::MAX);
        let pinned = memory.len().saturating_sub(behind) / PAGE * PAGE;
        Self {
            window: Window::of(Arc::clone(memory), 0..pinned),
            used: Mutex::new(0),
            managed: Window::of(Arc::clone(memory), pinned..memory.len()),
            registered: Mutex::default(),
        }
    }

    /// A piece of the window.
    pub(crate) fn span(&self, address: u64, bytes: usize) -> Option<SharedSpan> {
        self.window.memory().span_at(usize::try_from(address).ok()?, bytes).ok()
    }

    /// Whether the device places what is there.
    fn is_placed(&self, address: u64) -> bool {
        usize::try_from(address).is_ok_and(|address| self.managed.find(address).is_some())
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

    /// Takes a piece of what the device places: the vGPU pays for it as for device memory.
    fn take_managed(&self, bytes: u64) -> Result<u64, Status> {
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0);
        let length = length.ok_or(Status::INVALID_VALUE)?;
        let whole = bytes.checked_next_multiple_of(PAGE as u64).ok_or(Status::OUT_OF_MEMORY)?;
        let start = self.pinned.managed.alloc(length).ok_or(Status::OUT_OF_MEMORY)?;
        let address = start as u64;
        let managed = self.call(&Command::ManagedAlloc { address, bytes: whole });
        if managed.is_err() {
            // It was taken just now.
            let _ = self.pinned.managed.free(start);
        }
        managed.map(|()| address)
    }

    /// Gives such a piece back, zeroed, when the device has.
    fn give_managed(&self, address: u64) -> Result<(), Status> {
        self.call(&Command::ManagedFree { address })?;
        let start = usize::try_from(address).map_err(|_| Status::INVALID_VALUE)?;
        self.pinned.managed.free(start).map(drop).ok_or(Status::INVALID_VALUE)
    }

    /// Gives a piece of the window back, zeroed.
    pub(crate) fn give_window(&self, address: u64) -> Result<(), Status> {
        let start = usize::try_from(address).map_err(|_| Status::INVALID_VALUE)?;
        let mut used = lock(&self.pinned.used);
        let (_, bytes) = self
            .pinned
            .window
            .find(start)
            .filter(|found| found.0 == start)
            .ok_or(Status::INVALID_VALUE)?;
        *used = used.saturating_sub(bytes.next_multiple_of(PAGE) as u64);
        // The worker clears it: before anybody here has it again.
        let told = self.call(&Command::PinnedQuota { bytes: *used });
        self.pinned.window.free(start).ok_or(Status::INVALID_VALUE)?;
        told
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

    /// Allocates managed memory, which the device uses under the same address. It counts as device
    /// memory; as pinned memory where the device has none of its own for it, and in a virtual
    /// machine.
    ///
    /// # Errors
    /// As [`Client::host_alloc`]; `flags` is 1 (global) or 2 (host).
    pub fn managed_alloc(&self, bytes: u64, flags: u32) -> Result<u64, Status> {
        if flags != 1 && flags != 2 {
            return Err(Status::INVALID_VALUE);
        }
        if self.current()?.session.welcome.managed_bytes == 0 {
            return self.alloc_shared(bytes, RangeKind::Managed(flags));
        }
        self.alloc_managed(bytes, RangeKind::Managed(flags))
    }

    fn alloc_managed(&self, bytes: u64, kind: RangeKind) -> Result<u64, Status> {
        let context = self.current()?;
        let session = &context.session;
        let start = session.take_managed(bytes)?;
        self.insert_shared((start, bytes), kind, &context)?;
        Ok(start)
    }

    /// Says that memory of the window is in use from here on.
    fn insert_shared(
        &self,
        (start, bytes): (u64, u64),
        kind: RangeKind,
        context: &ContextState,
    ) -> Result<(), Status> {
        let whole = bytes.next_multiple_of(PAGE as u64);
        let used = Command::PinnedRange { address: start, bytes: whole, used: 1 };
        context.session.submit(&used)?;
        let (number, context) = (self.number(), context.handle);
        self.ranges.insert(Range { start, bytes, kind, context, number });
        Ok(())
    }

    fn alloc_shared(&self, bytes: u64, kind: RangeKind) -> Result<u64, Status> {
        let context = self.current()?;
        let start = context.session.take_window(bytes)?;
        self.insert_shared((start, bytes), kind, &context)?;
        Ok(start)
    }

    /// Says that the device is going to use managed memory.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` when its context is gone.
    pub fn managed_prefetch(&self, address: u64, bytes: u64) -> Result<(), Status> {
        let session = self.home(self.pointer_range(address)?.context)?;
        match session.pinned.is_placed(address) {
            true => session.submit(&Command::ManagedPrefetch { address, bytes }),
            false => Ok(()),
        }
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
        self.advised.forget(range.start..range.start.saturating_add(range.bytes));
        let given = match session.pinned.is_placed(range.start) {
            true => session.give_managed(range.start),
            false => session.give_window(range.start),
        };
        given.and(waited).and(unpinned)
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
