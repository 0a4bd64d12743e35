//! A lowered module: code and tables, immutable while it runs.

use super::handler::Op;
use crate::FunctionInfo;

/// A constant that lowering placed in a register row of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RowValue {
    /// The same bits in every lane.
    Bits(u64),
    /// Bytes of the kernel's parameter buffer; sign-extended if `signed`.
    Param {
        offset: u32,
        bytes: u32,
        signed: bool,
    },
    /// The frame's base in local memory plus an offset.
    FrameAddress {
        offset: u32,
    },
    /// `%tid`, dimension 0–2.
    Tid(u8),
    /// `%ntid`
    Ntid(u8),
    /// `%ctaid`
    Ctaid(u8),
    /// `%nctaid`
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    GridId,
    /// `%lanemask_*`: 0 eq, 1 le, 2 lt, 3 ge, 4 gt.
    LaneMask(u8),
    DynamicShared,
    /// Half of the address of the grid's workspace.
    GridWorkspace {
        high: bool,
    },
    TotalShared,
    /// Where dynamic shared memory begins, plus an offset.
    DynamicBase {
        offset: u32,
    },
}

/// When a constant row must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Once per launch.
    Launch,
    /// For each block.
    Block,
    /// For each warp.
    Warp,
}

impl RowValue {
    pub(crate) fn lifetime(self) -> Lifetime {
        match self {
            Self::Ctaid(_) => Lifetime::Block,
            Self::Tid(_) | Self::WarpId => Lifetime::Warp,
            Self::Bits(_)
            | Self::Param { .. }
            | Self::FrameAddress { .. }
            | Self::Ntid(_)
            | Self::Nctaid(_)
            | Self::LaneId
            | Self::WarpCount
            | Self::GridId
            | Self::LaneMask(_)
            | Self::DynamicBase { .. }
            | Self::DynamicShared
            | Self::GridWorkspace { .. }
            | Self::TotalShared => Lifetime::Launch,
        }
    }
}

/// A constant row of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConstRow {
    pub(crate) row: u32,
    pub(crate) wide: bool,
    pub(crate) value: RowValue,
}

/// Which function the driver provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    Printf,
    Malloc,
    Free,
    AssertFail,
}

/// Where a parameter or result of a device function lives in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamHome {
    /// Bytes of the frame.
    Slot { offset: u32, bytes: u32 },
    /// A 32-bit row.
    Row32 { row: u32, bytes: u32 },
    /// A 64-bit row.
    Row64 { row: u32, bytes: u32 },
    /// A predicate.
    Pred { row: u32 },
}

impl ParamHome {
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Slot { bytes, .. } | Self::Row32 { bytes, .. } | Self::Row64 { bytes, .. } => {
                bytes
            }
            Self::Pred { .. } => 1,
        }
    }
}

/// A lowered function.
#[derive(Clone, Debug, Default)]
pub(crate) struct FunctionMeta {
    pub(crate) name: String,
    /// First operation; code of one function is contiguous.
    pub(crate) entry: u32,
    /// One past its last operation.
    pub(crate) end: u32,
    pub(crate) rows32: u32,
    pub(crate) rows64: u32,
    pub(crate) preds: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) consts: Vec<ConstRow>,
    /// The constants from here on change between blocks or warps.
    pub(crate) moving: usize,
    pub(crate) params: Vec<ParamHome>,
    pub(crate) returns: Vec<ParamHome>,
    pub(crate) builtin: Option<Builtin>,
    /// Whether it may be called (has code or is a builtin).
    pub(crate) callable: bool,
    /// Which text it came from.
    pub(crate) text: u32,
}

/// A call in the code.
#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    pub(crate) args: Vec<ParamHome>,
    pub(crate) returns: Vec<ParamHome>,
}

/// A kernel of the program.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) function: u32,
    pub(crate) info: FunctionInfo,
}

/// Source position of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) line: u32,
    pub(crate) function: u32,
}

/// A lowered module.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) ops: Vec<Op>,
    /// Source position of each operation.
    pub(crate) sources: Vec<Source>,
    pub(crate) functions: Vec<FunctionMeta>,
    /// Row numbers and other words that operations with many operands refer to.
    pub(crate) lists: Vec<u32>,
    pub(crate) calls: Vec<CallSite>,
    pub(crate) kernels: Vec<Kernel>,
    /// Whether code reads the address of the grid's workspace.
    pub(crate) uses_grid_workspace: bool,
    /// The texts, for the instruction in a fault report.
    pub(crate) texts: Vec<String>,
}

impl Program {
    /// `N` words of the lists from `start`; zeros behind the end.
    #[inline(always)]
    pub(crate) fn list<const N: usize>(&self, start: u64) -> [u32; N] {
        let mut words = [0; N];
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        if let Some(rest) = self.lists.get(start..) {
            for (to, from) in words.iter_mut().zip(rest) {
                *to = *from;
            }
        }
        words
    }

    /// Line and text of the instruction that `pc` came from.
    pub(crate) fn instruction(&self, pc: u32) -> (u32, String) {
        let Some(source) = self.sources.get(pc as usize) else { return (0, String::new()) };
        let text = self
            .functions
            .get(source.function as usize)
            .and_then(|f| self.texts.get(f.text as usize))
            .and_then(|t| t.lines().nth((source.line as usize).saturating_sub(1)))
            .map(|l| l.trim().to_owned())
            .unwrap_or_default();
        (source.line, text)
    }
}
