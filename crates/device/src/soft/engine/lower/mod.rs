//! From the typed representation of a module to micro-operations.
//!
//! Registers become rows: one file of 32-bit rows (8 and 16 bits zero-extended), one of 64-bit rows
//! (128 bits take two), one of predicates. What does not change during a launch — immediates,
//! kernel parameters, most special registers — becomes a row that is written once, and a register
//! that is only ever such a value is that row.

mod convert;
mod float;
mod flow;
mod function;
mod int;
mod matrix;
mod memory;
mod operand;
mod video;
mod warp;
mod words;

use std::collections::HashMap;

use weft_ptx::ir::{Function, FunctionKind, Module, Symbol, VarId};

use self::function::FunctionLowering;
use super::address::FUNCTION_WINDOW;
use super::handler::Level;
use super::program::{Builtin, FunctionMeta, Program};

/// Why a module cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}, line {line}: {text}: {why}")]
pub(crate) struct LowerError {
    pub(crate) function: String,
    pub(crate) line: u32,
    pub(crate) text: String,
    pub(crate) why: String,
}

/// Where the module's variables lie.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// Address of each variable in its own space (shared ones: offset in the block's memory).
    pub(crate) addresses: HashMap<VarId, u64>,
}

impl Layout {
    pub(crate) fn address(&self, var: VarId) -> u64 {
        self.addresses.get(&var).copied().unwrap_or(0)
    }

    /// The address of a symbol in its own space.
    pub(crate) fn symbol(&self, symbol: Symbol) -> u64 {
        match symbol {
            Symbol::Variable(var) => self.address(var),
            Symbol::Function(function) => FUNCTION_WINDOW + u64::from(function.0),
        }
    }
}

/// Lowers all functions of a linked module.
pub(crate) fn lower(
    module: &Module,
    layout: &Layout,
    texts: Vec<String>,
    level: Level,
) -> Result<Program, LowerError> {
    let mut program = Program { texts, ..Program::default() };
    for (index, function) in module.functions.iter().enumerate() {
        let meta = signature(function, index);
        program.functions.push(meta);
    }
    for (index, function) in module.functions.iter().enumerate() {
        if let Some(body) = &function.body {
            let lowering =
                FunctionLowering::new(&mut program, module, layout, level, index as u32, function);
            lowering.lower(body)?;
        }
    }
    Ok(program)
}

fn signature(function: &Function, _: usize) -> FunctionMeta {
    let builtin = if function.body.is_some() {
        None
    } else {
        match function.name.as_str() {
            "vprintf" => Some(Builtin::Printf),
            "malloc" => Some(Builtin::Malloc),
            "free" => Some(Builtin::Free),
            "__assertfail" => Some(Builtin::AssertFail),
            _ => None,
        }
    };
    let callable =
        function.kind == FunctionKind::Device && (function.body.is_some() || builtin.is_some());
    let rows = operand::Rows::of(function);
    let home = |p: &weft_ptx::ir::Param| rows.home(function, p);
    FunctionMeta {
        name: function.name.clone(),
        builtin,
        callable,
        frame_bytes: function.frame_bytes.next_multiple_of(16),
        params: if function.kind == FunctionKind::Device {
            function.params.iter().map(home).collect()
        } else {
            Vec::new()
        },
        returns: function.returns.iter().map(home).collect(),
        text: function.text,
        ..FunctionMeta::default()
    }
}
