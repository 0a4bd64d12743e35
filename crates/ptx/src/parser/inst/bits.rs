//! Logic, shifts and bit fields.

use super::Mods;
use crate::ir::{
    BitBinaryOp, BitUnaryOp, BoolOp, IntType, Op, PrmtMode, ScalarType, ShfMode, Width,
};
use crate::parser::operand::Fit;
use crate::parser::{Parsed, Parser};

const SHF_MODES: [(&str, ShfMode); 2] = [("clamp", ShfMode::Clamp), ("wrap", ShfMode::Wrap)];

impl<'a> Parser<'a> {
    pub(super) fn bits(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "and" => self.bit_binary(m, BitBinaryOp::And),
            "or" => self.bit_binary(m, BitBinaryOp::Or),
            "xor" => self.bit_binary(m, BitBinaryOp::Xor),
            "not" => self.bit_unary(m, BitUnaryOp::Not),
            "cnot" => self.bit_unary(m, BitUnaryOp::Cnot),
            "brev" => self.bit_unary(m, BitUnaryOp::Brev),
            "popc" => self.bit_unary(m, BitUnaryOp::Popc),
            "clz" => self.bit_unary(m, BitUnaryOp::Clz),
            "lop3" => self.lop3(m),
            "shl" => self.shl(m),
            "shr" => self.shr(m),
            "shf" => self.shf(m),
            "bfe" => self.bfe(m),
            "bfi" => self.bfi(m),
            "bfind" => self.bfind(m),
            "bmsk" => {
                let mode = m.need(&SHF_MODES)?;
                Self::word_only(m)?;
                let (dst, a, b) = self.dst_ab(ScalarType::B32)?;
                Ok(Op::Bmsk { mode, dst, a, b })
            }
            "szext" => self.szext(m),
            "fns" => {
                Self::word_only(m)?;
                let (dst, mask, base, offset) = self.dst_abc(ScalarType::B32)?;
                Ok(Op::Fns { dst, mask, base, offset })
            }
            _ => self.prmt(m),
        }
    }

    /// The only type is `.b32`, and no modifier is left.
    fn word_only(m: Mods<'_, 'a>) -> Parsed<()> {
        let word = m.flag("b32");
        m.check(word)?;
        m.finish()
    }

    fn bit_ty(m: Mods<'_, 'a>, least: Width) -> Parsed<ScalarType> {
        let ty = m.ty()?;
        let fits = match ty {
            ScalarType::Pred => least == Width::Pred,
            _ => ty.float().is_none() && ty.width() >= least && ty.width() <= Width::B64,
        };
        m.check(fits && ty.width() != Width::B8)?;
        m.finish()?;
        Ok(ty)
    }

    fn bit_binary(&mut self, m: Mods<'_, 'a>, op: BitBinaryOp) -> Parsed<Op> {
        let ty = Self::bit_ty(m, Width::Pred)?;
        let (dst, a, b) = self.dst_ab(ty)?;
        Ok(Op::BitBinary { op, width: ty.width(), dst, a, b })
    }

    fn bit_unary(&mut self, m: Mods<'_, 'a>, op: BitUnaryOp) -> Parsed<Op> {
        let (least, counts) = match op {
            BitUnaryOp::Not => (Width::Pred, false),
            BitUnaryOp::Cnot => (Width::B16, false),
            BitUnaryOp::Brev => (Width::B32, false),
            BitUnaryOp::Popc | BitUnaryOp::Clz => (Width::B32, true),
        };
        let ty = Self::bit_ty(m, least)?;
        let dst = self.dst(if counts { Width::B32 } else { ty.width() })?;
        Ok(Op::BitUnary { op, width: ty.width(), dst, a: self.src(ty)? })
    }

    /// `lop3.b32 d, a, b, c, table` and `lop3.op.b32 d|p, a, b, c, table, q`
    fn lop3(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let bool_op = m.pick(&[("or", BoolOp::Or), ("and", BoolOp::And)]);
        Self::word_only(m)?;
        let ty = ScalarType::B32;
        let dst = self.dst_or_sink(Width::B32, Fit::Exact)?;
        let pred = match bool_op {
            Some(_) => {
                self.expect(b'|')?;
                Some(self.dst(Width::Pred)?)
            }
            None => None,
        };
        let (a, b, c) = (self.src(ty)?, self.src(ty)?, self.src(ty)?);
        self.comma()?;
        let table = u8::try_from(self.small(0, 255)?).unwrap_or(0);
        let bool = match bool_op.zip(pred) {
            Some((op, pred)) => {
                self.comma()?;
                Some((op, pred, self.pred()?))
            }
            None => None,
        };
        Ok(Op::Lop3 { table, dst, a, b, c, bool })
    }

    fn shl(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = Self::bit_ty(m, Width::B16)?;
        let (dst, a) = self.dst_a(ty)?;
        Ok(Op::Shl { width: ty.width(), dst, a, b: self.src(ScalarType::U32)? })
    }

    fn shr(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = Self::bit_ty(m, Width::B16)?;
        let (dst, a) = self.dst_a(ty)?;
        let int = match ty.width() {
            _ if ty.int().is_some() => ty.int().unwrap_or(IntType::U32),
            Width::B16 => IntType::U16,
            Width::B32 => IntType::U32,
            Width::Pred | Width::B8 | Width::B64 | Width::B128 => IntType::U64,
        };
        Ok(Op::Shr { ty: int, dst, a, b: self.src(ScalarType::U32)? })
    }

    fn shf(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let left = m.need(&[("l", true), ("r", false)])?;
        let mode = m.need(&SHF_MODES)?;
        Self::word_only(m)?;
        let (dst, a, b, c) = self.dst_abc(ScalarType::B32)?;
        Ok(Op::Shf { left, mode, dst, a, b, c })
    }

    fn field_ty(m: Mods<'_, 'a>) -> Parsed<(ScalarType, IntType)> {
        let ty = m.ty()?;
        let int = ty.int().ok_or_else(|| m.unknown())?;
        m.check(matches!(int, IntType::U32 | IntType::S32 | IntType::U64 | IntType::S64))?;
        m.finish()?;
        Ok((ty, int))
    }

    fn bfe(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let (ty, int) = Self::field_ty(m)?;
        let (dst, a) = self.dst_a(ty)?;
        let (b, c) = (self.src(ScalarType::U32)?, self.src(ScalarType::U32)?);
        Ok(Op::Bfe { ty: int, dst, a, b, c })
    }

    fn bfi(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = Self::bit_ty(m, Width::B32)?;
        let (dst, a, b) = self.dst_ab(ty)?;
        let (c, d) = (self.src(ScalarType::U32)?, self.src(ScalarType::U32)?);
        Ok(Op::Bfi { width: ty.width(), dst, a, b, c, d })
    }

    fn bfind(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let shift_amount = m.flag("shiftamt");
        let (ty, int) = Self::field_ty(m)?;
        let dst = self.dst(Width::B32)?;
        Ok(Op::Bfind { ty: int, shift_amount, dst, a: self.src(ty)? })
    }

    fn szext(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let mode = m.need(&SHF_MODES)?;
        let ty = m.need(&[("u32", IntType::U32), ("s32", IntType::S32)])?;
        m.finish()?;
        let (dst, a, b) = self.dst_ab(ScalarType::B32)?;
        Ok(Op::Szext { mode, ty, dst, a, b })
    }

    fn prmt(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let mode = m.pick(&[
            ("f4e", PrmtMode::F4e),
            ("b4e", PrmtMode::B4e),
            ("rc8", PrmtMode::Rc8),
            ("ecl", PrmtMode::Ecl),
            ("ecr", PrmtMode::Ecr),
            ("rc16", PrmtMode::Rc16),
        ]);
        Self::word_only(m)?;
        let (dst, a, b, c) = self.dst_abc(ScalarType::B32)?;
        Ok(Op::Prmt { mode: mode.unwrap_or(PrmtMode::Generic), dst, a, b, c })
    }
}
