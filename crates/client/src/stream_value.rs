//! Waiting for and writing words of memory in stream order.

use weft_wire::command::Comparison;
use weft_wire::{Command, Status};

use crate::client::Client;
use crate::handle::Stream;
use crate::stream::StreamState;

/// `CU_STREAM_WAIT_VALUE_FLUSH`: there are no remote writes to flush.
const WAIT_FLUSH: u32 = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const WRITE_NO_BARRIER: u32 = 1;

impl Client {
    /// Later work of the stream waits until the word at `address` compares true with `value`;
    /// `flags` is `CUstreamWaitValue_flags`.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `STREAM_CAPTURE_UNSUPPORTED` in a capture.
    pub fn stream_wait_value(
        &self,
        stream: Stream,
        address: u64,
        value: u64,
        wide: bool,
        flags: u32,
    ) -> Result<(), Status> {
        let comparison = match flags & !WAIT_FLUSH {
            0 => Comparison::GreaterOrEqual,
            1 => Comparison::Equal,
            2 => Comparison::And,
            3 => Comparison::Nor,
            _ => return Err(Status::INVALID_VALUE),
        };
        let stream = self.stream(stream)?;
        self.check_word(&stream, address, wide)?;
        stream.refuse_capture()?;
        let stream_id = stream.id;
        let command =
            Command::StreamWaitValue { stream: stream_id, address, value, wide, comparison };
        stream.send(&command)
    }

    /// Writes a word in stream order; `flags` is `CUstreamWriteValue_flags`.
    ///
    /// # Errors
    /// As [`Client::stream_wait_value`].
    pub fn stream_write_value(
        &self,
        stream: Stream,
        address: u64,
        value: u64,
        wide: bool,
        flags: u32,
    ) -> Result<(), Status> {
        if flags & !WRITE_NO_BARRIER != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let stream = self.stream(stream)?;
        self.check_word(&stream, address, wide)?;
        stream.refuse_capture()?;
        let stream_id = stream.id;
        stream.send(&Command::StreamWriteValue { stream: stream_id, address, value, wide })
    }

    fn check_word(&self, stream: &StreamState, address: u64, wide: bool) -> Result<(), Status> {
        let bytes = if wide { 8 } else { 4 };
        if !address.is_multiple_of(bytes) {
            return Err(Status::INVALID_VALUE);
        }
        self.check_device_span(&stream.session, address, bytes)
    }
}
