//! Nodes of graphs.

use core::ffi::c_void;

use super::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphNode, CUhostFn, CUkernel,
    CUmemAccessDesc, CUmemPoolProps, CUstream, c_structs,
};

c_structs! { LAYOUTS:
    /// A kernel node as CUDA 10 described it.
    CUDA_KERNEL_NODE_PARAMS_v1 [56] {
        func: CUfunction,
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        kernelParams: *const *const c_void,
        extra: *const *const c_void,
    }

    /// A kernel node; `kern` stands for `func` when that is null.
    CUDA_KERNEL_NODE_PARAMS [72] {
        func: CUfunction,
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        kernelParams: *const *const c_void,
        extra: *const *const c_void,
        kern: CUkernel,
        ctx: CUcontext,
    }

    /// A fill.
    CUDA_MEMSET_NODE_PARAMS [40] {
        dst: CUdeviceptr,
        pitch: usize,
        value: u32,
        elementSize: u32,
        width: usize,
        height: usize,
    }

    /// A fill with its context.
    CUDA_MEMSET_NODE_PARAMS_v2 [48] {
        dst: CUdeviceptr,
        pitch: usize,
        value: u32,
        elementSize: u32,
        width: usize,
        height: usize,
        ctx: CUcontext,
    }

    /// A host function.
    CUDA_HOST_NODE_PARAMS [16] {
        func: CUhostFn = "fn",
        userData: *mut c_void,
    }

    /// An allocation.
    CUDA_MEM_ALLOC_NODE_PARAMS [120] {
        poolProps: CUmemPoolProps,
        accessDescs: *const CUmemAccessDesc,
        accessDescCount: usize,
        bytesize: usize,
        dptr: CUdeviceptr,
    }

    /// A copy inside [`CUgraphNodeParams`]: this head, then a `CUDA_MEMCPY3D`.
    CUDA_MEMCPY_NODE_PARAMS [216] {
        flags: i32,
        _reserved: i32 = "reserved",
        copyCtx: CUcontext,
        copyParams: super::CUDA_MEMCPY3D,
    }

    /// Any node: its kind and a union of 232 bytes.
    CUgraphNodeParams [256] {
        kind: u32 = "type",
        _reserved0: [i32; 3] = "reserved0",
        body: [u64; 29] = "reserved1",
        _reserved2: u64 = "reserved2",
    }

    /// How an edge connects.
    #[derive(PartialEq, Eq)]
    CUgraphEdgeData [8] {
        from_port: u8,
        to_port: u8,
        kind: u8 = "type",
        _reserved: [u8; 5] = "reserved",
    }

    /// How to instantiate, and what went wrong.
    CUDA_GRAPH_INSTANTIATE_PARAMS [32] {
        flags: u64,
        hUploadStream: CUstream,
        hErrNode_out: CUgraphNode,
        result_out: u32,
    }

    /// Why an update did not happen.
    CUgraphExecUpdateResultInfo [24] {
        result: u32,
        errorNode: CUgraphNode,
        errorFromNode: CUgraphNode,
    }

    /// An event node inside [`CUgraphNodeParams`].
    CUDA_EVENT_RECORD_NODE_PARAMS [16] {
        event: CUevent,
        ctx: CUcontext,
    }

    /// A child graph inside [`CUgraphNodeParams`].
    CUDA_CHILD_GRAPH_NODE_PARAMS [16] {
        graph: CUgraph,
        ownership: u32,
    }
}
