//! Moments of idleness between two commands of a program that waits for each.

use crate::journal::codec;
use crate::key::{SessionKey, TenantKey, VgpuKey};
use crate::policy::Rivals;

use super::{Context, Core};

/// A session whose turn's time was over, that has nothing to do, and that may be about to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doze {
    session: SessionKey,
    vgpu: VgpuKey,
    tenant: TenantKey,
    /// Other vGPUs of its tenant have work, and no other tenant has.
    among_siblings: bool,
    since_ns: u64,
    until_ns: u64,
}

codec!(struct Doze { session, vgpu, tenant, among_siblings, since_ns, until_ns });

impl Core {
    /// Time has passed: called before anything else at each event.
    pub(crate) fn keep_time(&mut self, cx: &mut Context<'_>) {
        self.policy.tick(cx.now_ns);
        if self.doze.is_some_and(|doze| cx.now_ns >= doze.until_ns) {
            self.rouse(cx);
        }
    }

    /// A session has nothing to do after a turn whose time was over. If it would be next all the
    /// same, others being ahead of it, this may be a moment between two commands of a program that
    /// waits for each. Then it has not slept: the device waits for it, at its expense, and the
    /// virtual time does not pass it by.
    ///
    /// It waits for the time in which a holder would have had to come up with the next command.
    /// Nobody may begin a turn meanwhile: it would begin beyond the virtual time, and the lag bound
    /// stands on that turns begin at it.
    pub(super) fn doze(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        self.rouse(cx);
        let session = cx.tables.session(key);
        let (vgpu, local) = (session.vgpu, session.local);
        session.served = false;
        if !self.holders.is_empty() || cx.tables.vgpu(vgpu).throttled {
            return;
        }
        let Some(rivals) = self.policy.owes(vgpu) else { return };
        cx.tables.vgpu(vgpu).members.doze(local);
        self.policy.doze(vgpu);
        let (since_ns, until_ns) = (cx.now_ns, cx.now_ns.saturating_add(cx.config.yield_ns));
        let tenant = cx.tables.vgpu(vgpu).tenant;
        let among_siblings = rivals == Rivals::Siblings;
        self.doze = Some(Doze { session: key, vgpu, tenant, among_siblings, since_ns, until_ns });
    }

    /// Until when the device waits for somebody other than `next`, if it does.
    pub(super) fn kept_until_ns(&self, next: VgpuKey) -> Option<u64> {
        self.doze.filter(|doze| doze.vgpu != next).map(|doze| doze.until_ns)
    }

    /// Until when the device waits for somebody, if it does.
    pub(crate) fn doze_until_ns(&self) -> Option<u64> {
        self.doze.map(|doze| doze.until_ns)
    }

    /// A vGPU is about to have work. Where that makes its tenant, or another one, compete with a
    /// tenant that has a vGPU that dozes, the doze is over: what it cost is charged before.
    pub(super) fn forestall_doze(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        let tenant = cx.tables.vgpu(vgpu).tenant;
        let concerns = |doze: &Doze| doze.among_siblings || doze.tenant == tenant;
        if self.doze.as_ref().is_some_and(|doze| doze.vgpu != vgpu && concerns(doze)) {
            self.rouse(cx);
        }
    }

    /// A vGPU that dozed has work again.
    pub(super) fn end_doze(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        if self.doze.is_some_and(|doze| doze.vgpu == vgpu) {
            self.rouse(cx);
        }
    }

    /// Whoever dozes is asleep, or awake, from now on.
    pub(super) fn rouse(&mut self, cx: &mut Context<'_>) {
        let Some(doze) = self.doze.take() else { return };
        self.policy.rouse();
        cx.tables.vgpu(doze.vgpu).members.rouse();
        let kept_ns = cx.now_ns.min(doze.until_ns).saturating_sub(doze.since_ns);
        self.charge(cx, doze.session, super::to_signed(kept_ns), false);
    }
}
