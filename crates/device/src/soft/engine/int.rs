//! Integer arithmetic.

use super::cx::Cx;
use super::handler::{Handler, Op};
use super::rows::{LANES, lanes};

fn div_u64(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(u64::MAX)
}

fn div_s64(a: i64, b: i64) -> i64 {
    if b == 0 { -1 } else { a.wrapping_div(b) }
}

fn rem_u64(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

fn rem_s64(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { a.wrapping_rem(b) }
}

/// Sign-extends the low 24 bits.
fn low24(a: i32) -> i64 {
    i64::from((a << 8) >> 8)
}

fn clamp_s32(a: i64) -> i32 {
    a.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

/// Applies `f` to both halves.
#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | (u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16)
}

fn min_s16(a: u16, b: u16) -> u16 {
    (a as i16).min(b as i16) as u16
}

fn max_s16(a: u16, b: u16) -> u16 {
    (a as i16).max(b as i16) as u16
}

lanes! {
    Mov32: u32 = (a: u32) => a;
    Mov64: u64 = (a: u64) => a;

    Add16: u16 = (a: u16, b: u16) => a.wrapping_add(b);
    Add32: u32 = (a: u32, b: u32) => a.wrapping_add(b);
    Add64: u64 = (a: u64, b: u64) => a.wrapping_add(b);
    Sub16: u16 = (a: u16, b: u16) => a.wrapping_sub(b);
    Sub32: u32 = (a: u32, b: u32) => a.wrapping_sub(b);
    Sub64: u64 = (a: u64, b: u64) => a.wrapping_sub(b);
    AddSatS32: i32 = (a: i32, b: i32) => a.saturating_add(b);
    SubSatS32: i32 = (a: i32, b: i32) => a.saturating_sub(b);
    Add16x2: u32 = (a: u32, b: u32) => halves(a, b, u16::wrapping_add);
    Sub16x2: u32 = (a: u32, b: u32) => halves(a, b, u16::wrapping_sub);

    Mul16: u16 = (a: u16, b: u16) => (u32::from(a) * u32::from(b)) as u16;
    Mul32: u32 = (a: u32, b: u32) => a.wrapping_mul(b);
    Mul64: u64 = (a: u64, b: u64) => a.wrapping_mul(b);
    MulHiU16: u16 = (a: u16, b: u16) => ((u32::from(a) * u32::from(b)) >> 16) as u16;
    MulHiS16: i16 = (a: i16, b: i16) => ((i32::from(a) * i32::from(b)) >> 16) as i16;
    MulHiU32: u32 = (a: u32, b: u32) => ((u64::from(a) * u64::from(b)) >> 32) as u32;
    MulHiS32: i32 = (a: i32, b: i32) => ((i64::from(a) * i64::from(b)) >> 32) as i32;
    MulHiU64: u64 = (a: u64, b: u64) => ((u128::from(a) * u128::from(b)) >> 64) as u64;
    MulHiS64: i64 = (a: i64, b: i64) => ((i128::from(a) * i128::from(b)) >> 64) as i64;
    MulWideU16: u32 = (a: u16, b: u16) => u32::from(a) * u32::from(b);
    MulWideS16: i32 = (a: i16, b: i16) => i32::from(a) * i32::from(b);
    MulWideU32: u64 = (a: u32, b: u32) => u64::from(a) * u64::from(b);
    MulWideS32: i64 = (a: i32, b: i32) => i64::from(a) * i64::from(b);
    Mul24LoU32: u32 = (a: u32, b: u32) => (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff);
    Mul24LoS32: i32 = (a: i32, b: i32) => (low24(a) * low24(b)) as i32;
    Mul24HiU32: u32 = (a: u32, b: u32) =>
        ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32;
    Mul24HiS32: i32 = (a: i32, b: i32) => ((low24(a) * low24(b)) >> 16) as i32;

    MadLo16: u16 = (a: u16, b: u16, c: u16) =>
        (u32::from(a) * u32::from(b)).wrapping_add(u32::from(c)) as u16;
    MadLo32: u32 = (a: u32, b: u32, c: u32) => a.wrapping_mul(b).wrapping_add(c);
    MadLo64: u64 = (a: u64, b: u64, c: u64) => a.wrapping_mul(b).wrapping_add(c);
    MadWideU16: u32 = (a: u16, b: u16, c: u32) => (u32::from(a) * u32::from(b)).wrapping_add(c);
    MadWideS16: i32 = (a: i16, b: i16, c: i32) => (i32::from(a) * i32::from(b)).wrapping_add(c);
    MadWideU32: u64 = (a: u32, b: u32, c: u64) => (u64::from(a) * u64::from(b)).wrapping_add(c);
    MadWideS32: i64 = (a: i32, b: i32, c: i64) => (i64::from(a) * i64::from(b)).wrapping_add(c);
    MadHiSatS32: i32 = (a: i32, b: i32, c: i32) =>
        clamp_s32(((i64::from(a) * i64::from(b)) >> 32) + i64::from(c));
    Mad24HiSatS32: i32 = (a: i32, b: i32, c: i32) =>
        clamp_s32(((low24(a) * low24(b)) >> 16) + i64::from(c));

    DivU16: u16 = (a: u16, b: u16) => a.checked_div(b).unwrap_or(u16::MAX);
    DivS16: i16 = (a: i16, b: i16) => if b == 0 { -1 } else { a.wrapping_div(b) };
    DivU32: u32 = (a: u32, b: u32) => a.checked_div(b).unwrap_or(u32::MAX);
    DivS32: i32 = (a: i32, b: i32) => if b == 0 { -1 } else { a.wrapping_div(b) };
    DivU64: u64 = (a: u64, b: u64) => div_u64(a, b);
    DivS64: i64 = (a: i64, b: i64) => div_s64(a, b);
    RemU16: u16 = (a: u16, b: u16) => a.checked_rem(b).unwrap_or(a);
    RemS16: i16 = (a: i16, b: i16) => if b == 0 { a } else { a.wrapping_rem(b) };
    RemU32: u32 = (a: u32, b: u32) => a.checked_rem(b).unwrap_or(a);
    RemS32: i32 = (a: i32, b: i32) => if b == 0 { a } else { a.wrapping_rem(b) };
    RemU64: u64 = (a: u64, b: u64) => rem_u64(a, b);
    RemS64: i64 = (a: i64, b: i64) => rem_s64(a, b);

    MinU16: u16 = (a: u16, b: u16) => a.min(b);
    MinS16: i16 = (a: i16, b: i16) => a.min(b);
    MinU32: u32 = (a: u32, b: u32) => a.min(b);
    MinS32: i32 = (a: i32, b: i32) => a.min(b);
    MinU64: u64 = (a: u64, b: u64) => a.min(b);
    MinS64: i64 = (a: i64, b: i64) => a.min(b);
    MinU16x2: u32 = (a: u32, b: u32) => halves(a, b, u16::min);
    MinS16x2: u32 = (a: u32, b: u32) => halves(a, b, min_s16);
    MaxU16: u16 = (a: u16, b: u16) => a.max(b);
    MaxS16: i16 = (a: i16, b: i16) => a.max(b);
    MaxU32: u32 = (a: u32, b: u32) => a.max(b);
    MaxS32: i32 = (a: i32, b: i32) => a.max(b);
    MaxU64: u64 = (a: u64, b: u64) => a.max(b);
    MaxS64: i64 = (a: i64, b: i64) => a.max(b);
    MaxU16x2: u32 = (a: u32, b: u32) => halves(a, b, u16::max);
    MaxS16x2: u32 = (a: u32, b: u32) => halves(a, b, max_s16);
    ReluS32: i32 = (a: i32) => a.max(0);
    ReluS16: i16 = (a: i16) => a.max(0);
    ReluS16x2: u32 = (a: u32) => halves(a, 0, max_s16);

    Neg16: u16 = (a: u16) => a.wrapping_neg();
    Neg32: u32 = (a: u32) => a.wrapping_neg();
    Neg64: u64 = (a: u64) => a.wrapping_neg();
    Abs16: i16 = (a: i16) => a.wrapping_abs();
    Abs32: i32 = (a: i32) => a.wrapping_abs();
    Abs64: i64 = (a: i64) => a.wrapping_abs();
    AbsDiffU16: u16 = (a: u16, b: u16) => a.abs_diff(b);
    AbsDiffS16: u16 = (a: i16, b: i16) => a.abs_diff(b);
    AbsDiffU32: u32 = (a: u32, b: u32) => a.abs_diff(b);
    AbsDiffS32: u32 = (a: i32, b: i32) => a.abs_diff(b);
    AbsDiffU64: u64 = (a: u64, b: u64) => a.abs_diff(b);
    AbsDiffS64: u64 = (a: i64, b: i64) => a.abs_diff(b);

    Dp4aUU: u32 = (a: u32, b: u32, c: u32) => dp4(a, b, c, false, false);
    Dp4aUS: u32 = (a: u32, b: u32, c: u32) => dp4(a, b, c, false, true);
    Dp4aSU: u32 = (a: u32, b: u32, c: u32) => dp4(a, b, c, true, false);
    Dp4aSS: u32 = (a: u32, b: u32, c: u32) => dp4(a, b, c, true, true);
    // `imm`: bit 0 `a` signed, bit 1 `b` signed, bit 2 upper bytes.
    Dp2a: u32 = (a: u32, b: u32, c: u32), imm => dp2(a, b, c, imm);
}

#[inline(always)]
fn byte(x: u32, i: u32, signed: bool) -> i32 {
    let b = (x >> (8 * i)) as u8;
    if signed { i32::from(b as i8) } else { i32::from(b) }
}

#[inline(always)]
fn dp4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let mut sum = c;
    for i in 0..4 {
        sum = sum.wrapping_add((byte(a, i, a_signed) * byte(b, i, b_signed)) as u32);
    }
    sum
}

#[inline(always)]
fn dp2(a: u32, b: u32, c: u32, flags: u64) -> u32 {
    let first = if flags & 4 != 0 { 2 } else { 0 };
    let mut sum = c;
    for i in 0..2 {
        let half = (a >> (16 * i)) as u16;
        let x = if flags & 1 != 0 { i32::from(half as i16) } else { i32::from(half) };
        let y = byte(b, first + i, flags & 2 != 0);
        sum = sum.wrapping_add(x.wrapping_mul(y) as u32);
    }
    sum
}

/// How a carry operation behaves, in `Op::imm`.
pub(crate) mod carry_flags {
    pub(crate) const IN: u64 = 1;
    pub(crate) const OUT: u64 = 2;
    pub(crate) const SUBTRACT: u64 = 4;
}

/// Adds or subtracts with the lanes' carry flags, in `bits`-wide arithmetic.
///
/// A subtraction is the hardware's `a + !b + 1`: the carry that it leaves and takes is the borrow's
/// complement, which an `addc` after a `sub.cc` shows.
#[inline(always)]
fn with_carry(
    cx: &mut Cx,
    imm: u64,
    bits: u32,
    a: &[u64; LANES],
    b: &[u64; LANES],
) -> [u64; LANES] {
    let subtracts = imm & carry_flags::SUBTRACT != 0;
    let complement = if subtracts { u32::MAX } else { 0 };
    let carry = if imm & carry_flags::IN != 0 { cx.warp.carry ^ complement } else { 0 };
    let mut out = [0; LANES];
    let mut flags = 0;
    for i in 0..LANES {
        let x = u128::from(a[i]);
        let y = u128::from(b[i]) + u128::from(carry >> i & 1);
        let r = if subtracts { x.wrapping_sub(y) } else { x + y };
        out[i] = r as u64;
        flags |= ((r >> bits) as u32 & 1) << i;
    }
    flags ^= complement;
    if imm & carry_flags::OUT != 0 {
        cx.warp.carry = (cx.warp.carry & !cx.mask) | (flags & cx.mask);
    }
    out
}

#[inline(always)]
fn widen(a: [u32; LANES]) -> [u64; LANES] {
    let mut out = [0; LANES];
    for i in 0..LANES {
        out[i] = u64::from(a[i]);
    }
    out
}

#[inline(always)]
fn narrow(a: [u64; LANES]) -> [u32; LANES] {
    let mut out = [0; LANES];
    for i in 0..LANES {
        out[i] = a[i] as u32;
    }
    out
}

/// `d = a ± b` with carry.
pub(crate) struct AddCarry32;

impl Handler for AddCarry32 {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let (a, b) = (widen(cx.row32(op.a)), widen(cx.row32(op.b)));
        let out = with_carry(cx, op.imm, 32, &a, &b);
        cx.put32(op.d, narrow(out));
        pc + 1
    }
}

/// `d = a ± b` with carry.
pub(crate) struct AddCarry64;

impl Handler for AddCarry64 {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let (a, b) = (cx.row64(op.a), cx.row64(op.b));
        let out = with_carry(cx, op.imm, 64, &a, &b);
        cx.put64(op.d, out);
        pc + 1
    }
}
