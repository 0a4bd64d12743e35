//! The lag bound on a journal: what a real device reported, record by record.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::hierarchy::{LagTree, LevelLag};
use crate::action::Action;
use crate::event::Event;
use crate::key::{DeviceKey, SessionKey, TenantKey, VgpuKey};
use crate::node::Node;
use crate::policy::PolicyId;
use crate::tables::{SessionEntry, Vgpu};
use crate::tag::Tag;

/// Holds a journal's reports of service against the bound of the design,
/// `(q + lᵢ)/wᵢ + (q + lⱼ)/wⱼ`, and σ and the sleeper credit where they are set. `l` is not in a
/// journal, so it is given; whatever a driver adds to a turn (overlap, yielding, switching) counts
/// against it.
///
/// Only `fair` promises the bound, so only its times count. Only service between two reports is
/// unseen, and drivers report at the end of each turn, so this looks at every quantum. vGPUs with a
/// cap are left out: their caps hold them back.
#[derive(Debug)]
pub struct TraceLag {
    devices: BTreeMap<DeviceKey, Traced>,
    /// What each session was reported to have used, its vGPU and its device.
    sessions: BTreeMap<SessionKey, (u64, VgpuKey, DeviceKey)>,
    longest_ns: u64,
    reports: u64,
    beyond: u64,
    /// Of the intervals before the last change of policy.
    worst_millionths: i128,
}

#[derive(Debug)]
struct Traced {
    tree: LagTree,
    tenants: BTreeSet<TenantKey>,
    vgpus: BTreeSet<VgpuKey>,
    /// Who had turns of late, and what each had been charged for switches.
    charged: BTreeMap<VgpuKey, u64>,
}

/// What a trace was found to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Reports of service that were looked at.
    pub reports: u64,
    /// Those at which two members were further apart than the bound.
    pub beyond: u64,
    /// The largest lag of all levels over its bound, in millionths.
    pub worst_millionths: i128,
}

impl TraceLag {
    /// From the state at a journal's beginning; no command that cannot be cut is longer than
    /// `longest_ns`.
    pub fn new(node: &Node, longest_ns: u64) -> Self {
        let mut trace = Self {
            devices: BTreeMap::new(),
            sessions: BTreeMap::new(),
            longest_ns,
            reports: 0,
            beyond: 0,
            worst_millionths: 0,
        };
        trace.begin_again(node);
        trace
    }

    /// The policy changed: what was served before says nothing of the new one.
    fn begin_again(&mut self, node: &Node) {
        self.worst_millionths = self.worst();
        self.devices.clear();
        self.sessions.clear();
        for (key, _) in node.tables.sessions.iter() {
            self.look(node, SessionKey(key));
        }
    }

    /// After an event and what it caused; `node` is the core after it. The result is a lag beyond
    /// the bound.
    pub fn observe(
        &mut self,
        event: &Event,
        actions: &[Action],
        node: &Node,
    ) -> Result<(), LevelLag> {
        let mut result = self.charged(node);
        match *event {
            Event::Used { session, .. } | Event::Released { session, .. } => {
                let served = self.served(node, session);
                result = result.and(served);
                self.look(node, session);
            }
            Event::AddSession { session, .. }
            | Event::Runnable { session, .. }
            | Event::Idle { session }
            | Event::Adopt { session, .. } => self.look(node, session),
            Event::RemoveSession { session } => self.forget(session),
            // Where it comes to, its intervals begin anew.
            Event::RemoveVgpu { vgpu } | Event::MoveVgpu { vgpu, .. } => self.forget_vgpu(vgpu),
            Event::RemoveTenant { tenant } => self.forget_tenant(node, tenant),
            Event::Reweight { vgpu, weight } => {
                for traced in self.devices.values_mut() {
                    traced.tree.reweight_vgpu(vgpu, weight);
                }
            }
            Event::ReweightTenant { tenant, weight } => {
                for traced in self.devices.values_mut() {
                    traced.tree.reweight_tenant(tenant, weight);
                }
            }
            Event::ReweightSession { session, weight } => {
                for traced in self.devices.values_mut() {
                    traced.tree.reweight_session(session, weight);
                }
            }
            Event::SetCap { vgpu, .. } => self.note_caps(node, &[vgpu]),
            Event::SetTenantCap { tenant, .. } => {
                let tenant = node.tables.tenants.find(tenant.index());
                self.note_caps(node, tenant.map_or(&[], |tenant| &tenant.vgpus));
            }
            Event::SetClass { vgpu, .. } => self.note_class(node, vgpu),
            Event::SetPolicy { .. } => self.begin_again(node),
            Event::DeviceUp { .. }
            | Event::DeviceDown { .. }
            | Event::AddTenant { .. }
            | Event::AddVgpu { .. }
            | Event::SetOwner { .. }
            | Event::SyncCalls { .. }
            | Event::Pieces { .. }
            | Event::Switched { .. }
            | Event::Paged { .. }
            | Event::Prefer { .. }
            | Event::OnCpu { .. }
            | Event::Timer => {}
        }
        for action in actions {
            if let Action::Grant { session, .. } | Action::Revoke { session, .. } = action {
                self.look(node, *session);
            }
            if let Action::Grant { session, device, .. } = action {
                self.had_turn(node, *session, *device);
            }
        }
        result
    }

    /// What has been seen so far.
    pub fn summary(&self) -> TraceSummary {
        let worst_millionths = self.worst();
        TraceSummary { reports: self.reports, beyond: self.beyond, worst_millionths }
    }

    fn worst(&self) -> i128 {
        let worst = self.devices.values().filter_map(|traced| traced.tree.worst());
        let worst = worst.map(|worst| worst.lag.share_of_bound());
        worst.fold(self.worst_millionths, i128::max)
    }

    /// Who had turns is charged for their switches when others' begin.
    fn charged(&mut self, node: &Node) -> Result<(), LevelLag> {
        let mut result = Ok(());
        for traced in self.devices.values_mut() {
            for (key, before_ns) in &mut traced.charged {
                let Some(view) = node.vgpu(*key) else { continue };
                let ns = view.switches_ns.saturating_sub(*before_ns);
                *before_ns = view.switches_ns;
                let charged = traced.tree.charged(*key, ns);
                self.beyond += u64::from(charged.is_err());
                result = result.and(charged);
            }
        }
        result
    }

    /// A turn begins, and all that others owed for their switches is charged, but for those who go
    /// on after a user-facing vGPU's.
    fn had_turn(&mut self, node: &Node, session: SessionKey, device: DeviceKey) {
        let Some(traced) = self.devices.get_mut(&device) else { return };
        let Some(key) = node.vgpu_of(session) else { return };
        let is_urgent =
            |key: VgpuKey| node.vgpu(key).is_some_and(|view| view.class.is_user_facing());
        let stays = is_urgent(key);
        traced.charged.retain(|other, _| *other == key || (stays && !is_urgent(*other)));
        let switches_ns = node.vgpu(key).map_or(0, |view| view.switches_ns);
        traced.charged.entry(key).or_insert(switches_ns);
    }

    fn served(&mut self, node: &Node, key: SessionKey) -> Result<(), LevelLag> {
        let Some((used_ns, _, device)) = self.sessions.get_mut(&key) else { return Ok(()) };
        let Some(session) = node.tables.sessions.find(key.index()) else { return Ok(()) };
        let ns = session.used_ns.saturating_sub(*used_ns);
        *used_ns = session.used_ns;
        // The others promise no bound.
        if !node.policy(*device).is_some_and(PolicyId::promises_lag_bound) {
            return Ok(());
        }
        let Some(traced) = self.devices.get_mut(device) else { return Ok(()) };
        self.reports += 1;
        let result = traced.tree.served(key, ns);
        self.beyond += u64::from(result.is_err());
        result
    }

    /// Takes over what the core knows of a session.
    fn look(&mut self, node: &Node, key: SessionKey) {
        let Some(session) = node.tables.sessions.find(key.index()) else { return };
        let Some(vgpu) = node.tables.vgpus.find(session.vgpu.index()) else { return };
        if let Entry::Vacant(entry) = self.sessions.entry(key) {
            entry.insert((session.used_ns, session.vgpu, vgpu.device));
            self.admit(node, key, session, vgpu);
        }
        if let Some(traced) = self.devices.get_mut(&vgpu.device) {
            traced.tree.observe(key, session.runnable, session.turn.is_some());
        }
    }

    /// A session that was not seen before, and its vGPU and tenant where they are new.
    fn admit(&mut self, node: &Node, key: SessionKey, session: &SessionEntry, vgpu: &Vgpu) {
        let Some(config) = node.config(vgpu.device) else { return };
        let turn_ns = config.quantum_ns + config.sleeper_credit_ns + config.sigma_ns();
        let traced = self.devices.entry(vgpu.device).or_insert_with(|| Traced {
            tree: LagTree::new(turn_ns),
            tenants: BTreeSet::new(),
            vgpus: BTreeSet::new(),
            charged: BTreeMap::new(),
        });
        if traced.tenants.insert(vgpu.tenant)
            && let Some(weight) = node.tenant(vgpu.tenant)
        {
            traced.tree.add_tenant(vgpu.tenant, weight);
        }
        if traced.vgpus.insert(session.vgpu) {
            traced.tree.add_vgpu(session.vgpu, vgpu.tenant, vgpu.weight);
            traced.tree.set_throttled(session.vgpu, is_capped(node, vgpu));
            // It may begin with what its owner's other vGPUs owe.
            if vgpu.rest.owner.is_some() && vgpu.turns == 0 {
                let ahead = node.vgpu(session.vgpu).map_or(Tag::ZERO, |view| view.ahead);
                traced.tree.begins_ahead(session.vgpu, ahead.to_service_ns(vgpu.weight));
            }
        }
        traced.tree.add_session(key, session.vgpu, session.weight);
        traced.tree.submitted(key, self.longest_ns);
        self.note_class(node, session.vgpu);
    }

    /// Who has a cap has no bound to be held against: a journal does not tell when it was held
    /// back.
    fn note_caps(&mut self, node: &Node, vgpus: &[VgpuKey]) {
        for key in vgpus {
            let Some(vgpu) = node.tables.vgpus.find(key.index()) else { continue };
            for traced in self.devices.values_mut() {
                traced.tree.set_throttled(*key, is_capped(node, vgpu));
            }
        }
    }

    fn note_class(&mut self, node: &Node, key: VgpuKey) {
        let Some(vgpu) = node.tables.vgpus.find(key.index()) else { return };
        let Some(config) = node.config(vgpu.device) else { return };
        if let Some(traced) = self.devices.get_mut(&vgpu.device)
            && vgpu.rest.class.is_user_facing()
        {
            traced.tree.may_borrow(key, config.borrow_ns);
        }
    }

    fn forget(&mut self, key: SessionKey) {
        if let Some((_, _, device)) = self.sessions.remove(&key)
            && let Some(traced) = self.devices.get_mut(&device)
        {
            traced.tree.remove_session(key);
        }
    }

    fn forget_vgpu(&mut self, key: VgpuKey) {
        let of_it = self.sessions.iter().filter(|(_, (_, vgpu, _))| *vgpu == key);
        let keys: Vec<SessionKey> = of_it.map(|(key, _)| *key).collect();
        for session in keys {
            self.forget(session);
        }
        for traced in self.devices.values_mut() {
            if traced.vgpus.remove(&key) {
                traced.tree.remove_vgpu(key);
            }
        }
    }

    /// A tenant is gone, with what it had: the core knows no vGPU of it any more.
    fn forget_tenant(&mut self, node: &Node, key: TenantKey) {
        let gone = |vgpu: &&VgpuKey| node.tables.vgpus.find(vgpu.index()).is_none();
        let known = self.devices.values().flat_map(|traced| &traced.vgpus);
        let vgpus: Vec<VgpuKey> = known.filter(gone).copied().collect();
        for vgpu in vgpus {
            self.forget_vgpu(vgpu);
        }
        for traced in self.devices.values_mut() {
            if traced.tenants.remove(&key) {
                traced.tree.remove_tenant(key);
            }
        }
    }
}

fn is_capped(node: &Node, vgpu: &Vgpu) -> bool {
    vgpu.meter.is_some() || node.tenant_cap(vgpu.tenant).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Actions;
    use crate::config::Config;
    use crate::event::Usage;
    use crate::key::Weight;

    /// Two vGPUs that take turns; the second one's turns last `second_ns`.
    fn trace(second_ns: u64, turns: u64, longest_ns: u64) -> TraceSummary {
        let mut node = Node::new();
        let mut lag = TraceLag::new(&node, longest_ns);
        let mut actions = Actions::new();
        let mut now_ns = 0;
        let mut tell = |node: &mut Node, event: Event| {
            now_ns += 10_000_000;
            actions.clear();
            node.handle(now_ns, event, &mut actions).unwrap();
            let _beyond = lag.observe(&event, actions.as_slice(), node);
        };
        let device = DeviceKey(0);
        tell(&mut node, Event::DeviceUp { device, config: Config::default() });
        for key in 0..2 {
            let (vgpu, tenant) = (VgpuKey(key), TenantKey::DEFAULT);
            tell(&mut node, Event::AddVgpu { vgpu, tenant, device, weight: Weight::ONE });
            tell(&mut node, Event::AddSession { session: SessionKey(key), vgpu });
            tell(&mut node, Event::Runnable { session: SessionKey(key), estimate_ns: 1_000 });
        }
        let mut used_ns = [0; 2];
        for turn in 0..turns {
            // Whoever the core grants, the device serves in turn: what it reports is what counts.
            let place = usize::try_from(turn % 2).unwrap();
            used_ns[place] += if place == 0 { 6_000_000 } else { second_ns };
            let usage = Usage { used_ns: used_ns[place], in_flight_ns: 0, idle_ns: 0 };
            tell(&mut node, Event::Used { session: SessionKey(u32::from(place == 1)), usage });
        }
        lag.summary()
    }

    #[test]
    fn fair_service_keeps_the_bound_and_unfair_service_does_not() {
        let fair = trace(6_000_000, 40, 0);
        assert_eq!((fair.reports, fair.beyond), (40, 0), "{fair:?}");
        assert_eq!(fair.worst_millionths, 500_000, "a turn over two: {fair:?}");
        // Half a millisecond more each turn is 12 ms after 24 turns of each.
        let unfair = trace(6_500_000, 60, 0);
        assert!(unfair.beyond > 0 && unfair.worst_millionths > 1_000_000, "{unfair:?}");
        let excused = trace(6_500_000, 60, 10_000_000);
        assert_eq!(excused.beyond, 0, "{excused:?}");
    }
}
