//! Classes: how much others may have in flight where a user-facing vGPU may wake at any moment.

use crate::class::Class;
use crate::key::VgpuKey;

use super::{Context, Core};

impl Core {
    pub(crate) fn set_class(&mut self, cx: &mut Context<'_>, key: VgpuKey, class: Class) {
        self.end_all_runs(cx);
        let vgpu = cx.tables.vgpu(key);
        let before = core::mem::replace(&mut vgpu.rest.class, class);
        for _ in vgpu.sessions() {
            self.count_user_facing(before, -1);
            self.count_user_facing(class, 1);
        }
        self.policy.set_class(key, class);
    }

    /// Counts a session of a vGPU of that class that comes or, with -1, goes.
    pub(crate) fn count_user_facing(&mut self, class: Class, change: i32) {
        if class.is_user_facing() {
            self.user_facing = self.user_facing.saturating_add_signed(change);
        }
    }

    /// Whether a user-facing vGPU may wake that goes before batch ones, other than one that has
    /// `own` sessions.
    pub(crate) fn expects_user_facing(&self, own: usize) -> bool {
        self.user_facing as usize > own && self.policy.has_classes()
    }
}
