//! `testp`, `isspacep`.

use weft_ptx::ir::TestpOp;

use super::cx::Cx;
use super::handler::{Handler, Op};
use super::rows::LANES;

/// `Op::imm` of a test.
pub(crate) fn code(op: TestpOp) -> u64 {
    match op {
        TestpOp::Finite => 0,
        TestpOp::Infinite => 1,
        TestpOp::Number => 2,
        TestpOp::NotANumber => 3,
        TestpOp::Normal => 4,
        TestpOp::Subnormal => 5,
    }
}

fn holds(class: std::num::FpCategory, code: u64) -> bool {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    match code {
        0 => !matches!(class, Infinite | Nan),
        1 => class == Infinite,
        2 => class != Nan,
        3 => class == Nan,
        // The document counts zeros as normal numbers.
        4 => matches!(class, Normal | Zero),
        _ => class == Subnormal,
    }
}

/// Predicate `d` = test of `a`.
pub(crate) struct TestF32;

impl Handler for TestF32 {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let a = cx.row32(op.a);
        let mut bits = 0;
        for i in 0..LANES {
            bits |= u32::from(holds(f32::from_bits(a[i]).classify(), op.imm)) << i;
        }
        cx.put_pred(op.d, bits);
        pc + 1
    }
}

/// Predicate `d` = test of `a`.
pub(crate) struct TestF64;

impl Handler for TestF64 {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let a = cx.row64(op.a);
        let mut bits = 0;
        for i in 0..LANES {
            bits |= u32::from(holds(f64::from_bits(a[i]).classify(), op.imm)) << i;
        }
        cx.put_pred(op.d, bits);
        pc + 1
    }
}

/// Predicate `d` = whether generic address `a` lies in the window `imm`.
pub(crate) struct IsSpace;

impl Handler for IsSpace {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let a = cx.row64(op.a);
        let mut bits = 0;
        for i in 0..LANES {
            let inside = a[i] & !(super::address::WINDOW_BYTES - 1) == op.imm;
            bits |= u32::from(inside) << i;
        }
        cx.put_pred(op.d, bits);
        pc + 1
    }
}
