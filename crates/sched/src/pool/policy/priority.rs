//! User-facing vGPUs first, in turn, then batch ones in turn (a model of Flexy §II-B and §II-D):
//! with K devices for user-facing tasks only, or with resets.

use alloc::vec::Vec;

use super::super::state::{Device, State};
use super::super::types::PoolConfig;
use super::rotation::Rotation;
use super::{Order, Pick, Policy, resets};
use crate::codec::{Codec, codec};
use crate::key::{DeviceKey, TaskKey};

#[derive(Debug)]
pub(super) struct Priority {
    user: Rotation,
    batch: Rotation,
    /// Devices of smaller keys are kept from batch tasks, or are down.
    limit: u32,
}

codec!(struct Priority { user, batch, limit });

impl Priority {
    pub(super) fn new(_config: &PoolConfig) -> Self {
        Self { user: Rotation::default(), batch: Rotation::default(), limit: 0 }
    }
}

impl Policy for Priority {
    fn enter(&mut self, state: &mut State, _now_ns: u64, task: TaskKey, first: bool) {
        let of = if state.is_batch(task) { &mut self.batch } else { &mut self.user };
        of.enter(state, task, first);
    }

    fn leave(&mut self, state: &mut State, task: TaskKey) {
        let of = if state.is_batch(task) { &mut self.batch } else { &mut self.user };
        of.leave(state, task);
    }

    /// The first K devices that are up are kept: one more than the last one's key is the limit.
    fn plan(&mut self, state: &mut State, _now_ns: u64) {
        let up = (1u32..).zip(&state.devices).filter(|(_, device)| **device != Device::Down);
        self.limit = up.take(state.reserved() as usize).last().map_or(0, |(after, _)| after);
    }

    /// The reserved devices are those of the smallest keys, so that user-facing tasks, which are
    /// offered the free devices by key, leave the others to batch tasks.
    fn pick(&mut self, state: &mut State, _now_ns: u64, device: DeviceKey) -> Option<Pick> {
        let user = self.user.next(state);
        let is_reserved = device.0 < self.limit;
        let task = user.or_else(|| if is_reserved { None } else { self.batch.next(state) });
        task.map(Pick::whole)
    }

    /// "Kills as many batch tasks as the number of waiting user-facing tasks" (§II-D).
    fn orders(&mut self, state: &mut State, now_ns: u64, orders: &mut Vec<Order>) {
        if state.config.reset && state.waiting[0] > 0 {
            let count = state.waiting[0].saturating_sub(state.resetting);
            resets::reset(state, now_ns, count as usize, orders);
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        Codec::put(self, out);
    }
}
