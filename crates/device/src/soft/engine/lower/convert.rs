//! Moves and conversions.

use weft_ptx::ir::{CvtRounding, Op as Ir, Operand, Reg, Rounding, ScalarType as S, Width};

use super::super::convert::{self as v, Spec};
use super::super::{bits, compare, fp8};
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

type Done = Result<(), Refusal>;

impl FunctionLowering<'_> {
    pub(super) fn conversion(&mut self, op: &Ir) -> Done {
        match op {
            Ir::Mov { width, dst, src } => self.mov(*width, *dst, *src),
            Ir::Pack { element, dst, src } => self.pack(*element, *dst, src),
            Ir::Unpack { element, dst, src } => self.unpack(*element, dst, *src),
            Ir::Cvt { to, from, rounding, ftz, sat, relu, dst, a } => {
                let spec = Spec {
                    from: *from,
                    to: *to,
                    rounding: *rounding,
                    ftz: *ftz,
                    sat: *sat,
                    relu: *relu,
                    register_bits: self.function.width(*dst).bits(),
                };
                self.cvt(spec, *dst, *a)
            }
            Ir::CvtPair { to, from, rounding, sat, relu, dst, a, b } => {
                self.cvt_pair((*to, *from, *rounding, *sat, *relu), *dst, [*a, *b])
            }
            Ir::CvtPack { element_bits, signed, dst, a, b, c } => {
                let spec = u64::from(*element_bits) | u64::from(*signed) << 6;
                let c = c.unwrap_or(Operand::Imm(0));
                let (a, b, c) = (self.r32(*a)?, self.r32(*b)?, self.r32(c)?);
                let d = self.dst(*dst);
                self.emit::<bits::CvtPack>(WORDS.d(d).a(a).b(b).c(c).imm(spec));
                Ok(())
            }
            _ => Err(Refusal::new("not a conversion")),
        }
    }

    fn mov(&mut self, width: Width, dst: Reg, src: Operand) -> Done {
        let d = self.dst(dst);
        match width {
            Width::Pred => {
                let row = self.pred_operand(src)?;
                self.emit::<compare::PredLogic>(WORDS.d(d).a(row).imm(3));
            }
            Width::B64 => {
                let row = self.r64(src)?;
                self.copy_row(true, d, row);
            }
            Width::B128 => {
                let row = self.r64(src)?;
                self.copy_row(true, d, row);
                self.copy_row(true, d + 1, row + 1);
            }
            Width::B8 | Width::B16 if matches!(src, Operand::Special(_)) => {
                let row = self.r32(src)?;
                self.emit::<bits::Low16>(WORDS.d(d).a(row));
            }
            Width::B8 | Width::B16 | Width::B32 => {
                let row = self.r32(src)?;
                if self.is_wide(dst) {
                    self.emit::<bits::Zext64>(WORDS.d(d).a(row));
                } else {
                    self.copy_row(false, d, row);
                }
            }
        }
        Ok(())
    }

    fn pack(&mut self, element: Width, dst: Reg, src: &[Operand]) -> Done {
        let d = self.dst(dst);
        match (element, src) {
            (Width::B64, [a, b]) => {
                let (a, b) = (self.r64(*a)?, self.r64(*b)?);
                let t = self.temp64();
                self.copy_row(true, t, b);
                self.copy_row(true, d, a);
                self.copy_row(true, d + 1, t);
            }
            (Width::B32, [a, b]) => {
                let (a, b) = (self.r32(*a)?, self.r32(*b)?);
                self.emit::<bits::Pack32>(WORDS.d(d).a(a).b(b));
            }
            (Width::B32, [a, b, c, e]) => {
                let (a, b, c, e) = (self.r32(*a)?, self.r32(*b)?, self.r32(*c)?, self.r32(*e)?);
                self.emit::<bits::Pack32>(WORDS.d(d).a(a).b(b));
                self.emit::<bits::Pack32>(WORDS.d(d + 1).a(c).b(e));
            }
            (Width::B16, [a, b]) => {
                let (a, b) = (self.r32(*a)?, self.r32(*b)?);
                self.emit::<bits::Pack16>(WORDS.d(d).a(a).b(b));
            }
            (Width::B16, [a, b, c, e]) => {
                let (a, b, c, e) = (self.r32(*a)?, self.r32(*b)?, self.r32(*c)?, self.r32(*e)?);
                let (x, y) = (self.temp32(), self.temp32());
                self.emit::<bits::Pack16>(WORDS.d(x).a(a).b(b));
                self.emit::<bits::Pack16>(WORDS.d(y).a(c).b(e));
                self.emit::<bits::Pack32>(WORDS.d(d).a(x).b(y));
            }
            (Width::B8, [a, b]) => {
                let (a, b) = (self.r32(*a)?, self.r32(*b)?);
                self.emit::<bits::Pack8>(WORDS.d(d).a(a).b(b));
            }
            (Width::B8, [a, b, c, e]) => {
                let (a, b, c, e) = (self.r32(*a)?, self.r32(*b)?, self.r32(*c)?, self.r32(*e)?);
                let (x, y) = (self.temp32(), self.temp32());
                self.emit::<bits::Pack8>(WORDS.d(x).a(a).b(b));
                self.emit::<bits::Pack8>(WORDS.d(y).a(c).b(e));
                self.emit::<bits::Pack16>(WORDS.d(d).a(x).b(y));
            }
            _ => return Err(Refusal::new("a vector of this shape")),
        }
        Ok(())
    }

    fn unpack(&mut self, element: Width, dst: &[Option<Reg>], src: Operand) -> Done {
        if element == Width::B64 {
            let row = self.r64(src)?;
            let t = self.temp64();
            self.copy_row(true, t, row + 1);
            for (reg, from) in dst.iter().zip([row, t]) {
                if let Some(reg) = reg {
                    self.copy_row(true, self.dst(*reg), from);
                }
            }
            return Ok(());
        }
        let bits = element.bits() as usize * dst.len();
        let wide = bits > 32;
        let row = if wide { self.r64(src)? } else { self.r32(src)? };
        // The source may be one of the destinations (of the same width only if there is one part).
        for (i, reg) in dst.iter().enumerate() {
            let Some(reg) = reg else { continue };
            let d = self.dst(*reg);
            let at = i * element.bits() as usize;
            let (row, at) =
                if wide { (row + (at / 64) as u32, (at % 64) as u64) } else { (row, at as u64) };
            if wide {
                self.emit::<bits::Low32>(WORDS.d(d).a(row).imm(at));
            }
            let (from, shift) = if wide { (d, 0) } else { (row, at) };
            match element {
                Width::B8 => self.emit::<bits::Low8>(WORDS.d(d).a(from).imm(shift)),
                Width::B16 => self.emit::<bits::Low16>(WORDS.d(d).a(from).imm(shift)),
                _ => {}
            }
        }
        Ok(())
    }

    fn cvt(&mut self, spec: Spec, dst: Reg, a: Operand) -> Done {
        if fp8::is_fp8(spec.from) || fp8::is_fp8(spec.to) {
            let (a, d) = (self.r32(a)?, self.dst(dst));
            return match (spec.from, spec.to) {
                (S::E4M3x2, S::F16x2) => {
                    self.emit::<fp8::FromE4m3>(WORDS.d(d).a(a).imm(u64::from(spec.relu)));
                    Ok(())
                }
                (S::E5M2x2, S::F16x2) => {
                    self.emit::<fp8::FromE5m2>(WORDS.d(d).a(a).imm(u64::from(spec.relu)));
                    Ok(())
                }
                (S::F16x2, S::E4M3x2) => {
                    self.emit::<fp8::ToE4m3FromHalves>(WORDS.d(d).a(a).imm(u64::from(spec.relu)));
                    Ok(())
                }
                (S::F16x2, S::E5M2x2) => {
                    self.emit::<fp8::ToE5m2FromHalves>(WORDS.d(d).a(a).imm(u64::from(spec.relu)));
                    Ok(())
                }
                _ => Err(Refusal::new("conversion of this fp8 type")),
            };
        }
        if !v::known(spec.from) || !v::known(spec.to) {
            return Err(Refusal::new("conversion of this type"));
        }
        let from_wide = spec.from.bytes() == 8;
        let row = if from_wide { self.r64(a)? } else { self.r32(a)? };
        let d = self.dst(dst);
        let to_wide = self.is_wide(dst);
        if self.common_cvt(spec, d, row, to_wide) {
            return Ok(());
        }
        let imm = spec.pack();
        match (from_wide, to_wide) {
            (false, false) => self.emit::<v::Convert32To32>(WORDS.d(d).a(row).imm(imm)),
            (false, true) => self.emit::<v::Convert32To64>(WORDS.d(d).a(row).imm(imm)),
            (true, false) => self.emit::<v::Convert64To32>(WORDS.d(d).a(row).imm(imm)),
            (true, true) => self.emit::<v::Convert64To64>(WORDS.d(d).a(row).imm(imm)),
        }
        Ok(())
    }

    /// Emits vector code for the conversions that programs use most.
    fn common_cvt(&mut self, spec: Spec, d: u32, a: u32, wide: bool) -> bool {
        let nearest = CvtRounding::Float(Rounding::Nearest);
        let rounded = spec.rounding == nearest || spec.rounding == CvtRounding::None;
        let truncated = spec.rounding == CvtRounding::Integral(Rounding::Zero);
        if spec.sat || spec.relu || (spec.ftz && !(spec.from == S::F32 && spec.to == S::S32)) {
            return false;
        }
        let natural = spec.register_bits == spec.to.bytes() * 8;
        match (spec.from, spec.to) {
            (S::S32, S::S64) if wide => self.emit::<bits::Sext64>(WORDS.d(d).a(a)),
            (S::U32, S::U64 | S::S64) if wide => self.emit::<bits::Zext64>(WORDS.d(d).a(a)),
            (S::U64 | S::S64, S::U32 | S::S32) if natural => {
                self.emit::<bits::Low32>(WORDS.d(d).a(a));
            }
            (S::U32 | S::S32, S::U16) if !wide => self.emit::<bits::Low16>(WORDS.d(d).a(a)),
            (S::U16, S::U32 | S::S32) if natural => self.emit::<bits::Low16>(WORDS.d(d).a(a)),
            (S::S16, S::S32 | S::U32) if natural => self.emit::<bits::SextS16>(WORDS.d(d).a(a)),
            (S::U8, S::U16 | S::S16 | S::U32 | S::S32) if !wide => {
                self.emit::<bits::Low8>(WORDS.d(d).a(a));
            }
            (S::U16 | S::S16 | S::U32 | S::S32, S::U8) if !wide => {
                self.emit::<bits::Low8>(WORDS.d(d).a(a));
            }
            (S::S8, S::S32 | S::U32) if natural => self.emit::<bits::SextS8>(WORDS.d(d).a(a)),
            (S::S32, S::F32) if rounded => self.emit::<v::S32ToF32>(WORDS.d(d).a(a)),
            (S::U32, S::F32) if rounded => self.emit::<v::U32ToF32>(WORDS.d(d).a(a)),
            (S::F32, S::S32) if truncated && spec.ftz && natural => {
                self.emit::<v::F32ToS32Ftz>(WORDS.d(d).a(a));
            }
            (S::F32, S::S32) if truncated && natural => self.emit::<v::F32ToS32>(WORDS.d(d).a(a)),
            (S::F32, S::U32) if truncated && natural => self.emit::<v::F32ToU32>(WORDS.d(d).a(a)),
            (S::F32, S::F64) => self.emit::<v::F32ToF64>(WORDS.d(d).a(a)),
            (S::F64, S::F32) if rounded => self.emit::<v::F64ToF32>(WORDS.d(d).a(a)),
            (S::S32, S::F64) => self.emit::<v::S32ToF64>(WORDS.d(d).a(a)),
            (S::U32, S::F64) => self.emit::<v::U32ToF64>(WORDS.d(d).a(a)),
            (S::F64, S::S32) if truncated && natural => self.emit::<v::F64ToS32>(WORDS.d(d).a(a)),
            (S::F16, S::F32) => self.emit::<v::F16ToF32>(WORDS.d(d).a(a)),
            (S::F32, S::F16) if rounded => self.emit::<v::F32ToF16>(WORDS.d(d).a(a)),
            (S::BF16, S::F32) => self.emit::<v::BF16ToF32>(WORDS.d(d).a(a)),
            (S::F32, S::BF16) if rounded => self.emit::<v::F32ToBF16>(WORDS.d(d).a(a)),
            (S::F32, S::F32) => match spec.rounding {
                CvtRounding::Integral(Rounding::Nearest) => {
                    self.emit::<v::F32RoundEven>(WORDS.d(d).a(a));
                }
                CvtRounding::Integral(Rounding::Zero) => self.emit::<v::F32Trunc>(WORDS.d(d).a(a)),
                CvtRounding::Integral(Rounding::Down) => self.emit::<v::F32Floor>(WORDS.d(d).a(a)),
                CvtRounding::Integral(Rounding::Up) => self.emit::<v::F32Ceil>(WORDS.d(d).a(a)),
                CvtRounding::None | CvtRounding::Float(_) | CvtRounding::FloatAway => return false,
            },
            _ => return false,
        }
        true
    }

    fn cvt_pair(
        &mut self,
        (to, from, rounding, sat, relu): (S, S, CvtRounding, bool, bool),
        dst: Reg,
        [a, b]: [Operand; 2],
    ) -> Done {
        if from != S::F32 {
            return Err(Refusal::new("conversion of this pair"));
        }
        let (a, b, d) = (self.r32(a)?, self.r32(b)?, self.dst(dst));
        let nearest = rounding == CvtRounding::Float(Rounding::Nearest);
        match to {
            S::F16x2 if nearest && !sat && !relu => self.emit::<v::PairF16>(WORDS.d(d).a(a).b(b)),
            S::BF16x2 if nearest && !sat && !relu => self.emit::<v::PairBF16>(WORDS.d(d).a(a).b(b)),
            S::F16x2 | S::BF16x2 => {
                let half = if to == S::F16x2 { S::F16 } else { S::BF16 };
                let spec =
                    Spec { from, to: half, rounding, ftz: false, sat, relu, register_bits: 16 };
                let (x, y) = (self.temp32(), self.temp32());
                self.emit::<v::Convert32To32>(WORDS.d(x).a(a).imm(spec.pack()));
                self.emit::<v::Convert32To32>(WORDS.d(y).a(b).imm(spec.pack()));
                self.emit::<bits::Pack16>(WORDS.d(d).a(y).b(x));
            }
            S::E4M3x2 => self.emit::<fp8::ToE4m3>(WORDS.d(d).a(a).b(b).imm(u64::from(relu))),
            S::E5M2x2 => self.emit::<fp8::ToE5m2>(WORDS.d(d).a(a).b(b).imm(u64::from(relu))),
            _ => return Err(Refusal::new("conversion to this pair")),
        }
        Ok(())
    }
}
