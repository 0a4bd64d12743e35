//! Which kernels may run in pieces, and what of a text they consist of.

use std::collections::{BTreeMap, BTreeSet};

use super::Refusal;
use super::waits::{observes_memory, waiting_line};
use crate::error::ParseErrorKind;
use crate::ir::{
    BUILTIN_FUNCTIONS, Call, CallTarget, FuncId, Function, Module, Op, Operand, Space, Symbol,
};
use crate::scan::{Mark, Scan, Unit, marks};

/// The most bytes of parameters that every device takes.
const PARAM_BYTES_MAX: u32 = 4096;

/// What the analysis knows of a function.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) calls: BTreeSet<u32>,
    /// Calls through a pointer whose targets are not listed.
    pub(crate) indirect: bool,
    /// Functions whose address it takes.
    takes: BTreeSet<u32>,
    /// Reads `%ctaid` or `%nctaid`.
    reads_ids: bool,
    /// Why no kernel that reaches it may be sliced.
    refusal: Option<Refusal>,
}

/// A kernel that may be sliced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Approved {
    pub(super) name: String,
    /// Device functions that it reaches, by name, and that (or whose callees) read block ids.
    pub(super) functions: BTreeSet<String>,
}

/// Decides over every kernel of a text with a body.
pub(super) fn decide(
    text: &[u8],
    module: &Module,
    scan: &Scan<'_>,
) -> Result<BTreeMap<String, Result<Approved, Refusal>>, ParseErrorKind> {
    let analysis = Analysis::new(text, module, scan)?;
    let kernels = module.kernels();
    Ok(kernels.map(|(id, kernel)| (kernel.name.clone(), analysis.kernel(id, kernel))).collect())
}

/// What kernels have in common, so that it is found out once: a text may have many of them.
struct Analysis<'a> {
    module: &'a Module,
    facts: Vec<Facts>,
    debug_info: bool,
    /// Functions whose address is taken anywhere.
    pointer_targets: BTreeSet<u32>,
    /// Functions that, or whose callees, read block ids.
    need_ids: BTreeSet<u32>,
    /// Why no kernel that reaches a function may be sliced.
    refusals: BTreeMap<u32, Refusal>,
}

impl<'a> Analysis<'a> {
    fn new(text: &[u8], module: &'a Module, scan: &Scan<'_>) -> Result<Self, ParseErrorKind> {
        let facts = facts(text, module, scan)?;
        let pointer_targets = pointer_targets(module, &facts);
        let callers = callers(&facts, &pointer_targets);
        let with = |test: &dyn Fn(u32, &Facts) -> bool| {
            let own = (0u32..).zip(&facts).filter(|(id, facts)| test(*id, facts));
            closure(own.map(|(id, _)| id), &callers)
        };
        let need_ids = with(&|_, facts| facts.reads_ids);
        let observers = with(&|id, _| module.function(FuncId(id)).is_some_and(observes_memory));
        let mut analysis = Self {
            module,
            facts,
            debug_info: scan.debug_info,
            pointer_targets,
            need_ids,
            refusals: BTreeMap::new(),
        };
        let stateful = stateful_functions(module);
        let refusals = (0u32..).map(FuncId).zip(&module.functions).filter_map(|(id, function)| {
            Some((id.0, analysis.refusal(id.0, function, &stateful, &observers)?))
        });
        analysis.refusals = refusals.collect();
        Ok(analysis)
    }

    fn facts(&self, id: u32) -> Option<&Facts> {
        self.facts.get(id as usize)
    }

    fn kernel(&self, id: FuncId, kernel: &Function) -> Result<Approved, Refusal> {
        if self.debug_info {
            return Err(Refusal::DebugInfo);
        }
        let range_end = kernel.param_bytes.next_multiple_of(4) + super::RANGE_BYTES;
        if range_end > PARAM_BYTES_MAX {
            return Err(Refusal::Parameters);
        }
        let reached = self.reach(id.0);
        if let Some(refusal) = reached.iter().find_map(|id| self.refusals.get(id)) {
            return Err(refusal.clone());
        }
        // A pointer may come from anywhere, so the function behind it cannot be exchanged.
        let by_pointer = reached.iter().filter_map(|id| self.facts(*id)).any(|f| f.indirect);
        if by_pointer && let Some(target) = self.pointer_targets.intersection(&self.need_ids).next()
        {
            return Err(Refusal::Pointer(self.name(*target)));
        }
        let functions = reached.intersection(&self.need_ids).filter(|other| **other != id.0);
        Ok(Approved {
            name: kernel.name.clone(),
            functions: functions.map(|id| self.name(*id)).collect(),
        })
    }

    /// What forbids slicing in one function.
    fn refusal(
        &self,
        id: u32,
        function: &Function,
        stateful: &BTreeSet<&str>,
        observers: &BTreeSet<u32>,
    ) -> Option<Refusal> {
        let name = &function.name;
        if !function.is_defined() {
            let known = BUILTIN_FUNCTIONS.contains(&name.as_str());
            return (!known).then(|| Refusal::Elsewhere(name.clone()));
        }
        if let Some(refusal) = self.facts(id).and_then(|facts| facts.refusal.clone()) {
            return Some(refusal);
        }
        if stateful.contains(name.as_str()) {
            return Some(Refusal::OwnState(name.clone()));
        }
        let observes = |call: &Call| match call.target {
            CallTarget::Direct(id) => observers.contains(&id.0),
            CallTarget::Indirect { .. } => true,
        };
        let line = waiting_line(function, &observes)?;
        Some(Refusal::Waits { function: name.clone(), line })
    }

    fn name(&self, id: u32) -> String {
        self.module.function(FuncId(id)).map(|f| f.name.clone()).unwrap_or_default()
    }

    /// The function and everything that it may call.
    fn reach(&self, first: u32) -> BTreeSet<u32> {
        let mut seen = BTreeSet::new();
        let mut todo = vec![first];
        while let Some(id) = todo.pop() {
            if !seen.insert(id) {
                continue;
            }
            let Some(facts) = self.facts(id) else { continue };
            todo.extend(&facts.calls);
            if facts.indirect {
                todo.extend(&self.pointer_targets);
            }
        }
        seen
    }
}

/// Functions whose address is taken anywhere.
pub(crate) fn pointer_targets(module: &Module, facts: &[Facts]) -> BTreeSet<u32> {
    let relocations = module.variables.iter().flat_map(|v| &v.init.relocations);
    let in_data = relocations.filter_map(|relocation| match relocation.symbol {
        Symbol::Function(id) => Some(id.0),
        Symbol::Variable(_) => None,
    });
    facts.iter().flat_map(|facts| facts.takes.iter().copied()).chain(in_data).collect()
}

/// For each function that is called, its callers. Those through pointers call every target.
fn callers(facts: &[Facts], pointer_targets: &BTreeSet<u32>) -> BTreeMap<u32, Vec<u32>> {
    let mut callers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut indirect = Vec::new();
    for (id, facts) in (0u32..).zip(facts) {
        for callee in &facts.calls {
            callers.entry(*callee).or_default().push(id);
        }
        if facts.indirect {
            indirect.push(id);
        }
    }
    for target in pointer_targets {
        callers.entry(*target).or_default().extend(&indirect);
    }
    callers
}

/// The functions and everybody who may come to call them.
fn closure(first: impl Iterator<Item = u32>, callers: &BTreeMap<u32, Vec<u32>>) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    let mut todo: Vec<u32> = first.collect();
    while let Some(id) = todo.pop() {
        if seen.insert(id) {
            todo.extend(callers.get(&id).into_iter().flatten());
        }
    }
    seen
}

/// Names before `$number$` in names of `.global` variables: functions that declare such variables,
/// of which a copy of the function would have copies.
fn stateful_functions(module: &Module) -> BTreeSet<&str> {
    let globals = module.variables.iter().filter(|variable| variable.space == Space::Global);
    let names = globals.flat_map(|variable| {
        let name = variable.name.as_str();
        name.match_indices('$').filter_map(move |(at, _)| {
            let (number, _) = name.get(at + 1..)?.split_once('$')?;
            number.parse::<u32>().ok().and_then(|_| name.get(..at))
        })
    });
    names.collect()
}

fn facts(text: &[u8], module: &Module, scan: &Scan<'_>) -> Result<Vec<Facts>, ParseErrorKind> {
    let mut all: Vec<Facts> = module.functions.iter().map(calls_of).collect();
    let by_name: BTreeMap<&str, usize> =
        module.functions.iter().enumerate().map(|(id, f)| (f.name.as_str(), id)).collect();
    for unit in &scan.units {
        let id = by_name.get(unit.name);
        let Some(facts) = id.and_then(|id| all.get_mut(*id)) else { continue };
        read_marks(text, unit, facts)?;
    }
    Ok(all)
}

pub(crate) fn calls_of(function: &Function) -> Facts {
    let mut facts = Facts::default();
    for instr in function.body.iter().flatten() {
        if let Op::Call(call) = &instr.op {
            match &call.target {
                CallTarget::Direct(id) => {
                    facts.calls.insert(id.0);
                }
                CallTarget::Indirect { candidates, .. } => {
                    facts.calls.extend(candidates.iter().map(|id| id.0));
                    facts.indirect |= candidates.is_empty();
                }
            }
        }
        if let Op::Mov { src: Operand::Function(id), .. } = &instr.op {
            facts.takes.insert(id.0);
        }
        if let Op::St { src, .. } = &instr.op {
            facts.takes.extend(src.iter().filter_map(|src| match src {
                Operand::Function(id) => Some(id.0),
                Operand::Reg(_) | Operand::Imm(_) | Operand::Special(_) | Operand::Address(_) => {
                    None
                }
            }));
        }
    }
    facts
}

/// What the words of a function tell.
fn read_marks(text: &[u8], unit: &Unit<'_>, facts: &mut Facts) -> Result<(), ParseErrorKind> {
    for (_, mark) in marks(text, unit.directives.start..unit.body.end)? {
        let refusal = match mark {
            Mark::BlockId(_) | Mark::GridSize(_) => {
                facts.reads_ids = true;
                None
            }
            Mark::Vector => Some(Refusal::Vector),
            Mark::Word("%gridid") => Some(Refusal::GridId),
            Mark::Word(word) if word.starts_with("%envreg") => Some(Refusal::GridSync),
            Mark::Word(word) => {
                (word.starts_with('%') && word.contains("cluster")).then_some(Refusal::Cluster)
            }
            Mark::Dotted(word) => word.contains("cluster").then_some(Refusal::Cluster),
        };
        if facts.refusal.is_none() {
            facts.refusal = refusal;
        }
    }
    Ok(())
}
