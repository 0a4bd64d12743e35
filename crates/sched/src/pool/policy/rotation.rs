//! vGPUs with waiting tasks, in turn.

use alloc::collections::VecDeque;

use super::super::state::State;
use crate::codec::codec;
use crate::key::{TaskKey, VgpuKey};

/// The order of Flexy's round robin (§II-A): the next vGPU that has a task gives its first one.
#[derive(Clone, Debug, Default)]
pub(super) struct Rotation {
    turns: VecDeque<VgpuKey>,
}

codec!(struct Rotation { turns });

impl Rotation {
    pub(super) fn enter(&mut self, state: &mut State, task: TaskKey, first: bool) {
        let vgpu = state.task(task).vgpu;
        let waiting = &mut state.vgpu_mut(vgpu).waiting;
        if waiting.is_empty() {
            self.turns.push_back(vgpu);
        }
        if first { waiting.push_front(task) } else { waiting.push_back(task) }
    }

    pub(super) fn leave(&mut self, state: &mut State, task: TaskKey) {
        let vgpu = state.task(task).vgpu;
        let waiting = &mut state.vgpu_mut(vgpu).waiting;
        waiting.retain(|other| *other != task);
        if waiting.is_empty() {
            self.turns.retain(|other| *other != vgpu);
        }
    }

    pub(super) fn next(&mut self, state: &mut State) -> Option<TaskKey> {
        let vgpu = self.turns.pop_front()?;
        let waiting = &mut state.vgpu_mut(vgpu).waiting;
        let task = waiting.pop_front();
        if !waiting.is_empty() {
            self.turns.push_back(vgpu);
        }
        task
    }
}
