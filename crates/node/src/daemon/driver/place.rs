//! Where a vGPU stands in the hierarchy of tenants, vGPUs and sessions, and what bounds it.

use weft_sched::{Cap, Class, DeviceKey, Event, SessionKey, TenantKey, VgpuKey, Weight};

use super::Driver;

/// A vGPU's place in the hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which vGPU.
    pub(crate) vgpu: u32,
    /// Where it lives.
    pub(crate) device: DeviceKey,
    /// Whose part of the device it shares.
    pub(crate) tenant: u32,
    /// Who answers for its debts, where it shares the device with other users' vGPUs.
    pub(crate) owner: Option<u32>,
    /// The tenant's share of the device.
    pub(crate) tenant_weight: Weight,
    /// The most that the tenant's vGPUs may use together, on each device.
    pub(crate) tenant_cap: Option<Cap>,
    /// The vGPU's share of the tenant's part.
    pub(crate) weight: Weight,
    /// The most it may use even of an idle device.
    pub(crate) cap: Option<Cap>,
    /// What its work is owed.
    pub(crate) class: Class,
}

impl Driver {
    /// Makes the core know a vGPU as it should be; says only what is news. A vGPU that is known
    /// keeps its tenant: only a changed configuration moves vGPUs, and then those with sessions
    /// finish where they began.
    pub(super) fn place(&mut self, place: Place) {
        let Place { device, owner, tenant_weight, tenant_cap, weight, cap, class, .. } = place;
        let (vgpu, tenant) = (VgpuKey(place.vgpu), TenantKey(place.tenant));
        self.place_tenant(tenant, tenant_weight, tenant_cap);
        let known = self.turns.node().vgpu(vgpu);
        match known {
            None => {
                self.tell(Event::AddVgpu { vgpu, tenant, device, weight });
                if let Some(owner) = owner {
                    self.report_holders();
                    self.tell(Event::SetOwner { vgpu, owner });
                }
            }
            Some(view) if view.device != device => self.relocate(vgpu, device),
            Some(_) => {}
        }
        match known {
            None => {}
            Some(view) if view.weight == weight => {}
            Some(_) => {
                self.report_holders();
                self.tell(Event::Reweight { vgpu, weight });
            }
        }
        if known.and_then(|view| view.cap) != cap {
            self.report_holders();
            self.tell(Event::SetCap { vgpu, cap });
        }
        if known.map_or(Class::Batch, |view| view.class) != class {
            self.report_holders();
            self.tell(Event::SetClass { vgpu, class });
        }
    }

    /// A vGPU whose sessions stand still lives on another device from now on.
    pub(super) fn relocate(&mut self, vgpu: VgpuKey, device: DeviceKey) {
        self.report_holders();
        self.turns.relocate(&mut self.witness, vgpu, device);
        self.follow();
        let Some(known) = self.device_of(vgpu).copied() else { return };
        let node = self.turns.node();
        let own = self.turns.sessions().filter(|(key, _)| node.vgpu_of(*key) == Some(vgpu));
        for (key, session) in own {
            self.introduce(key.0, session.gate.page(), &known);
        }
    }

    fn place_tenant(&mut self, tenant: TenantKey, weight: Weight, cap: Option<Cap>) {
        match self.turns.node().tenant(tenant) {
            None => self.tell(Event::AddTenant { tenant, weight }),
            Some(known) if known == weight => {}
            Some(_) => {
                self.report_holders();
                self.tell(Event::ReweightTenant { tenant, weight });
            }
        }
        if self.turns.node().tenant_cap(tenant) != cap {
            self.report_holders();
            self.tell(Event::SetTenantCap { tenant, cap });
        }
    }

    /// Changes a session's share of its vGPU's part.
    pub(super) fn weigh_session(&mut self, session: u32, weight: Weight) {
        self.report_holders();
        self.tell(Event::ReweightSession { session: SessionKey(session), weight });
    }
}
