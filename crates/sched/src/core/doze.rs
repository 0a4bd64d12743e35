//! Moments of idleness between two commands of a program that waits for each.

use crate::journal::codec;
use crate::key::{SessionKey, VgpuKey};

use super::{Context, Core};

/// A session whose last turn's time was over and that has had nothing to do since, and its vGPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doze {
    vgpu: VgpuKey,
    local: u32,
    until_ns: u64,
}

codec!(struct Doze { vgpu, local, until_ns });

impl Core {
    /// Time has passed: called before anything else at each event.
    pub(crate) fn keep_time(&mut self, cx: &mut Context<'_>) {
        self.policy.tick(cx.now_ns);
        if self.doze.is_some_and(|doze| cx.now_ns >= doze.until_ns) {
            self.rouse(cx);
        }
    }

    /// A session whose turn was over has nothing to do. If that is a moment between two commands of
    /// a program that waits for each, it has not slept: for the time that a holder would have had to
    /// come up with the next command, the virtual time does not pass it by.
    pub(super) fn doze(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        self.rouse(cx);
        let session = cx.tables.session(key);
        let (vgpu_key, local) = (session.vgpu, session.local);
        session.served = false;
        let vgpu = cx.tables.vgpu(vgpu_key);
        if vgpu.throttled {
            return;
        }
        vgpu.members.doze(local);
        self.policy.doze(vgpu_key);
        let until_ns = cx.now_ns.saturating_add(cx.config.yield_ns);
        self.doze = Some(Doze { vgpu: vgpu_key, local, until_ns });
    }

    fn rouse(&mut self, cx: &mut Context<'_>) {
        let Some(Doze { vgpu, .. }) = self.doze.take() else { return };
        self.policy.rouse();
        // It may have been removed meanwhile.
        if let Some(vgpu) = cx.tables.vgpus.find_mut(vgpu.index()) {
            vgpu.members.rouse();
        }
    }
}
