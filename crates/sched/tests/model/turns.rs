//! What happens when a turn begins: the device may be written for the vGPU's memory, and somebody
//! outside the core says, without any reason, who should be next.

use weft_sched::Event;

use super::random::Random;
use super::{DEVICE, Model, Tick, session_key, vgpu_key};

impl Model {
    /// The device executes nothing of the session while it is written for its memory.
    pub(super) fn switch(&mut self, worker: usize, epoch: u64) {
        let switch_ns = Random(epoch).below(4) * self.habits.switch_ns / 3;
        let vgpu = self.workers[worker].vgpu;
        let view = self.node.vgpu(vgpu_key(vgpu)).unwrap();
        let has_classes = self.node.policy(DEVICE).is_some_and(|policy| policy.name() == "fair");
        let comes_between = has_classes && view.class.is_user_facing();
        let before = self.last_turns.into_iter().flatten().filter(|(last, _)| *last == vgpu);
        let kept = before.map(|(_, kept)| kept).max().unwrap_or(0);
        let dear_ns = switch_ns.max(kept);
        // User-facing vGPUs' turns come between those of batch ones, not the other way round.
        let turn = Some((vgpu, dear_ns));
        self.last_turns = if comes_between { [self.last_turns[0], turn] } else { [turn, None] };
        self.workers[worker].switching_until = self.now + switch_ns;
        self.workers[worker].dear_ns = dear_ns;
        if switch_ns > 0 {
            self.later(switch_ns, Tick::Switched { worker });
            self.tell(Event::Switched { session: session_key(worker), switch_ns, ahead_ns: 0 });
        }
    }

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
