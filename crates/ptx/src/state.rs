//! Kernels that leave something behind in a variable of their module.
//!
//! What a kernel writes to a `.global` variable the next launch of any kernel of the module finds
//! there. A kernel that must compute from its arguments alone, wherever it runs, must not do that.
//! [`written_variables`] finds those that may: it follows the address of each variable through
//! registers, frames and calls to stores and atomic operations. An address that comes out of memory
//! other than a frame (a pointer in a variable, or in a buffer) is not followed, so that a kernel
//! that is not named may still do it that way.
//!
//! ```
//! let text = b".version 7.5\n.target sm_75\n.address_size 64\n.global .u32 counter;
//!     .visible .entry count() { red.global.add.u32 [counter], 1; ret; }
//!     .visible .entry idle() { ret; }";
//! let written = weft_ptx::state::written_variables(&weft_ptx::parse(text)?);
//! assert_eq!(written["count"], "counter");
//! assert!(!written.contains_key("idle"));
//! # Ok::<(), weft_ptx::ParseError>(())
//! ```

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the arms list the instructions that move addresses, or write to them"
)]

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{
    Address, Base, Call, CallArg, CallTarget, FuncId, Function, Instr, Module, Op, Operand, Param,
    ParamPlace, Reg, Space, VarId, Width,
};
use crate::slice::decide::{Facts, calls_of, pointer_targets};
use crate::slice::registers::{reads, writes};

/// Rounds of the data flow. Code in the order of its execution takes two or three, and one more for
/// each call on the way; a text that takes more is believed.
const ROUNDS_MAX: usize = 64;

/// For each kernel that may write a `.global` variable of its module, the name of one of those.
#[must_use]
pub fn written_variables(module: &Module) -> BTreeMap<String, String> {
    let mut flow = Flow::new(module);
    for _ in 0..ROUNDS_MAX {
        flow.changed = false;
        for (id, function) in (0u32..).zip(&module.functions) {
            flow.pass(id, function);
        }
        if !flow.changed {
            break;
        }
    }
    let written = module.kernels().filter_map(|(id, kernel)| {
        let variable = module.variable(flow.written_from(id.0)?)?;
        Some((kernel.name.clone(), variable.name.clone()))
    });
    written.collect()
}

/// Which variable's address may stand where in a function. Of several the first one found stays.
#[derive(Debug, Default)]
struct Known {
    registers: BTreeMap<Reg, VarId>,
    /// By the offset in the frame, in bytes.
    frame: BTreeMap<u32, VarId>,
    /// A variable that the function itself writes.
    written: Option<VarId>,
}

struct Flow<'a> {
    module: &'a Module,
    facts: Vec<Facts>,
    /// Functions that a pointer may lead to.
    targets: BTreeSet<u32>,
    known: Vec<Known>,
    changed: bool,
}

impl<'a> Flow<'a> {
    fn new(module: &'a Module) -> Self {
        let facts: Vec<Facts> = module.functions.iter().map(calls_of).collect();
        let targets = pointer_targets(module, &facts);
        let known = module.functions.iter().map(|_| Known::default()).collect();
        Self { module, facts, targets, known, changed: false }
    }

    /// What the function, or one that it may call, writes.
    fn written_from(&self, first: u32) -> Option<VarId> {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![first]);
        while let Some(id) = todo.pop() {
            let Some((known, facts)) = self.known.get(id as usize).zip(self.facts.get(id as usize))
            else {
                continue;
            };
            if !seen.insert(id) {
                continue;
            }
            if known.written.is_some() {
                return known.written;
            }
            todo.extend(&facts.calls);
            if facts.indirect {
                todo.extend(&self.targets);
            }
        }
        None
    }

    /// Looks at all instructions of a function once.
    fn pass(&mut self, id: u32, function: &Function) {
        for instr in function.body.iter().flatten() {
            match &instr.op {
                Op::Ld { space: Space::Local, ty, dst, addr, .. } => {
                    for (place, reg) in (0u32..).zip(dst) {
                        let at = frame_offset(*addr, place * ty.bytes());
                        let found = at.and_then(|at| self.of(id)?.frame.get(&at).copied());
                        if let (Some(reg), Some(found)) = (reg, found) {
                            self.hold(id, function, *reg, found);
                        }
                    }
                }
                Op::St { space: Space::Local, ty, addr, src, .. } => {
                    for (place, value) in (0u32..).zip(src) {
                        let at = frame_offset(*addr, place * ty.bytes());
                        if let (Some(at), Some(found)) = (at, self.operand(id, value)) {
                            self.keep(id, at, found);
                        }
                    }
                }
                Op::St { space, addr, .. }
                | Op::Atom { space, addr, .. }
                | Op::WmmaStore { space, addr, .. }
                    if matches!(space, Space::Global | Space::Generic) =>
                {
                    if let Some(variable) = self.address(id, *addr) {
                        self.write(id, variable);
                    }
                }
                Op::Call(call) => self.call(id, function, call),
                op if carries(op) => self.carry(id, function, instr),
                _ => {}
            }
        }
    }

    /// What an instruction computes from an address is one of the same variable.
    fn carry(&mut self, id: u32, function: &Function, instr: &Instr) {
        let named = if let Op::Mov { src, .. } = &instr.op { self.operand(id, src) } else { None };
        let held = || {
            let known = self.of(id)?;
            reads(instr).iter().find_map(|reg| known.registers.get(reg).copied())
        };
        if let Some(found) = named.or_else(held) {
            for reg in writes(&instr.op) {
                self.hold(id, function, reg, found);
            }
        }
    }

    /// Arguments go into the callee, results come out of it.
    fn call(&mut self, id: u32, function: &Function, call: &Call) {
        let targets = match &call.target {
            CallTarget::Direct(target) => vec![target.0],
            CallTarget::Indirect { candidates, .. } if candidates.is_empty() => {
                self.targets.iter().copied().collect()
            }
            CallTarget::Indirect { candidates, .. } => candidates.iter().map(|id| id.0).collect(),
        };
        for target in targets {
            let Some(callee) = self.module.function(FuncId(target)) else { continue };
            for (argument, parameter) in call.args.iter().zip(&callee.params) {
                for (offset, found) in self.argument(id, argument) {
                    self.enter(target, callee, parameter, offset, found);
                }
            }
            for (result, parameter) in call.returns.iter().zip(&callee.returns) {
                for (offset, found) in self.result(target, parameter) {
                    match result {
                        CallArg::Slot(slot) => self.keep(id, slot.offset + offset, found),
                        CallArg::Value { value: Operand::Reg(reg), .. } => {
                            self.hold(id, function, *reg, found);
                        }
                        CallArg::Value { .. } => {}
                    }
                }
            }
        }
    }

    /// Addresses in an argument, by their offsets in it.
    fn argument(&self, id: u32, argument: &CallArg) -> Vec<(u32, VarId)> {
        match argument {
            CallArg::Slot(slot) => self.in_frame(id, slot.offset, slot.bytes),
            CallArg::Value { value, .. } => {
                self.operand(id, value).map(|found| (0, found)).into_iter().collect()
            }
        }
    }

    fn result(&self, id: u32, result: &Param) -> Vec<(u32, VarId)> {
        match result.place {
            ParamPlace::Offset(offset) => self.in_frame(id, offset, result.size_bytes),
            ParamPlace::Register(reg) => {
                let found = self.of(id).and_then(|known| known.registers.get(&reg).copied());
                found.map(|found| (0, found)).into_iter().collect()
            }
        }
    }

    fn in_frame(&self, id: u32, offset: u32, bytes: u32) -> Vec<(u32, VarId)> {
        let Some(known) = self.of(id) else { return Vec::new() };
        let range = known.frame.range(offset..offset.saturating_add(bytes));
        range.map(|(at, found)| (at - offset, *found)).collect()
    }

    fn enter(&mut self, id: u32, callee: &Function, parameter: &Param, at: u32, found: VarId) {
        match parameter.place {
            ParamPlace::Offset(offset) => self.keep(id, offset.saturating_add(at), found),
            ParamPlace::Register(reg) => self.hold(id, callee, reg, found),
        }
    }

    fn of(&self, id: u32) -> Option<&Known> {
        self.known.get(id as usize)
    }

    fn operand(&self, id: u32, operand: &Operand) -> Option<VarId> {
        match operand {
            Operand::Reg(reg) => self.of(id)?.registers.get(reg).copied(),
            Operand::Address(address) => self.address(id, *address),
            Operand::Imm(_) | Operand::Special(_) | Operand::Function(_) => None,
        }
    }

    /// The variable that an address may lie in.
    fn address(&self, id: u32, address: Address) -> Option<VarId> {
        match address.base {
            Base::Reg(reg) => self.of(id)?.registers.get(&reg).copied(),
            Base::Variable(variable) => {
                let found = self.module.variable(variable)?;
                (found.space == Space::Global).then_some(variable)
            }
            Base::Frame | Base::KernelParam | Base::Absolute => None,
        }
    }

    fn hold(&mut self, id: u32, function: &Function, reg: Reg, found: VarId) {
        // No other register holds an address; the carry flag is none.
        let wide = matches!(function.width(reg), Width::B32 | Width::B64 | Width::B128);
        let Some(known) = self.known.get_mut(id as usize).filter(|_| wide) else { return };
        self.changed |= !known.registers.contains_key(&reg);
        known.registers.entry(reg).or_insert(found);
    }

    fn keep(&mut self, id: u32, at: u32, found: VarId) {
        let Some(known) = self.known.get_mut(id as usize) else { return };
        self.changed |= !known.frame.contains_key(&at);
        known.frame.entry(at).or_insert(found);
    }

    fn write(&mut self, id: u32, variable: VarId) {
        let Some(known) = self.known.get_mut(id as usize) else { return };
        self.changed |= known.written.is_none();
        known.written.get_or_insert(variable);
    }
}

/// Where in the frame an access lies, `further` bytes on; none if it is not by the frame's base.
fn frame_offset(address: Address, further: u32) -> Option<u32> {
    let at = address.offset.checked_add(i64::from(further))?;
    (address.base == Base::Frame).then(|| u32::try_from(at).ok()).flatten()
}

/// Instructions whose result may be an address because an operand is one.
const fn carries(op: &Op) -> bool {
    matches!(
        op,
        Op::Mov { .. }
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Cvt { .. }
            | Op::CvtaTo { .. }
            | Op::CvtaFrom { .. }
            | Op::IntBinary { .. }
            | Op::Mad { .. }
            | Op::AddCarry { .. }
            | Op::MadCarry { .. }
            | Op::BitBinary { .. }
            | Op::Lop3 { .. }
            | Op::Selp { .. }
            | Op::Slct { .. }
            | Op::Shfl { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What kernel `k` writes.
    fn written(functions: &str, body: &str) -> Option<String> {
        let text = format!(
            ".version 7.5\n.target sm_75\n.address_size 64\n.global .align 8 .b8 state[64];\n\
             .global .align 4 .u32 table[4] = {{1, 2, 3, 4}};\n.const .u32 fixed[4];\n\
             .shared .b32 s;\n{functions}\n.visible .entry k(.param .u64 out) {{ .reg .pred %p<4>; \
             .reg .b32 %r<8>; .reg .b64 %a<8>;\n.local .align 8 .b8 l[16];\n{body}\nret; }}"
        );
        let module = crate::parse(text.as_bytes()).unwrap();
        written_variables(&module).remove("k")
    }

    fn is_written(functions: &str, body: &str) {
        assert_eq!(written(functions, body).as_deref(), Some("state"), "{body}");
    }

    fn is_not_written(functions: &str, body: &str) {
        assert_eq!(written(functions, body), None, "{body}");
    }

    #[test]
    fn stores_and_atomic_operations_write() {
        is_written("", "st.global.u32 [state+4], %r1;");
        is_written("", "atom.global.add.u32 %r1, [state], 1;");
        is_written("", "@%p1 red.global.max.u32 [state], %r1;");
        is_written("", "mov.u64 %a1, state;\nst.global.u32 [%a1], %r1;");
        let computed = "mov.u64 %a1, state;\ncvta.global.u64 %a2, %a1;\n\
                        mad.wide.u32 %a3, %r1, 4, %a2;\nst.u32 [%a3], %r1;";
        is_written("", computed);
        // In whatever order the code stands.
        let backwards = "bra B;\nA: st.global.u32 [%a2], %r1;\nret;\nB: add.s64 %a2, %a1, 8;\n\
                         mov.u64 %a1, state;\nbra A;";
        is_written("", backwards);
    }

    #[test]
    fn what_only_reads_a_variable_or_writes_elsewhere_does_not() {
        is_not_written("", "ld.global.u32 %r1, [state];");
        is_not_written("", "st.shared.u32 [s], %r1;");
        let lookup = "mov.u64 %a1, table;\nmul.wide.u32 %a2, %r1, 4;\nadd.s64 %a3, %a1, %a2;\n\
                      ld.global.u32 %r2, [%a3];\nld.param.u64 %a4, [out];\n\
                      st.global.u32 [%a4], %r2;";
        is_not_written("", lookup);
        // The address itself is a value like any other.
        is_not_written("", "mov.u64 %a1, state;\nld.param.u64 %a4, [out];\nst.u64 [%a4], %a1;");
        // A comparison with an address has no address.
        let compared = "mov.u64 %a1, state;\nld.param.u64 %a4, [out];\n\
                        setp.eq.s64 %p1, %a1, %a4;\nselp.b64 %a5, %a4, 0, %p1;\n\
                        st.global.u32 [%a5], 1;";
        is_not_written("", compared);
    }

    #[test]
    fn addresses_pass_through_frames_and_calls() {
        let kept = "mov.u64 %a1, state;\nst.local.u64 [l+8], %a1;\nld.local.u64 %a2, [l+8];\n\
                    st.u32 [%a2], %r1;";
        is_written("", kept);
        let beside = "mov.u64 %a1, state;\nst.local.u64 [l+8], %a1;\nld.local.u64 %a2, [l];\n\
                      st.u32 [%a2], %r1;";
        is_not_written("", beside);
        let store = ".func f(.param .u64 p) { .reg .b64 %b<2>;\nld.param.u64 %b1, [p];\n\
                     st.u32 [%b1], 1;\nret; }";
        let call = |from: &str| {
            format!("{from}\n{{ .param .b64 q; st.param.b64 [q], %a1; call f, (q); }}\n")
        };
        is_written(store, &call("mov.u64 %a1, state;"));
        is_not_written(store, &call("ld.param.u64 %a1, [out];"));
        // A function's own write counts for the kernels that reach it, and for no others.
        let own = ".func g() { st.global.u32 [state], 1; ret; }\n.func f() { call g; ret; }";
        is_written(own, "call f;");
        is_not_written(own, "");
        let where_from = ".func (.param .u64 r) f() { .reg .b64 %b<2>;\nmov.u64 %b1, state;\n\
                          st.param.u64 [r], %b1;\nret; }";
        let used = "{ .param .b64 q; call (q), f; ld.param.b64 %a1, [q]; }\nst.u32 [%a1], 1;";
        is_written(where_from, used);
    }

    #[test]
    fn the_format_of_a_message_is_no_state() {
        let printf = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);";
        let said = "mov.u64 %a1, table;\ncvta.global.u64 %a2, %a1;\n\
                    { .param .b64 f; st.param.b64 [f], %a2; .param .b64 v; st.param.b64 [v], 0;\n\
                    .param .b32 r; call (r), vprintf, (f, v); ld.param.b32 %r1, [r]; }\n\
                    ld.param.u64 %a4, [out];\nst.global.u32 [%a4], %r1;";
        is_not_written(printf, said);
    }
}
