//! Moves and conversions.

use super::Mods;
use crate::ir::{CvtRounding, Op, Operand, Rounding, ScalarType, Space, Width};
use crate::parser::operand::Fit;
use crate::parser::{Parsed, Parser, operand_error};

impl<'a> Parser<'a> {
    pub(super) fn convert(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "mov" => self.mov(m),
            "cvt" if m.flag("pack") => self.cvt_pack(m),
            "cvt" => self.cvt(m),
            "cvta" => self.cvta(m),
            _ => {
                let space = m.space();
                m.check(space != Space::Generic)?;
                m.finish()?;
                let dst = self.dst(Width::Pred)?;
                Ok(Op::Isspacep { space, dst, a: self.src(ScalarType::U64)? })
            }
        }
    }

    fn mov(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let lanes = m.pick(&[("v2", 2), ("v4", 4), ("v8", 8)]);
        let ty = m.ty()?;
        m.finish()?;
        if let Some(lanes) = lanes {
            return self.mov_vector(ty, lanes);
        }
        if self.at(b'{') {
            return self.unpack(ty);
        }
        if let Some(element) = self.at_vector()? {
            let dst = self.dst_vector(element, Fit::Exact)?;
            self.check_elements(element, dst.len(), ty.width())?;
            return Ok(Op::Unpack { element, dst, src: self.src(ty)? });
        }
        if ty.width() == Width::B8 {
            return self.mov_byte(ty);
        }
        let dst = self.dst(ty.width())?;
        self.comma()?;
        if self.at(b'{') {
            let (element, src) = self.pack(ty)?;
            return Ok(Op::Pack { element, dst, src });
        }
        if let Some(element) = self.at_vector()? {
            let src = self.src_vector(element_type(element), Fit::Exact)?;
            self.check_elements(element, src.len(), ty.width())?;
            return Ok(Op::Pack { element, dst, src });
        }
        let src = self.value(ty, Fit::Exact)?;
        Ok(Op::Mov { width: ty.width(), dst, src })
    }

    /// `mov.u8 d, 0` of a wider register, as tinygrad writes it.
    fn mov_byte(&mut self, ty: ScalarType) -> Parsed<Op> {
        let dst = self.dst_wider(Width::B8)?;
        let width = self.body.width(dst);
        self.comma()?;
        let src = match self.value(ty, Fit::Wider)? {
            Operand::Imm(bits) => Operand::Imm(Self::widen(bits, ty, width)),
            Operand::Reg(reg) if self.body.width(reg) == width => Operand::Reg(reg),
            _ => return operand_error("a byte move between registers of different widths"),
        };
        Ok(Op::Mov { width, dst, src })
    }

    fn unpack(&mut self, ty: ScalarType) -> Parsed<Op> {
        // The width of an element follows from their number, which is known at the closing brace.
        let mut ahead = self.lexer.clone();
        let mut count = 1;
        while let Ok((token, _)) = ahead.next() {
            match token {
                crate::lexer::Token::Punct(b',') => count += 1,
                crate::lexer::Token::Word(_) | crate::lexer::Token::Dotted(_) => {}
                _ => break,
            }
        }
        let element = element(ty, count)?;
        let dst = self.dst_vector(element.width(), Fit::Exact)?;
        Ok(Op::Unpack { element: element.width(), dst, src: self.src(ty)? })
    }

    fn pack(&mut self, ty: ScalarType) -> Parsed<(Width, Vec<Operand>)> {
        let mut ahead = self.lexer.clone();
        let mut count = 1;
        while let Ok((token, _)) = ahead.next() {
            match token {
                crate::lexer::Token::Punct(b',') => count += 1,
                crate::lexer::Token::Punct(b'}' | b';') | crate::lexer::Token::End => break,
                _ => {}
            }
        }
        let element = element(ty, count)?;
        Ok((element.width(), self.src_vector(element, Fit::Exact)?))
    }

    fn cvt(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let rounding = cvt_rounding(m);
        let ftz = m.flag("ftz");
        let relu = m.flag("relu");
        let (sat, finite) = (m.flag("sat"), m.flag("satfinite"));
        let (to, from) = (m.ty()?, m.ty()?);
        // 8-bit formats saturate always, and `.sat` is to another range.
        m.check(!finite || matches!(to, ScalarType::E4M3x2 | ScalarType::E5M2x2))?;
        m.finish()?;
        let rounding = default_rounding(rounding, to, from);
        m.check(check_cvt(to, from, rounding))?;
        let pair = matches!(
            to,
            ScalarType::F16x2 | ScalarType::BF16x2 | ScalarType::E4M3x2 | ScalarType::E5M2x2
        );
        if pair && from == ScalarType::F32 {
            let (dst, a, b) = (self.dst(to.width())?, self.src(from)?, self.src(from)?);
            return Ok(Op::CvtPair { to, from, rounding, sat, relu, dst, a, b });
        }
        let dst = self.dst_wider(to.width())?;
        let a = self.src_wider(from)?;
        Ok(Op::Cvt { to, from, rounding, ftz, sat, relu, dst, a })
    }

    /// `cvt.pack.sat.to.s32{.b32} d, a, b{, c}`
    fn cvt_pack(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let sat = m.flag("sat");
        m.check(sat)?;
        let (element_bits, signed) = m.need(&[
            ("u16", (16, false)),
            ("s16", (16, true)),
            ("u8", (8, false)),
            ("s8", (8, true)),
            ("u4", (4, false)),
            ("s4", (4, true)),
            ("u2", (2, false)),
            ("s2", (2, true)),
        ])?;
        let from = m.flag("s32");
        m.check(from)?;
        let third = m.flag("b32");
        m.check(third == (element_bits != 16))?;
        m.finish()?;
        let dst = self.dst(Width::B32)?;
        let (a, b) = (self.src(ScalarType::S32)?, self.src(ScalarType::S32)?);
        let c = if third { Some(self.src(ScalarType::B32)?) } else { None };
        Ok(Op::CvtPack { element_bits, signed, dst, a, b, c })
    }

    fn cvta(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let from_generic = m.flag("to");
        let space = m.space();
        m.check(space != Space::Generic)?;
        let ty = m.ty()?;
        m.check(ty == ScalarType::U64)?;
        m.finish()?;
        let (dst, a) = self.dst_a(ty)?;
        let space = self.private(space);
        Ok(if from_generic { Op::CvtaFrom { space, dst, a } } else { Op::CvtaTo { space, dst, a } })
    }
}

/// Bits of that width.
const fn element_type(width: Width) -> ScalarType {
    match width {
        Width::Pred => ScalarType::Pred,
        Width::B8 => ScalarType::B8,
        Width::B16 => ScalarType::B16,
        Width::B32 => ScalarType::B32,
        Width::B64 => ScalarType::B64,
        Width::B128 => ScalarType::B128,
    }
}

/// The type of one of `count` equal parts of a type.
fn element(ty: ScalarType, count: u32) -> Parsed<ScalarType> {
    let bytes = ty.bytes();
    if ty != ScalarType::Pred && matches!(count, 2 | 4 | 8) && bytes >= count {
        match bytes / count {
            1 => return Ok(ScalarType::B8),
            2 => return Ok(ScalarType::B16),
            4 => return Ok(ScalarType::B32),
            8 => return Ok(ScalarType::B64),
            _ => {}
        }
    }
    operand_error(format!("a vector of {count} in a move of {bytes} bytes"))
}

fn cvt_rounding(m: Mods<'_, '_>) -> Option<CvtRounding> {
    if let Some(rounding) = m.rounding() {
        return Some(CvtRounding::Float(rounding));
    }
    m.pick(&[
        ("rna", CvtRounding::FloatAway),
        ("rni", CvtRounding::Integral(Rounding::Nearest)),
        ("rzi", CvtRounding::Integral(Rounding::Zero)),
        ("rmi", CvtRounding::Integral(Rounding::Down)),
        ("rpi", CvtRounding::Integral(Rounding::Up)),
    ])
}

fn is_float(ty: ScalarType) -> bool {
    ty.float().is_some() || matches!(ty, ScalarType::TF32 | ScalarType::E4M3x2 | ScalarType::E5M2x2)
}

/// What PTX before 1.4 meant where later versions demand a rounding.
fn default_rounding(given: Option<CvtRounding>, to: ScalarType, from: ScalarType) -> CvtRounding {
    match given {
        Some(rounding) => rounding,
        None if is_float(from) && !is_float(to) => CvtRounding::Integral(Rounding::Zero),
        None if is_float(to) && (!is_float(from) || to.bytes() < from.bytes()) => {
            CvtRounding::Float(Rounding::Nearest)
        }
        None => CvtRounding::None,
    }
}

/// Whether the pair of types and the rounding go together.
fn check_cvt(to: ScalarType, from: ScalarType, rounding: CvtRounding) -> bool {
    use ScalarType as T;
    let number = |ty: T| {
        ty.int().is_some_and(|_| !matches!(ty, T::U16x2 | T::S16x2))
            || matches!(ty, T::F16 | T::BF16 | T::F32 | T::F64)
    };
    let types = match (to, from) {
        (T::TF32 | T::F16x2 | T::BF16x2 | T::E4M3x2 | T::E5M2x2, T::F32) => true,
        (T::E4M3x2 | T::E5M2x2, T::F16x2) | (T::F16x2, T::E4M3x2 | T::E5M2x2) => true,
        (to, from) => number(to) && number(from),
    };
    let rounds = match rounding {
        CvtRounding::None => true,
        CvtRounding::Float(_) => is_float(to),
        CvtRounding::FloatAway => to == T::TF32,
        CvtRounding::Integral(_) => is_float(from) && (!is_float(to) || to == from),
    };
    types && rounds
}
