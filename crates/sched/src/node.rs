//! The node: a core per device, and the border where events are checked.

use alloc::vec::Vec;

use crate::action::{Action, Actions, TimerReason};
use crate::cap::Cap;
use crate::class::Class;
use crate::codec::codec;
use crate::config::Config;
use crate::core::{Context, Core};
use crate::event::{Event, EventError};
use crate::invariants::audit;
use crate::key::{DeviceKey, KEY_LIMIT, SessionKey, TenantKey, VgpuKey, Weight};
use crate::policy::{Charges, PolicyId, Setup};
use crate::tables::{SessionEntry, Slots, Tables, Tenant, Vgpu};
use crate::tag::Tag;

/// Nodes up to this size hold their tables against each other after each event in debug builds.
const AUDITED_VGPUS: usize = 8;

/// The scheduling state of a node.
///
/// **After every [`handle`](Self::handle), perform the actions in order and clear the buffer.**
#[derive(Debug)]
pub struct Node {
    pub(crate) now_ns: u64,
    pub(crate) devices: Slots<Device>,
    pub(crate) tables: Tables,
    timer: Option<(u64, TimerReason)>,
}

/// A device and how it is to be shared.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) config: Config,
    pub(crate) core: Core,
}

/// What the core knows of a vGPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VgpuView {
    /// Whose it is.
    pub tenant: TenantKey,
    /// Where it lives.
    pub device: DeviceKey,
    /// Its share of the tenant's part.
    pub weight: Weight,
    /// Its own cap, its tenant's besides.
    pub cap: Option<Cap>,
    /// Its class.
    pub class: Class,
    /// Device time billed so far, in ns, over all its sessions and their predecessors.
    pub used_ns: u64,
    /// What was charged to its tag, in ns: less than `used_ns` for use that nobody else could have
    /// had, more for holding an idle device and for switches.
    pub held_ns: u64,
    /// Of that, what it was charged for switches of memory that its use was not worth, in ns.
    pub switches_ns: u64,
    /// Turns begun.
    pub turns: u64,
    /// Whether a session of it has work.
    pub is_runnable: bool,
    /// Whether it has work but used up its cap or its tenant's.
    pub is_throttled: bool,
    /// Whether it makes more than 10 synchronous calls per 10 ms of the time in which it does not
    /// wait for a turn; until it makes at most 5 (FairGV §3.2.3, with hysteresis).
    pub is_interactive: bool,
    /// How far its start tag is ahead of the virtual time of its tenant's part.
    pub ahead: Tag,
}

impl Default for Node {
    fn default() -> Self {
        let (devices, mut tables) = (Slots::default(), Tables::default());
        tables.tenants.insert(TenantKey::DEFAULT.index(), Tenant::new(Weight::ONE));
        Self { now_ns: 0, devices, tables, timer: None }
    }
}

impl Node {
    /// A node without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one event at `now_ns` and appends what is to be done. An `Err` changed nothing.
    ///
    /// A time before the last one counts as the last one.
    pub fn handle(
        &mut self,
        now_ns: u64,
        event: Event,
        out: &mut Actions,
    ) -> Result<(), EventError> {
        self.now_ns = self.now_ns.max(now_ns);
        match self.apply(event, out)? {
            Some(device) => {
                self.with_core(device, out, |core, cx| core.decide(cx))?;
            }
            None => self.with_all(out, Core::decide),
        }
        self.set_timer(out);
        if cfg!(debug_assertions)
            && self.tables.vgpus.len() <= AUDITED_VGPUS
            && let Err(broken) = audit(self)
        {
            panic!("{broken}, after {event:?}");
        }
        Ok(())
    }

    /// When to deliver [`Event::Timer`], for drivers that ask instead of reading
    /// [`Action::Timer`].
    pub fn poll_timeout(&self) -> Option<(u64, TimerReason)> {
        self.timer
    }

    fn core(&self, device: DeviceKey) -> Option<&Core> {
        self.devices.find(device.index()).map(|device| &device.core)
    }

    /// A device's settings.
    pub fn config(&self, device: DeviceKey) -> Option<&Config> {
        self.devices.find(device.index()).map(|device| &device.config)
    }

    /// The policy of a device.
    pub fn policy(&self, device: DeviceKey) -> Option<PolicyId> {
        self.core(device).map(|core| core.policy_id)
    }

    /// The devices that were ever up, in the order of their keys.
    pub fn devices(&self) -> impl Iterator<Item = DeviceKey> {
        self.devices.iter().map(|(key, _)| DeviceKey(key))
    }

    /// Where a session's vGPU lives.
    pub fn device_of(&self, session: SessionKey) -> Option<DeviceKey> {
        let session = self.tables.sessions.find(session.index())?;
        self.tables.vgpus.find(session.vgpu.index()).map(|vgpu| vgpu.device)
    }

    /// A session's vGPU.
    pub fn vgpu_of(&self, session: SessionKey) -> Option<VgpuKey> {
        self.tables.sessions.find(session.index()).map(|session| session.vgpu)
    }

    /// A vGPU's class.
    pub fn class(&self, vgpu: VgpuKey) -> Option<Class> {
        self.tables.vgpus.find(vgpu.index()).map(|vgpu| vgpu.rest.class)
    }

    /// The epoch of a device's next turn.
    pub fn next_epoch(&self, device: DeviceKey) -> Option<u64> {
        self.core(device).map(|core| core.next_epoch)
    }

    /// Whether the device's last turn that is over was of the session's vGPU.
    pub fn follows(&self, session: SessionKey) -> bool {
        let core = self.device_of(session).and_then(|device| self.core(device));
        core.zip(self.vgpu_of(session)).is_some_and(|(core, vgpu)| core.follows(vgpu))
    }

    /// The sessions that hold a device: one, except under a shared policy and just after it.
    pub fn holders(&self, device: DeviceKey) -> &[SessionKey] {
        self.core(device).map_or(&[], |core| &core.holders)
    }

    /// Until when nobody is granted the device, because it waits for a vGPU that is owed service
    /// and has just run out of commands. At most a quantum, at that vGPU's expense.
    pub fn kept_until_ns(&self, device: DeviceKey) -> Option<u64> {
        self.core(device)?.anticipates_until_ns()
    }

    /// Whether a device's policy has no turns: everybody is granted it at once, and its own queue
    /// decides.
    pub fn is_shared(&self, device: DeviceKey) -> bool {
        self.core(device).is_some_and(|core| core.policy.is_shared())
    }

    /// Whose turn is likely to be next if the device's holder has all of its own: nobody where
    /// there are no turns, or nobody else has work.
    pub fn upcoming(&self, device: DeviceKey) -> Option<VgpuKey> {
        let core = self.core(device)?;
        let [holder] = *core.holders.as_slice() else { return None };
        core.upcoming(self.vgpu_of(holder)?, self.config(device)?.quantum_ns)
    }

    /// Who may be next on a device when the turn that goes on is over, if it is preferred
    /// ([`Event::Prefer`]): those that wait and are not too far ahead. None where the policy has
    /// one order and no other.
    pub fn within_reach(&self, device: DeviceKey) -> Vec<VgpuKey> {
        self.core(device).map(|core| core.policy.within_reach()).unwrap_or_default()
    }

    /// Whether a device's policy gives turns of wall time, whatever the device executes meanwhile.
    pub fn slices_wall_time(&self, device: DeviceKey) -> bool {
        self.core(device).is_some_and(|core| core.policy.charges() == Charges::WallTime)
    }

    /// The virtual time of a device. It never falls.
    pub fn virtual_time(&self, device: DeviceKey) -> Option<Tag> {
        self.core(device).map(Core::virtual_time)
    }

    /// The most device time that a session may have in flight, in ns: whoever is user-facing and
    /// attached to its device waits for no more, should it wake. `None` where that is no matter.
    pub fn slice_ns(&self, session: SessionKey) -> Option<u64> {
        let vgpu = self.tables.sessions.find(session.index())?.vgpu;
        let vgpu = self.tables.vgpus.find(vgpu.index())?;
        let Device { config, core } = self.devices.find(vgpu.device.index())?;
        let own = if vgpu.rest.class.is_user_facing() { vgpu.sessions().count() } else { 0 };
        core.expects_user_facing(own).then_some(config.slice_ns)
    }

    /// What is known of a vGPU.
    pub fn vgpu(&self, key: VgpuKey) -> Option<VgpuView> {
        let vgpu = self.tables.vgpus.find(key.index())?;
        let core = self.core(vgpu.device)?;
        Some(VgpuView {
            tenant: vgpu.tenant,
            device: vgpu.device,
            weight: vgpu.weight,
            cap: vgpu.meter.as_ref().map(|meter| meter.cap),
            class: vgpu.rest.class,
            used_ns: vgpu.used_ns,
            held_ns: vgpu.held_ns,
            switches_ns: vgpu.rest.switches_ns,
            turns: vgpu.turns,
            is_runnable: vgpu.runnable > 0,
            is_throttled: vgpu.throttled,
            is_interactive: vgpu.sync.interactive,
            ahead: core.policy.ahead(key),
        })
    }

    /// A tenant's weight, if it is there.
    pub fn tenant(&self, key: TenantKey) -> Option<Weight> {
        self.tables.tenants.find(key.index()).map(|tenant| tenant.weight)
    }

    /// A tenant's cap on each device, if it has one.
    pub fn tenant_cap(&self, key: TenantKey) -> Option<Cap> {
        self.tables.tenants.find(key.index()).and_then(|tenant| tenant.cap)
    }

    /// Checks the event and applies it; the result is the device to decide about, `None` for all.
    fn apply(&mut self, event: Event, out: &mut Actions) -> Result<Option<DeviceKey>, EventError> {
        match event {
            Event::Timer => return Ok(self.time_passed(out)),
            Event::AddTenant { tenant, weight } => return self.add_tenant(tenant, weight, out),
            Event::RemoveTenant { tenant } => return self.remove_tenant(tenant, out),
            Event::ReweightTenant { tenant, weight } => {
                return self.reweight_tenant(tenant, weight, out);
            }
            Event::SetTenantCap { tenant, cap } => return self.set_tenant_cap(tenant, cap, out),
            Event::DeviceUp { device, config } => {
                let is_other = self.configure(device, &config)?;
                self.with_core(device, out, |core, cx| core.come_up(cx, is_other))
            }
            Event::DeviceDown { device } => self.with_core(device, out, Core::go_down),
            Event::SetPolicy { device, policy } => {
                self.with_core(device, out, |core, cx| core.set_policy(cx, policy))
            }
            Event::AddVgpu { vgpu, tenant, device, weight } => {
                self.add_vgpu(vgpu, tenant, device, weight)
            }
            Event::RemoveVgpu { vgpu } => self.remove_vgpu(vgpu, out),
            Event::MoveVgpu { vgpu, device } => return self.move_vgpu(vgpu, device, out),
            Event::Reweight { vgpu, weight } => {
                self.with_vgpu(vgpu, out, |core, cx| core.reweight(cx, vgpu, weight))
            }
            Event::SetCap { vgpu, cap } => {
                cap.as_ref().map_or(Ok(()), Cap::validate)?;
                self.with_vgpu(vgpu, out, |core, cx| core.set_cap(cx, vgpu, cap))
            }
            Event::SetClass { vgpu, class } => {
                self.with_vgpu(vgpu, out, |core, cx| core.set_class(cx, vgpu, class))
            }
            Event::SetOwner { vgpu, owner } => {
                self.with_vgpu(vgpu, out, |core, cx| core.set_owner(cx, vgpu, owner))
            }
            Event::Prefer { vgpu } => self.with_vgpu(vgpu, out, |core, _| core.policy.prefer(vgpu)),
            Event::OnCpu { vgpu, on } => {
                self.with_vgpu(vgpu, out, |core, _| core.policy.on_cpu(vgpu, on))
            }
            Event::AddSession { session, vgpu } => self.add_session(session, vgpu),
            Event::ReweightSession { session: key, weight } => {
                self.with_session(key, out, |core, cx| core.reweight_session(cx, key, weight))
            }
            Event::RemoveSession { session } => self.remove_session(session, out),
            Event::Runnable { session, estimate_ns } => {
                self.with_session(session, out, |core, cx| core.wake(cx, session, estimate_ns))
            }
            Event::Idle { session } => {
                self.with_session(session, out, |core, cx| core.sleep(cx, session))
            }
            Event::Used { session, usage } => {
                self.with_session(session, out, |core, cx| core.report(cx, session, usage))
            }
            Event::Released { session: key, epoch, usage } => {
                self.with_session(key, out, |core, cx| core.release(cx, key, epoch, usage))
            }
            Event::SyncCalls { session, calls } => self.with_session(session, out, |_, cx| {
                cx.tables.count_calls(cx.now_ns, session, calls);
            }),
            Event::Paged { session: key, paged_ns } => {
                self.with_session(key, out, |core, cx| core.paged(cx, key, paged_ns))
            }
            Event::Switched { session: key, switch_ns, ahead_ns } => {
                self.with_session(key, out, |core, cx| core.switched(cx, key, switch_ns, ahead_ns))
            }
            Event::Pieces { session, .. } => self.with_session(session, out, |_, _| ()),
            Event::Adopt { session, epoch, budget_ns } => {
                self.adopt(session, epoch, budget_ns, out)
            }
        }
        .map(Some)
    }

    /// Every device looks at the clock.
    fn time_passed(&mut self, out: &mut Actions) -> Option<DeviceKey> {
        self.timer = None;
        self.with_all(out, Core::refill);
        None
    }

    fn add_tenant(
        &mut self,
        key: TenantKey,
        weight: Weight,
        out: &mut Actions,
    ) -> Result<Option<DeviceKey>, EventError> {
        check_key(key.0)?;
        if self.tenant(key).is_some() {
            return Err(EventError::TenantExists(key));
        }
        self.tables.tenants.insert(key.index(), Tenant::new(weight));
        self.with_all(out, |core, _| core.policy.add_tenant(key, weight, Tag::ZERO));
        Ok(None)
    }

    fn remove_tenant(
        &mut self,
        key: TenantKey,
        out: &mut Actions,
    ) -> Result<Option<DeviceKey>, EventError> {
        self.tenant(key).ok_or(EventError::UnknownTenant(key))?;
        if key == TenantKey::DEFAULT {
            return Err(EventError::DefaultTenant);
        }
        let own = self.tables.vgpus.iter().filter(|(_, vgpu)| vgpu.tenant == key);
        let own: Vec<VgpuKey> = own.map(|(vgpu, _)| VgpuKey(vgpu)).collect();
        for vgpu in own {
            self.remove_vgpu(vgpu, out)?;
        }
        self.tables.tenants.take(key.index());
        self.with_all(out, |core, _| core.remove_tenant(key));
        Ok(None)
    }

    fn set_tenant_cap(
        &mut self,
        key: TenantKey,
        cap: Option<Cap>,
        out: &mut Actions,
    ) -> Result<Option<DeviceKey>, EventError> {
        self.tenant(key).ok_or(EventError::UnknownTenant(key))?;
        cap.as_ref().map_or(Ok(()), Cap::validate)?;
        self.tables.tenant(key).cap = cap;
        self.with_all(out, |core, cx| core.set_tenant_cap(cx, key, cap));
        Ok(None)
    }

    fn reweight_tenant(
        &mut self,
        key: TenantKey,
        weight: Weight,
        out: &mut Actions,
    ) -> Result<Option<DeviceKey>, EventError> {
        self.tenant(key).ok_or(EventError::UnknownTenant(key))?;
        self.tables.tenant(key).weight = weight;
        self.with_all(out, |core, cx| core.reweight_tenant(cx, key, weight));
        Ok(None)
    }

    /// Gives a device its settings, and adds it if it is new; whether it had other ones.
    fn configure(&mut self, key: DeviceKey, config: &Config) -> Result<bool, EventError> {
        check_key(key.0)?;
        config.validate()?;
        if let Some(device) = self.devices.find_mut(key.index()) {
            return Ok(core::mem::replace(&mut device.config, *config) != *config);
        }
        let setup = Setup { virtual_time: Tag::ZERO, config };
        let mut core = Core::new(key, config.policy, &setup, 1);
        for (key, tenant) in self.tables.tenants.iter() {
            core.policy.add_tenant(TenantKey(key), tenant.weight, Tag::ZERO);
            core.begin_tenant_cap(TenantKey(key), tenant.cap, self.now_ns);
        }
        self.devices.insert(key.index(), Device { config: *config, core });
        Ok(false)
    }

    fn add_vgpu(
        &mut self,
        key: VgpuKey,
        tenant: TenantKey,
        device: DeviceKey,
        weight: Weight,
    ) -> Result<DeviceKey, EventError> {
        check_key(key.0)?;
        self.tenant(tenant).ok_or(EventError::UnknownTenant(tenant))?;
        if self.tables.vgpus.find(key.index()).is_some() {
            return Err(EventError::VgpuExists(key));
        }
        let found = self.devices.find_mut(device.index());
        let core = &mut found.ok_or(EventError::UnknownDevice(device))?.core;
        core.policy.add(key, tenant, weight, Tag::ZERO);
        self.tables.add_vgpu(key, Vgpu::new(tenant, device, weight));
        Ok(device)
    }

    fn remove_vgpu(&mut self, key: VgpuKey, out: &mut Actions) -> Result<DeviceKey, EventError> {
        let device = self.device_of_vgpu(key)?;
        let sessions: Vec<SessionKey> = self.tables.vgpu(key).sessions().collect();
        for session in sessions {
            self.remove_session(session, out)?;
        }
        self.with_core(device, out, |core, cx| {
            core.leave_debt(cx, key);
            core.policy.remove(key);
        })?;
        self.tables.remove_vgpu(key);
        Ok(device)
    }

    /// Both devices have something to decide then.
    fn move_vgpu(
        &mut self,
        key: VgpuKey,
        to: DeviceKey,
        out: &mut Actions,
    ) -> Result<Option<DeviceKey>, EventError> {
        let from = self.device_of_vgpu(key)?;
        self.core(to).ok_or(EventError::UnknownDevice(to))?;
        if from == to {
            return Ok(Some(to));
        }
        let mut debt = None;
        self.with_core(from, out, |core, cx| debt = Some(core.depart(cx, key)))?;
        if let Some(debt) = debt {
            self.with_core(to, out, |core, cx| core.arrive(cx, key, debt))?;
        }
        Ok(None)
    }

    fn add_session(&mut self, key: SessionKey, vgpu: VgpuKey) -> Result<DeviceKey, EventError> {
        check_key(key.0)?;
        if self.tables.sessions.find(key.index()).is_some() {
            return Err(EventError::SessionExists(key));
        }
        let device = self.device_of_vgpu(vgpu)?;
        let entry = self.tables.vgpu(vgpu);
        let local = entry.join(key, Weight::ONE);
        if let Some(device) = self.devices.find_mut(device.index()) {
            device.core.count_user_facing(entry.rest.class, 1);
        }
        self.tables.sessions.insert(key.index(), SessionEntry::new(vgpu, local, Weight::ONE));
        Ok(device)
    }

    fn remove_session(
        &mut self,
        key: SessionKey,
        out: &mut Actions,
    ) -> Result<DeviceKey, EventError> {
        let device = self.with_session(key, out, |core, cx| core.remove_session(cx, key))?;
        self.tables.sessions.take(key.index());
        Ok(device)
    }

    fn adopt(
        &mut self,
        key: SessionKey,
        epoch: u64,
        budget_ns: u64,
        out: &mut Actions,
    ) -> Result<DeviceKey, EventError> {
        let mut adopted = false;
        let device = self.with_session(key, out, |core, cx| {
            adopted = core.adopt(cx, key, epoch, budget_ns);
        })?;
        if adopted { Ok(device) } else { Err(EventError::AlreadyHeld(key)) }
    }

    fn device_of_vgpu(&self, key: VgpuKey) -> Result<DeviceKey, EventError> {
        let vgpu = self.tables.vgpus.find(key.index());
        vgpu.map(|vgpu| vgpu.device).ok_or(EventError::UnknownVgpu(key))
    }

    fn with_vgpu(
        &mut self,
        key: VgpuKey,
        out: &mut Actions,
        act: impl FnOnce(&mut Core, &mut Context<'_>),
    ) -> Result<DeviceKey, EventError> {
        let device = self.device_of_vgpu(key)?;
        self.with_core(device, out, act)
    }

    fn with_session(
        &mut self,
        key: SessionKey,
        out: &mut Actions,
        act: impl FnOnce(&mut Core, &mut Context<'_>),
    ) -> Result<DeviceKey, EventError> {
        let session = self.tables.sessions.find(key.index());
        let vgpu = session.ok_or(EventError::UnknownSession(key))?.vgpu;
        let device = self.device_of_vgpu(vgpu)?;
        self.with_core(device, out, act)
    }

    fn with_core(
        &mut self,
        device: DeviceKey,
        out: &mut Actions,
        act: impl FnOnce(&mut Core, &mut Context<'_>),
    ) -> Result<DeviceKey, EventError> {
        let found = self.devices.find_mut(device.index());
        let Device { config, core } = found.ok_or(EventError::UnknownDevice(device))?;
        let now_ns = self.now_ns;
        let mut cx = Context { now_ns, config, tables: &mut self.tables, out };
        core.keep_time(&mut cx);
        act(core, &mut cx);
        Ok(device)
    }

    fn with_all(&mut self, out: &mut Actions, mut act: impl FnMut(&mut Core, &mut Context<'_>)) {
        let now_ns = self.now_ns;
        for (_, Device { config, core }) in self.devices.iter_mut() {
            let mut cx = Context { now_ns, config, tables: &mut self.tables, out };
            core.keep_time(&mut cx);
            act(core, &mut cx);
        }
    }

    fn set_timer(&mut self, out: &mut Actions) {
        let deadlines = self.devices.iter().filter_map(|(_, device)| device.core.deadline);
        let next = deadlines.min_by_key(|at| at.0);
        if next != self.timer {
            self.timer = next;
            out.push(match next {
                Some((at_ns, why)) => Action::Timer { at_ns, why },
                None => Action::CancelTimer,
            });
        }
    }
}

fn check_key(key: u32) -> Result<(), EventError> {
    if key < KEY_LIMIT { Ok(()) } else { Err(EventError::KeyTooLarge(key)) }
}

codec!(struct Node { now_ns, devices, tables, timer });
codec!(struct Device { config, core });
