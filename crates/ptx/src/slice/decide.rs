//! Which kernels may run in pieces, and what of a text they consist of.

use std::collections::{BTreeMap, BTreeSet};

use super::Refusal;
use super::scan::{Mark, Scan, Unit, marks};
use super::waits::{observes_memory, waiting_line};
use crate::error::ParseErrorKind;
use crate::ir::{
    BUILTIN_FUNCTIONS, Call, CallTarget, FuncId, Function, Module, Op, Operand, Space, Symbol,
};

/// The most bytes of parameters that every device takes.
const PARAM_BYTES_MAX: u32 = 4096;

/// What the analysis knows of a function.
#[derive(Debug, Default)]
struct Facts {
    calls: BTreeSet<u32>,
    /// Calls through a pointer whose targets are not listed.
    indirect: bool,
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
    let facts = facts(text, module, scan)?;
    let analysis = Analysis { module, facts, debug_info: scan.debug_info };
    let kernels = module.kernels();
    Ok(kernels.map(|(id, kernel)| (kernel.name.clone(), analysis.kernel(id, kernel))).collect())
}

struct Analysis<'a> {
    module: &'a Module,
    facts: Vec<Facts>,
    debug_info: bool,
}

impl Analysis<'_> {
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
        for &function in &reached {
            self.function(function)?;
        }
        // A pointer may come from anywhere, so the function behind it cannot be exchanged.
        let by_pointer = reached.iter().filter_map(|id| self.facts(*id)).any(|f| f.indirect);
        if by_pointer
            && let Some(target) = self.pointer_targets().into_iter().find(|to| self.needs_ids(*to))
        {
            return Err(Refusal::Pointer(self.name(target)));
        }
        let functions = reached.iter().filter(|other| **other != id.0 && self.needs_ids(**other));
        Ok(Approved {
            name: kernel.name.clone(),
            functions: functions.map(|id| self.name(*id)).collect(),
        })
    }

    /// What forbids slicing in one function.
    fn function(&self, id: u32) -> Result<(), Refusal> {
        let Some(function) = self.module.function(FuncId(id)) else { return Ok(()) };
        if !function.is_defined() {
            if BUILTIN_FUNCTIONS.contains(&function.name.as_str()) {
                return Ok(());
            }
            return Err(Refusal::Elsewhere(function.name.clone()));
        }
        if let Some(refusal) = self.facts(id).and_then(|facts| facts.refusal.clone()) {
            return Err(refusal);
        }
        if self.has_own_state(&function.name) {
            return Err(Refusal::OwnState(function.name.clone()));
        }
        let observes = |call: &Call| self.call_observes(call);
        match waiting_line(function, &observes) {
            Some(line) => Err(Refusal::Waits { function: function.name.clone(), line }),
            None => Ok(()),
        }
    }

    /// Whether a `.global` variable is declared inside the function: a copy of the function would
    /// have a copy of it.
    fn has_own_state(&self, function: &str) -> bool {
        self.module.variables.iter().any(|variable| {
            let rest = variable.name.strip_prefix(function).and_then(|rest| rest.strip_prefix('$'));
            let number = rest.and_then(|rest| Some(rest.split_once('$')?.0));
            variable.space == Space::Global
                && number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }

    /// Whether anything that a call reaches reads what other blocks may write.
    fn call_observes(&self, call: &Call) -> bool {
        let CallTarget::Direct(id) = call.target else { return true };
        let reached = self.reach(id.0);
        let own = |id: &u32| self.module.function(FuncId(*id)).is_some_and(observes_memory);
        reached.iter().any(own)
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
                todo.extend(self.pointer_targets());
            }
        }
        seen
    }

    /// Functions whose address is taken anywhere.
    fn pointer_targets(&self) -> BTreeSet<u32> {
        let relocations = self.module.variables.iter().flat_map(|v| &v.init.relocations);
        let in_data = relocations.filter_map(|relocation| match relocation.symbol {
            Symbol::Function(id) => Some(id.0),
            Symbol::Variable(_) => None,
        });
        self.facts.iter().flat_map(|facts| facts.takes.iter().copied()).chain(in_data).collect()
    }

    /// Whether a function or something that it calls reads block ids.
    fn needs_ids(&self, id: u32) -> bool {
        self.reach(id).iter().any(|id| self.facts(*id).is_some_and(|facts| facts.reads_ids))
    }
}

fn facts(text: &[u8], module: &Module, scan: &Scan<'_>) -> Result<Vec<Facts>, ParseErrorKind> {
    let mut all: Vec<Facts> = module.functions.iter().map(calls_of).collect();
    for unit in &scan.units {
        let id = module.functions.iter().position(|f| f.name == unit.name);
        let Some(facts) = id.and_then(|id| all.get_mut(id)) else { continue };
        read_marks(text, unit, facts)?;
    }
    Ok(all)
}

fn calls_of(function: &Function) -> Facts {
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
