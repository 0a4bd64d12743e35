//! Kernel launches: the hot path.

use std::sync::Arc;

use weft_wire::command::{LaunchSpec, Payload};
use weft_wire::{Command, Status};

use crate::client::Client;
use crate::function::FunctionState;
use crate::graph::{KernelWork, Work};
use crate::handle::{Function, Stream};
use crate::session::Session;
use crate::staging;

/// Longest parameter block that travels inside the command, in bytes.
const INLINE_PARAMS_MAX: usize = 416;
/// Longest parameter block that the driver API allows, in bytes.
const PARAMS_MAX: usize = 32_764;

/// Shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Thread blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
}

impl Client {
    /// Launches a kernel in stream order. `params` is the parameter block, laid out as
    /// [`FunctionState::params`] says.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an empty or too large shape, another block than the kernel requires
    /// (`.reqntid`), or a parameter block of the wrong length,
    /// `INVALID_HANDLE` for a stream of another context, `LAUNCH_OUT_OF_RESOURCES`,
    /// `COOPERATIVE_LAUNCH_TOO_LARGE`, or a fault of earlier work.
    #[inline]
    pub fn launch(
        &self,
        function: Function,
        target: &Arc<FunctionState>,
        launch: &Launch,
        stream: Stream,
        params: &[u8],
    ) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        if target.context != stream.context {
            return Err(Status::INVALID_HANDLE);
        }
        stream.session.check_launch(target, launch, params)?;
        // An `extra` buffer may be longer than the block; the worker takes exactly the block.
        let params = params.get(..target.param_bytes() as usize).ok_or(Status::INVALID_VALUE)?;
        if stream.is_capturing() {
            let work = KernelWork {
                function,
                target: Arc::clone(target),
                launch: *launch,
                params: params.to_vec().into(),
            };
            return self.capture_work(&stream, Work::Kernel(work));
        }
        if params.len() <= INLINE_PARAMS_MAX {
            let launch = launch_spec(target, launch, Payload::Inline(params));
            return stream.send(&Command::Launch { stream: stream.id, launch });
        }
        let block = stream.session.block_with(params)?.hand_over();
        let params = Payload::Arena(staging::named(&block));
        let launch = launch_spec(target, launch, params);
        stream.send(&Command::Launch { stream: stream.id, launch })
    }
}

impl Session {
    /// Checks what the native driver checks before it queues a launch.
    pub(crate) fn check_launch(
        &self,
        target: &FunctionState,
        launch: &Launch,
        params: &[u8],
    ) -> Result<(), Status> {
        let limits = &self.launch_limits;
        let fits = |size: &[u32; 3], most: &[u32; 3]| {
            size.iter().zip(most).all(|(size, most)| (1..=*most).contains(size))
        };
        if !fits(&launch.grid, &limits.grid) || !fits(&launch.block, &limits.block) {
            return Err(Status::INVALID_VALUE);
        }
        if params.len() > PARAMS_MAX || params.len() < target.param_bytes() as usize {
            return Err(Status::INVALID_VALUE);
        }
        // Three 16-bit factors at most: the block's limits keep the product small.
        let threads = launch.block.iter().fold(1_u64, |all, size| all * u64::from(*size));
        if threads > u64::from(limits.threads) {
            return Err(Status::INVALID_VALUE);
        }
        if threads > u64::from(target.info().max_threads) {
            return Err(self.too_many_threads(target, threads));
        }
        if target.info().required_block.is_some_and(|required| required != launch.block) {
            return Err(Status::INVALID_VALUE);
        }
        if launch.shared_bytes > target.max_dynamic_shared() {
            return Err(Status::INVALID_VALUE);
        }
        if launch.cooperative { self.check_cooperative(target, launch, threads) } else { Ok(()) }
    }

    /// What a block of more threads than the kernel takes is refused with: too few registers is
    /// another reason than a bound that its author set (`.maxntid`).
    #[cold]
    fn too_many_threads(&self, target: &FunctionState, threads: u64) -> Status {
        /// `CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK`.
        const REGISTERS: u32 = 12;

        let needed = threads.saturating_mul(target.info().registers.into());
        if needed > u64::from(self.limit(REGISTERS, u32::MAX)) {
            Status::LAUNCH_OUT_OF_RESOURCES
        } else {
            Status::INVALID_VALUE
        }
    }

    #[cold]
    fn check_cooperative(
        &self,
        target: &FunctionState,
        launch: &Launch,
        threads: u64,
    ) -> Result<(), Status> {
        /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
        const MULTIPROCESSORS: u32 = 16;

        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        let shared = u64::from(launch.shared_bytes);
        let per_processor = u64::from(self.resident_blocks(target, threads, shared));
        let most = per_processor * u64::from(self.limit(MULTIPROCESSORS, 1));
        let blocks = launch.grid.iter().fold(1_u64, |all, size| all.saturating_mul((*size).into()));
        if blocks > most { Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE) } else { Ok(()) }
    }
}

/// Limits of a launch, read from the attributes once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchLimits {
    grid: [u32; 3],
    block: [u32; 3],
    threads: u32,
}

impl LaunchLimits {
    /// Reads attribute numbers through `limit`, which takes a value for those that are not stated.
    pub(crate) fn read(limit: impl Fn(u32, u32) -> u32) -> Self {
        Self {
            grid: [limit(5, 0x7fff_ffff), limit(6, 65_535), limit(7, 65_535)],
            block: [limit(2, 1024), limit(3, 1024), limit(4, 64)],
            threads: limit(1, 1024),
        }
    }
}

/// The wire's form of a launch.
pub(crate) fn launch_spec<'a>(
    target: &FunctionState,
    launch: &Launch,
    params: Payload<'a>,
) -> LaunchSpec<'a> {
    LaunchSpec {
        module: target.module_id,
        function: target.index,
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
        params,
    }
}
