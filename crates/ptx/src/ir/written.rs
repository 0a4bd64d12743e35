//! Which registers an instruction writes.

use super::{BarrierAction, CallArg, Op, Operand, Reg};

impl Op {
    /// Calls `f` for each register that the instruction writes.
    #[expect(clippy::too_many_lines, reason = "one table of all instructions")]
    pub fn for_each_written(&self, mut f: impl FnMut(Reg)) {
        match self {
            Self::Unpack { dst, .. } | Self::Ld { dst, .. } => {
                dst.iter().flatten().for_each(|r| f(*r));
            }
            Self::Ldmatrix { dst, .. } | Self::WmmaLoad { dst, .. } => {
                dst.iter().for_each(|r| f(*r));
            }
            Self::Mma { d, .. } | Self::WmmaMma { d, .. } => d.iter().for_each(|r| f(*r)),
            Self::Atom { dst, .. } => dst.iter().for_each(|r| f(*r)),
            Self::Lop3 { dst, bool, .. } => {
                dst.iter().for_each(|r| f(*r));
                bool.iter().for_each(|(_, r, _)| f(*r));
            }
            Self::Setp { dst, complement, .. } => dst.iter().chain(complement).for_each(|r| f(*r)),
            Self::Shfl { dst, pred, .. } | Self::Match { dst, pred, .. } => {
                dst.iter().chain(pred).for_each(|r| f(*r));
            }
            Self::Elect { dst, pred, .. } => {
                dst.iter().for_each(|r| f(*r));
                f(*pred);
            }
            Self::Barrier { action, .. } => match action {
                BarrierAction::Popc { dst, .. }
                | BarrierAction::And { dst, .. }
                | BarrierAction::Or { dst, .. } => f(*dst),
                BarrierAction::Sync | BarrierAction::Arrive => {}
            },
            Self::Call(call) => {
                for result in &call.returns {
                    if let CallArg::Value { value: Operand::Reg(reg), .. } = result {
                        f(*reg);
                    }
                }
            }
            Self::St { .. }
            | Self::Stmatrix { .. }
            | Self::WmmaStore { .. }
            | Self::Fence { .. }
            | Self::CpAsync { .. }
            | Self::CpAsyncCommit
            | Self::CpAsyncWait { .. }
            | Self::StackRestore { .. }
            | Self::Bra { .. }
            | Self::BrxIdx { .. }
            | Self::Ret
            | Self::Exit
            | Self::Trap
            | Self::Brkpt
            | Self::Nanosleep { .. }
            | Self::Nop
            | Self::WarpSync { .. } => {}
            Self::Mov { dst, .. }
            | Self::Pack { dst, .. }
            | Self::Cvt { dst, .. }
            | Self::CvtPair { dst, .. }
            | Self::CvtPack { dst, .. }
            | Self::CvtaTo { dst, .. }
            | Self::CvtaFrom { dst, .. }
            | Self::Isspacep { dst, .. }
            | Self::Alloca { dst, .. }
            | Self::StackSave { dst }
            | Self::IntBinary { dst, .. }
            | Self::MulWide { dst, .. }
            | Self::Mad { dst, .. }
            | Self::Mad24 { dst, .. }
            | Self::AddCarry { dst, .. }
            | Self::MadCarry { dst, .. }
            | Self::Sad { dst, .. }
            | Self::IntUnary { dst, .. }
            | Self::Dp4a { dst, .. }
            | Self::Dp2a { dst, .. }
            | Self::BitBinary { dst, .. }
            | Self::BitUnary { dst, .. }
            | Self::Shl { dst, .. }
            | Self::Shr { dst, .. }
            | Self::Shf { dst, .. }
            | Self::Bfe { dst, .. }
            | Self::Bfi { dst, .. }
            | Self::Bfind { dst, .. }
            | Self::Bmsk { dst, .. }
            | Self::Szext { dst, .. }
            | Self::Fns { dst, .. }
            | Self::Prmt { dst, .. }
            | Self::FloatBinary { dst, .. }
            | Self::Fma { dst, .. }
            | Self::FloatUnary { dst, .. }
            | Self::Testp { dst, .. }
            | Self::Copysign { dst, .. }
            | Self::Set { dst, .. }
            | Self::Selp { dst, .. }
            | Self::Slct { dst, .. }
            | Self::Vote { dst, .. }
            | Self::Activemask { dst }
            | Self::Redux { dst, .. }
            | Self::Video { dst, .. }
            | Self::VideoMad { dst, .. }
            | Self::VideoPacked { dst, .. } => f(*dst),
        }
    }
}
