//! Which registers an instruction reads and writes.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the arms list the instructions that have such operands; all others have none"
)]

use crate::ir::{
    Address, BarrierAction, Base, CallArg, CallTarget, Instr, Op, Operand, Pred, Reg, Slot,
};

/// Stands for the thread's carry flag.
const CARRY: Reg = Reg(u32::MAX);

/// The registers that an instruction reads, its guard included.
pub(crate) fn reads(instr: &Instr) -> Vec<Reg> {
    let mut reads = Reads(instr.guard.iter().map(|guard| guard.reg).collect());
    reads.plain(&instr.op);
    reads.special(&instr.op);
    reads.0
}

struct Reads(Vec<Reg>);

impl Reads {
    fn operands<'a>(&mut self, operands: impl IntoIterator<Item = &'a Operand>) {
        for operand in operands {
            match operand {
                Operand::Reg(reg) => self.0.push(*reg),
                Operand::Address(address) => self.address(*address),
                Operand::Imm(_) | Operand::Special(_) | Operand::Function(_) => {}
            }
        }
    }

    fn address(&mut self, address: Address) {
        if let Base::Reg(reg) = address.base {
            self.0.push(reg);
        }
    }

    fn pred(&mut self, pred: Pred) {
        if let Pred::Reg { reg, .. } = pred {
            self.0.push(reg);
        }
    }

    /// Instructions whose sources are all operands.
    fn plain(&mut self, op: &Op) {
        match op {
            Op::Mov { src: a, .. }
            | Op::Unpack { src: a, .. }
            | Op::StackRestore { src: a }
            | Op::Cvt { a, .. }
            | Op::CvtaTo { a, .. }
            | Op::CvtaFrom { a, .. }
            | Op::Isspacep { a, .. }
            | Op::IntUnary { a, .. }
            | Op::BitUnary { a, .. }
            | Op::Bfind { a, .. }
            | Op::FloatUnary { a, .. }
            | Op::Testp { a, .. }
            | Op::Alloca { size: a, .. }
            | Op::WarpSync { mask: a }
            | Op::Elect { mask: a, .. }
            | Op::Nanosleep { duration_ns: a } => self.operands([a]),
            Op::CvtPair { a, b, .. }
            | Op::IntBinary { a, b, .. }
            | Op::MulWide { a, b, .. }
            | Op::AddCarry { a, b, .. }
            | Op::BitBinary { a, b, .. }
            | Op::Shl { a, b, .. }
            | Op::Shr { a, b, .. }
            | Op::Bmsk { a, b, .. }
            | Op::Szext { a, b, .. }
            | Op::FloatBinary { a, b, .. }
            | Op::Copysign { a, b, .. }
            | Op::Setp { a, b, .. }
            | Op::Set { a, b, .. }
            | Op::Selp { a, b, .. }
            | Op::CvtPack { a, b, .. }
            | Op::Match { a, mask: b, .. }
            | Op::Redux { a, mask: b, .. } => self.operands([a, b]),
            Op::Mad { a, b, c, .. }
            | Op::Mad24 { a, b, c, .. }
            | Op::MadCarry { a, b, c, .. }
            | Op::Sad { a, b, c, .. }
            | Op::Dp4a { a, b, c, .. }
            | Op::Dp2a { a, b, c, .. }
            | Op::Lop3 { a, b, c, .. }
            | Op::Shf { a, b, c, .. }
            | Op::Bfe { a, b, c, .. }
            | Op::Prmt { a, b, c, .. }
            | Op::Fma { a, b, c, .. }
            | Op::Slct { a, b, c, .. }
            | Op::Shfl { a, b, c, .. }
            | Op::Fns { mask: a, base: b, offset: c, .. }
            | Op::VideoPacked { a, b, c, .. } => self.operands([a, b, c]),
            Op::Bfi { a, b, c, d, .. } => self.operands([a, b, c, d]),
            Op::Pack { src, .. } => self.operands(src),
            Op::Mma { a, b, c, .. } | Op::WmmaMma { a, b, c, .. } => {
                self.operands(a.iter().chain(b).chain(c));
            }
            Op::Video { a, b, c, .. } => self.operands([&a.value, &b.value].into_iter().chain(c)),
            Op::VideoMad { a, b, c, .. } => self.operands([&a.value, &b.value, c]),
            _ => {}
        }
    }

    /// Addresses, predicates, calls and the carry flag.
    fn special(&mut self, op: &Op) {
        match op {
            Op::Ld { addr, .. } | Op::Ldmatrix { addr, .. } => self.address(*addr),
            Op::St { addr, src, .. } | Op::Stmatrix { addr, src, .. } => {
                self.address(*addr);
                self.operands(src);
            }
            Op::Atom { addr, b, c, .. } => {
                self.address(*addr);
                self.operands([b].into_iter().chain(c));
            }
            Op::CpAsync { dst, src, src_bytes, ignore_src, .. } => {
                self.address(*dst);
                self.address(*src);
                self.operands(src_bytes);
                ignore_src.iter().for_each(|pred| self.pred(*pred));
            }
            Op::WmmaLoad { addr, stride, .. } => {
                self.address(*addr);
                self.operands(stride);
            }
            Op::WmmaStore { addr, src, stride, .. } => {
                self.address(*addr);
                self.operands(src.iter().chain(stride));
            }
            Op::Setp { combine: Some(combine), .. } | Op::Set { combine: Some(combine), .. } => {
                self.pred(combine.pred);
            }
            Op::Lop3 { bool: Some((_, _, pred)), .. } | Op::Selp { pred, .. } => self.pred(*pred),
            Op::Vote { src, mask, .. } => {
                self.pred(*src);
                self.operands(mask);
            }
            Op::Shfl { mask, .. } => self.operands(mask),
            Op::CvtPack { c, .. } => self.operands(c),
            Op::AddCarry { carry_in: true, .. } | Op::MadCarry { carry_in: true, .. } => {
                self.0.push(CARRY);
            }
            Op::BrxIdx { index, .. } => self.0.push(*index),
            Op::Call(call) => {
                if let CallTarget::Indirect { pointer, .. } = &call.target {
                    self.0.push(*pointer);
                }
                self.operands(call.args.iter().filter_map(value));
            }
            Op::Barrier { action, id, threads, .. } => {
                self.operands([id].into_iter().chain(threads));
                if let BarrierAction::Popc { pred, .. }
                | BarrierAction::And { pred, .. }
                | BarrierAction::Or { pred, .. } = action
                {
                    self.pred(*pred);
                }
            }
            _ => {}
        }
    }
}

const fn value(arg: &CallArg) -> Option<&Operand> {
    match arg {
        CallArg::Value { value, .. } => Some(value),
        CallArg::Slot(Slot { .. }) => None,
    }
}

/// The registers that an instruction writes, and the carry flag as one more.
pub(crate) fn writes(op: &Op) -> Vec<Reg> {
    let mut all = Vec::new();
    op.for_each_written(|reg| all.push(reg));
    if let Op::AddCarry { carry_out: true, .. } | Op::MadCarry { carry_out: true, .. } = op {
        all.push(CARRY);
    }
    all
}
