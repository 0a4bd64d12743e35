//! Allocations of the session.

use std::collections::BTreeMap;

use weft_device::{Device, DeviceError, Import};
use weft_wire::id::{ContextId, StreamId};
use weft_wire::{Status, reply};

use crate::error::Reject;
use crate::fault::status_of_device;
use crate::output::{Caller, Output};
use crate::session::Session;
use crate::stream::{Stream, StreamKey, Task};
use crate::wait::Action;

/// Live allocations by address.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    owners: BTreeMap<u64, Owner>,
}

#[derive(Debug, Clone, Copy)]
struct Owner {
    context: ContextId,
    /// Its bytes, as long as no other session has it.
    own_bytes: Option<u64>,
}

impl Allocations {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn take_of(&mut self, context: ContextId) -> Vec<u64> {
        let owned = self.owners.extract_if(.., |_, owner| owner.context == context);
        owned.map(|(address, _)| address).collect()
    }
}

impl<D: Device> Session<D> {
    pub(crate) fn mem_alloc(
        &mut self,
        context: ContextId,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.alloc_from(context, bytes, None, caller, out)
    }

    /// Memory of as many pages that is yet to be freed on the stream, or else new memory:
    /// what the stream does with it comes after what it did with it before.
    pub(crate) fn mem_alloc_async(
        &mut self,
        context: ContextId,
        stream: StreamId,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        self.alloc_from(context, bytes, Some(key), caller, out)
    }

    fn alloc_from(
        &mut self,
        context: ContextId,
        bytes: u64,
        stream: Option<StreamKey>,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.may_allocate(context)?;
        if bytes == 0 {
            return Err(Status::INVALID_VALUE.into());
        }
        let stream = stream.and_then(|key| self.streams.get_mut(key));
        if let Some((address, bytes)) = stream.and_then(|stream| stream.take_freed(bytes)) {
            self.own(context, address, bytes, caller, out);
            return Ok(());
        }
        match self.device.alloc(bytes) {
            Ok(address) => self.own(context, address, bytes, caller, out),
            // What was accepted frees some: there may be enough after it.
            Err(DeviceError::OutOfMemory { .. }) if self.frees() => {
                self.wait_for_all(caller, Action::Alloc { context, bytes }, out);
            }
            Err(error) => return Err(status_of_device(&error).into()),
        }
        Ok(())
    }

    fn own(
        &mut self,
        context: ContextId,
        address: u64,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) {
        self.allocations.owners.insert(address, Owner { context, own_bytes: Some(bytes) });
        self.answer_with(caller, &reply::Address { address }, out);
    }

    /// Whether something is yet to be freed.
    fn frees(&self) -> bool {
        let in_stream = |key| self.streams.get(key).is_some_and(Stream::frees);
        self.releases.len() > 0
            || self.waits.any_frees()
            || self.streams.busy().iter().any(|key| in_stream(*key))
    }

    /// Allocates when nothing is left to wait for.
    pub(crate) fn alloc_at_last(
        &mut self,
        context: ContextId,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) {
        let allocated = match self.sticky {
            Some(status) => Err(Reject::Refused(status)),
            None => self.may_allocate(context).and_then(|()| {
                let address = self.device.alloc(bytes);
                address.map_err(|error| Reject::Refused(status_of_device(&error)))
            }),
        };
        match allocated {
            Ok(address) => self.own(context, address, bytes, caller, out),
            Err(Reject::Refused(status)) => out.reply(caller, status, &[]),
            Err(Reject::Violation(violation)) => {
                tracing::warn!(%violation, "an allocation that waited is no allocation");
                out.reply(caller, Status::UNKNOWN, &[]);
            }
        }
    }

    fn may_allocate(&self, context: ContextId) -> Result<(), Reject> {
        self.context(context)?;
        if self.allocations.count() >= self.limits.allocations {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        Ok(())
    }

    /// Lets other sessions of the vGPU use an allocation.
    pub(crate) fn mem_export(
        &mut self,
        address: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let owner = self.allocations.owners.get_mut(&address).ok_or(Status::INVALID_VALUE)?;
        let key = self.device.export(address).map_err(|error| status_of_device(&error))?;
        owner.own_bytes = None;
        self.answer_with(caller, &reply::MemoryKey { key }, out);
        Ok(())
    }

    /// Maps another session's allocation.
    pub(crate) fn mem_import(
        &mut self,
        context: ContextId,
        key: [u8; 16],
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.may_allocate(context)?;
        let import = self.device.import(key).map_err(|error| status_of_device(&error))?;
        let Import { address, bytes, number } = import;
        self.allocations.owners.insert(address, Owner { context, own_bytes: None });
        self.answer_with(caller, &reply::Imported { address, bytes, number }, out);
        Ok(())
    }

    /// Lets kernels find pages of the pinned window where the tenant has put them.
    pub(crate) fn host_map(
        &mut self,
        host: u64,
        address: u64,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.shared.window(address, bytes)?;
        self.shared.ranges.pin(address, bytes)?;
        if let Err(error) = self.device.map_host(host, address, bytes) {
            self.shared.ranges.unpin(address)?;
            return Err(status_of_device(&error).into());
        }
        self.shared.ranges.set_own(host, address);
        self.answer_done(caller, out);
        Ok(())
    }

    /// Ends that.
    pub(crate) fn host_unmap(
        &mut self,
        host: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.device.unmap_host(host).map_err(|error| status_of_device(&error))?;
        let address = self.shared.ranges.end_own(host).ok_or(Status::INVALID_VALUE)?;
        self.shared.ranges.unpin(address)?;
        self.answer_done(caller, out);
        Ok(())
    }

    /// So much of the window may be pinned. What was given back of it so far is the system's when
    /// the work that was accepted has ended.
    pub(crate) fn pinned_quota(
        &mut self,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        if bytes > self.shared.pinned.len() as u64 {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        let is_less = bytes < self.shared.ranges.granted();
        self.shared.ranges.grant(bytes)?;
        if is_less && self.shared.ranges.is_leaving() {
            self.wait_for_all(caller, Action::Discard, out);
        } else {
            self.answer_done(caller, out);
        }
        Ok(())
    }

    /// A piece of the window is in use from here on, or no longer. Managed memory is, as long as it
    /// is managed.
    pub(crate) fn pinned_range(
        &mut self,
        (address, bytes): (u64, u64),
        is_used: bool,
    ) -> Result<(), Reject> {
        self.shared.window(address, bytes)?;
        if self.shared.ranges.is_managed(address) {
            return Ok(());
        }
        if is_used {
            self.shared.ranges.pin(address, bytes)?;
            self.device.pin_host(address, bytes);
        } else {
            let bytes = self.shared.ranges.unpin(address)?;
            self.device.unpin_host(address, bytes);
        }
        Ok(())
    }

    /// Host memory of the window that the tenant may have touched by this session, or may still, in
    /// bytes: what was granted, and what was given back but is still in use.
    pub fn pinned_bytes(&self) -> u64 {
        self.shared.ranges.granted().max(self.shared.ranges.pinned_bytes())
    }

    /// The same when so much is granted.
    pub fn pinned_bytes_if(&self, granted: u64) -> u64 {
        if self.shared.ranges.is_leaving() && !self.is_idle() {
            return granted.max(self.shared.ranges.pinned_bytes());
        }
        granted
    }

    /// Makes pages behind the pinned window managed memory.
    pub(crate) fn managed_alloc(
        &mut self,
        address: u64,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.shared.window(address, bytes)?;
        if self.allocations.count() + self.shared.ranges.count() >= self.limits.allocations {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        self.shared.ranges.manage(address, bytes)?;
        if let Err(error) = self.device.manage(address, bytes) {
            self.shared.ranges.unmanage(address)?;
            return Err(status_of_device(&error).into());
        }
        self.answer_done(caller, out);
        Ok(())
    }

    /// Ends that after all work accepted so far.
    pub(crate) fn managed_free(
        &mut self,
        address: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let bytes = Some(self.shared.ranges.unmanage(address)?);
        self.wait_for_all(caller, Action::Free { address, bytes }, out);
        Ok(())
    }

    /// Frees after all work accepted so far, as the driver does in practice.
    pub(crate) fn mem_free(
        &mut self,
        address: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let owner = self.allocations.owners.remove(&address).ok_or(Status::INVALID_VALUE)?;
        let bytes = owner.own_bytes;
        self.wait_for_all(caller, Action::Free { address, bytes }, out);
        Ok(())
    }

    pub(crate) fn mem_free_async(
        &mut self,
        stream: StreamId,
        address: u64,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        let owner = self.allocations.owners.remove(&address).ok_or(Status::INVALID_VALUE)?;
        self.push(key, Task::Free { address, own_bytes: owner.own_bytes, after: None }, out);
        Ok(())
    }

    /// Frees an allocation that no longer stands in the table.
    pub(crate) fn free_now(&mut self, address: u64) {
        if let Err(error) = self.device.free(address) {
            tracing::warn!(address, %error, "allocation could not be freed");
        }
    }

    pub(crate) fn mem_info(&mut self, caller: Caller, out: &mut dyn Output) {
        let used = self.device.memory_use();
        let body = reply::MemoryUse { free: used.free, total: used.total };
        self.answer_with(caller, &body, out);
    }
}
