//! Branches, calls, exits.

use super::Mods;
use crate::error::ParseErrorKind;
use crate::ir::{
    Call, CallArg, CallTarget, FuncId, FunctionKind, Op, Operand, Param, Prototype, Reg,
    ScalarType, Slot, Symbol, Width,
};
use crate::lexer::Token;
use crate::parser::operand::Fit;
use crate::parser::scope::Name;
use crate::parser::{MAX_TARGETS, Parsed, Parser, operand_error, undefined};

/// `_` in place of a result, until the callee says how long it is.
const DISCARDED: Slot = Slot { offset: u32::MAX, bytes: 0 };

impl<'a> Parser<'a> {
    pub(super) fn control(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let uniform = m.flag("uni");
        match m.opcode() {
            "bra" => {
                m.finish()?;
                let label = self.word()?;
                self.body.jump(label, 0, self.line)?;
                Ok(Op::Bra { target: 0, uniform })
            }
            "brx" => self.brx(m, uniform),
            "call" => {
                m.finish()?;
                self.call(uniform)
            }
            "nanosleep" => {
                let ty = m.ty()?;
                m.check(ty == ScalarType::U32)?;
                m.finish()?;
                Ok(Op::Nanosleep { duration_ns: self.value(ty, Fit::Exact)? })
            }
            "griddepcontrol" | "pmevent" | "setmaxnreg" => {
                self.skip_operands()?;
                Ok(Op::Nop)
            }
            other => {
                m.finish()?;
                Ok(match other {
                    "ret" => Op::Ret,
                    "exit" => Op::Exit,
                    "trap" => Op::Trap,
                    _ => Op::Brkpt,
                })
            }
        }
    }

    /// Takes entries of a target list from the bound on all of them.
    fn take_targets(&mut self, count: usize) -> Parsed<()> {
        let left = u32::try_from(count).ok().and_then(|n| self.targets_left.checked_sub(n));
        let Some(left) = left else {
            let limit = u64::from(MAX_TARGETS);
            return Err(ParseErrorKind::Limit { what: "number of branch or call targets", limit });
        };
        self.targets_left = left;
        Ok(())
    }

    fn brx(&mut self, m: Mods<'_, 'a>, uniform: bool) -> Parsed<Op> {
        let by_index = m.flag("idx");
        m.check(by_index)?;
        m.finish()?;
        let index = self.dst(Width::B32)?;
        self.comma()?;
        let list = self.word()?;
        let Some(Name::Branches(labels)) = self.body.find(list)? else { return undefined(list) };
        self.take_targets(labels.len())?;
        for (i, label) in labels.iter().enumerate() {
            self.body.jump(label, i, self.line)?;
        }
        Ok(Op::BrxIdx { index, targets: vec![0; labels.len()], uniform })
    }

    /// `(result), function, (arguments), prototype`; all but the function optional.
    fn call(&mut self, uniform: bool) -> Parsed<Op> {
        let mut returns = Vec::new();
        if self.at(b'(') {
            returns = self.call_list()?;
            if returns
                .iter()
                .any(|place| matches!(place, CallArg::Value { value: Operand::Imm(_), .. }))
            {
                return operand_error("a constant where a result goes");
            }
            self.comma()?;
        }
        let name = self.word()?;
        let mut args = Vec::new();
        let mut last = None;
        if self.accept(b',')? {
            if self.at(b'(') {
                args = self.call_list()?;
                if self.accept(b',')? {
                    last = Some(self.word()?);
                }
            } else {
                last = Some(self.word()?);
            }
        }
        let target = match self.body.find(name)? {
            Some(Name::Reg(pointer)) => self.indirect(pointer, last)?,
            Some(_) => return operand_error(format!("{name} is not a function")),
            None => match self.refer(name) {
                Some(Symbol::Function(id)) => CallTarget::Direct(id),
                Some(Symbol::Variable(_)) => {
                    return operand_error(format!("{name} is not a function"));
                }
                None => return undefined(name),
            },
        };
        self.finish_call(&target, &mut args, &mut returns)?;
        Ok(Op::Call(Box::new(Call { target, args, returns, uniform })))
    }

    fn call_list(&mut self) -> Parsed<Vec<CallArg>> {
        self.expect(b'(')?;
        let mut all = Vec::new();
        if self.accept(b')')? {
            return Ok(all);
        }
        loop {
            match self.whole_vector()? {
                Some(elements) => {
                    all.extend(elements.into_iter().map(|reg| self.register_arg(reg)));
                }
                None => all.push(self.call_arg()?),
            }
            if !self.accept(b',')? {
                self.expect(b')')?;
                return Ok(all);
            }
        }
    }

    /// A `.param` variable, register or constant. The size of a constant follows from the callee.
    fn call_arg(&mut self) -> Parsed<CallArg> {
        if self.at_constant() {
            let value = Operand::Imm(self.constant()?.bits(ScalarType::B64)?);
            return Ok(CallArg::Value { value, bytes: 0 });
        }
        let name = self.word()?;
        if name == "_" {
            return Ok(CallArg::Slot(DISCARDED));
        }
        match self.body.find(name)? {
            Some(Name::Frame { slot, .. }) => Ok(CallArg::Slot(slot)),
            Some(Name::Vector(first, count)) => {
                let reg = self.component(first, count)?;
                Ok(self.register_arg(reg))
            }
            Some(Name::Reg(reg)) => {
                let width = self.body.width(reg);
                if width == Width::B128 {
                    return operand_error(format!("a {width:?} register is not an argument"));
                }
                Ok(self.register_arg(reg))
            }
            Some(_) => operand_error(format!("{name} is not an argument")),
            None => undefined(name),
        }
    }

    fn register_arg(&self, reg: Reg) -> CallArg {
        let bytes = self.body.width(reg).bits().div_ceil(8);
        CallArg::Value { value: Operand::Reg(reg), bytes }
    }

    fn indirect(&mut self, pointer: Reg, last: Option<&'a str>) -> Parsed<CallTarget> {
        if self.body.width(pointer) != Width::B64 {
            return operand_error("a function pointer needs 64 bits");
        }
        let Some(label) = last else {
            return operand_error("an indirect call needs a prototype or list of targets");
        };
        let (mut prototype, mut candidates) = (None, Vec::new());
        match self.body.find(label)? {
            Some(Name::Prototype(index)) => prototype = Some(index),
            Some(Name::Calls(names)) => {
                self.take_targets(names.len())?;
                for name in names.iter() {
                    match self.refer(name) {
                        Some(Symbol::Function(id)) => candidates.push(id),
                        Some(Symbol::Variable(_)) | None => return undefined(name),
                    }
                }
            }
            Some(_) | None => return undefined(label),
        }
        Ok(CallTarget::Indirect { pointer, prototype, candidates })
    }

    /// Checks counts and sizes against what is called.
    fn finish_call(
        &mut self,
        target: &CallTarget,
        args: &mut [CallArg],
        returns: &mut [CallArg],
    ) -> Parsed<()> {
        let signature = match target {
            CallTarget::Direct(id) => self.signature(*id)?,
            CallTarget::Indirect { prototype: Some(index), .. } => {
                let index = usize::try_from(*index).unwrap_or(usize::MAX);
                self.body.prototypes.get(index).cloned().unwrap_or_default()
            }
            CallTarget::Indirect { candidates, .. } => match candidates.first() {
                Some(&id) => self.signature(id)?,
                None => return operand_error("an empty list of targets"),
            },
        };
        for (place, &(bytes, align)) in returns.iter_mut().zip(&signature.returns) {
            if *place == CallArg::Slot(DISCARDED) {
                *place = CallArg::Slot(self.body.reserve(bytes, align)?);
            }
        }
        fit(args, &signature.params, "arguments")?;
        fit(returns, &signature.returns, "results")
    }

    fn signature(&self, id: FuncId) -> Parsed<Prototype> {
        let Some(function) = self.shared.module.function(id) else {
            return operand_error("a call of nothing");
        };
        if function.kind == FunctionKind::Kernel {
            return operand_error("a call of a kernel");
        }
        let sizes = |all: &[Param]| all.iter().map(|p| (p.size_bytes, p.align)).collect();
        Ok(Prototype { params: sizes(&function.params), returns: sizes(&function.returns) })
    }

    /// Whether the token that comes next is a predicate, negated or not.
    pub(super) fn at_pred(&mut self) -> Parsed<bool> {
        if self.at(b'!') {
            return Ok(true);
        }
        let Token::Word(name) = self.token else { return Ok(false) };
        Ok(match self.body.find(name)? {
            Some(Name::Reg(reg)) => self.body.width(reg) == Width::Pred,
            _ => false,
        })
    }
}

fn fit(actual: &mut [CallArg], formal: &[(u32, u32)], what: &str) -> Parsed<()> {
    if actual.len() != formal.len() {
        let (n, m) = (actual.len(), formal.len());
        return operand_error(format!("{n} {what} where {m} are needed"));
    }
    for (arg, &(size, _)) in actual.iter_mut().zip(formal) {
        let bytes = match arg {
            CallArg::Value { value: Operand::Imm(_), bytes } if matches!(size, 1 | 2 | 4 | 8) => {
                *bytes = size;
                size
            }
            CallArg::Value { bytes, .. } => *bytes,
            CallArg::Slot(slot) => slot.bytes,
        };
        if bytes != size {
            return operand_error(format!("{what}: {bytes} bytes where {size} are needed"));
        }
    }
    Ok(())
}
