//! Start-time fair queueing before several devices, in two levels: tenants share what a class has,
//! and a tenant's vGPUs share its part.
//!
//! The virtual time of a level is what the flow that is next *had*, by the pool's clock, or while
//! none waits what those that run had. What a run is charged in advance only says who goes next:
//! nobody's word moves the virtual time.

use alloc::vec::Vec;

use super::super::state::{State, Vgpu};
use crate::codec::codec;
use crate::heap::Heap;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::tag::Tag;

/// Whoever submits again within this time after a result has not slept, in ns: a round trip to a
/// client that waited for it.
const AWAKE_NS: u64 = 5_000_000;

/// Who shares at one level.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    weight: Weight,
    /// What it had.
    settled: Tag,
    /// What its runs are charged in advance, in ns.
    ahead_ns: u64,
    runs: u32,
    waits: bool,
    /// When its last run ended.
    ended_ns: u64,
}

codec!(struct Flow { weight, settled, ahead_ns, runs, waits, ended_ns });

impl Flow {
    /// Whether it has not slept: somebody who waits for a result before the next submission has
    /// nothing that waits in between.
    fn is_awake(&self, now_ns: u64) -> bool {
        self.runs > 0 || now_ns.saturating_sub(self.ended_ns) <= AWAKE_NS
    }

    /// Its place in the order of those that wait.
    fn tag(&self) -> Tag {
        self.settled.plus(Tag::from_service(self.ahead_ns, self.weight))
    }
}

/// Flows of one level.
#[derive(Debug, Default)]
struct Level {
    flows: Vec<Flow>,
    /// Those that wait, by tag.
    waiting: Heap<Tag>,
    virtual_time: Tag,
}

codec!(struct Level { flows, waiting, virtual_time });

impl Level {
    fn reserve(&mut self, key: u32) {
        if self.flows.len() <= key as usize {
            self.flows.resize(key as usize + 1, Flow::default());
        }
        self.waiting.reserve(key);
    }

    fn flow(&self, key: u32) -> &Flow {
        &self.flows[key as usize]
    }

    /// Changes a flow, and where it stands.
    fn change(&mut self, key: u32, change: impl FnOnce(&mut Flow)) {
        let flow = &mut self.flows[key as usize];
        change(flow);
        if flow.waits {
            self.waiting.set(key, flow.tag());
        } else {
            self.waiting.remove(key);
        }
        let now = match self.waiting.peek() {
            Some((_, next)) => self.flow(next).settled,
            None if self.flow(key).runs > 0 => self.flow(key).settled,
            None => return,
        };
        self.virtual_time = self.virtual_time.max(now);
    }

    /// One that did not wait has no claim to the time before, unless it was awake: then to what
    /// the others may have been ahead of it.
    fn set_waits(&mut self, key: u32, waits: bool, now_ns: u64, slack_ns: u64) {
        let virtual_time = self.virtual_time;
        self.change(key, |flow| {
            if waits {
                let claim_ns = if flow.is_awake(now_ns) { slack_ns } else { 0 };
                let claim = Tag::from_service(claim_ns, flow.weight);
                let owed = virtual_time.minus(flow.tag().plus(claim));
                flow.settled = flow.settled.plus(owed);
            }
            flow.waits = waits;
        });
    }

    /// Keeps what it is ahead as service: at twice the weight it is half the distance.
    fn reweight(&mut self, key: u32, weight: Weight) {
        let virtual_time = self.virtual_time;
        self.change(key, |flow| {
            let lead = flow.settled.minus(virtual_time).rescaled(flow.weight, weight);
            flow.settled = flow.settled.min(virtual_time).plus(lead);
            flow.weight = weight;
        });
    }

    /// What each run of a flow may still have until another flow that waits is owed more, in ns.
    fn until_owed_ns(&self, key: u32) -> Option<u64> {
        let (owed, _) = self.waiting.peek_beside(key)?;
        let flow = self.flow(key);
        let lead_ns = owed.minus(flow.settled).to_service_ns(flow.weight);
        Some((lead_ns / u64::from(flow.runs.max(1))).saturating_add(1))
    }

    fn is_within(&self, key: u32, slack_ns: u64) -> bool {
        let flow = self.flow(key);
        let slack = Tag::from_service(slack_ns, flow.weight);
        let least = self.waiting.peek();
        least.is_none_or(|(least, _)| flow.tag() <= least.plus(slack))
    }
}

/// What a vGPU that is gone was ahead. A tenant that removes it and makes another one has it still.
#[derive(Clone, Copy, Debug)]
struct Debt {
    tenant: TenantKey,
    settled: Tag,
    weight: Weight,
}

codec!(struct Debt { tenant, settled, weight });

/// vGPUs of one tenant and class.
#[derive(Debug, Default)]
struct Group {
    level: Level,
    debts: Vec<Debt>,
}

codec!(struct Group { level, debts });

impl Group {
    /// Where a vGPU of the tenant begins.
    fn start(&self, tenant: TenantKey, weight: Weight) -> Tag {
        let now = self.level.virtual_time;
        let own = self.debts.iter().filter(|debt| debt.tenant == tenant);
        let lead = own.map(|debt| debt.settled.minus(now).rescaled(debt.weight, weight)).max();
        now.plus(lead.unwrap_or_default())
    }

    /// Of each tenant the largest, until the others have had as much.
    fn remember(&mut self, new: Debt) {
        let now = self.level.virtual_time;
        let service_ns = |debt: &Debt| debt.settled.minus(now).to_service_ns(debt.weight);
        let own = self.debts.iter().filter(|debt| debt.tenant == new.tenant);
        let largest = own.chain([&new]).copied().max_by_key(service_ns);
        self.debts.retain(|debt| debt.tenant != new.tenant && debt.settled > now);
        self.debts.extend(largest.filter(|debt| debt.settled > now));
    }
}

/// One class.
#[derive(Debug, Default)]
struct ClassShare {
    tenants: Level,
    groups: Vec<Group>,
}

codec!(struct ClassShare { tenants, groups });

/// A vGPU's leaf of the tree: its tenant, and its flow among the tenant's.
#[derive(Clone, Copy, Debug, Default)]
struct Leaf {
    tenant: u32,
    place: u32,
}

codec!(struct Leaf { tenant, place });

/// What a vGPU's runs are charged in advance, when it changes its class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Runs {
    pub(super) count: u32,
    pub(super) ahead_ns: u64,
}

/// Both classes.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// User-facing, batch.
    classes: [ClassShare; 2],
    /// The vGPUs of each tenant, by place.
    members: Vec<Vec<Option<VgpuKey>>>,
    /// By vGPU.
    leaves: Vec<Leaf>,
}

codec!(struct Shares { classes, members, leaves });

fn class_of(vgpu: &Vgpu) -> usize {
    State::place(!vgpu.class.is_user_facing())
}

impl Shares {
    /// A vGPU comes, where its tenant's others went.
    pub(super) fn add(&mut self, state: &State, key: VgpuKey) {
        let vgpu = state.vgpu(key);
        let tenant = if state.config.by_tenant { vgpu.tenant } else { TenantKey::DEFAULT };
        self.reserve(tenant);
        let members = &mut self.members[tenant.index()];
        let free = members.iter().position(Option::is_none).unwrap_or(members.len());
        if free == members.len() {
            members.push(None);
        }
        members[free] = Some(key);
        if self.leaves.len() <= key.index() {
            self.leaves.resize(key.index() + 1, Leaf::default());
        }
        let place = u32::try_from(free).unwrap_or(u32::MAX);
        self.leaves[key.index()] = Leaf { tenant: tenant.0, place };
        for class in &mut self.classes {
            let group = &mut class.groups[tenant.index()];
            let settled = group.start(vgpu.tenant, vgpu.weight);
            group.level.reserve(place);
            group.level.flows[free] = Flow { weight: vgpu.weight, settled, ..Flow::default() };
        }
    }

    fn reserve(&mut self, tenant: TenantKey) {
        if self.members.len() <= tenant.index() {
            self.members.resize_with(tenant.index() + 1, Vec::new);
        }
        for class in &mut self.classes {
            class.tenants.reserve(tenant.0);
            if class.groups.len() <= tenant.index() {
                class.groups.resize_with(tenant.index() + 1, Group::default);
            }
        }
    }

    /// A vGPU without tasks goes; what it is ahead in either class stays with its tenant: one that
    /// changed its class before it went has not paid in the class that it left.
    pub(super) fn remove(&mut self, key: VgpuKey, vgpu: &Vgpu) {
        let Leaf { tenant, place } = self.leaves[key.index()];
        self.members[tenant as usize][place as usize] = None;
        for class in &mut self.classes {
            let group = &mut class.groups[tenant as usize];
            let Flow { settled, weight, .. } = *group.level.flow(place);
            group.remember(Debt { tenant: vgpu.tenant, settled, weight });
        }
    }

    /// A tenant has another share from now on.
    pub(super) fn set_tenant(&mut self, tenant: TenantKey, weight: Weight) {
        self.reserve(tenant);
        self.classes.iter_mut().for_each(|class| class.tenants.reweight(tenant.0, weight));
    }

    /// Whether the vGPU has a task that waits.
    pub(super) fn set_waits(&mut self, state: &State, key: VgpuKey, waits: bool) {
        let Leaf { tenant, place } = self.leaves[key.index()];
        let vgpu = state.vgpu(key);
        let class = &mut self.classes[class_of(vgpu)];
        // Only where the earliest deadline goes first may anybody be ahead while others wait.
        let slack_ns = if vgpu.class.is_user_facing() { state.config.slack_ns } else { 0 };
        let level = &mut class.groups[tenant as usize].level;
        if level.flow(place).waits != waits {
            level.set_waits(place, waits, state.now_ns, slack_ns);
            let any = !level.waiting.is_empty();
            if class.tenants.flow(tenant).waits != any {
                class.tenants.set_waits(tenant, any, state.now_ns, slack_ns);
            }
        }
    }

    /// Of those that wait in a class, who is next.
    pub(super) fn first(&self, class: usize) -> Option<VgpuKey> {
        let class_share = &self.classes[class];
        let (_, tenant) = class_share.tenants.waiting.peek()?;
        let (_, place) = class_share.groups[tenant as usize].level.waiting.peek()?;
        self.members[tenant as usize][place as usize]
    }

    /// Whether a user-facing vGPU, and its tenant, are at most the slack ahead of who is owed most.
    pub(super) fn is_within(&self, key: VgpuKey, slack_ns: u64) -> bool {
        let Leaf { tenant, place } = self.leaves[key.index()];
        let class = &self.classes[0];
        class.tenants.is_within(tenant, slack_ns)
            && class.groups[tenant as usize].level.is_within(place, slack_ns)
    }

    fn change(&mut self, class: usize, key: VgpuKey, change: impl Fn(&mut Flow)) {
        let Leaf { tenant, place } = self.leaves[key.index()];
        let class = &mut self.classes[class];
        class.groups[tenant as usize].level.change(place, &change);
        class.tenants.change(tenant, change);
    }

    /// A run begins, and is charged in advance.
    pub(super) fn start(&mut self, state: &State, key: VgpuKey, ahead_ns: u64) {
        self.change(class_of(state.vgpu(key)), key, |flow| {
            flow.runs += 1;
            flow.ahead_ns = flow.ahead_ns.saturating_add(ahead_ns);
        });
    }

    /// A run has had `used_ns`; what it is charged in advance falls from one to the other.
    pub(super) fn charge(
        &mut self,
        state: &State,
        key: VgpuKey,
        used_ns: u64,
        (before_ns, after_ns): (u64, u64),
    ) {
        self.change(class_of(state.vgpu(key)), key, |flow| {
            flow.settled = flow.settled.plus(Tag::from_service(used_ns, flow.weight));
            flow.ahead_ns = flow.ahead_ns.saturating_sub(before_ns).saturating_add(after_ns);
        });
    }

    /// A run is over; what it had is charged.
    pub(super) fn end(&mut self, state: &State, key: VgpuKey) {
        self.change(class_of(state.vgpu(key)), key, |flow| {
            flow.runs -= 1;
            flow.ended_ns = state.now_ns;
        });
    }

    /// The vGPU has another weight.
    pub(super) fn reweight(&mut self, state: &State, key: VgpuKey) {
        let Leaf { tenant, place } = self.leaves[key.index()];
        let vgpu = state.vgpu(key);
        let class = &mut self.classes[class_of(vgpu)];
        class.groups[tenant as usize].level.reweight(place, vgpu.weight);
    }

    /// The vGPU, which has no task that waits, was of the other class until now: its lead and its
    /// runs come along.
    pub(super) fn reclass(&mut self, state: &State, key: VgpuKey, runs: Runs) {
        let Leaf { tenant, place } = self.leaves[key.index()];
        let vgpu = state.vgpu(key);
        let to = class_of(vgpu);
        let from = 1 - to;
        let group = &self.classes[from].groups[tenant as usize];
        let old = *group.level.flow(place);
        let lead = old.settled.minus(group.level.virtual_time).rescaled(old.weight, vgpu.weight);
        self.change(from, key, |flow| {
            flow.runs -= runs.count;
            flow.ahead_ns = flow.ahead_ns.saturating_sub(runs.ahead_ns);
        });
        let group = &mut self.classes[to].groups[tenant as usize];
        let now = group.level.virtual_time;
        // What it was ahead here when it left this class, it still is.
        let own = *group.level.flow(place);
        let own_lead = own.settled.minus(now).rescaled(own.weight, vgpu.weight);
        let start = group.start(vgpu.tenant, vgpu.weight).max(now.plus(lead.max(own_lead)));
        let flow = &mut group.level.flows[place as usize];
        (flow.settled, flow.weight) = (start, vgpu.weight);
        if runs.count == 0 {
            return;
        }
        let now = self.classes[to].tenants.virtual_time;
        let its_tenant = &mut self.classes[to].tenants.flows[tenant as usize];
        if its_tenant.runs == 0 && !its_tenant.waits {
            its_tenant.settled = its_tenant.settled.max(now);
        }
        self.change(to, key, |flow| {
            flow.runs += runs.count;
            flow.ahead_ns = flow.ahead_ns.saturating_add(runs.ahead_ns);
        });
    }

    /// What each run of a batch vGPU may still have until another one that waits is owed more, in
    /// ns; none if no other one waits. Without a further event nothing else is known to change.
    pub(super) fn until_owed_ns(&self, runs: VgpuKey) -> Option<u64> {
        let Leaf { tenant, place } = self.leaves[runs.index()];
        let class = &self.classes[1];
        let own = class.groups[tenant as usize].level.until_owed_ns(place);
        own.into_iter().chain(class.tenants.until_owed_ns(tenant)).min()
    }
}
