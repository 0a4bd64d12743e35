//! Conversions of 8-bit floating-point pairs.

use weft_ptx::ir::{Rounding, ScalarType};

use super::ieee;
use super::rows::lanes;

/// Whether it is a type of this module.
pub(crate) fn is_fp8(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::E4M3x2 | ScalarType::E5M2x2 | ScalarType::E4M3 | ScalarType::E5M2)
}

/// `e5m2` is the upper byte of a half.
pub(crate) fn e5m2_value(bits: u32) -> f32 {
    ieee::f32_of_f16((bits & 0xff) << 8)
}

pub(crate) fn e4m3_value(bits: u32) -> f32 {
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let exponent = (bits >> 3 & 15) as i32;
    let fraction = (bits & 7) as f32;
    if bits & 0x7f == 0x7f {
        return f32::NAN;
    }
    let magnitude = if exponent == 0 {
        fraction * 2f32.powi(-9)
    } else {
        (8.0 + fraction) * 2f32.powi(exponent - 10)
    };
    sign * magnitude
}

/// Nearest (ties to even), limited to the largest finite number.
fn to_e4m3(x: f32) -> u32 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = (x.to_bits() >> 24) & 0x80;
    let x = x.abs().min(448.0);
    // The spacing of the numbers around x.
    let exponent = ((x.to_bits() >> 23) as i32 - 127).max(-6);
    let units = (x * 2f32.powi(3 - exponent)).round_ties_even() as u32;
    let field = ((exponent + 6) as u32) << 3;
    sign | (field + units).min(0x7e)
}

fn to_e5m2(x: f32) -> u32 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = (x.to_bits() >> 24) & 0x80;
    let x = x.abs().min(57344.0);
    let exponent = ((x.to_bits() >> 23) as i32 - 127).max(-14);
    let units = (x * 2f32.powi(2 - exponent)).round_ties_even() as u32;
    let field = ((exponent + 14) as u32) << 2;
    sign | (field + units).min(0x7b)
}

fn relu(x: f32, imm: u64) -> f32 {
    if imm & 1 != 0 && x < 0.0 { 0.0 } else { x }
}

fn halves(a: u32) -> [f32; 2] {
    [ieee::f32_of_f16(a & 0xffff), ieee::f32_of_f16(a >> 16)]
}

fn half_pair(low: f32, high: f32, imm: u64) -> u32 {
    let half = |x: f32| ieee::convert(f64::from(relu(x, imm)), ieee::F16, Rounding::Nearest) as u32;
    half(low) | (half(high) << 16)
}

lanes! {
    ToE4m3: u32 = (a: f32, b: f32), imm => to_e4m3(relu(b, imm)) | (to_e4m3(relu(a, imm)) << 8);
    ToE5m2: u32 = (a: f32, b: f32), imm => to_e5m2(relu(b, imm)) | (to_e5m2(relu(a, imm)) << 8);
    ToE4m3FromHalves: u32 = (a: u32), imm => {
        let [low, high] = halves(a);
        to_e4m3(relu(low, imm)) | (to_e4m3(relu(high, imm)) << 8)
    };
    ToE5m2FromHalves: u32 = (a: u32), imm => {
        let [low, high] = halves(a);
        to_e5m2(relu(low, imm)) | (to_e5m2(relu(high, imm)) << 8)
    };
    FromE4m3: u32 = (a: u32), imm => half_pair(e4m3_value(a), e4m3_value(a >> 8), imm);
    FromE5m2: u32 = (a: u32), imm => half_pair(e5m2_value(a), e5m2_value(a >> 8), imm);
}
