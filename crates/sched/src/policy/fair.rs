//! `fair`: hierarchical start-time fair queueing by weight over held device time (FairGV §3.2.1),
//! the default.
//!
//! Tenants share the device, a tenant's vGPUs share its part. Any two tenants that stay
//! backlogged receive service in proportion to their weights, and so do any two vGPUs of one
//! tenant, apart from a lag that [`invariants`](crate::invariants) states and checks.

use alloc::vec::Vec;

use crate::class::Class;
use crate::codec::codec;
use crate::config::Config;
use crate::fair_queue::{FairQueue, Rules, Terms};
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::places::Places;
use crate::policy::{Charge, Owed, Policy, Rivals, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct Fair {
    tenants: FairQueue,
    groups: Vec<Group>,
    members: Vec<Member>,
    /// The tenant whose vGPU is expected to go on at once.
    anticipated: Option<u32>,
    /// The tenant whose vGPU is preferred.
    preferred: Option<u32>,
    rules: Rules,
    terms: Terms,
    /// vGPUs that are user-facing.
    user_facing: u32,
}

/// The vGPUs of one tenant.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Group {
    queue: FairQueue,
    vgpus: Places<VgpuKey>,
    awake: u32,
    /// Those of them that are user-facing.
    urgent: u32,
}

/// Where a vGPU stands.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    tenant: u32,
    place: u32,
    user_facing: bool,
}

impl Fair {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let rules = Rules {
            sleeper_credit_ns: setup.config.sleeper_credit_ns,
            slack_ns: setup.config.slack_at_first_ns(),
            reach_ns: setup.config.reach_ns,
        };
        let tenants = FairQueue::new(setup.virtual_time, rules);
        let &Config { borrow_ns, quantum_ns, .. } = setup.config;
        let terms = Terms { borrow_ns, turn_ns: quantum_ns };
        let (groups, members) = (Vec::new(), Vec::new());
        let (anticipated, preferred, user_facing) = (None, None, 0);
        Self { tenants, groups, members, anticipated, preferred, rules, terms, user_facing }
    }

    fn member(&self, vgpu: VgpuKey) -> (Member, &Group) {
        let member = self.members[vgpu.index()];
        (member, &self.groups[member.tenant as usize])
    }

    fn member_mut(&mut self, vgpu: VgpuKey) -> (Member, &mut Group) {
        let member = self.members[vgpu.index()];
        (member, &mut self.groups[member.tenant as usize])
    }

    /// A vGPU with work comes or, with -1, goes: while it is user-facing its tenant borrows as it
    /// does.
    fn count_urgent(&mut self, member: Member, change: i32) {
        if member.user_facing {
            let group = &mut self.groups[member.tenant as usize];
            group.urgent = group.urgent.saturating_add_signed(change);
            self.tenants.set_borrows(member.tenant, (group.urgent > 0).then_some(self.terms));
        }
    }

    /// Nobody is preferred from here on.
    fn end_preference(&mut self) {
        if let Some(tenant) = self.preferred.take() {
            self.tenants.prefer(None);
            self.groups[tenant as usize].queue.prefer(None);
        }
    }

    fn first_of(&self, tenant: u32) -> Option<VgpuKey> {
        self.groups[tenant as usize].queue.first().map(VgpuKey)
    }
}

impl Policy for Fair {
    fn add_tenant(&mut self, tenant: TenantKey, weight: Weight, ahead: Tag) {
        if self.groups.len() <= tenant.index() {
            self.groups.resize_with(tenant.index() + 1, Group::default);
        }
        let queue = FairQueue::new(Tag::ZERO, self.rules);
        self.groups[tenant.index()] = Group { queue, ..Group::default() };
        self.tenants.add(tenant.0, tenant.0, weight, ahead);
    }

    fn remove_tenant(&mut self, tenant: TenantKey) {
        self.preferred = self.preferred.filter(|one| *one != tenant.0);
        self.tenants.remove(tenant.0);
        self.groups[tenant.index()] = Group::default();
    }

    fn reweight_tenant(&mut self, tenant: TenantKey, weight: Weight) {
        self.tenants.reweight(tenant.0, weight);
    }

    fn delay_tenant(&mut self, tenant: TenantKey, ahead: Tag) {
        self.tenants.delay(tenant.0, ahead);
    }

    fn time_of(&self, tenant: TenantKey) -> Option<Tag> {
        self.groups.get(tenant.index()).map(|group| group.queue.virtual_time())
    }

    fn delay(&mut self, vgpu: VgpuKey, ahead: Tag) {
        let (member, group) = self.member_mut(vgpu);
        group.queue.delay(member.place, ahead);
    }

    fn add(&mut self, vgpu: VgpuKey, tenant: TenantKey, weight: Weight, ahead: Tag) {
        if self.members.len() <= vgpu.index() {
            self.members.resize(vgpu.index() + 1, Member::default());
        }
        let group = &mut self.groups[tenant.index()];
        let place = group.vgpus.join(vgpu);
        group.queue.add(place, vgpu.0, weight, ahead);
        let (tenant, user_facing) = (tenant.0, false);
        self.members[vgpu.index()] = Member { tenant, place, user_facing };
    }

    fn remove(&mut self, vgpu: VgpuKey) {
        self.sleep(vgpu);
        self.set_class(vgpu, Class::Batch);
        let (member, group) = self.member_mut(vgpu);
        group.queue.remove(member.place);
        group.vgpus.leave(member.place);
    }

    fn reweight(&mut self, vgpu: VgpuKey, weight: Weight) {
        let (member, group) = self.member_mut(vgpu);
        group.queue.reweight(member.place, weight);
    }

    fn has_classes(&self) -> bool {
        true
    }

    fn set_class(&mut self, vgpu: VgpuKey, class: Class) {
        let user_facing = class.is_user_facing();
        let (member, group) = self.member_mut(vgpu);
        if member.user_facing == user_facing {
            return;
        }
        let awake = group.queue.is_awake(member.place);
        let terms = self.terms;
        let (_, group) = self.member_mut(vgpu);
        group.queue.set_borrows(member.place, user_facing.then_some(terms));
        self.user_facing = self.user_facing.saturating_add_signed(if user_facing { 1 } else { -1 });
        if awake {
            self.count_urgent(member, -1);
        }
        let member = &mut self.members[vgpu.index()];
        member.user_facing = user_facing;
        let member = *member;
        if awake {
            self.count_urgent(member, 1);
        }
    }

    fn set_slack(&mut self, slack_ns: u64) {
        self.rules.slack_ns = slack_ns;
        let groups = self.groups.iter_mut().map(|group| &mut group.queue);
        groups.chain([&mut self.tenants]).for_each(|queue| queue.set_slack(slack_ns));
    }

    fn prefer(&mut self, vgpu: VgpuKey) {
        self.end_preference();
        let (member, group) = self.member_mut(vgpu);
        group.queue.prefer(Some(member.place));
        self.tenants.prefer(Some(member.tenant));
        self.preferred = Some(member.tenant);
    }

    fn within_reach(&self) -> Vec<VgpuKey> {
        let tenants = (0..).zip(&self.groups).filter(|(tenant, group)| {
            // Who has the turn will have been served by its end, like everybody within reach.
            group.awake > 0 && (self.tenants.runs(*tenant) || self.tenants.reaches(*tenant))
        });
        let waiting = |vgpu: &VgpuKey| {
            let (member, group) = self.member(*vgpu);
            group.queue.reaches(member.place)
        };
        tenants.flat_map(|(_, group)| group.vgpus.iter()).filter(waiting).collect()
    }

    fn wake(&mut self, vgpu: VgpuKey) {
        let (member, group) = self.member_mut(vgpu);
        group.queue.wake(member.place);
        group.awake += 1;
        self.count_urgent(member, 1);
        let (member, group) = self.member_mut(vgpu);
        if group.awake == 1 {
            self.tenants.wake(member.tenant);
        }
    }

    fn sleep(&mut self, vgpu: VgpuKey) {
        let (member, group) = self.member_mut(vgpu);
        if !group.queue.is_awake(member.place) {
            return;
        }
        group.queue.sleep(member.place);
        group.awake -= 1;
        if group.awake == 0 {
            self.tenants.sleep(member.tenant);
        }
        self.count_urgent(member, -1);
    }

    fn anticipate(&mut self, vgpu: VgpuKey) {
        let (member, group) = self.member_mut(vgpu);
        group.queue.anticipate(member.place);
        if group.awake == 0 {
            self.tenants.anticipate(member.tenant);
        }
        self.anticipated = Some(member.tenant);
    }

    fn owed(&self, vgpu: VgpuKey, worked: bool) -> Option<Owed> {
        let (member, group) = self.member(vgpu);
        let (ns, rivals) = match group.awake {
            0 => (self.tenants.owed_ns(member.tenant, worked), Rivals::Tenants),
            // Its own tenant waits, and nobody else.
            _ if self.tenants.waiting() == 1 => {
                (group.queue.owed_ns(member.place, worked), Rivals::Siblings)
            }
            _ => return None,
        };
        ns.map(|ns| Owed { ns, rivals })
    }

    fn rivals(&self, vgpu: VgpuKey) -> Rivals {
        let (_, group) = self.member(vgpu);
        if group.awake == 0 { Rivals::Tenants } else { Rivals::Siblings }
    }

    fn end_anticipation(&mut self) {
        if let Some(tenant) = self.anticipated.take() {
            self.tenants.end_anticipation();
            self.groups[tenant as usize].queue.end_anticipation();
        }
    }

    fn peek(&self) -> Option<VgpuKey> {
        self.tenants.peek().and_then(|tenant| self.first_of(tenant))
    }

    fn start(&mut self, vgpu: VgpuKey) {
        self.end_preference();
        let (member, group) = self.member_mut(vgpu);
        group.queue.start(member.place);
        self.tenants.start(member.tenant);
    }

    fn stop(&mut self, vgpu: VgpuKey) {
        let (member, group) = self.member_mut(vgpu);
        if member.user_facing {
            group.queue.stop_between(member.place);
            self.tenants.stop_between(member.tenant);
        } else {
            group.queue.stop(member.place);
            self.tenants.stop(member.tenant);
        }
    }

    fn charge(&mut self, vgpu: VgpuKey, charge: Charge) {
        let (member, group) = self.member_mut(vgpu);
        group.queue.charge(member.place, charge);
        self.tenants.charge(member.tenant, charge);
    }

    fn preempts(&self, vgpu: VgpuKey) -> bool {
        if self.user_facing == 0 {
            return false;
        }
        let (_, group) = self.member(vgpu);
        let is_urgent = |next: VgpuKey| self.members[next.index()].user_facing;
        let sibling = group.queue.preempting().is_some();
        let tenant = self.tenants.preempting().and_then(|tenant| self.first_of(tenant));
        sibling || tenant.is_some_and(is_urgent)
    }

    fn successor(&self, vgpu: VgpuKey, rest_ns: u64) -> Option<VgpuKey> {
        let (member, group) = self.member(vgpu);
        if !self.tenants.runs_again(member.tenant, rest_ns) {
            return self.peek();
        }
        let same = group.queue.runs_again(member.place, rest_ns);
        if same { Some(vgpu) } else { self.first_of(member.tenant) }
    }

    fn virtual_time(&self) -> Tag {
        self.tenants.virtual_time()
    }

    fn ahead(&self, vgpu: VgpuKey) -> Tag {
        let (member, group) = self.member(vgpu);
        group.queue.ahead(member.place)
    }

    fn tenant_ahead(&self, tenant: TenantKey) -> Tag {
        self.tenants.ahead(tenant.0)
    }
}

codec!(struct Fair {
    tenants, groups, members, anticipated, preferred, rules, terms, user_facing,
});
codec!(struct Group { queue, vgpus, awake, urgent });
codec!(struct Member { tenant, place, user_facing });
