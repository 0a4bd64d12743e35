//! What must hold of a pool, checked from outside: by events, actions and what devices report.
//!
//! | invariant | here |
//! |---|---|
//! | a task runs on one device at a time, and is done once | [`Violation::Runs`] |
//! | a device that is busy, away or being reset is given nothing | [`Violation::Device`] |
//! | no task is lost, when a device goes or otherwise | [`Violation::Lost`] |
//! | batch tasks that wait get a device within a bound | [`Violation::BatchWait`] |
//! | no device is free while a task waits (where the policy keeps none) | [`Violation::Idle`] |
//! | two vGPUs of a class with waiting tasks differ by no more than the lag bound | [`Violation::Lag`] |

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{Class, PoolAction, PoolEvent};
use crate::key::{DeviceKey, TaskKey, VgpuKey};

/// What to check beyond what holds of every policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The longest time in ns that batch tasks may wait while none runs, if there is a bound.
    pub batch_wait_ns: Option<u64>,
    /// No device may be free while a task waits.
    pub is_work_conserving: bool,
    /// The longest batch task, in ns: then batch vGPUs are held to the lag bound of a queue of
    /// start tags before `n` devices (the most that were up at once), `(n + 1)·l/wᵢ +
    /// (n + 1)·l/wⱼ` (Jin et al., SFQ(D)).
    pub lag_longest_ns: Option<u64>,
    /// The longest user-facing task and the slack, in ns: then user-facing vGPUs are held to that
    /// bound of theirs and the slack of both, `slack/wᵢ + slack/wⱼ`.
    pub user_lag_ns: Option<(u64, u64)>,
}

/// What was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A task was begun while it ran, after it was done, or ended where it did not run.
    #[error("{task} ran twice, or where it was not")]
    Runs {
        /// Which.
        task: TaskKey,
    },
    /// A device was given a task while it was not free.
    #[error("{device} was not free")]
    Device {
        /// Which.
        device: DeviceKey,
    },
    /// Tasks neither wait, nor run, nor are done.
    #[error("{task} was never done")]
    Lost {
        /// The first of them.
        task: TaskKey,
    },
    /// Batch tasks waited too long while none ran.
    #[error("batch tasks waited {waited_ns} ns without a device")]
    BatchWait {
        /// So long, in ns.
        waited_ns: u64,
    },
    /// A device was free while a task waited.
    #[error("{device} is free and {task} waits")]
    Idle {
        /// The device.
        device: DeviceKey,
        /// The task.
        task: TaskKey,
    },
    /// Two vGPUs are too far apart.
    #[error("{ahead} is {lag_ns} ns ahead of {behind}, more than {bound_ns}")]
    Lag {
        /// Who had more.
        ahead: VgpuKey,
        /// Who had less.
        behind: VgpuKey,
        /// Weighted service between them, in ns.
        lag_ns: u64,
        /// The bound, in ns.
        bound_ns: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Runs(TaskKey),
    Resets,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    is_batch: bool,
    weight: u64,
    waiting: u32,
    /// Weighted service, in ns.
    service_ns: u64,
}

/// A pool's history, as far as the invariants need it.
#[derive(Debug)]
pub struct Trace {
    limits: Limits,
    devices: BTreeMap<DeviceKey, Place>,
    /// The most devices that were ever up at once: what began before some of them went counts.
    devices_most: usize,
    vgpus: BTreeMap<VgpuKey, Member>,
    owners: BTreeMap<TaskKey, VgpuKey>,
    waiting: BTreeSet<TaskKey>,
    batch_waiting: u32,
    batch_running: u32,
    dry_since_ns: Option<u64>,
    dry_max_ns: u64,
    now_ns: u64,
    /// Of two vGPUs that both wait: least and largest difference since they do.
    pairs: BTreeMap<(VgpuKey, VgpuKey), (i128, i128)>,
    /// User-facing, batch.
    lag_share_permille: [u64; 2],
}

impl Trace {
    /// The history of a pool without devices.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            devices: BTreeMap::new(),
            devices_most: 0,
            vgpus: BTreeMap::new(),
            owners: BTreeMap::new(),
            waiting: BTreeSet::new(),
            batch_waiting: 0,
            batch_running: 0,
            dry_since_ns: None,
            dry_max_ns: 0,
            now_ns: 0,
            pairs: BTreeMap::new(),
            lag_share_permille: [0; 2],
        }
    }

    /// One event that the pool took, and what it answered.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn step(
        &mut self,
        now_ns: u64,
        event: &PoolEvent,
        actions: &[PoolAction],
    ) -> Result<(), Violation> {
        self.serve(now_ns);
        self.event(event)?;
        for action in actions {
            self.action(*action)?;
        }
        self.check(now_ns)
    }

    /// No task may be left.
    ///
    /// # Errors
    /// If one is.
    pub fn end(&self) -> Result<(), Violation> {
        self.owners.keys().next().map_or(Ok(()), |task| Err(Violation::Lost { task: *task }))
    }

    /// The longest time that batch tasks waited while none ran, in ns.
    pub fn batch_wait_max_ns(&self) -> u64 {
        self.dry_max_ns
    }

    /// The largest lag between two batch vGPUs, in thousandths of the bound.
    pub fn lag_share_permille(&self) -> u64 {
        self.lag_share_permille[1]
    }

    /// The largest lag between two user-facing vGPUs, in thousandths of the bound.
    pub fn user_lag_share_permille(&self) -> u64 {
        self.lag_share_permille[0]
    }

    /// Service since the last step.
    fn serve(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.now_ns);
        self.now_ns = self.now_ns.max(now_ns);
        for place in self.devices.values() {
            if let Place::Runs(task) = place
                && let Some(member) = self.vgpus.get_mut(&self.owners[task])
            {
                member.service_ns += passed_ns;
            }
        }
    }

    fn event(&mut self, event: &PoolEvent) -> Result<(), Violation> {
        match *event {
            PoolEvent::DeviceUp { device } => {
                self.devices.insert(device, Place::Free);
                self.devices_most = self.devices_most.max(self.devices.len());
            }
            PoolEvent::DeviceDown { device } => {
                if let Some(Place::Runs(task)) = self.devices.remove(&device) {
                    self.queue(task, false);
                }
            }
            PoolEvent::AddVgpu { vgpu, class, weight } => {
                let (is_batch, weight) = (class == Class::Batch, u64::from(weight.get()));
                let member = Member { is_batch, weight, waiting: 0, service_ns: 0 };
                self.vgpus.insert(vgpu, member);
            }
            PoolEvent::SetVgpu { vgpu, class, weight } => {
                self.set(vgpu, class == Class::Batch, u64::from(weight.get()));
            }
            PoolEvent::RemoveVgpu { vgpu } => {
                self.vgpus.remove(&vgpu);
            }
            PoolEvent::Submit { task, vgpu, .. } => {
                self.owners.insert(task, vgpu);
                self.queue(task, true);
            }
            PoolEvent::Finished { device, task, .. } => {
                self.free(device, task)?;
                if self.member(task).is_batch {
                    self.batch_running -= 1;
                }
                self.owners.remove(&task);
            }
            PoolEvent::Stopped { device, task, .. } => {
                self.free(device, task)?;
                self.queue(task, false);
            }
            PoolEvent::Lost { device, task } => {
                self.free(device, task)?;
                self.queue(task, false);
            }
            PoolEvent::Cancel { task } => {
                if !self.waiting.remove(&task) {
                    return Err(Violation::Runs { task });
                }
                self.member(task).waiting -= 1;
                self.batch_waiting -= u32::from(self.member(task).is_batch);
                self.owners.remove(&task);
            }
            PoolEvent::ResetDone { device } => {
                self.devices.insert(device, Place::Free);
            }
        }
        Ok(())
    }

    /// What it was owed before does not count against what it is owed now.
    fn set(&mut self, vgpu: VgpuKey, is_batch: bool, weight: u64) {
        let owners = &self.owners;
        let runs = self
            .devices
            .values()
            .filter(|place| matches!(place, Place::Runs(task) if owners.get(task) == Some(&vgpu)));
        let running = u32::try_from(runs.count()).unwrap_or(u32::MAX);
        let Some(member) = self.vgpus.get_mut(&vgpu) else { return };
        if member.is_batch {
            self.batch_waiting -= member.waiting;
            self.batch_running -= running;
        }
        (member.is_batch, member.weight) = (is_batch, weight);
        if is_batch {
            self.batch_waiting += member.waiting;
            self.batch_running += running;
        }
        self.pairs.retain(|(one, other), _| *one != vgpu && *other != vgpu);
    }

    fn action(&mut self, action: PoolAction) -> Result<(), Violation> {
        match action {
            PoolAction::Run { device, task } => {
                if self.devices.get(&device) != Some(&Place::Free) {
                    return Err(Violation::Device { device });
                }
                if !self.waiting.remove(&task) {
                    return Err(Violation::Runs { task });
                }
                self.devices.insert(device, Place::Runs(task));
                self.member(task).waiting -= 1;
                if self.member(task).is_batch {
                    self.batch_waiting -= 1;
                    self.batch_running += 1;
                }
            }
            PoolAction::Yield { device, .. } => {
                if !matches!(self.devices.get(&device), Some(Place::Runs(_))) {
                    return Err(Violation::Device { device });
                }
            }
            PoolAction::Reset { device } => {
                let Some(Place::Runs(task)) = self.devices.insert(device, Place::Resets) else {
                    return Err(Violation::Device { device });
                };
                self.queue(task, false);
            }
        }
        Ok(())
    }

    fn member(&mut self, task: TaskKey) -> &mut Member {
        self.vgpus.get_mut(&self.owners[&task]).expect("a task's vGPU stays")
    }

    fn free(&mut self, device: DeviceKey, task: TaskKey) -> Result<(), Violation> {
        match self.devices.insert(device, Place::Free) {
            Some(Place::Runs(ran)) if ran == task => Ok(()),
            _ => Err(Violation::Runs { task }),
        }
    }

    /// `task` waits: it is new, or it ran until now.
    fn queue(&mut self, task: TaskKey, is_new: bool) {
        self.waiting.insert(task);
        self.member(task).waiting += 1;
        if self.member(task).is_batch {
            self.batch_waiting += 1;
            self.batch_running -= u32::from(!is_new);
        }
    }

    fn check(&mut self, now_ns: u64) -> Result<(), Violation> {
        self.check_batch(now_ns)?;
        if self.limits.is_work_conserving
            && let Some(&task) = self.waiting.first()
            && let Some((&device, _)) = self.devices.iter().find(|(_, at)| **at == Place::Free)
        {
            return Err(Violation::Idle { device, task });
        }
        if self.limits.lag_longest_ns.is_some() || self.limits.user_lag_ns.is_some() {
            return self.check_lag();
        }
        Ok(())
    }

    fn check_batch(&mut self, now_ns: u64) -> Result<(), Violation> {
        let waited_ns = self.dry_since_ns.map_or(0, |since| now_ns.saturating_sub(since));
        self.dry_max_ns = self.dry_max_ns.max(waited_ns);
        let can_run = self.devices.values().any(|place| *place != Place::Resets);
        let is_dry = self.batch_waiting > 0 && self.batch_running == 0 && can_run;
        self.dry_since_ns = if is_dry { self.dry_since_ns.or(Some(now_ns)) } else { None };
        match self.limits.batch_wait_ns {
            Some(bound_ns) if waited_ns > bound_ns => Err(Violation::BatchWait { waited_ns }),
            _ => Ok(()),
        }
    }

    /// The service at weight 1 by which a vGPU of that class may be ahead, in ns; none if it is not
    /// held to a bound.
    fn allowance_ns(&self, is_batch: bool) -> Option<u64> {
        let places = self.devices_most as u64 + 1;
        if is_batch {
            return self.limits.lag_longest_ns.map(|longest| places.saturating_mul(longest));
        }
        let (longest, slack_ns) = self.limits.user_lag_ns?;
        Some(places.saturating_mul(longest).saturating_add(slack_ns))
    }

    fn check_lag(&mut self) -> Result<(), Violation> {
        let mut kept = BTreeMap::new();
        for is_batch in [false, true] {
            if let Some(allowance_ns) = self.allowance_ns(is_batch) {
                self.check_class(is_batch, allowance_ns, &mut kept)?;
            }
        }
        self.pairs = kept;
        Ok(())
    }

    fn check_class(
        &mut self,
        is_batch: bool,
        allowance_ns: u64,
        kept: &mut BTreeMap<(VgpuKey, VgpuKey), (i128, i128)>,
    ) -> Result<(), Violation> {
        let of_class = |(_, member): &(&VgpuKey, &Member)| member.is_batch == is_batch;
        let waiting = self.vgpus.iter().filter(of_class).filter(|(_, member)| member.waiting > 0);
        let active: Vec<(VgpuKey, Member)> = waiting.map(|(key, member)| (*key, *member)).collect();
        let largest = &mut self.lag_share_permille[usize::from(is_batch)];
        for (place, (one, of_one)) in active.iter().enumerate() {
            for (other, of_other) in &active[place + 1..] {
                let weighted = |member: &Member| i128::from(member.service_ns / member.weight);
                let now = weighted(of_one) - weighted(of_other);
                let (low, high) = self.pairs.get(&(*one, *other)).copied().unwrap_or((now, now));
                let (low, high) = (low.min(now), high.max(now));
                kept.insert((*one, *other), (low, high));
                let bound_ns = allowance_ns / of_one.weight + allowance_ns / of_other.weight;
                let lag_ns = u64::try_from(high - low).unwrap_or(u64::MAX);
                let share = lag_ns.saturating_mul(1_000) / bound_ns.max(1);
                *largest = share.max(*largest);
                if lag_ns > bound_ns {
                    let (ahead, behind) = if now == high { (*one, *other) } else { (*other, *one) };
                    return Err(Violation::Lag { ahead, behind, lag_ns, bound_ns });
                }
            }
        }
        Ok(())
    }
}
