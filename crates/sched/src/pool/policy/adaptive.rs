//! `flexy` whose K follows a PID controller on the measured latency (Flexy §II-C2 and §VI name it
//! as future work; period, set point and gains are ours).

use alloc::vec::Vec;

use super::super::state::State;
use super::super::types::PoolConfig;
use super::flexy::Flexy;
use super::{Order, Pick, Policy};
use crate::codec::{Codec, codec};
use crate::key::{DeviceKey, TaskKey};

/// How often K changes, in ns.
const PERIOD_NS: u64 = 250_000_000;
/// The largest latency of a period that is aimed at, in thousandths of the SLA.
const SET_POINT: i64 = 900;
/// Gains: thousandths of a device for a thousandth of an SLA.
const PROPORTIONAL: i64 = 1;
const INTEGRAL_DIVISOR: i64 = 4;
const DERIVATIVE_DIVISOR: i64 = 2;
/// An error counts as at most two SLAs, so that one late task does not fill the integral.
const ERROR_MAX: i64 = 2_000;

#[derive(Debug)]
pub(super) struct Adaptive {
    flexy: Flexy,
    until_ns: u64,
    worst_ns: u64,
    /// Of the errors, in thousandths.
    integral: i64,
    last: i64,
    reserved: u32,
}

codec!(struct Adaptive { flexy, until_ns, worst_ns, integral, last, reserved });

impl Adaptive {
    pub(super) fn new(config: &PoolConfig) -> Self {
        let (until_ns, worst_ns) = (PERIOD_NS, 0);
        let flexy = Flexy::new(config);
        Self { flexy, until_ns, worst_ns, integral: 0, last: 0, reserved: config.reserved }
    }

    /// One step of the controller, on the largest latency of the period or the age of what waits,
    /// so that an outage in which nothing ends is late. A period in which no task was served and
    /// none waits counts as one on time: an eighth of a set point below it, so that K falls in
    /// seconds and not at once.
    fn step(&mut self, state: &State, now_ns: u64) {
        let sla_ns = state.config.sla_ns.max(1);
        let age_ns = state.oldest_ns().map_or(0, |at_ns| now_ns.saturating_sub(at_ns));
        let worst_ns = self.worst_ns.max(age_ns);
        let part = i64::try_from(worst_ns.saturating_mul(1_000) / sla_ns).unwrap_or(i64::MAX);
        let error = if worst_ns == 0 { -SET_POINT / 8 } else { part.saturating_sub(SET_POINT) };
        let error = error.clamp(-ERROR_MAX, ERROR_MAX);
        let most = i64::from(state.up.saturating_sub(1)) * 1_000 * INTEGRAL_DIVISOR;
        self.integral = (self.integral + error).clamp(0, most);
        let change = (error - self.last) / DERIVATIVE_DIVISOR;
        let output = error * PROPORTIONAL + self.integral / INTEGRAL_DIVISOR + change;
        self.last = error;
        self.worst_ns = 0;
        let devices = u32::try_from((output.max(0) + 500) / 1_000).unwrap_or(u32::MAX);
        self.reserved = devices.min(state.up.saturating_sub(1));
    }
}

impl Policy for Adaptive {
    fn enter(&mut self, state: &mut State, now_ns: u64, task: TaskKey, first: bool) {
        self.flexy.enter(state, now_ns, task, first);
    }

    fn leave(&mut self, state: &mut State, task: TaskKey) {
        self.flexy.leave(state, task);
    }

    fn served(&mut self, _now_ns: u64, latency_ns: u64) {
        self.worst_ns = self.worst_ns.max(latency_ns);
    }

    fn plan(&mut self, state: &mut State, now_ns: u64) {
        // After a long silence a few steps say all that many would.
        for _ in 0..16 {
            if now_ns < self.until_ns {
                break;
            }
            self.step(state, self.until_ns);
            self.until_ns += PERIOD_NS;
        }
        if now_ns >= self.until_ns {
            self.until_ns = now_ns + PERIOD_NS;
        }
        self.flexy.plan_with(state, self.reserved);
    }

    fn pick(&mut self, state: &mut State, now_ns: u64, device: DeviceKey) -> Option<Pick> {
        self.flexy.pick(state, now_ns, device)
    }

    fn orders(&mut self, state: &mut State, now_ns: u64, orders: &mut Vec<Order>) {
        self.flexy.orders(state, now_ns, orders);
    }

    fn kept(&self, state: &State) -> u32 {
        self.flexy.kept(state)
    }

    fn put(&self, out: &mut Vec<u8>) {
        Codec::put(self, out);
    }
}
