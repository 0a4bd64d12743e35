//! `cvt`: the common conversions as vector code, all of them as one careful function.

use weft_ptx::ir::{CvtRounding, Rounding, ScalarType};

use super::cx::Cx;
use super::float::{canonical, flush};
use super::handler::{Handler, Op};
use super::ieee::{self, Format};
use super::rows::{LANES, lanes};

/// A conversion, as `Op::imm` holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) from: ScalarType,
    pub(crate) to: ScalarType,
    pub(crate) rounding: CvtRounding,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) relu: bool,
    /// Bits of the destination register; integers are extended to them.
    pub(crate) register_bits: u32,
}

impl Spec {
    /// As 64 bits.
    pub(crate) fn pack(self) -> u64 {
        let rounding = match self.rounding {
            CvtRounding::None => 0,
            CvtRounding::FloatAway => 1,
            CvtRounding::Float(r) => 2 + super::float::mode_bits(r),
            CvtRounding::Integral(r) => 6 + super::float::mode_bits(r),
        };
        code_of(self.from)
            | (code_of(self.to) << 8)
            | (rounding << 16)
            | (u64::from(self.ftz) << 24)
            | (u64::from(self.sat) << 25)
            | (u64::from(self.relu) << 26)
            | (u64::from(self.register_bits) << 32)
    }

    fn unpack(bits: u64) -> Self {
        let rounding = match bits >> 16 & 0xff {
            0 => CvtRounding::None,
            1 => CvtRounding::FloatAway,
            r @ 2..=5 => CvtRounding::Float(super::float::mode_of(r - 2)),
            r => CvtRounding::Integral(super::float::mode_of(r - 6)),
        };
        Self {
            from: TYPES[(bits & 0xff) as usize % TYPES.len()],
            to: TYPES[(bits >> 8 & 0xff) as usize % TYPES.len()],
            rounding,
            ftz: bits >> 24 & 1 != 0,
            sat: bits >> 25 & 1 != 0,
            relu: bits >> 26 & 1 != 0,
            register_bits: (bits >> 32 & 0xff) as u32,
        }
    }
}

/// Types that `convert` knows.
const TYPES: [ScalarType; 13] = [
    ScalarType::U8,
    ScalarType::S8,
    ScalarType::U16,
    ScalarType::S16,
    ScalarType::U32,
    ScalarType::S32,
    ScalarType::U64,
    ScalarType::S64,
    ScalarType::F16,
    ScalarType::BF16,
    ScalarType::TF32,
    ScalarType::F32,
    ScalarType::F64,
];

/// Whether `convert` knows a type.
pub(crate) fn known(ty: ScalarType) -> bool {
    TYPES.contains(&ty)
}

fn code_of(ty: ScalarType) -> u64 {
    TYPES.iter().position(|t| *t == ty).unwrap_or(0) as u64
}

fn format_of(ty: ScalarType) -> Option<Format> {
    match ty {
        ScalarType::F16 => Some(ieee::F16),
        ScalarType::BF16 => Some(ieee::BF16),
        ScalarType::TF32 => Some(ieee::TF32),
        ScalarType::F32 => Some(ieee::F32),
        ScalarType::F64 => Some(ieee::F64),
        _ => None,
    }
}

/// Converts the low bits of `value`.
pub(crate) fn convert(value: u64, spec: Spec) -> u64 {
    let mode = match spec.rounding {
        CvtRounding::Float(r) | CvtRounding::Integral(r) => r,
        CvtRounding::None | CvtRounding::FloatAway => Rounding::Nearest,
    };
    match (float_value(value, spec), format_of(spec.to)) {
        (None, None) => extend(clamp_int(int_value(value, spec.from), spec), spec),
        (None, Some(format)) => {
            let int = int_value(value, spec.from);
            let magnitude = int.unsigned_abs() as u64;
            let bits = ieee::from_int(magnitude, int < 0, format, mode);
            if spec.sat { saturate(bits, spec.to) } else { bits }
        }
        (Some(x), None) => {
            if x.is_nan() {
                return extend(nan_as_int(spec), spec);
            }
            let rounded = ieee::integral(x, mode);
            extend(clamp_float(rounded, spec.to), spec)
        }
        (Some(x), Some(format)) => float_to_float(x, format, mode, spec),
    }
}

fn float_value(value: u64, spec: Spec) -> Option<f64> {
    Some(match spec.from {
        ScalarType::F16 => f64::from(ieee::f32_of_f16(value as u32 & 0xffff)),
        ScalarType::BF16 => f64::from(ieee::f32_of_bf16(value as u32 & 0xffff)),
        ScalarType::F32 | ScalarType::TF32 => {
            let x = f32::from_bits(value as u32);
            f64::from(if spec.ftz { flush(x) } else { x })
        }
        ScalarType::F64 => f64::from_bits(value),
        _ => return None,
    })
}

fn int_value(value: u64, ty: ScalarType) -> i128 {
    match ty {
        ScalarType::U8 => i128::from(value as u8),
        ScalarType::S8 => i128::from(value as i8),
        ScalarType::U16 => i128::from(value as u16),
        ScalarType::S16 => i128::from(value as i16),
        ScalarType::U32 => i128::from(value as u32),
        ScalarType::S32 => i128::from(value as i32),
        ScalarType::S64 => i128::from(value as i64),
        _ => i128::from(value),
    }
}

fn range_of(ty: ScalarType) -> (i128, i128) {
    let bits = ty.bytes() * 8;
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn clamp_int(value: i128, spec: Spec) -> i128 {
    let (low, high) = range_of(spec.to);
    if spec.sat { value.clamp(low, high) } else { value }
}

fn clamp_float(x: f64, ty: ScalarType) -> i128 {
    let (low, high) = range_of(ty);
    // Casts from f64 saturate; i128 holds every 64-bit integer.
    (x as i128).clamp(low, high)
}

/// What a NaN becomes: the integer with only the highest bit where 64 bits are on either side.
fn nan_as_int(spec: Spec) -> i128 {
    let wide = spec.from == ScalarType::F64 || spec.to.bytes() == 8;
    if wide { 1 << (spec.to.bytes() * 8 - 1) } else { 0 }
}

/// Truncates to the type, then extends to the register.
fn extend(value: i128, spec: Spec) -> u64 {
    let truncated = int_value(value as u64, spec.to) as u64;
    match spec.register_bits {
        8 => truncated & 0xff,
        16 => truncated & 0xffff,
        32 => truncated & 0xffff_ffff,
        _ => truncated,
    }
}

fn float_to_float(x: f64, format: Format, mode: Rounding, spec: Spec) -> u64 {
    let x = if matches!(spec.rounding, CvtRounding::Integral(_)) {
        let whole = ieee::integral(x, mode);
        if whole == 0.0 { whole.copysign(x) } else { whole }
    } else {
        x
    };
    let x = if spec.relu && x < 0.0 { 0.0 } else { x };
    if spec.to == ScalarType::TF32 {
        return u64::from(tf32(x as f32, spec.rounding));
    }
    let bits = ieee::convert(x, format, mode);
    let bits = if spec.sat { saturate(bits, spec.to) } else { bits };
    if spec.ftz && spec.to == ScalarType::F32 {
        return u64::from(flush(f32::from_bits(bits as u32)).to_bits());
    }
    bits
}

fn tf32(x: f32, rounding: CvtRounding) -> u32 {
    if x.is_nan() {
        return 0x7fff_ffff;
    }
    let bits = x.to_bits();
    if x.is_infinite() {
        return bits;
    }
    let up = match rounding {
        CvtRounding::Float(Rounding::Zero) => 0,
        CvtRounding::Float(_) => 0xfff + (bits >> 13 & 1),
        CvtRounding::FloatAway | CvtRounding::None | CvtRounding::Integral(_) => 0x1000,
    };
    bits.wrapping_add(up) & !0x1fff
}

/// Into `0.0..=1.0`; a NaN becomes 0.
fn saturate(bits: u64, ty: ScalarType) -> u64 {
    let value = match ty {
        ScalarType::F16 => f64::from(ieee::f32_of_f16(bits as u32)),
        ScalarType::BF16 => f64::from(ieee::f32_of_bf16(bits as u32)),
        ScalarType::F64 => f64::from_bits(bits),
        _ => f64::from(f32::from_bits(bits as u32)),
    };
    if value >= 1.0 {
        return match ty {
            ScalarType::F16 => 0x3c00,
            ScalarType::BF16 => 0x3f80,
            ScalarType::F64 => 1f64.to_bits(),
            _ => u64::from(1f32.to_bits()),
        };
    }
    if value > 0.0 { bits } else { 0 }
}

macro_rules! convert_handler {
    ($($name:ident: $row:ident -> $put:ident as $t:ty;)*) => {$(
        /// Any conversion between registers of these widths.
        pub(crate) struct $name;

        impl Handler for $name {
            fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
                let spec = Spec::unpack(op.imm);
                let from = cx.$row(op.a);
                let mut out = [0; LANES];
                for i in 0..LANES {
                    out[i] = convert(from[i] as u64, spec) as $t;
                }
                cx.$put(op.d, out);
                pc + 1
            }
        }
    )*};
}

convert_handler! {
    Convert32To32: row32 -> put32 as u32;
    Convert32To64: row32 -> put64 as u64;
    Convert64To32: row64 -> put32 as u32;
    Convert64To64: row64 -> put64 as u64;
}

/// `x` as `i32`, truncated and clamped; vector code, unlike a cast on some machines.
#[inline(always)]
fn to_s32(x: f32) -> i32 {
    x as i32
}

lanes! {
    S32ToF32: f32 = (a: i32) => a as f32;
    U32ToF32: f32 = (a: u32) => a as f32;
    F32ToS32: i32 = (a: f32) => to_s32(a);
    F32ToU32: u32 = (a: f32) => a as u32;
    F32ToS32Ftz: i32 = (a: f32) => to_s32(flush(a));
    F32ToF64: f64 = (a: f32) => f64::from(a);
    F64ToF32: f32 = (a: f64) => canonical(a as f32);
    S32ToF64: f64 = (a: i32) => f64::from(a);
    U32ToF64: f64 = (a: u32) => f64::from(a);
    F64ToS32: i32 = (a: f64) => if a.is_nan() { i32::MIN } else { a as i32 };
    F16ToF32: f32 = (a: u32) => canonical(ieee::f32_of_f16(a));
    F32ToF16: u32 = (a: f32) => ieee::f16_of_f32(a);
    BF16ToF32: f32 = (a: u32) => canonical(ieee::f32_of_bf16(a));
    F32ToBF16: u32 = (a: f32) => ieee::bf16_of_f32(a);
    F32RoundEven: f32 = (a: f32) => canonical(a.round_ties_even());
    F32Trunc: f32 = (a: f32) => canonical(a.trunc());
    F32Floor: f32 = (a: f32) => canonical(a.floor());
    F32Ceil: f32 = (a: f32) => canonical(a.ceil());
    // Pairs: `a` goes into the upper half.
    PairF16: u32 = (a: f32, b: f32) => ieee::f16_of_f32(b) | (ieee::f16_of_f32(a) << 16);
    PairBF16: u32 = (a: f32, b: f32) => ieee::bf16_of_f32(b) | (ieee::bf16_of_f32(a) << 16);
}
