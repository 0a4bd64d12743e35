//! Operands that need instructions of their own before the one that they stand in: sums, negated
//! predicates, elements of variables, whole vectors. Assemblers take them, and compilers write
//! them, although the PTX ISA document does not list them.

use super::operand::{Fit, low_i64};
use super::scope::Name;
use super::{Parsed, Parser, operand_error, shorten};
use crate::error::ParseErrorKind;
use crate::ir::{
    Address, Base, BitUnaryOp, Dim, Instr, IntBinaryOp, IntType, Op, Operand, Reg, ScalarType,
    Space, SpecialReg, Width,
};
use crate::lexer::Token;

impl<'a> Parser<'a> {
    /// Adds an instruction before the one being read. It writes registers of its own, so it runs
    /// without the guard.
    fn before(&mut self, op: Op) {
        self.body.instructions.push(Instr { guard: None, op, line: self.line });
    }

    /// `%r + 4`, the rest after the register: a register with the sum.
    pub(super) fn plus(&mut self, reg: Reg, ty: ScalarType) -> Parsed<Reg> {
        if !self.at(b'+') {
            return Ok(reg);
        }
        let width = self.body.width(reg);
        let sum_ty = match width {
            Width::B16 => IntType::U16,
            Width::B32 => IntType::U32,
            Width::B64 => IntType::U64,
            Width::Pred | Width::B8 | Width::B128 => {
                return operand_error(format!("a sum with a {width:?} register"));
            }
        };
        if ty.float().is_some() {
            return operand_error("a sum in a floating-point instruction");
        }
        let bits = super::constant::truncate(self.offset()?.cast_unsigned(), width);
        self.sum(sum_ty, width, Operand::Reg(reg), Operand::Imm(bits))
    }

    fn sum(&mut self, ty: IntType, width: Width, a: Operand, b: Operand) -> Parsed<Reg> {
        let dst = self.body.new_register(width)?;
        let (op, sat, relu) = (IntBinaryOp::Add, false, false);
        self.before(Op::IntBinary { op, ty, sat, relu, dst, a, b });
        Ok(dst)
    }

    /// `!p` where an instruction has no negation of its own: a register with the complement.
    pub(super) fn complement(&mut self) -> Parsed<Reg> {
        let guard = self.guard()?;
        if !guard.negated {
            return Ok(guard.reg);
        }
        let dst = self.body.new_register(Width::Pred)?;
        let a = Operand::Reg(guard.reg);
        self.before(Op::BitUnary { op: BitUnaryOp::Not, width: Width::Pred, dst, a });
        Ok(dst)
    }

    /// Whether `!` and a name come next.
    pub(super) fn at_negation(&self) -> bool {
        let mut ahead = self.lexer.clone();
        self.at(b'!') && matches!(ahead.next(), Ok((Token::Word(_), _)))
    }

    /// `name[index]` and `name[%r + index]` in place of `[address]`: an element of a variable.
    pub(super) fn element_address(&mut self, space: Space) -> Parsed<(Address, Space)> {
        let name = self.word()?;
        let Some((address, own, element_bytes)) = self.variable_named(name)? else {
            return operand_error(format!("{} is not a variable", shorten(name)));
        };
        if own != self.private(space) && space != Space::Generic {
            return operand_error(format!("{} lies in another space", shorten(name)));
        }
        if !self.at(b'[') {
            return self.error("`[`");
        }
        Ok((self.index(address, element_bytes)?, own))
    }

    /// Where a variable lies, in which space, and the size of its elements.
    fn variable_named(&mut self, name: &'a str) -> Parsed<Option<(Address, Space, u32)>> {
        let frame = |base, offset: u32| Address { base, offset: i64::from(offset) };
        Ok(match self.body.find(name)? {
            Some(Name::KernelParam { slot, element_bytes }) => {
                Some((frame(Base::KernelParam, slot.offset), Space::Param, element_bytes))
            }
            Some(Name::Frame { slot, element_bytes, .. }) => {
                Some((frame(Base::Frame, slot.offset), Space::Local, element_bytes))
            }
            Some(Name::Variable(id)) => self.global_named(id),
            Some(_) => None,
            None => match self.refer(name) {
                Some(crate::ir::Symbol::Variable(id)) => self.global_named(id),
                Some(crate::ir::Symbol::Function(_)) | None => None,
            },
        })
    }

    fn global_named(&self, id: crate::ir::VarId) -> Option<(Address, Space, u32)> {
        let variable = self.shared.module.variable(id)?;
        let address = Address { base: Base::Variable(id), offset: 0 };
        Some((address, variable.space, variable.element_bytes))
    }

    /// `[2]` or `[%r + 2]` behind a variable, which counts its elements.
    pub(super) fn index(&mut self, of: Address, element_bytes: u32) -> Parsed<Address> {
        self.expect(b'[')?;
        let reg = if self.at_constant() { None } else { Some(self.reg()?) };
        let index = match reg {
            Some(_) => self.offset()?,
            None => low_i64(self.constant_int()?),
        };
        self.expect(b']')?;
        let offset = of.offset.wrapping_add(index.wrapping_mul(i64::from(element_bytes)));
        let fixed = Address { base: of.base, offset };
        match reg {
            None => Ok(fixed),
            Some(reg) => {
                let reg = self.indexed(fixed, reg, element_bytes)?;
                Ok(Address { base: Base::Reg(reg), offset: 0 })
            }
        }
    }

    /// A register with the address of the element that a register counts to.
    fn indexed(&mut self, of: Address, reg: Reg, element_bytes: u32) -> Parsed<Reg> {
        if of.base == Base::KernelParam {
            return operand_error("a computed index of a parameter");
        }
        let width = self.body.width(reg);
        if !matches!(width, Width::B32 | Width::B64) {
            return operand_error("an index needs a register of 32 or 64 bits");
        }
        let scaled = self.body.new_register(width)?;
        let b = Operand::Imm(u64::from(element_bytes.trailing_zeros()));
        self.before(Op::Shl { width, dst: scaled, a: Operand::Reg(reg), b });
        let mut offset = scaled;
        if width == Width::B32 {
            offset = self.body.new_register(Width::B64)?;
            let (to, from) = (ScalarType::U64, ScalarType::U32);
            let (rounding, a) = (crate::ir::CvtRounding::None, Operand::Reg(scaled));
            let (ftz, sat, relu) = (false, false, false);
            self.before(Op::Cvt { to, from, rounding, ftz, sat, relu, dst: offset, a });
        }
        self.sum(IntType::U64, Width::B64, Operand::Address(of), Operand::Reg(offset))
    }

    /// The lower 32 bits of a 64-bit register.
    pub(super) fn low_half(&mut self, of: Reg) -> Parsed<Reg> {
        let dst = self.body.new_register(Width::B32)?;
        let (to, from) = (ScalarType::U32, ScalarType::U64);
        let (rounding, a) = (crate::ir::CvtRounding::None, Operand::Reg(of));
        let (ftz, sat, relu) = (false, false, false);
        self.before(Op::Cvt { to, from, rounding, ftz, sat, relu, dst, a });
        Ok(dst)
    }

    /// `mov.v2`, `mov.v4` and `mov.v8`: `d, a` where each is a vector register or a list. All
    /// elements are read before one is written.
    pub(super) fn mov_vector(&mut self, ty: ScalarType, lanes: usize) -> Parsed<Op> {
        let dst = self.dst_vector(ty.width(), Fit::Exact)?;
        self.comma()?;
        let src = match self.special_vector()? {
            Some(all) => all,
            None => self.src_vector(ty, Fit::Exact)?,
        };
        if dst.len() != lanes || src.len() != lanes {
            return operand_error(format!("a move of {lanes} elements"));
        }
        let width = ty.width();
        let mut moves = Vec::new();
        for (dst, src) in dst.into_iter().zip(src) {
            let Some(dst) = dst else { continue };
            let read = self.body.new_register(width)?;
            self.before(Op::Mov { width, dst: read, src });
            moves.push(Op::Mov { width, dst, src: Operand::Reg(read) });
        }
        let Some(last) = moves.pop() else { return Ok(Op::Nop) };
        let (guard, line) = (self.body.guard, self.line);
        self.body.instructions.extend(moves.into_iter().map(|op| Instr { guard, op, line }));
        Ok(last)
    }

    /// `%tid` and the like as a whole.
    fn special_vector(&mut self) -> Parsed<Option<Vec<Operand>>> {
        let Token::Word(name) = self.token else { return Ok(None) };
        let of: fn(Dim) -> SpecialReg = match name {
            "%tid" => SpecialReg::Tid,
            "%ntid" => SpecialReg::Ntid,
            "%ctaid" => SpecialReg::Ctaid,
            "%nctaid" => SpecialReg::Nctaid,
            _ => return Ok(None),
        };
        if self.body.find(name)?.is_some() {
            return Ok(None);
        }
        self.advance()?;
        // The fourth component is 0, of counts 1.
        let fourth = u64::from(name.starts_with("%n"));
        let mut all: Vec<Operand> =
            [Dim::X, Dim::Y, Dim::Z].map(|dim| Operand::Special(of(dim))).to_vec();
        all.push(Operand::Imm(fourth));
        Ok(Some(all))
    }

    /// Whether a whole vector register comes next, and how wide its elements are.
    pub(super) fn at_vector(&mut self) -> Parsed<Option<Width>> {
        let Token::Word(name) = self.token else { return Ok(None) };
        let Some(Name::Vector(first, _)) = self.body.find(name)? else { return Ok(None) };
        let mut ahead = self.lexer.clone();
        let part = matches!(ahead.next(), Ok((Token::Dotted(_), _)));
        Ok((!part).then(|| self.body.width(first)))
    }

    /// `mov` between a vector register and a scalar of the width of all its elements.
    pub(super) fn check_elements(&self, element: Width, count: usize, of: Width) -> Parsed<()> {
        let bits = u64::from(element.bits()) * count as u64;
        if bits == u64::from(of.bits()) {
            return Ok(());
        }
        Err(ParseErrorKind::Operand(format!("a vector of {bits} bits where {of:?} is needed")))
    }
}
