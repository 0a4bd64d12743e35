//! Video instructions: arithmetic on bytes, halves and words of 32-bit registers with wide
//! intermediate results, by the pseudocode of the PTX ISA (sections 9.7.18 and 9.7.19).

use weft_ptx::ir::{CompareOp, IntBinaryOp, VideoOp};

use super::cx::Cx;
use super::handler::{Handler, Op};
use super::rows::{LANES, lanes};

/// A part of a register: its lowest bit and its number of bits.
pub(crate) type Part = (u8, u8);

/// What all lanes of an instruction do, as `Op::imm` holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spec {
    /// What [`code_of`] answers.
    pub(crate) code: u8,
    pub(crate) signed: bool,
    pub(crate) a_signed: bool,
    pub(crate) b_signed: bool,
    pub(crate) sat: bool,
    /// How the result is combined with `c`: what [`second_of`] answers.
    pub(crate) second: u8,
    pub(crate) a: Part,
    pub(crate) b: Part,
    /// Where in `c` the result goes; no bits: it replaces all of it.
    pub(crate) merge: Part,
    /// Lanes of a packed instruction.
    pub(crate) lanes: u8,
    /// Those of them that take part.
    pub(crate) mask: u8,
}

const SET: u8 = 10;

/// The number of an operation; `None` for comparisons that integers lack.
pub(crate) fn code_of(op: VideoOp) -> Option<u8> {
    Some(match op {
        VideoOp::Add => 0,
        VideoOp::Sub => 1,
        VideoOp::AbsDiff => 2,
        VideoOp::Min => 3,
        VideoOp::Max => 4,
        VideoOp::Average => 5,
        VideoOp::Shl { wrap: false } => 6,
        VideoOp::Shl { wrap: true } => 7,
        VideoOp::Shr { wrap: false } => 8,
        VideoOp::Shr { wrap: true } => 9,
        VideoOp::Set(CompareOp::Eq) => SET,
        VideoOp::Set(CompareOp::Ne) => SET + 1,
        VideoOp::Set(CompareOp::Lt) => SET + 2,
        VideoOp::Set(CompareOp::Le) => SET + 3,
        VideoOp::Set(CompareOp::Gt) => SET + 4,
        VideoOp::Set(CompareOp::Ge) => SET + 5,
        VideoOp::Set(_) => return None,
    })
}

/// The number of a second operation.
pub(crate) fn second_of(op: Option<IntBinaryOp>) -> Option<u8> {
    match op {
        None => Some(0),
        Some(IntBinaryOp::Add) => Some(1),
        Some(IntBinaryOp::Min) => Some(2),
        Some(IntBinaryOp::Max) => Some(3),
        Some(_) => None,
    }
}

impl Spec {
    pub(crate) fn pack(self) -> u64 {
        let part = |(lowest, bits): Part| u64::from(lowest) | (u64::from(bits) << 5);
        u64::from(self.code)
            | (u64::from(self.signed) << 4)
            | (u64::from(self.a_signed) << 5)
            | (u64::from(self.b_signed) << 6)
            | (u64::from(self.sat) << 7)
            | (u64::from(self.second) << 8)
            | (part(self.a) << 10)
            | (part(self.b) << 21)
            | (part(self.merge) << 32)
            | (u64::from(self.lanes) << 43)
            | (u64::from(self.mask) << 46)
    }

    fn unpack(imm: u64) -> Self {
        let part = |shift: u32| ((imm >> shift & 31) as u8, (imm >> (shift + 5) & 63) as u8);
        let flag = |shift: u32| imm >> shift & 1 != 0;
        Self {
            code: (imm & 15) as u8,
            signed: flag(4),
            a_signed: flag(5),
            b_signed: flag(6),
            sat: flag(7),
            second: (imm >> 8 & 3) as u8,
            a: part(10),
            b: part(21),
            merge: part(32),
            lanes: (imm >> 43 & 7) as u8,
            mask: (imm >> 46 & 15) as u8,
        }
    }

    /// The result for one thread.
    fn scalar(self, a: u32, b: u32, c: u32) -> u32 {
        let value =
            apply(self.code, extract(a, self.a, self.a_signed), extract(b, self.b, self.b_signed));
        let (lowest, bits) = self.merge;
        let width = if bits == 0 { 32 } else { bits };
        let value = if self.sat { saturated(value, self.signed, width) } else { value };
        let with = i128::from(extract(c, (0, 32), self.signed));
        let value = match self.second {
            0 => value,
            1 => value + with,
            2 => value.min(with),
            _ => value.max(with),
        };
        if bits == 0 { value as u32 } else { merged(value as u32, (lowest, bits), c) }
    }

    /// The result of a packed instruction for one thread.
    fn packed(self, a: u32, b: u32, c: u32, sum: bool) -> u32 {
        let bits = 32 / self.lanes.max(1);
        let mut out = c;
        for lane in (0..self.lanes).filter(|lane| self.mask >> lane & 1 != 0) {
            let part = (lane * bits, bits);
            let value =
                apply(self.code, extract(a, part, self.a_signed), extract(b, part, self.b_signed));
            let value = if self.sat { saturated(value, self.signed, bits) } else { value };
            out =
                if sum { out.wrapping_add(value as u32) } else { merged(value as u32, part, out) };
        }
        out
    }
}

/// A part, extended by its type.
fn extract(value: u32, (lowest, bits): Part, signed: bool) -> i64 {
    let unused = 64 - u32::from(bits.clamp(1, 32));
    let raised = u64::from(value >> lowest) << unused;
    if signed { raised.cast_signed() >> unused } else { (raised >> unused).cast_signed() }
}

/// `c` with the low bits of `value` in a part of it.
fn merged(value: u32, (lowest, bits): Part, c: u32) -> u32 {
    let mask = (u32::MAX >> (32 - u32::from(bits.clamp(1, 32)))) << lowest;
    (c & !mask) | (value << lowest & mask)
}

fn apply(code: u8, a: i64, b: i64) -> i128 {
    let (x, y) = (i128::from(a), i128::from(b));
    // Counts are unsigned words.
    let count = |wrap: bool| if wrap { b & 31 } else { b.clamp(0, 32) };
    match code {
        0 => x + y,
        1 => x - y,
        2 => (x - y).abs(),
        3 => x.min(y),
        4 => x.max(y),
        // Halves are rounded up, but of a negative sum down.
        5 => (x + y + i128::from(x + y >= 0)) >> 1,
        6 | 7 => x << count(code == 7),
        8 | 9 => x >> count(code == 9),
        code => i128::from(match code - SET {
            0 => a == b,
            1 => a != b,
            2 => a < b,
            3 => a <= b,
            4 => a > b,
            _ => a >= b,
        }),
    }
}

/// Limited to what the type of that width holds.
fn saturated(value: i128, signed: bool, bits: u8) -> i128 {
    let half = 1i128 << (bits - 1);
    if signed { value.clamp(-half, half - 1) } else { value.clamp(0, 2 * half - 1) }
}

lanes! {
    // `imm` is a `Spec`.
    Video: u32 = (a: u32, b: u32, c: u32), imm => Spec::unpack(imm).scalar(a, b, c);
    VideoPacked: u32 = (a: u32, b: u32, c: u32), imm => Spec::unpack(imm).packed(a, b, c, false);
    VideoSum: u32 = (a: u32, b: u32, c: u32), imm => Spec::unpack(imm).packed(a, b, c, true);
}

/// `vmad`, beside the types, parts and saturation of its [`Spec`]: in bits 52… of `Op::imm`.
pub(crate) mod mad {
    /// The product is negated.
    pub(crate) const NEGATE_PRODUCT: u64 = 1 << 52;
    /// `c` is negated.
    pub(crate) const NEGATE_C: u64 = 1 << 53;
    /// One more is added.
    pub(crate) const PLUS_ONE: u64 = 1 << 54;
    /// How far the result is shifted right, from here on.
    pub(crate) const SHIFT: u32 = 56;
}

/// `vmad`: `(±a × b ± c) >> shift`; `Spec::signed` says that the result is signed.
pub(crate) struct VideoMad;

impl Handler for VideoMad {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let spec = Spec::unpack(op.imm);
        let flag = |flag: u64| op.imm & flag != 0;
        let (a, b, c) = (cx.row32(op.a), cx.row32(op.b), cx.row32(op.c));
        let mut out = [0; LANES];
        for i in 0..LANES {
            let x = i128::from(extract(a[i], spec.a, spec.a_signed));
            let product = x * i128::from(extract(b[i], spec.b, spec.b_signed));
            let with = i128::from(extract(c[i], (0, 32), spec.signed));
            let product = if flag(mad::NEGATE_PRODUCT) { -product } else { product };
            let with = if flag(mad::NEGATE_C) { -with } else { with };
            let sum = product + with + i128::from(flag(mad::PLUS_ONE));
            let sum = sum >> (op.imm >> mad::SHIFT);
            let sum = if spec.sat { saturated(sum, spec.signed, 32) } else { sum };
            out[i] = sum as u32;
        }
        cx.put32(op.d, out);
        pc + 1
    }
}
