//! Atomics, and copies from global to shared memory.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use weft_ptx::ir::{AtomOp, Rounding, ScalarType};

use super::address::{Access, AddressRow, Generic, STRICT, Shared, Space, read_bytes};
use super::cx::Cx;
use super::float::{canonical, flush};
use super::handler::{Handler, Op};
use super::ieee;
use super::rows::{LANES, lanes_of};

/// What an atomic computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Add,
    Inc,
    Dec,
    MinU,
    MaxU,
    MinS32,
    MaxS32,
    MinS64,
    MaxS64,
    AddF32,
    AddF32Ftz,
    AddF64,
    AddF16,
    AddBF16,
    AddF16x2,
    AddBF16x2,
}

const KINDS: [Kind; 21] = [
    Kind::And,
    Kind::Or,
    Kind::Xor,
    Kind::Exch,
    Kind::Cas,
    Kind::Add,
    Kind::Inc,
    Kind::Dec,
    Kind::MinU,
    Kind::MaxU,
    Kind::MinS32,
    Kind::MaxS32,
    Kind::MinS64,
    Kind::MaxS64,
    Kind::AddF32,
    Kind::AddF32Ftz,
    Kind::AddF64,
    Kind::AddF16,
    Kind::AddBF16,
    Kind::AddF16x2,
    Kind::AddBF16x2,
];

impl Kind {
    /// The operation on a type, if there is one.
    pub(crate) fn of(op: AtomOp, ty: ScalarType, ftz: bool) -> Option<Self> {
        if ty.bytes() > 8 || ty.bytes() < 2 {
            return None;
        }
        Some(match (op, ty) {
            (AtomOp::And, _) => Self::And,
            (AtomOp::Or, _) => Self::Or,
            (AtomOp::Xor, _) => Self::Xor,
            (AtomOp::Exch, _) => Self::Exch,
            (AtomOp::Cas, _) => Self::Cas,
            (AtomOp::Add, ScalarType::F32) if ftz => Self::AddF32Ftz,
            (AtomOp::Add, ScalarType::F32) => Self::AddF32,
            (AtomOp::Add, ScalarType::F64) => Self::AddF64,
            (AtomOp::Add, ScalarType::F16) => Self::AddF16,
            (AtomOp::Add, ScalarType::BF16) => Self::AddBF16,
            (AtomOp::Add, ScalarType::F16x2) => Self::AddF16x2,
            (AtomOp::Add, ScalarType::BF16x2) => Self::AddBF16x2,
            (AtomOp::Add, _) => Self::Add,
            (AtomOp::Inc, _) => Self::Inc,
            (AtomOp::Dec, _) => Self::Dec,
            (AtomOp::Min, ScalarType::S32) => Self::MinS32,
            (AtomOp::Max, ScalarType::S32) => Self::MaxS32,
            (AtomOp::Min, ScalarType::S64) => Self::MinS64,
            (AtomOp::Max, ScalarType::S64) => Self::MaxS64,
            (AtomOp::Min, ScalarType::U32 | ScalarType::U64) => Self::MinU,
            (AtomOp::Max, ScalarType::U32 | ScalarType::U64) => Self::MaxU,
            (AtomOp::Min | AtomOp::Max, _) => return None,
        })
    }

    /// The new value in memory.
    fn apply(self, old: u64, b: u64, c: u64) -> u64 {
        let f32s = || (f32::from_bits(old as u32), f32::from_bits(b as u32));
        match self {
            Self::And => old & b,
            Self::Or => old | b,
            Self::Xor => old ^ b,
            Self::Exch => b,
            Self::Cas => {
                if old == b {
                    c
                } else {
                    old
                }
            }
            Self::Add => old.wrapping_add(b),
            Self::Inc => {
                if old >= b {
                    0
                } else {
                    old + 1
                }
            }
            Self::Dec => {
                if old == 0 || old > b {
                    b
                } else {
                    old - 1
                }
            }
            Self::MinU => old.min(b),
            Self::MaxU => old.max(b),
            Self::MinS32 => (old as i32).min(b as i32) as u32 as u64,
            Self::MaxS32 => (old as i32).max(b as i32) as u32 as u64,
            Self::MinS64 => (old as i64).min(b as i64) as u64,
            Self::MaxS64 => (old as i64).max(b as i64) as u64,
            Self::AddF32 => {
                let (x, y) = f32s();
                u64::from(canonical(x + y).to_bits())
            }
            Self::AddF32Ftz => {
                let (x, y) = f32s();
                u64::from(flush(canonical(flush(x) + flush(y))).to_bits())
            }
            Self::AddF64 => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
            Self::AddF16 => f16_sum(old, b),
            Self::AddBF16 => bf16_sum(old, b),
            Self::AddF16x2 => {
                f16_sum(old & 0xffff, b & 0xffff) | (f16_sum(old >> 16, b >> 16) << 16)
            }
            Self::AddBF16x2 => {
                bf16_sum(old & 0xffff, b & 0xffff) | (bf16_sum(old >> 16, b >> 16) << 16)
            }
        }
    }
}

fn f16_sum(a: u64, b: u64) -> u64 {
    let value = |x: u64| f64::from(ieee::f32_of_f16(x as u32 & 0xffff));
    ieee::add(value(a), value(b), ieee::F16, Rounding::Nearest)
}

fn bf16_sum(a: u64, b: u64) -> u64 {
    let value = |x: u64| f64::from(ieee::f32_of_bf16(x as u32 & 0xffff));
    ieee::add(value(a), value(b), ieee::BF16, Rounding::Nearest)
}

/// Replaces the value at `place` (aligned) by what `kind` makes of it; answers the old value.
fn replace(place: *mut u8, bytes: u64, kind: Kind, b: u64, c: u64) -> u64 {
    macro_rules! exchange {
        ($atomic:ty, $word:ty) => {{
            // SAFETY: translation found `bytes` writable bytes at `place`, aligned to them; others
            // reach them through atomics or tolerate torn values.
            let cell = unsafe { <$atomic>::from_ptr(place.cast::<$word>()) };
            let mut old = cell.load(Ordering::Relaxed);
            loop {
                let new = kind.apply(u64::from(old), b, c) as $word;
                match cell.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => return u64::from(old),
                    Err(current) => old = current,
                }
            }
        }};
    }
    match bytes {
        2 => exchange!(AtomicU16, u16),
        4 => exchange!(AtomicU32, u32),
        _ => exchange!(AtomicU64, u64),
    }
}

/// The lanes' operands and what becomes of them.
struct Atomic {
    kind: Kind,
    bytes: u64,
    rows: [u32; 2],
}

fn decode(cx: &Cx, op: &Op) -> Atomic {
    let [kind, b, c, bytes, _] = cx.program.list(u64::from(op.b & !STRICT));
    Atomic { kind: KINDS[kind as usize % KINDS.len()], bytes: u64::from(bytes), rows: [b, c] }
}

fn perform<S: Space>(
    cx: &mut Cx,
    op: &Op,
    addresses: &[u64; LANES],
    what: &Atomic,
    b: &[u64; LANES],
    c: &[u64; LANES],
) -> Result<[u64; LANES], u32> {
    cx.touch();
    let mut old = [0; LANES];
    for lane in lanes_of(cx.mask) {
        let address = addresses[lane];
        let access = Access { lane, address, bytes: what.bytes, write: true };
        match S::place(cx, op, access) {
            Ok((place, _)) => old[lane] = replace(place, what.bytes, what.kind, b[lane], c[lane]),
            Err(kind) => return Err(cx.fail(kind, lane as u32, Some(address))),
        }
    }
    Ok(old)
}

/// Atomic of at most 32 bits; `b` is the list.
pub(crate) struct Atom32<S, A>(PhantomData<(S, A)>);

impl<S: Space, A: AddressRow> Handler for Atom32<S, A> {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let what = decode(cx, op);
        let addresses = A::addresses(cx, op);
        let b = cx.row32(what.rows[0]).map(u64::from);
        let c = cx.row32(what.rows[1]).map(u64::from);
        match perform::<S>(cx, op, &addresses, &what, &b, &c) {
            Ok(old) => {
                cx.put32(op.d, old.map(|x| x as u32));
                pc + 1
            }
            Err(event) => event,
        }
    }
}

/// Atomic of 64 bits.
pub(crate) struct Atom64<S, A>(PhantomData<(S, A)>);

impl<S: Space, A: AddressRow> Handler for Atom64<S, A> {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let what = decode(cx, op);
        let addresses = A::addresses(cx, op);
        let (b, c) = (cx.row64(what.rows[0]), cx.row64(what.rows[1]));
        match perform::<S>(cx, op, &addresses, &what, &b, &c) {
            Ok(old) => {
                cx.put64(op.d, old);
                pc + 1
            }
            Err(event) => event,
        }
    }
}

/// `cp.async`: list `d` holds size, destination offset (two words) and source row; `a` is the
/// destination row, `b` the row of source bytes, `imm` the source offset.
pub(crate) struct CopyAsync;

impl Handler for CopyAsync {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let [bytes, low, high, from_row] = cx.program.list(u64::from(op.d));
        let offset = u64::from(low) | (u64::from(high) << 32);
        let (to, from, counts) = (cx.row64(op.a), cx.row64(from_row), cx.row32(op.b));
        let source = Op { b: STRICT, ..*op };
        for lane in lanes_of(cx.mask) {
            let to = to[lane].wrapping_add(offset);
            let from = from[lane].wrapping_add(op.imm);
            let size = u64::from(bytes);
            if !to.is_multiple_of(size) || !from.is_multiple_of(size) {
                let kind = crate::FaultKind::MisalignedAddress;
                return cx.fail(kind, lane as u32, Some(from));
            }
            for at in 0..size {
                let read = Access { lane, address: from.wrapping_add(at), bytes: 1, write: false };
                let value = if at < u64::from(counts[lane]) {
                    match Generic::place(cx, &source, read) {
                        Ok((place, _)) => read_bytes(place, 1),
                        Err(kind) => return cx.fail(kind, lane as u32, Some(read.address)),
                    }
                } else {
                    0
                };
                let write = Access { lane, address: to.wrapping_add(at), bytes: 1, write: true };
                if let Err(kind) = Shared::store(cx, op, write, value) {
                    return cx.fail(kind, lane as u32, Some(write.address));
                }
            }
        }
        pc + 1
    }
}
