//! Pools: one queue of tasks before several devices.
//!
//! A task is a self-contained kernel launch that any device of the pool may run (Flexy §II). Its
//! vGPU is user-facing, with an SLA, or batch. [`Pool::handle`] takes the time and one
//! [`PoolEvent`] and appends [`PoolAction`]s; there is no clock, no thread and no random order.
//! Which device serves which class at a moment is the policy's: [`policy`] has one file for each.
//! [`invariants`] checks a pool from outside, by what devices report.

pub mod bench_support;
pub mod invariants;
pub mod policy;
mod state;
mod types;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;

pub use crate::class::Class;
pub use types::{PoolAction, PoolConfig, PoolError, PoolEvent};

use self::policy::{Order, Policy};
use self::state::{Device, Run, State, Task, Vgpu};
use crate::codec::{Codec, Malformed, Reader};
use crate::key::{DeviceKey, KEY_LIMIT, TaskKey, TenantKey, VgpuKey, Weight};

/// Devices, the tasks that wait for them, and a policy.
#[derive(Debug)]
pub struct Pool {
    state: State,
    policy: Box<dyn Policy>,
    /// What the policy ordered; kept so that it is allocated once.
    orders: Vec<Order>,
}

impl Pool {
    /// A pool without devices.
    pub fn new(config: PoolConfig) -> Self {
        let policy = config.policy.build(&config);
        Self { state: State::new(config), policy, orders: Vec::new() }
    }

    /// Takes one event at `now_ns` and appends what is to be done to `actions`. Time that runs
    /// backwards counts as standing still.
    ///
    /// # Errors
    /// If the event cannot be; then nothing changed.
    pub fn handle(
        &mut self,
        now_ns: u64,
        event: PoolEvent,
        actions: &mut Vec<PoolAction>,
    ) -> Result<(), PoolError> {
        let before_ns = self.state.now_ns;
        let now_ns = now_ns.max(before_ns);
        self.state.now_ns = now_ns;
        if let Err(error) = self.apply(now_ns, event) {
            self.state.now_ns = before_ns;
            return Err(error);
        }
        self.dispatch(now_ns, actions);
        Ok(())
    }

    fn apply(&mut self, now_ns: u64, event: PoolEvent) -> Result<(), PoolError> {
        match event {
            PoolEvent::DeviceUp { device } => self.device_up(device)?,
            PoolEvent::DeviceDown { device } => self.device_down(now_ns, device)?,
            PoolEvent::SetTenant { tenant, weight } => self.set_tenant(tenant, weight)?,
            PoolEvent::AddVgpu { vgpu, tenant, class, weight } => {
                self.add(vgpu, tenant, class, weight)?;
            }
            PoolEvent::SetVgpu { vgpu, class, weight } => self.set(now_ns, vgpu, class, weight)?,
            PoolEvent::RemoveVgpu { vgpu } => self.remove(vgpu)?,
            PoolEvent::Submit { task, vgpu, estimate_ns } => {
                self.submit(now_ns, task, vgpu, estimate_ns)?;
            }
            PoolEvent::Finished { device, task } => self.finished(now_ns, device, task)?,
            PoolEvent::Stopped { device, task } => {
                let used_ns = self.ended(now_ns, device, task)?;
                let stopped = self.task_mut(task);
                stopped.done_ns = stopped.done_ns.saturating_add(used_ns);
                self.wait(now_ns, task, true);
            }
            PoolEvent::Lost { device, task } => {
                self.ended(now_ns, device, task)?;
                self.task_mut(task).done_ns = 0;
                self.wait(now_ns, task, true);
            }
            PoolEvent::Cancel { task } => self.cancel(task)?,
            PoolEvent::ResetDone { device } => self.reset_done(device)?,
        }
        Ok(())
    }

    /// Batch tasks killed by resets so far.
    pub fn resets(&self) -> u64 {
        self.state.resets
    }

    /// Devices that user-facing tasks may use now, as the policy sees it: those it keeps for them
    /// and those that serve them (the upper plot of Flexy's Figure 8).
    pub fn user_devices(&self) -> u32 {
        self.policy.kept(&self.state).max(self.state.running[0]).min(self.state.up)
    }

    /// Devices that run batch tasks now.
    pub fn batch_devices(&self) -> u32 {
        self.state.running[1]
    }

    /// The longest kernel that the device's run may be without being cut, in ns: a slice if it may
    /// be told to yield whenever somebody waits, and for the others the time after which they are.
    pub fn whole_ns_max(&self, device: DeviceKey) -> u64 {
        let config = &self.state.config;
        match self.state.devices.get(device.index()) {
            Some(Device::Running(run)) if !run.is_batch && run.protected_ns == u64::MAX => {
                config.user_quantum_ns
            }
            _ => config.slice_ns,
        }
    }

    /// The time of its latest event, in ns.
    pub fn now_ns(&self) -> u64 {
        self.state.now_ns
    }

    /// The whole state as bytes: [`restore`](Self::restore) goes on from it.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.state.put(&mut out);
        self.policy.put(&mut out);
        out
    }

    /// A pool that goes on from a snapshot.
    ///
    /// # Errors
    /// If the bytes are no snapshot.
    pub fn restore(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes);
        let state = State::take(&mut input)?;
        let policy = state.config.policy.take(&mut input)?;
        Ok(Self { state, policy, orders: Vec::new() })
    }

    fn task_mut(&mut self, task: TaskKey) -> &mut Task {
        self.state.tasks[task.index()].as_mut().expect("the task is there")
    }

    fn device(&self, device: DeviceKey) -> Result<Device, PoolError> {
        let known = self.state.devices.get(device.index()).copied();
        known.filter(|state| *state != Device::Down).ok_or_else(|| unknown(&device))
    }

    fn device_up(&mut self, device: DeviceKey) -> Result<(), PoolError> {
        if device.0 >= KEY_LIMIT || self.device(device).is_ok() {
            return Err(taken(&device));
        }
        if self.state.devices.len() <= device.index() {
            self.state.devices.resize(device.index() + 1, Device::Down);
        }
        self.state.up += 1;
        self.set_free(device);
        Ok(())
    }

    fn set_free(&mut self, device: DeviceKey) {
        self.state.devices[device.index()] = Device::Free;
        if let Err(place) = self.state.free.binary_search(&device.0) {
            self.state.free.insert(place, device.0);
        }
    }

    fn device_down(&mut self, now_ns: u64, device: DeviceKey) -> Result<(), PoolError> {
        let before = self.device(device)?;
        // What ran there runs no more: it is charged once, as what ended.
        self.state.devices[device.index()] = Device::Down;
        match before {
            Device::Running(run) => self.lose(now_ns, device, run),
            Device::Resetting => self.state.resetting -= 1,
            Device::Free => self.state.free.retain(|free| *free != device.0),
            Device::Down => {}
        }
        self.state.up -= 1;
        Ok(())
    }

    /// What ran waits again, from its beginning.
    fn lose(&mut self, now_ns: u64, device: DeviceKey, run: Run) {
        self.state.running[State::place(run.is_batch)] -= 1;
        self.policy.settle(&mut self.state, now_ns, device, &run);
        self.task_mut(run.task).done_ns = 0;
        self.wait(now_ns, run.task, true);
    }

    fn set_tenant(&mut self, tenant: TenantKey, weight: Weight) -> Result<(), PoolError> {
        if tenant.0 >= KEY_LIMIT {
            return Err(taken(&tenant));
        }
        self.policy.set_tenant(tenant, weight);
        Ok(())
    }

    fn add(
        &mut self,
        vgpu: VgpuKey,
        tenant: TenantKey,
        class: Class,
        weight: Weight,
    ) -> Result<(), PoolError> {
        let is_there = self.state.vgpus.get(vgpu.index()).is_some_and(Option::is_some);
        if vgpu.0 >= KEY_LIMIT || is_there {
            return Err(taken(&vgpu));
        }
        if tenant.0 >= KEY_LIMIT {
            return Err(taken(&tenant));
        }
        if self.state.vgpus.len() <= vgpu.index() {
            self.state.vgpus.resize_with(vgpu.index() + 1, || None);
        }
        let waiting = VecDeque::new();
        self.state.vgpus[vgpu.index()] =
            Some(Vgpu { tenant, class, weight, waiting, tasks: 0, last_ns: 0 });
        self.policy.add(&self.state, vgpu);
        Ok(())
    }

    /// Of a vGPU of another class all tasks that wait leave their queues and enter its new ones,
    /// oldest first.
    fn set(
        &mut self,
        now_ns: u64,
        vgpu: VgpuKey,
        class: Class,
        weight: Weight,
    ) -> Result<(), PoolError> {
        let found = self.state.vgpus.get(vgpu.index()).and_then(Option::as_ref);
        let before = found.ok_or_else(|| unknown(&vgpu))?;
        let old_class = before.class;
        let same = old_class == class;
        let waiting = if same { Vec::new() } else { self.state.waiting_of(vgpu) };
        let place = State::place(!old_class.is_user_facing());
        for task in &waiting {
            self.state.waiting[place] -= 1;
            self.policy.leave(&mut self.state, *task);
        }
        let of = self.state.vgpu_mut(vgpu);
        (of.class, of.weight) = (class, weight);
        self.state.reclass_runs(vgpu);
        self.policy.changed(&self.state, vgpu, old_class);
        for task in waiting {
            self.wait(now_ns, task, false);
        }
        Ok(())
    }

    fn remove(&mut self, vgpu: VgpuKey) -> Result<(), PoolError> {
        let found = self.state.vgpus.get(vgpu.index()).and_then(Option::as_ref);
        if found.ok_or_else(|| unknown(&vgpu))?.tasks > 0 {
            return Err(PoolError::Busy { vgpu });
        }
        self.policy.remove(&self.state, vgpu);
        self.state.vgpus[vgpu.index()] = None;
        Ok(())
    }

    fn submit(
        &mut self,
        now_ns: u64,
        task: TaskKey,
        vgpu: VgpuKey,
        estimate_ns: u64,
    ) -> Result<(), PoolError> {
        let is_there = self.state.tasks.get(task.index()).is_some_and(Option::is_some);
        if task.0 >= KEY_LIMIT || is_there {
            return Err(taken(&task));
        }
        let owner = self.state.vgpus.get_mut(vgpu.index()).and_then(Option::as_mut);
        owner.ok_or_else(|| unknown(&vgpu))?.tasks += 1;
        if self.state.tasks.len() <= task.index() {
            self.state.tasks.resize_with(task.index() + 1, || None);
        }
        self.state.tasks[task.index()] =
            Some(Task { vgpu, submitted_ns: now_ns, estimate_ns, done_ns: 0 });
        self.wait(now_ns, task, false);
        Ok(())
    }

    fn wait(&mut self, now_ns: u64, task: TaskKey, first: bool) {
        let place = State::place(self.state.is_batch(task));
        self.state.waiting[place] += 1;
        self.policy.enter(&mut self.state, now_ns, task, first);
    }

    /// A device's task ended, one way or another, after so many ns. That is the pool's own measure:
    /// nobody else had the device.
    fn ended(&mut self, now_ns: u64, device: DeviceKey, task: TaskKey) -> Result<u64, PoolError> {
        let run = match self.device(device)? {
            Device::Running(run) if run.task == task => run,
            Device::Running(_) | Device::Down | Device::Free | Device::Resetting => {
                return Err(PoolError::NotThere { device });
            }
        };
        self.state.running[State::place(run.is_batch)] -= 1;
        self.set_free(device);
        self.policy.settle(&mut self.state, now_ns, device, &run);
        Ok(now_ns.saturating_sub(run.since_ns))
    }

    fn finished(&mut self, now_ns: u64, device: DeviceKey, task: TaskKey) -> Result<(), PoolError> {
        let used_ns = self.ended(now_ns, device, task)?;
        let ended = self.state.tasks[task.index()].take().expect("a device runs tasks that are");
        let took_ns = ended.done_ns.saturating_add(used_ns);
        let owner = self.state.vgpu_mut(ended.vgpu);
        owner.tasks -= 1;
        owner.last_ns = took_ns;
        if owner.class.is_user_facing() {
            self.state.remember(took_ns);
            self.policy.served(now_ns, now_ns.saturating_sub(ended.submitted_ns));
        }
        Ok(())
    }

    fn cancel(&mut self, task: TaskKey) -> Result<(), PoolError> {
        let found = self.state.tasks.get(task.index()).and_then(Option::as_ref);
        let vgpu = found.ok_or_else(|| unknown(&task))?.vgpu;
        let runs = |device: &Device| matches!(device, Device::Running(run) if run.task == task);
        if self.state.devices.iter().any(runs) {
            return Err(PoolError::Runs { task });
        }
        let place = State::place(self.state.is_batch(task));
        self.state.waiting[place] -= 1;
        self.policy.leave(&mut self.state, task);
        self.state.vgpu_mut(vgpu).tasks -= 1;
        self.state.tasks[task.index()] = None;
        Ok(())
    }

    fn reset_done(&mut self, device: DeviceKey) -> Result<(), PoolError> {
        if self.device(device)? != Device::Resetting {
            return Err(PoolError::NotThere { device });
        }
        self.state.resetting -= 1;
        self.set_free(device);
        Ok(())
    }

    fn dispatch(&mut self, now_ns: u64, actions: &mut Vec<PoolAction>) {
        self.policy.plan(&mut self.state, now_ns);
        let mut place = 0;
        while let Some(&free) = self.state.free.get(place) {
            if self.state.waiting == [0; 2] {
                break;
            }
            let device = DeviceKey(free);
            match self.policy.pick(&mut self.state, now_ns, device) {
                Some(pick) => {
                    self.state.free.remove(place);
                    self.start(now_ns, device, pick);
                    actions.push(PoolAction::Run { device, task: pick.task });
                }
                None => place += 1,
            }
        }
        let mut orders = core::mem::take(&mut self.orders);
        self.policy.orders(&mut self.state, now_ns, &mut orders);
        for order in orders.drain(..) {
            actions.push(self.carry_out(now_ns, order));
        }
        self.orders = orders;
    }

    fn start(&mut self, now_ns: u64, device: DeviceKey, pick: policy::Pick) {
        let task = pick.task;
        let is_batch = self.state.is_batch(task);
        let place = State::place(is_batch);
        self.state.waiting[place] -= 1;
        self.state.running[place] += 1;
        let end_ns = match self.state.remaining_ns(task) {
            0 => 0,
            rest => now_ns.saturating_add(rest),
        };
        let protected_ns = now_ns.saturating_add(pick.protected_ns);
        let (since_ns, stop_ns) = (now_ns, u64::MAX);
        let run = Run { task, since_ns, end_ns, protected_ns, yields: false, stop_ns, is_batch };
        self.state.devices[device.index()] = Device::Running(run);
    }

    fn carry_out(&mut self, now_ns: u64, order: Order) -> PoolAction {
        match order {
            Order::Yield { device, at_ns } => PoolAction::Yield { device, at_ns },
            Order::Reset { device, run } => {
                self.state.devices[device.index()] = Device::Resetting;
                self.state.resetting += 1;
                self.state.resets += 1;
                self.lose(now_ns, device, run);
                PoolAction::Reset { device }
            }
        }
    }
}

fn unknown(key: &dyn fmt::Display) -> PoolError {
    PoolError::Unknown(format!("{key}"))
}

fn taken(key: &dyn fmt::Display) -> PoolError {
    PoolError::Taken(format!("{key}"))
}
