//! Correctly rounded arithmetic in every rounding mode and format, on integers.

use weft_ptx::ir::Rounding;

/// A binary interchange format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of the significand, the hidden one included.
    precision: u32,
    /// Exponent of the lowest bit of a subnormal number.
    lowest: i32,
    /// Exponent of the highest bit of the largest number.
    highest: i32,
    /// All bits.
    bits: u32,
    /// Bits of infinity without sign.
    infinity: u64,
}

pub(crate) const F64: Format =
    Format { precision: 53, lowest: -1074, highest: 1023, bits: 64, infinity: 0x7ff << 52 };
pub(crate) const F32: Format =
    Format { precision: 24, lowest: -149, highest: 127, bits: 32, infinity: 0xff << 23 };
pub(crate) const F16: Format =
    Format { precision: 11, lowest: -24, highest: 15, bits: 16, infinity: 0x1f << 10 };
pub(crate) const BF16: Format =
    Format { precision: 8, lowest: -133, highest: 127, bits: 16, infinity: 0xff << 7 };
pub(crate) const TF32: Format =
    Format { precision: 11, lowest: -136, highest: 127, bits: 19, infinity: 0xff << 10 };

/// A finite number: `±mant × 2^exp`, a little more in magnitude if `sticky`.
#[derive(Clone, Copy, Debug)]
struct Exact {
    negative: bool,
    mant: u128,
    exp: i32,
    sticky: bool,
}

impl Exact {
    /// The value of a finite number.
    fn of(x: f64) -> Self {
        let bits = x.to_bits();
        let field = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let (mant, exp) =
            if field == 0 { (fraction, -1074) } else { (fraction | 1 << 52, field - 1075) };
        Self { negative: bits >> 63 != 0, mant: u128::from(mant), exp, sticky: false }
    }

    fn top(&self) -> i32 {
        self.exp + 127 - self.mant.leading_zeros() as i32
    }

    /// Shifted so that the highest bit is bit 125.
    fn normalized(mut self) -> Self {
        let up = self.mant.leading_zeros().saturating_sub(2);
        self.mant <<= up;
        self.exp -= up as i32;
        self
    }

    fn sum(self, other: Self, mode: Rounding) -> Self {
        if self.mant == 0 && other.mant == 0 {
            let negative = if self.negative == other.negative {
                self.negative
            } else {
                mode == Rounding::Down
            };
            return Self { negative, ..self };
        }
        if self.mant == 0 {
            return other;
        }
        if other.mant == 0 {
            return self;
        }
        let (big, small) = if self.top() >= other.top() { (self, other) } else { (other, self) };
        let (big, small) = (big.normalized(), small.normalized());
        let shift = (big.exp - small.exp) as u32;
        let (low, lost) = if shift > 127 {
            (0, true)
        } else {
            (small.mant >> shift, small.mant & ((1u128 << shift) - 1) != 0)
        };
        if big.negative == small.negative {
            return Self { mant: big.mant + low, sticky: lost, ..big };
        }
        // The small number is a little larger than `low`, so the difference a little smaller: one
        // less, plus a fraction.
        let (first, second, negative) = if big.mant >= low {
            (big.mant, low, big.negative)
        } else {
            (low, big.mant, small.negative)
        };
        let mant = first - second - u128::from(lost);
        if mant == 0 && !lost {
            return Self { negative: mode == Rounding::Down, mant, exp: big.exp, sticky: false };
        }
        Self { negative, mant, exp: big.exp, sticky: lost }
    }

    /// The nearest number of the format in that direction.
    fn round(self, format: Format, mode: Rounding) -> u64 {
        let sign = u64::from(self.negative) << (format.bits - 1);
        if self.mant == 0 && !self.sticky {
            return sign;
        }
        let p = format.precision as i32;
        let lsb = (self.top() - (p - 1)).max(format.lowest);
        let shift = lsb - self.exp;
        let (mut mant, rest, half) = if shift <= 0 {
            (self.mant << -shift, 0, 1)
        } else if shift > 127 {
            (0, u128::from(self.mant != 0), 2)
        } else {
            (self.mant >> shift, self.mant & ((1 << shift) - 1), 1 << (shift - 1))
        };
        let inexact = rest != 0 || self.sticky;
        let up = match mode {
            Rounding::Nearest => rest > half || (rest == half && (self.sticky || mant & 1 != 0)),
            Rounding::Zero => false,
            Rounding::Down => inexact && self.negative,
            Rounding::Up => inexact && !self.negative,
        };
        let mut lsb = lsb;
        mant += u128::from(up);
        if mant >> p != 0 {
            mant >>= 1;
            lsb += 1;
        }
        let hidden = 1u128 << (p - 1);
        if mant >= hidden && lsb + p - 1 > format.highest {
            let to_infinity = match mode {
                Rounding::Nearest => true,
                Rounding::Zero => false,
                Rounding::Down => self.negative,
                Rounding::Up => !self.negative,
            };
            return sign | if to_infinity { format.infinity } else { format.infinity - 1 };
        }
        let field = if mant < hidden { 0 } else { (lsb - format.lowest + 1) as u64 };
        sign | (field << (p - 1)) | (mant & (hidden - 1)) as u64
    }
}

/// A special value in the format: zero, infinity, or NaN of `x`.
fn special(x: f64, format: Format) -> u64 {
    if x.is_nan() {
        return nan(format);
    }
    let sign = u64::from(x.is_sign_negative()) << (format.bits - 1);
    sign | if x.is_infinite() { format.infinity } else { 0 }
}

/// The canonical NaN.
fn nan(format: Format) -> u64 {
    if format == F64 { 0xfff8 << 48 } else { (1 << (format.bits - 1)) - 1 }
}

/// `a × b + c`
pub(crate) fn fma(a: f64, b: f64, c: f64, format: Format, mode: Rounding) -> u64 {
    let native = a * b + c;
    if !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return special(if a.is_finite() && b.is_finite() { c } else { native }, format);
    }
    product(a, b).sum(Exact::of(c), mode).round(format, mode)
}

fn product(a: f64, b: f64) -> Exact {
    let (x, y) = (Exact::of(a), Exact::of(b));
    Exact {
        negative: x.negative != y.negative,
        mant: x.mant * y.mant,
        exp: x.exp + y.exp,
        sticky: false,
    }
}

/// `a + b`
pub(crate) fn add(a: f64, b: f64, format: Format, mode: Rounding) -> u64 {
    if !a.is_finite() || !b.is_finite() {
        return special(a + b, format);
    }
    Exact::of(a).sum(Exact::of(b), mode).round(format, mode)
}

/// `a × b`
pub(crate) fn mul(a: f64, b: f64, format: Format, mode: Rounding) -> u64 {
    if !a.is_finite() || !b.is_finite() {
        return special(a * b, format);
    }
    product(a, b).round(format, mode)
}

/// `a / b`
pub(crate) fn div(a: f64, b: f64, format: Format, mode: Rounding) -> u64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return special(a / b, format);
    }
    let (x, y) = (Exact::of(a).normalized(), Exact::of(b));
    let quotient = Exact {
        negative: x.negative != y.negative,
        mant: x.mant / y.mant,
        exp: x.exp - y.exp,
        sticky: !x.mant.is_multiple_of(y.mant),
    };
    quotient.round(format, mode)
}

/// `√a`
pub(crate) fn sqrt(a: f64, format: Format, mode: Rounding) -> u64 {
    if !a.is_finite() || a <= 0.0 {
        return special(a.sqrt(), format);
    }
    let mut x = Exact::of(a).normalized();
    if x.exp & 1 != 0 {
        x.mant >>= 1;
        x.exp += 1;
    }
    let root = x.mant.isqrt();
    let exact = root * root == x.mant;
    Exact { negative: false, mant: root, exp: x.exp / 2, sticky: !exact }.round(format, mode)
}

/// `a` in another format.
pub(crate) fn convert(a: f64, format: Format, mode: Rounding) -> u64 {
    if !a.is_finite() || a == 0.0 {
        return special(a, format);
    }
    Exact::of(a).round(format, mode)
}

/// An integer in a format.
pub(crate) fn from_int(magnitude: u64, negative: bool, format: Format, mode: Rounding) -> u64 {
    let exact = Exact { negative, mant: u128::from(magnitude), exp: 0, sticky: false };
    if magnitude == 0 { 0 } else { exact.round(format, mode) }
}

/// `a` rounded to an integral value.
pub(crate) fn integral(a: f64, mode: Rounding) -> f64 {
    match mode {
        Rounding::Nearest => a.round_ties_even(),
        Rounding::Zero => a.trunc(),
        Rounding::Down => a.floor(),
        Rounding::Up => a.ceil(),
    }
}

/// The half-precision number nearest to `x` (ties to even), as vector code.
#[inline(always)]
pub(crate) fn f16_of_f32(x: f32) -> u32 {
    let bits = x.to_bits();
    let sign = bits & 0x8000_0000;
    let abs = bits ^ sign;
    // Adding 0.5 aligns a subnormal result's lowest bit with that of the sum.
    let small = (f32::from_bits(abs) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = abs >> 13 & 1;
    let normal = abs.wrapping_sub(0x3800_0000).wrapping_add(0xfff + odd) >> 13;
    let big = if abs > 0x7f80_0000 { 0x7fff } else { 0x7c00 };
    let magnitude = if abs >= 0x4780_0000 {
        big
    } else if abs < 0x3880_0000 {
        small
    } else {
        normal
    };
    let sign = if abs > 0x7f80_0000 { 0 } else { sign >> 16 };
    magnitude | sign
}

/// The value of a half-precision number, as vector code.
#[inline(always)]
pub(crate) fn f32_of_f16(h: u32) -> f32 {
    let sign = (h & 0x8000) << 16;
    let shifted = (h & 0x7fff) << 13;
    let exponent = shifted & 0x0f80_0000;
    let rebased = shifted.wrapping_add(0x3800_0000);
    let special = rebased.wrapping_add(0x3800_0000);
    let subnormal =
        (f32::from_bits(rebased.wrapping_add(0x0080_0000)) - f32::from_bits(0x3880_0000)).to_bits();
    let magnitude = if exponent == 0x0f80_0000 {
        special
    } else if exponent == 0 {
        subnormal
    } else {
        rebased
    };
    f32::from_bits(magnitude | sign)
}

/// The bfloat16 number nearest to `x` (ties to even).
#[inline(always)]
pub(crate) fn bf16_of_f32(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { 0x7fff } else { rounded }
}

/// The value of a bfloat16 number.
#[inline(always)]
pub(crate) fn f32_of_bf16(b: u32) -> f32 {
    f32::from_bits(b << 16)
}
