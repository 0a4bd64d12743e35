//! `round_robin`: a quantum each in the order of waiting; weights and what was used do not count.

use crate::codec::codec;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::policy::ranked::Ranked;
use crate::policy::{Charge, Policy, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct RoundRobin {
    queue: Ranked,
}

impl RoundRobin {
    pub(super) fn new(_setup: &Setup<'_>) -> Self {
        Self { queue: Ranked::default() }
    }
}

impl Policy for RoundRobin {
    fn add(&mut self, vgpu: VgpuKey, _tenant: TenantKey, _weight: Weight, _ahead: Tag) {
        self.queue.add(vgpu, 0);
    }

    fn remove(&mut self, vgpu: VgpuKey) {
        self.queue.remove(vgpu);
    }

    fn reweight(&mut self, _vgpu: VgpuKey, _weight: Weight) {}

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

codec!(struct RoundRobin { queue });
