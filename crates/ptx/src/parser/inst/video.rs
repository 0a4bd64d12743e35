//! Video instructions: scalar ones with byte and half selectors, and packed ones.

use super::Mods;
use super::compare::compare_op;
use crate::ir::{IntBinaryOp, Op, Operand, ScalarType, VideoOp, VideoOperand, Width};
use crate::lexer::Token;
use crate::parser::operand::Fit;
use crate::parser::{Parsed, Parser};

const SIGNED: [(&str, bool); 2] = [("u32", false), ("s32", true)];

impl<'a> Parser<'a> {
    pub(super) fn video(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let name = m.opcode();
        if let Some(short) = name.strip_suffix('2') {
            return self.video_packed(m, short, 2);
        }
        if let Some(short) = name.strip_suffix('4') {
            return self.video_packed(m, short, 4);
        }
        if name == "vmad" {
            return self.vmad(m);
        }
        let op = match name {
            "vshl" | "vshr" => {
                let wrap = m.need(&[("clamp", false), ("wrap", true)]);
                let left = name == "vshl";
                // The mode stands behind the types in the text; modifiers are taken by name.
                let wrap = wrap?;
                if left { VideoOp::Shl { wrap } } else { VideoOp::Shr { wrap } }
            }
            _ => self.video_op(m, name)?,
        };
        let set = matches!(op, VideoOp::Set(_));
        let signed = if set { false } else { m.need(&SIGNED)? };
        let (a_signed, b_signed) = (m.need(&SIGNED)?, m.need(&SIGNED)?);
        let sat = !set && m.flag("sat");
        let accumulate = m.pick(&[
            ("add", IntBinaryOp::Add),
            ("min", IntBinaryOp::Min),
            ("max", IntBinaryOp::Max),
        ]);
        m.finish()?;
        let dst = self.dst(Width::B32)?;
        let merge = self.selector()?;
        let a = self.video_operand(a_signed)?;
        let b = self.video_operand(b_signed)?;
        let third = merge.is_some() || accumulate.is_some();
        let c = if third { Some(self.src(ScalarType::B32)?) } else { None };
        Ok(Op::Video { op, signed, sat, merge, accumulate, dst, a, b, c })
    }

    fn video_op(&mut self, m: Mods<'_, 'a>, name: &str) -> Parsed<VideoOp> {
        Ok(match name {
            "vadd" => VideoOp::Add,
            "vsub" => VideoOp::Sub,
            "vabsdiff" => VideoOp::AbsDiff,
            "vmin" => VideoOp::Min,
            "vmax" => VideoOp::Max,
            "vset" => VideoOp::Set(compare_op(m)?),
            _ => return Err(m.unknown()),
        })
    }

    /// `.b1`, `.h0` after an operand: lowest bit and number of bits.
    fn selector(&mut self) -> Parsed<Option<(u8, u8)>> {
        let Token::Dotted(name) = self.token else { return Ok(None) };
        let part = match name {
            "b0" => (0, 8),
            "b1" => (8, 8),
            "b2" => (16, 8),
            "b3" => (24, 8),
            "h0" => (0, 16),
            "h1" => (16, 16),
            _ => return self.error("a selector of bytes or halves"),
        };
        self.advance()?;
        Ok(Some(part))
    }

    fn video_operand(&mut self, signed: bool) -> Parsed<VideoOperand> {
        self.comma()?;
        self.video_operand_rest(signed)
    }

    fn video_operand_rest(&mut self, signed: bool) -> Parsed<VideoOperand> {
        let mut negated = self.at(b'-');
        let value =
            if negated { self.negated()? } else { self.value(ScalarType::B32, Fit::Exact)? };
        negated &= !matches!(value, Operand::Imm(_));
        let part = self.selector()?.unwrap_or((0, 32));
        Ok(VideoOperand { value, signed, part, negated })
    }

    /// `-a` of a register, or a negative constant.
    fn negated(&mut self) -> Parsed<Operand> {
        let mut ahead = self.lexer.clone();
        if matches!(ahead.next(), Ok((Token::Word(_), _))) {
            self.advance()?;
        }
        self.value(ScalarType::B32, Fit::Exact)
    }

    /// `vmad.dtype.atype.btype{.sat}{.scale} d, {-}a{.sel}, {-}b{.sel}, {-}c`
    fn vmad(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let signed = m.need(&SIGNED)?;
        let (a_signed, b_signed) = (m.need(&SIGNED)?, m.need(&SIGNED)?);
        let plus_one = m.flag("po");
        let sat = m.flag("sat");
        let shift = m.pick(&[("shr7", 7), ("shr15", 15)]).unwrap_or(0);
        m.finish()?;
        let dst = self.dst(Width::B32)?;
        let a = self.video_operand(a_signed)?;
        let b = self.video_operand(b_signed)?;
        let c = self.video_operand(signed)?;
        let (c, c_negated) = (c.value, c.negated);
        Ok(Op::VideoMad { signed, sat, plus_one, shift, dst, a, b, c, c_negated })
    }

    /// `vadd4.dtype.atype.btype{.sat|.add} d{.mask}, a, b, c` without selectors of the sources.
    fn video_packed(&mut self, m: Mods<'_, 'a>, name: &str, lanes: u8) -> Parsed<Op> {
        let op = if name == "vavrg" { VideoOp::Average } else { self.video_op(m, name)? };
        let set = matches!(op, VideoOp::Set(_));
        let signed = if set { false } else { m.need(&SIGNED)? };
        let (a_signed, b_signed) = (m.need(&SIGNED)?, m.need(&SIGNED)?);
        let sat = !set && m.flag("sat");
        let accumulate = m.flag("add");
        m.finish()?;
        let dst = self.dst(Width::B32)?;
        let mask = self.lane_mask(lanes)?;
        let b32 = ScalarType::B32;
        let (a, b, c) = (self.src(b32)?, self.src(b32)?, self.src(b32)?);
        Ok(Op::VideoPacked {
            op,
            lanes,
            signed,
            a_signed,
            b_signed,
            sat,
            mask,
            accumulate,
            dst,
            a,
            b,
            c,
        })
    }

    /// `.h10`, `.b3210` and subsets of them, or all lanes.
    fn lane_mask(&mut self, lanes: u8) -> Parsed<u8> {
        let all = (1u8 << lanes) - 1;
        let Token::Dotted(name) = self.token else { return Ok(all) };
        let digits = name.strip_prefix(if lanes == 2 { 'h' } else { 'b' });
        let mut mask = 0u8;
        for digit in digits.unwrap_or_default().bytes() {
            match digit.checked_sub(b'0').filter(|&lane| lane < lanes) {
                Some(lane) => mask |= 1 << lane,
                None => return self.error("a mask of lanes"),
            }
        }
        if mask == 0 {
            return self.error("a mask of lanes");
        }
        self.advance()?;
        Ok(mask)
    }
}
