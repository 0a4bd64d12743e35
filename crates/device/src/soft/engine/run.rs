//! Runs one warp until it ends, blocks or has used its turn.

use super::cx::Cx;
use super::handler::event;
use super::program::{ConstRow, Lifetime, Program, RowValue};
use super::rows::{LANES, lanes_of};
use super::warp::{CALL_DEPTH_MAX, Frame, ROWS_MAX, Split, SplitState};
use super::{builtin, frame_copy};
use crate::FaultKind;

/// Fuel (operations, counted at branches) of a split while others of its warp could run.
const SPLIT_SLICE: i64 = 4096;
/// Slices after which even a split that touched nothing shared steps back.
const PATIENCE: u32 = 256;

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarpEnd {
    /// All lanes have exited.
    Done,
    /// All splits wait at block barriers.
    Blocked,
    /// All runnable splits sleep until this instant.
    Asleep(u64),
    /// The turn is over.
    Turn,
    /// `Cx::fault` says what happened; at this operation.
    Fault(u32),
}

/// What the warp needs from its block.
pub(crate) trait BlockHooks {
    /// Lanes of the running warp arrive at `cx.barrier`; whether they go on at once.
    fn arrive(&mut self, cx: &mut Cx) -> bool;
    /// That many threads have exited.
    fn exited(&mut self, cx: &mut Cx, threads: u32);
}

/// Runs the warp in `cx` for about `turn` fuel.
pub(crate) fn run_warp(
    cx: &mut Cx,
    program: &Program,
    block: &mut impl BlockHooks,
    turn: i64,
) -> WarpEnd {
    let mut left = turn;
    let end = run_splits(cx, program, block, &mut left);
    cx.used = turn - left;
    end
}

fn run_splits(
    cx: &mut Cx,
    program: &Program,
    block: &mut impl BlockHooks,
    left: &mut i64,
) -> WarpEnd {
    let mut rotate = false;
    let mut slices = 0;
    loop {
        let Some(mut split) = take_split(cx, rotate) else {
            match idle(cx) {
                Some(end) => return end,
                None => continue,
            }
        };
        rotate = false;
        let alone = cx.warp.splits.is_empty();
        let fuel = if alone { *left } else { (*left).min(SPLIT_SLICE) };
        cx.fuel = fuel;
        let at = execute(cx, program, &mut split);
        *left -= fuel - cx.fuel;
        match settle(cx, block, split, &at) {
            Settled::Go => {}
            Settled::Fuel => {
                slices += 1;
                if cx.touched || slices > PATIENCE {
                    rotate = true;
                    slices = 0;
                    cx.touched = false;
                }
            }
            Settled::Fault(pc) => return WarpEnd::Fault(pc),
        }
        if *left <= 0 {
            return if cx.warp.splits.is_empty() { WarpEnd::Done } else { WarpEnd::Turn };
        }
    }
}

/// Where execution stopped: the operation and what it answered.
struct Stop {
    pc: u32,
    next: u32,
}

/// Executes a split until an event, or until it passes the place of another split.
fn execute(cx: &mut Cx, program: &Program, split: &mut Split) -> Stop {
    cx.frame = split.frame;
    cx.bind_frame();
    cx.split_mask = split.mask;
    cx.set_mask(split.mask);
    cx.warp.clock += 1;
    split.stamp = cx.warp.clock;
    let depth = split.callers.len();
    let limit = cx
        .warp
        .splits
        .iter()
        .filter(|o| {
            o.pc > split.pc
                && o.callers.len() == depth
                && !matches!(o.state, SplitState::Barrier(_))
        })
        .map(|o| o.pc)
        .min()
        .unwrap_or(event::FIRST);
    let mut pc = split.pc;
    let mut next = pc;
    while let Some(op) = program.ops.get(next as usize) {
        pc = next;
        // SAFETY: `Level::detect` found the features that the handler was compiled for.
        next = unsafe { (op.exec)(cx, op, pc) };
        if next >= limit {
            break;
        }
    }
    Stop { pc, next }
}

enum Settled {
    Go,
    Fuel,
    Fault(u32),
}

/// Acts on the event that ended a split's execution and files the split.
fn settle(cx: &mut Cx, block: &mut impl BlockHooks, mut split: Split, at: &Stop) -> Settled {
    split.frame = cx.frame;
    split.pc = cx.resume;
    match at.next {
        event::EXIT => exit_lanes(cx, block, split),
        event::DIVERGE => diverge(cx, &split),
        event::BARRIER => {
            cx.touched = true;
            if !block.arrive(cx) {
                split.state = SplitState::Barrier(cx.barrier.id);
            }
            file(cx, split);
        }
        event::WARP_SYNC => {
            split.pc = at.pc;
            split.state = SplitState::Lanes { members: cx.members, next: cx.resume };
            file(cx, split);
            release(cx);
        }
        event::FAULT => {
            file(cx, split);
            return Settled::Fault(at.pc);
        }
        event::FUEL => {
            file(cx, split);
            return Settled::Fuel;
        }
        event::SLEEP => {
            split.state = SplitState::Sleep(cx.wake_ns);
            file(cx, split);
        }
        event::CALL => {
            if !call(cx, &split) {
                file(cx, split);
                return Settled::Fault(at.pc);
            }
        }
        event::RETURN => {
            if split.callers.is_empty() {
                exit_lanes(cx, block, split);
            } else {
                return_to_caller(cx, &mut split);
                file(cx, split);
            }
        }
        next => {
            split.pc = next;
            file(cx, split);
        }
    }
    Settled::Go
}

/// Puts a split back, merging it with one that stands at the same place.
fn file(cx: &mut Cx, split: Split) {
    if split.may_join() {
        for other in &mut cx.warp.splits {
            if other.may_join() && other.meets(&split) {
                other.join(&split);
                other.state = SplitState::Ready;
                return;
            }
        }
    }
    cx.warp.splits.push(split);
}

/// Takes the split to run next out of the list.
fn take_split(cx: &mut Cx, rotate: bool) -> Option<Split> {
    let splits = &cx.warp.splits;
    if let [only] = splits.as_slice() {
        return if only.state == SplitState::Ready { cx.warp.splits.pop() } else { None };
    }
    let mut best: Option<usize> = None;
    for (i, split) in splits.iter().enumerate() {
        if split.state != SplitState::Ready {
            continue;
        }
        let better = best.is_none_or(|b| {
            if rotate { split.stamp < splits[b].stamp } else { split.precedes(&splits[b]) }
        });
        if better {
            best = Some(i);
        }
    }
    best.map(|i| cx.warp.splits.swap_remove(i))
}

/// No split is ready: wakes sleepers, releases lanes that wait for each other, or says why not.
fn idle(cx: &mut Cx) -> Option<WarpEnd> {
    if cx.warp.splits.is_empty() {
        return Some(WarpEnd::Done);
    }
    let mut wake = u64::MAX;
    let now = crate::clock::now_ns();
    let mut woken = false;
    for split in &mut cx.warp.splits {
        if let SplitState::Sleep(until) = split.state {
            if until <= now {
                split.state = SplitState::Ready;
                woken = true;
            } else {
                wake = wake.min(until);
            }
        }
    }
    if woken {
        return None;
    }
    if wake != u64::MAX {
        return Some(WarpEnd::Asleep(wake));
    }
    // Everybody who could come has: who waited longest goes on with the lanes that are there.
    let waiting = cx.warp.splits.iter_mut().filter(|s| matches!(s.state, SplitState::Lanes { .. }));
    if let Some(split) = waiting.min_by_key(|s| s.stamp) {
        pass(split);
        return None;
    }
    Some(WarpEnd::Blocked)
}

/// Lets lanes go on that wait for each other at different places. (At one place they have joined.)
fn release(cx: &mut Cx) {
    let live = cx.warp.live;
    for i in 0..cx.warp.splits.len() {
        let SplitState::Lanes { members, .. } = cx.warp.splits[i].state else { continue };
        let same =
            |s: &&Split| matches!(s.state, SplitState::Lanes { members: m, .. } if m == members);
        let here = cx.warp.splits.iter().filter(same).fold(0, |lanes, s| lanes | s.mask);
        if members & live & !here == 0 {
            for split in &mut cx.warp.splits {
                if same(&&*split) {
                    pass(split);
                }
            }
        }
    }
}

/// Ends a wait for other lanes.
fn pass(split: &mut Split) {
    if let SplitState::Lanes { next, .. } = split.state {
        split.pc = next;
        split.state = SplitState::Ready;
    }
}

fn exit_lanes(cx: &mut Cx, block: &mut impl BlockHooks, mut split: Split) {
    let gone = cx.mask;
    cx.warp.live &= !gone;
    split.mask &= !gone;
    if split.mask != 0 {
        file(cx, split);
    }
    for other in &mut cx.warp.splits {
        if other.may_join() {
            other.state = SplitState::Ready;
        }
    }
    block.exited(cx, gone.count_ones());
}

/// Groups the lanes of `mask` by their value in `cx.targets`.
fn groups(cx: &Cx, mask: u32) -> Vec<(u32, u32)> {
    let mut groups: Vec<(u32, u32)> = Vec::with_capacity(2);
    for lane in lanes_of(mask) {
        let target = cx.targets[lane];
        match groups.iter_mut().find(|(t, _)| *t == target) {
            Some((_, lanes)) => *lanes |= 1 << lane,
            None => groups.push((target, 1 << lane)),
        }
    }
    groups
}

fn diverge(cx: &mut Cx, split: &Split) {
    for (target, lanes) in groups(cx, split.mask) {
        file(cx, Split { pc: target, mask: lanes, ..split.clone() });
    }
}

/// Performs the call in `cx.targets` and `cx.site` for each group of lanes with one callee.
fn call(cx: &mut Cx, split: &Split) -> bool {
    for (function, lanes) in groups(cx, split.mask) {
        let mut callee = Split { mask: lanes, ..split.clone() };
        cx.frame = split.frame;
        cx.bind_frame();
        cx.set_mask(lanes);
        if !enter(cx, &mut callee, function) {
            return false;
        }
        file(cx, callee);
    }
    true
}

fn enter(cx: &mut Cx, split: &mut Split, function: u32) -> bool {
    let program = std::sync::Arc::clone(&cx.program);
    let site = cx.site;
    let meta = &program.functions[function as usize];
    let call = &program.calls[site as usize];
    if let Some(which) = meta.builtin {
        split.pc = cx.resume;
        return builtin::run(cx, which, site);
    }
    let caller = split.frame;
    let from = &program.functions[caller.function as usize];
    let frame = Frame {
        function,
        base32: caller.base32 + from.rows32,
        base64: caller.base64 + from.rows64,
        base_pred: caller.base_pred + from.preds,
        local_base: caller.local_top.next_multiple_of(16),
        local_top: caller.local_top.next_multiple_of(16).saturating_add(meta.frame_bytes),
        return_pc: split.pc,
        site,
    };
    let rows = (frame.base32 + meta.rows32).max(frame.base64 + meta.rows64) as usize;
    if split.callers.len() >= CALL_DEPTH_MAX
        || rows > ROWS_MAX
        || !cx.warp.grow_local(frame.local_top)
    {
        cx.fail(FaultKind::StackOverflow, cx.first_lane(), None);
        return false;
    }
    split.callers.push(caller);
    split.frame = frame;
    split.pc = meta.entry;
    frame_copy::pass(cx, caller, frame, &call.args, &meta.params);
    cx.frame = frame;
    cx.bind_frame();
    write_rows(cx, &meta.consts, None);
    true
}

fn return_to_caller(cx: &mut Cx, split: &mut Split) {
    let Some(caller) = split.callers.pop() else { return };
    let program = std::sync::Arc::clone(&cx.program);
    let callee = split.frame;
    let meta = &program.functions[callee.function as usize];
    let call = &program.calls[callee.site as usize];
    frame_copy::pass(cx, callee, caller, &meta.returns, &call.returns);
    split.frame = caller;
    split.pc = callee.return_pc;
}

/// Writes constant rows of the current frame: those of one lifetime, or all.
pub(crate) fn write_rows(cx: &mut Cx, rows: &[ConstRow], lifetime: Option<Lifetime>) {
    for row in rows {
        if lifetime.is_some_and(|l| l != row.value.lifetime()) {
            continue;
        }
        if row.value == RowValue::Tid(0) && !row.wide && is_line(cx.launch.block_dim) {
            let first = cx.warp.index * 32;
            let mut lanes = [0; LANES];
            for i in 0..LANES {
                lanes[i] = first + i as u32;
            }
            cx.put32(row.row, lanes);
            continue;
        }
        let values = row_values(cx, row.value);
        if row.wide {
            cx.put64(row.row, values);
        } else {
            let mut narrow = [0; LANES];
            for i in 0..LANES {
                narrow[i] = values[i] as u32;
            }
            cx.put32(row.row, narrow);
        }
    }
}

/// Whether a block extends in x only.
fn is_line([_, y, z]: [u32; 3]) -> bool {
    y == 1 && z == 1
}

fn row_values(cx: &Cx, value: RowValue) -> [u64; LANES] {
    let launch = &cx.launch;
    let dim = |d: u8, v: [u32; 3]| u64::from(v[usize::from(d % 3)]);
    let lane = |f: &dyn Fn(u32) -> u32| -> [u64; LANES] {
        std::array::from_fn(|i| u64::from(f(i as u32)))
    };
    match value {
        RowValue::Bits(bits) => [bits; LANES],
        RowValue::Param { offset, bytes, signed } => {
            [param(&launch.params, offset, bytes, signed); LANES]
        }
        RowValue::FrameAddress { offset } => [u64::from(cx.frame.local_base + offset); LANES],
        RowValue::Tid(d) => thread_index(launch.block_dim, cx.warp.index, d),
        RowValue::Ntid(d) => [dim(d, launch.block_dim); LANES],
        RowValue::Ctaid(d) => [dim(d, launch.block); LANES],
        RowValue::Nctaid(d) => [dim(d, launch.grid); LANES],
        RowValue::LaneId => lane(&|i| i),
        RowValue::WarpId => [u64::from(cx.warp.index); LANES],
        RowValue::WarpCount => {
            [u64::from(launch.block_dim.iter().product::<u32>().div_ceil(32)); LANES]
        }
        RowValue::GridId => [launch.grid_id; LANES],
        RowValue::LaneMask(kind) => lane(&|i| {
            let eq = 1u32 << i;
            match kind {
                0 => eq,
                1 => eq | (eq - 1),
                2 => eq - 1,
                3 => !(eq - 1),
                _ => !(eq | (eq - 1)),
            }
        }),
        RowValue::DynamicBase { offset } => {
            [u64::from(launch.static_shared.wrapping_add(offset)); LANES]
        }
        RowValue::GridWorkspace { high } => {
            let half = launch.grid_workspace >> (32 * u32::from(high));
            [half & 0xffff_ffff; LANES]
        }
        RowValue::DynamicShared => [u64::from(launch.dynamic_shared); LANES],
        RowValue::TotalShared => [u64::from(launch.total_shared); LANES],
    }
}

/// `%tid` in one dimension of the lanes of a warp.
fn thread_index([x, y, _]: [u32; 3], warp: u32, dimension: u8) -> [u64; LANES] {
    let first = warp * 32;
    let (x, y) = (x.max(1), y.max(1));
    let mut position = [first % x, first / x % y, first / (x * y)];
    let mut lanes = [0; LANES];
    for lane in &mut lanes {
        *lane = u64::from(position[usize::from(dimension % 3)]);
        position[0] += 1;
        if position[0] == x {
            position[0] = 0;
            position[1] += 1;
            if position[1] == y {
                position[1] = 0;
                position[2] += 1;
            }
        }
    }
    lanes
}

fn param(params: &[u8], offset: u32, bytes: u32, signed: bool) -> u64 {
    let mut raw = [0u8; 8];
    let bytes = bytes.min(8) as usize;
    for (i, to) in raw.iter_mut().enumerate().take(bytes) {
        *to = params.get(offset as usize + i).copied().unwrap_or(0);
    }
    let value = u64::from_le_bytes(raw);
    let shift = 64 - 8 * bytes as u32;
    if signed && bytes > 0 { (((value << shift) as i64) >> shift) as u64 } else { value }
}
