//! Allocations of the session.

use std::collections::{BTreeMap, BTreeSet};

use weft_device::{Device, Import};
use weft_wire::id::{ContextId, StreamId};
use weft_wire::{Status, reply};

use crate::error::Reject;
use crate::fault::status_of_device;
use crate::output::{Caller, Output};
use crate::session::Session;
use crate::stream::Task;
use crate::wait::Action;

/// Live allocations by address, with the context that owns each.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    owners: BTreeMap<u64, ContextId>,
    /// Managed memory is no context's.
    managed: BTreeSet<u64>,
}

impl Allocations {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.owners.len() + self.managed.len()
    }

    pub(crate) fn take_of(&mut self, context: ContextId) -> Vec<u64> {
        let owned = self.owners.extract_if(.., |_, owner| *owner == context);
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
        self.context(context)?;
        if bytes == 0 {
            return Err(Status::INVALID_VALUE.into());
        }
        if self.allocations.count() >= self.limits.allocations {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        let address = self.device.alloc(bytes).map_err(|error| status_of_device(&error))?;
        self.allocations.owners.insert(address, context);
        self.answer_with(caller, &reply::Address { address }, out);
        Ok(())
    }

    /// Lets other sessions of the vGPU use an allocation.
    pub(crate) fn mem_export(
        &mut self,
        address: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.allocations.owners.get(&address).ok_or(Status::INVALID_VALUE)?;
        let key = self.device.export(address).map_err(|error| status_of_device(&error))?;
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
        self.context(context)?;
        if self.allocations.count() >= self.limits.allocations {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        let import = self.device.import(key).map_err(|error| status_of_device(&error))?;
        let Import { address, bytes, number } = import;
        self.allocations.owners.insert(address, context);
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
        self.shared.pinned(address, bytes)?;
        let mapped = self.device.map_host(host, address, bytes);
        mapped.map_err(|error| status_of_device(&error))?;
        self.answer_done(caller, out);
        Ok(())
    }

    /// Makes pages behind the pinned window managed memory.
    pub(crate) fn managed_alloc(
        &mut self,
        address: u64,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.shared.pinned(address, bytes)?;
        if self.allocations.count() >= self.limits.allocations {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        self.device.manage(address, bytes).map_err(|error| status_of_device(&error))?;
        self.allocations.managed.insert(address);
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
        if !self.allocations.managed.remove(&address) {
            return Err(Status::INVALID_VALUE.into());
        }
        self.wait_for_all(caller, Action::Free(address), out);
        Ok(())
    }

    /// Frees after all work accepted so far, as the driver does in practice.
    pub(crate) fn mem_free(
        &mut self,
        address: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.allocations.owners.remove(&address).ok_or(Status::INVALID_VALUE)?;
        self.wait_for_all(caller, Action::Free(address), out);
        Ok(())
    }

    pub(crate) fn mem_free_async(
        &mut self,
        stream: StreamId,
        address: u64,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        self.allocations.owners.remove(&address).ok_or(Status::INVALID_VALUE)?;
        self.push(key, Task::Free { address, after: None }, out);
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
