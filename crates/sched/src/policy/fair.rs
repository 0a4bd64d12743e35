//! `fair`: start-time fair queueing by weight over held device time (FairGV §3.2.1), the default.
//!
//! Any two vGPUs that stay backlogged receive service in proportion to their weights, apart from a
//! lag that [`invariants`](crate::invariants) states and checks.

use crate::fair_queue::FairQueue;
use crate::key::{VgpuKey, Weight};
use crate::policy::{Charge, Policy};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct Fair {
    queue: FairQueue,
}

impl Fair {
    pub(super) fn new(virtual_time: Tag) -> Self {
        Self { queue: FairQueue::new(virtual_time) }
    }
}

impl Policy for Fair {
    fn add(&mut self, vgpu: VgpuKey, weight: Weight, ahead: Tag) {
        self.queue.add(vgpu.0, weight, ahead);
    }

    fn remove(&mut self, vgpu: VgpuKey) {
        self.queue.remove(vgpu.0);
    }

    fn reweight(&mut self, vgpu: VgpuKey, weight: Weight) {
        self.queue.reweight(vgpu.0, weight);
    }

    fn wake(&mut self, vgpu: VgpuKey) {
        self.queue.wake(vgpu.0);
    }

    fn sleep(&mut self, vgpu: VgpuKey) {
        self.queue.sleep(vgpu.0);
    }

    fn peek(&self) -> Option<VgpuKey> {
        self.queue.peek().map(VgpuKey)
    }

    fn start(&mut self, vgpu: VgpuKey) {
        self.queue.start(vgpu.0);
    }

    fn stop(&mut self, vgpu: VgpuKey) {
        self.queue.stop(vgpu.0);
    }

    fn charge(&mut self, vgpu: VgpuKey, charge: Charge) {
        self.queue.charge(vgpu.0, charge);
    }

    fn runs_again(&self, vgpu: VgpuKey, rest_ns: u64) -> bool {
        self.queue.runs_again(vgpu.0, rest_ns)
    }

    fn virtual_time(&self) -> Tag {
        self.queue.virtual_time()
    }

    fn ahead(&self, vgpu: VgpuKey) -> Tag {
        self.queue.ahead(vgpu.0)
    }
}
