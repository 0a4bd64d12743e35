//! Words in memory that streams wait for and write.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_device::Device;
use weft_ring::SharedSpan;
use weft_wire::Status;
use weft_wire::command::Comparison;

use crate::border::Shared;
use crate::error::Reject;
use crate::fault::status_of_device;

/// A naturally aligned 32- or 64-bit word.
#[derive(Debug, Clone)]
pub(crate) struct WordPlace {
    place: Place,
    wide: bool,
}

#[derive(Debug, Clone)]
enum Place {
    Device(u64),
    Pinned(SharedSpan),
}

impl WordPlace {
    pub(crate) fn new(shared: &Shared, address: u64, wide: bool) -> Result<Self, Reject> {
        let bytes = if wide { 8 } else { 4 };
        if !address.is_multiple_of(bytes) {
            return Err(Status::INVALID_VALUE.into());
        }
        let place = if shared.is_pinned(address) {
            Place::Pinned(shared.pinned(address, bytes)?)
        } else {
            Place::Device(address)
        };
        Ok(Self { place, wide })
    }

    fn read(&self, device: &mut impl Device) -> Result<u64, Status> {
        match &self.place {
            Place::Device(address) => {
                device.read_word(*address, self.wide).map_err(|error| status_of_device(&error))
            }
            Place::Pinned(span) if self.wide => {
                let word = span.mapping().cell::<AtomicU64>(span.offset());
                Ok(word.map_err(|_| Status::INVALID_VALUE)?.load(Ordering::Acquire))
            }
            Place::Pinned(span) => {
                let word = span.mapping().cell::<AtomicU32>(span.offset());
                Ok(word.map_err(|_| Status::INVALID_VALUE)?.load(Ordering::Acquire).into())
            }
        }
    }

    /// Stores the word, or its low half.
    pub(crate) fn write(&self, device: &mut impl Device, value: u64) -> Result<(), Status> {
        match &self.place {
            Place::Device(address) => device
                .write_word(*address, value, self.wide)
                .map_err(|error| status_of_device(&error)),
            Place::Pinned(span) if self.wide => {
                let word = span.mapping().cell::<AtomicU64>(span.offset());
                word.map_err(|_| Status::INVALID_VALUE)?.store(value, Ordering::Release);
                Ok(())
            }
            Place::Pinned(span) => {
                let word = span.mapping().cell::<AtomicU32>(span.offset());
                word.map_err(|_| Status::INVALID_VALUE)?.store(low_half(value), Ordering::Release);
                Ok(())
            }
        }
    }

    /// Whether the word compares true with `value`.
    pub(crate) fn compares(
        &self,
        device: &mut impl Device,
        comparison: Comparison,
        value: u64,
    ) -> Result<bool, Status> {
        let word = self.read(device)?;
        Ok(if self.wide {
            let is_after = word.wrapping_sub(value).cast_signed() >= 0;
            compare(comparison, word, value, is_after, u64::MAX)
        } else {
            let is_after = low_half(word).wrapping_sub(low_half(value)).cast_signed() >= 0;
            compare(comparison, word, value, is_after, u32::MAX.into())
        })
    }
}

fn compare(comparison: Comparison, word: u64, value: u64, is_after: bool, mask: u64) -> bool {
    match comparison {
        Comparison::GreaterOrEqual => is_after,
        Comparison::Equal => (word ^ value) & mask == 0,
        Comparison::And => word & value & mask != 0,
        Comparison::Nor => !(word | value) & mask != 0,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "takes the low half on purpose")]
fn low_half(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_those_of_the_driver() {
        let all = u64::MAX;
        assert!(compare(Comparison::Equal, 7, 7, true, all));
        assert!(compare(Comparison::Equal, 7, 7 | 1 << 40, true, u32::MAX.into()));
        assert!(!compare(Comparison::Equal, 7, 7 | 1 << 40, true, all));
        assert!(compare(Comparison::And, 6, 2, true, all));
        assert!(!compare(Comparison::And, 6, 1, true, all));
        assert!(compare(Comparison::Nor, 6, 1, true, all));
        assert!(!compare(Comparison::Nor, all, 0, true, all));
    }
}
