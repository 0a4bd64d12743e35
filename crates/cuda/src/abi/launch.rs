//! Launches and context creation.

use core::ffi::c_void;

use super::{CUstream, c_structs};

c_structs! { LAYOUTS:
    /// One attribute of a launch; the value is a union of 64 bytes.
    CUlaunchAttribute [72] {
        id: u32,
        _pad: u32 = "pad",
        value: CUlaunchAttributeValue,
    }

    /// The value of an attribute; every variant begins at its first word.
    CUlaunchAttributeValue [64] {
        words: [u64; 8] = "pad",
    }

    /// What, where and how to launch.
    CUlaunchConfig [56] {
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        attrs: *const CUlaunchAttribute,
        numAttrs: u32,
    }

    /// A request for a share of the device's processors.
    CUexecAffinityParam [8] {
        kind: u32 = "type",
        smCount: u32 = "param",
    }

    /// How to create a context.
    CUctxCreateParams [24] {
        execAffinityParams: *const CUexecAffinityParam,
        numExecAffinityParams: i32,
        cigParams: *const c_void,
    }
}

impl CUlaunchAttributeValue {
    /// The value as a 32-bit integer.
    pub(crate) fn int(&self) -> u32 {
        let [a, b, c, d, ..] = self.words[0].to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    /// The value as three 32-bit integers.
    pub(crate) fn dim(&self) -> [u32; 3] {
        let [a, b, c, d, e, f, g, h] = self.words[0].to_ne_bytes();
        let [i, j, k, l, ..] = self.words[1].to_ne_bytes();
        [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes)
    }

    /// A value that holds one 32-bit integer.
    pub(crate) fn from_int(value: u32) -> Self {
        let [a, b, c, d] = value.to_ne_bytes();
        Self { words: [u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0, 0, 0, 0, 0, 0, 0] }
    }
}
