//! Copies and fills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_ring::{Cell, SharedSpan};

use super::host::HostMemory;
use super::{Memory, Via};
use crate::PAGE;
use crate::soft::pieces::WATCHED_BYTES;
use crate::{CopyShape, DeviceError, Endpoint, Fill, Place};

/// Bytes of the buffer for device-to-device copies, and of a piece of a fill.
const CHUNK: usize = 64 << 10;

/// Copies that go on where the last one ended, and together are longer than this, are written
/// around the caches: no cache holds them until they are used.
const STREAM_BYTES: u64 = 16 << 20;

/// Device memory that was copied from or to without a gap.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    end: u64,
    bytes: u64,
}

/// A copy and how far it got.
#[derive(Debug)]
pub(crate) struct Copying {
    dst: Endpoint,
    src: Endpoint,
    shape: CopyShape,
    at: Cursor,
}

/// A fill and how far it got.
#[derive(Debug)]
pub(crate) struct Filling {
    fill: Fill,
    /// Whole elements.
    pattern: Vec<u8>,
    /// Bytes of a row.
    row: u64,
    at: Cursor,
}

enum Word {
    Narrow(Cell<AtomicU32>),
    Wide(Cell<AtomicU64>),
}

#[derive(Debug, Default)]
struct Cursor {
    x: u64,
    y: u64,
    z: u64,
}

impl Copying {
    /// A copy that has not begun.
    #[must_use]
    pub(crate) fn new(dst: Endpoint, src: Endpoint, shape: CopyShape) -> Self {
        Self { dst, src, shape, at: Cursor::default() }
    }

    /// All bytes that it moves.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.width.saturating_mul(self.shape.height).saturating_mul(self.shape.depth)
    }
}

impl Filling {
    /// A fill that has not begun.
    #[must_use]
    pub(crate) fn new(fill: Fill) -> Self {
        let element = usize::from(fill.element.clamp(1, 4));
        let bytes = fill.value.to_le_bytes();
        let row = fill.width.saturating_mul(element as u64);
        let len = usize::try_from(row).unwrap_or(usize::MAX).min(CHUNK);
        // CHUNK is a multiple of every element size, so each piece begins with a whole element.
        let pattern = bytes[..element].iter().copied().cycle().take(len).collect();
        Self { fill, pattern, row, at: Cursor::default() }
    }

    /// All bytes that it sets.
    pub(crate) fn bytes(&self) -> u64 {
        self.row.saturating_mul(self.fill.height)
    }
}

impl Memory {
    /// The bytes at `address` up to `bytes`, as one span: at least one byte, as far as frames are
    /// adjacent.
    fn span(&self, via: Via, address: u64, bytes: u64) -> Result<SharedSpan, DeviceError> {
        let bad = DeviceError::BadRange { address, bytes };
        let window = self.window_via(via, address).ok_or_else(|| bad.clone())?;
        let offset = address - window.lo;
        let len = (window.len - offset).min(bytes);
        let base = self.store.memory();
        let start = (window.host.addr())
            .wrapping_sub(base.address())
            .wrapping_add(usize::try_from(offset).map_err(|_| bad.clone())?);
        let len = usize::try_from(len).map_err(|_| bad.clone())?;
        if window.shared {
            let memory = self.host.as_ref().ok_or_else(|| bad.clone())?.memory();
            let place = window.host.addr().wrapping_add(usize::try_from(offset).unwrap_or(0));
            return memory.span_at(place, len).map_err(|_| bad);
        }
        base.span(start, len).map_err(|_| bad)
    }

    /// Copies device memory out, for an operation.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let span = self.span(Via::Physical, at, (into.len() - done) as u64)?;
            let end = done + span.len();
            span.read_into(&mut into[done..end]).map_err(|_| bad(at, span.len()))?;
            done = end;
        }
        Ok(())
    }

    /// Copies into the vGPU's memory, whoever has the device.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] for unmapped bytes; those before them are copied.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.write_via(Via::Private, address, from)
    }

    fn write_via(&self, via: Via, address: u64, from: &[u8]) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < from.len() {
            let at = address.wrapping_add(done as u64);
            let span = self.span(via, at, (from.len() - done) as u64)?;
            let end = done + span.len();
            span.write_from(&from[done..end]).map_err(|_| bad(at, span.len()))?;
            done = end;
        }
        Ok(())
    }

    /// Reads the aligned word at `address` whole.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] when it is not mapped or not aligned.
    pub(crate) fn read_word(&self, address: u64, wide: bool) -> Result<u64, DeviceError> {
        let cell = self.word(address, wide)?;
        Ok(match cell {
            Word::Narrow(cell) => u64::from(cell.load(Ordering::Acquire)),
            Word::Wide(cell) => cell.load(Ordering::Acquire),
        })
    }

    /// Writes the aligned word at `address` whole.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] when it is not mapped or not aligned.
    pub(crate) fn write_word(
        &self,
        address: u64,
        value: u64,
        wide: bool,
    ) -> Result<(), DeviceError> {
        match self.word(address, wide)? {
            Word::Narrow(cell) => {
                let low = u32::try_from(value & 0xffff_ffff).unwrap_or(0);
                cell.store(low, Ordering::Release);
            }
            Word::Wide(cell) => cell.store(value, Ordering::Release),
        }
        Ok(())
    }

    /// The aligned 64-bit word at `address`.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] when it is not mapped or not aligned.
    pub(crate) fn wide_word(&self, address: u64) -> Result<Cell<AtomicU64>, DeviceError> {
        match self.word(address, true)? {
            Word::Wide(cell) => Ok(cell),
            Word::Narrow(_) => Err(DeviceError::BadRange { address, bytes: 8 }),
        }
    }

    fn word(&self, address: u64, wide: bool) -> Result<Word, DeviceError> {
        let bytes = if wide { 8 } else { 4 };
        let span = self.span(Via::Private, address, bytes)?;
        let unusable = |_| DeviceError::BadRange { address, bytes };
        if span.len() as u64 != bytes {
            return Err(DeviceError::BadRange { address, bytes });
        }
        Ok(if wide {
            Word::Wide(span.mapping().cell(span.offset()).map_err(unusable)?)
        } else {
            Word::Narrow(span.mapping().cell(span.offset()).map_err(unusable)?)
        })
    }

    /// Whether a copy at this device address is a part of one that no cache holds.
    fn is_streaming(&self, address: u64, bytes: u64) -> bool {
        let last = self.run.get();
        let before = if last.end == address { last.bytes } else { 0 };
        let run = Run { end: address.wrapping_add(bytes), bytes: before.saturating_add(bytes) };
        self.run.set(run);
        run.bytes > STREAM_BYTES
    }

    fn copy_to_host(&self, address: u64, target: &SharedSpan) -> Result<(), DeviceError> {
        // What is staged is copied on at once, out of the cache.
        let is_window = |host: &HostMemory| Arc::ptr_eq(host.memory(), target.mapping());
        let streaming = self.is_streaming(address, target.len() as u64)
            && self.host.as_ref().is_some_and(is_window);
        let mut done = 0;
        while done < target.len() {
            let at = address.wrapping_add(done as u64);
            let from = self.span(Via::Physical, at, (target.len() - done) as u64)?;
            let to = target.part(done, from.len()).map_err(|_| bad(at, from.len()))?;
            let copied = if streaming { from.copy_streaming(&to) } else { from.copy_to(&to) };
            copied.map_err(|_| bad(at, from.len()))?;
            done += from.len();
        }
        Ok(())
    }

    fn copy_from_host(&self, address: u64, source: &SharedSpan) -> Result<(), DeviceError> {
        let streaming = self.is_streaming(address, source.len() as u64);
        let mut done = 0;
        while done < source.len() {
            let at = address.wrapping_add(done as u64);
            let to = self.span(Via::Physical, at, (source.len() - done) as u64)?;
            let from = source.part(done, to.len()).map_err(|_| bad(at, to.len()))?;
            let copied = if streaming { from.copy_streaming(&to) } else { from.copy_to(&to) };
            copied.map_err(|_| bad(at, to.len()))?;
            done += to.len();
        }
        Ok(())
    }

    fn within(&self, dst: u64, src: u64, bytes: u64) -> Result<(), DeviceError> {
        let mut buffer = vec![0; CHUNK.min(usize::try_from(bytes).unwrap_or(CHUNK))];
        let backwards = dst > src && dst - src < bytes;
        let mut done = 0;
        while done < bytes {
            let len = (bytes - done).min(CHUNK as u64);
            let offset = if backwards { bytes - done - len } else { done };
            let chunk = &mut buffer[..usize::try_from(len).unwrap_or(0)];
            self.read(src.wrapping_add(offset), chunk)?;
            self.write_via(Via::Physical, dst.wrapping_add(offset), chunk)?;
            done += len;
        }
        Ok(())
    }

    /// Copies the next piece of a copy between any two places, which is not at its end; its bytes.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] when a row leaves its place.
    pub(crate) fn copy_piece(&self, copy: &mut Copying) -> Result<u64, DeviceError> {
        let Copying { dst, src, shape, at } = copy;
        let offset = |e: &Endpoint| {
            let row = e.slice.wrapping_mul(at.z).wrapping_add(e.pitch.wrapping_mul(at.y));
            row.wrapping_add(at.x)
        };
        let len = (shape.width - at.x).min(WATCHED_BYTES);
        self.copy_row(&dst.place, offset(dst), &src.place, offset(src), len)?;
        at.x += len;
        if at.x == shape.width {
            at.x = 0;
            at.y += 1;
        }
        if at.y == shape.height {
            at.y = 0;
            at.z += 1;
        }
        Ok(len)
    }

    fn copy_row(
        &self,
        dst: &Place,
        to: u64,
        src: &Place,
        from: u64,
        width: u64,
    ) -> Result<(), DeviceError> {
        let len = usize::try_from(width).map_err(|_| bad(to, 0))?;
        let part = |span: &SharedSpan, at: u64| {
            let at = usize::try_from(at).map_err(|_| bad(at, len))?;
            span.part(at, len).map_err(|_| bad(at as u64, len))
        };
        let inline = |bytes: &'_ [u8]| -> Result<Vec<u8>, DeviceError> {
            let start = usize::try_from(from).map_err(|_| bad(from, len))?;
            let end = start.checked_add(len).ok_or_else(|| bad(from, len))?;
            bytes.get(start..end).map(<[u8]>::to_vec).ok_or_else(|| bad(from, len))
        };
        match (dst, src) {
            (Place::Device(d), Place::Device(s)) => {
                self.within(d.wrapping_add(to), s.wrapping_add(from), width)
            }
            (Place::Device(d), Place::Host(s)) => {
                self.copy_from_host(d.wrapping_add(to), &part(s, from)?)
            }
            (Place::Device(d), Place::Inline(s)) => {
                self.write_via(Via::Physical, d.wrapping_add(to), &inline(s)?)
            }
            (Place::Host(d), Place::Device(s)) => {
                self.copy_to_host(s.wrapping_add(from), &part(d, to)?)
            }
            (Place::Host(d), Place::Host(s)) => {
                part(s, from)?.copy_to(&part(d, to)?).map_err(|_| bad(to, len))
            }
            (Place::Host(d), Place::Inline(s)) => {
                part(d, to)?.write_from(&inline(s)?).map_err(|_| bad(to, len))
            }
            (Place::Inline(_), _) => Err(bad(to, len)),
        }
    }

    /// Sets the next piece of a fill, which is not at its end; its bytes.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] when a row is not mapped.
    pub(crate) fn fill_piece(&self, filling: &mut Filling) -> Result<u64, DeviceError> {
        let Filling { fill, pattern, row, at } = filling;
        let start = fill.address.wrapping_add(fill.pitch.wrapping_mul(at.y));
        let piece = (*row - at.x).min(pattern.len() as u64);
        let piece_len = usize::try_from(piece).unwrap_or(0);
        self.write_via(Via::Physical, start.wrapping_add(at.x), &pattern[..piece_len])?;
        at.x += piece;
        if at.x == *row {
            at.x = 0;
            at.y += 1;
        }
        Ok(piece)
    }
}

fn bad(address: u64, bytes: usize) -> DeviceError {
    DeviceError::BadRange { address, bytes: bytes as u64 }
}

const _: () = assert!((CHUNK as u64).is_multiple_of(PAGE), "pieces are whole pages");
