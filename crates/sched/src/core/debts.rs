//! What vGPUs that are removed leave their owners: a new name forgives nothing.

use alloc::vec::Vec;

use crate::codec::{Codec, Malformed, Reader, codec};
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::tag::Tag;

use super::{Context, Core};

/// How many debts a device remembers. Each is of another owner, and over when the others have had
/// as much; of more than that the smallest is forgotten.
const DEBTS_MAX: usize = 1024;

/// How far a vGPU was ahead of the others when it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftDebt {
    pub(crate) owner: u32,
    pub(crate) tenant: TenantKey,
    /// Where its start tag stood: the debt is over when the virtual time is there.
    pub(crate) until: Tag,
    pub(crate) weight: Weight,
}

impl LeftDebt {
    /// The service that is still owed at a virtual time, in ns.
    fn owed_ns(&self, time: Tag) -> u64 {
        self.until.minus(time).to_service_ns(self.weight)
    }
}

/// The debts that are left on a device: one for each owner and tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Debts(Vec<LeftDebt>);

impl Debts {
    /// Of several debts of an owner the largest counts: divided among vGPUs it could be left with
    /// one that was made for that.
    fn leave(&mut self, debt: LeftDebt, time_of: impl Fn(TenantKey) -> Tag) {
        self.0.retain(|left| left.until > time_of(left.tenant));
        let owed_ns = |left: &LeftDebt| left.owed_ns(time_of(left.tenant));
        if owed_ns(&debt) == 0 {
            return;
        }
        let is_its = |left: &&mut LeftDebt| (left.owner, left.tenant) == (debt.owner, debt.tenant);
        if let Some(left) = self.0.iter_mut().find(is_its) {
            if owed_ns(left) < owed_ns(&debt) {
                *left = debt;
            }
            return;
        }
        self.0.push(debt);
        if self.0.len() > DEBTS_MAX {
            let least = (0..self.0.len()).min_by_key(|place| owed_ns(&self.0[*place]));
            least.map(|place| self.0.swap_remove(place));
        }
    }

    /// What an owner's removed vGPUs of a tenant still owe at a virtual time, in ns.
    fn owed_ns(&self, owner: u32, tenant: TenantKey, time: Tag) -> u64 {
        let mut own = self.0.iter().filter(|left| (left.owner, left.tenant) == (owner, tenant));
        own.next().map_or(0, |left| left.owed_ns(time))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &LeftDebt> {
        self.0.iter()
    }

    /// One more, of a time before a restart.
    pub(crate) fn restore(&mut self, debt: LeftDebt) {
        if self.0.len() < DEBTS_MAX {
            self.0.push(debt);
        }
    }

    /// Another policy: what is owed stays as far ahead of its virtual time as it was, or is
    /// forgotten with everybody's tags where either policy has none.
    pub(super) fn rebase(&mut self, between: impl Fn(TenantKey) -> Option<(Tag, Tag)>) {
        self.0.retain_mut(|left| {
            let Some((old, new)) = between(left.tenant) else { return false };
            left.until = new.plus(left.until.minus(old));
            left.until > new
        });
    }
}

impl Core {
    /// A vGPU is about to be removed: its sessions have been.
    pub(crate) fn leave_debt(&mut self, cx: &mut Context<'_>, key: VgpuKey) {
        self.end_runs_of(cx, key);
        let vgpu = cx.tables.vgpu(key);
        let (tenant, weight) = (vgpu.tenant, vgpu.weight);
        let Some((owner, time)) = vgpu.rest.owner.zip(self.policy.time_of(tenant)) else { return };
        let debt = LeftDebt { owner, tenant, until: time.plus(self.policy.ahead(key)), weight };
        let policy = &self.policy;
        self.debts.leave(debt, |tenant| policy.time_of(tenant).unwrap_or_default());
    }

    /// A vGPU's owner is known. It begins as far ahead as the owner's removed ones left off, or as
    /// those are that have no work now: who goes from one to the next pays for both. One that has
    /// work pays for itself.
    pub(crate) fn set_owner(&mut self, cx: &mut Context<'_>, key: VgpuKey, owner: u32) {
        cx.tables.vgpu(key).rest.owner = Some(owner);
        let vgpu = cx.tables.vgpu(key);
        let (tenant, weight) = (vgpu.tenant, vgpu.weight);
        let Some(time) = self.policy.time_of(tenant) else { return };
        let mut owed_ns = self.debts.owed_ns(owner, tenant, time);
        let siblings = cx.tables.tenants.find(tenant.index()).map_or(&[][..], |of| &of.vgpus);
        for other in siblings {
            let Some(vgpu) = cx.tables.vgpus.find(other.index()) else { continue };
            let is_idle = vgpu.runnable == 0 && vgpu.device == self.device;
            if *other != key && is_idle && vgpu.rest.owner == Some(owner) {
                owed_ns = owed_ns.max(self.policy.ahead(*other).to_service_ns(vgpu.weight));
            }
        }
        self.policy.delay(key, Tag::from_service(owed_ns, weight));
    }

    /// A tenant is gone, and nobody owes it anything: its key may be another's next.
    pub(super) fn forget_debts_of(&mut self, tenant: TenantKey) {
        self.debts.0.retain(|left| left.tenant != tenant);
    }
}

codec!(struct LeftDebt { owner, tenant, until, weight });

impl Codec for Debts {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Vec::take(input).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debt(owner: u32, ns: u64) -> LeftDebt {
        let until = Tag::from_service(ns, Weight::ONE);
        LeftDebt { owner, tenant: TenantKey::DEFAULT, until, weight: Weight::ONE }
    }

    #[test]
    fn of_more_debts_than_a_device_remembers_the_smallest_is_forgotten() {
        let mut debts = Debts::default();
        for owner in 0..2 * 1024 {
            debts.leave(debt(owner, 1_000 + u64::from(owner)), |_| Tag::ZERO);
        }
        let owed = |owner| debts.owed_ns(owner, TenantKey::DEFAULT, Tag::ZERO);
        assert_eq!(debts.0.len(), DEBTS_MAX);
        assert_eq!([owed(0), owed(1023), owed(1024), owed(2047)], [0, 0, 2_024, 3_047]);
    }

    #[test]
    fn of_two_debts_of_an_owner_the_larger_counts_until_the_others_have_had_as_much() {
        let mut debts = Debts::default();
        let at = |ns| Tag::from_service(ns, Weight::ONE);
        for ns in [500, 900, 700] {
            debts.leave(debt(7, ns), |_| Tag::ZERO);
        }
        let owed = |debts: &Debts, ns| debts.owed_ns(7, TenantKey::DEFAULT, at(ns));
        assert_eq!((debts.0.len(), owed(&debts, 0), owed(&debts, 600)), (1, 900, 300));
        debts.leave(debt(8, 950), |_| at(900));
        assert_eq!((debts.0.len(), owed(&debts, 900)), (1, 0));
    }
}
