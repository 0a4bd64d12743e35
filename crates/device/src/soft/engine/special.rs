//! Clocks and fences.

use std::sync::atomic::{Ordering, fence};

use super::cx::Cx;
use super::handler::{Handler, Op};
use super::rows::LANES;
use crate::clock;

/// `Op::imm` of [`Clock`]: cycles (of a 1 GHz clock, that is nanoseconds).
pub(crate) const CLOCK: u64 = 0;
/// Their high half.
pub(crate) const CLOCK_HI: u64 = 1;
/// Nanoseconds.
pub(crate) const TIMER: u64 = 2;
/// Their high half.
pub(crate) const TIMER_HI: u64 = 3;

/// 64-bit row `d` = the clock `imm`.
pub(crate) struct Clock;

impl Handler for Clock {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let value = match op.imm {
            CLOCK => clock::now_ns(),
            CLOCK_HI => clock::now_ns() >> 32,
            TIMER => clock::wall_ns(),
            _ => clock::wall_ns() >> 32,
        };
        cx.touch();
        cx.put64(op.d, [value; LANES]);
        pc + 1
    }
}

/// `membar`, `fence`
pub(crate) struct Fence;

impl Handler for Fence {
    fn run(_: &mut Cx, _: &Op, pc: u32) -> u32 {
        fence(Ordering::SeqCst);
        pc + 1
    }
}

/// Marks that the split reads what another thread may be about to write.
pub(crate) struct Touch;

impl Handler for Touch {
    #[inline(always)]
    fn run(cx: &mut Cx, _: &Op, pc: u32) -> u32 {
        cx.touch();
        pc + 1
    }
}
