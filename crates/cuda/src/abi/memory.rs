//! Devices, memory pools, locations and operations on memory words.

use core::ffi::c_void;

use super::{CUdeviceptr, c_structs};

c_structs! { LAYOUTS:
    /// Sixteen bytes that name a device or a table.
    #[derive(PartialEq, Eq)]
    CUuuid [16] {
        bytes: [u8; 16],
    }

    /// What another process opens memory by.
    CUipcMemHandle [64] {
        bytes: [u8; 64] = "reserved",
    }

    /// What another process opens an event by.
    CUipcEventHandle [64] {
        bytes: [u8; 64] = "reserved",
    }

    /// Properties of a device as CUDA 2 had them.
    CUdevprop [56] {
        maxThreadsPerBlock: i32,
        maxThreadsDim: [i32; 3],
        maxGridSize: [i32; 3],
        sharedMemPerBlock: i32,
        totalConstantMemory: i32,
        SIMDWidth: i32,
        memPitch: i32,
        regsPerBlock: i32,
        clockRate: i32,
        textureAlign: i32,
    }

    /// Where memory lies.
    #[derive(PartialEq, Eq)]
    CUmemLocation [8] {
        kind: u32 = "type",
        id: i32,
    }

    /// Who may access memory and how.
    CUmemAccessDesc [12] {
        location: CUmemLocation,
        flags: u32,
    }

    /// What a memory pool shall be.
    CUmemPoolProps [88] {
        allocType: u32,
        handleTypes: u32,
        location: CUmemLocation,
        win32SecurityAttributes: *mut c_void,
        maxSize: usize,
        usage: u16,
        _rdma: u8 = "gpuDirectRDMACapable",
        _reserved: [u8; 53] = "reserved",
    }

    /// What a physical allocation shall be.
    CUmemAllocationProp [32] {
        kind: u32 = "type",
        requestedHandleTypes: u32,
        location: CUmemLocation,
        win32HandleMetaData: *mut c_void,
        _flags: [u8; 8] = "allocFlags",
    }

    /// One operation of a batch on memory words; the wait and write forms share a layout.
    CUstreamBatchMemOpParams [48] {
        operation: u32,
        address: CUdeviceptr = "waitValue.address",
        value64: u64 = "waitValue.value64",
        flags: u32 = "waitValue.flags",
        alias: CUdeviceptr = "waitValue.alias",
        _rest: u64 = "pad[5]",
    }
}
