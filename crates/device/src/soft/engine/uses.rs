//! Which shared variables each kernel can reach.

use std::collections::BTreeSet;

use weft_ptx::ir::{
    Address, Base, CallArg, CallTarget, Function, FunctionKind, Module, Op, Operand, Space, VarId,
};

/// For each kernel (by function) the shared variables that it or its callees name.
pub(crate) fn shared_of_kernels(module: &Module) -> Vec<(u32, BTreeSet<VarId>)> {
    let own: Vec<Uses> = module.functions.iter().map(|f| Uses::of(module, f)).collect();
    let kernels = module.kernels().map(|(id, _)| id.0);
    kernels.map(|kernel| (kernel, reach(module, &own, kernel))).collect()
}

#[derive(Debug, Default)]
struct Uses {
    shared: BTreeSet<VarId>,
    calls: BTreeSet<u32>,
    /// Calls through a pointer: any device function.
    indirect: bool,
}

fn reach(module: &Module, own: &[Uses], kernel: u32) -> BTreeSet<VarId> {
    let mut seen = BTreeSet::new();
    let mut todo = vec![kernel];
    let mut shared = BTreeSet::new();
    while let Some(function) = todo.pop() {
        if !seen.insert(function) {
            continue;
        }
        let Some(uses) = own.get(function as usize) else { continue };
        shared.extend(&uses.shared);
        todo.extend(&uses.calls);
        if uses.indirect {
            let device = (0u32..)
                .zip(&module.functions)
                .filter(|(_, f)| f.kind == FunctionKind::Device)
                .map(|(i, _)| i);
            todo.extend(device);
        }
    }
    shared
}

impl Uses {
    fn of(module: &Module, function: &Function) -> Self {
        let mut uses = Self::default();
        for instr in function.body.iter().flatten() {
            if let Op::Call(call) = &instr.op {
                match &call.target {
                    CallTarget::Direct(id) => {
                        uses.calls.insert(id.0);
                    }
                    CallTarget::Indirect { .. } => uses.indirect = true,
                }
                for arg in call.args.iter().chain(&call.returns) {
                    if let CallArg::Value { value, .. } = arg {
                        uses.operand(module, *value);
                    }
                }
            }
            uses.instruction(module, &instr.op);
        }
        uses
    }

    fn base(&mut self, module: &Module, address: Address) {
        if let Base::Variable(id) = address.base
            && module.variable(id).is_some_and(|v| v.space == Space::Shared)
        {
            self.shared.insert(id);
        }
    }

    fn operand(&mut self, module: &Module, operand: Operand) {
        if let Operand::Address(address) = operand {
            self.base(module, address);
        }
    }

    /// Operands of any instruction may be addresses; moves, address arithmetic and accesses are
    /// where compilers put them.
    fn instruction(&mut self, module: &Module, op: &Op) {
        match op {
            Op::Ld { addr, .. }
            | Op::St { addr, .. }
            | Op::Atom { addr, .. }
            | Op::Ldmatrix { addr, .. }
            | Op::Stmatrix { addr, .. }
            | Op::WmmaLoad { addr, .. }
            | Op::WmmaStore { addr, .. } => self.base(module, *addr),
            Op::CpAsync { dst, src, .. } => {
                self.base(module, *dst);
                self.base(module, *src);
            }
            _ => {}
        }
        match op {
            Op::Mov { src, .. } => self.operand(module, *src),
            Op::St { src, .. } => src.iter().for_each(|o| self.operand(module, *o)),
            Op::CvtaTo { a, .. }
            | Op::CvtaFrom { a, .. }
            | Op::Cvt { a, .. }
            | Op::IntUnary { a, .. } => self.operand(module, *a),
            Op::IntBinary { a, b, .. }
            | Op::MulWide { a, b, .. }
            | Op::BitBinary { a, b, .. }
            | Op::Selp { a, b, .. }
            | Op::Setp { a, b, .. } => {
                self.operand(module, *a);
                self.operand(module, *b);
            }
            Op::Mad { a, b, c, .. } => {
                for operand in [a, b, c] {
                    self.operand(module, *operand);
                }
            }
            _ => {}
        }
    }
}
