//! The queue under `round_robin` and `priority`: turns in the order of a rank and then of arrival.

use alloc::vec::Vec;

use crate::codec::codec;
use crate::heap::Heap;
use crate::key::{VgpuKey, Weight};

/// Smaller ranks first; within a rank, whoever has waited longest.
#[derive(Debug, Default)]
pub(super) struct Ranked {
    flows: Vec<Flow>,
    waiting: Heap<(u32, u64)>,
    arrivals: u64,
    running: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    rank: u32,
    awake: bool,
}

impl Ranked {
    pub(super) fn add(&mut self, vgpu: VgpuKey, rank: u32) {
        if self.flows.len() <= vgpu.index() {
            self.flows.resize(vgpu.index() + 1, Flow::default());
        }
        self.waiting.reserve(vgpu.0);
        self.flows[vgpu.index()] = Flow { rank, awake: false };
    }

    pub(super) fn remove(&mut self, vgpu: VgpuKey) {
        self.sleep(vgpu);
        if self.running == Some(vgpu.0) {
            self.running = None;
        }
    }

    /// Moves a vGPU to another rank, behind those who wait there.
    pub(super) fn set_rank(&mut self, vgpu: VgpuKey, rank: u32) {
        self.flows[vgpu.index()].rank = rank;
        self.queue(vgpu);
    }

    pub(super) fn wake(&mut self, vgpu: VgpuKey) {
        self.flows[vgpu.index()].awake = true;
        self.queue(vgpu);
    }

    pub(super) fn sleep(&mut self, vgpu: VgpuKey) {
        self.flows[vgpu.index()].awake = false;
        self.waiting.remove(vgpu.0);
    }

    pub(super) fn peek(&self) -> Option<VgpuKey> {
        self.waiting.peek().map(|(_, key)| VgpuKey(key))
    }

    pub(super) fn start(&mut self, vgpu: VgpuKey) {
        self.waiting.remove(vgpu.0);
        self.running = Some(vgpu.0);
    }

    pub(super) fn stop(&mut self, vgpu: VgpuKey) {
        self.running = None;
        self.queue(vgpu);
    }

    /// It queues behind its equals, so only a strictly better rank runs again.
    pub(super) fn successor(&self, vgpu: VgpuKey) -> Option<VgpuKey> {
        let flow = self.flows[vgpu.index()];
        let others = self.waiting.peek();
        let again = flow.awake && others.is_none_or(|((rank, _), _)| flow.rank < rank);
        if again { Some(vgpu) } else { others.map(|(_, key)| VgpuKey(key)) }
    }

    fn queue(&mut self, vgpu: VgpuKey) {
        let flow = self.flows[vgpu.index()];
        if flow.awake && self.running != Some(vgpu.0) {
            self.arrivals += 1;
            self.waiting.set(vgpu.0, (flow.rank, self.arrivals));
        }
    }
}

/// The rank under `priority`: the largest weight is first.
pub(super) fn rank_by_weight(weight: Weight) -> u32 {
    Weight::MAX.get() - weight.get()
}

codec!(struct Ranked { flows, waiting, arrivals, running });
codec!(struct Flow { rank, awake });
