//! Comparison and selection.

use super::Mods;
use crate::ir::{BoolOp, Combine, CompareOp, Op, ScalarType, Width};
use crate::parser::operand::Fit;
use crate::parser::{Parsed, Parser};

impl<'a> Parser<'a> {
    pub(super) fn compare(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "setp" => self.setp(m),
            "set" => self.set(m),
            "selp" => self.selp(m),
            _ => self.slct(m),
        }
    }

    fn setp(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let op = compare_op(m)?;
        let bool_op = bool_op(m);
        let ftz = m.flag("ftz");
        let ty = m.ty()?;
        check_compare(m, op, ty, ftz)?;
        m.finish()?;
        let dst = self.dst_or_sink(Width::Pred, Fit::Exact)?;
        let complement =
            if self.accept(b'|')? { self.dst_or_sink(Width::Pred, Fit::Exact)? } else { None };
        let (a, b) = (self.src(ty)?, self.src(ty)?);
        let combine = self.combine(bool_op)?;
        Ok(Op::Setp { op, ty, ftz, combine, dst, complement, a, b })
    }

    fn set(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let op = compare_op(m)?;
        let bool_op = bool_op(m);
        let ftz = m.flag("ftz");
        let (to, ty) = (m.ty()?, m.ty()?);
        m.check(!matches!(to, ScalarType::Pred | ScalarType::F64) && to.bytes() <= 4)?;
        m.check(to.int().is_some() || to.float().is_some())?;
        let pairs = |ty| matches!(ty, ScalarType::F16x2 | ScalarType::BF16x2);
        let whole = matches!(to, ScalarType::U32 | ScalarType::S32);
        m.check(pairs(to) == pairs(ty) || (whole && pairs(ty)))?;
        check_compare(m, op, ty, ftz)?;
        m.finish()?;
        let dst = self.dst(to.width())?;
        let (a, b) = (self.src(ty)?, self.src(ty)?);
        let combine = self.combine(bool_op)?;
        Ok(Op::Set { op, to, ty, ftz, combine, dst, a, b })
    }

    fn combine(&mut self, op: Option<BoolOp>) -> Parsed<Option<Combine>> {
        let Some(op) = op else { return Ok(None) };
        self.comma()?;
        Ok(Some(Combine { op, pred: self.pred()? }))
    }

    fn selp(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ty = m.ty()?;
        m.check(selectable(ty))?;
        m.finish()?;
        let (dst, a, b) = self.dst_ab(ty)?;
        self.comma()?;
        Ok(Op::Selp { width: ty.width(), dst, a, b, pred: self.pred()? })
    }

    fn slct(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let ftz = m.flag("ftz");
        let ty = m.ty()?;
        let by = m.ty()?;
        m.check(selectable(ty) && matches!(by, ScalarType::S32 | ScalarType::F32))?;
        m.finish()?;
        let (dst, a, b) = self.dst_ab(ty)?;
        let float = by == ScalarType::F32;
        Ok(Op::Slct { width: ty.width(), float, ftz, dst, a, b, c: self.src(by)? })
    }
}

fn selectable(ty: ScalarType) -> bool {
    matches!(ty.width(), Width::B16 | Width::B32 | Width::B64)
}

fn bool_op(m: Mods<'_, '_>) -> Option<BoolOp> {
    m.pick(&[("and", BoolOp::And), ("or", BoolOp::Or), ("xor", BoolOp::Xor)])
}

/// The comparison by its name.
pub(super) fn compare_op(m: Mods<'_, '_>) -> Parsed<CompareOp> {
    m.need(&[
        ("eq", CompareOp::Eq),
        ("ne", CompareOp::Ne),
        ("lt", CompareOp::Lt),
        ("le", CompareOp::Le),
        ("gt", CompareOp::Gt),
        ("ge", CompareOp::Ge),
        ("lo", CompareOp::Lt),
        ("ls", CompareOp::Le),
        ("hi", CompareOp::Gt),
        ("hs", CompareOp::Ge),
        ("equ", CompareOp::Equ),
        ("neu", CompareOp::Neu),
        ("ltu", CompareOp::Ltu),
        ("leu", CompareOp::Leu),
        ("gtu", CompareOp::Gtu),
        ("geu", CompareOp::Geu),
        ("num", CompareOp::Num),
        ("nan", CompareOp::Nan),
    ])
}

/// Which comparisons a type has: bits only equality, integers the ordered ones.
fn check_compare(m: Mods<'_, '_>, op: CompareOp, ty: ScalarType, ftz: bool) -> Parsed<()> {
    use CompareOp as C;
    let ordered = matches!(op, C::Eq | C::Ne | C::Lt | C::Le | C::Gt | C::Ge);
    let wide_enough = matches!(ty.width(), Width::B16 | Width::B32 | Width::B64);
    let fits = if ty.float().is_some() {
        ty != ScalarType::F32x2 && (!ftz || ty != ScalarType::F64)
    } else if ty.int().is_some() {
        ordered && !ftz
    } else {
        matches!(op, C::Eq | C::Ne) && !ftz && ty != ScalarType::TF32
    };
    m.check(fits && wide_enough)
}
