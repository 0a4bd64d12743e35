//! Launches of kernels and of host functions.

use core::ffi::c_void;
use std::sync::Arc;

use weft_client::{Client, FunctionState, HostWork, Launch};
use weft_wire::Status;

use crate::abi::{
    CUfunction, CUhostFn, CUlaunchAttribute, CUlaunchConfig, CUresult, CUstream, CUstreamCallback,
};
use crate::args::{DefaultStream, In};
use crate::memory::narrow;
use crate::params::{Arguments, Slot};

/// Parameter blocks up to this many bytes are packed on the stack.
const STACK_BYTES: usize = 256;

/// `cuLaunchKernel`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn kernel(
    client: &Client,
    default: DefaultStream,
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    params: In<*mut c_void>,
    extra: In<*mut c_void>,
) -> Result<(), Status> {
    let launch = Launch {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
        cooperative: false,
    };
    let arguments = Arguments::new(&params, &extra);
    submit(client, function, &launch, default.named(stream), &arguments)
}

/// `cuLaunchCooperativeKernel`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn cooperative(
    client: &Client,
    default: DefaultStream,
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    params: In<*mut c_void>,
) -> Result<(), Status> {
    let launch = Launch {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
        cooperative: true,
    };
    let arguments = Arguments::only_values(&params);
    submit(client, function, &launch, default.named(stream), &arguments)
}

/// `cuLaunchKernelEx`.
pub(crate) fn kernel_ex(
    client: &Client,
    default: DefaultStream,
    config: In<CUlaunchConfig>,
    function: CUfunction,
    params: In<*mut c_void>,
    extra: In<*mut c_void>,
) -> Result<(), Status> {
    let config = config.required()?;
    // SAFETY: the configuration's list has the length that it states, by the C API.
    let attributes = unsafe { In::nested(config.attrs) };
    let launch = Launch {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared_bytes: config.sharedMemBytes,
        cooperative: cooperative_by(attributes.slice(narrow(config.numAttrs.into()))?)?,
    };
    let arguments = Arguments::new(&params, &extra);
    submit(client, function, &launch, default.named(config.hStream), &arguments)
}

/// Numbers of `CUlaunchAttributeID`.
pub(crate) mod attribute {
    pub(crate) const IGNORE: u32 = 0;
    pub(crate) const ACCESS_POLICY_WINDOW: u32 = 1;
    pub(crate) const COOPERATIVE: u32 = 2;
    pub(crate) const SYNCHRONIZATION_POLICY: u32 = 3;
    pub(crate) const CLUSTER_DIMENSION: u32 = 4;
    pub(crate) const CLUSTER_SCHEDULING: u32 = 5;
    pub(crate) const PROGRAMMATIC_SERIALIZATION: u32 = 6;
    pub(crate) const PRIORITY: u32 = 8;
    pub(crate) const MEM_SYNC_DOMAIN_MAP: u32 = 9;
    pub(crate) const MEM_SYNC_DOMAIN: u32 = 10;
    pub(crate) const PREFERRED_CLUSTER_DIMENSION: u32 = 11;
    pub(crate) const SHARED_CARVEOUT: u32 = 14;
}

/// Whether attributes ask for a cooperative launch. Hints and what means nothing on a device
/// without clusters are accepted; what would change the outcome is not.
fn cooperative_by(attributes: &[CUlaunchAttribute]) -> Result<bool, Status> {
    let mut cooperative = false;
    for attribute in attributes {
        match attribute.id {
            attribute::COOPERATIVE => cooperative = attribute.value.int() != 0,
            attribute::CLUSTER_DIMENSION | attribute::PREFERRED_CLUSTER_DIMENSION => {
                if attribute.value.dim().into_iter().any(|size| size > 1) {
                    return Err(Status::INVALID_CLUSTER_SIZE);
                }
            }
            attribute::IGNORE
            | attribute::ACCESS_POLICY_WINDOW
            | attribute::SYNCHRONIZATION_POLICY
            | attribute::CLUSTER_SCHEDULING
            | attribute::PROGRAMMATIC_SERIALIZATION
            | attribute::PRIORITY
            | attribute::MEM_SYNC_DOMAIN_MAP
            | attribute::MEM_SYNC_DOMAIN
            | attribute::SHARED_CARVEOUT => {}
            _ => return Err(Status::NOT_SUPPORTED),
        }
    }
    Ok(cooperative)
}

#[inline]
fn submit(
    client: &Client,
    function: CUfunction,
    launch: &Launch,
    stream: CUstream,
    arguments: &Arguments,
) -> Result<(), Status> {
    let target = client.function_in(function, stream)?;
    let bytes = narrow(target.param_bytes().into());
    if let Some(block) = [0; STACK_BYTES].get_mut(..bytes) {
        arguments.pack(slots(&target), block)?;
        return client.launch(function, &target, launch, stream, block);
    }
    let mut block = vec![0; bytes];
    arguments.pack(slots(&target), &mut block)?;
    client.launch(function, &target, launch, stream, &block)
}

/// Where the parameters of a kernel lie.
pub(crate) fn slots(target: &FunctionState) -> impl Iterator<Item = Slot> {
    target
        .params()
        .iter()
        .map(|param| Slot { offset: narrow(param.offset.into()), size: narrow(param.size.into()) })
}

/// What the application wants back in its host function.
#[derive(Clone, Copy)]
struct UserData(*mut c_void);

// SAFETY: the driver API calls host functions on a thread of its own; the application knows.
unsafe impl Send for UserData {}
// SAFETY: as above; only the value is passed on.
unsafe impl Sync for UserData {}

impl UserData {
    /// The pointer. A method, so that closures capture the whole.
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// A host function of the application as work of a stream or a graph.
pub(crate) fn host_work(function: CUhostFn, data: *mut c_void) -> Result<HostWork, Status> {
    let function = function.ok_or(Status::INVALID_VALUE)?;
    let data = UserData(data);
    Ok(HostWork(Arc::new(move || {
        // SAFETY: the application passed function and data together for exactly this call.
        unsafe { function(data.get()) }
    })))
}

/// `cuLaunchHostFunc`.
pub(crate) fn host_function(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> Result<(), Status> {
    client.launch_host_function(default.named(stream), host_work(function, data)?)
}

/// `cuLaunchHostFunc_v2`: how the driver's thread waits is a hint.
pub(crate) fn host_function_with_mode(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
    mode: u32,
) -> Result<(), Status> {
    /// `CU_HOST_TASK_BLOCKING` and `CU_HOST_TASK_SPIN_WAIT`.
    const KNOWN: core::ops::RangeInclusive<u32> = 0..=1;
    if !KNOWN.contains(&mode) {
        return Err(Status::INVALID_VALUE);
    }
    host_function(client, default, stream, function, data)
}

/// `cuStreamAddCallback`.
pub(crate) fn callback(
    client: &Client,
    default: DefaultStream,
    stream: CUstream,
    function: CUstreamCallback,
    data: *mut c_void,
    flags: u32,
) -> Result<(), Status> {
    let function = function.ok_or(Status::INVALID_VALUE)?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let data = UserData(data);
    let call = move |health: Result<(), Status>| {
        let code: CUresult = Status::of(&health).code();
        // SAFETY: the application passed function and data together for exactly this call.
        unsafe { function(stream, code, data.get()) }
    };
    client.stream_add_callback(default.named(stream), Box::new(call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::CUlaunchAttributeValue;

    fn attribute(id: u32, value: u32) -> CUlaunchAttribute {
        CUlaunchAttribute { id, _pad: 0, value: CUlaunchAttributeValue::from_int(value) }
    }

    #[test]
    fn attributes_are_obeyed_ignored_or_refused() {
        assert_eq!(cooperative_by(&[]), Ok(false));
        assert_eq!(cooperative_by(&[attribute(attribute::COOPERATIVE, 1)]), Ok(true));
        assert_eq!(cooperative_by(&[attribute(attribute::PRIORITY, 3)]), Ok(false));
        assert_eq!(cooperative_by(&[attribute(attribute::CLUSTER_DIMENSION, 1)]), Ok(false));
        let clusters = cooperative_by(&[attribute(attribute::CLUSTER_DIMENSION, 2)]);
        assert_eq!(clusters, Err(Status::INVALID_CLUSTER_SIZE));
        assert_eq!(cooperative_by(&[attribute(7, 0)]), Err(Status::NOT_SUPPORTED));
    }
}
