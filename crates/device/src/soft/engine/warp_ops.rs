//! Operations between the lanes of a warp.

use super::cx::Cx;
use super::handler::{Handler, Op, event};
use super::rows::{BITS, LANES, lanes_of, or_all};

/// `bar.warp.sync` of the lanes in row `a`. Lanes may name different masks; those whose members are
/// all here go on without the others.
pub(crate) struct WarpSync;

impl Handler for WarpSync {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let masks = cx.row32(op.a);
        let absent = cx.warp.live & !cx.split_mask;
        let mut waits = [0; LANES];
        for i in 0..LANES {
            waits[i] = if masks[i] & absent != 0 { BITS.0[i] } else { 0 };
        }
        let waiting = or_all(&waits) & cx.mask;
        if waiting == 0 {
            return pc + 1;
        }
        cx.resume = pc + 1;
        if waiting == cx.mask {
            cx.members = lanes_of(waiting).fold(0, |all, lane| all | masks[lane]);
            return event::WARP_SYNC;
        }
        for lane in 0..LANES {
            cx.targets[lane] = if BITS.0[lane] & waiting != 0 { pc } else { pc + 1 };
        }
        event::DIVERGE
    }
}

/// Answers for each group of active lanes that name the same mask in row `row`: `answer` is called
/// with the group active, and gets the active lanes that the mask names.
#[inline(always)]
fn each_group(cx: &mut Cx, row: u32, mut answer: impl FnMut(&mut Cx, u32)) {
    let (masks, lanes, all) = (cx.row32(row), cx.lanes.0, cx.mask);
    let first = masks[cx.first_lane() as usize % LANES];
    let mut differ = [0; LANES];
    for i in 0..LANES {
        differ[i] = (masks[i] ^ first) & lanes[i];
    }
    if or_all(&differ) == 0 {
        return answer(cx, first & all);
    }
    let mut left = all;
    while left != 0 {
        let mask = masks[left.trailing_zeros() as usize % LANES];
        let same = lanes_of(left).filter(|lane| masks[*lane] == mask);
        let group = same.fold(0, |group, lane| group | BITS.0[lane]);
        cx.set_mask(group);
        answer(cx, mask & all);
        left &= !group;
    }
    cx.set_mask(all);
}

/// Waits for the members in row `a`, then executes the operation behind it, which is emitted
/// anyway.
pub(crate) type Members = WarpSync;

/// Modes of a shuffle, in bits 0–1 of `Op::imm`; the predicate is in bits 32…
pub(crate) mod shuffle {
    pub(crate) const UP: u64 = 0;
    pub(crate) const DOWN: u64 = 1;
    pub(crate) const BUTTERFLY: u64 = 2;
    pub(crate) const INDEX: u64 = 3;
    pub(crate) const PRED_SHIFT: u32 = 32;
}

/// `shfl`: `d` = row `a` of the lane that `b` and `c` select.
pub(crate) struct Shuffle;

impl Handler for Shuffle {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let (a, b, c) = (cx.row32(op.a), cx.row32(op.b), cx.row32(op.c));
        let mut out = [0; LANES];
        let mut inside = 0u32;
        for lane in 0..LANES {
            let me = lane as u32;
            let segment = c[lane] >> 8 & 31;
            let limit = c[lane] & 31;
            let max = (me & segment) | (limit & !segment);
            let step = b[lane] & 31;
            let (from, valid) = match op.imm & 3 {
                shuffle::UP => {
                    (me.wrapping_sub(step), i64::from(me) - i64::from(step) >= i64::from(max))
                }
                shuffle::DOWN => (me + step, me + step <= max),
                shuffle::BUTTERFLY => (me ^ step, me ^ step <= max),
                _ => {
                    let from = (me & segment) | (step & !segment);
                    (from, from <= max)
                }
            };
            let from = if valid { from } else { me };
            out[lane] = a[from as usize % LANES];
            inside |= u32::from(valid) << lane;
        }
        cx.put32(op.d, out);
        let pred = (op.imm >> shuffle::PRED_SHIFT) as u32;
        if pred != 0 {
            cx.put_pred(pred - 1, inside);
        }
        pc + 1
    }
}

/// `vote`, in bits 0–1 of `Op::imm`; bit 2 inverts the source.
pub(crate) mod vote {
    pub(crate) const ALL: u64 = 0;
    pub(crate) const ANY: u64 = 1;
    pub(crate) const UNIFORM: u64 = 2;
    pub(crate) const BALLOT: u64 = 3;
    pub(crate) const INVERT: u64 = 4;
}

/// `vote` of predicate `a` among the members in row `b`.
pub(crate) struct Vote;

impl Handler for Vote {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let mut yes = cx.pred(op.a);
        if op.imm & vote::INVERT != 0 {
            yes = !yes;
        }
        each_group(cx, op.b, |cx, members| {
            let votes = yes & members;
            let holds = match op.imm & 3 {
                vote::ALL => votes == members,
                vote::ANY => votes != 0,
                vote::UNIFORM => votes == 0 || votes == members,
                _ => return cx.put32(op.d, [votes; LANES]),
            };
            cx.put_pred(op.d, if holds { u32::MAX } else { 0 });
        });
        pc + 1
    }
}

/// `match.any`: `d` = members with the same 32-bit `a` (64-bit if `imm` = 1) as the lane.
pub(crate) struct MatchAny;

impl Handler for MatchAny {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let values = wide_row(cx, op.a, op.imm == 1);
        each_group(cx, op.b, |cx, members| {
            let mut out = [0; LANES];
            for lane in lanes_of(members) {
                for other in lanes_of(members) {
                    out[lane] |= u32::from(values[lane] == values[other]) << other;
                }
            }
            cx.put32(op.d, out);
        });
        pc + 1
    }
}

/// `match.all`: `d` = members if all have the same `a`, else 0; predicate `c` says which.
pub(crate) struct MatchAll;

impl Handler for MatchAll {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let values = wide_row(cx, op.a, op.imm == 1);
        each_group(cx, op.b, |cx, members| {
            let first = values[cx.first_lane() as usize];
            let same = lanes_of(members).all(|l| values[l] == first);
            cx.put32(op.d, [if same { members } else { 0 }; LANES]);
            cx.put_pred(op.c, if same { u32::MAX } else { 0 });
        });
        pc + 1
    }
}

fn wide_row(cx: &Cx, row: u32, wide: bool) -> [u64; LANES] {
    if wide { cx.row64(row) } else { cx.row32(row).map(u64::from) }
}

/// `d` = active lanes.
pub(crate) struct ActiveMask;

impl Handler for ActiveMask {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.put32(op.d, [cx.mask; LANES]);
        pc + 1
    }
}

/// Reductions, in `Op::imm`.
pub(crate) mod redux {
    pub(crate) const ADD: u64 = 0;
    pub(crate) const MIN_U: u64 = 1;
    pub(crate) const MAX_U: u64 = 2;
    pub(crate) const MIN_S: u64 = 3;
    pub(crate) const MAX_S: u64 = 4;
    pub(crate) const AND: u64 = 5;
    pub(crate) const OR: u64 = 6;
    pub(crate) const XOR: u64 = 7;
    pub(crate) const MIN_F: u64 = 8;
    pub(crate) const MAX_F: u64 = 9;
    /// Operands lose their sign (floating point).
    pub(crate) const ABS: u64 = 16;
    /// A NaN wins (floating point).
    pub(crate) const NAN: u64 = 32;
}

/// `redux`: `d` = reduction of row `a` over the members in row `b`.
pub(crate) struct Redux;

impl Handler for Redux {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let a = cx.row32(op.a);
        each_group(cx, op.b, |cx, members| {
            let result = reduce(lanes_of(members).map(|l| a[l]), op.imm);
            cx.put32(op.d, [result.unwrap_or(0); LANES]);
        });
        pc + 1
    }
}

fn reduce(values: impl Iterator<Item = u32>, imm: u64) -> Option<u32> {
    let signed = |f: fn(i32, i32) -> i32| move |x: u32, y: u32| f(x as i32, y as i32) as u32;
    match imm & 15 {
        redux::ADD => values.reduce(u32::wrapping_add),
        redux::MIN_U => values.reduce(u32::min),
        redux::MAX_U => values.reduce(u32::max),
        redux::MIN_S => values.reduce(signed(i32::min)),
        redux::MAX_S => values.reduce(signed(i32::max)),
        redux::AND => values.reduce(|x, y| x & y),
        redux::OR => values.reduce(|x, y| x | y),
        redux::XOR => values.reduce(|x, y| x ^ y),
        code => {
            let keep = if imm & redux::ABS != 0 { 0x7fff_ffff } else { u32::MAX };
            let nan = imm & redux::NAN != 0;
            let values = values.map(|x| x & keep);
            values.reduce(|x, y| float_extreme(x, y, code == redux::MIN_F, nan))
        }
    }
}

fn float_extreme(x: u32, y: u32, min: bool, nan: bool) -> u32 {
    let (a, b) = (f32::from_bits(x), f32::from_bits(y));
    match (a.is_nan(), b.is_nan()) {
        (true, true) => 0x7fff_ffff,
        (true, false) | (false, true) if nan => 0x7fff_ffff,
        (true, false) => y,
        (false, true) => x,
        (false, false) => {
            let less = if a == b { a.is_sign_negative() } else { a < b };
            if less == min { x } else { y }
        }
    }
}

/// `elect`: `d` = the lowest member in row `a`; predicate `c` holds for it.
pub(crate) struct Elect;

impl Handler for Elect {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        each_group(cx, op.a, |cx, members| {
            let leader = members.trailing_zeros();
            cx.put32(op.d, [leader & 31; LANES]);
            cx.put_pred(op.c, members & members.wrapping_neg());
        });
        pc + 1
    }
}
