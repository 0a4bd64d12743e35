//! What is known of vGPUs and sessions, by dense key.

use alloc::boxed::Box;
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
    turns: Turns,
}

/// The turns that go on, apart from the sessions: they are few, and what a decision needs of a
/// session without its turn is one line of the cache.
#[derive(Clone, Debug, Default)]
struct Turns {
    turns: Vec<Turn>,
    free: Vec<u32>,
}

impl Turns {
    fn add(&mut self, turn: Turn) -> u32 {
        if let Some(place) = self.free.pop() {
            self.turns[place as usize] = turn;
            return place;
        }
        let place = u32::try_from(self.turns.len()).expect("one for each session at most");
        self.turns.push(turn);
        // So that no turn's end allocates.
        self.free.reserve(self.turns.len());
        place
    }
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
            TenantKey::DEFAULT => &mut self.vgpu(key).rest.waste,
            tenant => &mut self.tenant(tenant).waste,
        }
    }

    pub(crate) fn turn(&mut self, key: SessionKey) -> &mut Turn {
        self.find_turn(key).expect("a holder has a turn")
    }

    pub(crate) fn find_turn(&mut self, key: SessionKey) -> Option<&mut Turn> {
        let place = self.session(key).turn?;
        Some(&mut self.turns.turns[place as usize])
    }

    pub(crate) fn turn_of(&self, session: &SessionEntry) -> Option<&Turn> {
        session.turn.map(|place| &self.turns.turns[place as usize])
    }

    pub(crate) fn begin_turn(&mut self, key: SessionKey, turn: Turn) {
        let place = self.turns.add(turn);
        self.session(key).turn = Some(place);
    }

    pub(crate) fn end_turn(&mut self, key: SessionKey) -> Option<Turn> {
        let place = self.session(key).turn.take()?;
        self.turns.free.push(place);
        Some(self.turns.turns[place as usize])
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

/// Most decisions begin a turn of another vGPU than the last, which is in no cache where there are
/// many: what a turn needs is together, and what it does not need is elsewhere.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Vgpu {
    /// Which session gets the vGPU's next turn.
    pub(crate) members: FairQueue,
    pub(crate) tenant: TenantKey,
    pub(crate) device: DeviceKey,
    /// Sessions with work.
    pub(crate) runnable: u32,
    /// Sessions that hold the device.
    holders: u32,
    /// The policy knows of a turn of it.
    pub(crate) in_turn: bool,
    /// It has work, but used up its cap or its tenant's: the policy takes it for asleep.
    pub(crate) throttled: bool,
    pub(crate) weight: Weight,
    /// Its cap, if it has one.
    pub(crate) meter: Option<Box<CapMeter>>,
    pub(crate) sync: SyncRate,
    /// Billed device time of all its sessions, past ones too.
    pub(crate) used_ns: u64,
    /// What was charged to its tag.
    pub(crate) held_ns: u64,
    pub(crate) turns: u64,
    /// The epoch of its last turn.
    pub(crate) last_epoch: u64,
    pub(crate) rest: Box<VgpuRest>,
}

/// What is known of a vGPU and no decision asks for, but where a turn ends early.
#[derive(Clone, Debug, Default)]
pub(crate) struct VgpuRest {
    /// Who answers for its debts, if that was said.
    pub(crate) owner: Option<u32>,
    pub(crate) class: Class,
    /// What it was charged for switches that its use was not worth, in ns.
    pub(crate) switches_ns: u64,
    /// The sessions by their key in `members`.
    sessions: Places<SessionKey>,
    /// Used where it competes for itself.
    waste: Waste,
}

impl Vgpu {
    pub(crate) fn new(tenant: TenantKey, device: DeviceKey, weight: Weight) -> Self {
        Self {
            members: FairQueue::default(),
            tenant,
            device,
            runnable: 0,
            holders: 0,
            in_turn: false,
            throttled: false,
            weight,
            meter: None,
            sync: SyncRate::default(),
            used_ns: 0,
            held_ns: 0,
            turns: 0,
            last_epoch: 0,
            rest: Box::default(),
        }
    }

    /// Adds a session; the result is its key in `members`.
    pub(crate) fn join(&mut self, session: SessionKey, weight: Weight) -> u32 {
        let local = self.rest.sessions.join(session);
        self.members.add(local, session.0, weight, Tag::ZERO);
        local
    }

    pub(crate) fn leave(&mut self, local: u32) {
        self.members.remove(local);
        self.rest.sessions.leave(local);
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionKey> + '_ {
        self.rest.sessions.iter()
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

/// As long as a line of the cache, and in one.
#[derive(Clone, Debug)]
#[repr(align(64))]
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
    /// Where its turn is among those that go on.
    pub(crate) turn: Option<u32>,
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

codec!(struct Tenant { weight, cap, waste, vgpus });

codec!(struct Vgpu {
    members, tenant, device, runnable, holders, in_turn, throttled, weight, meter, sync, used_ns,
    held_ns, turns, last_epoch, rest,
});
codec!(struct VgpuRest { owner, class, switches_ns, sessions, waste });
codec!(struct SessionEntry {
    vgpu, local, weight, runnable, estimate_ns, used_ns, idle_ns, predicted_ns, turn, served,
    sync_calls,
});
codec!(struct Turns { turns, free });

impl Codec for Tables {
    fn put(&self, out: &mut Vec<u8>) {
        self.tenants.put(out);
        self.vgpus.put(out);
        self.sessions.put(out);
        self.turns.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (tenants, vgpus) = Codec::take(input)?;
        let sessions: Slots<SessionEntry> = Codec::take(input)?;
        let turns = Turns::take(input)?;
        let is_there = |place: u32| (place as usize) < turns.turns.len();
        let of_sessions = |(_, session): (u32, &SessionEntry)| session.turn.is_none_or(is_there);
        if !sessions.iter().all(of_sessions) || !turns.free.iter().copied().all(is_there) {
            return Err(input.malformed("turn"));
        }
        Ok(Self { tenants, vgpus, sessions, turns })
    }
}

impl<T: Codec> Codec for Slots<T> {
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

    #[test]
    fn entries_are_as_small_as_decisions_want_them() {
        assert_eq!((size_of::<SessionEntry>(), size_of::<Option<SessionEntry>>()), (64, 64));
        assert_eq!((size_of::<Vgpu>(), size_of::<Option<Vgpu>>()), (256, 256));
    }
}
