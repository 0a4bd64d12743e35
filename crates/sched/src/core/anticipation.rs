//! Moments of idleness between two commands of a program that waits for each.

use crate::codec::codec;
use crate::key::{SessionKey, TenantKey, VgpuKey};
use crate::policy::{Owed, Rivals};

use super::{Context, Core, to_signed};

/// Somebody who sleeps is waited for in this part of what it is owed. It could lose nothing more
/// than that by an instant between two commands, and the device idles for little of it.
const PART_OF_OWED: u64 = 64;

/// A session whose turn is over, that has nothing to do, and that may be about to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anticipation {
    session: SessionKey,
    vgpu: VgpuKey,
    tenant: TenantKey,
    /// Other vGPUs of its tenant have work, and no other tenant has.
    among_siblings: bool,
    since_ns: u64,
    until_ns: u64,
    /// What a switch to somebody else costs it, in ns.
    switch_ns: u64,
    /// Somebody else has the device meanwhile, so it costs nobody anything.
    is_free: bool,
}

codec!(struct Anticipation { session, vgpu, tenant, among_siblings, since_ns, until_ns, switch_ns, is_free });

/// A session whose turn is over, that has nothing to do, and for which nobody waits. Whether it
/// sleeps or pauses is asked when somebody comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    session: SessionKey,
    since_ns: u64,
    worked: bool,
}

codec!(struct Pause { session, since_ns, worked });

impl Core {
    /// Time has passed: called before anything else at each event.
    pub(crate) fn keep_time(&mut self, cx: &mut Context<'_>) {
        self.policy.tick(cx.now_ns);
        if self.anticipation.is_some_and(|it| cx.now_ns >= it.until_ns) {
            self.end_anticipation(cx);
        }
    }

    /// A session has nothing to do after its turn. If it would be next all the same, others being
    /// ahead of it, this may be a moment between two commands of a program that waits for each.
    /// Then it has not slept: the device waits for it, at its expense, and the virtual time does
    /// not pass it by. If it does not come, it pays `switch_ns` for the way to somebody else.
    ///
    /// It waits for the time in which a holder would have had to come up with the next command, or
    /// longer for one who is owed much, as after another's kernel that could not be cut: at most a
    /// quantum, and so little of what it is owed that it stays behind the others. Nobody may begin
    /// a turn meanwhile: it would begin beyond the virtual time, and the lag bound stands on that
    /// turns begin at it.
    ///
    /// Who `worked` through its turn would be next also while it is within the slack. Who gave it
    /// up early, or paused for most of it, has no use for turns that are longer.
    ///
    /// Where nobody waits, nobody's time is lost meanwhile; whoever comes is told to wait then.
    pub(super) fn anticipate(
        &mut self,
        cx: &mut Context<'_>,
        key: SessionKey,
        switch_ns: u64,
        worked: bool,
    ) {
        self.end_anticipation(cx);
        let pause = Pause { session: key, since_ns: cx.now_ns, worked };
        if !self.begins_anticipation(cx, pause, switch_ns) {
            self.charge(cx, key, to_signed(switch_ns), true);
            self.pause = (self.runnable == 0 && self.holders.is_empty()).then_some(pause);
        }
    }

    /// Somebody has work again who had none, the first one: if that is not who has paused, and who
    /// paused would be next were it awake, the device waits for it as if both had been there at its
    /// turn's end. Otherwise two programs that wait for each result would race for the device at
    /// each end of a long command, and who lost such a race once would lose all that it is owed.
    ///
    /// Who is held back by a cap waits for nobody, and who is user-facing goes before others.
    pub(super) fn recall_pause(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        let Some(pause) = self.pause.filter(|_| !cx.tables.vgpu(vgpu).throttled) else { return };
        self.pause = None;
        let is_urgent = cx.tables.vgpu(vgpu).rest.class.is_user_facing();
        if cx.tables.session(pause.session).vgpu != vgpu && !is_urgent {
            self.begins_anticipation(cx, pause, 0);
        }
    }

    /// Whether the device waits from now on for who paused.
    fn begins_anticipation(&mut self, cx: &mut Context<'_>, pause: Pause, switch_ns: u64) -> bool {
        let Pause { session: key, worked, .. } = pause;
        let session = cx.tables.session(key);
        let (vgpu, local) = (session.vgpu, session.local);
        session.served = false;
        // Who borrows and has the device is far ahead: while it goes on, an instant of idleness of
        // somebody else would forgive it all of that.
        let is_free = !self.holders.is_empty();
        let is_held_back = cx.tables.vgpu(vgpu).throttled || self.is_tenant_spent(cx, vgpu);
        if (is_free && !self.expects_user_facing(0)) || is_held_back {
            return false;
        }
        let owed = match is_free {
            true => Some(Owed { ns: 0, rivals: self.policy.rivals(vgpu) }),
            false => self.policy.owed(vgpu, worked),
        };
        let Some(owed) = owed else { return false };
        let longest_ns = (owed.ns / PART_OF_OWED).min(cx.config.quantum_ns);
        let lasts_ns = longest_ns.max(cx.config.yield_ns);
        let until_ns = pause.since_ns.saturating_add(lasts_ns);
        if until_ns <= cx.now_ns {
            return false;
        }
        cx.tables.vgpu(vgpu).members.anticipate(local);
        self.policy.anticipate(vgpu);
        self.anticipation = Some(Anticipation {
            session: key,
            vgpu,
            tenant: cx.tables.vgpu(vgpu).tenant,
            among_siblings: owed.rivals == Rivals::Siblings,
            since_ns: cx.now_ns,
            until_ns,
            switch_ns,
            is_free,
        });
        true
    }

    /// Until when the device waits for somebody other than `next`, if it does.
    pub(super) fn kept_until_ns(&self, next: VgpuKey) -> Option<u64> {
        self.anticipation.filter(|it| it.vgpu != next).map(|it| it.until_ns)
    }

    /// Whether the device waits for a vGPU of a tenant.
    pub(super) fn anticipates(&self, tenant: TenantKey) -> bool {
        self.anticipation.is_some_and(|it| it.tenant == tenant)
    }

    /// Until when the device waits for somebody, if it does.
    pub(crate) fn anticipates_until_ns(&self) -> Option<u64> {
        self.anticipation.map(|it| it.until_ns)
    }

    /// A vGPU is about to have work. Where that makes its tenant, or another one, compete with a
    /// tenant whose vGPU is waited for, the anticipation is over: what it cost is charged before.
    pub(super) fn forestall_anticipation(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        let tenant = cx.tables.vgpu(vgpu).tenant;
        let concerns = |it: &Anticipation| it.among_siblings || it.tenant == tenant;
        if self.anticipation.as_ref().is_some_and(|it| it.vgpu != vgpu && concerns(it)) {
            self.end_anticipation(cx);
        }
    }

    /// A vGPU that was waited for has work again: there is no switch.
    pub(super) fn meet_anticipation(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        if let Some(it) = self.anticipation.as_mut().filter(|it| it.vgpu == vgpu) {
            it.switch_ns = 0;
            self.end_anticipation(cx);
        }
    }

    /// A session is over: it does not come back.
    pub(super) fn drop_anticipation(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        self.pause = self.pause.filter(|pause| pause.session != key);
        if self.anticipation.is_some_and(|it| it.session == key) {
            self.end_anticipation(cx);
        }
    }

    /// The anticipation is over, whether it came true or not.
    pub(super) fn end_anticipation(&mut self, cx: &mut Context<'_>) {
        let Some(it) = self.anticipation.take() else { return };
        self.policy.end_anticipation();
        cx.tables.vgpu(it.vgpu).members.end_anticipation();
        if it.is_free {
            return;
        }
        let kept_ns = cx.now_ns.min(it.until_ns).saturating_sub(it.since_ns);
        let ns = kept_ns.saturating_add(it.switch_ns);
        self.charge(cx, it.session, to_signed(ns), false);
    }
}
