//! vGPUs in turn, whatever their class (a model of Flexy §II-A).

use alloc::vec::Vec;

use super::super::state::State;
use super::super::types::PoolConfig;
use super::rotation::Rotation;
use super::{Pick, Policy};
use crate::codec::{Codec, codec};
use crate::key::{DeviceKey, TaskKey};

#[derive(Debug)]
pub(super) struct RoundRobin {
    rotation: Rotation,
}

codec!(struct RoundRobin { rotation });

impl RoundRobin {
    pub(super) fn new(_config: &PoolConfig) -> Self {
        Self { rotation: Rotation::default() }
    }
}

impl Policy for RoundRobin {
    fn enter(&mut self, state: &mut State, _now_ns: u64, task: TaskKey, first: bool) {
        self.rotation.enter(state, task, first);
    }

    fn leave(&mut self, state: &mut State, task: TaskKey) {
        self.rotation.leave(state, task);
    }

    fn pick(&mut self, state: &mut State, _now_ns: u64, _device: DeviceKey) -> Option<Pick> {
        self.rotation.next(state).map(Pick::whole)
    }

    fn put(&self, out: &mut Vec<u8>) {
        Codec::put(self, out);
    }
}
