//! Comparisons, selection, and predicates.

use super::cx::Cx;
use super::handler::{Handler, Op};
use super::rows::{LANES, expand, lanes, predicate_lanes};

/// What a comparison does with its result: `Op::imm` of a predicate operation. Bits 0–1 combine it
/// with predicate `c` (1 and, 2 or, 3 xor), bit 2 inverts `c`, bits 32.. hold 1 + the predicate
/// that gets the complement. `d` gets the result.
pub(crate) mod result {
    pub(crate) const AND: u64 = 1;
    pub(crate) const OR: u64 = 2;
    pub(crate) const XOR: u64 = 3;
    pub(crate) const INVERT: u64 = 4;
    pub(crate) const COMPLEMENT_SHIFT: u32 = 32;
}

/// Combines and writes the result of a comparison.
#[inline(always)]
pub(crate) fn put_result(cx: &mut Cx, op: &Op, bits: u32) {
    if op.imm == 0 {
        cx.put_pred(op.d, bits);
        return;
    }
    let mut with = cx.pred(op.c);
    if op.imm & result::INVERT != 0 {
        with = !with;
    }
    let combine = |x: u32| match op.imm & 3 {
        result::AND => x & with,
        result::OR => x | with,
        result::XOR => x ^ with,
        _ => x,
    };
    let complement = (op.imm >> result::COMPLEMENT_SHIFT) as u32;
    cx.put_pred(op.d, combine(bits));
    if complement != 0 {
        cx.put_pred(complement - 1, combine(!bits));
    }
}

macro_rules! compare {
    ($($t:ty: $eq:ident $ne:ident $lt:ident $le:ident $gt:ident $ge:ident;)*) => {
        predicate_lanes! {$(
            $eq = (a: $t, b: $t) => a == b;
            $ne = (a: $t, b: $t) => a != b;
            $lt = (a: $t, b: $t) => a < b;
            $le = (a: $t, b: $t) => a <= b;
            $gt = (a: $t, b: $t) => a > b;
            $ge = (a: $t, b: $t) => a >= b;
        )*}
    };
}

compare! {
    u16: EqU16 NeU16 LtU16 LeU16 GtU16 GeU16;
    i16: EqS16 NeS16 LtS16 LeS16 GtS16 GeS16;
    u32: EqU32 NeU32 LtU32 LeU32 GtU32 GeU32;
    i32: EqS32 NeS32 LtS32 LeS32 GtS32 GeS32;
    u64: EqU64 NeU64 LtU64 LeU64 GtU64 GeU64;
    i64: EqS64 NeS64 LtS64 LeS64 GtS64 GeS64;
}

macro_rules! compare_float {
    ($($t:ty: $eq:ident $ne:ident $lt:ident $le:ident $gt:ident $ge:ident
        $equ:ident $neu:ident $ltu:ident $leu:ident $gtu:ident $geu:ident $num:ident $nan:ident;)*) => {
        predicate_lanes! {$(
            $eq = (a: $t, b: $t) => a == b;
            $ne = (a: $t, b: $t) => a < b || a > b;
            $lt = (a: $t, b: $t) => a < b;
            $le = (a: $t, b: $t) => a <= b;
            $gt = (a: $t, b: $t) => a > b;
            $ge = (a: $t, b: $t) => a >= b;
            $equ = (a: $t, b: $t) => !(a < b || a > b);
            $neu = (a: $t, b: $t) => a != b;
            $ltu = (a: $t, b: $t) => !(a >= b);
            $leu = (a: $t, b: $t) => !(a > b);
            $gtu = (a: $t, b: $t) => !(a <= b);
            $geu = (a: $t, b: $t) => !(a < b);
            $num = (a: $t, b: $t) => !a.is_nan() && !b.is_nan();
            $nan = (a: $t, b: $t) => a.is_nan() || b.is_nan();
        )*}
    };
}

compare_float! {
    f32: EqF32 NeF32 LtF32 LeF32 GtF32 GeF32 EquF32 NeuF32 LtuF32 LeuF32 GtuF32 GeuF32 NumF32 NanF32;
    f64: EqF64 NeF64 LtF64 LeF64 GtF64 GeF64 EquF64 NeuF64 LtuF64 LeuF64 GtuF64 GeuF64 NumF64 NanF64;
}

#[inline(always)]
fn chosen(cx: &Cx, op: &Op) -> [u32; LANES] {
    // `imm` = 1 inverts the predicate.
    expand(cx.pred(op.c) ^ (op.imm as u32 & 1).wrapping_neg())
}

/// `d = c ? a : b`
pub(crate) struct Select32;

impl Handler for Select32 {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let (a, b, p) = (cx.row32(op.a), cx.row32(op.b), chosen(cx, op));
        let mut out = [0; LANES];
        for i in 0..LANES {
            out[i] = (a[i] & p[i]) | (b[i] & !p[i]);
        }
        cx.put32(op.d, out);
        pc + 1
    }
}

/// `d = c ? a : b`
pub(crate) struct Select64;

impl Handler for Select64 {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let (a, b, p) = (cx.row64(op.a), cx.row64(op.b), chosen(cx, op));
        let mut out = [0; LANES];
        for i in 0..LANES {
            out[i] = if p[i] != 0 { a[i] } else { b[i] };
        }
        cx.put64(op.d, out);
        pc + 1
    }
}

/// `d = f(a, b)` on predicates: `imm` bits 0–1 and, or, xor, copy of `a`; bits 2, 3 invert a, b;
/// bit 4 inverts the result.
pub(crate) struct PredLogic;

impl Handler for PredLogic {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let flip = |bit: u32| ((op.imm >> bit) as u32 & 1).wrapping_neg();
        let a = cx.pred(op.a) ^ flip(2);
        let b = cx.pred(op.b) ^ flip(3);
        let bits = match op.imm & 3 {
            0 => a & b,
            1 => a | b,
            2 => a ^ b,
            _ => a,
        } ^ flip(4);
        cx.put_pred(op.d, bits);
        pc + 1
    }
}

/// `d = imm` for a predicate.
pub(crate) struct PredConst;

impl Handler for PredConst {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.put_pred(op.d, (op.imm as u32 & 1).wrapping_neg());
        pc + 1
    }
}

/// A 32-bit row (`imm` or 0) from a predicate `a`.
pub(crate) struct PredToRow;

impl Handler for PredToRow {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let mut out = expand(cx.pred(op.a));
        for x in &mut out {
            *x &= op.imm as u32;
        }
        cx.put32(op.d, out);
        pc + 1
    }
}

lanes! {
    SlctS32: u32 = (a: u32, b: u32, c: i32) => if c >= 0 { a } else { b };
    SlctS64: u64 = (a: u64, b: u64, c: i32) => if c >= 0 { a } else { b };
    SlctF32: u32 = (a: u32, b: u32, c: f32) => if c >= 0.0 { a } else { b };
    SlctF64: u64 = (a: u64, b: u64, c: f32) => if c >= 0.0 { a } else { b };
}
