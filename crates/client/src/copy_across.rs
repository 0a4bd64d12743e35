//! Copies between devices. Sessions share nothing, so the bytes pass through this process.

use std::sync::Arc;

use weft_wire::Status;
use weft_wire::command::Shape;

use crate::client::Client;
use crate::copy::{Layout, Remote, Source, Target, copy_host};
use crate::session::Session;
use crate::stream::StreamState;

/// Bytes that a linear copy takes at a time.
const STEP: u64 = 32 << 20;

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

    /// Copies a box of which a side is another device's, after the stream's earlier work. Returns
    /// when it has arrived there.
    pub(crate) fn copy_across(
        &self,
        stream: &StreamState,
        mut dst: Target<'_>,
        src: &Source<'_>,
        layout: &Layout,
    ) -> Result<(), Status> {
        stream.refuse_capture()?;
        stream.finish()?;
        let layout = layout.clone().joined();
        let Shape { width, height, depth } = layout.shape;
        if height > 1 || depth > 1 {
            return self.copy_part(stream, &mut dst, src, 0, &layout);
        }
        for at in (0..width).step_by(size(STEP)?) {
            let part = Layout::linear(STEP.min(width - at));
            self.copy_part(stream, &mut dst, src, at, &part)?;
        }
        Ok(())
    }

    /// Copies a box that begins `at` bytes behind either side's first.
    fn copy_part(
        &self,
        stream: &StreamState,
        dst: &mut Target<'_>,
        src: &Source<'_>,
        at: u64,
        layout: &Layout,
    ) -> Result<(), Status> {
        let Shape { width, height, depth } = layout.shape;
        let plane = width.saturating_mul(height);
        let mut packed = vec![0; size(plane.saturating_mul(depth))?];
        let gather = Layout { dst_pitch: width, dst_slice: plane, ..layout.clone() };
        let scatter = Layout { src_pitch: width, src_slice: plane, ..layout.clone() };
        match src {
            Source::Host(bytes) => {
                let bytes = bytes.get(size(at)?..).ok_or(Status::INVALID_VALUE)?;
                copy_host(&mut packed, bytes, &gather)?;
            }
            Source::Device(address) => {
                let address = address.checked_add(at).ok_or(Status::INVALID_VALUE)?;
                let (owner, side) = self.side_of(stream, address, gather.src_span()?)?;
                owner.as_deref().unwrap_or(stream).stage_out(&mut packed, &side, &gather)?;
            }
        }
        match dst {
            Target::Host(bytes) => {
                let bytes = bytes.get_mut(size(at)?..).ok_or(Status::INVALID_VALUE)?;
                copy_host(bytes, &packed, &scatter)
            }
            Target::Device(address) => {
                let address = address.checked_add(at).ok_or(Status::INVALID_VALUE)?;
                let (owner, side) = self.side_of(stream, address, scatter.dst_span()?)?;
                let owner = owner.as_deref().unwrap_or(stream);
                owner.stage_in(&side, &packed, &scatter)?;
                owner.finish()
            }
        }
    }

    /// The side that an address is, and the stream that reaches it unless `stream` does.
    fn side_of(
        &self,
        stream: &StreamState,
        address: u64,
        span: u64,
    ) -> Result<(Option<Arc<StreamState>>, Remote), Status> {
        let range = self.pointer_range(address)?;
        if range.context.ordinal() == stream.session.ordinal {
            return Ok((None, self.device_side(&stream.session, address, span)?));
        }
        let context = self.contexts.get(range.context).ok_or(Status::INVALID_VALUE)?;
        let side = self.device_side(&context.session, address, span)?;
        Ok((Some(Arc::clone(&context.legacy)), side))
    }
}

fn size(bytes: u64) -> Result<usize, Status> {
    usize::try_from(bytes).map_err(|_| Status::INVALID_VALUE)
}
