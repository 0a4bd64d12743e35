//! Floating-point arithmetic and functions.

use super::Mods;
use crate::ir::{
    FloatAccuracy, FloatBinaryOp, FloatType, FloatUnaryOp, Op, Rounding, ScalarType, TestpOp, Width,
};
use crate::parser::{Parsed, Parser};

impl<'a> Parser<'a> {
    pub(super) fn float(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "fma" => {
                let ty = m.ty()?;
                self.fma_rest(m, ty)
            }
            "testp" => self.testp(m),
            "copysign" => {
                let ty = m.ty()?;
                m.check(matches!(ty, ScalarType::F32 | ScalarType::F64))?;
                let float = ty.float().ok_or_else(|| m.unknown())?;
                m.finish()?;
                let (dst, a, b) = self.dst_ab(ty)?;
                Ok(Op::Copysign { ty: float, dst, a, b })
            }
            "rcp" => self.function_of_one(m, FloatUnaryOp::Rcp),
            "sqrt" => self.function_of_one(m, FloatUnaryOp::Sqrt),
            "rsqrt" => self.function_of_one(m, FloatUnaryOp::Rsqrt),
            "sin" => self.function_of_one(m, FloatUnaryOp::Sin),
            "cos" => self.function_of_one(m, FloatUnaryOp::Cos),
            "lg2" => self.function_of_one(m, FloatUnaryOp::Lg2),
            "ex2" => self.function_of_one(m, FloatUnaryOp::Ex2),
            _ => self.function_of_one(m, FloatUnaryOp::Tanh),
        }
    }

    /// `add`, `sub`, `mul`, `div`, `min`, `max` of a type that is not an integer.
    pub(super) fn float_binary(
        &mut self,
        m: Mods<'_, 'a>,
        ty: ScalarType,
        op: FloatBinaryOp,
    ) -> Parsed<Op> {
        use FloatBinaryOp as F;
        let float = ty.float().ok_or_else(|| m.unknown())?;
        let order = matches!(op, F::Min | F::Max);
        m.check(op != F::Div || matches!(float, FloatType::F32 | FloatType::F64))?;
        m.check(!order || float != FloatType::F32x2)?;
        let accuracy = if order {
            FloatAccuracy::Rounded(Rounding::Nearest)
        } else if op == F::Div && float == FloatType::F32 && m.flag("approx") {
            FloatAccuracy::Approx
        } else if op == F::Div && float == FloatType::F32 && m.flag("full") {
            FloatAccuracy::Full
        } else {
            FloatAccuracy::Rounded(rounding(m, float)?)
        };
        let ftz = m.flag("ftz");
        m.check(!ftz || float != FloatType::F64)?;
        let sat = !order && op != F::Div && m.flag("sat");
        m.check(!sat || matches!(float, FloatType::F32 | FloatType::F16 | FloatType::F16x2))?;
        let nan = order && m.flag("NaN");
        let xorsign_abs = order && m.flag("xorsign") && m.flag("abs");
        m.check(!(nan || xorsign_abs) || float != FloatType::F64)?;
        m.finish()?;
        let (dst, a, b) = self.dst_ab(ty)?;
        Ok(Op::FloatBinary { op, ty: float, accuracy, ftz, sat, nan, xorsign_abs, dst, a, b })
    }

    /// `fma`, and `mad` of floating-point types.
    pub(super) fn fma_rest(&mut self, m: Mods<'_, 'a>, ty: ScalarType) -> Parsed<Op> {
        let float = ty.float().ok_or_else(|| m.unknown())?;
        let half = !matches!(float, FloatType::F32 | FloatType::F64 | FloatType::F32x2);
        let rounding = rounding(m, float)?;
        let ftz = m.flag("ftz");
        m.check(!ftz || float != FloatType::F64)?;
        let sat = m.flag("sat");
        m.check(!sat || matches!(float, FloatType::F32 | FloatType::F16 | FloatType::F16x2))?;
        let relu = half && m.flag("relu");
        m.finish()?;
        let (dst, a, b, c) = self.dst_abc(ty)?;
        Ok(Op::Fma { ty: float, rounding, ftz, sat, relu, dst, a, b, c })
    }

    fn function_of_one(&mut self, m: Mods<'_, 'a>, op: FloatUnaryOp) -> Parsed<Op> {
        use FloatUnaryOp as F;
        let ty = m.ty()?;
        let float = ty.float().ok_or_else(|| m.unknown())?;
        let fits = match op {
            F::Rcp | F::Sqrt | F::Rsqrt | F::Sin | F::Cos | F::Lg2 => {
                matches!(float, FloatType::F32 | FloatType::F64)
            }
            F::Ex2 => float != FloatType::F32x2,
            F::Tanh => !matches!(float, FloatType::F64 | FloatType::F32x2),
            F::Abs | F::Neg => false,
        };
        m.check(fits)?;
        let ftz = m.flag("ftz");
        let mut accuracy = FloatAccuracy::Approx;
        if !m.flag("approx") {
            m.check(matches!(op, F::Rcp | F::Sqrt))?;
            accuracy = FloatAccuracy::Rounded(rounding(m, float)?);
        } else if float == FloatType::F64 && !ftz && op != F::Rsqrt {
            // `sqrt.approx.f64`, `sin.approx.f64` and the like stand in no document, but tinygrad
            // writes them. The rounded result is as good an approximation as any.
            accuracy = FloatAccuracy::Rounded(Rounding::Nearest);
        }
        m.finish()?;
        let (dst, a) = self.dst_a(ty)?;
        Ok(Op::FloatUnary { op, ty: float, accuracy, ftz, dst, a })
    }

    fn testp(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let op = m.need(&[
            ("finite", TestpOp::Finite),
            ("infinite", TestpOp::Infinite),
            ("number", TestpOp::Number),
            ("notanumber", TestpOp::NotANumber),
            ("normal", TestpOp::Normal),
            ("subnormal", TestpOp::Subnormal),
        ])?;
        let ty = m.ty()?;
        m.check(matches!(ty, ScalarType::F32 | ScalarType::F64))?;
        let float = ty.float().ok_or_else(|| m.unknown())?;
        m.finish()?;
        Ok(Op::Testp { op, ty: float, dst: self.dst(Width::Pred)?, a: self.src(ty)? })
    }
}

/// The rounding; to nearest if none is given. Half types know no other, and pairs are given none.
fn rounding(m: Mods<'_, '_>, ty: FloatType) -> Parsed<Rounding> {
    let rounding = m.rounding().unwrap_or(Rounding::Nearest);
    let free = matches!(ty, FloatType::F32 | FloatType::F64);
    m.check(free || rounding == Rounding::Nearest)?;
    Ok(rounding)
}
