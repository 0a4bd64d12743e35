//! Register rows: one value per lane, and what lane types they hold.

use super::cx::Cx;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A row of 32-bit registers (8- and 16-bit registers too, zero-extended).
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct R32(pub(crate) [u32; LANES]);

/// A row of 64-bit registers.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct R64(pub(crate) [u64; LANES]);

impl R32 {
    pub(crate) const ZERO: Self = Self([0; LANES]);
}

impl R64 {
    pub(crate) const ZERO: Self = Self([0; LANES]);
}

const fn bits() -> [u32; LANES] {
    let mut bits = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
}

/// `BITS.0[i] == 1 << i`.
pub(crate) const BITS: R32 = R32(bits());

/// All ones in the lanes of `mask`, zero in the others.
#[inline(always)]
pub(crate) fn expand(mask: u32) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    for i in 0..LANES {
        lanes[i] = if BITS.0[i] & mask != 0 { u32::MAX } else { 0 };
    }
    lanes
}

/// The OR of all lanes; halving keeps it in vector registers.
#[inline(always)]
pub(crate) fn or_all(t: &[u32; LANES]) -> u32 {
    let mut s = [0u32; 16];
    for i in 0..16 {
        s[i] = t[i] | t[i + 16];
    }
    let mut q = [0u32; 8];
    for i in 0..8 {
        q[i] = s[i] | s[i + 8];
    }
    let mut z = [0u32; 4];
    for i in 0..4 {
        z[i] = q[i] | q[i + 4];
    }
    z[0] | z[1] | z[2] | z[3]
}

/// The OR of all lanes.
#[inline(always)]
pub(crate) fn or_all64(t: &[u64; LANES]) -> u64 {
    let mut s = [0u64; 16];
    for i in 0..16 {
        s[i] = t[i] | t[i + 16];
    }
    let mut q = [0u64; 8];
    for i in 0..8 {
        q[i] = s[i] | s[i + 8];
    }
    let mut z = [0u64; 4];
    for i in 0..4 {
        z[i] = q[i] | q[i + 4];
    }
    z[0] | z[1] | z[2] | z[3]
}

/// The lanes set in `mask`, ascending.
#[inline(always)]
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros();
        rest &= rest - 1;
        Some(lane as usize & (LANES - 1))
    })
}

/// What a lane of a row can be read as.
pub(crate) trait Elem: Copy {
    /// How the register file holds it.
    type Raw: Copy;
    fn from_raw(raw: Self::Raw) -> Self;
    fn into_raw(self) -> Self::Raw;
    fn zero() -> [Self::Raw; LANES];
    fn row(cx: &Cx, row: u32) -> [Self::Raw; LANES];
    fn put(cx: &mut Cx, row: u32, value: [Self::Raw; LANES]);
}

macro_rules! elem {
    ($($t:ty, $raw:ty, $row:ident, $put:ident, |$r:ident| $from:expr, |$v:ident| $into:expr;)*) => {$(
        impl Elem for $t {
            type Raw = $raw;
            #[inline(always)]
            fn from_raw($r: $raw) -> Self { $from }
            #[inline(always)]
            fn into_raw(self) -> $raw { let $v = self; $into }
            #[inline(always)]
            fn zero() -> [$raw; LANES] { [0; LANES] }
            #[inline(always)]
            fn row(cx: &Cx, row: u32) -> [$raw; LANES] { cx.$row(row) }
            #[inline(always)]
            fn put(cx: &mut Cx, row: u32, value: [$raw; LANES]) { cx.$put(row, value); }
        }
    )*};
}

elem! {
    u32, u32, row32, put32, |r| r, |v| v;
    i32, u32, row32, put32, |r| r as i32, |v| v as u32;
    f32, u32, row32, put32, |r| f32::from_bits(r), |v| v.to_bits();
    u16, u32, row32, put32, |r| r as u16, |v| u32::from(v);
    i16, u32, row32, put32, |r| r as i16, |v| u32::from(v as u16);
    u8, u32, row32, put32, |r| r as u8, |v| u32::from(v);
    i8, u32, row32, put32, |r| r as i8, |v| u32::from(v as u8);
    u64, u64, row64, put64, |r| r, |v| v;
    i64, u64, row64, put64, |r| r as i64, |v| v as u64;
    f64, u64, row64, put64, |r| f64::from_bits(r), |v| v.to_bits();
}

/// Declares handlers that compute each lane by itself: `Name: result = (a: type, b: type) => expr;`
/// where `a`, `b`, `c` name the operand fields of the operation; `imm` is its immediate.
macro_rules! lanes {
    ($($name:ident : $d:ty = ($($f:ident : $t:ty),*) $(, $imm:ident)? => $e:expr;)*) => {$(
        pub(crate) struct $name;
        impl $crate::soft::engine::handler::Handler for $name {
            #[inline(always)]
            fn run(
                cx: &mut $crate::soft::engine::cx::Cx,
                op: &$crate::soft::engine::handler::Op,
                pc: u32,
            ) -> u32 {
                use $crate::soft::engine::rows::{Elem, LANES};
                $(let $imm = op.imm;)?
                $(let $f = <$t as Elem>::row(cx, op.$f);)*
                let mut out = <$d as Elem>::zero();
                for i in 0..LANES {
                    $(let $f = <$t as Elem>::from_raw($f[i]);)*
                    let value: $d = $e;
                    out[i] = <$d as Elem>::into_raw(value);
                }
                <$d as Elem>::put(cx, op.d, out);
                pc + 1
            }
        }
    )*};
}

/// Declares handlers whose result is a predicate: `Name = (a: type, b: type) => bool expr;`. The
/// result is combined as `op.imm` says (see [`super::compare`]).
macro_rules! predicate_lanes {
    ($($name:ident = ($($f:ident : $t:ty),*) => $e:expr;)*) => {$(
        pub(crate) struct $name;
        impl $crate::soft::engine::handler::Handler for $name {
            #[inline(always)]
            fn run(
                cx: &mut $crate::soft::engine::cx::Cx,
                op: &$crate::soft::engine::handler::Op,
                pc: u32,
            ) -> u32 {
                use $crate::soft::engine::rows::{BITS, Elem, LANES, or_all};
                $(let $f = <$t as Elem>::row(cx, op.$f);)*
                let mut out = [0u32; LANES];
                for i in 0..LANES {
                    $(let $f = <$t as Elem>::from_raw($f[i]);)*
                    out[i] = if $e { BITS.0[i] } else { 0 };
                }
                let bits = or_all(&out);
                $crate::soft::engine::compare::put_result(cx, op, bits);
                pc + 1
            }
        }
    )*};
}

pub(crate) use {lanes, predicate_lanes};
