//! Copies between devices. Sessions share nothing, so the bytes pass through this process.

use std::sync::Arc;

use weft_wire::Status;
use weft_wire::command::Shape;

use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::copy::{Layout, Remote, Source, Target, copy_host};
use crate::session::Session;
use crate::staging::{Piece, pieces, size};
use crate::stream::StreamState;

/// Bytes that are under way at a time.
const STEP: u64 = 16 << 20;

/// A side of a copy, with the stream that its device is reached through.
#[derive(Debug)]
enum Side<'a> {
    From(&'a [u8]),
    To(&'a mut [u8]),
    Device(Arc<StreamState>, Remote),
}

impl Client {
    /// Whether a side is memory of another device than the session's.
    pub(crate) fn is_elsewhere(
        &self,
        session: &Session,
        dst: &Target<'_>,
        src: &Source<'_>,
    ) -> bool {
        if self.sessions.len() <= 1 {
            return false;
        }
        let is_foreign = |address: u64| {
            let range = self.ranges.find(address);
            range.is_some_and(|range| range.context.ordinal() != session.ordinal)
        };
        matches!(dst, Target::Device(address) if is_foreign(*address))
            || matches!(src, Source::Device(address) if is_foreign(*address))
    }

    /// Copies a box of which a side is another device's. To `wait` means to wait for all that both
    /// devices do, and for the copy. Otherwise the copy has its place in the stream, between two
    /// devices without delaying the caller.
    pub(crate) fn copy_across(
        &self,
        stream: &StreamState,
        dst: Target<'_>,
        src: &Source<'_>,
        layout: &Layout,
        wait: bool,
    ) -> Result<(), Status> {
        stream.refuse_capture()?;
        let src = match src {
            Source::Host(bytes) => Side::From(bytes),
            Source::Device(address) => self.side_of(*address, layout.src_span()?, wait)?,
        };
        let dst = match dst {
            Target::Host(bytes) => Side::To(bytes),
            Target::Device(address) => self.side_of(address, layout.dst_span()?, wait)?,
        };
        let layout = layout.clone().joined();
        match (src, dst) {
            (Side::Device(from, src), Side::Device(to, dst)) if !wait => {
                // Where the other device's session is over, this one's data is not what it should
                // be.
                self.run_in_order(stream, move || {
                    copy(&Side::Device(from, src), &mut Side::Device(to, dst), &layout)
                })
            }
            (src, mut dst) => {
                stream.finish()?;
                copy(&src, &mut dst, &layout)
            }
        }
    }

    /// The side that an address is. Whoever does not `wait` for what its device does otherwise
    /// reaches it through a stream of its own.
    fn side_of(&self, address: u64, span: u64, wait: bool) -> Result<Side<'static>, Status> {
        let range = self.pointer_range(address)?;
        let context = self.contexts.get(range.context).ok_or(Status::INVALID_VALUE)?;
        let remote = self.device_side(&context.session, address, span)?;
        let stream = match wait {
            true => Arc::clone(&context.legacy),
            false => self.transfers_of(&context)?,
        };
        Ok(Side::Device(stream, remote))
    }

    /// The context's stream for copies that other devices ask for.
    fn transfers_of(&self, context: &ContextState) -> Result<Arc<StreamState>, Status> {
        let mut transfers = lock(&context.transfers);
        if let Some(stream) = transfers.and_then(|stream| self.streams.get(stream)) {
            return Ok(stream);
        }
        let stream = self.new_stream(context, StreamState::NON_BLOCKING, 0)?;
        *transfers = Some(stream);
        self.streams.get(stream).ok_or(Status::INVALID_HANDLE)
    }
}

/// Copies from side to side, a part at a time.
fn copy(src: &Side<'_>, dst: &mut Side<'_>, layout: &Layout) -> Result<(), Status> {
    pieces(&layout.shape, STEP).try_for_each(|piece| copy_piece(src, dst, layout, &piece))
}

fn copy_piece(
    src: &Side<'_>,
    dst: &mut Side<'_>,
    layout: &Layout,
    piece: &Piece,
) -> Result<(), Status> {
    let [width, height, depth] = piece.size;
    let plane = width * height;
    let shape = Shape { width, height, depth };
    let gather = Layout { shape, dst_pitch: width, dst_slice: plane, ..layout.clone() };
    let scatter = Layout {
        src_pitch: width,
        src_slice: plane,
        dst_pitch: layout.dst_pitch,
        dst_slice: layout.dst_slice,
        ..gather.clone()
    };
    let from = piece.offset(layout.src_pitch, layout.src_slice);
    let to = piece.offset(layout.dst_pitch, layout.dst_slice);
    let mut packed = vec![0; size(piece.bytes())?];
    match src {
        Side::From(bytes) => {
            let bytes = bytes.get(size(from)?..).ok_or(Status::INVALID_VALUE)?;
            copy_host(&mut packed, bytes, &gather)?;
        }
        Side::Device(stream, remote) => {
            stream.stage_out(&mut packed, &remote.behind(from), &gather)?;
        }
        Side::To(_) => return Err(Status::INVALID_VALUE),
    }
    match dst {
        Side::To(bytes) => {
            let bytes = bytes.get_mut(size(to)?..).ok_or(Status::INVALID_VALUE)?;
            copy_host(bytes, &packed, &scatter)
        }
        Side::Device(stream, remote) => {
            stream.stage_in(&remote.behind(to), &packed, &scatter)?;
            stream.finish()
        }
        Side::From(_) => Err(Status::INVALID_VALUE),
    }
}
