//! Branches, guards, calls, barriers, and the end of things.

use super::address::FUNCTION_WINDOW;
use super::cx::{BarrierRequest, BarrierResult, Cx};
use super::handler::{Handler, Op, event};
use super::rows::{LANES, lanes_of};
use crate::FaultKind;

/// Flips a predicate when `Op::c` is 1.
#[inline(always)]
fn guard(cx: &Cx, op: &Op) -> u32 {
    (cx.pred(op.a) ^ 0u32.wrapping_sub(op.c)) & cx.mask
}

/// Goes to `target`, paying `cost`.
#[inline(always)]
fn jump(cx: &mut Cx, target: u32, cost: u32) -> u32 {
    cx.fuel -= i64::from(cost);
    if cx.fuel < 0 {
        cx.resume = target;
        return event::FUEL;
    }
    target
}

/// Jump to `d`; `b` is the cost.
pub(crate) struct Jump;

impl Handler for Jump {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, _: u32) -> u32 {
        jump(cx, op.d, op.b)
    }
}

/// Jump to `d` where predicate `a` (inverted if `c`) holds; `b` is the cost.
pub(crate) struct Branch;

impl Handler for Branch {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let taken = guard(cx, op);
        if taken == cx.mask {
            jump(cx, op.d, op.b)
        } else if taken == 0 {
            jump(cx, pc + 1, op.b)
        } else {
            split(cx, taken, op.d, pc + 1, op.b)
        }
    }
}

#[inline(never)]
fn split(cx: &mut Cx, taken: u32, target: u32, next: u32, cost: u32) -> u32 {
    cx.fuel -= i64::from(cost);
    for lane in 0..LANES {
        cx.targets[lane] = if taken >> lane & 1 != 0 { target } else { next };
    }
    event::DIVERGE
}

/// Executes the next operation for the lanes whose predicate `a` (inverted if `c`) holds.
pub(crate) struct Guard;

impl Handler for Guard {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let taken = guard(cx, op);
        if taken == 0 {
            return pc + 2;
        }
        let program = std::sync::Arc::as_ptr(&cx.program);
        // SAFETY: `execute` holds an `Arc` of the program while handlers run.
        let program = unsafe { &*program };
        let Some(next) = program.ops.get(pc as usize + 1) else { return pc + 2 };
        if taken == cx.mask {
            // SAFETY: `Level::detect` found the features that the handler was compiled for.
            return unsafe { (next.exec)(cx, next, pc + 1) };
        }
        let all = cx.mask;
        cx.set_mask(taken);
        // SAFETY: as above.
        let answer = unsafe { (next.exec)(cx, next, pc + 1) };
        if answer != event::EXIT {
            cx.set_mask(all);
        }
        answer
    }
}

/// Jump to the entry of list `d` that row `a` selects; `b` is the number of entries.
pub(crate) struct BranchIndexed;

impl Handler for BranchIndexed {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.fuel -= 8;
        cx.resume = pc + 1;
        let index = cx.row32(op.a);
        for lane in lanes_of(cx.mask) {
            let entry = (op.d as usize).checked_add(index[lane] as usize);
            let target = entry.and_then(|e| cx.program.lists.get(e)).copied();
            match target {
                Some(target) if index[lane] < op.b => cx.targets[lane] = target,
                _ => return cx.fail(FaultKind::InvalidPc, lane as u32, None),
            }
        }
        event::DIVERGE
    }
}

/// Call from site `d` of function `a`.
pub(crate) struct Call;

impl Handler for Call {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.fuel -= 8;
        cx.resume = pc + 1;
        cx.site = op.d;
        cx.targets = [op.a; LANES];
        event::CALL
    }
}

/// Call from site `d` of the function that 64-bit row `a` points to.
pub(crate) struct CallIndirect;

impl Handler for CallIndirect {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.fuel -= 8;
        cx.resume = pc + 1;
        cx.site = op.d;
        let pointers = cx.row64(op.a);
        for lane in lanes_of(cx.mask) {
            let index = u32::try_from(pointers[lane].wrapping_sub(FUNCTION_WINDOW));
            let program = &cx.program;
            let site = &program.calls[op.d as usize];
            let fits = index.ok().filter(|i| {
                program.functions.get(*i as usize).is_some_and(|f| {
                    f.callable
                        && f.params.len() == site.args.len()
                        && f.returns.len() == site.returns.len()
                        && f.params.iter().zip(&site.args).all(|(p, a)| p.bytes() == a.bytes())
                        && f.returns.iter().zip(&site.returns).all(|(p, a)| p.bytes() == a.bytes())
                })
            });
            match fits {
                Some(function) => cx.targets[lane] = function,
                None => {
                    return cx.fail(FaultKind::InvalidPc, lane as u32, Some(pointers[lane]));
                }
            }
        }
        event::CALL
    }
}

/// Return to the caller; from a kernel: exit.
pub(crate) struct Return;

impl Handler for Return {
    fn run(cx: &mut Cx, _: &Op, _: u32) -> u32 {
        cx.fuel -= 4;
        event::RETURN
    }
}

/// Exit of the active lanes.
pub(crate) struct Exit;

impl Handler for Exit {
    fn run(cx: &mut Cx, _: &Op, pc: u32) -> u32 {
        cx.resume = pc + 1;
        event::EXIT
    }
}

/// `trap`
pub(crate) struct Trap;

impl Handler for Trap {
    fn run(cx: &mut Cx, _: &Op, _: u32) -> u32 {
        cx.fail(FaultKind::Trap, cx.first_lane(), None)
    }
}

/// Nothing.
pub(crate) struct Nop;

impl Handler for Nop {
    #[inline(always)]
    fn run(_: &mut Cx, _: &Op, pc: u32) -> u32 {
        pc + 1
    }
}

/// The longest `nanosleep`, in ns.
const SLEEP_MAX_NS: u32 = 1_000_000;

/// `nanosleep` of row `a`.
pub(crate) struct Nanosleep;

impl Handler for Nanosleep {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.resume = pc + 1;
        let durations = cx.row32(op.a);
        let longest = lanes_of(cx.mask).map(|l| durations[l]).max().unwrap_or(0);
        cx.touch();
        cx.wake_ns = crate::clock::now_ns() + u64::from(longest.min(SLEEP_MAX_NS));
        event::SLEEP
    }
}

/// How a barrier behaves, in `Op::imm`.
pub(crate) mod barrier_flags {
    pub(crate) const WAIT: u64 = 1;
    /// Predicate `c` takes part.
    pub(crate) const REDUCE: u64 = 2;
    /// It is inverted.
    pub(crate) const INVERT: u64 = 4;
    /// Row `b` holds the number of threads.
    pub(crate) const COUNTED: u64 = 8;
}

/// Block barrier number row `a`.
pub(crate) struct Barrier;

impl Handler for Barrier {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.fuel -= 8;
        cx.resume = pc + 1;
        let first = cx.first_lane();
        let id = cx.row32(op.a)[first as usize];
        let threads =
            if op.imm & barrier_flags::COUNTED == 0 { 0 } else { cx.row32(op.b)[first as usize] };
        let counted = op.imm & barrier_flags::COUNTED != 0;
        if id >= 16 || (counted && (threads == 0 || threads % 32 != 0)) {
            return cx.fail(FaultKind::IllegalInstruction, first, None);
        }
        let mut votes = 0;
        let reduces = op.imm & barrier_flags::REDUCE != 0;
        if reduces {
            votes = cx.pred(op.c);
            if op.imm & barrier_flags::INVERT != 0 {
                votes = !votes;
            }
        }
        let wait = op.imm & barrier_flags::WAIT != 0;
        cx.barrier = BarrierRequest { id, threads, wait, reduces, votes: votes & cx.mask };
        event::BARRIER
    }
}

/// Count of the lanes' last barrier reduction into row `d`.
pub(crate) struct BarrierCount;

impl Handler for BarrierCount {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let counts = cx.warp.reduced.map(|result| result.count);
        cx.put32(op.d, counts);
        pc + 1
    }
}

/// Whether all (`imm` = 1) or any (0) voted yes in the lanes' last barrier reduction, into
/// predicate `d`.
pub(crate) struct BarrierVote;

impl Handler for BarrierVote {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let holds = |result: BarrierResult| {
            if op.imm == 1 { result.count == result.threads } else { result.count != 0 }
        };
        let mut lanes = 0;
        for (lane, result) in cx.warp.reduced.iter().enumerate() {
            lanes |= u32::from(holds(*result)) << lane;
        }
        cx.put_pred(op.d, lanes);
        pc + 1
    }
}
