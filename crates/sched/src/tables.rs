//! What is known of vGPUs and sessions, by dense key.

use alloc::vec::Vec;

use crate::cap::{Cap, CapMeter};
use crate::class::Class;
use crate::codec::{Codec, Malformed, Reader, codec};
use crate::fair_queue::FairQueue;
use crate::key::{DeviceKey, SessionKey, TenantKey, VgpuKey, Weight};
use crate::places::Places;
use crate::sync_rate::SyncRate;
use crate::tag::Tag;
use crate::turn::Turn;
use crate::waste::Waste;

/// An array with holes.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    pub(crate) fn find(&self, index: usize) -> Option<&T> {
        self.0.get(index).and_then(Option::as_ref)
    }

    pub(crate) fn find_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index).and_then(Option::as_mut)
    }

    /// One more than the largest index ever used.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn insert(&mut self, index: usize, value: T) {
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(value);
    }

    pub(crate) fn take(&mut self, index: usize) -> Option<T> {
        self.0.get_mut(index).and_then(Option::take)
    }

    /// The occupied slots in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.0).filter_map(|(key, slot)| slot.as_ref().map(|value| (key, value)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0u32..).zip(&mut self.0).filter_map(|(key, slot)| slot.as_mut().map(|value| (key, value)))
    }
}

/// The tenants, vGPUs and sessions of all devices. Keys are checked once, in `Node::handle`; the
/// accessors here trust them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) tenants: Slots<Tenant>,
    pub(crate) vgpus: Slots<Vgpu>,
    pub(crate) sessions: Slots<SessionEntry>,
}

impl Tables {
    pub(crate) fn vgpu(&mut self, key: VgpuKey) -> &mut Vgpu {
        self.vgpus.find_mut(key.index()).expect("a vGPU's key is checked at the border")
    }

    /// A vGPU that is not there yet joins its tenant's.
    pub(crate) fn add_vgpu(&mut self, key: VgpuKey, vgpu: Vgpu) {
        self.tenant(vgpu.tenant).vgpus.push(key);
        self.vgpus.insert(key.index(), vgpu);
    }

    pub(crate) fn remove_vgpu(&mut self, key: VgpuKey) {
        if let Some(vgpu) = self.vgpus.take(key.index()) {
            self.tenant(vgpu.tenant).vgpus.retain(|other| *other != key);
        }
    }

    pub(crate) fn tenant(&mut self, key: TenantKey) -> &mut Tenant {
        self.tenants.find_mut(key.index()).expect("a tenant's key is checked at the border")
    }

    pub(crate) fn session(&mut self, key: SessionKey) -> &mut SessionEntry {
        self.sessions.find_mut(key.index()).expect("a session's key is checked at the border")
    }

    /// A session's count of synchronous calls was read.
    pub(crate) fn count_calls(&mut self, now_ns: u64, key: SessionKey, calls: u64) {
        let session = self.session(key);
        let more = calls.saturating_sub(session.sync_calls);
        session.sync_calls += more;
        let vgpu = session.vgpu;
        self.vgpu(vgpu).sync.observe(now_ns, more);
    }

    /// The account of waste that turns of a vGPU go to: its tenant's, however many vGPUs that
    /// makes; under the default tenant each vGPU is somebody of its own.
    pub(crate) fn waste(&mut self, key: VgpuKey) -> &mut Waste {
        match self.vgpu(key).tenant {
            TenantKey::DEFAULT => &mut self.vgpu(key).waste,
            tenant => &mut self.tenant(tenant).waste,
        }
    }

    pub(crate) fn turn(&mut self, key: SessionKey) -> &mut Turn {
        self.session(key).turn.as_mut().expect("a holder has a turn")
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) weight: Weight,
    /// Its cap on each device; what is left of it there is the device's to know.
    pub(crate) cap: Option<Cap>,
    pub(crate) waste: Waste,
    /// Its vGPUs on all devices, in any order.
    pub(crate) vgpus: Vec<VgpuKey>,
}

impl Tenant {
    pub(crate) fn new(weight: Weight) -> Self {
        Self { weight, cap: None, waste: Waste::default(), vgpus: Vec::new() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Vgpu {
    pub(crate) tenant: TenantKey,
    pub(crate) device: DeviceKey,
    /// Who answers for its debts, if that was said.
    pub(crate) owner: Option<u32>,
    pub(crate) weight: Weight,
    pub(crate) class: Class,
    /// Sessions with work.
    pub(crate) runnable: u32,
    /// Which session gets the vGPU's next turn.
    pub(crate) members: FairQueue,
    /// The sessions by their key in `members`.
    sessions: Places<SessionKey>,
    /// The policy knows of a turn of it.
    pub(crate) in_turn: bool,
    /// Its cap, if it has one.
    pub(crate) meter: Option<CapMeter>,
    /// It has work, but used up its cap or its tenant's: the policy takes it for asleep.
    pub(crate) throttled: bool,
    pub(crate) sync: SyncRate,
    /// Used where it competes for itself.
    waste: Waste,
    /// Sessions that hold the device.
    holders: u32,
    /// Billed device time of all its sessions, past ones too.
    pub(crate) used_ns: u64,
    /// What was charged to its tag.
    pub(crate) held_ns: u64,
    pub(crate) turns: u64,
    /// The epoch of its last turn.
    pub(crate) last_epoch: u64,
}

impl Vgpu {
    pub(crate) fn new(tenant: TenantKey, device: DeviceKey, weight: Weight) -> Self {
        Self {
            tenant,
            device,
            owner: None,
            weight,
            class: Class::Batch,
            runnable: 0,
            members: FairQueue::default(),
            sessions: Places::default(),
            in_turn: false,
            meter: None,
            throttled: false,
            sync: SyncRate::default(),
            waste: Waste::default(),
            holders: 0,
            used_ns: 0,
            held_ns: 0,
            turns: 0,
            last_epoch: 0,
        }
    }

    /// Adds a session; the result is its key in `members`.
    pub(crate) fn join(&mut self, session: SessionKey, weight: Weight) -> u32 {
        let local = self.sessions.join(session);
        self.members.add(local, session.0, weight, Tag::ZERO);
        local
    }

    pub(crate) fn leave(&mut self, local: u32) {
        self.members.remove(local);
        self.sessions.leave(local);
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionKey> + '_ {
        self.sessions.iter()
    }

    pub(crate) fn next_session(&self) -> Option<SessionKey> {
        self.members.first().map(SessionKey)
    }

    /// It has work and may be granted the device.
    pub(crate) fn is_eligible(&self) -> bool {
        self.runnable > 0 && !self.throttled
    }

    /// A session of it begins or ends a hold of the device.
    pub(crate) fn count_holder(&mut self, now_ns: u64, begins: bool) {
        self.holders = if begins { self.holders + 1 } else { self.holders - 1 };
        self.watch_waiting(now_ns);
    }

    /// Tells the clock of synchronous calls whether the vGPU's own work runs.
    pub(crate) fn watch_waiting(&mut self, now_ns: u64) {
        self.sync.set_waiting(now_ns, self.runnable == 0 || self.holders == 0);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SessionEntry {
    pub(crate) vgpu: VgpuKey,
    /// Its key in the vGPU's `members`.
    pub(crate) local: u32,
    pub(crate) weight: Weight,
    pub(crate) runnable: bool,
    pub(crate) estimate_ns: u64,
    pub(crate) used_ns: u64,
    pub(crate) idle_ns: u64,
    /// Work in flight that is charged by prediction; zero during a turn.
    pub(crate) predicted_ns: u64,
    pub(crate) turn: Option<Turn>,
    /// It had a turn since it woke, which ended because its time was over.
    pub(crate) served: bool,
    /// Synchronous calls as last read.
    pub(crate) sync_calls: u64,
}

impl SessionEntry {
    pub(crate) fn new(vgpu: VgpuKey, local: u32, weight: Weight) -> Self {
        Self {
            vgpu,
            local,
            weight,
            runnable: false,
            estimate_ns: 0,
            used_ns: 0,
            idle_ns: 0,
            predicted_ns: 0,
            turn: None,
            served: false,
            sync_calls: 0,
        }
    }
}

codec!(struct Tables { tenants, vgpus, sessions });
codec!(struct Tenant { weight, cap, waste, vgpus });
codec!(struct Vgpu {
    tenant, device, owner, weight, class, runnable, members, sessions, in_turn, meter, throttled,
    sync, waste, holders, used_ns, held_ns, turns, last_epoch,
});
codec!(struct SessionEntry {
    vgpu, local, weight, runnable, estimate_ns, used_ns, idle_ns, predicted_ns, turn, served,
    sync_calls,
});

impl<T: Codec> Codec for Slots<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Vec::take(input).map(Self)
    }
}
