//! A driver library's functions, loaded by name and called as C would.

use std::ffi::{CStr, c_void};

use libloading::Library;

/// Handles and addresses are 64-bit numbers to a caller.
pub type Handle = u64;

/// A launch configuration (`CUlaunchConfig`) without attributes.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: Handle,
    pub attributes: *const c_void,
    pub attribute_count: u32,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Debug)]
pub struct KernelNode {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: *const *const c_void,
    pub extra: *const *const c_void,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UpdateInfo {
    pub result: u32,
    pub node: Handle,
    pub from: Handle,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Copy2d {
    pub src_x: usize,
    pub src_y: usize,
    pub src_kind: u32,
    pub src_host: usize,
    pub src_device: Handle,
    pub src_array: Handle,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_kind: u32,
    pub dst_host: usize,
    pub dst_device: Handle,
    pub dst_array: Handle,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug)]
pub struct MemoryProperties {
    pub kind: u32,
    pub handle_types: u32,
    /// Kind and number.
    pub location: [i32; 2],
    pub security: *const c_void,
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug)]
pub struct Access {
    pub location: [i32; 2],
    pub flags: u32,
}

/// A function that the driver calls.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

macro_rules! driver {
    ($($symbol:literal $name:ident($($argument:ident: $ty:ty),*);)*) => {
        /// The functions that the tests call; each returns the result code.
        #[derive(Debug)]
        pub struct Driver {
            library: Library,
        }

        impl Driver {
            $(
                pub fn $name(&self, $($argument: $ty),*) -> i32 {
                    type Function = unsafe extern "C" fn($($ty),*) -> i32;
                    // SAFETY: the type is the header's, with 64-bit numbers for handles.
                    let symbol = unsafe { self.library.get::<Function>($symbol.to_bytes()) };
                    let function = symbol.expect("the driver exports it");
                    // SAFETY: the tests pass places and lists that live through the call.
                    unsafe { function($($argument),*) }
                }
            )*
        }
    };
}

driver! {
    c"cuInit" init(flags: u32);
    c"cuDeviceGetCount" device_count(count: &mut i32);
    c"cuDeviceGet" device_get(device: &mut i32, ordinal: i32);
    c"cuDeviceGetName" device_name(name: *mut u8, len: i32, device: i32);
    c"cuDeviceGetAttribute" device_attribute(value: &mut i32, attribute: u32, device: i32);
    c"cuDevicePrimaryCtxRetain" primary_retain(context: &mut Handle, device: i32);
    c"cuDevicePrimaryCtxRelease_v2" primary_release(device: i32);
    c"cuCtxSetCurrent" set_current(context: Handle);
    c"cuCtxGetCurrent" current(context: &mut Handle);
    c"cuCtxPopCurrent_v2" pop(context: &mut Handle);
    c"cuCtxPushCurrent_v2" push(context: Handle);
    c"cuCtxSynchronize" synchronize();
    c"cuMemAlloc_v2" alloc(address: *mut Handle, bytes: usize);
    c"cuMemFree_v2" free(address: Handle);
    c"cuMemGetInfo_v2" memory_info(free: &mut usize, total: &mut usize);
    c"cuMemGetAddressRange_v2" address_range(base: &mut Handle, size: &mut usize, at: Handle);
    c"cuPointerGetAttribute" pointer_attribute(data: *mut u64, attribute: u32, at: Handle);
    c"cuMemHostAlloc" host_alloc(memory: &mut *mut u8, bytes: usize, flags: u32);
    c"cuMemFreeHost" host_free(memory: *mut u8);
    c"cuMemHostRegister_v2" host_register(memory: *mut u8, bytes: usize, flags: u32);
    c"cuMemHostUnregister" host_unregister(memory: *mut u8);
    c"cuMemHostGetDevicePointer_v2" host_device_pointer(
        address: &mut Handle, memory: *mut u8, flags: u32);
    c"cuMemHostGetFlags" host_flags(flags: &mut u32, memory: *mut u8);
    c"cuMemAllocManaged" managed_alloc(address: &mut Handle, bytes: usize, flags: u32);
    c"cuMemPrefetchAsync" prefetch(address: Handle, bytes: usize, device: i32, stream: Handle);
    c"cuMemAddressReserve" address_reserve(
        address: &mut Handle, bytes: usize, alignment: usize, hint: Handle, flags: u64);
    c"cuMemAddressFree" address_free(address: Handle, bytes: usize);
    c"cuMemCreate" memory_create(
        handle: &mut Handle, bytes: usize, wanted: &MemoryProperties, flags: u64);
    c"cuMemRelease" memory_release(handle: Handle);
    c"cuMemMap" memory_map(
        address: Handle, bytes: usize, offset: usize, handle: Handle, flags: u64);
    c"cuMemUnmap" memory_unmap(address: Handle, bytes: usize);
    c"cuMemSetAccess" set_access(address: Handle, bytes: usize, wanted: &Access, count: usize);
    c"cuMemGetAccess" access(flags: &mut u64, location: &[i32; 2], address: Handle);
    c"cuMemGetAllocationGranularity" granularity(
        bytes: &mut usize, wanted: &MemoryProperties, option: u32);
    c"cuMulticastGetGranularity" multicast(bytes: &mut usize, property: *const u64, option: u32);
    c"cuMemGetHandleForAddressRange" range_handle(
        handle: *mut c_void, at: Handle, bytes: usize, kind: u32, flags: u64);
    c"cuCtxGetStreamPriorityRange" priorities(least: &mut i32, greatest: &mut i32);
    c"cuDeviceComputeCapability" capability(major: &mut i32, minor: &mut i32, device: i32);
    c"cuDeviceGetProperties" properties(properties: &mut [i32; 16], device: i32);
    c"cuDeviceTotalMem_v2" total_memory(bytes: &mut usize, device: i32);
    c"cuStreamWaitValue32" wait_value_1(stream: Handle, at: Handle, value: u32, flags: u32);
    c"cuStreamWaitValue64" wait_wide_1(stream: Handle, at: Handle, value: u64, flags: u32);
    c"cuStreamWaitValue64_v2" wait_wide(stream: Handle, at: Handle, value: u64, flags: u32);
    c"cuLaunchCooperativeKernel" launch_cooperative(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: Handle, params: *const *const c_void);
    c"cuLaunchCooperativeKernelMultiDevice" launch_on_many(
        list: *const c_void, count: u32, flags: u32);
    c"cuOccupancyMaxActiveClusters" clusters(
        count: &mut i32, function: Handle, config: &LaunchConfig);
    c"cuDeviceGetDefaultMemPool" default_pool(pool: &mut Handle, device: i32);
    c"cuMemcpyHtoD_v2" to_device(target: Handle, source: *const u8, bytes: usize);
    c"cuMemcpyDtoH_v2" to_host(target: *mut u8, source: Handle, bytes: usize);
    c"cuMemcpyDtoD_v2" on_device(target: Handle, source: Handle, bytes: usize);
    c"cuMemcpy" copy(target: Handle, source: Handle, bytes: usize);
    c"cuMemcpyHtoDAsync_v2" to_device_async(
        target: Handle, source: *const u8, bytes: usize, stream: Handle);
    c"cuMemcpyDtoHAsync_v2" to_host_async(
        target: *mut u8, source: Handle, bytes: usize, stream: Handle);
    c"cuMemcpy2D_v2" copy_2d(copy: &Copy2d);
    c"cuMemsetD8_v2" fill_bytes(address: Handle, value: u8, count: usize);
    c"cuMemsetD32_v2" fill_words(address: Handle, value: u32, count: usize);
    c"cuMemAllocAsync" alloc_async(address: &mut Handle, bytes: usize, stream: Handle);
    c"cuMemFreeAsync" free_async(address: Handle, stream: Handle);
    c"cuModuleLoadData" load(module: &mut Handle, image: *const u8);
    c"cuModuleLoadDataEx" load_ex(
        module: &mut Handle, image: *const u8, count: u32, options: *const u32,
        values: *mut *mut c_void);
    c"cuModuleUnload" unload(module: Handle);
    c"cuModuleGetFunction" function(function: &mut Handle, module: Handle, name: *const i8);
    c"cuModuleGetGlobal_v2" global(
        address: &mut Handle, bytes: &mut usize, module: Handle, name: *const i8);
    c"cuFuncGetAttribute" function_attribute(value: &mut i32, attribute: u32, function: Handle);
    c"cuLibraryLoadData" library_load(
        library: &mut Handle, image: *const u8, options: *const u32, values: *const c_void,
        count: u32, library_options: *const u32, library_values: *const c_void,
        library_count: u32);
    c"cuLibraryGetKernel" library_kernel(kernel: &mut Handle, library: Handle, name: *const i8);
    c"cuLibraryUnload" library_unload(library: Handle);
    c"cuLaunchKernel" launch(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: Handle, params: *const *const c_void,
        extra: *const *const c_void);
    c"cuLaunchKernelEx" launch_ex(
        config: &LaunchConfig, function: Handle, params: *const *const c_void,
        extra: *const *const c_void);
    c"cuLaunchHostFunc" host_function(
        stream: Handle, function: HostFunction, data: *mut c_void);
    c"cuStreamCreate" stream_create(stream: &mut Handle, flags: u32);
    c"cuStreamDestroy_v2" stream_destroy(stream: Handle);
    c"cuStreamSynchronize" stream_synchronize(stream: Handle);
    c"cuStreamQuery" stream_query(stream: Handle);
    c"cuStreamWaitEvent" stream_wait_event(stream: Handle, event: Handle, flags: u32);
    c"cuStreamWaitValue32_v2" wait_value(stream: Handle, at: Handle, value: u32, flags: u32);
    c"cuStreamWriteValue32_v2" write_value(stream: Handle, at: Handle, value: u32, flags: u32);
    c"cuStreamBeginCapture_v2" begin_capture(stream: Handle, mode: u32);
    c"cuStreamEndCapture" end_capture(stream: Handle, graph: &mut Handle);
    c"cuStreamIsCapturing" is_capturing(stream: Handle, status: &mut u32);
    c"cuEventCreate" event_create(event: &mut Handle, flags: u32);
    c"cuEventDestroy_v2" event_destroy(event: Handle);
    c"cuEventRecord" event_record(event: Handle, stream: Handle);
    c"cuEventSynchronize" event_synchronize(event: Handle);
    c"cuEventQuery" event_query(event: Handle);
    c"cuEventElapsedTime_v2" event_elapsed(ms: &mut f32, start: Handle, end: Handle);
    c"cuGraphCreate" graph_create(graph: &mut Handle, flags: u32);
    c"cuGraphDestroy" graph_destroy(graph: Handle);
    c"cuGraphAddKernelNode" graph_add_kernel(
        node: &mut Handle, graph: Handle, after: *const Handle, count: usize,
        params: &KernelNode);
    c"cuGraphGetNodes" graph_nodes(graph: Handle, nodes: *mut Handle, count: &mut usize);
    c"cuGraphInstantiate_v2" graph_instantiate(
        exec: &mut Handle, graph: Handle, error: *mut Handle, log: *mut u8, bytes: usize);
    c"cuGraphExecKernelNodeSetParams" graph_exec_set(
        exec: Handle, node: Handle, params: &KernelNode);
    c"cuGraphExecUpdate_v2" graph_exec_update(exec: Handle, graph: Handle, info: &mut UpdateInfo);
    c"cuGraphAddChildGraphNode" graph_add_child(
        node: &mut Handle, graph: Handle, after: *const Handle, count: usize, child: Handle);
    c"cuGraphExecChildGraphNodeSetParams" graph_exec_set_child(
        exec: Handle, node: Handle, child: Handle);
    c"cuGraphClone" graph_clone(clone: &mut Handle, graph: Handle);
    c"cuUserObjectCreate" object_create(
        object: &mut Handle, data: *mut c_void, destroy: HostFunction, count: u32, flags: u32);
    c"cuUserObjectRetain" object_retain(object: Handle, count: u32);
    c"cuUserObjectRelease" object_release(object: Handle, count: u32);
    c"cuGraphRetainUserObject" graph_retain(
        graph: Handle, object: Handle, count: u32, flags: u32);
    c"cuGraphReleaseUserObject" graph_release(graph: Handle, object: Handle, count: u32);
    c"cuGraphLaunch" graph_launch(exec: Handle, stream: Handle);
    c"cuGraphExecDestroy" graph_exec_destroy(exec: Handle);
    c"cuOccupancyMaxActiveBlocksPerMultiprocessor" occupancy(
        blocks: &mut i32, function: Handle, threads: i32, shared_bytes: usize);
}

impl Driver {
    /// Loads a driver library.
    pub fn load_library(path: &std::ffi::OsStr) -> Self {
        // SAFETY: a driver's initialisers are part of any CUDA program.
        let library = unsafe { Library::new(path) };
        Self { library: library.expect("the driver loads") }
    }

    /// A function of a module by name.
    pub fn function_named(&self, module: Handle, name: &CStr) -> Handle {
        let mut function = 0;
        assert_eq!(self.function(&mut function, module, name.as_ptr()), 0, "{name:?}");
        function
    }
}
