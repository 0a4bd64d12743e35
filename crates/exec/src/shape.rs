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

/// Rows of a copy or a fill; 0 for a launch.
pub(crate) fn rows(op: &Op) -> u64 {
    match op {
        Op::Launch(_) => 0,
        Op::Copy { shape, .. } => shape.height.saturating_mul(shape.depth),
        Op::Fill(fill) => fill.height,
    }
}

/// Copies and fills are not cut into smaller pieces than this: some 10 µs of work.
pub(crate) const PART_BYTES_MIN: u64 = 256 << 10;

/// Of few bytes, but more rows than these, an operation is worth a limit: each may lie on a page of
/// its own, which may be touched for the first time.
pub(crate) const PART_ROWS_MIN: u64 = 16;

/// A piece has at most so many rows: how long a row takes that is shorter than a cache line does
/// not depend on its bytes.
const PART_ROWS_MAX: u64 = 64 << 10;

/// The bytes of a copy or a fill from byte `first` of its rows on, about `bytes` of them and at
/// least one row or [`PART_BYTES_MIN`], as an operation of its own; and how many they are. The
/// order of bytes is that of rows, then slices. `None` for a launch, and beyond the end.
pub(crate) fn part(op: &Op, first: u64, bytes: u64) -> Option<(Op, u64)> {
    let bytes = bytes.max(PART_BYTES_MIN);
    match op {
        Op::Launch(_) => None,
        Op::Copy { dst, src, shape } => {
            if first == 0 && fits(shape, bytes) {
                return Some((op.clone(), copied_bytes(shape)?));
            }
            let (at, piece) = within(shape, first, bytes)?;
            let (dst, src) = (side_from(dst, &at)?, side_from(src, &at)?);
            Some((Op::Copy { dst, src, shape: piece }, copied_bytes(&piece)?))
        }
        Op::Fill(fill) => {
            let element = u64::from(fill.element);
            let shape = CopyShape { width: fill.width * element, height: fill.height, depth: 1 };
            // A piece that ended within an element would have the next one begin the value anew.
            let (at, piece) = within(&shape, first, bytes - bytes % element)?;
            let (width, height) = (piece.width / element, piece.height);
            let address = fill.address + at.y * fill.pitch + at.x;
            Some((Op::Fill(Fill { address, width, height, ..*fill }), copied_bytes(&piece)?))
        }
    }
}

fn fits(shape: &CopyShape, bytes: u64) -> bool {
    copied_bytes(shape).is_some_and(|all| all <= bytes)
        && shape.height.saturating_mul(shape.depth) <= PART_ROWS_MAX
}

/// Where a byte of a shape lies: in its row, row in its slice, slice.
struct Start {
    x: u64,
    y: u64,
    z: u64,
}

/// The box that begins at byte `first` of the shape: a part of a row, or whole rows of a slice, or
/// whole slices.
fn within(shape: &CopyShape, first: u64, bytes: u64) -> Option<(Start, CopyShape)> {
    let CopyShape { width, height, depth } = *shape;
    let row = first.checked_div(width)?;
    let at = Start { x: first % width, y: row.checked_rem(height)?, z: row / height };
    if at.z >= depth {
        return None;
    }
    if at.x > 0 || bytes < width {
        let width = bytes.min(width - at.x);
        return Some((at, CopyShape { width, height: 1, depth: 1 }));
    }
    let rows = (bytes / width).min(PART_ROWS_MAX);
    if at.y > 0 || rows < height {
        let height = rows.min(height - at.y);
        return Some((at, CopyShape { width, height, depth: 1 }));
    }
    let depth = (rows / height).min(depth - at.z);
    Some((at, CopyShape { width, height, depth }))
}

fn side_from(side: &Endpoint, at: &Start) -> Option<Endpoint> {
    let offset = at.x + at.y * side.pitch + at.z * side.slice;
    let start = usize::try_from(offset).ok()?;
    let place = match &side.place {
        Place::Device(address) => Place::Device(address + offset),
        Place::Host(span) => Place::Host(span.part(start, span.len().checked_sub(start)?).ok()?),
        Place::Inline(bytes) => Place::Inline(bytes.get(start..)?.to_vec()),
    };
    Some(Endpoint { place, pitch: side.pitch, slice: side.slice })
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

    /// Every byte of the rows, as an address, in the order of the pieces.
    fn filled(op: &Op, bytes: u64) -> Vec<u64> {
        let (mut first, mut all) = (0, Vec::new());
        while let Some((Op::Fill(piece), count)) = part(op, first, bytes) {
            assert!(count > 0, "a piece gets ahead");
            for y in 0..piece.height {
                let row = piece.address + y * piece.pitch;
                all.extend(row..row + piece.width * u64::from(piece.element));
            }
            assert_eq!(count % u64::from(piece.element), 0, "whole elements");
            first += count;
        }
        all
    }

    #[test]
    fn the_pieces_of_a_fill_are_the_fill() {
        let fill =
            Fill { address: 0, pitch: 300_000, width: 70_000, height: 9, element: 4, value: 1 };
        let whole: Vec<u64> = (0..9).flat_map(|y| y * 300_000..y * 300_000 + 280_000).collect();
        for bytes in [1, 262_145, 270_003, 280_000, 300_000, 1_000_000, u64::MAX] {
            assert_eq!(filled(&Op::Fill(fill), bytes), whole, "{bytes}");
        }
        let (_, count) = part(&Op::Fill(fill), 0, 1).unwrap();
        assert_eq!(count, PART_BYTES_MIN);
    }

    #[test]
    fn a_fill_of_many_short_rows_is_cut_by_rows() {
        let rows = (1 << 30) - 2;
        let fill = Fill { address: 0, pitch: 1, width: 1, height: rows, element: 1, value: 1 };
        let (op, count) = part(&Op::Fill(fill), 10, u64::MAX).unwrap();
        assert_eq!(count, PART_ROWS_MAX);
        assert!(matches!(op, Op::Fill(Fill { address: 10, height: PART_ROWS_MAX, .. })));
    }

    #[test]
    fn the_pieces_of_a_copy_cover_rows_and_slices() {
        let side = |address, pitch, slice| Endpoint { place: Place::Device(address), pitch, slice };
        let shape = CopyShape { width: 100_000, height: 3, depth: 4 };
        let (dst, src) = (side(0, 100_000, 300_000), side(5_000_000, 200_000, 900_000));
        let op = Op::Copy { dst, src, shape };
        for bytes in [1, 300_000, 600_000, 700_000] {
            let (mut first, mut targets, mut sources) = (0, Vec::new(), Vec::new());
            while let Some((Op::Copy { dst, src, shape }, count)) = part(&op, first, bytes) {
                for (z, y) in (0..shape.depth).flat_map(|z| (0..shape.height).map(move |y| (z, y)))
                {
                    let row = |side: &Endpoint| match side.place {
                        Place::Device(address) => address + y * side.pitch + z * side.slice,
                        Place::Host(_) | Place::Inline(_) => unreachable!("both are device memory"),
                    };
                    targets.extend(row(&dst)..row(&dst) + shape.width);
                    sources.extend(row(&src)..row(&src) + shape.width);
                }
                first += count;
            }
            assert!(targets.iter().copied().eq(0..1_200_000), "{bytes}");
            let expected =
                (0..4).flat_map(|z| (0..3).map(move |y| 5_000_000 + z * 900_000 + y * 200_000));
            assert!(sources.into_iter().eq(expected.flat_map(|row| row..row + 100_000)), "{bytes}");
        }
    }
}
