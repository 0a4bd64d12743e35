//! One queue: the order of submission, whatever the class.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::super::state::State;
use super::super::types::PoolConfig;
use super::{Pick, Policy};
use crate::codec::{Codec, codec};
use crate::key::{DeviceKey, TaskKey};

#[derive(Debug)]
pub(super) struct Fifo {
    queue: VecDeque<TaskKey>,
}

codec!(struct Fifo { queue });

impl Fifo {
    pub(super) fn new(_config: &PoolConfig) -> Self {
        Self { queue: VecDeque::new() }
    }
}

impl Policy for Fifo {
    fn enter(&mut self, _state: &mut State, _now_ns: u64, task: TaskKey, first: bool) {
        if first { self.queue.push_front(task) } else { self.queue.push_back(task) }
    }

    fn leave(&mut self, _state: &mut State, task: TaskKey) {
        self.queue.retain(|waiting| *waiting != task);
    }

    fn pick(&mut self, _state: &mut State, _now_ns: u64, _device: DeviceKey) -> Option<Pick> {
        self.queue.pop_front().map(Pick::whole)
    }

    fn put(&self, out: &mut Vec<u8>) {
        Codec::put(self, out);
    }
}
