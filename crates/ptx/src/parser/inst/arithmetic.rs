//! Arithmetic on integers, and where it shares an opcode, on floating-point numbers.

use super::Mods;
use crate::ir::{
    FloatAccuracy, FloatBinaryOp, FloatUnaryOp, IntBinaryOp, IntType, IntUnaryOp, MulMode, Op,
    Rounding, ScalarType, Width,
};
use crate::parser::{Parsed, Parser};

const MUL_MODES: [(&str, MulMode); 3] =
    [("lo", MulMode::Lo), ("hi", MulMode::Hi), ("wide", MulMode::Wide)];

impl<'a> Parser<'a> {
    pub(super) fn arithmetic(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "add" | "sub" => self.add(m),
            "addc" | "subc" => self.add_carry(m, true),
            "mul" => self.mul(m),
            "mad" => self.mad(m, false),
            "madc" => self.mad(m, true),
            "mul24" => self.mul24(m),
            "mad24" => self.mad24(m),
            "sad" => self.sad(m),
            "div" => self.div(m),
            "rem" => self.rem(m),
            "abs" | "neg" => self.unary_sign(m),
            "min" | "max" => self.min_max(m),
            _ => self.dot_product(m),
        }
    }

    fn add(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let subtract = m.opcode() == "sub";
        if m.flag("cc") {
            return self.add_carry_rest(m, false, true);
        }
        let ty = m.ty()?;
        let Some(int) = ty.int() else {
            let op = if subtract { FloatBinaryOp::Sub } else { FloatBinaryOp::Add };
            return self.float_binary(m, ty, op);
        };
        let sat = m.flag("sat");
        m.check(!sat || int == IntType::S32)?;
        m.check(int.width() != Width::B8)?;
        m.finish()?;
        let op = if subtract { IntBinaryOp::Sub } else { IntBinaryOp::Add };
        let (dst, a, b) = self.dst_ab(ty)?;
        Ok(Op::IntBinary { op, ty: int, sat, relu: false, dst, a, b })
    }

    fn add_carry(&mut self, m: Mods<'_, 'a>, carry_in: bool) -> Parsed<Op> {
        let carry_out = m.flag("cc");
        self.add_carry_rest(m, carry_in, carry_out)
    }

    fn add_carry_rest(&mut self, m: Mods<'_, 'a>, carry_in: bool, carry_out: bool) -> Parsed<Op> {
        let subtract = m.opcode().starts_with("sub");
        let ty = m.ty()?;
        m.check(ty.float().is_none() && matches!(ty.width(), Width::B32 | Width::B64))?;
        m.finish()?;
        let (dst, a, b) = self.dst_ab(ty)?;
        Ok(Op::AddCarry { subtract, width: ty.width(), carry_in, carry_out, dst, a, b })
    }

    fn mul(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = m.ty()?;
        let Some(int) = ty.int() else {
            return self.float_binary(m, ty, FloatBinaryOp::Mul);
        };
        m.check(plain(int))?;
        let mode = m.need(&MUL_MODES)?;
        let op = match mode {
            MulMode::Lo => IntBinaryOp::MulLo,
            MulMode::Hi => IntBinaryOp::MulHi,
            MulMode::Wide => {
                let wide = m_wide(m, int)?;
                m.finish()?;
                let dst = self.dst(wide.width())?;
                return Ok(Op::MulWide { ty: int, dst, a: self.src(ty)?, b: self.src(ty)? });
            }
        };
        m.finish()?;
        let (dst, a, b) = self.dst_ab(ty)?;
        Ok(Op::IntBinary { op, ty: int, sat: false, relu: false, dst, a, b })
    }

    /// `mad`, `mad.cc`, `madc`, `madc.cc`.
    fn mad(&mut self, m: Mods<'_, 'a>, carry_in: bool) -> Parsed<Op> {
        let ty = m.ty()?;
        let Some(int) = ty.int() else {
            m.check(!carry_in)?;
            return self.fma_rest(m, ty);
        };
        m.check(plain(int))?;
        let mode = m.need(&MUL_MODES)?;
        let carry_out = m.flag("cc");
        if carry_in || carry_out {
            // Of 16 bits assemblers take no carry out, and for `.hi` they add other bits of the
            // product than for `mad.hi`, so what it means is open.
            let short = mode == MulMode::Lo && !carry_out;
            m.check(mode != MulMode::Wide && (short || int.width() >= Width::B32))?;
            m.finish()?;
            let (dst, a, b, c) = self.dst_abc(ty)?;
            return Ok(Op::MadCarry { mode, ty: int, carry_in, carry_out, dst, a, b, c });
        }
        let sat = m.flag("sat");
        m.check(!sat || (mode == MulMode::Hi && int == IntType::S32))?;
        let outer = if mode == MulMode::Wide { m_wide(m, int)? } else { ty };
        m.finish()?;
        let dst = self.dst(outer.width())?;
        let (a, b, c) = (self.src(ty)?, self.src(ty)?, self.src(outer)?);
        Ok(Op::Mad { mode, ty: int, sat, dst, a, b, c })
    }

    fn mul24(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let (ty, high) = word_type_and_half(m)?;
        m.finish()?;
        let op = if high { IntBinaryOp::Mul24Hi } else { IntBinaryOp::Mul24Lo };
        let (dst, a, b) = self.dst_ab(ScalarType::B32)?;
        Ok(Op::IntBinary { op, ty, sat: false, relu: false, dst, a, b })
    }

    fn mad24(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let (ty, high) = word_type_and_half(m)?;
        let sat = m.flag("sat");
        m.check(!sat || (high && ty == IntType::S32))?;
        m.finish()?;
        let (dst, a, b, c) = self.dst_abc(ScalarType::B32)?;
        Ok(Op::Mad24 { high, ty, sat, dst, a, b, c })
    }

    fn sad(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = m.ty()?;
        let int = ty.int().filter(|&int| plain(int)).ok_or_else(|| m.unknown())?;
        m.finish()?;
        let (dst, a, b, c) = self.dst_abc(ty)?;
        Ok(Op::Sad { ty: int, dst, a, b, c })
    }

    fn div(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = m.ty()?;
        if ty.int().is_none() {
            return self.float_binary(m, ty, FloatBinaryOp::Div);
        }
        self.int_binary(m, ty, IntBinaryOp::Div)
    }

    fn rem(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = m.ty()?;
        self.int_binary(m, ty, IntBinaryOp::Rem)
    }

    fn int_binary(&mut self, m: Mods<'_, 'a>, ty: ScalarType, op: IntBinaryOp) -> Parsed<Op> {
        let int = ty.int().filter(|&int| plain(int)).ok_or_else(|| m.unknown())?;
        m.finish()?;
        let (dst, a, b) = self.dst_ab(ty)?;
        Ok(Op::IntBinary { op, ty: int, sat: false, relu: false, dst, a, b })
    }

    fn unary_sign(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let negate = m.opcode() == "neg";
        let ty = m.ty()?;
        if let Some(int) = ty.int() {
            m.check(plain(int) && int.is_signed())?;
            m.finish()?;
            let op = if negate { IntUnaryOp::Neg } else { IntUnaryOp::Abs };
            let (dst, a) = self.dst_a(ty)?;
            return Ok(Op::IntUnary { op, ty: int, dst, a });
        }
        let float = ty.float().ok_or_else(|| m.unknown())?;
        let ftz = m.flag("ftz");
        m.check(!ftz || ty != ScalarType::F64)?;
        m.finish()?;
        let op = if negate { FloatUnaryOp::Neg } else { FloatUnaryOp::Abs };
        let accuracy = FloatAccuracy::Rounded(Rounding::Nearest);
        let (dst, a) = self.dst_a(ty)?;
        Ok(Op::FloatUnary { op, ty: float, accuracy, ftz, dst, a })
    }

    fn min_max(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let max = m.opcode() == "max";
        let ty = m.ty()?;
        let Some(int) = ty.int() else {
            let op = if max { FloatBinaryOp::Max } else { FloatBinaryOp::Min };
            return self.float_binary(m, ty, op);
        };
        m.check(int.width() != Width::B8)?;
        let relu = m.flag("relu");
        m.check(!relu || matches!(int, IntType::S32 | IntType::S16x2))?;
        m.finish()?;
        let op = if max { IntBinaryOp::Max } else { IntBinaryOp::Min };
        let (dst, a, b) = self.dst_ab(ty)?;
        Ok(Op::IntBinary { op, ty: int, sat: false, relu, dst, a, b })
    }

    /// `dp4a.atype.btype`, `dp2a.mode.atype.btype`
    fn dot_product(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let two = m.opcode() == "dp2a";
        let high = two && m.need(&[("lo", false), ("hi", true)])?;
        let table = [("u32", false), ("s32", true)];
        let (a_signed, b_signed) = (m.need(&table)?, m.need(&table)?);
        m.finish()?;
        let (dst, a, b, c) = self.dst_abc(ScalarType::B32)?;
        Ok(if two {
            Op::Dp2a { high, a_signed, b_signed, dst, a, b, c }
        } else {
            Op::Dp4a { a_signed, b_signed, dst, a, b, c }
        })
    }
}

/// One number of 16, 32 or 64 bits.
const fn plain(ty: IntType) -> bool {
    !matches!(ty, IntType::U8 | IntType::S8 | IntType::U16x2 | IntType::S16x2)
}

/// The type of the whole product.
fn m_wide(m: Mods<'_, '_>, ty: IntType) -> Parsed<ScalarType> {
    match ty {
        IntType::U16 => Ok(ScalarType::U32),
        IntType::S16 => Ok(ScalarType::S32),
        IntType::U32 => Ok(ScalarType::U64),
        IntType::S32 => Ok(ScalarType::S64),
        IntType::U8
        | IntType::S8
        | IntType::U64
        | IntType::S64
        | IntType::U16x2
        | IntType::S16x2 => Err(m.unknown()),
    }
}

fn word_type_and_half(m: Mods<'_, '_>) -> Parsed<(IntType, bool)> {
    let ty = m.need(&[("u32", IntType::U32), ("s32", IntType::S32)])?;
    Ok((ty, m.need(&[("lo", false), ("hi", true)])?))
}
