//! Fills of device memory.

use weft_wire::command::FillSpec;
use weft_wire::{Command, Status};

use crate::client::Client;
use crate::graph::Work;
use crate::handle::Stream;

impl Client {
    /// Fills `height` rows of `width` elements in stream order. Synchronous spellings use their
    /// default stream: the native driver does not wait for the end either.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range is not an allocation's or not aligned to the element.
    pub fn fill(&self, fill: FillSpec, stream: Stream) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        let span = fill_span(&fill)?;
        if span == 0 {
            return Ok(());
        }
        self.check_device_span(&stream.session, fill.address, span)?;
        if stream.is_capturing() {
            return self.capture_work(&stream, Work::Fill(fill));
        }
        stream.send(&Command::Fill { stream: stream.id, fill })
    }

    /// Fills `count` consecutive elements of `element` bytes.
    ///
    /// # Errors
    /// As [`Client::fill`].
    pub fn fill_linear(
        &self,
        address: u64,
        element: u8,
        value: u32,
        count: u64,
        stream: Stream,
    ) -> Result<(), Status> {
        let pitch = count.checked_mul(element.into()).ok_or(Status::INVALID_VALUE)?;
        self.fill(FillSpec { address, pitch, width: count, height: 1, element, value }, stream)
    }
}

/// Bytes from the first to behind the last of a fill.
pub(crate) fn fill_span(fill: &FillSpec) -> Result<u64, Status> {
    let element = u64::from(fill.element);
    if !matches!(element, 1 | 2 | 4) || !fill.address.is_multiple_of(element) {
        return Err(Status::INVALID_VALUE);
    }
    if fill.width == 0 || fill.height == 0 {
        return Ok(0);
    }
    let row = fill.width.checked_mul(element).ok_or(Status::INVALID_VALUE)?;
    if fill.height == 1 {
        return Ok(row);
    }
    if fill.pitch < row || !fill.pitch.is_multiple_of(element) {
        return Err(Status::INVALID_VALUE);
    }
    let rows = (fill.height - 1).checked_mul(fill.pitch);
    rows.and_then(|rows| rows.checked_add(row)).ok_or(Status::INVALID_VALUE)
}
