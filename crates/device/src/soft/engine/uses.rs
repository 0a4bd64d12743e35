//! Which shared variables each kernel can reach.

use std::collections::BTreeSet;

use weft_ptx::ir::{
    Address, Base, CallArg, CallTarget, Function, FunctionKind, Module, Op, Operand, Space, VarId,
};

/// Most functions, calls and variables that are looked at: a fraction of a second.
const STEPS_MAX: u64 = 1 << 24;

/// For each kernel (by function) the shared variables that it or its callees name; `None` when
/// finding out would take too long.
pub(crate) fn shared_of_kernels(module: &Module) -> Option<Vec<(u32, BTreeSet<VarId>)>> {
    let own: Vec<Uses> = module.functions.iter().map(|f| Uses::of(module, f)).collect();
    let functions = (0u32..).zip(&module.functions);
    let device = functions.filter(|(_, f)| f.kind == FunctionKind::Device).map(|(i, _)| i);
    let device: Vec<u32> = device.collect();
    let mut walk = Walk { seen: vec![0; own.len()], own, device, left: STEPS_MAX };
    let kernels = (1u32..).zip(module.kernels());
    kernels.map(|(n, (id, _))| Some((id.0, walk.from(id.0, n)?))).collect()
}

/// A walk along calls, kernel by kernel.
struct Walk {
    own: Vec<Uses>,
    /// All device functions.
    device: Vec<u32>,
    /// The last walk that met each function.
    seen: Vec<u32>,
    /// Steps that may still be made.
    left: u64,
}

impl Walk {
    /// What kernel number `number` reaches.
    fn from(&mut self, kernel: u32, number: u32) -> Option<BTreeSet<VarId>> {
        let mut todo = vec![kernel];
        let mut shared = BTreeSet::new();
        let mut indirect = false;
        while let Some(function) = todo.pop() {
            let Some(seen) = self.seen.get_mut(function as usize) else { continue };
            if std::mem::replace(seen, number) == number {
                continue;
            }
            let uses = &self.own[function as usize];
            let first = uses.indirect && !std::mem::replace(&mut indirect, true);
            let reached: &[u32] = if first { &self.device } else { &[] };
            let steps = 1 + uses.shared.len() + uses.calls.len() + reached.len();
            self.left = self.left.checked_sub(steps as u64)?;
            shared.extend(&uses.shared);
            todo.extend(&uses.calls);
            todo.extend(reached);
        }
        Some(shared)
    }
}

#[derive(Debug, Default)]
struct Uses {
    shared: BTreeSet<VarId>,
    calls: BTreeSet<u32>,
    /// Calls through a pointer: any device function.
    indirect: bool,
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

    /// Operands of any integer instruction may be addresses.
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
        let mut operands = |all: &[Operand]| all.iter().for_each(|o| self.operand(module, *o));
        match op {
            Op::Mov { src, .. } | Op::Unpack { src, .. } => operands(&[*src]),
            Op::St { src, .. } | Op::Pack { src, .. } => operands(src),
            Op::Atom { b, c, .. } => operands(&[*b, c.unwrap_or(*b)]),
            Op::CvtaTo { a, .. }
            | Op::CvtaFrom { a, .. }
            | Op::Isspacep { a, .. }
            | Op::Cvt { a, .. }
            | Op::IntUnary { a, .. }
            | Op::BitUnary { a, .. }
            | Op::Bfind { a, .. } => operands(&[*a]),
            Op::IntBinary { a, b, .. }
            | Op::AddCarry { a, b, .. }
            | Op::MulWide { a, b, .. }
            | Op::BitBinary { a, b, .. }
            | Op::Shl { a, b, .. }
            | Op::Shr { a, b, .. }
            | Op::Selp { a, b, .. }
            | Op::Set { a, b, .. }
            | Op::Setp { a, b, .. }
            | Op::Match { a, mask: b, .. }
            | Op::Redux { a, mask: b, .. } => operands(&[*a, *b]),
            Op::Mad { a, b, c, .. }
            | Op::Mad24 { a, b, c, .. }
            | Op::MadCarry { a, b, c, .. }
            | Op::Sad { a, b, c, .. }
            | Op::Slct { a, b, c, .. }
            | Op::Lop3 { a, b, c, .. }
            | Op::Shf { a, b, c, .. }
            | Op::Prmt { a, b, c, .. }
            | Op::Shfl { a, b, c, .. }
            | Op::Bfe { a, b, c, .. }
            | Op::Bfi { a, b, c, .. }
            | Op::Dp4a { a, b, c, .. }
            | Op::Dp2a { a, b, c, .. } => operands(&[*a, *b, *c]),
            _ => {}
        }
    }
}
