//! Occupancy: how many blocks of a kernel fit on one multiprocessor.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUfunction, CUoccupancyB2DSize};
use crate::args::Out;
use crate::memory::{narrow, wide};

/// Flags of the occupancy calls: `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE`.
const KNOWN_FLAGS: u32 = 1;

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
pub(crate) fn active_blocks(
    client: &Client,
    blocks: Out<i32>,
    function: CUfunction,
    threads: i32,
    dynamic_bytes: usize,
) -> Result<(), Status> {
    active_blocks_with_flags(client, blocks, function, threads, dynamic_bytes, 0)
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`.
pub(crate) fn active_blocks_with_flags(
    client: &Client,
    blocks: Out<i32>,
    function: CUfunction,
    threads: i32,
    dynamic_bytes: usize,
    flags: u32,
) -> Result<(), Status> {
    let blocks = blocks.required()?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Status::INVALID_VALUE);
    }
    blocks.set(client.occupancy_blocks(function, threads, wide(dynamic_bytes))?);
    Ok(())
}

/// `cuOccupancyMaxPotentialBlockSize`.
pub(crate) fn potential_block_size(
    client: &Client,
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic_bytes: usize,
    limit: i32,
) -> Result<(), Status> {
    let (grid, block) = (grid.required()?, block.required()?);
    if limit < 0 {
        return Err(Status::INVALID_VALUE);
    }
    let shared_of = |threads| match shared_of {
        // SAFETY: the application's function takes a block size and touches nothing of ours.
        Some(shared_of) => wide(unsafe { shared_of(threads) }),
        None => wide(dynamic_bytes),
    };
    let best = client.occupancy_block_size(function, &shared_of, limit)?;
    grid.set(best.0);
    block.set(best.1);
    Ok(())
}

/// `cuOccupancyMaxPotentialBlockSizeWithFlags`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn potential_block_size_with_flags(
    client: &Client,
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic_bytes: usize,
    limit: i32,
    flags: u32,
) -> Result<(), Status> {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Status::INVALID_VALUE);
    }
    potential_block_size(client, grid, block, function, shared_of, dynamic_bytes, limit)
}

/// `cuOccupancyAvailableDynamicSMemPerBlock`.
pub(crate) fn available_shared(
    client: &Client,
    bytes: Out<usize>,
    function: CUfunction,
    blocks: i32,
    threads: i32,
) -> Result<(), Status> {
    let bytes = bytes.required()?;
    bytes.set(narrow(client.occupancy_dynamic_shared(function, blocks, threads)?));
    Ok(())
}
