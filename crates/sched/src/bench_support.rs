//! A saturated device for measuring the cost of a decision. The caller has the clock.

use alloc::vec::Vec;

use crate::action::{Action, Actions};
use crate::config::Config;
use crate::event::{Event, Usage};
use crate::key::{DeviceKey, SessionKey, TenantKey, VgpuKey, Weight};
use crate::node::Node;
use crate::policy::PolicyId;

/// A device on which a number of vGPUs, one session each, always have work.
#[derive(Debug)]
pub struct Saturated {
    node: Node,
    actions: Actions,
    now_ns: u64,
    used_ns: Vec<u64>,
    holder: Option<(SessionKey, u64)>,
}

impl Saturated {
    /// `vgpus` of them, at least two, with weights 1, 2, 3, 1, 2, 3 …, of one tenant for each 32.
    pub fn new(policy: PolicyId, vgpus: u32) -> Self {
        Self::with_tenants(policy, vgpus, vgpus / 32)
    }

    /// `vgpus` dealt out to so many tenants, at least one, whose weights are 1, 2, 3 … too.
    pub fn with_tenants(policy: PolicyId, vgpus: u32, tenants: u32) -> Self {
        let weight = |key: u32| Weight::new(key % 3 + 1).unwrap_or_default();
        let config = Config { policy, ..Config::default() };
        let mut node = Node::new();
        let mut actions = Actions::new();
        let device = DeviceKey(0);
        let mut feed = |event| node.handle(0, event, &mut actions).expect("the keys are fresh");
        feed(Event::DeviceUp { device, config });
        for key in 1..tenants {
            feed(Event::AddTenant { tenant: TenantKey(key), weight: weight(key) });
        }
        for key in 0..vgpus.max(2) {
            let (vgpu, session) = (VgpuKey(key), SessionKey(key));
            let (tenant, weight) = (TenantKey(key % tenants.max(1)), weight(key));
            feed(Event::AddVgpu { vgpu, tenant, device, weight });
            feed(Event::AddSession { session, vgpu });
            feed(Event::Runnable { session, estimate_ns: 0 });
        }
        let used_ns = alloc::vec![0; vgpus.max(2) as usize];
        let mut saturated = Self { node, actions, now_ns: 0, used_ns, holder: None };
        saturated.follow_grants();
        saturated
    }

    /// One turn of the device: its holder releases what it used, and the next is granted. That is
    /// the decision that is measured. The result is the new holder.
    pub fn decide(&mut self) -> SessionKey {
        let (session, epoch) = self.holder.expect("a saturated device is held");
        self.now_ns += 6_000_000;
        let used_ns = &mut self.used_ns[session.index()];
        // Turns differ in length, so that tags spread as they do in life.
        *used_ns += 5_900_000 + self.now_ns.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 200_000;
        let usage = Usage { used_ns: *used_ns, ..Usage::default() };
        let event = Event::Released { session, epoch, usage };
        self.node.handle(self.now_ns, event, &mut self.actions).expect("the session is there");
        self.follow_grants();
        self.holder.map_or(session, |(session, _)| session)
    }

    fn follow_grants(&mut self) {
        for action in self.actions.drain() {
            if let Action::Grant { session, epoch, .. } = action {
                self.holder = Some((session, epoch));
            }
        }
    }
}
