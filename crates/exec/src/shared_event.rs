//! Events that several sessions of a vGPU use: cells in memory that they share.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_device::{Device, DeviceError};
use weft_ring::Cell;
use weft_wire::Status;
use weft_wire::id::StreamId;

use crate::error::Reject;
use crate::fault::status_of_device;
use crate::output::Output;
use crate::session::Session;
use crate::stream::Task;

/// Two words: how many records were accepted, and the highest that has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventCell {
    address: u64,
}

impl EventCell {
    /// A cell in device memory.
    fn new(device: &mut impl Device, address: u64) -> Result<Self, Status> {
        let cell = Self { address };
        let both = [cell.address, cell.completed()];
        for word in both {
            device.shared_word(word).map_err(|error| status_of_device(&error))?;
        }
        Ok(cell)
    }

    fn completed(self) -> u64 {
        self.address.saturating_add(8)
    }

    /// Whether a record has completed.
    pub(crate) fn has_completed(
        self,
        device: &mut impl Device,
        record: u64,
    ) -> Result<bool, DeviceError> {
        Ok(device.shared_word(self.completed())?.load(Ordering::Acquire) >= record)
    }

    /// Completes a record, unless a later one has completed already. A cell whose memory is gone
    /// has nobody who waits.
    pub(crate) fn complete(self, device: &mut impl Device, record: u64) {
        if let Ok(completed) = device.shared_word(self.completed()) {
            completed.fetch_max(record, Ordering::AcqRel);
        }
    }
}

impl<D: Device> Session<D> {
    fn cell(&mut self, address: u64) -> Result<EventCell, Status> {
        EventCell::new(&mut self.device, address)
    }

    fn word(&mut self, address: u64) -> Result<Cell<AtomicU64>, Status> {
        self.device.shared_word(address).map_err(|error| status_of_device(&error))
    }

    pub(crate) fn shared_event_create(&mut self, address: u64) -> Result<(), Reject> {
        let cell = self.cell(address)?;
        for word in [cell.address, cell.completed()] {
            self.word(word)?.store(0, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn shared_event_record(
        &mut self,
        address: u64,
        stream: StreamId,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let (key, cell) = (self.stream(stream)?, self.cell(address)?);
        let record = self.word(cell.address)?.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.push(key, Task::RecordCell { cell, record }, out);
        Ok(())
    }

    pub(crate) fn shared_event_wait(
        &mut self,
        address: u64,
        stream: StreamId,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let (key, cell) = (self.stream(stream)?, self.cell(address)?);
        let record = self.word(cell.address)?.load(Ordering::Acquire);
        self.push(key, Task::WaitCell { cell, record }, out);
        Ok(())
    }

    pub(crate) fn shared_event_done(&mut self, address: u64) -> Result<bool, Status> {
        let cell = self.cell(address)?;
        let record = self.word(cell.address)?.load(Ordering::Acquire);
        cell.has_completed(&mut self.device, record).map_err(|error| status_of_device(&error))
    }
}
