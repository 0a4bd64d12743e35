//! Occupancy: how many blocks of a kernel a multiprocessor holds, from attributes alone.

use weft_wire::Status;

use crate::client::Client;
use crate::function::FunctionState;
use crate::handle::Function;
use crate::session::Session;

/// `CUdevice_attribute` numbers.
mod attribute {
    pub(super) const MAX_THREADS_PER_BLOCK: u32 = 1;
    pub(super) const WARP: u32 = 10;
    pub(super) const MULTIPROCESSORS: u32 = 16;
    pub(super) const THREADS_PER_MULTIPROCESSOR: u32 = 39;
    pub(super) const SHARED_PER_MULTIPROCESSOR: u32 = 81;
    pub(super) const REGISTERS_PER_MULTIPROCESSOR: u32 = 82;
    pub(super) const BLOCKS_PER_MULTIPROCESSOR: u32 = 106;
}

impl Session {
    /// Blocks of `threads` threads that are resident on one multiprocessor at once.
    pub(crate) fn resident_blocks(
        &self,
        target: &FunctionState,
        threads: u32,
        dynamic_shared: u64,
    ) -> u32 {
        let warp = self.limit(attribute::WARP, 32).max(1);
        let info = target.info();
        if threads == 0 || threads > info.max_threads {
            return 0;
        }
        let threads = threads.next_multiple_of(warp);
        let by_threads = self.limit(attribute::THREADS_PER_MULTIPROCESSOR, 1024) / threads;
        let by_blocks = self.limit(attribute::BLOCKS_PER_MULTIPROCESSOR, 16);
        let registers = self.limit(attribute::REGISTERS_PER_MULTIPROCESSOR, 65_536);
        let by_registers = registers / info.registers.max(1).saturating_mul(threads).max(1);
        let shared = u64::from(info.shared_bytes).saturating_add(dynamic_shared);
        let room = u64::from(self.limit(attribute::SHARED_PER_MULTIPROCESSOR, 65_536));
        let by_shared = room
            .checked_div(shared)
            .map_or(u32::MAX, |blocks| u32::try_from(blocks).unwrap_or(u32::MAX));
        by_threads.min(by_blocks).min(by_registers).min(by_shared)
    }
}

impl Client {
    /// Blocks of a kernel that one multiprocessor holds.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` for a block size that is not positive.
    pub fn occupancy_blocks(
        &self,
        function: Function,
        block_size: i32,
        dynamic_shared: u64,
    ) -> Result<i32, Status> {
        let target = self.function(function)?;
        let threads = u32::try_from(block_size).ok().filter(|threads| *threads > 0);
        let threads = threads.ok_or(Status::INVALID_VALUE)?;
        let session = self.home(target.context)?;
        let blocks = session.resident_blocks(&target, threads, dynamic_shared);
        Ok(i32::try_from(blocks).unwrap_or(i32::MAX))
    }

    /// Least grid and the block size that fill the device best. `shared_of` gives the dynamic
    /// shared memory of a block size.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn occupancy_block_size(
        &self,
        function: Function,
        shared_of: &dyn Fn(i32) -> u64,
        limit: i32,
    ) -> Result<(i32, i32), Status> {
        let target = self.function(function)?;
        let session = self.home(target.context)?;
        let warp = session.limit(attribute::WARP, 32).max(1);
        let most = session.limit(attribute::MAX_THREADS_PER_BLOCK, 1024);
        let asked = u32::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(u32::MAX);
        let most = most.min(target.info().max_threads).min(asked);
        let mut best = (0, 0, 0);
        let mut threads = most;
        while threads > 0 {
            let size = i32::try_from(threads).unwrap_or(i32::MAX);
            let blocks = session.resident_blocks(&target, threads, shared_of(size));
            let resident = blocks.saturating_mul(threads);
            if resident > best.0 {
                best = (resident, threads, blocks);
            }
            // From the largest size down to the multiples of a warp.
            threads = (threads - 1) / warp * warp;
        }
        let (_, threads, blocks) = best;
        let grid = blocks.saturating_mul(session.limit(attribute::MULTIPROCESSORS, 1));
        Ok((i32::try_from(grid).unwrap_or(i32::MAX), i32::try_from(threads).unwrap_or(i32::MAX)))
    }

    /// Dynamic shared memory that a block may use while `blocks` blocks stay resident, in bytes.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE`.
    pub fn occupancy_dynamic_shared(
        &self,
        function: Function,
        blocks: i32,
        block_size: i32,
    ) -> Result<u64, Status> {
        let target = self.function(function)?;
        let blocks = u32::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        let blocks = blocks.ok_or(Status::INVALID_VALUE)?;
        let threads = u32::try_from(block_size).ok().filter(|threads| *threads > 0);
        let threads = threads.ok_or(Status::INVALID_VALUE)?;
        let session = self.home(target.context)?;
        if session.resident_blocks(&target, threads, 0) < blocks {
            return Ok(0);
        }
        let room = session.limit(attribute::SHARED_PER_MULTIPROCESSOR, 65_536) / blocks;
        Ok(u64::from(room.saturating_sub(target.info().shared_bytes)))
    }
}
