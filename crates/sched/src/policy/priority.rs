//! `priority`: the awake vGPU of the largest weight runs, equals in turn; smaller ones may starve.
//! A turn is not cut short when a larger weight wakes: it ends with its quantum.

use crate::codec::codec;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::policy::ranked::{Ranked, rank_by_weight};
use crate::policy::{Charge, Policy, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct Priority {
    queue: Ranked,
}

impl Priority {
    pub(super) fn new(_setup: &Setup<'_>) -> Self {
        Self { queue: Ranked::default() }
    }
}

impl Policy for Priority {
    fn add(&mut self, vgpu: VgpuKey, _tenant: TenantKey, weight: Weight, _ahead: Tag) {
        self.queue.add(vgpu, rank_by_weight(weight));
    }

    fn remove(&mut self, vgpu: VgpuKey) {
        self.queue.remove(vgpu);
    }

    fn reweight(&mut self, vgpu: VgpuKey, weight: Weight) {
        self.queue.set_rank(vgpu, rank_by_weight(weight));
    }

    fn wake(&mut self, vgpu: VgpuKey) {
        self.queue.wake(vgpu);
    }

    fn sleep(&mut self, vgpu: VgpuKey) {
        self.queue.sleep(vgpu);
    }

    fn peek(&self) -> Option<VgpuKey> {
        self.queue.peek()
    }

    fn start(&mut self, vgpu: VgpuKey) {
        self.queue.start(vgpu);
    }

    fn stop(&mut self, vgpu: VgpuKey) {
        self.queue.stop(vgpu);
    }

    fn charge(&mut self, _vgpu: VgpuKey, _charge: Charge) {}

    fn successor(&self, vgpu: VgpuKey, _rest_ns: u64) -> Option<VgpuKey> {
        self.queue.successor(vgpu)
    }
}

codec!(struct Priority { queue });
