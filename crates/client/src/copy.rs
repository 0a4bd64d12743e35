//! Copies of every kind, as one transfer between two sides.

use weft_wire::command::{Endpoint, Payload, Place, Shape};
use weft_wire::{Command, Status};

use crate::client::Client;
use crate::graph::{CopySide, CopyWork, Work};
use crate::handle::Stream;
use crate::session::Session;
use crate::staging::{INLINE_MAX, Piece};
use crate::stream::StreamState;

/// Where bytes come from.
#[derive(Debug)]
pub enum Source<'a> {
    /// A device address (or one that the device uses under the same number).
    Device(u64),
    /// Host memory: all bytes from the first to the last row.
    Host(&'a [u8]),
}

/// Where bytes go.
#[derive(Debug)]
pub enum Target<'a> {
    /// A device address (or one that the device uses under the same number).
    Device(u64),
    /// Host memory: all bytes from the first to the last row.
    Host(&'a mut [u8]),
}

/// A box of bytes on two sides: the first byte is where the side starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Bytes per row, rows per slice, slices.
    pub shape: Shape,
    /// From one row of the target to the next, in bytes.
    pub dst_pitch: u64,
    /// From one slice of the target to the next, in bytes.
    pub dst_slice: u64,
    /// From one row of the source to the next, in bytes.
    pub src_pitch: u64,
    /// From one slice of the source to the next, in bytes.
    pub src_slice: u64,
}

impl Layout {
    /// Consecutive bytes.
    #[must_use]
    pub fn linear(bytes: u64) -> Self {
        Self {
            shape: Shape { width: bytes, height: 1, depth: 1 },
            dst_pitch: 0,
            dst_slice: 0,
            src_pitch: 0,
            src_slice: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.shape.width == 0 || self.shape.height == 0 || self.shape.depth == 0
    }

    /// Bytes from the first to behind the last of a side.
    fn span(&self, pitch: u64, slice: u64) -> Option<u64> {
        let rows = self.shape.height.checked_sub(1)?.checked_mul(pitch)?;
        let slices = self.shape.depth.checked_sub(1)?.checked_mul(slice)?;
        rows.checked_add(slices)?.checked_add(self.shape.width)
    }

    /// Bytes of the target from the first to behind the last.
    ///
    /// # Errors
    /// `INVALID_VALUE` when rows overlap or the size has no number.
    pub fn dst_span(&self) -> Result<u64, Status> {
        self.checked_span(self.dst_pitch, self.dst_slice)
    }

    /// Bytes of the source from the first to behind the last.
    ///
    /// # Errors
    /// As [`Layout::dst_span`].
    pub fn src_span(&self) -> Result<u64, Status> {
        self.checked_span(self.src_pitch, self.src_slice)
    }

    fn checked_span(&self, pitch: u64, slice: u64) -> Result<u64, Status> {
        if self.is_empty() {
            return Ok(0);
        }
        let Shape { width, height, depth } = self.shape;
        let overlap = (height > 1 && pitch < width) || (depth > 1 && slice < width);
        if overlap {
            return Err(Status::INVALID_VALUE);
        }
        self.span(pitch, slice).ok_or(Status::INVALID_VALUE)
    }

    /// The same with rows and slices joined where both sides are packed.
    pub(crate) fn joined(mut self) -> Self {
        let Shape { width, height, depth } = self.shape;
        let packed_rows = height == 1 || (self.dst_pitch == width && self.src_pitch == width);
        let plane = width.saturating_mul(height);
        let packed_slices = depth == 1 || (self.dst_slice == plane && self.src_slice == plane);
        if packed_rows && packed_slices {
            return Self::linear(plane.saturating_mul(depth));
        }
        if depth == 1 {
            (self.dst_slice, self.src_slice) = (0, 0);
        }
        self
    }
}

/// A side that the worker reaches by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remote {
    /// Device memory.
    Device(u64),
    /// The pinned window.
    Pinned(u64),
}

impl Remote {
    fn address(self) -> u64 {
        match self {
            Self::Device(address) | Self::Pinned(address) => address,
        }
    }

    /// The same, so many bytes further.
    pub(crate) fn behind(self, bytes: u64) -> Self {
        match self {
            Self::Device(address) => Self::Device(address.saturating_add(bytes)),
            Self::Pinned(address) => Self::Pinned(address.saturating_add(bytes)),
        }
    }

    /// The whole side; `span` is its bytes from the first to behind the last.
    fn endpoint(self, pitch: u64, slice: u64, span: u64) -> Endpoint<'static> {
        let place = match self {
            Self::Device(address) => Place::Device(address),
            Self::Pinned(address) => Place::Host(Payload::Pinned { address, bytes: span }),
        };
        Endpoint { place, pitch, slice }
    }

    /// The part of the side that a piece covers.
    pub(crate) fn piece(self, piece: &Piece, pitch: u64, slice: u64) -> Endpoint<'static> {
        let address = self.address().saturating_add(piece.offset(pitch, slice));
        let [width, height, depth] = piece.size;
        let span = width + (height - 1) * pitch + (depth - 1) * slice;
        let part = match self {
            Self::Device(_) => Self::Device(address),
            Self::Pinned(_) => Self::Pinned(address),
        };
        part.endpoint(pitch, slice, span)
    }
}

impl Client {
    /// Copies host bytes to the device. Returns when `src` may be overwritten.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the device range is not an allocation's, or a fault.
    pub fn copy_htod(&self, dst: u64, src: &[u8]) -> Result<(), Status> {
        let layout = Layout::linear(src.len() as u64);
        self.copy_sync(Target::Device(dst), Source::Host(src), layout)
    }

    /// Copies device bytes to the host. Returns when they have arrived.
    ///
    /// # Errors
    /// As [`Client::copy_htod`].
    pub fn copy_dtoh(&self, dst: &mut [u8], src: u64) -> Result<(), Status> {
        let layout = Layout::linear(dst.len() as u64);
        self.copy_sync(Target::Host(dst), Source::Device(src), layout)
    }

    /// Copies between device addresses.
    ///
    /// # Errors
    /// As [`Client::copy_htod`].
    pub fn copy_dtod(&self, dst: u64, src: u64, bytes: u64) -> Result<(), Status> {
        self.copy_sync(Target::Device(dst), Source::Device(src), Layout::linear(bytes))
    }

    /// Copies host bytes to the device in stream order. Pageable bytes may be overwritten at
    /// return, page-locked ones when the copy has ended.
    ///
    /// # Errors
    /// As [`Client::copy_htod`], or what a capture refuses.
    pub fn copy_htod_async(&self, dst: u64, src: &[u8], stream: Stream) -> Result<(), Status> {
        let layout = Layout::linear(src.len() as u64);
        self.copy_async(Target::Device(dst), Source::Host(src), layout, stream)
    }

    /// Copies device bytes to the host in stream order. Pageable bytes have arrived at return.
    ///
    /// # Errors
    /// As [`Client::copy_htod_async`].
    pub fn copy_dtoh_async(&self, dst: &mut [u8], src: u64, stream: Stream) -> Result<(), Status> {
        let layout = Layout::linear(dst.len() as u64);
        self.copy_async(Target::Host(dst), Source::Device(src), layout, stream)
    }

    /// Copies between device addresses in stream order.
    ///
    /// # Errors
    /// As [`Client::copy_htod_async`].
    pub fn copy_dtod_async(
        &self,
        dst: u64,
        src: u64,
        bytes: u64,
        stream: Stream,
    ) -> Result<(), Status> {
        let layout = Layout::linear(bytes);
        self.copy_async(Target::Device(dst), Source::Device(src), layout, stream)
    }

    /// Copies a box between any two sides, on the legacy stream, and waits where the native driver
    /// does.
    ///
    /// # Errors
    /// As [`Client::copy_htod`].
    pub fn copy_sync(
        &self,
        dst: Target<'_>,
        src: Source<'_>,
        layout: Layout,
    ) -> Result<(), Status> {
        let stream = self.stream(Stream::LEGACY)?;
        self.transfer(&stream, dst, src, layout, true)
    }

    /// As [`Client::copy_sync`] on another default stream (the `_ptds` spellings).
    ///
    /// # Errors
    /// As [`Client::copy_htod`].
    pub fn copy_sync_on(
        &self,
        dst: Target<'_>,
        src: Source<'_>,
        layout: Layout,
        stream: Stream,
    ) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        self.transfer(&stream, dst, src, layout, true)
    }

    /// Copies a box between any two sides in stream order.
    ///
    /// # Errors
    /// As [`Client::copy_htod_async`].
    pub fn copy_async(
        &self,
        dst: Target<'_>,
        src: Source<'_>,
        layout: Layout,
        stream: Stream,
    ) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        self.transfer(&stream, dst, src, layout, false)
    }

    fn transfer(
        &self,
        stream: &StreamState,
        dst: Target<'_>,
        src: Source<'_>,
        layout: Layout,
        wait: bool,
    ) -> Result<(), Status> {
        let (dst_span, src_span) = (layout.dst_span()?, layout.src_span()?);
        if layout.is_empty() {
            return Ok(());
        }
        let session = &*stream.session;
        if self.is_elsewhere(session, &dst, &src) {
            return self.copy_across(stream, dst, &src, &layout, wait);
        }
        let dst_remote = match &dst {
            Target::Device(address) => Some(self.device_side(session, *address, dst_span)?),
            Target::Host(bytes) => host_side(session, bytes, dst_span)?,
        };
        let src_remote = match &src {
            Source::Device(address) => Some(self.device_side(session, *address, src_span)?),
            Source::Host(bytes) => host_side(session, bytes, src_span)?,
        };
        let layout = layout.joined();
        if stream.is_capturing() {
            return self.capture_copy(stream, dst_remote, src_remote, &layout, wait);
        }
        match (dst_remote, src_remote, dst, src) {
            (Some(dst), Some(src), ..) => {
                // Of copies that stay on the device the native driver does not wait for the end.
                let wait =
                    wait && (matches!((dst, src), (Remote::Pinned(_), _) | (_, Remote::Pinned(_))));
                stream.copy_remote(dst, src, &layout, wait)
            }
            (Some(dst), None, _, Source::Host(src)) => stream.copy_in(dst, src, &layout),
            (None, Some(src), Target::Host(dst), _) => stream.stage_out(dst, &src, &layout),
            (None, None, Target::Host(dst), Source::Host(src)) => {
                stream.finish()?;
                copy_host(dst, src, &layout)
            }
            // A device side always is a remote one.
            _ => Err(Status::INVALID_VALUE),
        }
    }

    pub(crate) fn device_side(
        &self,
        session: &Session,
        address: u64,
        span: u64,
    ) -> Result<Remote, Status> {
        if session.pinned.holds(address, span) {
            return Ok(Remote::Pinned(address));
        }
        self.check_device_span(session, address, span)?;
        Ok(Remote::Device(address))
    }

    fn capture_copy(
        &self,
        stream: &StreamState,
        dst: Option<Remote>,
        src: Option<Remote>,
        layout: &Layout,
        wait: bool,
    ) -> Result<(), Status> {
        // A graph reads host memory when it is launched, which only page-locked memory allows.
        let (Some(dst), Some(src), false) = (dst, src, wait) else {
            return stream.refuse_capture();
        };
        let side =
            |remote: Remote, pitch, slice| CopySide { address: remote.address(), pitch, slice };
        let dst = side(dst, layout.dst_pitch, layout.dst_slice);
        let src = side(src, layout.src_pitch, layout.src_slice);
        let work = CopyWork { dst, src, shape: layout.shape.clone() };
        self.capture_work(stream, Work::Copy(work))
    }

    /// The wire's form of a graph's copy side.
    pub(crate) fn graph_side(
        &self,
        session: &Session,
        side: &CopySide,
        span: u64,
    ) -> Result<Endpoint<'static>, Status> {
        let remote = self.device_side(session, side.address, span)?;
        Ok(remote.endpoint(side.pitch, side.slice, span))
    }
}

/// Bytes of a pinned copy that go with one command where the worker is on another host, and this
/// one has few processors.
const FAR_BYTES: u64 = 4 << 20;

impl StreamState {
    fn copy_remote(
        &self,
        mut dst: Remote,
        mut src: Remote,
        layout: &Layout,
        wait: bool,
    ) -> Result<(), Status> {
        let Shape { width, height, depth } = layout.shape;
        let is_far = wait && self.session.side.sleeps_at_once();
        if !is_far || width <= FAR_BYTES || height != 1 || depth != 1 {
            return self.copy_at_once(dst, src, layout, wait);
        }
        // The worker copies the first while those behind it are on their way.
        let mut left = width;
        while left > FAR_BYTES {
            self.copy_at_once(dst, src, &Layout::linear(FAR_BYTES), false)?;
            (dst, src) = (dst.behind(FAR_BYTES), src.behind(FAR_BYTES));
            left -= FAR_BYTES;
        }
        self.copy_at_once(dst, src, &Layout::linear(left), true)
    }

    fn copy_at_once(
        &self,
        dst: Remote,
        src: Remote,
        layout: &Layout,
        wait: bool,
    ) -> Result<(), Status> {
        let dst = dst.endpoint(layout.dst_pitch, layout.dst_slice, layout.dst_span()?);
        let src = src.endpoint(layout.src_pitch, layout.src_slice, layout.src_span()?);
        let (stream_id, shape) = (self.id, layout.shape.clone());
        if wait {
            let command = Command::CopySync { stream: stream_id, dst, src, shape };
            return self.call(&command);
        }
        self.send(&Command::Copy { stream: stream_id, dst, src, shape })
    }

    fn copy_in(&self, dst: Remote, src: &[u8], layout: &Layout) -> Result<(), Status> {
        let bytes = usize::try_from(layout.shape.width).map_err(|_| Status::INVALID_VALUE)?;
        let linear = layout.shape.height == 1 && layout.shape.depth == 1;
        if !linear || bytes > INLINE_MAX {
            return self.stage_in(&dst, src, layout);
        }
        let inline = src.get(..bytes).ok_or(Status::INVALID_VALUE)?;
        let place = Place::Host(Payload::Inline(inline));
        self.send(&Command::Copy {
            stream: self.id,
            dst: dst.endpoint(0, 0, layout.shape.width),
            src: Endpoint { place, pitch: 0, slice: 0 },
            shape: layout.shape.clone(),
        })
    }
}

/// The pinned side that host bytes are, if they lie in the session's window.
fn host_side(session: &Session, bytes: &[u8], span: u64) -> Result<Option<Remote>, Status> {
    if (bytes.len() as u64) < span {
        return Err(Status::INVALID_VALUE);
    }
    let address = bytes.as_ptr().addr() as u64;
    Ok(session.pinned.holds(address, span).then_some(Remote::Pinned(address)))
}

/// Copies rows within this process.
pub(crate) fn copy_host(dst: &mut [u8], src: &[u8], layout: &Layout) -> Result<(), Status> {
    let whole =
        Piece { at: [0; 3], size: [layout.shape.width, layout.shape.height, layout.shape.depth] };
    let index = |value: u64| usize::try_from(value).map_err(|_| Status::INVALID_VALUE);
    let width = index(layout.shape.width)?;
    let to = whole.rows(layout.dst_pitch, layout.dst_slice);
    let from = whole.rows(layout.src_pitch, layout.src_slice);
    for ((to, _), (from, _)) in to.zip(from) {
        let (to, from) = (index(to)?, index(from)?);
        let target = dst.get_mut(to..).and_then(|rest| rest.get_mut(..width));
        let source = src.get(from..).and_then(|rest| rest.get(..width));
        let (Some(target), Some(source)) = (target, source) else {
            return Err(Status::INVALID_VALUE);
        };
        target.copy_from_slice(source);
    }
    Ok(())
}
