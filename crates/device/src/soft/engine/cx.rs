//! What a handler sees: the registers of the running warp, the memories, the events it may raise.

use std::sync::Arc;

use super::program::Program;
use super::rows::{LANES, R32, R64, expand};
use super::warp::{Frame, WarpState};
use crate::FaultKind;
use crate::soft::heap::Heap;
use crate::soft::memory::Memory;
use crate::soft::memory::tlb::Tlb;

/// What a misbehaving instruction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineFault {
    pub(crate) kind: FaultKind,
    pub(crate) lane: u32,
    pub(crate) address: Option<u64>,
    /// Replaces the instruction's text if not empty.
    pub(crate) message: String,
}

/// What a barrier operation asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BarrierRequest {
    pub(crate) id: u32,
    /// 0: all threads of the block.
    pub(crate) threads: u32,
    pub(crate) wait: bool,
    /// Whether the lanes want the votes' result.
    pub(crate) reduces: bool,
    /// Lanes whose predicate holds, for reductions.
    pub(crate) votes: u32,
}

/// Result of a phase of a block barrier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BarrierResult {
    /// Threads whose predicate held.
    pub(crate) count: u32,
    /// Threads that took part.
    pub(crate) threads: u32,
}

/// Constants of the running launch and block.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaunchState {
    pub(crate) grid: [u32; 3],
    pub(crate) block_dim: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) params: Vec<u8>,
    pub(crate) dynamic_shared: u32,
    /// Where dynamic shared memory begins.
    pub(crate) static_shared: u32,
    pub(crate) total_shared: u32,
    pub(crate) grid_id: u64,
    /// Where 8 bytes lie that are zero when the launch begins.
    pub(crate) grid_workspace: u64,
    /// Number of the execution, never 0.
    pub(crate) serial: u64,
}

/// The execution context: one per device, switched between warps.
pub(crate) struct Cx {
    /// All ones in the active lanes.
    pub(crate) lanes: R32,
    r32: *mut R32,
    r64: *mut R64,
    preds: *mut u32,
    /// Active lanes.
    pub(crate) mask: u32,
    /// Whether some lanes' registers must be preserved.
    pub(crate) blend: bool,
    /// Lanes of the running split; `mask` is narrower under a guard.
    pub(crate) split_mask: u32,
    /// Operations that may still run before others must get a turn (counted at branches).
    pub(crate) fuel: i64,
    /// Fuel that the warp used in its turn.
    pub(crate) used: i64,
    /// Whether the split did something another thread could be waiting for.
    pub(crate) touched: bool,
    /// How often anybody did.
    pub(crate) touches: u64,
    pub(crate) frame: Frame,
    pub(crate) warp: Box<WarpState>,
    /// A free state, while `warp` is one that was parked.
    pub(crate) spare: Option<Box<WarpState>>,
    pub(crate) program: Arc<Program>,
    pub(crate) launch: LaunchState,
    pub(crate) mem: Memory,
    pub(crate) tlb: Tlb,
    /// What kernels' `malloc` gives.
    pub(crate) heap: Heap,
    /// Shared memory of the running block, in 16-byte units.
    pub(crate) shared: Vec<u128>,
    /// Its first byte.
    pub(crate) shared_host: *mut u8,

    // What events carry.
    pub(crate) targets: [u32; LANES],
    pub(crate) resume: u32,
    pub(crate) site: u32,
    pub(crate) wake_ns: u64,
    pub(crate) barrier: BarrierRequest,
    /// Lanes that the waiting ones name.
    pub(crate) members: u32,
    pub(crate) fault: Option<Box<EngineFault>>,
    /// Text that kernels printed.
    pub(crate) output: Vec<u8>,
}

// SAFETY: the raw pointers point into `warp` and `shared`, which the context owns; nothing else
// refers to them.
unsafe impl Send for Cx {}

impl std::fmt::Debug for Cx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cx").field("mask", &self.mask).field("launch", &self.launch).finish()
    }
}

impl Cx {
    pub(crate) fn new(mem: Memory) -> Self {
        Self {
            lanes: R32::ZERO,
            r32: std::ptr::null_mut(),
            r64: std::ptr::null_mut(),
            preds: std::ptr::null_mut(),
            mask: 0,
            blend: true,
            split_mask: 0,
            fuel: 0,
            used: 0,
            touched: false,
            touches: 0,
            frame: Frame::default(),
            warp: Box::default(),
            spare: None,
            program: Arc::default(),
            launch: LaunchState::default(),
            mem,
            tlb: Tlb::default(),
            heap: Heap::default(),
            shared: Vec::new(),
            shared_host: std::ptr::null_mut(),
            targets: [0; LANES],
            resume: 0,
            site: 0,
            wake_ns: 0,
            barrier: BarrierRequest::default(),
            members: 0,
            fault: None,
            output: Vec::new(),
        }
    }

    /// Points the register files at the current frame, growing them to hold it.
    pub(crate) fn bind_frame(&mut self) {
        let meta = &self.program.functions[self.frame.function as usize];
        let (b32, b64, bp) =
            (self.frame.base32 as usize, self.frame.base64 as usize, self.frame.base_pred as usize);
        self.warp.grow(
            b32 + meta.rows32 as usize,
            b64 + meta.rows64 as usize,
            bp + meta.preds as usize,
        );
        self.r32 = self.warp.r32[b32..].as_mut_ptr();
        self.r64 = self.warp.r64[b64..].as_mut_ptr();
        self.preds = self.warp.preds[bp..].as_mut_ptr();
    }

    /// Notes an operation that another thread could be waiting for, or that waits for another.
    #[inline(always)]
    pub(crate) fn touch(&mut self) {
        self.touched = true;
        self.touches += 1;
    }

    /// Makes `mask` the active lanes.
    #[inline(always)]
    pub(crate) fn set_mask(&mut self, mask: u32) {
        self.mask = mask;
        self.blend = mask != self.warp.live;
        self.lanes = R32(expand(mask));
    }

    #[inline(always)]
    pub(crate) fn row32(&self, row: u32) -> [u32; LANES] {
        let row = self.r32.wrapping_add(row as usize);
        // SAFETY: lowering emits only rows below the function's `rows32`, and `bind_frame` made the
        // file at least that long from `r32` on.
        unsafe { (*row).0 }
    }

    #[inline(always)]
    pub(crate) fn row64(&self, row: u32) -> [u64; LANES] {
        let row = self.r64.wrapping_add(row as usize);
        // SAFETY: as in `row32`, for `rows64`.
        unsafe { (*row).0 }
    }

    #[inline(always)]
    pub(crate) fn pred(&self, row: u32) -> u32 {
        let row = self.preds.wrapping_add(row as usize);
        // SAFETY: as in `row32`, for `preds`.
        unsafe { *row }
    }

    #[inline(always)]
    fn row32_mut(&mut self, row: u32) -> &mut [u32; LANES] {
        let row = self.r32.wrapping_add(row as usize);
        // SAFETY: as in `row32`; `&mut self` makes the reference the only one.
        unsafe { &mut (*row).0 }
    }

    #[inline(always)]
    fn row64_mut(&mut self, row: u32) -> &mut [u64; LANES] {
        let row = self.r64.wrapping_add(row as usize);
        // SAFETY: as in `row64`; `&mut self` makes the reference the only one.
        unsafe { &mut (*row).0 }
    }

    /// Writes the active lanes of a row.
    #[inline(always)]
    pub(crate) fn put32(&mut self, row: u32, value: [u32; LANES]) {
        if self.blend {
            let lanes = self.lanes.0;
            let d = self.row32_mut(row);
            for i in 0..LANES {
                d[i] = (value[i] & lanes[i]) | (d[i] & !lanes[i]);
            }
        } else {
            *self.row32_mut(row) = value;
        }
    }

    /// Writes the active lanes of a row.
    #[inline(always)]
    pub(crate) fn put64(&mut self, row: u32, value: [u64; LANES]) {
        if self.blend {
            let lanes = self.lanes.0;
            let d = self.row64_mut(row);
            for i in 0..LANES {
                let keep = u64::from(lanes[i]) | (u64::from(lanes[i]) << 32);
                d[i] = (value[i] & keep) | (d[i] & !keep);
            }
        } else {
            *self.row64_mut(row) = value;
        }
    }

    /// Writes the active lanes of a predicate.
    #[inline(always)]
    pub(crate) fn put_pred(&mut self, row: u32, bits: u32) {
        let mask = self.mask;
        let row = self.preds.wrapping_add(row as usize);
        // SAFETY: as in `pred`; `&mut self` makes the reference the only one.
        let p = unsafe { &mut *row };
        *p = (*p & !mask) | (bits & mask);
    }

    /// Bytes of shared memory of the running block.
    #[inline(always)]
    pub(crate) fn shared_bytes(&self) -> u64 {
        u64::from(self.launch.total_shared)
    }

    /// Records a fault of `lane`.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(&mut self, kind: FaultKind, lane: u32, address: Option<u64>) -> u32 {
        self.fail_with(kind, lane, address, String::new())
    }

    /// Records a fault of `lane` with a message.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_with(
        &mut self,
        kind: FaultKind,
        lane: u32,
        address: Option<u64>,
        message: String,
    ) -> u32 {
        self.fault = Some(Box::new(EngineFault { kind, lane, address, message }));
        super::handler::event::FAULT
    }

    /// The lowest active lane.
    #[inline(always)]
    pub(crate) fn first_lane(&self) -> u32 {
        self.mask.trailing_zeros() & 31
    }
}
