//! The lag bound at every level: tenants of a device, vGPUs of a tenant, sessions of a vGPU.

use alloc::vec::Vec;
use core::fmt;

use super::lag::{Lag, LagBound};
use crate::key::{SessionKey, TenantKey, VgpuKey, Weight};
use crate::tables::Slots;

/// A level of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Tenants of the device.
    Tenants,
    /// vGPUs of a tenant.
    Vgpus(TenantKey),
    /// Sessions of a vGPU.
    Sessions(VgpuKey),
}

/// A lag beyond the bound, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelLag {
    /// The level.
    pub level: Level,
    /// The lag of two of its members, by their numbers there.
    pub lag: Lag,
}

impl fmt::Display for LevelLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.level, self.lag)
    }
}

/// [`LagBound`] for each group of one device's hierarchy. At each level the same bound holds with
/// that level's weights: a queue of start tags needs no assumption about when the level above lets
/// it run.
///
/// A group's member is backlogged while a session below it has work; but while a session below it
/// holds the device, that session's work counts alone. A vGPU that its cap holds back is not
/// backlogged.
#[derive(Clone, Debug)]
pub struct LagTree {
    turn_ns: u64,
    root: LagBound,
    tenants: Slots<Group>,
    vgpus: Slots<Vgpu>,
    sessions: Slots<Watched>,
}

/// A member of its level, and the level below it.
#[derive(Clone, Debug)]
struct Group {
    number: Option<usize>,
    members: LagBound,
    /// Members below that have work.
    working: u32,
    /// Whether the session below that holds the device has work; `None` while none holds it.
    holder_works: Option<bool>,
}

#[derive(Clone, Debug)]
struct Vgpu {
    tenant: TenantKey,
    group: Group,
    throttled: bool,
    /// It counts among its tenant's working members.
    counted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    vgpu: VgpuKey,
    number: Option<usize>,
    works: bool,
    holds: bool,
}

impl Group {
    fn new(number: Option<usize>, turn_ns: u64) -> Self {
        let members = LagBound::new(turn_ns, 0);
        Self { number, members, working: 0, holder_works: None }
    }

    fn is_backlogged(&self) -> bool {
        self.holder_works.unwrap_or(self.working > 0)
    }
}

impl LagTree {
    /// Bounds for turns of `turn_ns` (the quantum, plus the overlap where releases are pipelined,
    /// plus the sleeper credit and σ of `fair`).
    pub fn new(turn_ns: u64) -> Self {
        Self {
            turn_ns,
            root: LagBound::new(turn_ns, 0),
            tenants: Slots::default(),
            vgpus: Slots::default(),
            sessions: Slots::default(),
        }
    }

    /// A tenant.
    pub fn add_tenant(&mut self, key: TenantKey, weight: Weight) {
        let group = Group::new(self.root.add(weight), self.turn_ns);
        self.tenants.insert(key.index(), group);
    }

    /// A vGPU of a tenant that was added before.
    pub fn add_vgpu(&mut self, key: VgpuKey, tenant: TenantKey, weight: Weight) {
        let Some(parent) = self.tenants.find_mut(tenant.index()) else { return };
        let group = Group::new(parent.members.add(weight), self.turn_ns);
        self.vgpus.insert(key.index(), Vgpu { tenant, group, throttled: false, counted: false });
    }

    /// A session of a vGPU that was added before, without work.
    pub fn add_session(&mut self, key: SessionKey, vgpu: VgpuKey, weight: Weight) {
        let Some(parent) = self.vgpus.find_mut(vgpu.index()) else { return };
        let number = parent.group.members.add(weight);
        self.sessions.insert(key.index(), Watched { vgpu, number, works: false, holds: false });
    }

    /// A session is gone.
    pub fn remove_session(&mut self, key: SessionKey) {
        self.observe(key, false, false);
        let Some(session) = self.sessions.take(key.index()) else { return };
        let Some(vgpu) = self.vgpus.find_mut(session.vgpu.index()) else { return };
        if let Some(number) = session.number {
            vgpu.group.members.remove(number);
        }
    }

    /// A vGPU is gone; its sessions went before.
    pub fn remove_vgpu(&mut self, key: VgpuKey) {
        let Some(vgpu) = self.vgpus.take(key.index()) else { return };
        if let Some(number) = vgpu.group.number
            && let Some(tenant) = self.tenants.find_mut(vgpu.tenant.index())
        {
            tenant.members.remove(number);
        }
    }

    /// A tenant is gone; its vGPUs went before.
    pub fn remove_tenant(&mut self, key: TenantKey) {
        if let Some(number) = self.tenants.take(key.index()).and_then(|group| group.number) {
            self.root.remove(number);
        }
    }

    /// A tenant's weight changed.
    pub fn reweight_tenant(&mut self, key: TenantKey, weight: Weight) {
        if let Some(number) = self.tenants.find(key.index()).and_then(|group| group.number) {
            self.root.reweight(number, weight);
        }
    }

    /// A vGPU's weight changed.
    pub fn reweight_vgpu(&mut self, key: VgpuKey, weight: Weight) {
        let Some(vgpu) = self.vgpus.find(key.index()) else { return };
        if let Some(number) = vgpu.group.number
            && let Some(tenant) = self.tenants.find_mut(vgpu.tenant.index())
        {
            tenant.members.reweight(number, weight);
        }
    }

    /// A session's weight changed.
    pub fn reweight_session(&mut self, key: SessionKey, weight: Weight) {
        let Some(Watched { vgpu, number: Some(number), .. }) = self.sessions.find(key.index())
        else {
            return;
        };
        if let Some(vgpu) = self.vgpus.find_mut(vgpu.index()) {
            vgpu.group.members.reweight(*number, weight);
        }
    }

    /// Whether a session has an unexecuted device command, and whether it holds the device.
    pub fn observe(&mut self, key: SessionKey, works: bool, holds: bool) {
        let Some(session) = self.sessions.find_mut(key.index()) else { return };
        let before = core::mem::replace(session, Watched { works, holds, ..*session });
        let Watched { vgpu, number, .. } = before;
        let Some(entry) = self.vgpus.find_mut(vgpu.index()) else { return };
        let group = &mut entry.group;
        group.working = group.working + u32::from(works) - u32::from(before.works);
        if let Some(number) = number {
            group.members.set_backlogged(number, works);
        }
        if holds || before.holds {
            group.holder_works = holds.then_some(works);
            if let Some(tenant) = self.tenants.find_mut(entry.tenant.index()) {
                tenant.holder_works = holds.then_some(works);
            }
        }
        self.settle(vgpu);
    }

    /// Whether its cap holds a vGPU back.
    pub fn set_throttled(&mut self, key: VgpuKey, throttled: bool) {
        let Some(vgpu) = self.vgpus.find_mut(key.index()) else { return };
        if core::mem::replace(&mut vgpu.throttled, throttled) != throttled {
            self.settle(key);
        }
    }

    /// A vGPU begins so much service ahead of the others, which its owner's other vGPUs had.
    pub fn begins_ahead(&mut self, key: VgpuKey, ns: u64) {
        let Some(vgpu) = self.vgpus.find(key.index()) else { return };
        let Some(tenant) = self.tenants.find_mut(vgpu.tenant.index()) else { return };
        if let Some(number) = vgpu.group.number {
            tenant.members.may_borrow(number, ns);
        }
    }

    /// A vGPU is user-facing, so that it and its tenant may go before others for this much service.
    pub fn may_borrow(&mut self, key: VgpuKey, ns: u64) {
        let Some(vgpu) = self.vgpus.find(key.index()) else { return };
        let Some(tenant) = self.tenants.find_mut(vgpu.tenant.index()) else { return };
        if let Some(number) = vgpu.group.number {
            tenant.members.may_borrow(number, ns);
        }
        if let Some(number) = tenant.number {
            self.root.may_borrow(number, ns);
        }
    }

    /// A command of a session that cannot be cut is this long. Say so before it is served.
    pub fn submitted(&mut self, key: SessionKey, piece_ns: u64) {
        let Some(session) = self.sessions.find(key.index()) else { return };
        let Some(vgpu) = self.vgpus.find_mut(session.vgpu.index()) else { return };
        if let Some(number) = session.number {
            vgpu.group.members.submitted(number, piece_ns);
        }
        let Some(tenant) = self.tenants.find_mut(vgpu.tenant.index()) else { return };
        if let Some(number) = vgpu.group.number {
            tenant.members.submitted(number, piece_ns);
        }
        if let Some(number) = tenant.number {
            self.root.submitted(number, piece_ns);
        }
    }

    /// A vGPU was charged for what the device did on its account without executing anything of it:
    /// the vGPU and its tenant have had that.
    pub fn charged(&mut self, key: VgpuKey, ns: u64) -> Result<(), LevelLag> {
        let Some(vgpu) = self.vgpus.find(key.index()) else { return Ok(()) };
        let (key, number) = (vgpu.tenant, vgpu.group.number);
        let Some(tenant) = self.tenants.find_mut(key.index()) else { return Ok(()) };
        let at = |level: Level| move |lag: Lag| LevelLag { level, lag };
        if let Some(number) = number {
            tenant.members.served(number, ns).map_err(at(Level::Vgpus(key)))?;
        }
        match tenant.number {
            Some(number) => self.root.served(number, ns).map_err(at(Level::Tenants)),
            None => Ok(()),
        }
    }

    /// The device reports service; the result is a lag that breaks the bound, of any level.
    pub fn served(&mut self, key: SessionKey, ns: u64) -> Result<(), LevelLag> {
        let Some(session) = self.sessions.find(key.index()) else { return Ok(()) };
        let (key, number) = (session.vgpu, session.number);
        let Some(vgpu) = self.vgpus.find_mut(key.index()) else { return Ok(()) };
        if let Some(number) = number {
            let at = |lag: Lag| LevelLag { level: Level::Sessions(key), lag };
            vgpu.group.members.served(number, ns).map_err(at)?;
        }
        self.charged(key, ns)
    }

    /// The lag that came closest to its bound, of all levels and of those that are still there.
    pub fn worst(&self) -> Option<LevelLag> {
        let of = |level: Level| move |lag: Lag| LevelLag { level, lag };
        let root = self.root.worst().map(of(Level::Tenants));
        let tenants = self
            .tenants
            .iter()
            .filter_map(|(key, group)| group.members.worst().map(of(Level::Vgpus(TenantKey(key)))));
        let vgpus = self.vgpus.iter().filter_map(|(key, vgpu)| {
            vgpu.group.members.worst().map(of(Level::Sessions(VgpuKey(key))))
        });
        let all: Vec<LevelLag> = root.into_iter().chain(tenants).chain(vgpus).collect();
        all.into_iter().max_by_key(|entry| entry.lag.share_of_bound())
    }

    /// Brings the backlog of a vGPU and of its tenant in line with what is below them.
    fn settle(&mut self, key: VgpuKey) {
        let Some(vgpu) = self.vgpus.find_mut(key.index()) else { return };
        let works = vgpu.group.working > 0 && !vgpu.throttled;
        let backlogged = vgpu.group.holder_works.unwrap_or(works);
        let Some(tenant) = self.tenants.find_mut(vgpu.tenant.index()) else { return };
        let counted = core::mem::replace(&mut vgpu.counted, works);
        tenant.working = tenant.working + u32::from(works) - u32::from(counted);
        if let Some(number) = vgpu.group.number {
            tenant.members.set_backlogged(number, backlogged);
        }
        let backlogged = tenant.is_backlogged();
        if let Some(number) = tenant.number {
            self.root.set_backlogged(number, backlogged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenant 0 with vGPUs 0 and 1, tenant 1 with vGPU 2, a session each, all working.
    fn tree() -> LagTree {
        let mut tree = LagTree::new(6);
        for tenant in 0..2 {
            tree.add_tenant(TenantKey(tenant), Weight::ONE);
        }
        for (key, tenant) in [(0, 0), (1, 0), (2, 1)] {
            tree.add_vgpu(VgpuKey(key), TenantKey(tenant), Weight::ONE);
            tree.add_session(SessionKey(key), VgpuKey(key), Weight::ONE);
            tree.observe(SessionKey(key), true, false);
        }
        tree
    }

    #[test]
    fn each_level_has_its_own_bound() {
        let mut tree = tree();
        tree.served(SessionKey(0), 12).unwrap();
        let broken = tree.served(SessionKey(0), 1).unwrap_err();
        assert_eq!(broken.level, Level::Vgpus(TenantKey(0)));
        let mut tree = self::tree();
        tree.served(SessionKey(0), 6).unwrap();
        tree.served(SessionKey(1), 6).unwrap();
        let broken = tree.served(SessionKey(0), 1).unwrap_err();
        assert_eq!(broken.level, Level::Tenants);
    }

    #[test]
    fn a_holders_pause_is_its_tenants_pause() {
        let mut tree = tree();
        tree.observe(SessionKey(0), true, true);
        tree.observe(SessionKey(0), false, true);
        tree.served(SessionKey(2), 100).unwrap();
        tree.observe(SessionKey(0), false, false);
        tree.served(SessionKey(2), 12).unwrap();
        let broken = tree.served(SessionKey(2), 1).unwrap_err();
        assert_eq!(broken.level, Level::Tenants);
    }

    #[test]
    fn who_is_held_back_by_a_cap_is_not_backlogged() {
        let mut tree = tree();
        tree.set_throttled(VgpuKey(1), true);
        tree.observe(SessionKey(2), false, false);
        tree.served(SessionKey(0), 1_000).unwrap();
        tree.set_throttled(VgpuKey(1), false);
        tree.served(SessionKey(0), 13).unwrap_err();
    }
}
