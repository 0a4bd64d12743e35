//! A warp: its registers, its local memory and its splits (groups of lanes at one place).
//!
//! Lanes that go different ways become *splits*. The split deepest in calls and then lowest in the
//! code runs first, and splits that meet at one place merge; since compilers lay code out so that a
//! join comes after the branches that lead to it, this reconverges where the branches join. A
//! split that has run long while doing something another thread could be waiting for (an atomic, a
//! volatile access) steps back for the others, so that a lane that spins on a lock cannot starve
//! the lane that holds it.

use super::cx::BarrierResult;
use super::rows::{LANES, R32, R64, lanes_of};

/// Most bytes of local memory of one thread (the limit of the CUDA programming guide).
pub(crate) const LOCAL_BYTES_MAX: u32 = 512 << 10;
/// Most nested calls.
pub(crate) const CALL_DEPTH_MAX: usize = 8192;
/// Most register rows (of each width) of one warp: 64-bit rows of 256 B make 64 MiB.
pub(crate) const ROWS_MAX: usize = 1 << 18;

/// An activation of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) function: u32,
    pub(crate) base32: u32,
    pub(crate) base64: u32,
    pub(crate) base_pred: u32,
    /// Where its local memory begins.
    pub(crate) local_base: u32,
    /// Where free local memory begins.
    pub(crate) local_top: u32,
    /// Where the caller goes on.
    pub(crate) return_pc: u32,
    /// Index of the call site in the program.
    pub(crate) site: u32,
}

/// Whether a split can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitState {
    Ready,
    /// Waits at a block barrier.
    Barrier(u32),
    /// Waits for other lanes of the warp: those in `members`; goes on at `next`.
    Lanes {
        members: u32,
        next: u32,
    },
    /// Sleeps until this instant (ns).
    Sleep(u64),
}

/// Lanes at one place.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) frame: Frame,
    /// Callers' frames, outermost first.
    pub(crate) callers: Vec<Frame>,
    pub(crate) state: SplitState,
    /// When it last ran.
    pub(crate) stamp: u64,
}

impl Split {
    /// Whether both are at the same place of the same activation. (Their frames may have grown
    /// apart.)
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let frame = |split: &Self| Frame { local_top: 0, ..split.frame };
        self.pc == other.pc && frame(self) == frame(other) && self.callers == other.callers
    }

    /// Takes in the lanes of a split that it meets.
    pub(crate) fn join(&mut self, other: &Self) {
        self.mask |= other.mask;
        self.frame.local_top = self.frame.local_top.max(other.frame.local_top);
    }

    /// Whether it could run, or go on with lanes that join it.
    pub(crate) fn may_join(&self) -> bool {
        matches!(self.state, SplitState::Ready | SplitState::Lanes { .. })
    }

    /// Runs before `other`: deeper in calls, then lower in the code.
    pub(crate) fn precedes(&self, other: &Self) -> bool {
        (std::cmp::Reverse(self.callers.len()), self.pc)
            < (std::cmp::Reverse(other.callers.len()), other.pc)
    }
}

/// What the lanes of a warp that came to a block barrier asked for, until the rest of the warp that
/// has not exited comes too: a warp arrives as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// Lanes that came.
    pub(crate) lanes: u32,
    /// Lanes whose predicate held.
    pub(crate) votes: u32,
    /// Threads that end the phase; 0 means all of the block.
    pub(crate) threads: u32,
    /// Whether lanes wait for the result of a reduction.
    pub(crate) reduces: bool,
}

/// A warp's state between turns.
#[derive(Debug, Default)]
pub(crate) struct WarpState {
    pub(crate) r32: Vec<R32>,
    pub(crate) r64: Vec<R64>,
    pub(crate) preds: Vec<u32>,
    /// Local memory, interleaved: word `w` of lane `l` is `local[w].0[l]`.
    pub(crate) local: Vec<R32>,
    /// Carry flag of each lane.
    pub(crate) carry: u32,
    /// Lanes that exist and have not exited.
    pub(crate) live: u32,
    /// Number within the block.
    pub(crate) index: u32,
    pub(crate) splits: Vec<Split>,
    /// Arrivals at the block's barriers that do not count yet.
    pub(crate) arrivals: [Arrival; 16],
    /// Result of each lane's last barrier reduction.
    pub(crate) reduced: [BarrierResult; LANES],
    pub(crate) clock: u64,
    /// The launch whose constant rows are in place.
    pub(crate) launch: u64,
    /// The block whose constant rows are in place.
    pub(crate) block: [u32; 3],
}

impl WarpState {
    /// Hands lanes the result of their barrier's phase.
    pub(crate) fn set_reduced(&mut self, lanes: u32, result: BarrierResult) {
        for lane in lanes_of(lanes) {
            self.reduced[lane] = result;
        }
    }

    /// Makes the register files at least that long.
    pub(crate) fn grow(&mut self, rows32: usize, rows64: usize, preds: usize) {
        if self.r32.len() < rows32 {
            self.r32.resize(rows32, R32::ZERO);
        }
        if self.r64.len() < rows64 {
            self.r64.resize(rows64, R64::ZERO);
        }
        if self.preds.len() < preds {
            self.preds.resize(preds, 0);
        }
    }

    /// Makes local memory at least `bytes` long; false beyond the limit.
    pub(crate) fn grow_local(&mut self, bytes: u32) -> bool {
        if bytes > LOCAL_BYTES_MAX {
            return false;
        }
        let words = bytes.div_ceil(4) as usize;
        if self.local.len() < words {
            self.local.resize(words, R32::ZERO);
        }
        true
    }
}
