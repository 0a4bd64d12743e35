//! Lowering of one function: its rows, its code, its jumps.

use std::collections::HashMap;

use weft_ptx::ir::{Function, FunctionKind, Guard, Instr, Module, Op as Ir, Operand, Reg, Space};

use super::super::control;
use super::super::handler::{Handler, Level, Op};
use super::super::program::{ConstRow, Lifetime, Program, RowValue, Source};
use super::super::warp::ROWS_MAX;
use super::operand::Rows;
use super::words::{WORDS, Words};
use super::{Layout, LowerError};
use crate::soft::memory::tlb::SLOTS;

/// Why an instruction was not lowered.
#[derive(Clone, Debug)]
pub(super) struct Refusal(pub(super) String);

impl Refusal {
    pub(super) fn new(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// What an operation's jump field must become.
#[derive(Clone, Copy, Debug)]
enum Fixup {
    /// `Op::d` of this operation.
    Target { op: usize, instr: u32 },
    /// This word of the lists.
    List { word: usize, instr: u32 },
}

/// One function on its way.
pub(super) struct FunctionLowering<'a> {
    pub(super) program: &'a mut Program,
    pub(super) module: &'a Module,
    pub(super) layout: &'a Layout,
    level: Level,
    index: u32,
    pub(super) function: &'a Function,
    pub(super) rows: Rows,
    /// Registers that are constants of the launch.
    pub(super) known: HashMap<Reg, RowValue>,
    consts: HashMap<(RowValue, bool), u32>,
    const_rows: Vec<ConstRow>,
    temps32: Temps,
    temps64: Temps,
    temp_preds: Temps,
    labels: Vec<u32>,
    fixups: Vec<Fixup>,
    line: u32,
    /// First operation since the last jump: what a jump costs.
    block_start: usize,
    slot: u32,
}

/// Rows for intermediate results, reused by the next instruction.
#[derive(Debug, Default)]
struct Temps {
    rows: Vec<u32>,
    used: usize,
}

impl Temps {
    fn take(&mut self, count: &mut u32) -> u32 {
        if self.used == self.rows.len() {
            self.rows.push(*count);
            *count += 1;
        }
        self.used += 1;
        self.rows[self.used - 1]
    }
}

impl<'a> FunctionLowering<'a> {
    pub(super) fn new(
        program: &'a mut Program,
        module: &'a Module,
        layout: &'a Layout,
        level: Level,
        index: u32,
        function: &'a Function,
    ) -> Self {
        let block_start = program.ops.len();
        Self {
            program,
            module,
            layout,
            level,
            index,
            function,
            rows: Rows::of(function),
            known: HashMap::new(),
            consts: HashMap::new(),
            const_rows: Vec::new(),
            temps32: Temps::default(),
            temps64: Temps::default(),
            temp_preds: Temps::default(),
            labels: Vec::new(),
            fixups: Vec::new(),
            line: function.line,
            block_start,
            slot: 0,
        }
    }

    pub(super) fn lower(mut self, body: &[Instr]) -> Result<(), LowerError> {
        let entry = self.program.ops.len() as u32;
        self.find_constants(body);
        for instr in body {
            self.labels.push(self.program.ops.len() as u32);
            self.line = instr.line;
            if let Err(Refusal(why)) = self.instruction(instr) {
                return Err(self.error(why));
            }
        }
        self.labels.push(self.program.ops.len() as u32);
        self.end();
        if self.rows.count32.max(self.rows.count64) as usize > ROWS_MAX {
            return Err(self.error(format!("more than {ROWS_MAX} registers")));
        }
        self.resolve();
        self.const_rows.sort_by_key(|r| r.value.lifetime() != Lifetime::Launch);
        let moving =
            self.const_rows.iter().take_while(|r| r.value.lifetime() == Lifetime::Launch).count();
        self.program.uses_grid_workspace |=
            self.const_rows.iter().any(|r| matches!(r.value, RowValue::GridWorkspace { .. }));
        let meta = &mut self.program.functions[self.index as usize];
        meta.entry = entry;
        meta.end = self.program.ops.len() as u32;
        meta.rows32 = self.rows.count32;
        meta.rows64 = self.rows.count64;
        meta.preds = self.rows.preds;
        meta.consts = self.const_rows;
        meta.moving = moving;
        Ok(())
    }

    fn error(&self, why: String) -> LowerError {
        let text = self
            .program
            .texts
            .get(self.function.text as usize)
            .and_then(|t| t.lines().nth((self.line as usize).saturating_sub(1)))
            .map(|l| l.trim().to_owned())
            .unwrap_or_default();
        LowerError { function: self.function.name.clone(), line: self.line, text, why }
    }

    pub(super) fn is_kernel(&self) -> bool {
        self.function.kind == FunctionKind::Kernel
    }

    /// What follows the last instruction: a return.
    pub(super) fn end(&mut self) {
        if self.is_kernel() {
            self.emit::<control::Exit>(WORDS);
        } else {
            self.emit::<control::Return>(WORDS);
        }
    }

    fn resolve(&mut self) {
        for fixup in &self.fixups {
            match *fixup {
                Fixup::Target { op, instr } => {
                    self.program.ops[op].d = self.labels[instr as usize];
                }
                Fixup::List { word, instr } => {
                    self.program.lists[word] = self.labels[instr as usize];
                }
            }
        }
    }

    /// Finds registers that are written once, with a constant of the launch.
    fn find_constants(&mut self, body: &[Instr]) {
        let mut writes: HashMap<Reg, u32> = HashMap::new();
        for instr in body {
            instr.op.for_each_written(|reg| *writes.entry(reg).or_default() += 1);
        }
        for param in self.function.params.iter().chain(&self.function.returns) {
            if let weft_ptx::ir::ParamPlace::Register(reg) = param.place {
                *writes.entry(reg).or_default() += 2;
            }
        }
        for instr in body {
            if instr.guard.is_some() {
                continue;
            }
            if let Some((reg, value)) = self.constant(&instr.op)
                && writes.get(&reg) == Some(&1)
            {
                self.known.insert(reg, value);
            }
        }
    }

    /// The register and value if an instruction loads a constant of the launch.
    fn constant(&self, op: &Ir) -> Option<(Reg, RowValue)> {
        match op {
            Ir::Mov { width, dst, src } => {
                let plain = matches!(width, weft_ptx::ir::Width::B32 | weft_ptx::ir::Width::B64);
                let value = self.value_of(*src).filter(|_| plain)?;
                Some((*dst, value))
            }
            Ir::CvtaTo { space: Space::Global | Space::Const, dst, a }
            | Ir::CvtaFrom { space: Space::Global | Space::Const, dst, a } => {
                let wide = self.is_wide(*dst);
                self.value_of(*a).filter(|_| wide).map(|v| (*dst, v))
            }
            Ir::Ld { space: Space::Param, ty, dst, addr, .. } => {
                let [Some(dst)] = dst.as_slice() else { return None };
                if addr.base != weft_ptx::ir::Base::KernelParam {
                    return None;
                }
                super::memory::param_value(addr.offset, *ty, self.function.width(*dst))
                    .map(|v| (*dst, v))
            }
            _ => None,
        }
    }

    fn instruction(&mut self, instr: &Instr) -> Result<(), Refusal> {
        self.temps32.used = 0;
        self.temps64.used = 0;
        self.temp_preds.used = 0;
        if let Some((reg, _)) = self.constant(&instr.op)
            && self.known.contains_key(&reg)
            && instr.guard.is_none()
        {
            return Ok(());
        }
        let Some(guard) = instr.guard else { return self.op(&instr.op) };
        if let Ir::Bra { target, .. } = instr.op {
            self.branch(guard, target);
            return Ok(());
        }
        let at = self.program.ops.len();
        let inverted = u32::from(guard.negated);
        self.emit::<control::Guard>(WORDS.a(self.rows.row(guard.reg)).c(inverted));
        self.op(&instr.op)?;
        let emitted = self.program.ops.len() - at - 1;
        if emitted == 0 {
            self.program.ops.pop();
            self.program.sources.pop();
        } else if emitted > 1 || self.is_control(&instr.op) {
            let op = Op {
                exec: self.level.exec::<control::Branch>(),
                d: self.program.ops.len() as u32,
                a: self.rows.row(guard.reg),
                b: 1,
                c: inverted ^ 1,
                imm: 0,
            };
            self.program.ops[at] = op;
        }
        Ok(())
    }

    /// Whether an operation must not stand under a guard operation.
    fn is_control(&self, op: &Ir) -> bool {
        match op {
            Ir::Ret => !self.is_kernel(),
            Ir::Call(_) | Ir::Barrier { .. } | Ir::BrxIdx { .. } | Ir::Nanosleep { .. } => true,
            _ => false,
        }
    }

    fn cost(&mut self) -> u32 {
        let cost = self.program.ops.len() - self.block_start;
        self.block_start = self.program.ops.len();
        cost.max(1) as u32
    }

    fn branch(&mut self, guard: Guard, target: u32) {
        let cost = self.cost();
        self.fixups.push(Fixup::Target { op: self.program.ops.len(), instr: target });
        let row = self.rows.row(guard.reg);
        self.emit::<control::Branch>(WORDS.a(row).b(cost).c(u32::from(guard.negated)));
    }

    pub(super) fn jump(&mut self, target: u32) {
        let cost = self.cost();
        self.fixups.push(Fixup::Target { op: self.program.ops.len(), instr: target });
        self.emit::<control::Jump>(WORDS.b(cost));
    }

    /// A list of jump targets.
    pub(super) fn target_list(&mut self, targets: &[u32]) -> u32 {
        let start = self.program.lists.len();
        for (i, instr) in targets.iter().enumerate() {
            self.fixups.push(Fixup::List { word: start + i, instr: *instr });
            self.program.lists.push(0);
        }
        start as u32
    }

    /// A list of words; its place.
    pub(super) fn list(&mut self, words: &[u32]) -> u32 {
        let start = self.program.lists.len();
        self.program.lists.extend_from_slice(words);
        start as u32
    }

    /// Emits an operation.
    pub(super) fn emit<H: Handler>(&mut self, words: Words) {
        let exec = self.level.exec::<H>();
        let Words { d, a, b, c, imm } = words;
        self.program.ops.push(Op { exec, d, a, b, c, imm });
        self.program.sources.push(Source { line: self.line, function: self.index });
    }

    /// Emits `d = H(operands)` where all rows have 32 bits; operands become `a`, `b`, `c`.
    pub(super) fn all32<H: Handler>(
        &mut self,
        dst: Reg,
        operands: &[Operand],
        imm: u64,
    ) -> Result<(), Refusal> {
        let mut rows = [0; 3];
        for (row, operand) in rows.iter_mut().zip(operands) {
            *row = self.r32(*operand)?;
        }
        self.emit::<H>(WORDS.d(self.dst(dst)).a(rows[0]).b(rows[1]).c(rows[2]).imm(imm));
        Ok(())
    }

    /// Emits `d = H(operands)` where all rows have 64 bits.
    pub(super) fn all64<H: Handler>(
        &mut self,
        dst: Reg,
        operands: &[Operand],
        imm: u64,
    ) -> Result<(), Refusal> {
        let mut rows = [0; 3];
        for (row, operand) in rows.iter_mut().zip(operands) {
            *row = self.r64(*operand)?;
        }
        self.emit::<H>(WORDS.d(self.dst(dst)).a(rows[0]).b(rows[1]).c(rows[2]).imm(imm));
        Ok(())
    }

    pub(super) fn temp32(&mut self) -> u32 {
        self.temps32.take(&mut self.rows.count32)
    }

    pub(super) fn temp64(&mut self) -> u32 {
        self.temps64.take(&mut self.rows.count64)
    }

    pub(super) fn temp_pred(&mut self) -> u32 {
        self.temp_preds.take(&mut self.rows.preds)
    }

    pub(super) fn const32(&mut self, value: RowValue) -> u32 {
        let value = match value {
            RowValue::Bits(bits) => RowValue::Bits(bits & 0xffff_ffff),
            other => other,
        };
        if let Some(row) = self.consts.get(&(value, false)) {
            return *row;
        }
        let row = self.rows.count32;
        self.rows.count32 += 1;
        self.consts.insert((value, false), row);
        self.const_rows.push(ConstRow { row, wide: false, value });
        row
    }

    pub(super) fn const64(&mut self, value: RowValue) -> u32 {
        if let Some(row) = self.consts.get(&(value, true)) {
            return *row;
        }
        let row = self.rows.count64;
        self.rows.count64 += 1;
        self.consts.insert((value, true), row);
        self.const_rows.push(ConstRow { row, wide: true, value });
        row
    }

    /// The next translation slot.
    pub(super) fn tlb_slot(&mut self) -> u32 {
        self.slot = (self.slot + 1) % SLOTS as u32;
        self.slot
    }
}
