//! vGPUs that go to another device, with what they owe.

use alloc::vec::Vec;

use crate::key::{SessionKey, VgpuKey, Weight};
use crate::tag::Tag;

use super::{Context, Core};

/// How far a vGPU and its tenant were ahead on the device that it left: what they have had and
/// others are still to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debt {
    vgpu: Tag,
    tenant: Tag,
}

impl Core {
    /// A vGPU leaves the device. Its turns end, and its sessions are as if they had no work.
    pub(crate) fn depart(&mut self, cx: &mut Context<'_>, key: VgpuKey) -> Debt {
        let sessions: Vec<SessionKey> = cx.tables.vgpu(key).sessions().collect();
        for session in sessions {
            self.end_work(cx, session);
            self.count_user_facing(cx.tables.vgpu(key).rest.class, -1);
        }
        self.end_runs_of(cx, key);
        let tenant = cx.tables.vgpu(key).tenant;
        let debt = Debt { vgpu: self.policy.ahead(key), tenant: self.policy.tenant_ahead(tenant) };
        self.policy.remove(key);
        debt
    }

    /// A vGPU comes from another device: as far ahead as it was there, up to what anybody may be
    /// here, or else a quantum of the one would be many of the other.
    pub(crate) fn arrive(&mut self, cx: &mut Context<'_>, key: VgpuKey, debt: Debt) {
        self.reserve_cap(key);
        let borrow_ns = cx.config.borrow_ns;
        let vgpu = cx.tables.vgpu(key);
        vgpu.device = self.device;
        let (tenant, weight, class) = (vgpu.tenant, vgpu.weight, vgpu.rest.class);
        for _ in vgpu.sessions() {
            self.count_user_facing(class, 1);
        }
        let borrowed_ns = if class.is_user_facing() { borrow_ns } else { 0 };
        let ahead_ns = borrowed_ns.saturating_add(self.slack_in_force_ns(cx.config));
        let most_ns = cx.config.quantum_ns.saturating_add(ahead_ns);
        let most = |weight: Weight| Tag::from_service(most_ns, weight);
        self.policy.add(key, tenant, weight, debt.vgpu.min(most(weight)));
        self.policy.set_class(key, class);
        let tenant_weight = cx.tables.tenant(tenant).weight;
        self.policy.delay_tenant(tenant, debt.tenant.min(most(tenant_weight)));
    }
}
