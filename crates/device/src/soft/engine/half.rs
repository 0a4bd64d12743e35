//! Arithmetic of half-precision numbers, bfloat16 and pairs.

use weft_ptx::ir::Rounding;

use super::float::{canonical, flush};
use super::ieee;
use super::rows::lanes;

// Operations, in bits 0–3 of `Op::imm`.
pub(crate) const ADD: u64 = 0;
pub(crate) const SUB: u64 = 1;
pub(crate) const MUL: u64 = 2;
pub(crate) const MIN: u64 = 3;
pub(crate) const MAX: u64 = 4;
pub(crate) const ABS: u64 = 0;
pub(crate) const NEG: u64 = 1;
pub(crate) const EX2: u64 = 2;
pub(crate) const TANH: u64 = 3;
pub(crate) const SAT: u64 = 4;
pub(crate) const RELU: u64 = 5;
/// Subnormals are flushed (half precision only).
pub(crate) const FTZ: u64 = 1 << 4;
/// `min` and `max` give NaN for NaN.
pub(crate) const NAN: u64 = 1 << 5;
/// The sign is the exclusive or of the signs.
pub(crate) const XORSIGN: u64 = 1 << 6;

/// A 16-bit format.
trait Half {
    fn value(bits: u32) -> f32;
    fn round(x: f32) -> u32;
    const FORMAT: ieee::Format;
    /// Bits of the exponent.
    const EXPONENT: u32;
}

struct Binary16;
struct Brain16;

impl Half for Binary16 {
    #[inline(always)]
    fn value(bits: u32) -> f32 {
        ieee::f32_of_f16(bits & 0xffff)
    }
    #[inline(always)]
    fn round(x: f32) -> u32 {
        ieee::f16_of_f32(x)
    }
    const FORMAT: ieee::Format = ieee::F16;
    const EXPONENT: u32 = 0x7c00;
}

impl Half for Brain16 {
    #[inline(always)]
    fn value(bits: u32) -> f32 {
        ieee::f32_of_bf16(bits & 0xffff)
    }
    #[inline(always)]
    fn round(x: f32) -> u32 {
        ieee::bf16_of_f32(x)
    }
    const FORMAT: ieee::Format = ieee::BF16;
    const EXPONENT: u32 = 0x7f80;
}

#[inline(always)]
fn flush_half<H: Half>(bits: u32, imm: u64) -> u32 {
    if imm & FTZ != 0 && bits & H::EXPONENT == 0 { bits & 0x8000 } else { bits & 0xffff }
}

/// `f32` arithmetic has more than twice the bits of a half plus two, so rounding its result again
/// is correct rounding of the exact one for sums and products.
#[inline(always)]
fn binary<H: Half>(a: u32, b: u32, imm: u64) -> u32 {
    let (a, b) = (flush_half::<H>(a, imm), flush_half::<H>(b, imm));
    let (x, y) = (H::value(a), H::value(b));
    let result = match imm & 15 {
        ADD => H::round(x + y),
        SUB => H::round(x - y),
        MUL => H::round(x * y),
        op => return min_max::<H>(op == MIN, a, b, imm),
    };
    flush_half::<H>(result, imm)
}

#[inline(always)]
fn min_max<H: Half>(min: bool, a: u32, b: u32, imm: u64) -> u32 {
    let sign = (a ^ b) & 0x8000;
    let (a, b) = if imm & XORSIGN != 0 { (a & 0x7fff, b & 0x7fff) } else { (a, b) };
    let (x, y) = (H::value(a), H::value(b));
    let less = if x == y { a & 0x8000 != 0 } else { x < y };
    let result = match (x.is_nan(), y.is_nan()) {
        (true, true) => 0x7fff,
        (true, false) | (false, true) if imm & NAN != 0 => 0x7fff,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if less == min {
                a
            } else {
                b
            }
        }
    };
    if imm & XORSIGN != 0 { (result & 0x7fff) | sign } else { result }
}

#[inline(always)]
fn fma<H: Half>(a: u32, b: u32, c: u32, imm: u64) -> u32 {
    let [x, y, z] = [a, b, c].map(|v| f64::from(H::value(flush_half::<H>(v, imm))));
    // The product of two halves is exact in f64; the sum is, unless the exponents are far apart.
    let product = x * y;
    let sum = product + z;
    let back = sum - product;
    let lost = (product - (sum - back)) + (z - back);
    let result = if lost == 0.0 && sum.is_finite() && H::FORMAT == ieee::F16 {
        ieee::convert(sum, H::FORMAT, Rounding::Nearest) as u32
    } else {
        ieee::fma(x, y, z, H::FORMAT, Rounding::Nearest) as u32
    };
    flush_half::<H>(result, imm)
}

#[inline(always)]
fn unary<H: Half>(a: u32, op: u64) -> u32 {
    let x = H::value(a);
    match op & 15 {
        ABS => a & 0x7fff,
        NEG => (a ^ 0x8000) & 0xffff,
        EX2 => H::round(x.exp2()),
        TANH => H::round(x.tanh()),
        SAT => H::round(if x > 0.0 { x.min(1.0) } else { 0.0 }),
        _ => {
            if x.is_nan() {
                0x7fff
            } else if x > 0.0 {
                a & 0xffff
            } else {
                0
            }
        }
    }
}

#[inline(always)]
fn both2(a: u32, b: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    f(a & 0xffff, b & 0xffff) | (f(a >> 16, b >> 16) << 16)
}

#[inline(always)]
fn both3(a: u32, b: u32, c: u32, f: impl Fn(u32, u32, u32) -> u32) -> u32 {
    f(a & 0xffff, b & 0xffff, c & 0xffff) | (f(a >> 16, b >> 16, c >> 16) << 16)
}

#[inline(always)]
fn pair(low: f32, high: f32) -> u64 {
    u64::from(low.to_bits()) | (u64::from(high.to_bits()) << 32)
}

#[inline(always)]
fn parts(x: u64) -> [f32; 2] {
    [f32::from_bits(x as u32), f32::from_bits((x >> 32) as u32)]
}

#[inline(always)]
fn binary_f32x2(a: u64, b: u64, imm: u64) -> u64 {
    let (a, b) = (parts(a), parts(b));
    let f = |x: f32, y: f32| {
        let (x, y) = if imm & FTZ != 0 { (flush(x), flush(y)) } else { (x, y) };
        let r = canonical(match imm & 15 {
            SUB => x - y,
            MUL => x * y,
            _ => x + y,
        });
        if imm & FTZ != 0 { flush(r) } else { r }
    };
    pair(f(a[0], b[0]), f(a[1], b[1]))
}

#[inline(always)]
fn fma_f32x2(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    let flushed = |x: f32| if imm & FTZ != 0 { flush(x) } else { x };
    let [a, b, c] = [a, b, c].map(|pair| parts(pair).map(flushed));
    let f = |x: f32, y: f32, z: f32| flushed(canonical(x.mul_add(y, z)));
    pair(f(a[0], b[0], c[0]), f(a[1], b[1], c[1]))
}

lanes! {
    BinaryF16: u32 = (a: u32, b: u32), imm => binary::<Binary16>(a, b, imm);
    BinaryF16x2: u32 = (a: u32, b: u32), imm => both2(a, b, |a, b| binary::<Binary16>(a, b, imm));
    BinaryBF16: u32 = (a: u32, b: u32), imm => binary::<Brain16>(a, b, imm);
    BinaryBF16x2: u32 = (a: u32, b: u32), imm => both2(a, b, |a, b| binary::<Brain16>(a, b, imm));
    BinaryF32x2: u64 = (a: u64, b: u64), imm => binary_f32x2(a, b, imm);
    FmaF16: u32 = (a: u32, b: u32, c: u32), imm => fma::<Binary16>(a, b, c, imm);
    FmaF16x2: u32 = (a: u32, b: u32, c: u32), imm =>
        both3(a, b, c, |a, b, c| fma::<Binary16>(a, b, c, imm));
    FmaBF16: u32 = (a: u32, b: u32, c: u32), imm => fma::<Brain16>(a, b, c, imm);
    FmaBF16x2: u32 = (a: u32, b: u32, c: u32), imm =>
        both3(a, b, c, |a, b, c| fma::<Brain16>(a, b, c, imm));
    FmaF32x2: u64 = (a: u64, b: u64, c: u64), imm => fma_f32x2(a, b, c, imm);
    UnaryF16: u32 = (a: u32), imm => unary::<Binary16>(a, imm);
    UnaryF16x2: u32 = (a: u32), imm => both2(a, 0, |a, _| unary::<Binary16>(a, imm));
    UnaryBF16: u32 = (a: u32), imm => unary::<Brain16>(a, imm);
    UnaryBF16x2: u32 = (a: u32), imm => both2(a, 0, |a, _| unary::<Brain16>(a, imm));
}
