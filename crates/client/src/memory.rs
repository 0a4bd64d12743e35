//! Device memory.

use weft_wire::reply::{Address, MemoryUse};
use weft_wire::{Command, Status};

use crate::client::Client;
use crate::handle::{MemPool, Stream};
use crate::pointer::{Range, RangeKind};

/// Rows of pitched memory start at multiples of this, in bytes.
const PITCH: u64 = 512;

impl Client {
    /// Allocates device memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for zero bytes, `OUT_OF_MEMORY` beyond the vGPU's quota.
    pub fn mem_alloc(&self, bytes: u64) -> Result<u64, Status> {
        let context = self.current()?;
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let command = Command::MemAlloc { context: context.id, bytes };
        let Address { address } = context.session.call_for(&command)?;
        context.session.keep_range(address, bytes)?;
        let number = self.number();
        let kind = RangeKind::Device;
        self.ranges.insert(Range { start: address, bytes, kind, context: context.handle, number });
        Ok(address)
    }

    /// Allocates `height` rows of at least `width` bytes and returns address and pitch.
    ///
    /// # Errors
    /// As [`Client::mem_alloc`]; `element` is 4, 8 or 16.
    pub fn mem_alloc_pitch(
        &self,
        width: u64,
        height: u64,
        element: u32,
    ) -> Result<(u64, u64), Status> {
        if !matches!(element, 4 | 8 | 16) || width == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let pitch = width.checked_next_multiple_of(PITCH).ok_or(Status::INVALID_VALUE)?;
        let bytes = pitch.checked_mul(height).ok_or(Status::INVALID_VALUE)?;
        Ok((self.mem_alloc(bytes)?, pitch))
    }

    /// Frees device, pooled or managed memory. Null is nothing to free.
    ///
    /// # Errors
    /// `INVALID_VALUE` when `address` is not the start of an allocation.
    pub fn mem_free(&self, address: u64) -> Result<(), Status> {
        if address == 0 {
            return Ok(());
        }
        let session = self.home(self.pointer_range(address)?.context)?;
        session.healthy()?;
        let freeable = |range: &Range| {
            matches!(range.kind, RangeKind::Device | RangeKind::Pool(_) | RangeKind::Managed(_))
        };
        let range = self.ranges.remove(address, freeable).ok_or(Status::INVALID_VALUE)?;
        if matches!(range.kind, RangeKind::Managed(_)) {
            return self.free_shared(&range);
        }
        self.account_free(&range);
        session.call(&Command::MemFree { address })
    }

    /// Free and total device memory of the vGPU, in bytes.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, or what the worker answers.
    pub fn mem_info(&self) -> Result<(u64, u64), Status> {
        let context = self.current()?;
        let MemoryUse { free, total } = context.session.call_for(&Command::MemInfo {})?;
        Ok((free, total))
    }

    /// Allocates from a pool (null: the device's current one) in stream order.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `OUT_OF_MEMORY`, `STREAM_CAPTURE_UNSUPPORTED` in a capture.
    pub fn mem_alloc_async(
        &self,
        bytes: u64,
        pool: MemPool,
        stream: Stream,
    ) -> Result<u64, Status> {
        let stream = self.stream(stream)?;
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        stream.refuse_capture()?;
        let session = &stream.session;
        let device = i32::from(session.ordinal);
        let pool = if pool.is_null() { self.pool_current(device)? } else { pool };
        let state = self.pools.get(pool).filter(|pool| pool.ordinal == session.ordinal);
        let state = state.ok_or(Status::INVALID_VALUE)?;
        let context = self.contexts.get(stream.context).ok_or(Status::CONTEXT_IS_DESTROYED)?;
        let command = Command::MemAllocAsync { context: context.id, stream: stream.id, bytes };
        let Address { address } = session.call_for(&command)?;
        session.keep_range(address, bytes)?;
        state.account_alloc(bytes);
        self.ranges.insert(Range {
            start: address,
            bytes,
            kind: RangeKind::Pool(pool),
            context: stream.context,
            number: self.number(),
        });
        Ok(address)
    }

    /// Frees in stream order.
    ///
    /// # Errors
    /// `INVALID_VALUE` when `address` is not the start of device memory.
    pub fn mem_free_async(&self, address: u64, stream: Stream) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        stream.refuse_capture()?;
        let freeable = |range: &Range| {
            matches!(range.kind, RangeKind::Device | RangeKind::Pool(_))
                && range.context.ordinal() == stream.session.ordinal
        };
        let range = self.ranges.remove(address, freeable).ok_or(Status::INVALID_VALUE)?;
        self.account_free(&range);
        stream.send(&Command::MemFreeAsync { stream: stream.id, address })
    }

    fn account_free(&self, range: &Range) {
        if let RangeKind::Pool(pool) = range.kind {
            self.pools.with(pool, |pool| pool.account_free(range.bytes));
        }
    }
}
