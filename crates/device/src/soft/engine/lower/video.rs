//! Video instructions.

use weft_ptx::ir::{Op as Ir, Operand, VideoOp, VideoOperand};

use super::super::video::{self as v, Spec, mad};
use super::function::{FunctionLowering, Refusal};

impl FunctionLowering<'_> {
    pub(super) fn video(&mut self, op: &Ir) -> Result<(), Refusal> {
        match *op {
            Ir::Video { op, signed, sat, merge, accumulate, dst, a, b, c } => {
                let shift = matches!(op, VideoOp::Shl { .. } | VideoOp::Shr { .. });
                if a.negated || b.negated || (shift && b.signed) {
                    return Err(Refusal::new("an operand of this form"));
                }
                let spec = Spec {
                    code: code(op)?,
                    signed,
                    sat,
                    second: v::second_of(accumulate)
                        .ok_or_else(|| Refusal::new("a second operation of this kind"))?,
                    merge: merge.unwrap_or_default(),
                    ..operands(&a, &b)
                };
                let c = c.unwrap_or(Operand::Imm(0));
                self.all32::<v::Video>(dst, &[a.value, b.value, c], spec.pack())
            }
            Ir::VideoPacked {
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
            } => {
                let code = code(op)?;
                let spec =
                    Spec { code, signed, a_signed, b_signed, sat, lanes, mask, ..Spec::default() };
                if accumulate {
                    self.all32::<v::VideoSum>(dst, &[a, b, c], spec.pack())
                } else {
                    self.all32::<v::VideoPacked>(dst, &[a, b, c], spec.pack())
                }
            }
            // The type of the result says nothing: signs of the operands decide.
            Ir::VideoMad { signed: _, sat, plus_one, shift, dst, a, b, c, c_negated } => {
                let product = a.negated != b.negated;
                let signed = a.signed || b.signed || product || c_negated;
                let imm = Spec { signed, sat, ..operands(&a, &b) }.pack()
                    | if product { mad::NEGATE_PRODUCT } else { 0 }
                    | if c_negated { mad::NEGATE_C } else { 0 }
                    | if plus_one { mad::PLUS_ONE } else { 0 }
                    | (u64::from(shift) << mad::SHIFT);
                self.all32::<v::VideoMad>(dst, &[a.value, b.value, c], imm)
            }
            _ => Err(Refusal::new("not a video instruction")),
        }
    }
}

fn code(op: VideoOp) -> Result<u8, Refusal> {
    v::code_of(op).ok_or_else(|| Refusal::new("a comparison of floating-point numbers"))
}

fn operands(a: &VideoOperand, b: &VideoOperand) -> Spec {
    Spec { a_signed: a.signed, b_signed: b.signed, a: a.part, b: b.part, ..Spec::default() }
}
