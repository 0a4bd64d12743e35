//! Somebody outside the core who prefers vGPUs, without any reason.

use weft_sched::Event;

use super::random::Random;
use super::{DEVICE, Model, vgpu_key};

impl Model {
    /// At a turn, one of those within reach is preferred; now and then somebody who is not.
    pub(super) fn prefer_somebody(&mut self, epoch: u64) {
        if self.node.config(DEVICE).is_none_or(|config| config.reach_ns == 0) {
            return;
        }
        let choice = usize::try_from(Random(epoch).below(1 << 16)).unwrap_or_default();
        let among = match choice % 8 {
            0 => self.vgpus_alive().into_iter().map(vgpu_key).collect(),
            _ => self.node.within_reach(DEVICE),
        };
        if let Some(vgpu) = among.get(choice % among.len().max(1)) {
            self.tell(Event::Prefer { vgpu: *vgpu });
        }
    }
}
