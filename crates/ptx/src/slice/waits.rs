//! Loops that may wait for what another thread block does.
//!
//! A piece that waits for a block of a later piece waits for ever, so such kernels are not sliced.
//! The analysis errs on the side of finding waits: a loop *may wait* if one of its exits depends on
//! memory that other blocks may change while the loop runs. That is
//! * a load that is volatile or ordered, and the result of an atomic operation,
//! * a plain load whose address does not change in the loop (polling; compilers emit it for `cg`
//!   and `cv` loads and in hand-written code),
//! * in a loop with one of the former also what is read from shared or local memory, through which
//!   one thread of a block tells the others, and what a function returns that does any of these.
//!
//! One form is known to need nobody else: a retry of compare-and-swap that ends when the word still
//! held the value that the loop itself had read from it before.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the arms list the instructions that matter to a wait"
)]

use std::collections::{BTreeMap, BTreeSet};

use super::registers::{reads, writes};
use crate::cfg::Cfg;
use crate::ir::{
    AtomOp, Base, CacheHint, Call, CompareOp, Function, Instr, MemOrder, Op, Operand, Reg, Space,
};

/// Rounds of the data flow in one loop, and blocks in all loops of a function together (a block in
/// nested loops counts for each). Compilers stay far below; whoever exceeds them is refused.
const ROUNDS_MAX: usize = 64;
const LOOP_BLOCKS_MAX: usize = 1 << 20;

/// The line of the first loop of a function that may wait. `observes` says whether a call may look
/// at what other blocks write.
pub(super) fn waiting_line(function: &Function, observes: &dyn Fn(&Call) -> bool) -> Option<u32> {
    let body = function.body.as_deref()?;
    let cfg = Cfg::new(body);
    let Some(loops) = loops(&cfg) else { return Some(function.line) };
    loops.into_values().find_map(|blocks| {
        let inside: Vec<u32> = blocks
            .iter()
            .filter_map(|block| cfg.blocks.get(*block as usize))
            .flat_map(|block| block.start..block.end)
            .collect();
        let region = Region { body, inside: inside.into_iter().collect(), observes };
        region.waits()
    })
}

/// Whether a function itself reads what other blocks may write while it runs.
pub(super) fn observes_memory(function: &Function) -> bool {
    function.body.iter().flatten().any(|instr| is_strong(&instr.op))
}

/// An ordered or volatile load, or an atomic operation with a result, of global memory.
fn is_strong(op: &Op) -> bool {
    match op {
        Op::Ld { space, order, .. } => is_global(*space) && *order != MemOrder::Weak,
        Op::Atom { space, dst, .. } => is_global(*space) && dst.is_some(),
        _ => false,
    }
}

const fn is_global(space: Space) -> bool {
    matches!(space, Space::Global | Space::Generic)
}

/// The blocks of each loop, by the block it begins with. Loops with the same beginning are one.
/// `None` if there are too many.
fn loops(cfg: &Cfg) -> Option<BTreeMap<u32, BTreeSet<u32>>> {
    let mut predecessors: Vec<Vec<u32>> = vec![Vec::new(); cfg.blocks.len()];
    for (index, block) in (0u32..).zip(&cfg.blocks) {
        for next in &block.successors {
            if let Some(list) = predecessors.get_mut(*next as usize) {
                list.push(index);
            }
        }
    }
    let mut all: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut left = LOOP_BLOCKS_MAX;
    for (from, to) in back_edges(cfg) {
        let blocks = all.entry(to).or_default();
        blocks.insert(to);
        let mut todo = vec![from];
        while let Some(block) = todo.pop() {
            if blocks.insert(block)
                && let Some(list) = predecessors.get(block as usize)
            {
                left = left.checked_sub(1)?;
                todo.extend(list);
            }
        }
    }
    Some(all)
}

/// Edges to a block that is on the path from the entry (depth first) to their origin.
fn back_edges(cfg: &Cfg) -> Vec<(u32, u32)> {
    let mut state = vec![0u8; cfg.blocks.len()];
    let mut edges = Vec::new();
    let mut stack = vec![(0u32, 0usize)];
    if let Some(first) = state.first_mut() {
        *first = 1;
    }
    while let Some((block, position)) = stack.pop() {
        let next = cfg.blocks.get(block as usize).and_then(|b| b.successors.get(position));
        let Some(&next) = next else {
            if let Some(place) = state.get_mut(block as usize) {
                *place = 2;
            }
            continue;
        };
        stack.push((block, position + 1));
        match state.get_mut(next as usize) {
            Some(place) if *place == 0 => {
                *place = 1;
                stack.push((next, 0));
            }
            Some(1) => edges.push((block, next)),
            Some(_) | None => {}
        }
    }
    edges
}

/// The instructions of a loop.
struct Region<'a> {
    body: &'a [Instr],
    inside: BTreeSet<u32>,
    observes: &'a dyn Fn(&Call) -> bool,
}

impl Region<'_> {
    fn instructions(&self) -> impl Iterator<Item = (u32, &Instr)> {
        self.inside.iter().filter_map(|&at| Some((at, self.body.get(at as usize)?)))
    }

    /// The line of an exit that depends on other blocks.
    fn waits(&self) -> Option<u32> {
        let mut written: BTreeMap<Reg, u32> = BTreeMap::new();
        for (_, instr) in self.instructions() {
            for reg in writes(&instr.op) {
                *written.entry(reg).or_default() += 1;
            }
        }
        let tainted = self.tainted(&written);
        if tainted.is_empty() {
            return None;
        }
        let retries = self.retries(&written);
        self.instructions().find_map(|(at, instr)| {
            let pred = self.exit_condition(at, instr)?;
            (tainted.contains(&pred) && !retries.contains(&pred)).then_some(instr.line)
        })
    }

    /// The register that decides whether the loop is left here.
    fn exit_condition(&self, at: u32, instr: &Instr) -> Option<Reg> {
        let outside = |to: u32| !self.inside.contains(&to);
        match &instr.op {
            Op::Bra { target, .. } => {
                let guard = instr.guard?;
                (outside(*target) || outside(at + 1)).then_some(guard.reg)
            }
            Op::BrxIdx { index, targets, .. } => {
                let guarded = instr.guard.is_some() && outside(at + 1);
                (guarded || targets.iter().any(|to| outside(*to))).then_some(*index)
            }
            Op::Ret | Op::Exit | Op::Trap => Some(instr.guard?.reg),
            _ => None,
        }
    }

    /// Registers whose value may depend on what other blocks write.
    fn tainted(&self, written: &BTreeMap<Reg, u32>) -> BTreeSet<Reg> {
        let strong = self.instructions().any(|(_, instr)| self.is_source(&instr.op));
        let mut tainted = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let before = tainted.len();
            let diverted = self.instructions().any(|(_, instr)| match &instr.op {
                Op::Bra { .. } => instr.guard.is_some_and(|g| tainted.contains(&g.reg)),
                Op::BrxIdx { index, .. } => tainted.contains(index),
                _ => false,
            });
            for (_, instr) in self.instructions() {
                let dirty = self.is_source(&instr.op)
                    || polls(&instr.op, written)
                    || (strong && is_private_load(&instr.op))
                    || reads(instr).iter().any(|reg| tainted.contains(reg));
                for reg in writes(&instr.op) {
                    // A branch that depends on others decides which of several values it has.
                    let merged = diverted && written.get(&reg).is_some_and(|count| *count > 1);
                    if dirty || merged {
                        tainted.insert(reg);
                    }
                }
            }
            if tainted.len() == before {
                return tainted;
            }
        }
        written.keys().copied().collect()
    }

    fn is_source(&self, op: &Op) -> bool {
        match op {
            Op::Call(call) => (self.observes)(call),
            op => is_strong(op),
        }
    }

    /// Predicates that compare the result of a compare-and-swap with the value that it expected,
    /// which the loop itself computed.
    fn retries(&self, written: &BTreeMap<Reg, u32>) -> BTreeSet<Reg> {
        let swaps: Vec<(Reg, Reg)> = self
            .instructions()
            .filter_map(|(_, instr)| match &instr.op {
                Op::Atom { op: AtomOp::Cas, dst: Some(old), b: Operand::Reg(expected), .. } => {
                    written.contains_key(expected).then_some((*old, *expected))
                }
                _ => None,
            })
            .collect();
        self.instructions()
            .filter_map(|(_, instr)| match &instr.op {
                Op::Setp {
                    op: CompareOp::Eq | CompareOp::Ne,
                    combine: None,
                    dst: Some(pred),
                    a: Operand::Reg(a),
                    b: Operand::Reg(b),
                    ..
                } if swaps.contains(&(*a, *b)) || swaps.contains(&(*b, *a)) => {
                    (written.get(pred) == Some(&1)).then_some(*pred)
                }
                _ => None,
            })
            .collect()
    }
}

/// A plain load of global memory from an address that stays the same in the loop.
fn polls(op: &Op, written: &BTreeMap<Reg, u32>) -> bool {
    match op {
        Op::Ld { hint: CacheHint::ReadOnly, .. } => false,
        Op::Ld { space, addr, .. } if is_global(*space) => match addr.base {
            Base::Reg(reg) => !written.contains_key(&reg),
            Base::Variable(_) | Base::Absolute => true,
            Base::Frame | Base::KernelParam => false,
        },
        _ => false,
    }
}

const fn is_private_load(op: &Op) -> bool {
    matches!(op, Op::Ld { space: Space::Shared | Space::Local | Space::Generic, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(body: &str) -> Option<u32> {
        let text = format!(
            ".version 7.5\n.target sm_75\n.address_size 64\n.shared .b32 s;\n.entry k () {{ \
             .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %a<4>;\n{body} }}"
        );
        let module = crate::parse(text.as_bytes()).unwrap();
        waiting_line(&module.functions[0], &|_| true)
    }

    #[test]
    fn counting_and_searching_wait_for_nobody() {
        assert_eq!(line("L: add.s32 %r1,%r1,1;\nsetp.lt.s32 %p1,%r1,%r2;\n@%p1 bra L;"), None);
        // A search: the address moves.
        let search = "L: add.s64 %a1,%a1,4;\nld.global.u32 %r1,[%a1];\nsetp.ne.s32 %p1,%r1,%r2;\n\
                      @%p1 bra L;";
        assert_eq!(line(search), None);
        // A loop that counts how often an atomic found something.
        let drain = "L: atom.global.add.u32 %r1,[%a1],1;\nadd.s32 %r2,%r2,%r1;\n\
                     add.s32 %r3,%r3,1;\nsetp.lt.s32 %p1,%r3,8;\n@%p1 bra L;";
        assert_eq!(line(drain), None);
    }

    #[test]
    fn flags_and_locks_are_waits() {
        for load in ["ld.volatile.global", "ld.acquire.gpu.global", "ld.global", "ld.relaxed.sys"] {
            let flag = format!("L: {load}.u32 %r1,[%a1];\nsetp.eq.s32 %p1,%r1,0;\n@%p1 bra L;");
            assert_eq!(line(&flag), Some(8), "{load}");
        }
        let lock = "L: atom.global.cas.b32 %r1,[%a1],0,1;\nsetp.ne.s32 %p1,%r1,0;\n@%p1 bra L;";
        assert_eq!(line(lock), Some(8));
        let early =
            "L: ld.volatile.global.u32 %r1,[%a1];\nsetp.ne.s32 %p1,%r1,0;\n@%p1 ret;\nbra L;";
        assert_eq!(line(early), Some(8));
    }

    #[test]
    fn a_retry_of_compare_and_swap_is_none() {
        let retry = "ld.global.u32 %r1,[%a1];\nL: add.s32 %r2,%r1,1;\n\
                     atom.global.cas.b32 %r3,[%a1],%r1,%r2;\nsetp.ne.s32 %p1,%r1,%r3;\n\
                     mov.u32 %r1,%r3;\n@%p1 bra L;";
        assert_eq!(line(retry), None);
        // The same operation used to look at a flag.
        let peek = "L: atom.global.cas.b32 %r3,[%a1],%r1,%r1;\nmov.u32 %r1,%r3;\n\
                    setp.ne.s32 %p1,%r3,5;\n@%p1 bra L;";
        assert_eq!(line(peek), Some(9));
    }

    #[test]
    fn what_passes_through_shared_memory_or_a_branch_counts() {
        let shared = "L: @%p2 ld.acquire.gpu.global.u32 %r1,[%a1];\n@%p2 st.shared.u32 [s],%r1;\n\
                      bar.sync 0;\nld.shared.u32 %r2,[s];\nsetp.eq.s32 %p1,%r2,0;\n@%p1 bra L;";
        assert_eq!(line(shared), Some(11));
        let branch = "L: mov.u32 %r2,1;\nld.volatile.global.u32 %r1,[%a1];\n\
                      setp.eq.s32 %p2,%r1,0;\n@%p2 bra M;\nmov.u32 %r2,0;\nM: \
                      setp.ne.s32 %p1,%r2,0;\n@%p1 bra L;";
        assert_eq!(line(branch), Some(12));
    }
}
