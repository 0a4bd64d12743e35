//! Operands of instructions.

use super::constant::{Constant, truncate};
use super::scope::Name;
use super::{Parsed, Parser, operand_error, shorten, undefined};
use crate::error::ParseErrorKind;
use crate::ir::{
    Address, Base, Dim, FunctionKind, Guard, Operand, Pred, Reg, ScalarType, Space, SpecialReg,
    Symbol, VarId, Width,
};
use crate::lexer::Token;

/// Which registers fit an operand of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Exactly as wide as the type.
    Exact,
    /// As wide or wider.
    Wider,
}

/// The most elements of a vector operand.
const MAX_VECTOR: usize = 16;

impl<'a> Parser<'a> {
    pub(super) fn comma(&mut self) -> Parsed<()> {
        self.expect(b',')
    }

    /// A register that exists.
    pub(super) fn reg(&mut self) -> Parsed<Reg> {
        let name = self.word()?;
        match self.body.find(name)? {
            Some(Name::Reg(reg)) => Ok(reg),
            Some(Name::Vector(first, count)) => self.component(first, count),
            Some(_) => operand_error(format!("{} is not a register", shorten(name))),
            None => undefined(name),
        }
    }

    pub(super) fn component(&mut self, first: Reg, count: u8) -> Parsed<Reg> {
        let index = match self.dotted()? {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            other => return operand_error(format!("no vector component .{}", shorten(other))),
        };
        if index >= u32::from(count) {
            return operand_error("a component beyond the vector");
        }
        Ok(Reg(first.0 + index))
    }

    fn check_width(&self, reg: Reg, width: Width, fit: Fit) -> Parsed<()> {
        let actual = self.body.width(reg);
        let fits = match fit {
            Fit::Exact => actual == width,
            Fit::Wider => {
                actual == width || (actual > width && width != Width::Pred && actual != Width::Pred)
            }
        };
        if fits {
            return Ok(());
        }
        operand_error(format!("a {actual:?} register where {width:?} is needed"))
    }

    /// A destination of exactly that width.
    pub(super) fn dst(&mut self, width: Width) -> Parsed<Reg> {
        let reg = self.reg()?;
        self.check_width(reg, width, Fit::Exact)?;
        Ok(reg)
    }

    /// A destination that may be wider.
    pub(super) fn dst_wider(&mut self, width: Width) -> Parsed<Reg> {
        let reg = self.reg()?;
        self.check_width(reg, width, Fit::Wider)?;
        Ok(reg)
    }

    /// A destination, or `_`.
    pub(super) fn dst_or_sink(&mut self, width: Width, fit: Fit) -> Parsed<Option<Reg>> {
        if self.token == Token::Word("_") {
            self.advance()?;
            return Ok(None);
        }
        let reg = self.reg()?;
        self.check_width(reg, width, fit)?;
        Ok(Some(reg))
    }

    /// `, a` of that type.
    pub(super) fn src(&mut self, ty: ScalarType) -> Parsed<Operand> {
        self.comma()?;
        self.value(ty, Fit::Exact)
    }

    /// `, a` whose register may be wider.
    pub(super) fn src_wider(&mut self, ty: ScalarType) -> Parsed<Operand> {
        self.comma()?;
        self.value(ty, Fit::Wider)
    }

    /// A value of that type: register, constant, special register or address.
    pub(super) fn value(&mut self, ty: ScalarType, fit: Fit) -> Parsed<Operand> {
        if ty == ScalarType::Pred && self.at_negation() {
            return Ok(Operand::Reg(self.complement()?));
        }
        if self.at_constant() {
            return Ok(Operand::Imm(self.constant()?.bits(ty)?));
        }
        let name = self.word()?;
        let found = match self.body.find(name)? {
            Some(Name::Reg(reg)) => Some(reg),
            Some(Name::Vector(first, count)) => Some(self.component(first, count)?),
            Some(other) => return self.symbol(name, &other, ty),
            None => None,
        };
        if let Some(reg) = found {
            self.check_width(reg, ty.width(), fit)?;
            return Ok(Operand::Reg(self.plus(reg, ty)?));
        }
        if let Some(global) = self.refer(name) {
            return self.global(global, ty);
        }
        if name.starts_with('%') {
            return self.special(name, ty);
        }
        undefined(name)
    }

    /// The address of a local name, with an optional offset.
    fn symbol(&mut self, name: &str, found: &Name<'a>, ty: ScalarType) -> Parsed<Operand> {
        let (base, offset, element) = match *found {
            Name::KernelParam { slot, element_bytes } => {
                (Base::KernelParam, slot.offset, element_bytes)
            }
            Name::Frame { slot, element_bytes, .. } => (Base::Frame, slot.offset, element_bytes),
            Name::Variable(id) => (Base::Variable(id), 0, self.element_bytes(id)),
            Name::Reg(_)
            | Name::Vector(..)
            | Name::Prototype(_)
            | Name::Branches(_)
            | Name::Calls(_) => {
                return operand_error(format!("{} is not a value", shorten(name)));
            }
        };
        self.address_value(base, i64::from(offset), element, ty)
    }

    fn global(&mut self, global: Symbol, ty: ScalarType) -> Parsed<Operand> {
        match global {
            Symbol::Variable(id) => {
                self.address_value(Base::Variable(id), 0, self.element_bytes(id), ty)
            }
            Symbol::Function(id) if ty.bytes() == 8 => Ok(Operand::Function(id)),
            Symbol::Function(_) => operand_error("the address of a function needs 64 bits"),
        }
    }

    fn element_bytes(&self, id: VarId) -> u32 {
        self.shared.module.variable(id).map_or(1, |variable| variable.element_bytes)
    }

    fn address_value(
        &mut self,
        base: Base,
        start: i64,
        element_bytes: u32,
        ty: ScalarType,
    ) -> Parsed<Operand> {
        if !matches!(ty.bytes(), 4 | 8) || ty.float().is_some() {
            return operand_error("an address needs an integer type of 32 or 64 bits");
        }
        let address = Address { base, offset: start.wrapping_add(self.offset()?) };
        if !self.at(b'[') {
            return Ok(Operand::Address(address));
        }
        let element = self.index(address, element_bytes)?;
        match element.base {
            Base::Reg(reg) if ty.bytes() == 8 => Ok(Operand::Reg(reg)),
            Base::Reg(reg) => Ok(Operand::Reg(self.low_half(reg)?)),
            _ => Ok(Operand::Address(element)),
        }
    }

    /// `+ 4`, `- 4`, `+ -4` or nothing.
    pub(super) fn offset(&mut self) -> Parsed<i64> {
        if self.at(b'+') || self.at(b'-') {
            return Ok(low_i64(self.constant_int()?));
        }
        Ok(0)
    }

    fn special(&mut self, name: &'a str, ty: ScalarType) -> Parsed<Operand> {
        let dim = if let Token::Dotted(component) = self.token {
            self.advance()?;
            Some(match component {
                "x" | "r" => Some(Dim::X),
                "y" | "g" => Some(Dim::Y),
                "z" | "b" => Some(Dim::Z),
                "w" | "a" => None,
                _ => return undefined(name),
            })
        } else {
            None
        };
        if !matches!(ty.bytes(), 2 | 4 | 8) && ty != ScalarType::Pred {
            return operand_error("a special register in an instruction of this type");
        }
        special_register(name, dim).ok_or_else(|| ParseErrorKind::UndefinedName(name.to_owned()))
    }

    /// `[base + offset]`, and the space that the name in it implies.
    pub(super) fn address(&mut self, space: Space) -> Parsed<(Address, Space)> {
        if !self.accept(b'[')? {
            return self.element_address(space);
        }
        let result = self.address_inner(space)?;
        self.expect(b']')?;
        Ok(result)
    }

    fn address_inner(&mut self, space: Space) -> Parsed<(Address, Space)> {
        if self.at_constant() {
            let offset = low_i64(self.constant_int()?);
            return Ok((Address { base: Base::Absolute, offset }, self.private(space)));
        }
        let name = self.word()?;
        let (base, start, actual) = match self.body.find(name)? {
            Some(Name::Reg(reg)) => self.register_base(reg, space)?,
            Some(Name::Vector(first, count)) => {
                let reg = self.component(first, count)?;
                self.register_base(reg, space)?
            }
            Some(Name::KernelParam { slot, .. }) => (Base::KernelParam, slot.offset, Space::Param),
            Some(Name::Frame { slot, param, .. }) => {
                let own = if param { Space::Param } else { Space::Local };
                if space != own && space != Space::Generic {
                    return operand_error(format!("{} lies in another space", shorten(name)));
                }
                let offset = i64::from(slot.offset).wrapping_add(self.offset()?);
                return Ok((Address { base: Base::Frame, offset }, Space::Local));
            }
            Some(Name::Variable(id)) => self.variable_base(id),
            Some(Name::Prototype(_) | Name::Branches(_) | Name::Calls(_)) => {
                return operand_error(format!("{} is not an address", shorten(name)));
            }
            None => match self.refer(name) {
                Some(Symbol::Variable(id)) => self.variable_base(id),
                Some(Symbol::Function(_)) => {
                    return operand_error(format!("{} is a function", shorten(name)));
                }
                None => return undefined(name),
            },
        };
        if actual != space && space != Space::Generic && !matches!(base, Base::Reg(_)) {
            return operand_error(format!("{} lies in another space", shorten(name)));
        }
        let offset = i64::from(start).wrapping_add(self.offset()?);
        Ok((Address { base, offset }, actual))
    }

    fn register_base(&self, reg: Reg, space: Space) -> Parsed<(Base, u32, Space)> {
        if !matches!(self.body.width(reg), Width::B32 | Width::B64) {
            return operand_error("an address needs a register of 32 or 64 bits");
        }
        Ok((Base::Reg(reg), 0, self.private(space)))
    }

    /// `.param` of a device function lies in its frame, whose addresses are local ones.
    pub(super) fn private(&self, space: Space) -> Space {
        match (space, self.body.kind) {
            (Space::Param, FunctionKind::Device) => Space::Local,
            _ => space,
        }
    }

    fn variable_base(&self, id: VarId) -> (Base, u32, Space) {
        let space = self.shared.module.variable(id).map_or(Space::Generic, |v| v.space);
        (Base::Variable(id), 0, space)
    }

    /// `p`, `!p` or a literal.
    pub(super) fn pred(&mut self) -> Parsed<Pred> {
        if let Token::Int(value) = self.token {
            self.advance()?;
            return Ok(Pred::Const(value != 0));
        }
        if self.at(b'-') {
            return Ok(Pred::Const(self.constant_int()? != 0));
        }
        let guard = self.guard()?;
        Ok(Pred::Reg { reg: guard.reg, negated: guard.negated })
    }

    /// `p` or `!p`.
    pub(super) fn guard(&mut self) -> Parsed<Guard> {
        let negated = self.accept(b'!')?;
        let reg = self.dst(Width::Pred)?;
        Ok(Guard { reg, negated })
    }

    /// `{a, b, …}` or a vector register or (for one) a plain register; `_` discards.
    pub(super) fn dst_vector(&mut self, width: Width, fit: Fit) -> Parsed<Vec<Option<Reg>>> {
        if let Some(all) = self.whole_vector()? {
            for &reg in &all {
                self.check_width(reg, width, fit)?;
            }
            return Ok(all.into_iter().map(Some).collect());
        }
        if !self.accept(b'{')? {
            return Ok(vec![self.dst_or_sink(width, fit)?]);
        }
        let mut all = Vec::new();
        loop {
            all.push(self.dst_or_sink(width, fit)?);
            if !self.more(all.len())? {
                return Ok(all);
            }
        }
    }

    /// `{a, b, …}` or a vector register or one value.
    pub(super) fn src_vector(&mut self, ty: ScalarType, fit: Fit) -> Parsed<Vec<Operand>> {
        if let Some(all) = self.whole_vector()? {
            for &reg in &all {
                self.check_width(reg, ty.width(), fit)?;
            }
            return Ok(all.into_iter().map(Operand::Reg).collect());
        }
        if !self.accept(b'{')? {
            return Ok(vec![self.value(ty, fit)?]);
        }
        let mut all = Vec::new();
        loop {
            all.push(self.value(ty, fit)?);
            if !self.more(all.len())? {
                return Ok(all);
            }
        }
    }

    /// Whether another element of a brace list follows.
    pub(super) fn more(&mut self, count: usize) -> Parsed<bool> {
        if self.accept(b',')? {
            if count >= MAX_VECTOR {
                let limit = MAX_VECTOR as u64;
                return Err(ParseErrorKind::Limit { what: "length of a vector", limit });
            }
            return Ok(true);
        }
        self.expect(b'}')?;
        Ok(false)
    }

    /// All components, if a vector register comes next without a component.
    pub(super) fn whole_vector(&mut self) -> Parsed<Option<Vec<Reg>>> {
        let Token::Word(name) = self.token else { return Ok(None) };
        let Some(Name::Vector(first, count)) = self.body.find(name)? else { return Ok(None) };
        let mut ahead = self.lexer.clone();
        if matches!(ahead.next(), Ok((Token::Dotted(_), _))) {
            return Ok(None);
        }
        self.advance()?;
        Ok(Some((0..u32::from(count)).map(|i| Reg(first.0 + i)).collect()))
    }

    /// `, 5` within a range.
    pub(super) fn small(&mut self, least: u64, most: u64) -> Parsed<u64> {
        let value = self.constant()?;
        let Constant::Int(value) = value else { return operand_error("an integer is needed") };
        u64::try_from(value)
            .ok()
            .filter(|v| (least..=most).contains(v))
            .ok_or_else(|| ParseErrorKind::Operand(format!("not between {least} and {most}")))
    }

    /// An 8-bit `mov` and similar: bits of a constant for the register that receives it.
    pub(super) fn widen(bits: u64, ty: ScalarType, width: Width) -> u64 {
        let shift = 64 - 8 * ty.bytes().min(8);
        let extended = if ty.is_signed() {
            ((bits << shift).cast_signed() >> shift).cast_unsigned()
        } else {
            bits
        };
        truncate(extended, width)
    }
}

/// Two's complement of 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "offsets wrap at 64 bits")]
pub(super) const fn low_i64(value: i128) -> i64 {
    value as i64
}

fn special_register(name: &str, dim: Option<Option<Dim>>) -> Option<Operand> {
    use SpecialReg as S;
    let constant = |value| Some(Operand::Imm(value));
    let Some(dim) = dim else {
        return Some(Operand::Special(match name {
            "%laneid" => S::LaneId,
            "%warpid" => S::WarpId,
            "%nwarpid" => S::NwarpId,
            "%smid" => S::SmId,
            "%nsmid" => S::NsmId,
            "%gridid" => S::GridId,
            "%lanemask_eq" => S::LaneMaskEq,
            "%lanemask_le" => S::LaneMaskLe,
            "%lanemask_lt" => S::LaneMaskLt,
            "%lanemask_ge" => S::LaneMaskGe,
            "%lanemask_gt" => S::LaneMaskGt,
            "%clock" => S::Clock,
            "%clock_hi" => S::ClockHi,
            "%clock64" => S::Clock64,
            "%globaltimer" => S::GlobalTimer,
            "%globaltimer_lo" => S::GlobalTimerLo,
            "%globaltimer_hi" => S::GlobalTimerHi,
            "%envreg1" => S::GridWorkspaceHigh,
            "%envreg2" => S::GridWorkspaceLow,
            "%dynamic_smem_size" => S::DynamicSmemSize,
            "%total_smem_size" | "%aggr_smem_size" => S::TotalSmemSize,
            // A launch without clusters is one of clusters of one block.
            "%cluster_ctarank"
            | "%is_explicit_cluster"
            | "%reserved_smem_offset_begin"
            | "%reserved_smem_offset_end"
            | "%reserved_smem_offset_cap"
            | "%current_graph_exec" => {
                return constant(0);
            }
            "%cluster_nctarank" => return constant(1),
            _ => return environment(name).then_some(Operand::Imm(0)),
        }));
    };
    let Some(dim) = dim else {
        // The fourth component: counts are 1, indices 0.
        return match name {
            "%tid" | "%ctaid" | "%clusterid" | "%cluster_ctaid" => constant(0),
            "%ntid" | "%nctaid" | "%nclusterid" | "%cluster_nctaid" => constant(1),
            _ => None,
        };
    };
    Some(Operand::Special(match name {
        "%tid" => S::Tid(dim),
        "%ntid" => S::Ntid(dim),
        "%ctaid" | "%clusterid" => S::Ctaid(dim),
        "%nctaid" | "%nclusterid" => S::Nctaid(dim),
        "%cluster_ctaid" => return constant(0),
        "%cluster_nctaid" => return constant(1),
        _ => return None,
    }))
}

/// Environment registers and performance counters read as zero.
fn environment(name: &str) -> bool {
    let number = name.strip_prefix("%envreg").or_else(|| name.strip_prefix("%pm"));
    number.is_some_and(|n| n.parse::<u8>().is_ok_and(|n| n < 32))
}
