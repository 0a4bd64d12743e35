//! What every pool policy sees: tasks, vGPUs and devices.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::pace::{Pace, Paces};
use super::types::PoolConfig;
use crate::class::Class;
use crate::codec::{Codec, Malformed, Reader, codec};
use crate::key::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) vgpu: VgpuKey,
    pub(crate) submitted_ns: u64,
    /// Of the whole task; 0 if nothing is known.
    pub(crate) estimate_ns: u64,
    /// What of it was executed and not lost.
    pub(crate) done_ns: u64,
    /// The same in time of the estimate.
    pub(crate) worked_ns: u64,
}

codec!(struct Task { vgpu, submitted_ns, estimate_ns, done_ns, worked_ns });

#[derive(Clone, Debug)]
pub(crate) struct Vgpu {
    pub(crate) tenant: TenantKey,
    pub(crate) class: Class,
    pub(crate) weight: Weight,
    /// Its tasks that wait, in order.
    pub(crate) waiting: VecDeque<TaskKey>,
    /// Its tasks that wait or run.
    pub(crate) tasks: u32,
    /// What its last task took; 0 before.
    pub(crate) last_ns: u64,
    /// What its tasks took of their estimates, by device.
    pub(crate) paces: Paces,
}

codec!(struct Vgpu { tenant, class, weight, waiting, tasks, last_ns, paces });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Down,
    Free,
    Running(Run),
    Resetting,
}

/// A task on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) task: TaskKey,
    pub(crate) since_ns: u64,
    /// When it should be done; 0 if nothing is known.
    pub(crate) end_ns: u64,
    /// It is not told to yield before then.
    pub(crate) protected_ns: u64,
    /// It was told to yield for a task that waits.
    pub(crate) yields: bool,
    /// When it was told to stop; the end of time if it was not.
    pub(crate) stop_ns: u64,
    pub(crate) is_batch: bool,
}

codec!(struct Run { task, since_ns, end_ns, protected_ns, yields, stop_ns, is_batch });

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) config: PoolConfig,
    pub(crate) tasks: Vec<Option<Task>>,
    pub(crate) vgpus: Vec<Option<Vgpu>>,
    pub(crate) devices: Vec<Device>,
    /// Devices that are free, by key.
    pub(crate) free: Vec<u32>,
    /// Tasks that wait: user-facing, batch.
    pub(crate) waiting: [u32; 2],
    /// Tasks that run: user-facing, batch.
    pub(crate) running: [u32; 2],
    /// Devices that are not down.
    pub(crate) up: u32,
    /// Devices that are being reset.
    pub(crate) resetting: u32,
    /// Execution times of the last user-facing tasks, and their sum.
    pub(crate) recent: VecDeque<u64>,
    pub(crate) recent_sum_ns: u64,
    /// Time of the latest event.
    pub(crate) now_ns: u64,
    pub(crate) resets: u64,
}

codec!(struct State {
    config, tasks, vgpus, devices, free, waiting, running, up, resetting, recent, recent_sum_ns,
    now_ns, resets,
});

impl State {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            config,
            tasks: Vec::new(),
            vgpus: Vec::new(),
            devices: Vec::new(),
            free: Vec::new(),
            waiting: [0; 2],
            running: [0; 2],
            up: 0,
            resetting: 0,
            recent: VecDeque::new(),
            recent_sum_ns: 0,
            now_ns: 0,
            resets: 0,
        }
    }

    /// The place of a class in the arrays of two.
    pub(crate) fn place(is_batch: bool) -> usize {
        usize::from(is_batch)
    }

    pub(crate) fn task(&self, task: TaskKey) -> &Task {
        self.tasks[task.index()].as_ref().expect("a queue holds tasks of the pool")
    }

    pub(crate) fn vgpu(&self, vgpu: VgpuKey) -> &Vgpu {
        self.vgpus[vgpu.index()].as_ref().expect("a task's vGPU stays while it has tasks")
    }

    pub(crate) fn vgpu_mut(&mut self, vgpu: VgpuKey) -> &mut Vgpu {
        self.vgpus[vgpu.index()].as_mut().expect("a task's vGPU stays while it has tasks")
    }

    pub(crate) fn is_batch(&self, task: TaskKey) -> bool {
        !self.vgpu(self.task(task).vgpu).class.is_user_facing()
    }

    /// The vGPU's tasks that wait, oldest first.
    pub(crate) fn waiting_of(&self, vgpu: VgpuKey) -> Vec<TaskKey> {
        let runs: Vec<TaskKey> = self.keyed_runs().map(|(_, run)| run.task).collect();
        let keyed = (0u32..).map(TaskKey).zip(&self.tasks);
        let own = keyed.filter_map(|(key, task)| Some((task.as_ref()?, key)));
        let waits = own.filter(|(task, key)| task.vgpu == vgpu && !runs.contains(key));
        let mut waiting: Vec<_> = waits.map(|(task, key)| (task.submitted_ns, key)).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, key)| key).collect()
    }

    /// What runs, by device.
    pub(crate) fn keyed_runs(&self) -> impl Iterator<Item = (DeviceKey, &Run)> + Clone {
        (0u32..).map(DeviceKey).zip(&self.devices).filter_map(|(key, device)| match device {
            Device::Running(run) => Some((key, run)),
            Device::Down | Device::Free | Device::Resetting => None,
        })
    }

    /// What runs of the vGPU.
    pub(crate) fn runs_of(&self, vgpu: VgpuKey) -> impl Iterator<Item = (DeviceKey, &Run)> {
        self.keyed_runs().filter(move |(_, run)| self.task(run.task).vgpu == vgpu)
    }

    /// What runs of the vGPU counts as of the class that it has now.
    pub(crate) fn reclass_runs(&mut self, vgpu: VgpuKey) {
        let is_batch = !self.vgpu(vgpu).class.is_user_facing();
        for place in 0..self.devices.len() {
            let Device::Running(mut run) = self.devices[place] else { continue };
            if self.task(run.task).vgpu == vgpu && run.is_batch != is_batch {
                self.running[Self::place(run.is_batch)] -= 1;
                self.running[Self::place(is_batch)] += 1;
                run.is_batch = is_batch;
                // User-facing work is not stopped, batch work whenever it is in the way.
                run.protected_ns = if is_batch { 0 } else { u64::MAX };
                self.devices[place] = Device::Running(run);
            }
        }
    }

    /// Devices that are kept from batch tasks: never all, or batch tasks would wait for ever.
    pub(crate) fn reserved(&self) -> u32 {
        self.config.reserved.min(self.up.saturating_sub(1))
    }

    /// When the user-facing task that waits longest was submitted, by the first of each vGPU's
    /// queue.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let user = self.vgpus.iter().flatten().filter(|vgpu| vgpu.class.is_user_facing());
        let first = user.filter_map(|vgpu| vgpu.waiting.front());
        first.map(|task| self.task(*task).submitted_ns).min()
    }

    /// What a task still takes as far as anybody knows, in ns, on the device that is thought to be
    /// the fastest: by its estimate, or as its vGPU's last one; 0 if nothing is known.
    pub(crate) fn remaining_ns(&self, task: TaskKey) -> u64 {
        self.remaining(task, Paces::fastest)
    }

    /// The same on that device.
    pub(crate) fn remaining_on_ns(&self, task: TaskKey, device: DeviceKey) -> u64 {
        self.remaining(task, |paces| paces.of(device))
    }

    fn remaining(&self, task: TaskKey, pace: impl Fn(&Paces) -> Pace) -> u64 {
        let of = self.task(task);
        let vgpu = self.vgpu(of.vgpu);
        match of.estimate_ns {
            0 => vgpu.last_ns.saturating_sub(of.done_ns),
            estimate_ns => pace(&vgpu.paces).times(estimate_ns.saturating_sub(of.worked_ns)),
        }
    }

    /// A run of a task on a device had so many ns: what that is of its estimate.
    pub(crate) fn work(&mut self, task: TaskKey, device: DeviceKey, used_ns: u64) {
        let pace = self.vgpu(self.task(task).vgpu).paces.of(device);
        let of = self.tasks[task.index()].as_mut().expect("the task is there");
        of.done_ns = of.done_ns.saturating_add(used_ns);
        of.worked_ns = of.worked_ns.saturating_add(pace.divides(used_ns));
    }

    /// A task that was never stopped was done after so many ns on a device.
    pub(crate) fn learn(&mut self, task: &Task, device: DeviceKey, used_ns: u64) {
        if task.estimate_ns > 0 && task.done_ns == 0 {
            let devices = &self.devices;
            let is_up = |key: u32| !matches!(devices.get(key as usize), Some(Device::Down));
            let vgpu = self.vgpus[task.vgpu.index()].as_mut().expect("a task's vGPU stays");
            vgpu.paces.learn(device, task.estimate_ns, used_ns);
            vgpu.paces.look(is_up);
        }
    }

    /// A device came or went: another one may be the fastest.
    pub(crate) fn look(&mut self) {
        let devices = &self.devices;
        let is_up = |key: u32| !matches!(devices.get(key as usize), Some(Device::Down));
        for vgpu in self.vgpus.iter_mut().flatten() {
            vgpu.paces.look(is_up);
        }
    }

    /// When a user-facing task must be done; the end of time for a batch task.
    pub(crate) fn deadline_ns(&self, task: TaskKey) -> u64 {
        let of = self.task(task);
        match self.vgpu(of.vgpu).class {
            Class::UserFacing { sla_ns } => of.submitted_ns.saturating_add(sla_ns),
            Class::Batch => u64::MAX,
        }
    }

    /// The mean of the last execution times of user-facing tasks (Flexy's `l`), in ns.
    pub(crate) fn mean_ns(&self) -> u64 {
        self.recent_sum_ns / (self.recent.len() as u64).max(1)
    }

    pub(crate) fn remember(&mut self, took_ns: u64) {
        self.recent.push_back(took_ns);
        self.recent_sum_ns = self.recent_sum_ns.saturating_add(took_ns);
        if self.recent.len() > self.config.recent.max(1) as usize
            && let Some(old) = self.recent.pop_front()
        {
            self.recent_sum_ns = self.recent_sum_ns.saturating_sub(old);
        }
    }
}

// A number, then the run if there is one.
impl Codec for Device {
    fn put(&self, out: &mut Vec<u8>) {
        let (number, run) = match self {
            Self::Down => (0u32, None),
            Self::Free => (1, None),
            Self::Resetting => (2, None),
            Self::Running(run) => (3, Some(*run)),
        };
        number.put(out);
        run.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let number = u32::take(input)?;
        let run: Option<Run> = Codec::take(input)?;
        match (number, run) {
            (0, None) => Ok(Self::Down),
            (1, None) => Ok(Self::Free),
            (2, None) => Ok(Self::Resetting),
            (3, Some(run)) => Ok(Self::Running(run)),
            _ => Err(input.malformed("device")),
        }
    }
}
