//! A scheduling core with one device, and the time: what devices of tests stand on.

use weft_sched::{Action, Actions, DeviceKey, Event, Node, UNLIMITED};

pub(crate) const D: DeviceKey = DeviceKey(0);
pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

/// A core, the time, and the turn that goes on.
pub(crate) struct Driver {
    pub(crate) node: Node,
    pub(crate) now_ns: u64,
    pub(crate) epoch: u64,
    pub(crate) budget_ns: u64,
    /// Its holder was asked for it.
    pub(crate) revoked: bool,
}

impl Driver {
    pub(crate) fn new() -> Self {
        let (node, budget_ns) = (Node::new(), UNLIMITED);
        Self { node, now_ns: 0, epoch: 0, budget_ns, revoked: false }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        let mut actions = Actions::new();
        self.node.handle(self.now_ns, event, &mut actions).unwrap();
        for action in actions.drain() {
            if let Action::Grant { epoch, budget_ns, .. } = action {
                (self.epoch, self.budget_ns, self.revoked) = (epoch, budget_ns, false);
            }
            self.revoked |= matches!(action, Action::Revoke { .. });
        }
    }

    /// Lets time pass, and the core look at the clock whenever it wants to.
    pub(crate) fn pass(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while let Some((at_ns, _)) = self.node.poll_timeout().filter(|(at_ns, _)| *at_ns <= end_ns)
        {
            self.now_ns = at_ns.max(self.now_ns);
            self.tell(Event::Timer);
        }
        self.now_ns = end_ns;
    }
}
