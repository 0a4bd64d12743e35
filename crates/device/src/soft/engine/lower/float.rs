//! Floating-point arithmetic.

use weft_ptx::ir::{
    FloatAccuracy, FloatBinaryOp, FloatType, FloatUnaryOp, Op as Ir, Operand, Reg, Rounding,
    ScalarType, TestpOp,
};

use super::super::float::{self as f, mode_bits, round_flags};
use super::super::half as h;
use super::super::{convert, testp};
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

type Done = Result<(), Refusal>;

/// The modifiers that most operations share.
#[derive(Clone, Copy)]
struct Modifiers {
    rounding: Rounding,
    ftz: bool,
}

impl Modifiers {
    fn imm(self) -> u64 {
        mode_bits(self.rounding) | if self.ftz { round_flags::FTZ } else { 0 }
    }

    fn nearest(self) -> bool {
        self.rounding == Rounding::Nearest
    }
}

impl FunctionLowering<'_> {
    pub(super) fn float(&mut self, op: &Ir) -> Done {
        match *op {
            Ir::FloatBinary { op, ty, accuracy, ftz, sat, nan, xorsign_abs, dst, a, b } => {
                let rounding = match accuracy {
                    FloatAccuracy::Rounded(r) => r,
                    FloatAccuracy::Approx | FloatAccuracy::Full => Rounding::Nearest,
                };
                let m = Modifiers { rounding, ftz };
                match ty {
                    FloatType::F32 if matches!(op, FloatBinaryOp::Min | FloatBinaryOp::Max) => {
                        self.min_max_f32(
                            op == FloatBinaryOp::Min,
                            m,
                            (nan, xorsign_abs),
                            dst,
                            [a, b],
                        )?;
                    }
                    FloatType::F32 => self.binary_f32(op, m, dst, [a, b])?,
                    FloatType::F64 => self.binary_f64(op, m, dst, [a, b])?,
                    _ => self.binary_half(op, ty, (ftz, nan, xorsign_abs), dst, [a, b])?,
                }
                if sat { self.saturate(ty, dst) } else { Ok(()) }
            }
            Ir::Fma { ty, rounding, ftz, sat, relu, dst, a, b, c } => {
                self.fma(ty, Modifiers { rounding, ftz }, dst, [a, b, c])?;
                if sat {
                    self.saturate(ty, dst)?;
                }
                if relu { self.half_relu(ty, dst) } else { Ok(()) }
            }
            Ir::FloatUnary { op, ty, accuracy, ftz, dst, a } => {
                let rounding = match accuracy {
                    FloatAccuracy::Rounded(r) => r,
                    FloatAccuracy::Approx | FloatAccuracy::Full => Rounding::Nearest,
                };
                self.float_unary(op, ty, Modifiers { rounding, ftz }, dst, a)
            }
            Ir::Testp { op, ty, dst, a } => self.testp(op, ty, dst, a),
            Ir::Copysign { ty, dst, a, b } => match ty {
                FloatType::F64 => self.all64::<f::CopysignF64>(dst, &[a, b], 0),
                _ => self.all32::<f::CopysignF32>(dst, &[a, b], 0),
            },
            _ => Err(Refusal::new("not a floating-point operation")),
        }
    }

    fn binary_f32(&mut self, op: FloatBinaryOp, m: Modifiers, dst: Reg, ops: [Operand; 2]) -> Done {
        let ops = &ops;
        if !m.nearest() {
            return match op {
                FloatBinaryOp::Add => self.all32::<f::AddRoundF32>(dst, ops, m.imm()),
                FloatBinaryOp::Sub => self.all32::<f::SubRoundF32>(dst, ops, m.imm()),
                FloatBinaryOp::Mul => self.all32::<f::MulRoundF32>(dst, ops, m.imm()),
                FloatBinaryOp::Div => self.all32::<f::DivRoundF32>(dst, ops, m.imm()),
                FloatBinaryOp::Min | FloatBinaryOp::Max => Err(Refusal::new("rounded min or max")),
            };
        }
        match (op, m.ftz) {
            (FloatBinaryOp::Add, false) => self.all32::<f::AddF32>(dst, ops, 0),
            (FloatBinaryOp::Add, true) => self.all32::<f::AddFtzF32>(dst, ops, 0),
            (FloatBinaryOp::Sub, false) => self.all32::<f::SubF32>(dst, ops, 0),
            (FloatBinaryOp::Sub, true) => self.all32::<f::SubFtzF32>(dst, ops, 0),
            (FloatBinaryOp::Mul, false) => self.all32::<f::MulF32>(dst, ops, 0),
            (FloatBinaryOp::Mul, true) => self.all32::<f::MulFtzF32>(dst, ops, 0),
            (FloatBinaryOp::Div, false) => self.all32::<f::DivF32>(dst, ops, 0),
            (FloatBinaryOp::Div, true) => self.all32::<f::DivFtzF32>(dst, ops, 0),
            (FloatBinaryOp::Min | FloatBinaryOp::Max, _) => Err(Refusal::new("min or max")),
        }
    }

    fn min_max_f32(
        &mut self,
        min: bool,
        m: Modifiers,
        (nan, xorsign): (bool, bool),
        dst: Reg,
        [a, b]: [Operand; 2],
    ) -> Done {
        let (a, b, d) = (self.r32(a)?, self.r32(b)?, self.dst(dst));
        let (mut x, mut y) = (a, b);
        if xorsign {
            (x, y) = (self.temp32(), self.temp32());
            self.emit::<f::AbsF32>(WORDS.d(x).a(a));
            self.emit::<f::AbsF32>(WORDS.d(y).a(b));
        }
        let t = if nan || xorsign { self.temp32() } else { d };
        match (min, m.ftz) {
            (true, false) => self.emit::<f::MinF32>(WORDS.d(t).a(x).b(y)),
            (true, true) => self.emit::<f::MinFtzF32>(WORDS.d(t).a(x).b(y)),
            (false, false) => self.emit::<f::MaxF32>(WORDS.d(t).a(x).b(y)),
            (false, true) => self.emit::<f::MaxFtzF32>(WORDS.d(t).a(x).b(y)),
        }
        if nan {
            self.emit::<f::NanIfF32>(WORDS.d(if xorsign { t } else { d }).a(x).b(y).c(t));
        }
        if xorsign {
            self.emit::<f::XorSignF32>(WORDS.d(d).a(a).b(b).c(t));
        }
        Ok(())
    }

    fn binary_f64(&mut self, op: FloatBinaryOp, m: Modifiers, dst: Reg, ops: [Operand; 2]) -> Done {
        let ops = &ops;
        match (op, m.nearest()) {
            (FloatBinaryOp::Add, true) => self.all64::<f::AddF64>(dst, ops, 0),
            (FloatBinaryOp::Sub, true) => self.all64::<f::SubF64>(dst, ops, 0),
            (FloatBinaryOp::Mul, true) => self.all64::<f::MulF64>(dst, ops, 0),
            (FloatBinaryOp::Div, true) => self.all64::<f::DivF64>(dst, ops, 0),
            (FloatBinaryOp::Add, false) => self.all64::<f::AddRoundF64>(dst, ops, m.imm()),
            (FloatBinaryOp::Sub, false) => self.all64::<f::SubRoundF64>(dst, ops, m.imm()),
            (FloatBinaryOp::Mul, false) => self.all64::<f::MulRoundF64>(dst, ops, m.imm()),
            (FloatBinaryOp::Div, false) => self.all64::<f::DivRoundF64>(dst, ops, m.imm()),
            (FloatBinaryOp::Min, _) => self.all64::<f::MinF64>(dst, ops, 0),
            (FloatBinaryOp::Max, _) => self.all64::<f::MaxF64>(dst, ops, 0),
        }
    }

    fn binary_half(
        &mut self,
        op: FloatBinaryOp,
        ty: FloatType,
        (ftz, nan, xorsign): (bool, bool, bool),
        dst: Reg,
        ops: [Operand; 2],
    ) -> Done {
        let code = match op {
            FloatBinaryOp::Add => h::ADD,
            FloatBinaryOp::Sub => h::SUB,
            FloatBinaryOp::Mul => h::MUL,
            FloatBinaryOp::Min => h::MIN,
            FloatBinaryOp::Max => h::MAX,
            FloatBinaryOp::Div => return Err(Refusal::new("division of halves")),
        };
        let imm = code
            | if ftz { h::FTZ } else { 0 }
            | if nan { h::NAN } else { 0 }
            | if xorsign { h::XORSIGN } else { 0 };
        match ty {
            FloatType::F16 => self.all32::<h::BinaryF16>(dst, &ops, imm),
            FloatType::F16x2 => self.all32::<h::BinaryF16x2>(dst, &ops, imm),
            FloatType::BF16 => self.all32::<h::BinaryBF16>(dst, &ops, imm),
            FloatType::BF16x2 => self.all32::<h::BinaryBF16x2>(dst, &ops, imm),
            FloatType::F32x2 => self.all64::<h::BinaryF32x2>(dst, &ops, imm),
            FloatType::F32 | FloatType::F64 => Err(Refusal::new("not a half type")),
        }
    }

    fn fma(&mut self, ty: FloatType, m: Modifiers, dst: Reg, ops: [Operand; 3]) -> Done {
        let ops = &ops;
        let flags = if m.ftz { h::FTZ } else { 0 };
        match (ty, m.nearest()) {
            (FloatType::F32, true) if m.ftz => self.all32::<f::FmaFtzF32>(dst, ops, 0),
            (FloatType::F32, true) => self.all32::<f::FmaF32>(dst, ops, 0),
            (FloatType::F32, false) => self.all32::<f::FmaRoundF32>(dst, ops, m.imm()),
            (FloatType::F64, true) => self.all64::<f::FmaF64>(dst, ops, 0),
            (FloatType::F64, false) => self.all64::<f::FmaRoundF64>(dst, ops, m.imm()),
            (FloatType::F16, _) => self.all32::<h::FmaF16>(dst, ops, flags),
            (FloatType::F16x2, _) => self.all32::<h::FmaF16x2>(dst, ops, flags),
            (FloatType::BF16, _) => self.all32::<h::FmaBF16>(dst, ops, flags),
            (FloatType::BF16x2, _) => self.all32::<h::FmaBF16x2>(dst, ops, flags),
            (FloatType::F32x2, _) => self.all64::<h::FmaF32x2>(dst, ops, flags),
        }
    }

    fn saturate(&mut self, ty: FloatType, dst: Reg) -> Done {
        let ops = &[Operand::Reg(dst)];
        match ty {
            FloatType::F32 => self.all32::<f::SatF32>(dst, ops, 0),
            FloatType::F64 => self.all64::<f::SatF64>(dst, ops, 0),
            FloatType::F16 => self.all32::<h::UnaryF16>(dst, ops, h::SAT),
            FloatType::F16x2 => self.all32::<h::UnaryF16x2>(dst, ops, h::SAT),
            FloatType::BF16 => self.all32::<h::UnaryBF16>(dst, ops, h::SAT),
            FloatType::BF16x2 => self.all32::<h::UnaryBF16x2>(dst, ops, h::SAT),
            FloatType::F32x2 => Err(Refusal::new("saturation of f32x2")),
        }
    }

    fn half_relu(&mut self, ty: FloatType, dst: Reg) -> Done {
        self.half_unary(h::RELU, ty, dst, Operand::Reg(dst))
    }

    fn half_unary(&mut self, code: u64, ty: FloatType, dst: Reg, a: Operand) -> Done {
        match ty {
            FloatType::F16 => self.all32::<h::UnaryF16>(dst, &[a], code),
            FloatType::F16x2 => self.all32::<h::UnaryF16x2>(dst, &[a], code),
            FloatType::BF16 => self.all32::<h::UnaryBF16>(dst, &[a], code),
            FloatType::BF16x2 => self.all32::<h::UnaryBF16x2>(dst, &[a], code),
            FloatType::F32 if code == h::RELU => self.all32::<f::ReluF32>(dst, &[a], 0),
            FloatType::F32 | FloatType::F32x2 | FloatType::F64 => {
                Err(Refusal::new("not a half type"))
            }
        }
    }

    fn float_unary(
        &mut self,
        op: FloatUnaryOp,
        ty: FloatType,
        m: Modifiers,
        dst: Reg,
        a: Operand,
    ) -> Done {
        match ty {
            FloatType::F32 => self.unary_f32(op, m, dst, a),
            FloatType::F64 => self.unary_f64(op, m, dst, a),
            _ => {
                let code = match op {
                    FloatUnaryOp::Abs => h::ABS,
                    FloatUnaryOp::Neg => h::NEG,
                    FloatUnaryOp::Ex2 => h::EX2,
                    FloatUnaryOp::Tanh => h::TANH,
                    _ => return Err(Refusal::new("not a half operation")),
                };
                self.half_unary(code, ty, dst, a)
            }
        }
    }

    fn unary_f32(&mut self, op: FloatUnaryOp, m: Modifiers, dst: Reg, a: Operand) -> Done {
        let ops = &[a];
        let imm = m.imm();
        match op {
            FloatUnaryOp::Abs => self.all32::<f::AbsF32>(dst, ops, 0)?,
            FloatUnaryOp::Neg => self.all32::<f::NegF32>(dst, ops, 0)?,
            FloatUnaryOp::Rcp if !m.nearest() => self.all32::<f::RcpRoundF32>(dst, ops, imm)?,
            FloatUnaryOp::Rcp if m.ftz => self.all32::<f::RcpFtzF32>(dst, ops, 0)?,
            FloatUnaryOp::Rcp => self.all32::<f::RcpF32>(dst, ops, 0)?,
            FloatUnaryOp::Sqrt if !m.nearest() => self.all32::<f::SqrtRoundF32>(dst, ops, imm)?,
            FloatUnaryOp::Sqrt if m.ftz => self.all32::<f::SqrtFtzF32>(dst, ops, 0)?,
            FloatUnaryOp::Sqrt => self.all32::<f::SqrtF32>(dst, ops, 0)?,
            FloatUnaryOp::Rsqrt => self.all32::<f::RsqrtF32>(dst, ops, imm)?,
            FloatUnaryOp::Sin => self.all32::<f::SinF32>(dst, ops, imm)?,
            FloatUnaryOp::Cos => self.all32::<f::CosF32>(dst, ops, imm)?,
            FloatUnaryOp::Lg2 => self.all32::<f::Lg2F32>(dst, ops, imm)?,
            FloatUnaryOp::Ex2 => self.all32::<f::Ex2F32>(dst, ops, imm)?,
            FloatUnaryOp::Tanh => self.all32::<f::TanhF32>(dst, ops, 0)?,
        }
        if m.ftz && matches!(op, FloatUnaryOp::Abs | FloatUnaryOp::Neg) {
            self.all32::<f::FlushF32>(dst, &[Operand::Reg(dst)], 0)?;
        }
        Ok(())
    }

    fn unary_f64(&mut self, op: FloatUnaryOp, m: Modifiers, dst: Reg, a: Operand) -> Done {
        let ops = &[a];
        match op {
            FloatUnaryOp::Abs => self.all64::<f::AbsF64>(dst, ops, 0),
            FloatUnaryOp::Neg => self.all64::<f::NegF64>(dst, ops, 0),
            FloatUnaryOp::Rcp if !m.nearest() => self.all64::<f::RcpRoundF64>(dst, ops, m.imm()),
            FloatUnaryOp::Rcp if m.ftz => self.all64::<f::RcpFtzF64>(dst, ops, 0),
            FloatUnaryOp::Rcp => self.all64::<f::RcpF64>(dst, ops, 0),
            FloatUnaryOp::Sqrt if !m.nearest() => self.all64::<f::SqrtRoundF64>(dst, ops, m.imm()),
            FloatUnaryOp::Sqrt => self.all64::<f::SqrtF64>(dst, ops, 0),
            FloatUnaryOp::Rsqrt if m.ftz => self.all64::<f::RsqrtFtzF64>(dst, ops, 0),
            FloatUnaryOp::Rsqrt => self.all64::<f::RsqrtF64>(dst, ops, 0),
            FloatUnaryOp::Sin => self.all64::<f::SinF64>(dst, ops, 0),
            FloatUnaryOp::Cos => self.all64::<f::CosF64>(dst, ops, 0),
            FloatUnaryOp::Lg2 => self.all64::<f::Lg2F64>(dst, ops, 0),
            FloatUnaryOp::Ex2 => self.all64::<f::Ex2F64>(dst, ops, 0),
            FloatUnaryOp::Tanh => self.all64::<f::TanhF64>(dst, ops, 0),
        }
    }

    fn testp(&mut self, op: TestpOp, ty: FloatType, dst: Reg, a: Operand) -> Done {
        let d = self.dst(dst);
        let code = testp::code(op);
        if ty == FloatType::F64 {
            let a = self.r64(a)?;
            self.emit::<testp::TestF64>(WORDS.d(d).a(a).imm(code));
        } else {
            let a = self.r32(a)?;
            self.emit::<testp::TestF32>(WORDS.d(d).a(a).imm(code));
        }
        Ok(())
    }

    /// The row of an operand as `f32`, converted from a half type if it is one.
    pub(super) fn as_f32(&mut self, ty: ScalarType, a: Operand) -> Result<u32, Refusal> {
        let a = self.r32(a)?;
        match ty {
            ScalarType::F16 => {
                let t = self.temp32();
                self.emit::<convert::F16ToF32>(WORDS.d(t).a(a));
                Ok(t)
            }
            ScalarType::BF16 => {
                let t = self.temp32();
                self.emit::<convert::BF16ToF32>(WORDS.d(t).a(a));
                Ok(t)
            }
            _ => Ok(a),
        }
    }
}
