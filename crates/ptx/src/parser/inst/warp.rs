//! Barriers and exchange between the threads of a warp.

use super::Mods;
use crate::ir::{BarrierAction, Op, Operand, ReduxOp, ScalarType, ShflMode, VoteMode, Width};
use crate::parser::operand::Fit;
use crate::parser::{Parsed, Parser};

/// Reductions of a barrier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    Popc,
    And,
    Or,
}

impl<'a> Parser<'a> {
    pub(super) fn warp(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "bar" | "barrier" => self.barrier(m),
            "shfl" => self.shfl(m),
            "vote" => self.vote(m),
            "match" => self.matching(m),
            "activemask" => {
                let word = m.flag("b32");
                m.check(word)?;
                m.finish()?;
                Ok(Op::Activemask { dst: self.dst(Width::B32)? })
            }
            "redux" => self.redux(m),
            _ => {
                let sync = m.flag("sync");
                m.check(sync)?;
                m.finish()?;
                let dst = self.dst_or_sink(Width::B32, Fit::Exact)?;
                self.expect(b'|')?;
                let pred = self.dst(Width::Pred)?;
                Ok(Op::Elect { dst, pred, mask: self.src(ScalarType::B32)? })
            }
        }
    }

    fn barrier(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        if m.flag("warp") {
            let sync = m.flag("sync");
            m.check(sync)?;
            m.finish()?;
            return Ok(Op::WarpSync { mask: self.value(ScalarType::B32, Fit::Exact)? });
        }
        m.flag("cta");
        let aligned = m.flag("aligned") || m.opcode() == "bar";
        if m.flag("red") {
            return self.barrier_red(m, aligned);
        }
        let arrive = m.need(&[("sync", false), ("arrive", true)])?;
        m.finish()?;
        let id = self.barrier_id()?;
        let threads =
            if self.accept(b',')? { Some(self.value(ScalarType::U32, Fit::Exact)?) } else { None };
        if arrive && threads.is_none() {
            return self.error("`,` and the number of threads");
        }
        let action = if arrive { BarrierAction::Arrive } else { BarrierAction::Sync };
        Ok(Op::Barrier { action, id, threads, aligned })
    }

    fn barrier_id(&mut self) -> Parsed<Operand> {
        if self.at_constant() {
            return Ok(Operand::Imm(self.small(0, 15)?));
        }
        self.value(ScalarType::U32, Fit::Exact)
    }

    /// `bar.red.popc.u32 d, a{, b}, {!}c` and `bar.red.op.pred p, a{, b}, {!}c`
    fn barrier_red(&mut self, m: Mods<'_, 'a>, aligned: bool) -> Parsed<Op> {
        let op =
            m.need(&[("popc", Reduction::Popc), ("and", Reduction::And), ("or", Reduction::Or)])?;
        let ty = m.ty()?;
        let wanted = if op == Reduction::Popc { ScalarType::U32 } else { ScalarType::Pred };
        m.check(ty == wanted)?;
        m.finish()?;
        let dst = self.dst(ty.width())?;
        self.comma()?;
        let id = self.barrier_id()?;
        self.comma()?;
        let mut threads = None;
        if !self.at_pred()? {
            threads = Some(self.value(ScalarType::U32, Fit::Exact)?);
            self.comma()?;
        }
        let pred = self.pred()?;
        let action = match op {
            Reduction::Popc => BarrierAction::Popc { dst, pred },
            Reduction::And => BarrierAction::And { dst, pred },
            Reduction::Or => BarrierAction::Or { dst, pred },
        };
        Ok(Op::Barrier { action, id, threads, aligned })
    }

    /// `, mask` of the `.sync` variants.
    fn mask(&mut self, sync: bool) -> Parsed<Option<Operand>> {
        Ok(if sync { Some(self.src(ScalarType::B32)?) } else { None })
    }

    fn shfl(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let sync = m.flag("sync");
        let mode = m.need(&[
            ("up", ShflMode::Up),
            ("down", ShflMode::Down),
            ("bfly", ShflMode::Bfly),
            ("idx", ShflMode::Idx),
        ])?;
        let word = m.flag("b32");
        m.check(word)?;
        m.finish()?;
        let ty = ScalarType::B32;
        let dst = self.dst_or_sink(Width::B32, Fit::Exact)?;
        let pred = self.second_pred()?;
        let (a, b, c) = (self.src(ty)?, self.src(ty)?, self.src(ty)?);
        let mask = self.mask(sync)?;
        Ok(Op::Shfl { mode, dst, pred, a, b, c, mask })
    }

    /// `|p` after a destination.
    fn second_pred(&mut self) -> Parsed<Option<crate::ir::Reg>> {
        if self.accept(b'|')? { self.dst_or_sink(Width::Pred, Fit::Exact) } else { Ok(None) }
    }

    fn vote(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let sync = m.flag("sync");
        let mode = m.need(&[
            ("all", VoteMode::All),
            ("any", VoteMode::Any),
            ("uni", VoteMode::Uni),
            ("ballot", VoteMode::Ballot),
        ])?;
        let ty = m.ty()?;
        let ballot = mode == VoteMode::Ballot;
        m.check(ty == if ballot { ScalarType::B32 } else { ScalarType::Pred })?;
        m.finish()?;
        let dst = self.dst(ty.width())?;
        self.comma()?;
        let src = self.pred()?;
        let mask = self.mask(sync)?;
        Ok(Op::Vote { mode, dst, src, mask })
    }

    fn matching(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let all = m.need(&[("any", false), ("all", true)])?;
        let sync = m.flag("sync");
        m.check(sync)?;
        let ty = m.ty()?;
        m.check(matches!(ty, ScalarType::B32 | ScalarType::B64))?;
        m.finish()?;
        let dst = self.dst_or_sink(Width::B32, Fit::Exact)?;
        let pred = if all { self.second_pred()? } else { None };
        let (a, mask) = (self.src(ty)?, self.src(ScalarType::B32)?);
        Ok(Op::Match { all, width: ty.width(), dst, pred, a, mask })
    }

    fn redux(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let sync = m.flag("sync");
        m.check(sync)?;
        let op = m.need(&[
            ("add", ReduxOp::Add),
            ("min", ReduxOp::Min),
            ("max", ReduxOp::Max),
            ("and", ReduxOp::And),
            ("or", ReduxOp::Or),
            ("xor", ReduxOp::Xor),
        ])?;
        let (abs, nan) = (m.flag("abs"), m.flag("NaN"));
        let ty = m.ty()?;
        let order = matches!(op, ReduxOp::Min | ReduxOp::Max);
        m.check(match ty {
            ScalarType::U32 | ScalarType::S32 => (order || op == ReduxOp::Add) && !abs && !nan,
            ScalarType::B32 => !order && op != ReduxOp::Add && !abs && !nan,
            ScalarType::F32 => order,
            _ => false,
        })?;
        m.finish()?;
        let (dst, a) = self.dst_a(ty)?;
        Ok(Op::Redux { op, ty, abs, nan, dst, a, mask: self.src(ScalarType::B32)? })
    }
}
