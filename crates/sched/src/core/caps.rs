//! Caps: who used up a part of the device waits for the next period.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use crate::cap::{Cap, CapMeter, TenantCap};
use crate::key::{TenantKey, VgpuKey};
use crate::tables::{Tables, Vgpu};
use crate::tag::Tag;

use super::{Context, Core};

impl Core {
    pub(crate) fn set_cap(&mut self, cx: &mut Context<'_>, key: VgpuKey, cap: Option<Cap>) {
        self.reserve_cap(key);
        let meter = &mut cx.tables.vgpu(key).meter;
        // Another cap forgives nothing: who could have it changed would have as many periods.
        let owed_ns = meter.as_mut().map_or(0, |meter| meter.owed_ns(cx.now_ns));
        *meter = cap.map(|cap| Box::new(CapMeter::new(cap, cx.now_ns, owed_ns)));
        if cap.is_none() {
            self.refills.remove(key.0);
        }
        self.check_cap(cx, key);
    }

    /// Makes room for a vGPU's cap, so that no decision allocates.
    pub(crate) fn reserve_cap(&mut self, key: VgpuKey) {
        self.refills.reserve(key.0);
    }

    /// A tenant's cap on this device from now on.
    pub(crate) fn set_tenant_cap(
        &mut self,
        cx: &mut Context<'_>,
        key: TenantKey,
        cap: Option<Cap>,
    ) {
        match self.tenant_caps.find_mut(key.index()) {
            None => self.begin_tenant_cap(key, cap, cx.now_ns),
            Some(known) => {
                let owed_ns = known.meter.owed_ns(cx.now_ns);
                if let Some(cap) = cap {
                    known.meter = CapMeter::new(cap, cx.now_ns, owed_ns);
                } else {
                    self.let_tenant_go(cx, key);
                    self.tenant_caps.take(key.index());
                }
            }
        }
        self.check_tenant(cx, key);
    }

    /// A tenant's cap, if it has one, where nothing of it is used up.
    pub(crate) fn begin_tenant_cap(&mut self, key: TenantKey, cap: Option<Cap>, now_ns: u64) {
        if let Some(cap) = cap {
            self.tenant_refills.reserve(key.0);
            let meter = CapMeter::new(cap, now_ns, 0);
            self.tenant_caps.insert(key.index(), TenantCap::new(meter));
        }
    }

    /// A tenant leaves that has no vGPU any more.
    pub(crate) fn remove_tenant(&mut self, key: TenantKey) {
        self.tenant_caps.take(key.index());
        self.forget_debts_of(key);
        self.policy.remove_tenant(key);
    }

    pub(crate) fn tenant_cap(&self, key: TenantKey) -> Option<&TenantCap> {
        self.tenant_caps.find(key.index())
    }

    /// Holds a vGPU back that used up its cap, or lets it go on. During a turn of it, the budget
    /// does that.
    pub(super) fn check_cap(&mut self, cx: &mut Context<'_>, key: VgpuKey) {
        let now_ns = cx.now_ns;
        let vgpu = cx.tables.vgpu(key);
        if vgpu.runnable == 0 || vgpu.in_turn {
            return;
        }
        let of_tenant = self.tenant_cap(vgpu.tenant).is_some_and(|cap| cap.waiting > 0);
        let spent = self.count_refill(now_ns, key, vgpu) || of_tenant;
        if mem::replace(&mut vgpu.throttled, spent) == spent {
            return;
        }
        let sessions = vgpu.runnable;
        self.without_prediction(cx, |core, _| {
            if spent {
                core.eligible -= sessions;
                core.policy.sleep(key);
            } else {
                core.eligible += sessions;
                core.policy.wake(key);
            }
        });
    }

    /// Whether a vGPU with work used up its own cap; notes when it has something left again.
    fn count_refill(&mut self, now_ns: u64, key: VgpuKey, vgpu: &mut Vgpu) -> bool {
        let Some(meter) = &mut vgpu.meter else { return false };
        let spent = meter.left_ns(now_ns) == 0;
        if spent {
            self.refills.set(key.0, meter.refill_ns());
        } else if vgpu.throttled {
            self.refills.remove(key.0);
        }
        spent
    }

    /// The same for the cap of a vGPU's tenant, which holds back all of its vGPUs at once.
    pub(super) fn check_tenant_cap(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        let tenant = cx.tables.vgpu(vgpu).tenant;
        self.check_tenant(cx, tenant);
    }

    /// The policy has changed: none of its budgets bounds those who hold the device yet.
    pub(super) fn check_tenants_of_holders(&mut self, cx: &mut Context<'_>) {
        for place in 0..self.holders.len() {
            let vgpu = cx.tables.session(self.holders[place]).vgpu;
            self.check_tenant_cap(cx, vgpu);
        }
    }

    /// A turn of a vGPU goes on that an earlier daemon granted, whatever is left of a cap.
    pub(super) fn let_tenant_of_go(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        let tenant = cx.tables.vgpu(vgpu).tenant;
        self.let_tenant_go(cx, tenant);
    }

    fn check_tenant(&mut self, cx: &mut Context<'_>, key: TenantKey) {
        if self.tenant_cap(key).is_none() || self.is_in_turn(cx, key) {
            return;
        }
        let Some(cap) = self.tenant_caps.find_mut(key.index()) else { return };
        let spent = cap.meter.left_ns(cx.now_ns) == 0;
        match (spent, cap.waiting > 0) {
            (true, true) => self.tenant_refills.set(key.0, cap.meter.refill_ns()),
            (true, false) => self.hold_tenant_back(cx, key),
            (false, true) => self.let_tenant_go(cx, key),
            (false, false) => {}
        }
    }

    /// The cap of a vGPU's tenant is used up and none of its vGPUs is in its turn.
    pub(super) fn is_tenant_spent(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) -> bool {
        let tenant = cx.tables.vgpu(vgpu).tenant;
        if self.tenant_cap(tenant).is_none() || self.is_in_turn(cx, tenant) {
            return false;
        }
        let cap = self.tenant_caps.find_mut(tenant.index());
        // Who was held back is let go by the timer, not by time.
        cap.is_some_and(|cap| cap.waiting > 0 || cap.meter.left_ns(cx.now_ns) == 0)
    }

    /// A vGPU has its first command. Where its tenant used up its cap, it waits with the others:
    /// the policy is not told, for while all of a tenant's vGPUs wait no time passes among them.
    pub(super) fn wait_for_tenant(&mut self, cx: &mut Context<'_>, key: VgpuKey) -> bool {
        let waits = self.is_tenant_spent(cx, key);
        if waits {
            let vgpu = cx.tables.vgpu(key);
            vgpu.throttled = true;
            let tenant = vgpu.tenant;
            if let Some(cap) = self.tenant_caps.find_mut(tenant.index()) {
                cap.waiting += 1;
                self.tenant_refills.set(tenant.0, cap.meter.refill_ns());
            }
        }
        waits
    }

    /// A vGPU without work waits for no refill.
    pub(super) fn leave_refill(&mut self, cx: &mut Context<'_>, key: VgpuKey) {
        let vgpu = cx.tables.vgpu(key);
        if vgpu.meter.is_some() {
            self.refills.remove(key.0);
        }
        let tenant = vgpu.tenant;
        let cap = self.tenant_caps.find_mut(tenant.index());
        if let Some(cap) = cap.filter(|cap| cap.waiting > 0) {
            cap.waiting -= 1;
            if cap.waiting == 0 {
                self.tenant_refills.remove(tenant.0);
            }
        }
    }

    fn is_in_turn(&self, cx: &mut Context<'_>, tenant: TenantKey) -> bool {
        // One at most, where there are turns.
        !self.policy.is_shared()
            && self.holders.iter().any(|holder| {
                let vgpu = cx.tables.session(*holder).vgpu;
                let vgpu = cx.tables.vgpu(vgpu);
                vgpu.in_turn && vgpu.tenant == tenant
            })
    }

    /// A tenant used up its cap: all of its vGPUs sleep to the policy. The one that is furthest
    /// ahead goes first, so that the virtual time among them stays where it is and each finds
    /// itself as far behind or ahead of the others as it was.
    fn hold_tenant_back(&mut self, cx: &mut Context<'_>, key: TenantKey) {
        if self.anticipates(key) {
            self.end_anticipation(cx);
        }
        self.without_prediction(cx, |core, cx| {
            let mut waiting = 0;
            let members = core.in_order(cx.tables, key);
            for &member in members.iter().rev() {
                let vgpu = cx.tables.vgpu(member);
                if vgpu.device != core.device || vgpu.runnable == 0 {
                    continue;
                }
                waiting += 1;
                if !mem::replace(&mut vgpu.throttled, true) {
                    core.eligible -= vgpu.runnable;
                    core.policy.sleep(member);
                }
            }
            cx.tables.tenant(key).vgpus = members;
            let cap = core.tenant_caps.find_mut(key.index());
            if let Some(cap) = cap.filter(|_| waiting > 0) {
                cap.waiting = waiting;
                core.tenant_refills.set(key.0, cap.meter.refill_ns());
            }
        });
    }

    /// A tenant has something left of its cap: its vGPUs wake, the one furthest behind first.
    fn let_tenant_go(&mut self, cx: &mut Context<'_>, key: TenantKey) {
        let cap = self.tenant_caps.find_mut(key.index());
        let Some(cap) = cap.filter(|cap| cap.waiting > 0) else { return };
        cap.waiting = 0;
        self.tenant_refills.remove(key.0);
        self.without_prediction(cx, |core, cx| {
            let members = core.in_order(cx.tables, key);
            for &member in &members {
                let now_ns = cx.now_ns;
                let vgpu = cx.tables.vgpu(member);
                let waits = vgpu.device == core.device && vgpu.runnable > 0;
                if !waits || core.count_refill(now_ns, member, vgpu) {
                    continue;
                }
                vgpu.throttled = false;
                core.eligible += vgpu.runnable;
                core.policy.wake(member);
            }
            cx.tables.tenant(key).vgpus = members;
        });
    }

    /// A tenant's vGPUs, those that are furthest behind first, and of equals those whose last turn
    /// is longest ago: policies without tags take them as they come. They are taken from the
    /// tenant, to be put back.
    fn in_order(&self, tables: &mut Tables, key: TenantKey) -> Vec<VgpuKey> {
        let mut members = mem::take(&mut tables.tenant(key).vgpus);
        members.sort_unstable_by_key(|member| {
            let vgpu = tables.vgpu(*member);
            // The policy knows those of its own device only.
            let is_here = vgpu.device == self.device;
            let ahead = if is_here { self.policy.ahead(*member) } else { Tag::ZERO };
            (ahead, vgpu.last_epoch, *member)
        });
        members
    }

    /// Counts device time, or a prediction of it, against a vGPU's cap and its tenant's.
    pub(super) fn count_cap(&mut self, cx: &mut Context<'_>, key: VgpuKey, ns: i64) {
        let now_ns = cx.now_ns;
        let vgpu = cx.tables.vgpu(key);
        let tenant = vgpu.tenant;
        if let Some(meter) = &mut vgpu.meter {
            meter.count(now_ns, ns);
            self.check_cap(cx, key);
        }
        if let Some(cap) = self.tenant_caps.find_mut(tenant.index()) {
            cap.meter.count(now_ns, ns);
            self.check_tenant(cx, tenant);
        }
    }

    /// What a vGPU may use yet by its cap and its tenant's, in ns; `None` for one without either.
    pub(super) fn capped_ns(&mut self, cx: &mut Context<'_>, key: VgpuKey) -> Option<u64> {
        let now_ns = cx.now_ns;
        let vgpu = cx.tables.vgpu(key);
        let of_tenant = self.tenant_caps.find_mut(vgpu.tenant.index());
        let of_tenant = of_tenant.map(|cap| cap.meter.left_ns(now_ns));
        let own = vgpu.meter.as_mut().map(|meter| meter.left_ns(now_ns));
        own.into_iter().chain(of_tenant).min()
    }

    /// Lets vGPUs go on whose caps have refilled. It wakes them, so it is done when the holder's
    /// use is known and nothing else has happened since the refill: by [`Event::Timer`] alone.
    ///
    /// [`Event::Timer`]: crate::Event::Timer
    pub(crate) fn refill(&mut self, cx: &mut Context<'_>) {
        while let Some((at_ns, key)) = self.refills.peek()
            && at_ns <= cx.now_ns
        {
            self.refills.remove(key);
            self.check_cap(cx, VgpuKey(key));
        }
        while let Some((at_ns, key)) = self.tenant_refills.peek()
            && at_ns <= cx.now_ns
        {
            self.tenant_refills.remove(key);
            self.check_tenant(cx, TenantKey(key));
        }
    }
}
