//! `shortest`: whoever had the fewest turns so far goes first. The worked example of
//! `docs/scheduling.md`: a policy is this file and one line in the registry. It is built with the
//! unit tests alone.

use alloc::vec::Vec;

use crate::codec::codec;
use crate::heap::Heap;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::policy::{Charge, Policy, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct Shortest {
    flows: Vec<Flow>,
    /// Those awake and not in their turn, by the number of their turns.
    waiting: Heap<u64>,
    running: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    turns: u64,
    awake: bool,
}

impl Shortest {
    pub(super) fn new(_setup: &Setup<'_>) -> Self {
        Self { flows: Vec::new(), waiting: Heap::default(), running: None }
    }

    fn queue(&mut self, vgpu: VgpuKey) {
        let Flow { turns, awake } = self.flows[vgpu.index()];
        if awake && self.running != Some(vgpu.0) {
            self.waiting.set(vgpu.0, turns);
        }
    }
}

impl Policy for Shortest {
    // Makes room, so that no decision allocates.
    fn add(&mut self, vgpu: VgpuKey, _tenant: TenantKey, _weight: Weight, _ahead: Tag) {
        if self.flows.len() <= vgpu.index() {
            self.flows.resize(vgpu.index() + 1, Flow::default());
        }
        self.flows[vgpu.index()] = Flow::default();
        self.waiting.reserve(vgpu.0);
    }

    fn remove(&mut self, vgpu: VgpuKey) {
        self.sleep(vgpu);
        self.running = self.running.filter(|key| *key != vgpu.0);
    }

    fn reweight(&mut self, _vgpu: VgpuKey, _weight: Weight) {}

    fn wake(&mut self, vgpu: VgpuKey) {
        self.flows[vgpu.index()].awake = true;
        self.queue(vgpu);
    }

    fn sleep(&mut self, vgpu: VgpuKey) {
        self.flows[vgpu.index()].awake = false;
        self.waiting.remove(vgpu.0);
    }

    fn peek(&self) -> Option<VgpuKey> {
        self.waiting.peek().map(|(_, key)| VgpuKey(key))
    }

    fn start(&mut self, vgpu: VgpuKey) {
        self.waiting.remove(vgpu.0);
        self.running = Some(vgpu.0);
        self.flows[vgpu.index()].turns += 1;
    }

    fn stop(&mut self, vgpu: VgpuKey) {
        self.running = None;
        self.queue(vgpu);
    }

    fn charge(&mut self, _vgpu: VgpuKey, _charge: Charge) {}

    fn successor(&self, vgpu: VgpuKey, _rest_ns: u64) -> Option<VgpuKey> {
        let own = self.flows[vgpu.index()];
        let others = self.waiting.peek();
        let again = own.awake && others.is_none_or(|other| (own.turns, vgpu.0) < other);
        if again { Some(vgpu) } else { others.map(|(_, key)| VgpuKey(key)) }
    }
}

codec!(struct Shortest { flows, waiting, running });
codec!(struct Flow { turns, awake });

#[cfg(test)]
mod tests {
    use crate::bench_support::Saturated;
    use crate::policy::by_name;

    #[test]
    fn turns_are_equal_whatever_the_weights() {
        let mut device = Saturated::new(by_name("shortest").unwrap(), 5);
        let mut turns = [0; 5];
        for _ in 0..1_000 {
            turns[device.decide().index()] += 1;
        }
        assert_eq!(turns, [200; 5]);
    }
}
