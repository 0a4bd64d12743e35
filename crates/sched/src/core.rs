//! One device: who holds it, until when, and who is next.

mod anticipation;
mod caps;
mod classes;
pub(crate) mod debts;
mod early;
mod moves;
mod shared;
mod switching;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::action::{Action, Actions, TimerReason, UNLIMITED};
use crate::cap::TenantCap;
use crate::codec::{Codec, Malformed, Reader};
use crate::config::Config;
use crate::event::Usage;
use crate::heap::Heap;
use crate::invariants::Rising;
use crate::key::{DeviceKey, SessionKey, TenantKey, VgpuKey, Weight};
use crate::policy::{Charge, Charges, Policy, PolicyId, Setup};
use crate::tables::{Slots, Tables};
use crate::tag::Tag;
use crate::turn::Turn;

use self::anticipation::{Anticipation, Pause};
use self::debts::Debts;
use self::switching::Switching;

/// What a device core needs of its node for one event.
pub(crate) struct Context<'a> {
    pub(crate) now_ns: u64,
    pub(crate) config: &'a Config,
    pub(crate) tables: &'a mut Tables,
    pub(crate) out: &'a mut Actions,
}

/// The scheduler of one device. Every event ends with [`Core::decide`].
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: DeviceKey,
    pub(crate) up: bool,
    pub(crate) policy_id: PolicyId,
    pub(crate) policy: Box<dyn Policy>,
    /// The virtual time that earlier policies reached.
    floor: Tag,
    /// Sessions with a turn: at most one that is in the policy's queue; several under a shared
    /// policy and just after one.
    pub(crate) holders: Vec<SessionKey>,
    /// Sessions with work.
    pub(crate) runnable: u32,
    /// Those of them that their vGPUs' caps do not hold back.
    pub(crate) eligible: u32,
    /// Sessions of user-facing vGPUs, with work or not.
    user_facing: u32,
    /// When each vGPU that its cap holds back may run again.
    refills: Heap<u64>,
    /// Caps of tenants, by tenant.
    tenant_caps: Slots<TenantCap>,
    /// When each tenant may run again that its cap holds back.
    tenant_refills: Heap<u64>,
    /// What removed vGPUs left their owners.
    pub(crate) debts: Debts,
    pub(crate) next_epoch: u64,
    /// When the work of past turns leaves the device, as far as is known.
    drain_ns: u64,
    /// Whose report corrects `drain_ns`.
    draining: Option<SessionKey>,
    prepared: Option<SessionKey>,
    anticipation: Option<Anticipation>,
    pause: Option<Pause>,
    switching: Switching,
    idle_said: bool,
    /// The virtual time as of the last decision.
    reached: Rising<Tag>,
    /// When `decide` must run again without another event.
    pub(crate) deadline: Option<(u64, TimerReason)>,
}

impl Core {
    /// A device that is down. `setup` holds the virtual time that it reached before; the tenants
    /// are added by the caller.
    pub(crate) fn new(
        device: DeviceKey,
        policy: PolicyId,
        setup: &Setup<'_>,
        next_epoch: u64,
    ) -> Self {
        Self {
            device,
            up: false,
            policy_id: policy,
            policy: policy.build(setup),
            floor: setup.virtual_time,
            holders: Vec::new(),
            runnable: 0,
            eligible: 0,
            user_facing: 0,
            refills: Heap::default(),
            tenant_caps: Slots::default(),
            tenant_refills: Heap::default(),
            debts: Debts::default(),
            next_epoch,
            drain_ns: 0,
            draining: None,
            prepared: None,
            anticipation: None,
            pause: None,
            switching: Switching::default(),
            idle_said: true,
            reached: Rising::default(),
            deadline: None,
        }
    }

    pub(crate) fn virtual_time(&self) -> Tag {
        self.floor.max(self.policy.virtual_time())
    }

    pub(crate) fn reweight(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey, weight: Weight) {
        self.without_prediction(cx, |core, _| core.policy.reweight(vgpu, weight));
        cx.tables.vgpu(vgpu).weight = weight;
    }

    pub(crate) fn reweight_tenant(
        &mut self,
        cx: &mut Context<'_>,
        tenant: TenantKey,
        weight: Weight,
    ) {
        self.without_prediction(cx, |core, _| core.policy.reweight_tenant(tenant, weight));
    }

    pub(crate) fn reweight_session(
        &mut self,
        cx: &mut Context<'_>,
        key: SessionKey,
        weight: Weight,
    ) {
        self.without_prediction(cx, |_, cx| {
            let session = cx.tables.session(key);
            session.weight = weight;
            let (vgpu, local) = (session.vgpu, session.local);
            cx.tables.vgpu(vgpu).members.reweight(local, weight);
        });
    }

    /// The device is there, with other settings than before or not.
    pub(crate) fn come_up(&mut self, cx: &mut Context<'_>, reconfigured: bool) {
        self.up = true;
        if reconfigured {
            self.rebuild_policy(cx, self.policy_id);
        } else {
            self.grant_everybody(cx);
        }
    }

    pub(crate) fn go_down(&mut self, cx: &mut Context<'_>) {
        self.up = false;
        self.revoke_everybody(cx);
    }

    /// Holders keep their turns until they release, outside the new policy's queue; each vGPU joins
    /// the new policy as far ahead of the virtual time as it was.
    pub(crate) fn set_policy(&mut self, cx: &mut Context<'_>, policy_id: PolicyId) {
        if policy_id != self.policy_id {
            self.rebuild_policy(cx, policy_id);
        }
    }

    fn rebuild_policy(&mut self, cx: &mut Context<'_>, policy_id: PolicyId) {
        self.end_anticipation(cx);
        self.floor = self.virtual_time();
        let mut policy = policy_id.build(&Setup { virtual_time: self.floor, config: cx.config });
        policy.tick(cx.now_ns);
        for (key, tenant) in cx.tables.tenants.iter() {
            let key = TenantKey(key);
            policy.add_tenant(key, tenant.weight, self.policy.tenant_ahead(key));
        }
        let device = self.device;
        for (key, vgpu) in cx.tables.vgpus.iter().filter(|(_, vgpu)| vgpu.device == device) {
            let key = VgpuKey(key);
            policy.add(key, vgpu.tenant, vgpu.weight, self.policy.ahead(key));
            policy.set_class(key, vgpu.rest.class);
            if vgpu.is_eligible() {
                policy.wake(key);
            }
        }
        for &holder in &self.holders {
            let session = cx.tables.session(holder);
            let (vgpu, local) = (session.vgpu, session.local);
            if core::mem::take(&mut cx.tables.turn(holder).in_queue) {
                let vgpu = cx.tables.vgpu(vgpu);
                vgpu.members.stop(local);
                vgpu.in_turn = false;
            }
        }
        let old = &self.policy;
        self.debts.rebase(|tenant| old.time_of(tenant).zip(policy.time_of(tenant)));
        self.policy = policy;
        self.policy_id = policy_id;
        self.switching = Switching::default();
        self.check_tenants_of_holders(cx);
        if self.policy.is_shared() {
            self.grant_everybody(cx);
        } else {
            self.revoke_everybody(cx);
        }
    }

    pub(crate) fn wake(&mut self, cx: &mut Context<'_>, key: SessionKey, estimate_ns: u64) {
        let session = cx.tables.session(key);
        session.estimate_ns = estimate_ns;
        if core::mem::replace(&mut session.runnable, true) {
            return;
        }
        session.served = false;
        let vgpu = session.vgpu;
        self.forestall_anticipation(cx, vgpu);
        if let Some(turn) = cx.tables.find_turn(key) {
            turn.idle_since_ns = None;
        }
        self.without_prediction(cx, |core, cx| {
            let session = cx.tables.session(key);
            let (vgpu_key, local) = (session.vgpu, session.local);
            let vgpu = cx.tables.vgpu(vgpu_key);
            vgpu.members.wake(local);
            vgpu.runnable += 1;
            vgpu.watch_waiting(cx.now_ns);
            core.runnable += 1;
            let is_first = vgpu.runnable == 1;
            let waits = is_first && core.wait_for_tenant(cx, vgpu_key);
            core.eligible += u32::from(!cx.tables.vgpu(vgpu_key).throttled);
            if is_first && !waits {
                core.policy.wake(vgpu_key);
            }
        });
        let vgpu = cx.tables.session(key).vgpu;
        self.meet_anticipation(cx, vgpu);
        self.check_cap(cx, vgpu);
        self.recall_pause(cx, vgpu);
        self.grant_if_shared(cx, key);
    }

    pub(crate) fn sleep(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        let session = cx.tables.session(key);
        if !core::mem::replace(&mut session.runnable, false) {
            return;
        }
        if let Some(turn) = cx.tables.find_turn(key) {
            turn.idle_since_ns = Some(cx.now_ns);
        }
        self.without_prediction(cx, |core, cx| {
            let session = cx.tables.session(key);
            let (vgpu_key, local) = (session.vgpu, session.local);
            let vgpu = cx.tables.vgpu(vgpu_key);
            vgpu.members.sleep(local);
            vgpu.runnable -= 1;
            vgpu.watch_waiting(cx.now_ns);
            core.runnable -= 1;
            core.eligible -= u32::from(!vgpu.throttled);
            if vgpu.runnable == 0 && !core::mem::take(&mut vgpu.throttled) {
                core.policy.sleep(vgpu_key);
            }
        });
        let session = cx.tables.session(key);
        let (vgpu, may_anticipate) = (session.vgpu, session.served && session.turn.is_none());
        if cx.tables.vgpu(vgpu).runnable == 0 {
            self.leave_refill(cx, vgpu);
        }
        if may_anticipate {
            // It had more commands at its turn's end.
            self.anticipate(cx, key, 0, true);
        }
    }

    /// Takes a reading: bills what finished, charges the tags, corrects predictions.
    pub(crate) fn report(&mut self, cx: &mut Context<'_>, key: SessionKey, usage: Usage) {
        let in_flight_ns = Self::bounded_in_flight(cx.config, usage);
        let session = cx.tables.session(key);
        let vgpu = session.vgpu;
        let used_ns = usage.used_ns.saturating_sub(session.used_ns);
        let idle_ns = usage.idle_ns.saturating_sub(session.idle_ns);
        session.used_ns += used_ns;
        session.idle_ns += idle_ns;
        if let Some(turn) = cx.tables.find_turn(key) {
            let (contended_ns, alone_ns) = turn.take_elapsed(cx.now_ns);
            let (contended, in_queue) = (turn.contended, turn.in_queue);
            // Use from before somebody came to wait is nobody's loss: at most the time that the
            // holder was alone since its last report, and nothing if it reported just then.
            let forgiven_ns = if contended { used_ns.min(alone_ns) } else { 0 };
            let held_ns = used_ns - forgiven_ns;
            let kept_ns = turn.take_idle(contended_ns, held_ns, idle_ns);
            turn.spent_ns = turn.spent_ns.saturating_add(used_ns).saturating_add(idle_ns);
            turn.charged_ns = turn.charged_ns.saturating_add(held_ns).saturating_add(kept_ns);
            turn.idled_ns = turn.idled_ns.saturating_add(kept_ns);
            // What was used under another policy is billed but moves no tag of this one.
            if in_queue {
                self.charge(cx, key, to_signed(held_ns), true);
                self.charge(cx, key, to_signed(kept_ns), true);
                if self.is_sliced() {
                    let ns = to_signed(contended_ns + alone_ns);
                    self.policy.charge(vgpu, Charge { ns, settled: true });
                }
            }
            self.count_cap(cx, vgpu, to_signed(used_ns));
        } else {
            let predicted_ns = &mut cx.tables.session(key).predicted_ns;
            let predicted_ns = core::mem::replace(predicted_ns, in_flight_ns);
            let ns = to_signed(used_ns) + to_signed(in_flight_ns) - to_signed(predicted_ns);
            self.charge(cx, key, ns, false);
            self.count_cap(cx, vgpu, ns);
        }
        let billed_ns = &mut cx.tables.vgpu(vgpu).used_ns;
        *billed_ns = billed_ns.saturating_add(used_ns);
        if self.draining == Some(key) && self.holders.is_empty() {
            self.drain_ns = cx.now_ns + in_flight_ns;
        }
    }

    /// The session gives back its turn; of another epoch, it only reports.
    pub(crate) fn release(
        &mut self,
        cx: &mut Context<'_>,
        key: SessionKey,
        epoch: u64,
        usage: Usage,
    ) {
        self.report(cx, key, usage);
        if cx.tables.find_turn(key).is_none_or(|turn| turn.epoch != epoch) {
            return;
        }
        let in_flight_ns = Self::bounded_in_flight(cx.config, usage);
        // A session that has more commands would not release early.
        let runnable = cx.tables.session(key).runnable;
        let is_spent = runnable || cx.tables.turn(key).is_spent(in_flight_ns);
        let worked = is_spent && cx.tables.turn(key).worked();
        let switch_ns = if is_spent { 0 } else { self.end_early(cx, key, in_flight_ns) };
        cx.tables.session(key).predicted_ns = in_flight_ns;
        self.charge(cx, key, to_signed(in_flight_ns), false);
        // From here on it is known whose prediction is taken back where virtual times are fixed.
        self.drain_ns = self.drain_ns.max(cx.now_ns) + in_flight_ns;
        self.draining = Some(key);
        let vgpu = cx.tables.session(key).vgpu;
        self.end_turn(cx, key);
        cx.tables.session(key).served = runnable;
        if !runnable {
            self.anticipate(cx, key, switch_ns, worked);
        }
        self.count_cap(cx, vgpu, to_signed(in_flight_ns));
        self.grant_if_shared(cx, key);
    }

    /// A session is over. What it had in flight was reported as used before: dying is not free.
    pub(crate) fn remove_session(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        self.end_work(cx, key);
        let (vgpu, local) = (cx.tables.session(key).vgpu, cx.tables.session(key).local);
        let vgpu_entry = cx.tables.vgpu(vgpu);
        vgpu_entry.leave(local);
        let is_left = vgpu_entry.sessions().next().is_none();
        self.count_user_facing(vgpu_entry.rest.class, -1);
        if is_left {
            self.end_runs_of(cx, vgpu);
        }
    }

    /// A session has no work on this device any more, in flight or not, and no turn.
    fn end_work(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        self.sleep(cx, key);
        self.drop_anticipation(cx, key);
        let vgpu = cx.tables.session(key).vgpu;
        if cx.tables.session(key).turn.is_some() {
            let switch_ns = self.end_early(cx, key, 0);
            self.end_turn(cx, key);
            self.charge(cx, key, to_signed(switch_ns), true);
        }
        // A prediction that its last report did not confirm.
        let predicted_ns = core::mem::take(&mut cx.tables.session(key).predicted_ns);
        self.charge(cx, key, -to_signed(predicted_ns), false);
        self.count_cap(cx, vgpu, -to_signed(predicted_ns));
        if self.draining == Some(key) {
            // Its work is gone with its worker, or over.
            self.draining = None;
            self.drain_ns = self.drain_ns.min(cx.now_ns);
        }
        self.prepared = self.prepared.filter(|other| *other != key);
    }

    /// A turn that an earlier daemon granted goes on as if it began now.
    pub(crate) fn adopt(
        &mut self,
        cx: &mut Context<'_>,
        key: SessionKey,
        epoch: u64,
        budget_ns: u64,
    ) -> bool {
        if cx.tables.session(key).turn.is_some()
            || (!self.holders.is_empty() && !self.policy.is_shared())
        {
            return false;
        }
        self.next_epoch = self.next_epoch.max(epoch.saturating_add(1));
        let vgpu = cx.tables.session(key).vgpu;
        self.let_tenant_of_go(cx, vgpu);
        let turn = Turn::new(cx.now_ns, epoch, budget_ns, cx.config.quantum_ns);
        self.begin_turn(cx, vgpu, key, turn);
        true
    }

    /// Brings holders, grants and the deadline in line with the state.
    pub(crate) fn decide(&mut self, cx: &mut Context<'_>) {
        let rises = self.reached.observe(self.virtual_time());
        debug_assert!(rises.is_ok(), "the virtual time fell from {rises:?}");
        self.deadline = None;
        for (at_ns, _) in
            [&self.refills, &self.tenant_refills].map(Heap::peek).into_iter().flatten()
        {
            self.arm(at_ns, TimerReason::Refill);
        }
        if self.runnable == 0 && !self.idle_said {
            cx.out.push(Action::DeviceIdle { device: self.device });
        }
        self.idle_said = self.runnable == 0;
        let shared = self.policy.is_shared();
        match *self.holders.as_slice() {
            [] if self.up && !shared => self.fill(cx),
            [holder] if self.up && cx.tables.turn(holder).in_queue => self.watch(cx, holder),
            _ if self.up && shared => {}
            _ => self.watch_revoked(cx),
        }
    }

    /// Nobody holds the device: grant the next, or wait until its predecessor's work has all but
    /// drained, so that nobody queues more than `overlap_ns` behind another's work.
    fn fill(&mut self, cx: &mut Context<'_>) {
        let Some((vgpu_key, next)) = self.next_session(cx) else { return };
        let (own_work, alone) = (self.draining == Some(next), self.eligible == 1);
        let sliced = self.is_sliced();
        let handover_ns = self.drain_ns.saturating_sub(cx.config.overlap_ns);
        if let Some(until_ns) = self.kept_until_ns(vgpu_key) {
            self.prepare(cx, next);
            self.arm(until_ns, TimerReason::Yield);
            return;
        }
        let capped_ns = self.capped_ns(cx, vgpu_key);
        let free = (alone || sliced) && capped_ns.is_none();
        if cx.now_ns < handover_ns && !(own_work && alone && free) && !sliced {
            self.prepare(cx, next);
            self.arm(handover_ns, TimerReason::Handover);
            return;
        }
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let queued_ns = self.drain_ns.saturating_sub(cx.now_ns);
        let own_ns = if own_work && !sliced { queued_ns } else { 0 };
        let share_ns = cx.config.quantum_ns.saturating_sub(own_ns);
        let share_ns = capped_ns.map_or(share_ns, |left_ns| share_ns.min(left_ns));
        // Never nothing: a turn without a budget would end as it begins, and begin again.
        let budget_ns = if free { UNLIMITED } else { share_ns.max(1) };
        let vgpu = cx.tables.vgpu(vgpu_key);
        vgpu.sync.observe(cx.now_ns, 0);
        let interactive = vgpu.sync.interactive && self.policy.coschedules();
        let mut turn = Turn::new(cx.now_ns, epoch, budget_ns, share_ns);
        if own_work {
            // The release reports it again.
            self.drain_ns = cx.now_ns;
        } else if !sliced {
            turn.start_ns += queued_ns;
        }
        self.begin_turn(cx, vgpu_key, next, turn);
        let device = self.device;
        if interactive {
            cx.out.push(Action::Wake { session: next, device, epoch });
        }
        cx.out.push(Action::Grant { session: next, device, epoch, budget_ns });
        self.watch(cx, next);
    }

    /// One holder, in the policy's queue: unlimited while it is alone and has no cap, a quantum
    /// otherwise.
    fn watch(&mut self, cx: &mut Context<'_>, holder: SessionKey) {
        let session = cx.tables.session(holder);
        let alone = self.eligible == u32::from(session.runnable);
        let vgpu = session.vgpu;
        let capped = self.capped_ns(cx, vgpu).is_some();
        let turn = cx.tables.turn(holder);
        turn.set_contended(cx.now_ns, !alone);
        if turn.revoked_at_ns.is_some() {
            return self.watch_revoked(cx);
        }
        if alone && !capped {
            return self.rebudget(cx, holder, UNLIMITED);
        }
        let end_ns = turn.start_ns.saturating_add(cx.config.quantum_ns);
        let idle_end_ns =
            turn.idle_since_ns.map(|since_ns| since_ns.saturating_add(turn.grace_ns(cx.config)));
        // A lone holder that used up its quantum before the other came has no rest of it to use.
        let share_ns = turn.share_ns;
        let spent = turn.budget_ns == UNLIMITED && (cx.now_ns >= end_ns || share_ns == 0);
        let sliced = self.is_sliced();
        let grace_ns = if sliced { 0 } else { cx.config.yield_ns };
        let revoke_ns = end_ns.saturating_add(grace_ns);
        let yields = idle_end_ns.is_some_and(|at_ns| cx.now_ns >= at_ns);
        if spent || cx.now_ns >= revoke_ns || yields || self.policy.preempts(vgpu) {
            turn.yielded = yields && !spent && cx.now_ns < revoke_ns;
            self.revoke(cx, holder);
            return self.watch_revoked(cx);
        }
        self.rebudget(cx, holder, if sliced && !capped { UNLIMITED } else { share_ns.max(1) });
        self.arm(revoke_ns, TimerReason::Revoke);
        if let Some(at_ns) = idle_end_ns {
            self.arm(at_ns, TimerReason::Yield);
        }
        self.prepare_in_time(cx, (holder, vgpu), end_ns);
    }

    /// Revoked holders: their successor is awake, and they are killed when they are overdue.
    fn watch_revoked(&mut self, cx: &mut Context<'_>) {
        match *self.holders.as_slice() {
            _ if !self.up => {}
            [holder] if cx.tables.turn(holder).in_queue => {
                self.prepare_successor(cx, holder, cx.config.quantum_ns);
            }
            _ => {
                if let Some((_, next)) = self.next_session(cx) {
                    self.prepare(cx, next);
                }
            }
        }
        for place in 0..self.holders.len() {
            let (session, device) = (self.holders[place], self.device);
            let turn = cx.tables.turn(session);
            let Some(revoked_at_ns) = turn.revoked_at_ns.filter(|_| !turn.killed) else { continue };
            let overdue_ns = revoked_at_ns.saturating_add(cx.config.overdue_ns);
            if cx.now_ns < overdue_ns {
                self.arm(overdue_ns, TimerReason::Overdue);
            } else {
                turn.killed = true;
                cx.out.push(Action::Kill { session, device, epoch: turn.epoch });
            }
        }
    }

    /// The session's vGPU is known to who calls: asking the session for it would have all that is
    /// known of the vGPU wait for the session, where neither is in a cache.
    fn begin_turn(
        &mut self,
        cx: &mut Context<'_>,
        vgpu_key: VgpuKey,
        key: SessionKey,
        mut turn: Turn,
    ) {
        self.end_runs(cx, vgpu_key);
        // During a turn only what finished is charged: take back what was predicted.
        let predicted_ns = core::mem::take(&mut cx.tables.session(key).predicted_ns);
        self.charge(cx, key, -to_signed(predicted_ns), false);
        let in_queue = !self.policy.is_shared();
        let local = cx.tables.session(key).local;
        // A cap must not hold it back or let it go on any more: its turn begins.
        cx.tables.vgpu(vgpu_key).in_turn = in_queue;
        turn.place = self.holders.len();
        self.holders.push(key);
        self.count_cap(cx, vgpu_key, -to_signed(predicted_ns));
        let session = cx.tables.session(key);
        turn.in_queue = in_queue;
        turn.kept_ns = self.kept_ns(vgpu_key);
        turn.idle_since_ns = (!session.runnable).then_some(cx.now_ns);
        turn.used_at_start_ns = session.used_ns;
        let turn_epoch = turn.epoch;
        cx.tables.begin_turn(key, turn);
        let vgpu = cx.tables.vgpu(vgpu_key);
        vgpu.turns += 1;
        vgpu.last_epoch = turn_epoch;
        vgpu.count_holder(cx.now_ns, true);
        if in_queue {
            vgpu.members.start(local);
            self.policy.start(vgpu_key);
        }
        self.prepared = None;
    }

    fn end_turn(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        let session = cx.tables.session(key);
        let (vgpu, local) = (session.vgpu, session.local);
        let used_ns = session.used_ns.saturating_add(session.predicted_ns);
        let Some(turn) = cx.tables.end_turn(key) else { return };
        self.holders.swap_remove(turn.place);
        if let Some(&moved) = self.holders.get(turn.place) {
            cx.tables.turn(moved).place = turn.place;
        }
        let now_ns = cx.now_ns;
        let entry = cx.tables.vgpu(vgpu);
        entry.count_holder(now_ns, false);
        if turn.in_queue {
            entry.members.stop(local);
            entry.in_turn = false;
            self.policy.stop(vgpu);
            let used_ns = used_ns.saturating_sub(turn.used_at_start_ns);
            self.note_switch(cx, vgpu, &turn, used_ns);
        }
        self.check_cap(cx, vgpu);
        self.check_tenant_cap(cx, vgpu);
    }

    /// Moves the tags of the session, inside its vGPU, and of the vGPU.
    fn charge(&mut self, cx: &mut Context<'_>, key: SessionKey, ns: i64, settled: bool) {
        if ns == 0 {
            return;
        }
        let session = cx.tables.session(key);
        let (vgpu_key, local) = (session.vgpu, session.local);
        let vgpu = cx.tables.vgpu(vgpu_key);
        vgpu.held_ns = vgpu.held_ns.saturating_add_signed(ns);
        vgpu.members.charge(local, Charge { ns, settled });
        if !self.is_sliced() {
            self.policy.charge(vgpu_key, Charge { ns, settled });
        }
    }

    /// Runs `act`, which fixes the virtual time, with the tags as if the work still in flight had
    /// not been charged: whoever arrives waits for it like the one who submitted it.
    fn without_prediction(
        &mut self,
        cx: &mut Context<'_>,
        act: impl FnOnce(&mut Self, &mut Context<'_>),
    ) {
        let Some(key) = self.draining else { return act(self, cx) };
        let left_ns = self.drain_ns.saturating_sub(cx.now_ns);
        let ns = left_ns.min(cx.tables.session(key).predicted_ns);
        self.charge(cx, key, -to_signed(ns), false);
        act(self, cx);
        self.charge(cx, key, to_signed(ns), false);
    }

    /// Whether the policy slices wall time.
    fn is_sliced(&self) -> bool {
        self.policy.charges() == Charges::WallTime
    }

    fn revoke_everybody(&mut self, cx: &mut Context<'_>) {
        for place in 0..self.holders.len() {
            self.revoke(cx, self.holders[place]);
        }
    }

    fn revoke(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        let turn = cx.tables.turn(key);
        if turn.revoked_at_ns.is_none() {
            turn.revoked_at_ns = Some(cx.now_ns);
            let (device, epoch) = (self.device, turn.epoch);
            cx.out.push(Action::Revoke { session: key, device, epoch });
        }
    }

    fn rebudget(&self, cx: &mut Context<'_>, session: SessionKey, budget_ns: u64) {
        let turn = cx.tables.turn(session);
        if turn.budget_ns != budget_ns && turn.revoked_at_ns.is_none() {
            turn.budget_ns = budget_ns;
            let (device, epoch) = (self.device, turn.epoch);
            cx.out.push(Action::Grant { session, device, epoch, budget_ns });
        }
    }

    /// Wakes whoever will be next after `rest_ns` more of this turn, unless it is its holder.
    fn prepare_successor(&mut self, cx: &mut Context<'_>, holder: SessionKey, rest_ns: u64) {
        let session = cx.tables.session(holder);
        let (own, local) = (session.vgpu, session.local);
        let Some(next) = self.policy.successor(own, rest_ns) else { return };
        let vgpu = cx.tables.vgpu(next);
        if next == own && vgpu.members.runs_again(local, rest_ns) {
            return;
        }
        if let Some(next) = vgpu.next_session() {
            self.prepare(cx, next);
        }
    }

    /// Who is next if a vGPU uses all of the turn that has begun, but for itself.
    pub(crate) fn upcoming(&self, holder: VgpuKey, quantum_ns: u64) -> Option<VgpuKey> {
        let has_turns = !self.policy.is_shared();
        let next = has_turns.then(|| self.policy.successor(holder, quantum_ns)).flatten();
        next.filter(|next| *next != holder)
    }

    fn prepare(&mut self, cx: &mut Context<'_>, session: SessionKey) {
        if self.prepared != Some(session) {
            self.prepared = Some(session);
            cx.out.push(Action::Prepare { session, device: self.device });
        }
    }

    /// Who is next, and the session of it.
    fn next_session(&self, cx: &mut Context<'_>) -> Option<(VgpuKey, SessionKey)> {
        let vgpu = self.policy.peek()?;
        cx.tables.vgpu(vgpu).next_session().map(|session| (vgpu, session))
    }

    fn arm(&mut self, at_ns: u64, why: TimerReason) {
        if self.deadline.is_none_or(|(earlier_ns, _)| at_ns < earlier_ns) {
            self.deadline = Some((at_ns, why));
        }
    }

    fn bounded_in_flight(config: &Config, usage: Usage) -> u64 {
        usage.in_flight_ns.min(config.quantum_ns.saturating_add(config.overdue_ns))
    }
}

fn to_signed(ns: u64) -> i64 {
    // 292 years: a larger reading is a broken counter.
    i64::try_from(ns).unwrap_or(i64::MAX / 4)
}

impl Codec for Core {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { device, up, policy_id, policy, floor, holders, runnable, eligible, .. } = self;
        (*device, *up).put(out);
        policy_id.put(out);
        policy.save(out);
        (*floor, (*runnable, *eligible)).put(out);
        self.user_facing.put(out);
        holders.put(out);
        let Self {
            refills,
            tenant_caps,
            tenant_refills,
            debts,
            next_epoch,
            drain_ns,
            draining,
            prepared,
            anticipation,
            pause,
            switching,
            idle_said,
            deadline,
            ..
        } = self;
        refills.put(out);
        tenant_caps.put(out);
        tenant_refills.put(out);
        debts.put(out);
        (*next_epoch, *drain_ns).put(out);
        (*draining, *prepared).put(out);
        (*anticipation, *pause).put(out);
        switching.put(out);
        (*idle_said, *deadline).put(out);
        self.reached.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (device, up) = Codec::take(input)?;
        let policy_id = PolicyId::take(input)?;
        let policy = policy_id.take_state(input)?;
        let (floor, (runnable, eligible)) = Codec::take(input)?;
        let user_facing = Codec::take(input)?;
        let holders = Codec::take(input)?;
        let refills = Codec::take(input)?;
        let tenant_caps = Codec::take(input)?;
        let tenant_refills = Codec::take(input)?;
        let debts = Codec::take(input)?;
        let (next_epoch, drain_ns) = Codec::take(input)?;
        let (draining, prepared) = Codec::take(input)?;
        let (anticipation, pause) = Codec::take(input)?;
        let switching = Codec::take(input)?;
        let (idle_said, deadline) = Codec::take(input)?;
        let reached = Codec::take(input)?;
        Ok(Self {
            device,
            up,
            policy_id,
            policy,
            floor,
            holders,
            runnable,
            eligible,
            user_facing,
            refills,
            tenant_caps,
            tenant_refills,
            debts,
            next_epoch,
            drain_ns,
            draining,
            prepared,
            anticipation,
            pause,
            switching,
            idle_said,
            reached,
            deadline,
        })
    }
}
