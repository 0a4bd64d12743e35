//! Integers and bits.

use weft_ptx::ir::{
    BitBinaryOp, BitUnaryOp, IntBinaryOp, IntType, IntUnaryOp, MulMode, Op as Ir, Operand,
    PrmtMode, Reg, ShfMode, Width,
};

use super::super::bits as b;
use super::super::int as i;
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

type Done = Result<(), Refusal>;

/// Picks the handler of each type: `pick!(self, ty, dst, operands, imm; U16 => H32 (narrow) …)`.
macro_rules! by_type {
    ($self:ident, $ty:expr, $dst:expr, $ops:expr; $($t:ident => $how:ident $h:path),* $(,)?) => {
        match $ty {
            $(IntType::$t => $self.$how::<$h>($dst, $ops, 0),)*
            #[allow(unreachable_patterns, reason = "some tables name every type")]
            _ => Err(Refusal::new("the type is not supported for this operation")),
        }
    };
}

impl FunctionLowering<'_> {
    pub(super) fn int_binary(
        &mut self,
        op: IntBinaryOp,
        ty: IntType,
        sat: bool,
        dst: Reg,
        ops: &[Operand],
    ) -> Done {
        match op {
            IntBinaryOp::Add if sat => self.all32::<i::AddSatS32>(dst, ops, 0),
            IntBinaryOp::Sub if sat => self.all32::<i::SubSatS32>(dst, ops, 0),
            IntBinaryOp::Add => by_type!(self, ty, dst, ops;
                U8 => all32 i::Add16, S8 => all32 i::Add16,
                U16 => all32 i::Add16, S16 => all32 i::Add16, U32 => all32 i::Add32,
                S32 => all32 i::Add32, U64 => all64 i::Add64, S64 => all64 i::Add64,
                U16x2 => all32 i::Add16x2, S16x2 => all32 i::Add16x2),
            IntBinaryOp::Sub => by_type!(self, ty, dst, ops;
                U16 => all32 i::Sub16, S16 => all32 i::Sub16, U32 => all32 i::Sub32,
                S32 => all32 i::Sub32, U64 => all64 i::Sub64, S64 => all64 i::Sub64,
                U16x2 => all32 i::Sub16x2, S16x2 => all32 i::Sub16x2),
            IntBinaryOp::MulLo => by_type!(self, ty, dst, ops;
                U16 => all32 i::Mul16, S16 => all32 i::Mul16, U32 => all32 i::Mul32,
                S32 => all32 i::Mul32, U64 => all64 i::Mul64, S64 => all64 i::Mul64),
            IntBinaryOp::MulHi => self.mul_hi(ty, dst, ops),
            IntBinaryOp::Mul24Lo => by_type!(self, ty, dst, ops;
                U32 => all32 i::Mul24LoU32, S32 => all32 i::Mul24LoS32),
            IntBinaryOp::Mul24Hi => by_type!(self, ty, dst, ops;
                U32 => all32 i::Mul24HiU32, S32 => all32 i::Mul24HiS32),
            IntBinaryOp::Div => by_type!(self, ty, dst, ops;
                U16 => all32 i::DivU16, S16 => all32 i::DivS16, U32 => all32 i::DivU32,
                S32 => all32 i::DivS32, U64 => all64 i::DivU64, S64 => all64 i::DivS64),
            IntBinaryOp::Rem => by_type!(self, ty, dst, ops;
                U16 => all32 i::RemU16, S16 => all32 i::RemS16, U32 => all32 i::RemU32,
                S32 => all32 i::RemS32, U64 => all64 i::RemU64, S64 => all64 i::RemS64),
            IntBinaryOp::Min => by_type!(self, ty, dst, ops;
                U16 => all32 i::MinU16, S16 => all32 i::MinS16, U32 => all32 i::MinU32,
                S32 => all32 i::MinS32, U64 => all64 i::MinU64, S64 => all64 i::MinS64,
                U16x2 => all32 i::MinU16x2, S16x2 => all32 i::MinS16x2),
            IntBinaryOp::Max => by_type!(self, ty, dst, ops;
                U16 => all32 i::MaxU16, S16 => all32 i::MaxS16, U32 => all32 i::MaxU32,
                S32 => all32 i::MaxS32, U64 => all64 i::MaxU64, S64 => all64 i::MaxS64,
                U16x2 => all32 i::MaxU16x2, S16x2 => all32 i::MaxS16x2),
        }
    }

    pub(super) fn relu(&mut self, ty: IntType, dst: Reg) -> Done {
        by_type!(self, ty, dst, &[Operand::Reg(dst)];
            S32 => all32 i::ReluS32, S16 => all32 i::ReluS16, S16x2 => all32 i::ReluS16x2)
    }

    fn mul_hi(&mut self, ty: IntType, dst: Reg, ops: &[Operand]) -> Done {
        by_type!(self, ty, dst, ops;
            U16 => all32 i::MulHiU16, S16 => all32 i::MulHiS16, U32 => all32 i::MulHiU32,
            S32 => all32 i::MulHiS32, U64 => all64 i::MulHiU64, S64 => all64 i::MulHiS64)
    }

    pub(super) fn mul_wide(&mut self, ty: IntType, dst: Reg, x: Operand, y: Operand) -> Done {
        let (x, y, d) = (self.r32(x)?, self.r32(y)?, self.dst(dst));
        match ty {
            IntType::U16 => self.emit::<i::MulWideU16>(WORDS.d(d).a(x).b(y)),
            IntType::S16 => self.emit::<i::MulWideS16>(WORDS.d(d).a(x).b(y)),
            IntType::U32 => self.emit::<i::MulWideU32>(WORDS.d(d).a(x).b(y)),
            IntType::S32 => self.emit::<i::MulWideS32>(WORDS.d(d).a(x).b(y)),
            _ => return Err(Refusal::new("mul.wide of this type")),
        }
        Ok(())
    }

    pub(super) fn mad(
        &mut self,
        (mode, ty, sat): (MulMode, IntType, bool),
        dst: Reg,
        ops: [Operand; 3],
    ) -> Done {
        let [x, y, z] = ops;
        match mode {
            MulMode::Lo => by_type!(self, ty, dst, &ops;
                U16 => all32 i::MadLo16, S16 => all32 i::MadLo16, U32 => all32 i::MadLo32,
                S32 => all32 i::MadLo32, U64 => all64 i::MadLo64, S64 => all64 i::MadLo64),
            MulMode::Wide => {
                let (x, y, d) = (self.r32(x)?, self.r32(y)?, self.dst(dst));
                match ty {
                    IntType::U16 | IntType::S16 => {
                        let z = self.r32(z)?;
                        if ty == IntType::U16 {
                            self.emit::<i::MadWideU16>(WORDS.d(d).a(x).b(y).c(z));
                        } else {
                            self.emit::<i::MadWideS16>(WORDS.d(d).a(x).b(y).c(z));
                        }
                    }
                    _ => {
                        let z = self.r64(z)?;
                        if ty == IntType::U32 {
                            self.emit::<i::MadWideU32>(WORDS.d(d).a(x).b(y).c(z));
                        } else {
                            self.emit::<i::MadWideS32>(WORDS.d(d).a(x).b(y).c(z));
                        }
                    }
                }
                Ok(())
            }
            MulMode::Hi if sat => self.all32::<i::MadHiSatS32>(dst, &ops, 0),
            MulMode::Hi => self.mad_high(ty, dst, ops),
        }
    }

    fn mad_high(&mut self, ty: IntType, dst: Reg, [x, y, z]: [Operand; 3]) -> Done {
        if ty.width() == Width::B64 {
            let (x, y, z, t, d) =
                (self.r64(x)?, self.r64(y)?, self.r64(z)?, self.temp64(), self.dst(dst));
            if ty == IntType::U64 {
                self.emit::<i::MulHiU64>(WORDS.d(t).a(x).b(y));
            } else {
                self.emit::<i::MulHiS64>(WORDS.d(t).a(x).b(y));
            }
            self.emit::<i::Add64>(WORDS.d(d).a(t).b(z));
            return Ok(());
        }
        let (x, y, z, t, d) =
            (self.r32(x)?, self.r32(y)?, self.r32(z)?, self.temp32(), self.dst(dst));
        match ty {
            IntType::U16 => self.emit::<i::MulHiU16>(WORDS.d(t).a(x).b(y)),
            IntType::S16 => self.emit::<i::MulHiS16>(WORDS.d(t).a(x).b(y)),
            IntType::U32 => self.emit::<i::MulHiU32>(WORDS.d(t).a(x).b(y)),
            _ => self.emit::<i::MulHiS32>(WORDS.d(t).a(x).b(y)),
        }
        if ty.width() == Width::B16 {
            self.emit::<i::Add16>(WORDS.d(d).a(t).b(z));
        } else {
            self.emit::<i::Add32>(WORDS.d(d).a(t).b(z));
        }
        Ok(())
    }

    pub(super) fn mad24(
        &mut self,
        (high, ty, sat): (bool, IntType, bool),
        dst: Reg,
        ops: [Operand; 3],
    ) -> Done {
        if sat {
            return self.all32::<i::Mad24HiSatS32>(dst, &ops, 0);
        }
        let [x, y, z] = ops;
        let (x, y, z, t, d) =
            (self.r32(x)?, self.r32(y)?, self.r32(z)?, self.temp32(), self.dst(dst));
        match (high, ty.is_signed()) {
            (false, false) => self.emit::<i::Mul24LoU32>(WORDS.d(t).a(x).b(y)),
            (false, true) => self.emit::<i::Mul24LoS32>(WORDS.d(t).a(x).b(y)),
            (true, false) => self.emit::<i::Mul24HiU32>(WORDS.d(t).a(x).b(y)),
            (true, true) => self.emit::<i::Mul24HiS32>(WORDS.d(t).a(x).b(y)),
        }
        self.emit::<i::Add32>(WORDS.d(d).a(t).b(z));
        Ok(())
    }

    pub(super) fn carry(&mut self, op: &Ir) -> Done {
        match *op {
            Ir::AddCarry { subtract, width, carry_in, carry_out, dst, a, b } => {
                let flags = carry_flags(carry_in, carry_out, subtract);
                if width == Width::B64 {
                    self.all64::<i::AddCarry64>(dst, &[a, b], flags)
                } else {
                    self.all32::<i::AddCarry32>(dst, &[a, b], flags)
                }
            }
            Ir::MadCarry { mode, ty, carry_in, carry_out, dst, a, b, c } => {
                self.mad_carry((mode, ty, carry_flags(carry_in, carry_out, false)), dst, [a, b, c])
            }
            _ => Err(Refusal::new("not a carry operation")),
        }
    }

    fn mad_carry(
        &mut self,
        (mode, ty, flags): (MulMode, IntType, u64),
        dst: Reg,
        [x, y, z]: [Operand; 3],
    ) -> Done {
        let high = mode == MulMode::Hi;
        let d = self.dst(dst);
        if ty.width() == Width::B64 {
            let (x, y, z, t) = (self.r64(x)?, self.r64(y)?, self.r64(z)?, self.temp64());
            match (high, ty.is_signed()) {
                (false, _) => self.emit::<i::Mul64>(WORDS.d(t).a(x).b(y)),
                (true, false) => self.emit::<i::MulHiU64>(WORDS.d(t).a(x).b(y)),
                (true, true) => self.emit::<i::MulHiS64>(WORDS.d(t).a(x).b(y)),
            }
            self.emit::<i::AddCarry64>(WORDS.d(d).a(t).b(z).imm(flags));
            return Ok(());
        }
        let (x, y, z, t) = (self.r32(x)?, self.r32(y)?, self.r32(z)?, self.temp32());
        match (high, ty.is_signed()) {
            (false, _) => self.emit::<i::Mul32>(WORDS.d(t).a(x).b(y)),
            (true, false) => self.emit::<i::MulHiU32>(WORDS.d(t).a(x).b(y)),
            (true, true) => self.emit::<i::MulHiS32>(WORDS.d(t).a(x).b(y)),
        }
        if ty.width() == Width::B16 {
            let sum = self.temp32();
            self.emit::<i::AddCarry32>(WORDS.d(sum).a(t).b(z).imm(flags));
            self.emit::<b::Low16>(WORDS.d(d).a(sum));
        } else {
            self.emit::<i::AddCarry32>(WORDS.d(d).a(t).b(z).imm(flags));
        }
        Ok(())
    }

    pub(super) fn sad(&mut self, ty: IntType, dst: Reg, [x, y, z]: [Operand; 3]) -> Done {
        let d = self.dst(dst);
        if ty.width() == Width::B64 {
            let (x, y, z, t) = (self.r64(x)?, self.r64(y)?, self.r64(z)?, self.temp64());
            if ty == IntType::U64 {
                self.emit::<i::AbsDiffU64>(WORDS.d(t).a(x).b(y));
            } else {
                self.emit::<i::AbsDiffS64>(WORDS.d(t).a(x).b(y));
            }
            self.emit::<i::Add64>(WORDS.d(d).a(t).b(z));
            return Ok(());
        }
        let (x, y, z, t) = (self.r32(x)?, self.r32(y)?, self.r32(z)?, self.temp32());
        match ty {
            IntType::U16 => self.emit::<i::AbsDiffU16>(WORDS.d(t).a(x).b(y)),
            IntType::S16 => self.emit::<i::AbsDiffS16>(WORDS.d(t).a(x).b(y)),
            IntType::U32 => self.emit::<i::AbsDiffU32>(WORDS.d(t).a(x).b(y)),
            _ => self.emit::<i::AbsDiffS32>(WORDS.d(t).a(x).b(y)),
        }
        if ty.width() == Width::B16 {
            self.emit::<i::Add16>(WORDS.d(d).a(t).b(z));
        } else {
            self.emit::<i::Add32>(WORDS.d(d).a(t).b(z));
        }
        Ok(())
    }

    pub(super) fn int_unary(&mut self, op: IntUnaryOp, ty: IntType, dst: Reg, a: Operand) -> Done {
        let ops = &[a];
        match op {
            IntUnaryOp::Neg => by_type!(self, ty, dst, ops;
                S16 => all32 i::Neg16, U16 => all32 i::Neg16, S32 => all32 i::Neg32,
                U32 => all32 i::Neg32, S64 => all64 i::Neg64, U64 => all64 i::Neg64),
            IntUnaryOp::Abs => by_type!(self, ty, dst, ops;
                S16 => all32 i::Abs16, S32 => all32 i::Abs32, S64 => all64 i::Abs64),
        }
    }

    pub(super) fn bit_binary(
        &mut self,
        op: BitBinaryOp,
        width: Width,
        dst: Reg,
        ops: [Operand; 2],
    ) -> Done {
        match (op, width) {
            (_, Width::Pred) => self.pred_logic(op, dst, ops),
            (BitBinaryOp::And, Width::B64) => self.all64::<b::And64>(dst, &ops, 0),
            (BitBinaryOp::Or, Width::B64) => self.all64::<b::Or64>(dst, &ops, 0),
            (BitBinaryOp::Xor, Width::B64) => self.all64::<b::Xor64>(dst, &ops, 0),
            (_, Width::B128) => Err(Refusal::new("128-bit logic")),
            (BitBinaryOp::And, _) => self.all32::<b::And32>(dst, &ops, 0),
            (BitBinaryOp::Or, _) => self.all32::<b::Or32>(dst, &ops, 0),
            (BitBinaryOp::Xor, _) => self.all32::<b::Xor32>(dst, &ops, 0),
        }
    }

    pub(super) fn bit_unary(&mut self, op: BitUnaryOp, width: Width, dst: Reg, a: Operand) -> Done {
        let wide = width == Width::B64;
        match (op, width) {
            (BitUnaryOp::Not, Width::Pred) => {
                let row = self.pred_operand(a)?;
                let d = self.dst(dst);
                self.emit::<super::super::compare::PredLogic>(WORDS.d(d).a(row).imm(3 | 4));
                Ok(())
            }
            (BitUnaryOp::Not, Width::B16) => self.all32::<b::Not16>(dst, &[a], 0),
            (BitUnaryOp::Not, _) if wide => self.all64::<b::Not64>(dst, &[a], 0),
            (BitUnaryOp::Not, _) => self.all32::<b::Not32>(dst, &[a], 0),
            (BitUnaryOp::Cnot, _) if wide => self.all64::<b::Cnot64>(dst, &[a], 0),
            (BitUnaryOp::Cnot, _) => self.all32::<b::Cnot32>(dst, &[a], 0),
            (BitUnaryOp::Popc, _) if wide => self.all64::<b::Popc64>(dst, &[a], 0),
            (BitUnaryOp::Popc, _) => self.all32::<b::Popc32>(dst, &[a], 0),
            (BitUnaryOp::Clz, _) if wide => self.all64::<b::Clz64>(dst, &[a], 0),
            (BitUnaryOp::Clz, _) => self.all32::<b::Clz32>(dst, &[a], 0),
            (BitUnaryOp::Brev, _) if wide => self.all64::<b::Brev64>(dst, &[a], 0),
            (BitUnaryOp::Brev, _) => self.all32::<b::Brev32>(dst, &[a], 0),
        }
    }

    /// Shifts by a 32-bit count.
    pub(super) fn shift(&mut self, op: &Ir) -> Done {
        match *op {
            Ir::Shl { width, dst, a, b } => {
                let (d, n) = (self.dst(dst), self.r32(b)?);
                if width == Width::B64 {
                    let a = self.r64(a)?;
                    self.emit::<b::Shl64>(WORDS.d(d).a(a).b(n));
                } else {
                    let a = self.r32(a)?;
                    if width == Width::B16 {
                        self.emit::<b::Shl16>(WORDS.d(d).a(a).b(n));
                    } else {
                        self.emit::<b::Shl32>(WORDS.d(d).a(a).b(n));
                    }
                }
                Ok(())
            }
            Ir::Shr { ty, dst, a, b } => {
                let (d, n) = (self.dst(dst), self.r32(b)?);
                let a = if ty.width() == Width::B64 { self.r64(a)? } else { self.r32(a)? };
                match ty {
                    IntType::U16 => self.emit::<b::ShrU16>(WORDS.d(d).a(a).b(n)),
                    IntType::S16 => self.emit::<b::ShrS16>(WORDS.d(d).a(a).b(n)),
                    IntType::U32 => self.emit::<b::ShrU32>(WORDS.d(d).a(a).b(n)),
                    IntType::S32 => self.emit::<b::ShrS32>(WORDS.d(d).a(a).b(n)),
                    IntType::U64 => self.emit::<b::ShrU64>(WORDS.d(d).a(a).b(n)),
                    IntType::S64 => self.emit::<b::ShrS64>(WORDS.d(d).a(a).b(n)),
                    _ => return Err(Refusal::new("shr of this type")),
                }
                Ok(())
            }
            Ir::Shf { left, mode, dst, a, b, c } => match (left, mode) {
                (true, ShfMode::Wrap) => self.all32::<b::ShfLeftWrap>(dst, &[a, b, c], 0),
                (true, ShfMode::Clamp) => self.all32::<b::ShfLeftClamp>(dst, &[a, b, c], 0),
                (false, ShfMode::Wrap) => self.all32::<b::ShfRightWrap>(dst, &[a, b, c], 0),
                (false, ShfMode::Clamp) => self.all32::<b::ShfRightClamp>(dst, &[a, b, c], 0),
            },
            _ => Err(Refusal::new("not a shift")),
        }
    }

    /// Bit fields and permutations.
    pub(super) fn field(&mut self, op: &Ir) -> Done {
        match *op {
            Ir::Bfe { ty, dst, a, b, c } => {
                let (d, pos, len) = (self.dst(dst), self.r32(b)?, self.r32(c)?);
                let a = if ty.width() == Width::B64 { self.r64(a)? } else { self.r32(a)? };
                match ty {
                    IntType::S32 => self.emit::<b::BfeS32>(WORDS.d(d).a(a).b(pos).c(len)),
                    IntType::U64 => self.emit::<b::BfeU64>(WORDS.d(d).a(a).b(pos).c(len)),
                    IntType::S64 => self.emit::<b::BfeS64>(WORDS.d(d).a(a).b(pos).c(len)),
                    _ => self.emit::<b::BfeU32>(WORDS.d(d).a(a).b(pos).c(len)),
                }
                Ok(())
            }
            Ir::Bfi { width, dst, a, b, c, d } => {
                let (pos, len, pair) = (self.r32(c)?, self.r32(d)?, self.temp32());
                self.emit::<b::FieldPair>(WORDS.d(pair).a(pos).b(len));
                let to = self.dst(dst);
                if width == Width::B64 {
                    let (a, b) = (self.r64(a)?, self.r64(b)?);
                    self.emit::<b::BfiRows64>(WORDS.d(to).a(a).b(b).c(pair));
                } else {
                    let (a, b) = (self.r32(a)?, self.r32(b)?);
                    self.emit::<b::BfiRows32>(WORDS.d(to).a(a).b(b).c(pair));
                }
                Ok(())
            }
            Ir::Bfind { ty, shift_amount, dst, a } => self.bfind(ty, shift_amount, dst, a),
            Ir::Bmsk { mode, dst, a, b } => {
                self.all32::<b::Bmsk>(dst, &[a, b], u64::from(mode == ShfMode::Wrap))
            }
            Ir::Szext { mode, ty, dst, a, b } => {
                let flags = u64::from(mode == ShfMode::Wrap) | (u64::from(ty.is_signed()) << 1);
                self.all32::<b::Szext>(dst, &[a, b], flags)
            }
            Ir::Fns { dst, mask, base, offset } => {
                self.all32::<b::Fns>(dst, &[mask, base, offset], 0)
            }
            Ir::Prmt { mode: PrmtMode::Generic, dst, a, b, c } => {
                self.all32::<b::Prmt>(dst, &[a, b, c], 0)
            }
            Ir::Prmt { mode, dst, a, b, c } => {
                self.all32::<b::PrmtMode>(dst, &[a, b, c], b::prmt_table(mode))
            }
            _ => Err(Refusal::new("not a bit field operation")),
        }
    }

    fn bfind(&mut self, ty: IntType, amount: bool, dst: Reg, a: Operand) -> Done {
        let d = self.dst(dst);
        let a = if ty.width() == Width::B64 { self.r64(a)? } else { self.r32(a)? };
        match (ty, amount) {
            (IntType::U64, false) => self.emit::<b::BfindU64>(WORDS.d(d).a(a)),
            (IntType::U64, true) => self.emit::<b::BfindAmountU64>(WORDS.d(d).a(a)),
            (IntType::S64, false) => self.emit::<b::BfindS64>(WORDS.d(d).a(a)),
            (IntType::S64, true) => self.emit::<b::BfindAmountS64>(WORDS.d(d).a(a)),
            (IntType::S32, false) => self.emit::<b::BfindS32>(WORDS.d(d).a(a)),
            (IntType::S32, true) => self.emit::<b::BfindAmountS32>(WORDS.d(d).a(a)),
            (_, false) => self.emit::<b::BfindU32>(WORDS.d(d).a(a)),
            (_, true) => self.emit::<b::BfindAmountU32>(WORDS.d(d).a(a)),
        }
        Ok(())
    }

    pub(super) fn dot(&mut self, op: &Ir) -> Done {
        match *op {
            Ir::Dp4a { a_signed, b_signed, dst, a, b, c } => {
                let ops = &[a, b, c];
                match (a_signed, b_signed) {
                    (false, false) => self.all32::<i::Dp4aUU>(dst, ops, 0),
                    (false, true) => self.all32::<i::Dp4aUS>(dst, ops, 0),
                    (true, false) => self.all32::<i::Dp4aSU>(dst, ops, 0),
                    (true, true) => self.all32::<i::Dp4aSS>(dst, ops, 0),
                }
            }
            Ir::Dp2a { high, a_signed, b_signed, dst, a, b, c } => {
                let flags =
                    u64::from(a_signed) | (u64::from(b_signed) << 1) | (u64::from(high) << 2);
                self.all32::<i::Dp2a>(dst, &[a, b, c], flags)
            }
            _ => Err(Refusal::new("not a dot product")),
        }
    }
}

fn carry_flags(carry_in: bool, carry_out: bool, subtract: bool) -> u64 {
    let mut flags = 0;
    if carry_in {
        flags |= i::carry_flags::IN;
    }
    if carry_out {
        flags |= i::carry_flags::OUT;
    }
    if subtract {
        flags |= i::carry_flags::SUBTRACT;
    }
    flags
}
