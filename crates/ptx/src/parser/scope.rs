//! Names inside a function: nested blocks of registers, variables and labels; the frame.

use std::collections::HashMap;
use std::rc::Rc;

use super::{MAX_DEPTH, MAX_FRAME_BYTES, Parsed, Parser, undefined};
use crate::error::ParseErrorKind;
use crate::ir::{FunctionKind, Guard, Instr, Local, Op, Prototype, Reg, Slot, VarId, Width};

/// What a name inside a function denotes.
#[derive(Clone, Debug)]
pub(super) enum Name<'a> {
    /// A register.
    Reg(Reg),
    /// Registers of a vector: the first and their number.
    Vector(Reg, u8),
    /// A parameter of the kernel: offset and size in the parameter buffer.
    KernelParam { slot: Slot, element_bytes: u32 },
    /// A `.param` or `.local` variable in the frame.
    Frame { slot: Slot, param: bool, element_bytes: u32 },
    /// A hoisted variable.
    Variable(VarId),
    /// `.callprototype`, an index into the function's.
    Prototype(u32),
    /// `.branchtargets`
    Branches(Rc<[&'a str]>),
    /// `.calltargets`
    Calls(Rc<[&'a str]>),
}

/// What names of a range such as `%r<100>` denote.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ranged {
    /// Registers or (of more than one lane) vectors of them, which get their dense indices when
    /// they are first used.
    Registers { width: Width, lanes: u8 },
    /// Variables of that many bytes in the frame, one behind the other.
    Frame { first_offset: u32, bytes: u32, param: bool },
    /// Hoisted variables with consecutive ids.
    Variables { first: VarId },
}

#[derive(Debug)]
struct Range {
    count: u32,
    of: Ranged,
}

/// A jump whose label is not known yet.
#[derive(Debug)]
struct Jump<'a> {
    label: &'a str,
    instruction: usize,
    /// Which of the targets of `brx.idx`.
    index: usize,
    line: u32,
}

#[derive(Debug, Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Name<'a>>,
    ranges: HashMap<&'a str, Range>,
    labels: HashMap<&'a str, u32>,
    jumps: Vec<Jump<'a>>,
    /// Where the frame ended when the block began; `.param` space is reused after it.
    frame_end: u32,
}

/// State of the function being parsed.
#[derive(Debug)]
pub(super) struct Body<'a> {
    pub(super) name: &'a str,
    pub(super) kind: FunctionKind,
    pub(super) instructions: Vec<Instr>,
    pub(super) registers: Vec<Width>,
    pub(super) prototypes: Vec<Prototype>,
    pub(super) locals: Vec<Local>,
    pub(super) frame_bytes: u32,
    /// Size of the kernel's parameter buffer.
    pub(super) param_bytes: u32,
    /// Guard of the instruction being read.
    pub(super) guard: Option<Guard>,
    pub(super) frame_align: u32,
    scopes: Vec<Scope<'a>>,
    frame_end: u32,
}

impl Default for Body<'_> {
    fn default() -> Self {
        Self::new("", FunctionKind::Device)
    }
}

impl<'a> Body<'a> {
    pub(super) fn new(name: &'a str, kind: FunctionKind) -> Self {
        Self {
            name,
            kind,
            instructions: Vec::new(),
            registers: Vec::new(),
            prototypes: Vec::new(),
            locals: Vec::new(),
            frame_bytes: 0,
            param_bytes: 0,
            guard: None,
            frame_align: 8,
            scopes: vec![Scope::default()],
            frame_end: 0,
        }
    }

    fn scope(&mut self) -> Parsed<&mut Scope<'a>> {
        let what = ParseErrorKind::Unsupported("statement outside of a function".to_owned());
        self.scopes.last_mut().ok_or(what)
    }

    pub(super) fn open(&mut self) -> Parsed<()> {
        if self.scopes.len() >= MAX_DEPTH as usize {
            return Err(ParseErrorKind::Limit {
                what: "depth of blocks",
                limit: u64::from(MAX_DEPTH),
            });
        }
        self.scopes.push(Scope { frame_end: self.frame_end, ..Scope::default() });
        Ok(())
    }

    /// Reserves space of the frame until the end of the block.
    pub(super) fn reserve(&mut self, bytes: u32, align: u32) -> Parsed<Slot> {
        let end = self
            .frame_end
            .checked_next_multiple_of(align.max(1))
            .and_then(|offset| offset.checked_add(bytes))
            .filter(|&end| end <= MAX_FRAME_BYTES);
        let Some(end) = end else {
            return Err(ParseErrorKind::Limit {
                what: "size of local variables and parameters",
                limit: u64::from(MAX_FRAME_BYTES),
            });
        };
        self.frame_end = end;
        self.frame_bytes = self.frame_bytes.max(end);
        self.frame_align = self.frame_align.max(align);
        Ok(Slot { offset: end - bytes, bytes })
    }

    pub(super) fn declare(&mut self, name: &'a str, value: Name<'a>) -> Parsed<()> {
        let scope = self.scope()?;
        if scope.ranges.contains_key(name) || scope.names.insert(name, value).is_some() {
            return Err(ParseErrorKind::DuplicateName(super::shorten(name).to_owned()));
        }
        Ok(())
    }

    pub(super) fn declare_range(&mut self, name: &'a str, count: u32, of: Ranged) -> Parsed<()> {
        let scope = self.scope()?;
        if scope.ranges.insert(name, Range { count, of }).is_some() {
            return Err(ParseErrorKind::DuplicateName(super::shorten(name).to_owned()));
        }
        Ok(())
    }

    pub(super) fn new_register(&mut self, width: Width) -> Parsed<Reg> {
        let index = u32::try_from(self.registers.len()).map_err(|_| ParseErrorKind::Limit {
            what: "number of registers",
            limit: u64::from(u32::MAX),
        })?;
        self.registers.push(width);
        Ok(Reg(index))
    }

    pub(super) fn width(&self, reg: Reg) -> Width {
        let index = usize::try_from(reg.0).unwrap_or(usize::MAX);
        self.registers.get(index).copied().unwrap_or(Width::Pred)
    }

    /// What a name denotes in the innermost block that knows it.
    pub(super) fn find(&mut self, name: &'a str) -> Parsed<Option<Name<'a>>> {
        let mut fresh = None;
        for (depth, scope) in self.scopes.iter().enumerate().rev() {
            if let Some(found) = scope.names.get(name) {
                return Ok(Some(found.clone()));
            }
            if let Some(member) = scope.range(name) {
                fresh = Some((depth, member));
                break;
            }
        }
        let Some((depth, (index, of))) = fresh else { return Ok(None) };
        let found = match of {
            Ranged::Registers { width, lanes: 1 } => Name::Reg(self.new_register(width)?),
            Ranged::Registers { width, lanes } => {
                Name::Vector(self.new_vector(width, lanes)?, lanes)
            }
            Ranged::Frame { first_offset, bytes, param } => {
                let offset = first_offset.saturating_add(index.saturating_mul(bytes));
                Name::Frame { slot: Slot { offset, bytes }, param, element_bytes: bytes }
            }
            Ranged::Variables { first } => Name::Variable(VarId(first.0.saturating_add(index))),
        };
        if let Some(scope) = self.scopes.get_mut(depth) {
            scope.names.insert(name, found.clone());
        }
        Ok(Some(found))
    }

    /// The first of that many consecutive registers.
    pub(super) fn new_vector(&mut self, width: Width, lanes: u8) -> Parsed<Reg> {
        let first = self.new_register(width)?;
        for _ in 1..lanes {
            self.new_register(width)?;
        }
        Ok(first)
    }

    pub(super) fn label(&mut self, name: &'a str) -> Parsed<()> {
        let target = self.next_index()?;
        match self.scope()?.labels.insert(name, target) {
            None => Ok(()),
            Some(_) => Err(ParseErrorKind::DuplicateName(super::shorten(name).to_owned())),
        }
    }

    fn next_index(&self) -> Parsed<u32> {
        u32::try_from(self.instructions.len()).map_err(|_| ParseErrorKind::Limit {
            what: "number of instructions",
            limit: u64::from(u32::MAX),
        })
    }

    /// Notes that target `index` of the instruction that comes next is that label.
    pub(super) fn jump(&mut self, label: &'a str, index: usize, line: u32) -> Parsed<()> {
        let instruction = self.instructions.len();
        self.scope()?.jumps.push(Jump { label, instruction, index, line });
        Ok(())
    }

    fn patch(&mut self, jump: &Jump<'_>, to: u32) {
        let Some(instr) = self.instructions.get_mut(jump.instruction) else { return };
        if let Op::Bra { target, .. } = &mut instr.op {
            *target = to;
        } else if let Op::BrxIdx { targets, .. } = &mut instr.op
            && let Some(target) = targets.get_mut(jump.index)
        {
            *target = to;
        }
    }
}

impl Scope<'_> {
    /// Which member the name is of which range of this block, if it is of one.
    fn range(&self, name: &str) -> Option<(u32, Ranged)> {
        if self.ranges.is_empty() {
            return None;
        }
        // A prefix may itself end in digits: `%a1<4>` covers `%a13`, unless `%a<20>` does.
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count().min(10);
        (1..=digits).rev().find_map(|n| {
            let (prefix, number) = name.split_at_checked(name.len() - n)?;
            let range = self.ranges.get(prefix)?;
            let canonical = n == 1 || !number.starts_with('0');
            let index = number.parse::<u32>().ok()?;
            (canonical && index < range.count).then_some((index, range.of))
        })
    }
}

impl Parser<'_> {
    /// Closes a block: resolves jumps to its labels, hands others to the block around it.
    pub(super) fn close_scope(&mut self) -> Parsed<()> {
        let Some(scope) = self.body.scopes.pop() else { return Ok(()) };
        self.body.frame_end = scope.frame_end;
        let mut outer = Vec::new();
        for jump in scope.jumps {
            match scope.labels.get(jump.label) {
                Some(&to) => self.body.patch(&jump, to),
                None => outer.push(jump),
            }
        }
        if let Some(around) = self.body.scopes.last_mut() {
            around.jumps.append(&mut outer);
        } else if let Some(jump) = outer.first() {
            self.line = jump.line;
            return undefined(jump.label);
        }
        Ok(())
    }
}
