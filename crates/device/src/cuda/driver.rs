//! The genuine `libcuda.so.1`, loaded at run time: just the functions that the backend calls.
//!
//! Names, versions and argument lists as `cuda.h` declares them. Nothing here is linked, so Weft
//! builds and runs where no NVIDIA driver is installed.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::backing::{Access, Properties};

/// `CUresult`
pub(super) type Code = c_int;
/// `CUdeviceptr`
pub(super) type Address = u64;
/// Any opaque handle of the driver: context, module, function, stream, event, link state.
pub(super) type Handle = *mut c_void;

/// `CUDA_SUCCESS`
pub(super) const SUCCESS: Code = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(super) const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NOT_READY`
pub(super) const NOT_READY: Code = 600;
/// `CU_STREAM_NON_BLOCKING`
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DEFAULT`
pub(super) const EVENT_DEFAULT: c_uint = 0;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`
pub(super) const REGISTER_MAPPED: c_uint = 3;
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
pub(super) const JIT_ERROR_LOG: [c_int; 2] = [5, 6];
/// `CU_JIT_INPUT_PTX`
pub(super) const JIT_INPUT_PTX: c_int = 1;
/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`
pub(super) const MEMORY_HOST: c_uint = 1;
pub(super) const MEMORY_DEVICE: c_uint = 2;

/// `CUDA_MEMCPY2D_v2`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy2d {
    pub(super) src_x_bytes: usize,
    pub(super) src_y: usize,
    pub(super) src_type: c_uint,
    pub(super) src_host: *const c_void,
    pub(super) src_device: Address,
    pub(super) src_array: Handle,
    pub(super) src_pitch: usize,
    pub(super) dst_x_bytes: usize,
    pub(super) dst_y: usize,
    pub(super) dst_type: c_uint,
    pub(super) dst_host: *mut c_void,
    pub(super) dst_device: Address,
    pub(super) dst_array: Handle,
    pub(super) dst_pitch: usize,
    pub(super) width_bytes: usize,
    pub(super) height: usize,
}

macro_rules! functions {
    (
        $(#[$doc:meta])*
        $name:ident;
        $($field:ident: $symbol:literal, fn($($argument:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl $name {
            fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: `cuda.h` declares the symbol with exactly this signature.
                    let $field = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> Code>($symbol)
                    }?;
                )*
                Ok(Self { $($field: *$field,)* })
            }
        }
    };
}

functions! {
    /// The driver's functions, resolved once. The library stays loaded for the process's life.
    Driver;
    init: b"cuInit\0", fn(c_uint);
    error_name: b"cuGetErrorName\0", fn(Code, *mut *const c_char);
    device_count: b"cuDeviceGetCount\0", fn(*mut c_int);
    device: b"cuDeviceGet\0", fn(*mut c_int, c_int);
    device_name: b"cuDeviceGetName\0", fn(*mut c_char, c_int, c_int);
    device_uuid: b"cuDeviceGetUuid\0", fn(*mut [u8; 16], c_int);
    device_memory: b"cuDeviceTotalMem_v2\0", fn(*mut usize, c_int);
    device_attribute: b"cuDeviceGetAttribute\0", fn(*mut c_int, c_int, c_int);
    context_create: b"cuCtxCreate_v2\0", fn(*mut Handle, c_uint, c_int);
    context_destroy: b"cuCtxDestroy_v2\0", fn(Handle);
    context_make_current: b"cuCtxSetCurrent\0", fn(Handle);
    memory_alloc: b"cuMemAlloc_v2\0", fn(*mut Address, usize);
    memory_free: b"cuMemFree_v2\0", fn(Address);
    copy_in: b"cuMemcpyHtoD_v2\0", fn(Address, *const c_void, usize);
    copy_out: b"cuMemcpyDtoH_v2\0", fn(*mut c_void, Address, usize);
    copy_linear: b"cuMemcpyAsync\0", fn(Address, Address, usize, Handle);
    copy_2d: b"cuMemcpy2DAsync_v2\0", fn(*const Copy2d, Handle);
    fill_linear: b"cuMemsetD8Async\0", fn(Address, u8, usize, Handle);
    fill_linear_16: b"cuMemsetD16Async\0", fn(Address, u16, usize, Handle);
    fill_linear_32: b"cuMemsetD32Async\0", fn(Address, c_uint, usize, Handle);
    fill_8: b"cuMemsetD2D8Async\0", fn(Address, usize, u8, usize, usize, Handle);
    fill_16: b"cuMemsetD2D16Async\0", fn(Address, usize, u16, usize, usize, Handle);
    fill_32: b"cuMemsetD2D32Async\0", fn(Address, usize, c_uint, usize, usize, Handle);
    module_load: b"cuModuleLoadDataEx\0",
        fn(*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    module_unload: b"cuModuleUnload\0", fn(Handle);
    module_function: b"cuModuleGetFunction\0", fn(*mut Handle, Handle, *const c_char);
    module_global: b"cuModuleGetGlobal_v2\0", fn(*mut Address, *mut usize, Handle, *const c_char);
    function_attribute: b"cuFuncGetAttribute\0", fn(*mut c_int, c_int, Handle);
    function_set_attribute: b"cuFuncSetAttribute\0", fn(Handle, c_int, c_int);
    occupancy: b"cuOccupancyMaxActiveBlocksPerMultiprocessor\0",
        fn(*mut c_int, Handle, c_int, usize);
    link_create: b"cuLinkCreate_v2\0", fn(c_uint, *mut c_int, *mut *mut c_void, *mut Handle);
    link_add: b"cuLinkAddData_v2\0",
        fn(Handle, c_int, *mut c_void, usize, *const c_char, c_uint, *mut c_int, *mut *mut c_void);
    link_complete: b"cuLinkComplete\0", fn(Handle, *mut *mut c_void, *mut usize);
    link_destroy: b"cuLinkDestroy\0", fn(Handle);
    launch: b"cuLaunchKernel\0",
        fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
           *mut *mut c_void, *mut *mut c_void);
    stream_create: b"cuStreamCreate\0", fn(*mut Handle, c_uint);
    stream_synchronize: b"cuStreamSynchronize\0", fn(Handle);
    host_register: b"cuMemHostRegister_v2\0", fn(*mut c_void, usize, c_uint);
    host_unregister: b"cuMemHostUnregister\0", fn(*mut c_void);
    event_create: b"cuEventCreate\0", fn(*mut Handle, c_uint);
    event_record: b"cuEventRecord\0", fn(Handle, Handle);
    event_query: b"cuEventQuery\0", fn(Handle);
    event_synchronize: b"cuEventSynchronize\0", fn(Handle);
    event_elapsed: b"cuEventElapsedTime\0", fn(*mut f32, Handle, Handle);
}

functions! {
    /// Virtual memory management, which drivers have since CUDA 10.2.
    VirtualMemory;
    reserve: b"cuMemAddressReserve\0", fn(*mut Address, usize, usize, Address, u64);
    unreserve: b"cuMemAddressFree\0", fn(Address, usize);
    create: b"cuMemCreate\0", fn(*mut u64, usize, *const Properties, u64);
    release: b"cuMemRelease\0", fn(u64);
    map: b"cuMemMap\0", fn(Address, usize, usize, u64, u64);
    unmap: b"cuMemUnmap\0", fn(Address, usize);
    access: b"cuMemSetAccess\0", fn(Address, usize, *const Access, usize);
}

impl Driver {
    /// Loads the driver from `library` (`libcuda.so.1`, or a path).
    pub(super) fn load(
        library: &OsStr,
    ) -> Result<(Self, Option<VirtualMemory>), libloading::Error> {
        // SAFETY: loading the driver runs its initialisers, as every CUDA program does.
        let library = unsafe { Library::new(library) }?;
        let driver = Self::resolve(&library)?;
        let virtual_memory = VirtualMemory::resolve(&library).ok();
        // The driver's threads outlive any handle of ours, so its code must stay mapped.
        std::mem::forget(library);
        Ok((driver, virtual_memory))
    }

    /// The name of a result code.
    pub(super) fn name_of(&self, code: Code) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: `name` is a valid place for one pointer.
        let result = unsafe { (self.error_name)(code, &raw mut name) };
        if result != SUCCESS || name.is_null() {
            return format!("CUresult {code}");
        }
        // SAFETY: the driver's names are static strings that end with a NUL.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
