//! Floating-point arithmetic of 32 and 64 bits.

use weft_ptx::ir::Rounding;

use super::ieee;
use super::rows::lanes;

/// Subnormal numbers become zeros of their sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { x }
}

#[inline(always)]
fn flush64(x: f64) -> f64 {
    let bits = x.to_bits();
    if bits & 0x7ff0_0000_0000_0000 == 0 { f64::from_bits(bits & (1 << 63)) } else { x }
}

/// NaN results are canonical.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { x }
}

#[inline(always)]
fn min32(a: f32, b: f32) -> f32 {
    let equal = f32::from_bits(a.to_bits() | b.to_bits());
    let number = if a == b {
        equal
    } else if a < b {
        a
    } else {
        b
    };
    canonical(if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        number
    })
}

#[inline(always)]
fn max32(a: f32, b: f32) -> f32 {
    let equal = f32::from_bits(a.to_bits() & b.to_bits());
    let number = if a == b {
        equal
    } else if a > b {
        a
    } else {
        b
    };
    canonical(if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        number
    })
}

#[inline(always)]
fn min64(a: f64, b: f64) -> f64 {
    let equal = f64::from_bits(a.to_bits() | b.to_bits());
    let number = if a == b {
        equal
    } else if a < b {
        a
    } else {
        b
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        number
    }
}

#[inline(always)]
fn max64(a: f64, b: f64) -> f64 {
    let equal = f64::from_bits(a.to_bits() & b.to_bits());
    let number = if a == b {
        equal
    } else if a > b {
        a
    } else {
        b
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        number
    }
}

/// How an operation rounds, in `Op::imm`: bits 0–1 the mode, bit 2 flushes subnormals.
pub(crate) mod round_flags {
    pub(crate) const FTZ: u64 = 4;
}

/// Bits 0–1 of `Op::imm` for a mode.
pub(crate) fn mode_bits(mode: Rounding) -> u64 {
    match mode {
        Rounding::Nearest => 0,
        Rounding::Zero => 1,
        Rounding::Down => 2,
        Rounding::Up => 3,
    }
}

/// The mode of `Op::imm`.
#[inline(always)]
pub(crate) fn mode_of(imm: u64) -> Rounding {
    match imm & 3 {
        0 => Rounding::Nearest,
        1 => Rounding::Zero,
        2 => Rounding::Down,
        _ => Rounding::Up,
    }
}

#[inline(always)]
pub(crate) fn flush_if(x: f32, imm: u64) -> f32 {
    if imm & round_flags::FTZ != 0 { flush(x) } else { x }
}

/// Evaluates `f` on the (flushed) operands, in double precision with exact rounding inside.
#[inline(always)]
fn rounded(imm: u64, operands: [f32; 3], f: impl Fn([f64; 3], Rounding) -> u64) -> f32 {
    let wide = operands.map(|x| f64::from(flush_if(x, imm)));
    flush_if(f32::from_bits(f(wide, mode_of(imm)) as u32), imm)
}

lanes! {
    AddF32: f32 = (a: f32, b: f32) => canonical(a + b);
    SubF32: f32 = (a: f32, b: f32) => canonical(a - b);
    MulF32: f32 = (a: f32, b: f32) => canonical(a * b);
    FmaF32: f32 = (a: f32, b: f32, c: f32) => canonical(a.mul_add(b, c));
    DivF32: f32 = (a: f32, b: f32) => canonical(a / b);
    SqrtF32: f32 = (a: f32) => canonical(a.sqrt());
    RcpF32: f32 = (a: f32) => canonical(1.0 / a);
    AddFtzF32: f32 = (a: f32, b: f32) => flush(canonical(flush(a) + flush(b)));
    SubFtzF32: f32 = (a: f32, b: f32) => flush(canonical(flush(a) - flush(b)));
    MulFtzF32: f32 = (a: f32, b: f32) => flush(canonical(flush(a) * flush(b)));
    FmaFtzF32: f32 = (a: f32, b: f32, c: f32) =>
        flush(canonical(flush(a).mul_add(flush(b), flush(c))));
    DivFtzF32: f32 = (a: f32, b: f32) => flush(canonical(flush(a) / flush(b)));
    SqrtFtzF32: f32 = (a: f32) => canonical(flush(a).sqrt());
    RcpFtzF32: f32 = (a: f32) => flush(canonical(1.0 / flush(a)));
    AddRoundF32: f32 = (a: f32, b: f32), imm =>
        rounded(imm, [a, b, 0.0], |[a, b, _], m| ieee::add(a, b, ieee::F32, m));
    SubRoundF32: f32 = (a: f32, b: f32), imm =>
        rounded(imm, [a, b, 0.0], |[a, b, _], m| ieee::add(a, -b, ieee::F32, m));
    MulRoundF32: f32 = (a: f32, b: f32), imm =>
        rounded(imm, [a, b, 0.0], |[a, b, _], m| ieee::mul(a, b, ieee::F32, m));
    FmaRoundF32: f32 = (a: f32, b: f32, c: f32), imm =>
        rounded(imm, [a, b, c], |[a, b, c], m| ieee::fma(a, b, c, ieee::F32, m));
    DivRoundF32: f32 = (a: f32, b: f32), imm =>
        rounded(imm, [a, b, 0.0], |[a, b, _], m| ieee::div(a, b, ieee::F32, m));
    RcpRoundF32: f32 = (a: f32), imm =>
        rounded(imm, [a, 0.0, 0.0], |[a, ..], m| ieee::div(1.0, a, ieee::F32, m));
    SqrtRoundF32: f32 = (a: f32), imm =>
        rounded(imm, [a, 0.0, 0.0], |[a, ..], m| ieee::sqrt(a, ieee::F32, m));

    AddF64: f64 = (a: f64, b: f64) => a + b;
    SubF64: f64 = (a: f64, b: f64) => a - b;
    MulF64: f64 = (a: f64, b: f64) => a * b;
    FmaF64: f64 = (a: f64, b: f64, c: f64) => a.mul_add(b, c);
    DivF64: f64 = (a: f64, b: f64) => a / b;
    SqrtF64: f64 = (a: f64) => a.sqrt();
    RcpF64: f64 = (a: f64) => 1.0 / a;
    RcpFtzF64: f64 = (a: f64) => flush64(1.0 / flush64(a));
    RsqrtF64: f64 = (a: f64) => 1.0 / a.sqrt();
    RsqrtFtzF64: f64 = (a: f64) => 1.0 / flush64(a).sqrt();
    AddRoundF64: f64 = (a: f64, b: f64), imm =>
        f64::from_bits(ieee::add(a, b, ieee::F64, mode_of(imm)));
    SubRoundF64: f64 = (a: f64, b: f64), imm =>
        f64::from_bits(ieee::add(a, -b, ieee::F64, mode_of(imm)));
    MulRoundF64: f64 = (a: f64, b: f64), imm =>
        f64::from_bits(ieee::mul(a, b, ieee::F64, mode_of(imm)));
    FmaRoundF64: f64 = (a: f64, b: f64, c: f64), imm =>
        f64::from_bits(ieee::fma(a, b, c, ieee::F64, mode_of(imm)));
    DivRoundF64: f64 = (a: f64, b: f64), imm =>
        f64::from_bits(ieee::div(a, b, ieee::F64, mode_of(imm)));
    RcpRoundF64: f64 = (a: f64), imm =>
        f64::from_bits(ieee::div(1.0, a, ieee::F64, mode_of(imm)));
    SqrtRoundF64: f64 = (a: f64), imm =>
        f64::from_bits(ieee::sqrt(a, ieee::F64, mode_of(imm)));

    MinF32: f32 = (a: f32, b: f32) => min32(a, b);
    MaxF32: f32 = (a: f32, b: f32) => max32(a, b);
    MinFtzF32: f32 = (a: f32, b: f32) => min32(flush(a), flush(b));
    MaxFtzF32: f32 = (a: f32, b: f32) => max32(flush(a), flush(b));
    MinF64: f64 = (a: f64, b: f64) => min64(a, b);
    MaxF64: f64 = (a: f64, b: f64) => max64(a, b);
    // `c` where neither operand is a NaN, else NaN.
    NanIfF32: f32 = (a: f32, b: f32, c: f32) =>
        if a.is_nan() || b.is_nan() { canonical(f32::NAN) } else { c };
    // The magnitude of `c` with the exclusive or of the signs of `a` and `b`.
    XorSignF32: u32 = (a: u32, b: u32, c: u32) => (c & 0x7fff_ffff) | ((a ^ b) & 0x8000_0000);
    SatF32: f32 = (a: f32) => if a > 0.0 { a.min(1.0) } else { 0.0 };
    SatF64: f64 = (a: f64) => if a > 0.0 { a.min(1.0) } else { 0.0 };
    ReluF32: f32 = (a: f32) => if a.is_nan() || a > 0.0 { a } else { 0.0 };

    AbsF32: u32 = (a: u32) => a & 0x7fff_ffff;
    NegF32: u32 = (a: u32) => a ^ 0x8000_0000;
    AbsF64: u64 = (a: u64) => a & !(1 << 63);
    NegF64: u64 = (a: u64) => a ^ (1 << 63);
    FlushF32: f32 = (a: f32) => flush(a);
    CopysignF32: u32 = (a: u32, b: u32) => (a & 0x8000_0000) | (b & 0x7fff_ffff);
    CopysignF64: u64 = (a: u64, b: u64) => (a & (1 << 63)) | (b & !(1 << 63));

    // Approximations; `imm` may ask to flush subnormals.
    RsqrtF32: f32 = (a: f32), imm =>
        canonical((1.0 / f64::from(flush_if(a, imm)).sqrt()) as f32);
    SinF32: f32 = (a: f32), imm =>
        flush_if(canonical(f64::from(flush_if(a, imm)).sin() as f32), imm);
    CosF32: f32 = (a: f32), imm =>
        flush_if(canonical(f64::from(flush_if(a, imm)).cos() as f32), imm);
    Lg2F32: f32 = (a: f32), imm => canonical(flush_if(a, imm).log2());
    Ex2F32: f32 = (a: f32), imm => flush_if(canonical(flush_if(a, imm).exp2()), imm);
    // In no document, but programs write them.
    SinF64: f64 = (a: f64) => a.sin();
    CosF64: f64 = (a: f64) => a.cos();
    Lg2F64: f64 = (a: f64) => a.log2();
    Ex2F64: f64 = (a: f64) => a.exp2();
    TanhF64: f64 = (a: f64) => a.tanh();
    TanhF32: f32 = (a: f32) => canonical(a.tanh());
}
