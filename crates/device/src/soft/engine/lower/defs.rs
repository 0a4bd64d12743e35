//! Which registers an instruction writes.

use weft_ptx::ir::{BarrierAction, CallArg, Op, Operand, Reg};

/// Calls `f` for each register that `op` writes.
#[expect(clippy::too_many_lines, reason = "one table of all instructions")]
pub(super) fn for_each(op: &Op, mut f: impl FnMut(Reg)) {
    match op {
        Op::Unpack { dst, .. } | Op::Ld { dst, .. } => dst.iter().flatten().for_each(|r| f(*r)),
        Op::Ldmatrix { dst, .. } | Op::WmmaLoad { dst, .. } => dst.iter().for_each(|r| f(*r)),
        Op::Mma { d, .. } | Op::WmmaMma { d, .. } => d.iter().for_each(|r| f(*r)),
        Op::Atom { dst, .. } => dst.iter().for_each(|r| f(*r)),
        Op::Lop3 { dst, bool, .. } => {
            dst.iter().for_each(|r| f(*r));
            bool.iter().for_each(|(_, r, _)| f(*r));
        }
        Op::Setp { dst, complement, .. } => dst.iter().chain(complement).for_each(|r| f(*r)),
        Op::Shfl { dst, pred, .. } | Op::Match { dst, pred, .. } => {
            dst.iter().chain(pred).for_each(|r| f(*r));
        }
        Op::Elect { dst, pred, .. } => {
            dst.iter().for_each(|r| f(*r));
            f(*pred);
        }
        Op::Barrier { action, .. } => match action {
            BarrierAction::Popc { dst, .. }
            | BarrierAction::And { dst, .. }
            | BarrierAction::Or { dst, .. } => f(*dst),
            BarrierAction::Sync | BarrierAction::Arrive => {}
        },
        Op::Call(call) => {
            for result in &call.returns {
                if let CallArg::Value { value: Operand::Reg(reg), .. } = result {
                    f(*reg);
                }
            }
        }
        Op::St { .. }
        | Op::Stmatrix { .. }
        | Op::WmmaStore { .. }
        | Op::Fence { .. }
        | Op::CpAsync { .. }
        | Op::CpAsyncCommit
        | Op::CpAsyncWait { .. }
        | Op::StackRestore { .. }
        | Op::Bra { .. }
        | Op::BrxIdx { .. }
        | Op::Ret
        | Op::Exit
        | Op::Trap
        | Op::Brkpt
        | Op::Nanosleep { .. }
        | Op::Nop
        | Op::WarpSync { .. } => {}
        Op::Mov { dst, .. }
        | Op::Pack { dst, .. }
        | Op::Cvt { dst, .. }
        | Op::CvtPair { dst, .. }
        | Op::CvtPack { dst, .. }
        | Op::CvtaTo { dst, .. }
        | Op::CvtaFrom { dst, .. }
        | Op::Isspacep { dst, .. }
        | Op::Alloca { dst, .. }
        | Op::StackSave { dst }
        | Op::IntBinary { dst, .. }
        | Op::MulWide { dst, .. }
        | Op::Mad { dst, .. }
        | Op::Mad24 { dst, .. }
        | Op::AddCarry { dst, .. }
        | Op::MadCarry { dst, .. }
        | Op::Sad { dst, .. }
        | Op::IntUnary { dst, .. }
        | Op::Dp4a { dst, .. }
        | Op::Dp2a { dst, .. }
        | Op::BitBinary { dst, .. }
        | Op::BitUnary { dst, .. }
        | Op::Shl { dst, .. }
        | Op::Shr { dst, .. }
        | Op::Shf { dst, .. }
        | Op::Bfe { dst, .. }
        | Op::Bfi { dst, .. }
        | Op::Bfind { dst, .. }
        | Op::Bmsk { dst, .. }
        | Op::Szext { dst, .. }
        | Op::Fns { dst, .. }
        | Op::Prmt { dst, .. }
        | Op::FloatBinary { dst, .. }
        | Op::Fma { dst, .. }
        | Op::FloatUnary { dst, .. }
        | Op::Testp { dst, .. }
        | Op::Copysign { dst, .. }
        | Op::Set { dst, .. }
        | Op::Selp { dst, .. }
        | Op::Slct { dst, .. }
        | Op::Vote { dst, .. }
        | Op::Activemask { dst }
        | Op::Redux { dst, .. }
        | Op::Video { dst, .. }
        | Op::VideoMad { dst, .. }
        | Op::VideoPacked { dst, .. } => f(*dst),
    }
}
