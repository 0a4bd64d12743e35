//! Copies of rows and slices.

use core::ffi::c_void;

use weft_client::{Client, CopySide, CopyWork, Layout};
use weft_wire::Status;
use weft_wire::command::Shape;

use crate::abi::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUdeviceptr, CUmemorytype, CUstream,
};
use crate::args::{DefaultStream, In};
use crate::copy::{Memory, between};
use crate::memory::{MEMORYTYPE_DEVICE, MEMORYTYPE_HOST, wide};
use crate::output;

/// `CU_MEMORYTYPE_UNIFIED`: the address tells.
const MEMORYTYPE_UNIFIED: u32 = 4;

/// `cuMemcpy2D`.
pub(crate) fn rows(
    client: &Client,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY2D>,
) -> Result<(), Status> {
    Plan::of(&flat(&copy.required()?))?.run(client, default.stream(), true)
}

/// `cuMemcpy2DAsync`.
pub(crate) fn rows_async(
    client: &Client,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY2D>,
    stream: CUstream,
) -> Result<(), Status> {
    Plan::of(&flat(&copy.required()?))?.run(client, default.named(stream), false)
}

/// `cuMemcpy3D`.
pub(crate) fn slices(
    client: &Client,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY3D>,
) -> Result<(), Status> {
    Plan::of(&copy.required()?)?.run(client, default.stream(), true)
}

/// `cuMemcpy3DAsync`.
pub(crate) fn slices_async(
    client: &Client,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY3D>,
    stream: CUstream,
) -> Result<(), Status> {
    Plan::of(&copy.required()?)?.run(client, default.named(stream), false)
}

/// `cuMemcpy3DPeer`.
pub(crate) fn slices_peer(
    client: &Client,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY3D_PEER>,
) -> Result<(), Status> {
    Plan::of(&same_contexts(client, &copy.required()?)?)?.run(client, default.stream(), true)
}

/// `cuMemcpy3DPeerAsync`.
pub(crate) fn slices_peer_async(
    client: &Client,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY3D_PEER>,
    stream: CUstream,
) -> Result<(), Status> {
    let copy = same_contexts(client, &copy.required()?)?;
    Plan::of(&copy)?.run(client, default.named(stream), false)
}

fn flat(copy: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        _reserved0: 0,
        srcPitch: copy.srcPitch,
        srcHeight: 0,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        _reserved1: 0,
        dstPitch: copy.dstPitch,
        dstHeight: 0,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: 1,
    }
}

/// All contexts share the device's addresses, so naming them changes nothing.
fn same_contexts(client: &Client, copy: &CUDA_MEMCPY3D_PEER) -> Result<CUDA_MEMCPY3D, Status> {
    client.context_device(copy.srcContext)?;
    client.context_device(copy.dstContext)?;
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcLOD: copy.srcLOD,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        _reserved0: 0,
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstLOD: copy.dstLOD,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        _reserved1: 0,
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
    })
}

/// One side of a copy: its first byte and strides.
#[derive(Debug, Clone, Copy)]
struct Side {
    memory: Memory,
    start: u64,
    pitch: u64,
    slice: u64,
}

/// What the application said about one side.
struct Told {
    memory: CUmemorytype,
    host: *const c_void,
    device: CUdeviceptr,
    lod: usize,
    /// First byte of the row, row, slice.
    at: [usize; 3],
    pitch: usize,
    height: usize,
}

impl Side {
    fn of(told: &Told, width: u64, height: u64) -> Result<Self, Status> {
        let (memory, base) = match told.memory {
            MEMORYTYPE_HOST => (Memory::Any, wide(told.host.expose_provenance())),
            MEMORYTYPE_DEVICE => (Memory::Device, told.device),
            MEMORYTYPE_UNIFIED => (Memory::Any, told.device),
            _ => return Err(Status::INVALID_VALUE),
        };
        let [x, y, z] = told.at.map(wide);
        let row = x.checked_add(width).ok_or(Status::INVALID_VALUE)?;
        let pitch = if told.pitch == 0 { row } else { wide(told.pitch) };
        let rows = if told.height == 0 { y.saturating_add(height) } else { wide(told.height) };
        // A pitch or height that is specified holds the part that is copied.
        if told.lod != 0 || pitch < row || rows < y.saturating_add(height) {
            return Err(Status::INVALID_VALUE);
        }
        let slice = pitch.checked_mul(rows).ok_or(Status::INVALID_VALUE)?;
        let offset = y
            .checked_mul(pitch)
            .and_then(|offset| z.checked_mul(slice)?.checked_add(offset)?.checked_add(x));
        let start = offset.and_then(|offset| base.checked_add(offset));
        Ok(Self { memory, start: start.ok_or(Status::INVALID_VALUE)?, pitch, slice })
    }
}

/// A copy, understood.
#[derive(Debug)]
pub(crate) struct Plan {
    source: Side,
    target: Side,
    layout: Layout,
}

impl Plan {
    /// Understands a description.
    pub(crate) fn of(copy: &CUDA_MEMCPY3D) -> Result<Self, Status> {
        let [width, height, depth] = [copy.WidthInBytes, copy.Height, copy.Depth].map(wide);
        let source = Told {
            memory: copy.srcMemoryType,
            host: copy.srcHost,
            device: copy.srcDevice,
            lod: copy.srcLOD,
            at: [copy.srcXInBytes, copy.srcY, copy.srcZ],
            pitch: copy.srcPitch,
            height: copy.srcHeight,
        };
        let target = Told {
            memory: copy.dstMemoryType,
            host: copy.dstHost,
            device: copy.dstDevice,
            lod: copy.dstLOD,
            at: [copy.dstXInBytes, copy.dstY, copy.dstZ],
            pitch: copy.dstPitch,
            height: copy.dstHeight,
        };
        let source = Side::of(&source, width, height)?;
        let target = Side::of(&target, width, height)?;
        let layout = Layout {
            shape: Shape { width, height, depth },
            dst_pitch: target.pitch,
            dst_slice: target.slice,
            src_pitch: source.pitch,
            src_slice: source.slice,
        };
        Ok(Self { source, target, layout })
    }

    /// Copies now.
    fn run(&self, client: &Client, stream: CUstream, wait: bool) -> Result<(), Status> {
        let side = |side: Side| (side.start, side.memory);
        let (target, source) = (side(self.target), side(self.source));
        between(client, target, source, &self.layout, |target, source| {
            let layout = self.layout.clone();
            if wait {
                output::after(client, client.copy_sync_on(target, source, layout, stream))
            } else {
                client.copy_async(target, source, layout, stream)
            }
        })
    }

    /// The copy as work of a graph, which reaches device and page-locked memory.
    pub(crate) fn graph_work(&self) -> CopyWork {
        let side =
            |side: Side| CopySide { address: side.start, pitch: side.pitch, slice: side.slice };
        CopyWork {
            dst: side(self.target),
            src: side(self.source),
            shape: self.layout.shape.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy() -> CUDA_MEMCPY3D {
        CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: MEMORYTYPE_DEVICE,
            srcHost: core::ptr::null(),
            srcDevice: 0x1000,
            srcArray: 0,
            _reserved0: 0,
            srcPitch: 64,
            srcHeight: 8,
            dstXInBytes: 4,
            dstY: 2,
            dstZ: 1,
            dstLOD: 0,
            dstMemoryType: MEMORYTYPE_DEVICE,
            dstHost: core::ptr::null_mut(),
            dstDevice: 0x8000,
            dstArray: 0,
            _reserved1: 0,
            dstPitch: 0,
            dstHeight: 0,
            WidthInBytes: 16,
            Height: 3,
            Depth: 2,
        }
    }

    #[test]
    fn offsets_and_strides_are_those_of_the_driver() {
        let plan = Plan::of(&copy()).unwrap();
        assert_eq!((plan.source.start, plan.source.pitch, plan.source.slice), (0x1000, 64, 512));
        // A pitch of 0 is the row's width, a height of 0 the rows up to the last.
        let start = 0x8000 + 4 + 2 * 20 + 20 * 5;
        assert_eq!((plan.target.start, plan.target.pitch, plan.target.slice), (start, 20, 100));
    }

    #[test]
    fn nonsense_is_refused() {
        for spoil in [
            (|copy| copy.srcMemoryType = 3) as fn(&mut CUDA_MEMCPY3D),
            |copy| copy.srcPitch = 8,
            |copy| (copy.srcPitch, copy.Height, copy.Depth) = (15, 1, 1),
            |copy| copy.dstPitch = 19,
            |copy| copy.srcHeight = 2,
            |copy| copy.srcY = 6,
            |copy| copy.dstHeight = 4,
            |copy| copy.srcXInBytes = usize::MAX,
            |copy| copy.dstZ = usize::MAX,
            |copy| copy.dstLOD = 1,
        ] {
            let mut copy = copy();
            spoil(&mut copy);
            assert!(matches!(Plan::of(&copy), Err(Status::INVALID_VALUE)));
        }
    }
}
