//! Handles: opaque pointers in C, checked numbers in the client. Nobody dereferences them.

use core::ffi::c_void;

pub(crate) use weft_client::{
    Context as CUcontext, Event as CUevent, Function as CUfunction, Graph as CUgraph,
    GraphExec as CUgraphExec, GraphNode as CUgraphNode, Kernel as CUkernel, Library as CUlibrary,
    Link as CUlinkState, MemPool as CUmemoryPool, Module as CUmodule, Stream as CUstream,
    UserObject as CUuserObject,
};

// A handle takes the place of a pointer.
const _: () = assert!(size_of::<CUcontext>() == size_of::<*const c_void>());

/// An array. Weft has none, so whatever is passed is not one.
pub(crate) type CUarray = u64;
/// A device ordinal.
pub(crate) type CUdevice = i32;
/// A device address.
pub(crate) type CUdeviceptr = u64;
/// Memory that has no address of its own.
pub(crate) type CUmemGenericAllocationHandle = u64;
/// A result code as the application passes it.
pub(crate) type CUresult = i32;

/// A function that runs on the host in stream order.
pub(crate) type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// The same with the stream and its status.
pub(crate) type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;
/// The dynamic shared memory that a block of that many threads needs.
pub(crate) type CUoccupancyB2DSize = Option<unsafe extern "C" fn(i32) -> usize>;
