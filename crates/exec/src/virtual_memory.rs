//! Addresses and memory of the session that were taken apart from each other.

use std::collections::BTreeSet;

use weft_device::{Device, PAGE, VirtualMemory};
use weft_wire::{Status, reply};

use crate::error::Reject;
use crate::fault::status_of_device;
use crate::output::{Caller, Output};
use crate::session::Session;
use crate::wait::{Action, Wait};

/// What there is of it: bounded together, like allocations.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    reserved: BTreeSet<u64>,
    physical: BTreeSet<u64>,
    /// Where something is mapped that no command has unmapped yet.
    mapped: BTreeSet<u64>,
}

impl Apart {
    fn len(&self) -> usize {
        self.reserved.len() + self.physical.len() + self.mapped.len()
    }
}

/// Whole pages, and some.
fn pages(bytes: u64) -> Result<u64, Status> {
    let whole = bytes > 0 && bytes.is_multiple_of(PAGE);
    whole.then_some(bytes).ok_or(Status::INVALID_VALUE)
}

impl<D: Device> Session<D> {
    pub(crate) fn mem_reserve(
        &mut self,
        bytes: u64,
        alignment: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.room()?;
        if !alignment.is_power_of_two() {
            return Err(Status::INVALID_VALUE.into());
        }
        let bytes = pages(bytes)?;
        let address = self.calls()?.reserve(bytes, alignment);
        let address = address.map_err(|error| status_of_device(&error))?;
        self.apart.reserved.insert(address);
        self.answer_with(caller, &reply::Address { address }, out);
        Ok(())
    }

    pub(crate) fn mem_unreserve(
        &mut self,
        address: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let freed = self.calls()?.unreserve(address);
        freed.map_err(|error| status_of_device(&error))?;
        self.apart.reserved.remove(&address);
        self.answer_done(caller, out);
        Ok(())
    }

    pub(crate) fn mem_create(
        &mut self,
        bytes: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.room()?;
        let memory = self.calls()?.create(pages(bytes)?);
        let memory = memory.map_err(|error| status_of_device(&error))?;
        self.apart.physical.insert(memory);
        self.answer_with(caller, &reply::Physical { memory }, out);
        Ok(())
    }

    pub(crate) fn mem_release(
        &mut self,
        memory: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.calls()?;
        self.finish_wait(Wait { caller, action: Action::Release(memory), left: 0 }, out);
        Ok(())
    }

    pub(crate) fn release_now(&mut self, memory: u64) -> Result<(), Status> {
        let released = self.calls()?.release(memory);
        released.map_err(|error| status_of_device(&error))?;
        self.apart.physical.remove(&memory);
        Ok(())
    }

    pub(crate) fn mem_map(
        &mut self,
        address: u64,
        memory: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.room()?;
        let mapped = self.calls()?.map_memory(address, memory);
        mapped.map_err(|error| status_of_device(&error))?;
        self.apart.mapped.insert(address);
        self.answer_done(caller, out);
        Ok(())
    }

    /// What is in flight may still use the memory: it is unmapped after that.
    pub(crate) fn mem_unmap(
        &mut self,
        address: u64,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let mapped = self.apart.mapped.remove(&address);
        mapped.then_some(()).ok_or(Status::INVALID_VALUE)?;
        self.wait_for_all(caller, Action::Unmap(address), out);
        Ok(())
    }

    fn room(&self) -> Result<(), Status> {
        let room = self.apart.len() < self.limits.allocations;
        room.then_some(()).ok_or(Status::OUT_OF_MEMORY)
    }

    fn calls(&mut self) -> Result<&mut dyn VirtualMemory, Status> {
        self.device.virtual_memory().ok_or(Status::NOT_SUPPORTED)
    }

    /// Unmaps what no longer stands in the table.
    pub(crate) fn unmap_now(&mut self, address: u64) {
        let unmapped = self.device.virtual_memory().map(|calls| calls.unmap_memory(address));
        if let Some(Err(error)) = unmapped {
            tracing::warn!(address, %error, "memory could not be unmapped");
        }
    }
}
