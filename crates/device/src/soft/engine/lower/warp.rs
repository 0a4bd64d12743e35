//! Operations between lanes, and matrices.

use weft_ptx::ir::{Op as Ir, Operand, ReduxOp, ScalarType, ShflMode, VoteMode, Width};

use super::super::program::RowValue;
use super::super::warp_ops::{self as w, redux, shuffle, vote};
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

type Done = Result<(), Refusal>;

impl FunctionLowering<'_> {
    /// Emits the wait for the members, and answers their row; without a mask all active lanes.
    fn members(&mut self, mask: Option<Operand>) -> Result<u32, Refusal> {
        match mask {
            Some(mask) => {
                let row = self.r32(mask)?;
                self.emit::<w::Members>(WORDS.a(row));
                Ok(row)
            }
            None => Ok(self.const32(RowValue::Bits(0xffff_ffff))),
        }
    }

    pub(super) fn warp(&mut self, op: &Ir) -> Done {
        match op {
            Ir::WarpSync { mask } => {
                let row = self.r32(*mask)?;
                self.emit::<w::WarpSync>(WORDS.a(row));
            }
            Ir::Shfl { mode, dst, pred, a, b, c, mask } => {
                let (a, b, c) = (self.r32(*a)?, self.r32(*b)?, self.r32(*c)?);
                self.members(*mask)?;
                let code = match mode {
                    ShflMode::Up => shuffle::UP,
                    ShflMode::Down => shuffle::DOWN,
                    ShflMode::Bfly => shuffle::BUTTERFLY,
                    ShflMode::Idx => shuffle::INDEX,
                };
                let pred = pred.map_or(0, |p| self.dst(p) + 1);
                let d = self.dst32_or_temp(*dst);
                let imm = code | (u64::from(pred) << shuffle::PRED_SHIFT);
                self.emit::<w::Shuffle>(WORDS.d(d).a(a).b(b).c(c).imm(imm));
            }
            Ir::Vote { mode, dst, src, mask } => {
                let (p, inverted) = self.predicate(*src);
                let members = self.members(*mask)?;
                let code = match mode {
                    VoteMode::All => vote::ALL,
                    VoteMode::Any => vote::ANY,
                    VoteMode::Uni => vote::UNIFORM,
                    VoteMode::Ballot => vote::BALLOT,
                };
                let invert = if inverted { vote::INVERT } else { 0 };
                self.emit::<w::Vote>(WORDS.d(self.dst(*dst)).a(p).b(members).imm(code | invert));
            }
            Ir::Match { all, width, dst, pred, a, mask } => {
                let wide = *width == Width::B64;
                let row = if wide { self.r64(*a)? } else { self.r32(*a)? };
                let members = self.members(Some(*mask))?;
                let d = self.dst32_or_temp(*dst);
                if *all {
                    let p = self.pred_or_temp(*pred);
                    self.emit::<w::MatchAll>(
                        WORDS.d(d).a(row).b(members).c(p).imm(u64::from(wide)),
                    );
                } else {
                    self.emit::<w::MatchAny>(WORDS.d(d).a(row).b(members).imm(u64::from(wide)));
                }
            }
            Ir::Activemask { dst } => self.emit::<w::ActiveMask>(WORDS.d(self.dst(*dst))),
            Ir::Redux { op, ty, abs, nan, dst, a, mask } => {
                let row = self.r32(*a)?;
                let members = self.members(Some(*mask))?;
                let code = redux_code(*op, *ty)?
                    | if *abs { redux::ABS } else { 0 }
                    | if *nan { redux::NAN } else { 0 };
                self.emit::<w::Redux>(WORDS.d(self.dst(*dst)).a(row).b(members).imm(code));
            }
            Ir::Elect { dst, pred, mask } => {
                let members = self.members(Some(*mask))?;
                let d = self.dst32_or_temp(*dst);
                self.emit::<w::Elect>(WORDS.d(d).a(members).c(self.dst(*pred)));
            }
            _ => return self.matrix(op),
        }
        Ok(())
    }
}

fn redux_code(op: ReduxOp, ty: ScalarType) -> Result<u64, Refusal> {
    Ok(match (op, ty) {
        (ReduxOp::Min, ScalarType::F32) => redux::MIN_F,
        (ReduxOp::Max, ScalarType::F32) => redux::MAX_F,
        (_, ScalarType::F32) => return Err(Refusal::new("redux of f32")),
        (ReduxOp::Add, _) => redux::ADD,
        (ReduxOp::Min, ScalarType::S32) => redux::MIN_S,
        (ReduxOp::Min, _) => redux::MIN_U,
        (ReduxOp::Max, ScalarType::S32) => redux::MAX_S,
        (ReduxOp::Max, _) => redux::MAX_U,
        (ReduxOp::And, _) => redux::AND,
        (ReduxOp::Or, _) => redux::OR,
        (ReduxOp::Xor, _) => redux::XOR,
    })
}
