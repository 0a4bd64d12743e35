//! Launches: checked against the kernel and the device.

use weft_device::{DeviceInfo, FunctionInfo, Launch, ModuleId, Op};
use weft_wire::Status;
use weft_wire::command::LaunchSpec;

// `CUdevice_attribute` numbers.
const MAX_THREADS_PER_BLOCK: u32 = 1;
const MAX_BLOCK_DIM_X: u32 = 2;
const MAX_GRID_DIM_X: u32 = 5;
const MAX_SHARED_MEMORY_PER_BLOCK: u32 = 8;
const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: u32 = 97;

/// Launch limits of a device.
#[derive(Debug, Clone)]
pub(crate) struct LaunchLimits {
    threads: u64,
    block: [u32; 3],
    grid: [u32; 3],
    shared_bytes: u64,
}

impl LaunchLimits {
    /// The device's attributes; CUDA's own limits where it names none.
    pub(crate) fn of(info: &DeviceInfo) -> Self {
        let known = |attribute: u32| {
            info.attributes.get(&attribute).copied().and_then(|value| u32::try_from(value).ok())
        };
        let dims = |first: u32, defaults: [u32; 3]| {
            let [x, y, z] = defaults;
            [(first, x), (first + 1, y), (first + 2, z)]
                .map(|(attribute, default)| known(attribute).unwrap_or(default))
        };
        let shared = known(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .or_else(|| known(MAX_SHARED_MEMORY_PER_BLOCK))
            .unwrap_or(48 << 10);
        Self {
            threads: known(MAX_THREADS_PER_BLOCK).unwrap_or(1024).into(),
            block: dims(MAX_BLOCK_DIM_X, [1024, 1024, 64]),
            grid: dims(MAX_GRID_DIM_X, [0x7fff_ffff, 65_535, 65_535]),
            shared_bytes: shared.into(),
        }
    }

    /// The launch as a device takes it.
    pub(crate) fn check(
        &self,
        module: ModuleId,
        function: &FunctionInfo,
        spec: &LaunchSpec<'_>,
        params: Vec<u8>,
    ) -> Result<Op, Status> {
        let &LaunchSpec { function: index, grid, block, shared_bytes, .. } = spec;
        let within = |size: [u32; 3], most: [u32; 3]| {
            size.iter().zip(most).all(|(size, most)| (1..=most).contains(size))
        };
        if !within(grid, self.grid) || !within(block, self.block) {
            return Err(Status::INVALID_VALUE);
        }
        // Each factor is at most 2^31, so three do not fit and two do.
        let [x, y, z] = block.map(u64::from);
        let threads = (x * y).saturating_mul(z);
        if threads > self.threads || threads > function.max_threads.into() {
            return Err(Status::INVALID_VALUE);
        }
        if function.required_block.is_some_and(|required| required != block) {
            return Err(Status::INVALID_VALUE);
        }
        if u64::from(shared_bytes) + u64::from(function.shared_bytes) > self.shared_bytes {
            return Err(Status::INVALID_VALUE);
        }
        if u32::try_from(params.len()) != Ok(function.param_bytes) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Op::Launch(Launch {
            module,
            function: index,
            grid,
            block,
            shared_bytes,
            params,
            first_block: 0,
        }))
    }
}

/// Thread blocks of a launch that are still to run.
pub(crate) fn blocks_left(launch: &Launch) -> u64 {
    let [x, y, z] = launch.grid.map(u64::from);
    // A checked grid has at most 2^31 · 2^16 · 2^16 blocks.
    (x * y).saturating_mul(z).saturating_sub(launch.first_block)
}

/// A number for "this kernel, launched like this", for whoever predicts its time.
pub(crate) fn cost_key(op: &Op) -> u64 {
    const KERNEL: u64 = 1 << 63;
    match op {
        Op::Launch(launch) => {
            let words = [launch.module.0, launch.function, launch.shared_bytes];
            let words = words.into_iter().chain(launch.block);
            KERNEL
                | words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
                    (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3)
                })
        }
        Op::Copy { dst, src, shape } => {
            let side = |place: &weft_device::Place| match place {
                weft_device::Place::Device(_) => 0,
                weft_device::Place::Host(_) | weft_device::Place::Inline(_) => 1,
            };
            row_class(shape.width) << 3 | (1 + side(&dst.place) + 2 * side(&src.place))
        }
        Op::Fill(fill) => row_class(fill.width.saturating_mul(fill.element.into())) << 3 | 5,
    }
}

/// Rows that are moved alike: what a short one takes does not depend on its bytes.
fn row_class(bytes: u64) -> u64 {
    u64::from(bytes.max(1).ilog2()).min(16)
}
