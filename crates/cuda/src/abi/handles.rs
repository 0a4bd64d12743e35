//! Handles: opaque pointers in C, numbers here. Nobody dereferences them.

use core::ffi::c_void;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {$(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) usize);

        impl $name {
            /// The null handle.
            #[allow(dead_code, reason = "not every kind of handle can be null")]
            pub(crate) const NULL: Self = Self(0);

            /// Whether this is the null handle.
            #[allow(dead_code, reason = "not every kind of handle can be null")]
            pub(crate) fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}

handles! {
    /// A context.
    CUcontext,
    /// A module.
    CUmodule,
    /// A function of a module, or a kernel of a library: the driver takes either.
    CUfunction,
    /// A library.
    CUlibrary,
    /// A kernel of a library.
    CUkernel,
    /// A stream; 0, 1 and 2 are the default streams.
    CUstream,
    /// An event.
    CUevent,
    /// An array. Weft has none, so only null occurs.
    CUarray,
    /// A graph under construction.
    CUgraph,
    /// A node of a graph.
    CUgraphNode,
    /// An instantiated graph.
    CUgraphExec,
    /// A memory pool.
    CUmemoryPool,
    /// A linker invocation.
    CUlinkState,
    /// A user object that graphs keep alive.
    CUuserObject,
    /// A green context. Weft has none.
    CUgreenCtx,
}

impl CUstream {
    /// The legacy default stream, by name.
    pub(crate) const LEGACY: Self = Self(1);
    /// The calling thread's default stream, by name.
    pub(crate) const PER_THREAD: Self = Self(2);
}

/// A device ordinal.
pub(crate) type CUdevice = i32;
/// A device address.
pub(crate) type CUdeviceptr = u64;
/// A result code as the application passes it.
pub(crate) type CUresult = i32;

/// A function that runs on the host in stream order.
pub(crate) type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// The same with the stream and its status.
pub(crate) type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;
/// The dynamic shared memory that a block of that many threads needs.
pub(crate) type CUoccupancyB2DSize = Option<unsafe extern "C" fn(i32) -> usize>;
