//! The node: a core per device, and the border where events are checked.

use alloc::vec::Vec;

use crate::action::{Action, Actions, TimerReason};
use crate::config::{Config, ConfigError};
use crate::core::{Context, Core};
use crate::event::{Event, EventError};
use crate::key::{DeviceKey, KEY_LIMIT, SessionKey, VgpuKey, Weight};
use crate::policy::PolicyId;
use crate::tables::{Session, Slots, Tables, Vgpu};
use crate::tag::Tag;

/// The scheduling state of a node.
///
/// **After every [`handle`](Self::handle), perform the actions in order and clear the buffer.**
#[derive(Debug)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) now_ns: u64,
    pub(crate) cores: Slots<Core>,
    pub(crate) tables: Tables,
    timer: Option<(u64, TimerReason)>,
}

/// What the core knows of a vGPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VgpuView {
    /// Where it lives.
    pub device: DeviceKey,
    /// Its share.
    pub weight: Weight,
    /// Device time billed so far, in ns, over all its sessions and their predecessors.
    pub used_ns: u64,
    /// What was charged to its tag, in ns: less than `used_ns` for use that nobody else could have
    /// had, more for holding an idle device.
    pub held_ns: u64,
    /// Turns begun.
    pub turns: u64,
    /// Whether a session of it has work.
    pub is_runnable: bool,
    /// Whether a session of it makes more than 10 synchronous calls per 10 ms.
    pub is_interactive: bool,
    /// How far its start tag is ahead of the device's virtual time.
    pub ahead: Tag,
}

impl Node {
    /// A node without devices.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let (cores, tables) = (Slots::default(), Tables::default());
        Ok(Self { config, now_ns: 0, cores, tables, timer: None })
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
        if event == Event::Timer {
            self.timer = None;
            self.decide_all(out);
        } else {
            let device = self.apply(event, out)?;
            self.with_core(device, out, |core, cx| core.decide(cx))?;
        }
        self.set_timer(out);
        Ok(())
    }

    /// When to deliver [`Event::Timer`], for drivers that ask instead of reading
    /// [`Action::Timer`].
    pub fn poll_timeout(&self) -> Option<(u64, TimerReason)> {
        self.timer
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The policy of a device.
    pub fn policy(&self, device: DeviceKey) -> Option<PolicyId> {
        self.cores.find(device.index()).map(|core| core.policy_id)
    }

    /// The epoch of a device's next turn.
    pub fn next_epoch(&self, device: DeviceKey) -> Option<u64> {
        self.cores.find(device.index()).map(|core| core.next_epoch)
    }

    /// The sessions that hold a device: one, except under a shared policy and just after it.
    pub fn holders(&self, device: DeviceKey) -> &[SessionKey] {
        self.cores.find(device.index()).map_or(&[], |core| &core.holders)
    }

    /// The virtual time of a device. It never falls.
    pub fn virtual_time(&self, device: DeviceKey) -> Option<Tag> {
        self.cores.find(device.index()).map(Core::virtual_time)
    }

    /// What is known of a vGPU.
    pub fn vgpu(&self, key: VgpuKey) -> Option<VgpuView> {
        let vgpu = self.tables.vgpus.find(key.index())?;
        let core = self.cores.find(vgpu.device.index())?;
        let mut sessions =
            vgpu.sessions().filter_map(|session| self.tables.sessions.find(session.index()));
        Some(VgpuView {
            device: vgpu.device,
            weight: vgpu.weight,
            used_ns: vgpu.used_ns,
            held_ns: vgpu.held_ns,
            turns: vgpu.turns,
            is_runnable: vgpu.runnable > 0,
            is_interactive: sessions.any(|session| session.sync.interactive),
            ahead: core.ahead(key),
        })
    }

    /// Checks the event and applies it; the result is the device to decide about.
    fn apply(&mut self, event: Event, out: &mut Actions) -> Result<DeviceKey, EventError> {
        match event {
            Event::DeviceUp { device } => {
                self.add_device(device)?;
                self.with_core(device, out, |core, cx| core.set_up(cx, true))
            }
            Event::DeviceDown { device } => {
                self.with_core(device, out, |core, cx| core.set_up(cx, false))
            }
            Event::SetPolicy { device, policy } => {
                self.with_core(device, out, |core, cx| core.set_policy(cx, policy))
            }
            Event::AddVgpu { vgpu, device, weight } => self.add_vgpu(vgpu, device, weight),
            Event::RemoveVgpu { vgpu } => self.remove_vgpu(vgpu, out),
            Event::Reweight { vgpu, weight } => {
                let device = self.device_of_vgpu(vgpu)?;
                self.with_core(device, out, |core, cx| core.reweight(cx, vgpu, weight))
            }
            Event::AddSession { session, vgpu } => self.add_session(session, vgpu),
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
            Event::Released { session, epoch, usage } => {
                self.with_session(session, out, |core, cx| {
                    let turn = &cx.tables.session(session).turn;
                    if turn.is_some_and(|turn| turn.epoch == epoch) {
                        core.release(cx, session, usage);
                    } else {
                        core.report(cx, session, usage);
                    }
                })
            }
            Event::SyncCalls { session, calls } => self.with_session(session, out, |_, cx| {
                cx.tables.session(session).sync.observe(cx.now_ns, calls);
            }),
            Event::Adopt { session, epoch, budget_ns } => {
                let mut adopted = false;
                let device = self.with_session(session, out, |core, cx| {
                    adopted = core.adopt(cx, session, epoch, budget_ns);
                })?;
                if adopted { Ok(device) } else { Err(EventError::AlreadyHeld(session)) }
            }
            Event::Timer => unreachable!("handled before"),
        }
    }

    fn add_device(&mut self, device: DeviceKey) -> Result<(), EventError> {
        check_key(device.0)?;
        if self.cores.find(device.index()).is_none() {
            let core = Core::new(device, self.config.policy, Tag::ZERO, 1);
            self.cores.insert(device.index(), core);
        }
        Ok(())
    }

    fn add_vgpu(
        &mut self,
        key: VgpuKey,
        device: DeviceKey,
        weight: Weight,
    ) -> Result<DeviceKey, EventError> {
        check_key(key.0)?;
        if self.tables.vgpus.find(key.index()).is_some() {
            return Err(EventError::VgpuExists(key));
        }
        let core = self.cores.find_mut(device.index()).ok_or(EventError::UnknownDevice(device))?;
        core.add_vgpu(key, weight, Tag::ZERO);
        self.tables.vgpus.insert(key.index(), Vgpu::new(device, weight));
        Ok(device)
    }

    fn remove_vgpu(&mut self, key: VgpuKey, out: &mut Actions) -> Result<DeviceKey, EventError> {
        let device = self.device_of_vgpu(key)?;
        let sessions: Vec<SessionKey> = self.tables.vgpu(key).sessions().collect();
        for session in sessions {
            self.remove_session(session, out)?;
        }
        self.tables.vgpus.take(key.index());
        self.with_core(device, out, |core, _| core.remove_vgpu(key))
    }

    fn add_session(&mut self, key: SessionKey, vgpu: VgpuKey) -> Result<DeviceKey, EventError> {
        check_key(key.0)?;
        if self.tables.sessions.find(key.index()).is_some() {
            return Err(EventError::SessionExists(key));
        }
        let device = self.device_of_vgpu(vgpu)?;
        let local = self.tables.vgpu(vgpu).join(key);
        self.tables.sessions.insert(key.index(), Session::new(vgpu, local));
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

    fn device_of_vgpu(&self, key: VgpuKey) -> Result<DeviceKey, EventError> {
        let vgpu = self.tables.vgpus.find(key.index());
        vgpu.map(|vgpu| vgpu.device).ok_or(EventError::UnknownVgpu(key))
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
        let core = self.cores.find_mut(device.index()).ok_or(EventError::UnknownDevice(device))?;
        let (now_ns, config) = (self.now_ns, &self.config);
        act(core, &mut Context { now_ns, config, tables: &mut self.tables, out });
        Ok(device)
    }

    fn decide_all(&mut self, out: &mut Actions) {
        let (now_ns, config) = (self.now_ns, &self.config);
        for (_, core) in self.cores.iter_mut() {
            core.decide(&mut Context { now_ns, config, tables: &mut self.tables, out });
        }
    }

    fn set_timer(&mut self, out: &mut Actions) {
        let next = self.cores.iter().filter_map(|(_, core)| core.deadline).min_by_key(|at| at.0);
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
