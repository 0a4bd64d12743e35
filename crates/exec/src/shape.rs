//! Copies and fills: from what a tenant sent to what a device may be given.

use weft_device::{CopyShape, Endpoint, Fill, Op, Place};
use weft_wire::Status;
use weft_wire::command::{self, FillSpec, Payload, Shape};

use crate::border::{Shared, payload_bytes};
use crate::error::{Reject, Violation};

/// First device address and bytes of what an operation touches.
pub(crate) type DeviceRange = (u64, u64);

/// A copy whose shape and host sides are sound. `None` when it copies nothing.
pub(crate) fn copy(
    shared: &Shared,
    dst: &command::Endpoint<'_>,
    src: &command::Endpoint<'_>,
    shape: &Shape,
) -> Result<Option<Op>, Reject> {
    if shape.width == 0 || shape.height == 0 || shape.depth == 0 {
        return Ok(None);
    }
    let shape = CopyShape { width: shape.width, height: shape.height, depth: shape.depth };
    copied_bytes(&shape).ok_or(Status::INVALID_VALUE)?;
    if matches!(dst.place, command::Place::Host(Payload::Inline(_))) {
        return Err(Violation::InlineTarget.into());
    }
    let dst = endpoint(shared, dst, &shape)?;
    let src = endpoint(shared, src, &shape)?;
    Ok(Some(Op::Copy { dst, src, shape }))
}

fn endpoint(
    shared: &Shared,
    side: &command::Endpoint<'_>,
    shape: &CopyShape,
) -> Result<Endpoint, Reject> {
    let &command::Endpoint { ref place, pitch, slice } = side;
    let rows = extent(shape.width, shape.height, pitch).ok_or(Status::INVALID_VALUE)?;
    let bytes = extent(rows, shape.depth, slice).ok_or(Status::INVALID_VALUE)?;
    let place = match place {
        command::Place::Device(address) => {
            address.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
            Place::Device(*address)
        }
        command::Place::Host(payload) => {
            let brought = payload_bytes(payload);
            if bytes > brought {
                return Err(Violation::Payload { extent: bytes, bytes: brought }.into());
            }
            match payload {
                Payload::Inline(bytes) => Place::Inline(bytes.to_vec()),
                Payload::Arena(block) => Place::Host(shared.block(block)?),
                Payload::Pinned { address, .. } => Place::Host(shared.pinned(*address, bytes)?),
            }
        }
    };
    Ok(Endpoint { place, pitch, slice })
}

/// Bytes from the first to the last of `count` pieces of `bytes`, `stride` apart; `None` when
/// pieces overlap or the sum does not fit.
fn extent(bytes: u64, count: u64, stride: u64) -> Option<u64> {
    let more = count.checked_sub(1)?;
    if more > 0 && stride < bytes {
        return None;
    }
    bytes.checked_add(more.checked_mul(stride)?)
}

fn copied_bytes(shape: &CopyShape) -> Option<u64> {
    shape.width.checked_mul(shape.height)?.checked_mul(shape.depth)
}

/// A sound fill. `None` when it fills nothing.
pub(crate) fn fill(spec: &FillSpec) -> Result<Option<Op>, Status> {
    let &FillSpec { address, pitch, width, height, element, value } = spec;
    let bytes = u64::from(element);
    if !matches!(element, 1 | 2 | 4) || !address.is_multiple_of(bytes) {
        return Err(Status::INVALID_VALUE);
    }
    if width == 0 || height == 0 {
        return Ok(None);
    }
    let row = width.checked_mul(bytes).ok_or(Status::INVALID_VALUE)?;
    let all = extent(row, height, pitch).ok_or(Status::INVALID_VALUE)?;
    address.checked_add(all).ok_or(Status::INVALID_VALUE)?;
    if height > 1 && !pitch.is_multiple_of(bytes) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(Some(Op::Fill(Fill { address, pitch, width, height, element, value })))
}

/// The device ranges of an operation that [`copy`] or [`fill`] made.
pub(crate) fn device_ranges(op: &Op) -> [Option<DeviceRange>; 2] {
    match op {
        Op::Launch(_) => [None, None],
        Op::Copy { dst, src, shape } => [side_range(dst, shape), side_range(src, shape)],
        Op::Fill(fill) => {
            let row = fill.width * u64::from(fill.element);
            [extent(row, fill.height, fill.pitch).map(|bytes| (fill.address, bytes)), None]
        }
    }
}

fn side_range(side: &Endpoint, shape: &CopyShape) -> Option<DeviceRange> {
    let Place::Device(address) = side.place else { return None };
    let rows = extent(shape.width, shape.height, side.pitch)?;
    Some((address, extent(rows, shape.depth, side.slice)?))
}

/// Bytes that an operation moves or sets; 0 for a launch.
pub(crate) fn moved_bytes(op: &Op) -> u64 {
    match op {
        Op::Launch(_) => 0,
        Op::Copy { shape, .. } => copied_bytes(shape).unwrap_or(0),
        Op::Fill(fill) => {
            fill.width.saturating_mul(fill.height).saturating_mul(fill.element.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_neither_overlap_nor_overflow() {
        assert_eq!(extent(10, 1, 0), Some(10));
        assert_eq!(extent(10, 3, 16), Some(42));
        assert_eq!(extent(10, 2, 9), None);
        assert_eq!(extent(10, 0, 16), None);
        assert_eq!(extent(10, u64::MAX, 16), None);
        assert_eq!(extent(u64::MAX, 2, u64::MAX), None);
    }

    #[test]
    fn a_fill_is_aligned_and_does_not_wrap() {
        let spec = FillSpec { address: 64, pitch: 0, width: 4, height: 1, element: 4, value: 7 };
        assert!(matches!(fill(&spec), Ok(Some(Op::Fill(_)))));
        let refused = [
            FillSpec { address: 66, ..spec.clone() },
            FillSpec { element: 3, ..spec.clone() },
            FillSpec { width: u64::MAX, ..spec.clone() },
            FillSpec { address: u64::MAX - 3, ..spec.clone() },
        ];
        for spec in refused {
            assert!(matches!(fill(&spec), Err(Status::INVALID_VALUE)), "{spec:?}");
        }
        assert!(matches!(fill(&FillSpec { width: 0, ..spec }), Ok(None)));
    }
}
