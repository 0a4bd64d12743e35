//! Control flow of a function: basic blocks, and where diverged threads meet again.

use crate::ir::{Instr, Op};

/// Basic blocks of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cfg {
    /// Blocks in the order of the code.
    pub blocks: Vec<Block>,
    /// The block of each instruction.
    pub block_of: Vec<u32>,
    /// Number of instructions.
    length: u32,
}

/// Instructions that are executed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of the first instruction.
    pub start: u32,
    /// Index behind the last instruction.
    pub end: u32,
    /// Blocks that may come next, each once. Leaving the function is not among them.
    pub successors: Vec<u32>,
    /// Whether the function may be left here.
    pub leaves: bool,
    /// The block that every path from here to the end of the function passes first, behind this
    /// one: the immediate post-dominator. `None` if that is the end of the function itself, or if
    /// no path leads there.
    pub post_dominator: Option<u32>,
}

impl Cfg {
    /// Analyses a body.
    #[must_use]
    pub fn new(body: &[Instr]) -> Self {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let (mut blocks, block_of) = split(body);
        for index in 0..blocks.len() {
            let Some(end) = blocks.get(index).map(|block| block.end) else { break };
            let last = usize::try_from(end).ok().and_then(|end| body.get(end.checked_sub(1)?));
            let (next, leaves) = last.map_or((Vec::new(), true), |last| flow(last, end, length));
            let mut successors: Vec<u32> =
                next.iter().filter_map(|&at| block_of.get(at as usize).copied()).collect();
            successors.sort_unstable();
            successors.dedup();
            if let Some(block) = blocks.get_mut(index) {
                block.successors = successors;
                block.leaves = leaves;
            }
        }
        set_post_dominators(&mut blocks);
        Self { blocks, block_of, length }
    }

    /// The instruction at which threads that diverge at an instruction meet again: the start of the
    /// block's post-dominator, or the number of instructions for the end of the function.
    #[must_use]
    pub fn reconvergence(&self, instruction: u32) -> u32 {
        let block = |index: u32| self.blocks.get(index as usize);
        self.block_of
            .get(instruction as usize)
            .and_then(|&index| block(index)?.post_dominator)
            .and_then(block)
            .map_or(self.length, |block| block.start)
    }
}

/// Where control may go from the last instruction of a block, and whether it may leave.
fn flow(last: &Instr, end: u32, length: u32) -> (Vec<u32>, bool) {
    let guarded = last.guard.is_some();
    let (mut next, mut leaves) = if let Op::Bra { target, .. } = last.op {
        (vec![target], false)
    } else if let Op::BrxIdx { targets, .. } = &last.op {
        (targets.clone(), false)
    } else if ends_thread(&last.op) {
        (Vec::new(), true)
    } else {
        (vec![end], false)
    };
    if guarded {
        next.push(end);
    }
    leaves |= next.iter().any(|&at| at >= length);
    next.retain(|&at| at < length);
    (next, leaves)
}

const fn ends_thread(op: &Op) -> bool {
    matches!(op, Op::Ret | Op::Exit | Op::Trap)
}

const fn ends_block(op: &Op) -> bool {
    ends_thread(op) || matches!(op, Op::Bra { .. } | Op::BrxIdx { .. })
}

/// Cuts a body at branch targets and behind branches.
fn split(body: &[Instr]) -> (Vec<Block>, Vec<u32>) {
    let mut starts = vec![false; body.len() + 1];
    let mut mark = |at: usize| {
        if let Some(start) = starts.get_mut(at) {
            *start = true;
        }
    };
    for (index, instr) in body.iter().enumerate() {
        if ends_block(&instr.op) {
            mark(index + 1);
        }
        if let Op::Bra { target, .. } = instr.op {
            mark(target as usize);
        } else if let Op::BrxIdx { targets, .. } = &instr.op {
            targets.iter().for_each(|&target| mark(target as usize));
        }
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut block_of = Vec::with_capacity(body.len());
    for (index, start) in (0u32..).zip(starts.iter().take(body.len())) {
        if *start || index == 0 {
            let (successors, leaves, post_dominator) = (Vec::new(), false, None);
            blocks.push(Block { start: index, end: index, successors, leaves, post_dominator });
        }
        if let Some(block) = blocks.last_mut() {
            block.end = index + 1;
        }
        block_of.push(u32::try_from(blocks.len() - 1).unwrap_or(u32::MAX));
    }
    (blocks, block_of)
}

const UNKNOWN: usize = usize::MAX;

/// Dominators of the reversed graph from a virtual exit node, by the algorithm of Cooper, Harvey
/// and Kennedy, "A Simple, Fast Dominance Algorithm".
fn set_post_dominators(blocks: &mut [Block]) {
    let exit = blocks.len();
    let mut predecessors = vec![Vec::new(); exit + 1];
    for (index, block) in blocks.iter().enumerate() {
        let targets = block.successors.iter().map(|&next| next as usize);
        for next in targets.chain(block.leaves.then_some(exit)) {
            if let Some(list) = predecessors.get_mut(next) {
                list.push(index);
            }
        }
    }
    let order = postorder(&predecessors, exit);
    let mut rank = vec![UNKNOWN; exit + 1];
    for (position, &node) in order.iter().enumerate() {
        set(&mut rank, node, position);
    }
    let mut dominator = vec![UNKNOWN; exit + 1];
    set(&mut dominator, exit, exit);
    let mut changed = true;
    while changed {
        changed = false;
        for &node in order.iter().rev().filter(|&&node| node != exit) {
            let Some(block) = blocks.get(node) else { continue };
            let targets = block.successors.iter().map(|&next| next as usize);
            let mut best = UNKNOWN;
            for next in targets.chain(block.leaves.then_some(exit)) {
                if get(&dominator, next) != UNKNOWN {
                    best = if best == UNKNOWN { next } else { meet(&dominator, &rank, best, next) };
                }
            }
            if get(&dominator, node) != best {
                set(&mut dominator, node, best);
                changed = true;
            }
        }
    }
    for (block, &to) in blocks.iter_mut().zip(&dominator) {
        block.post_dominator = if to < exit { u32::try_from(to).ok() } else { None };
    }
}

fn get(list: &[usize], at: usize) -> usize {
    list.get(at).copied().unwrap_or(UNKNOWN)
}

fn set(list: &mut [usize], at: usize, value: usize) {
    if let Some(place) = list.get_mut(at) {
        *place = value;
    }
}

/// The closest common dominator.
fn meet(dominator: &[usize], rank: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        if get(rank, a) < get(rank, b) {
            a = get(dominator, a);
        } else {
            b = get(dominator, b);
        }
        if a == UNKNOWN || b == UNKNOWN {
            return UNKNOWN;
        }
    }
    a
}

/// Nodes that reach `root` along reversed edges, `root` last. Without recursion.
fn postorder(edges: &[Vec<usize>], root: usize) -> Vec<usize> {
    let mut seen = vec![false; edges.len()];
    let mut order = Vec::new();
    let mut stack = vec![(root, 0usize)];
    if let Some(place) = seen.get_mut(root) {
        *place = true;
    }
    while let Some((node, position)) = stack.pop() {
        match edges.get(node).and_then(|list| list.get(position)) {
            Some(&next) => {
                stack.push((node, position + 1));
                if let Some(place) = seen.get_mut(next)
                    && !*place
                {
                    *place = true;
                    stack.push((next, 0));
                }
            }
            None => order.push(node),
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cfg(body: &str) -> Cfg {
        let text = format!(
            ".version 7.5\n.target sm_75\n.address_size 64\n.entry k () {{ .reg .pred %p<4>; \
             .reg .b32 %r<4>; {body} }}"
        );
        let module = crate::parse(text.as_bytes()).unwrap();
        Cfg::new(module.functions[0].body.as_ref().unwrap())
    }

    #[test]
    fn if_else_meets_behind_both_arms() {
        let cfg = cfg("@%p1 bra A; mov.b32 %r1, 1; bra B; A: mov.b32 %r1, 2; B: ret;");
        assert_eq!(cfg.blocks.len(), 4);
        assert_eq!(cfg.reconvergence(0), 4);
        assert_eq!(cfg.blocks[0].successors, [1, 2]);
    }

    #[test]
    fn a_loop_meets_behind_it() {
        let cfg = cfg("mov.b32 %r1, 0; L: add.s32 %r1, %r1, 1; @%p1 bra L; mov.b32 %r2, 0; ret;");
        assert_eq!(cfg.reconvergence(2), 3);
    }

    #[test]
    fn an_early_exit_meets_at_the_end_of_the_function() {
        let cfg = cfg("@%p1 bra X; mov.b32 %r1, 1; ret; X: mov.b32 %r1, 2; ret;");
        assert_eq!(cfg.reconvergence(0), 5);
        assert!(cfg.blocks[1].leaves);
    }

    #[test]
    fn a_guarded_return_falls_through() {
        let cfg = cfg("@%p1 ret; mov.b32 %r1, 1; ret;");
        assert_eq!(cfg.blocks[0].successors, [1]);
        assert!(cfg.blocks[0].leaves);
        assert_eq!(cfg.reconvergence(0), 3);
    }

    #[test]
    fn a_switch_meets_behind_all_cases() {
        let cfg = cfg("t: .branchtargets A, B, A; brx.idx %r1, t; A: mov.b32 %r1, 1; bra E; \
                       B: mov.b32 %r1, 2; E: ret;");
        assert_eq!(cfg.blocks[0].successors, [1, 2]);
        assert_eq!(cfg.reconvergence(0), 4);
    }

    #[test]
    fn an_endless_loop_has_no_meeting_point_but_the_end() {
        let cfg = cfg("L: @%p1 bra M; bra L; M: bra L;");
        assert_eq!(cfg.reconvergence(0), 3);
        assert_eq!(Cfg::new(&[]).blocks, []);
    }

    #[test]
    fn a_branch_to_the_end_leaves() {
        let cfg = cfg("@%p1 bra E; mov.b32 %r1, 1; E:");
        assert!(cfg.blocks[0].leaves);
        assert_eq!(cfg.reconvergence(0), 2);
    }
}
