//! A pool of devices for user-facing tasks that grows and shrinks by Little's law (a model of
//! Flexy, §II-C and Algorithm 1): `U = ⌈l·q / SLA⌉`, at least K, at most N, the devices ordered
//! by expected completion.
//!
//! Only a device that is free can be given a task, and free devices are completed: they stand
//! first in the order, by key. So the first `U` free devices are the pool's, and nothing is sorted.

use alloc::vec::Vec;

use super::super::state::State;
use super::super::types::PoolConfig;
use super::rotation::Rotation;
use super::{Order, Pick, Policy, resets};
use crate::codec::{Codec, codec};
use crate::key::{DeviceKey, TaskKey};

#[derive(Debug)]
pub(super) struct Flexy {
    user: Rotation,
    batch: Rotation,
    /// U of Algorithm 1.
    size: u32,
    /// Of the pool's devices, free ones that were not offered since the plan.
    left: u32,
}

codec!(struct Flexy { user, batch, size, left });

impl Flexy {
    pub(super) fn new(_config: &PoolConfig) -> Self {
        Self { user: Rotation::default(), batch: Rotation::default(), size: 0, left: 0 }
    }

    /// Algorithm 1 with `reserved` as K.
    pub(super) fn plan_with(&mut self, state: &State, reserved: u32) {
        let outstanding = u64::from(state.waiting[0] + state.running[0]);
        let latency_ns = state.mean_ns().saturating_mul(outstanding);
        let wanted = latency_ns.div_ceil(state.config.sla_ns.max(1));
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        // Before the first execution nothing is known of `l`; a task that waits wants a device.
        let wanted = if state.recent.is_empty() { wanted.max(state.waiting[0]) } else { wanted };
        self.size = wanted.max(reserved).min(state.up);
        let serving = if state.config.counts_serving { state.running[0] } else { 0 };
        self.left = self.size.saturating_sub(serving);
    }
}

impl Policy for Flexy {
    fn enter(&mut self, state: &mut State, _now_ns: u64, task: TaskKey, first: bool) {
        let of = if state.is_batch(task) { &mut self.batch } else { &mut self.user };
        of.enter(state, task, first);
    }

    fn leave(&mut self, state: &mut State, task: TaskKey) {
        let of = if state.is_batch(task) { &mut self.batch } else { &mut self.user };
        of.leave(state, task);
    }

    fn plan(&mut self, state: &mut State, _now_ns: u64) {
        self.plan_with(state, state.reserved());
    }

    fn pick(&mut self, state: &mut State, _now_ns: u64, _device: DeviceKey) -> Option<Pick> {
        let is_user = self.left > 0;
        self.left = self.left.saturating_sub(1);
        let task = if is_user { self.user.next(state) } else { self.batch.next(state) };
        task.map(Pick::whole)
    }

    /// Resets when "all accelerators are busy with batch tasks, while user-facing tasks are
    /// waiting" (§IV), as many as the pool lacks.
    fn orders(&mut self, state: &mut State, now_ns: u64, orders: &mut Vec<Order>) {
        let away = state.running[0] + state.resetting;
        if state.config.reset && state.waiting[0] > 0 && state.free.is_empty() {
            resets::reset(state, now_ns, self.size.saturating_sub(away) as usize, orders);
        }
    }

    fn kept(&self, _state: &State) -> u32 {
        self.size
    }

    fn put(&self, out: &mut Vec<u8>) {
        Codec::put(self, out);
    }
}
