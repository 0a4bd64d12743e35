//! What must hold of a pool, checked from outside: by events, actions and what devices report.
//!
//! | invariant | here |
//! |---|---|
//! | a task runs on one device at a time, and is done once | [`Violation::Runs`] |
//! | a device that is busy, away or being reset is given nothing | [`Violation::Device`] |
//! | no task is lost, when a device goes or otherwise | [`Violation::Lost`] |
//! | batch tasks that wait get a device within a bound | [`Violation::BatchWait`] |
//! | so does each batch vGPU, by what all of them get | [`Violation::TurnWait`] |
//! | no device is free while a task waits (where the policy keeps none) | [`Violation::Idle`] |
//! | vGPUs, or tenants, of a class with waiting tasks keep to a lag bound | [`Violation::Lag`] |

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use super::{Class, PoolAction, PoolEvent};
use crate::key::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

/// What to check beyond what holds of every policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The longest time in ns that batch tasks may wait while none runs, if there is a bound.
    pub batch_wait_ns: Option<u64>,
    /// No device may be free while a task waits.
    pub is_work_conserving: bool,
    /// The longest that a batch run goes on while others are owed more, in ns: then batch vGPUs are
    /// held to the lag bound of a queue of start tags before `n` devices (the most that were up at
    /// once), `(n + 1)·l/wᵢ + (n + 1)·l/wⱼ` (Jin et al., SFQ(D)).
    pub lag_longest_ns: Option<u64>,
    /// The same `l`, in ns: while a batch vGPU waits and has no device, all batch vGPUs together
    /// get no more than `(n + 1)·l·Σ(1 + wⱼ/wᵢ)`, the sum over the others that have work meanwhile.
    pub turn_longest_ns: Option<u64>,
    /// The longest user-facing task and the slack, in ns: then user-facing vGPUs are held to that
    /// bound of theirs and the slack of both, `slack/wᵢ + slack/wⱼ`.
    pub user_lag_ns: Option<(u64, u64)>,
    /// The lag bounds are held between tenants, and between vGPUs of one tenant.
    pub by_tenant: bool,
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
    /// A batch vGPU waited while others were served for too long.
    #[error("{vgpu} waited while batch tasks were served for {served_ns} ns, more than {bound_ns}")]
    TurnWait {
        /// Who waited.
        vgpu: VgpuKey,
        /// What all had meanwhile, in ns.
        served_ns: u64,
        /// The bound, in ns.
        bound_ns: u64,
    },
    /// A device was free while a task waited.
    #[error("{device} is free and {task} waits")]
    Idle {
        /// The device.
        device: DeviceKey,
        /// The task.
        task: TaskKey,
    },
    /// Two vGPUs, or two tenants, are too far apart.
    #[error("{ahead} is {lag_ns} ns ahead of {behind}, more than {bound_ns}")]
    Lag {
        /// Who had more.
        ahead: Sharer,
        /// Who had less.
        behind: Sharer,
        /// Weighted service between them, in ns.
        lag_ns: u64,
        /// The bound, in ns.
        bound_ns: u64,
    },
}

/// Who shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharer {
    /// A vGPU.
    Vgpu(VgpuKey),
    /// A tenant.
    Tenant(TenantKey),
}

impl fmt::Display for Sharer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vgpu(vgpu) => vgpu.fmt(f),
            Self::Tenant(tenant) => tenant.fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Runs(TaskKey),
    Resets,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    tenant: TenantKey,
    is_batch: bool,
    weight: u64,
    waiting: u32,
    running: u32,
    /// Service, in ns.
    service_ns: u64,
    /// Since when it waits without a device.
    waits: Option<Wait>,
    /// The last step after which it had a task.
    active: u64,
}

/// When a batch vGPU began to wait without a device.
#[derive(Clone, Copy, Debug)]
struct Wait {
    step: u64,
    /// What batch vGPUs had had together by then, in ns.
    from_ns: u64,
}

/// Who is held to the lag bound: it waits.
#[derive(Clone, Copy, Debug)]
struct Backlogged {
    who: Sharer,
    /// Among whom.
    among: Option<TenantKey>,
    weight: u64,
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
    tenants: BTreeMap<TenantKey, u64>,
    /// Service of tenants that have, or had, vGPUs: user-facing, batch, in ns.
    tenant_service_ns: [BTreeMap<TenantKey, u64>; 2],
    batch_service_ns: u64,
    owners: BTreeMap<TaskKey, VgpuKey>,
    waiting: BTreeSet<TaskKey>,
    batch_waiting: u32,
    batch_running: u32,
    dry_since_ns: Option<u64>,
    dry_max_ns: u64,
    now_ns: u64,
    steps: u64,
    /// The longest wait of a batch vGPU, in thousandths of its bound.
    turn_share_permille: u64,
    /// Of two that both wait: least and largest difference since they do.
    pairs: BTreeMap<(bool, Sharer, Sharer), (i128, i128)>,
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
            tenants: BTreeMap::new(),
            tenant_service_ns: [BTreeMap::new(), BTreeMap::new()],
            batch_service_ns: 0,
            owners: BTreeMap::new(),
            waiting: BTreeSet::new(),
            batch_waiting: 0,
            batch_running: 0,
            dry_since_ns: None,
            dry_max_ns: 0,
            now_ns: 0,
            steps: 0,
            turn_share_permille: 0,
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

    /// What batch vGPUs had together while one of them waited without a device, the most in
    /// thousandths of its bound.
    pub fn turn_share_permille(&self) -> u64 {
        self.turn_share_permille
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
                let class = &mut self.tenant_service_ns[usize::from(member.is_batch)];
                *class.entry(member.tenant).or_default() += passed_ns;
                self.batch_service_ns += if member.is_batch { passed_ns } else { 0 };
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
            PoolEvent::SetTenant { tenant, weight } => {
                self.tenants.insert(tenant, weight.get().into());
                self.pairs.clear();
            }
            PoolEvent::AddVgpu { vgpu, tenant, class, weight } => {
                self.vgpus.insert(vgpu, Member::new(tenant, class, weight));
            }
            PoolEvent::SetVgpu { vgpu, class, weight } => {
                self.set(vgpu, class == Class::Batch, u64::from(weight.get()));
            }
            PoolEvent::RemoveVgpu { vgpu } => {
                self.vgpus.remove(&vgpu);
                self.forget_waits();
            }
            PoolEvent::Submit { task, vgpu, .. } => {
                self.owners.insert(task, vgpu);
                self.queue(task, true);
            }
            PoolEvent::Finished { device, task, .. } => {
                self.free(device, task)?;
                self.member(task).running -= 1;
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
        let Some(member) = self.vgpus.get_mut(&vgpu) else { return };
        if member.is_batch {
            self.batch_waiting -= member.waiting;
            self.batch_running -= member.running;
        }
        (member.is_batch, member.weight) = (is_batch, weight);
        if is_batch {
            self.batch_waiting += member.waiting;
            self.batch_running += member.running;
        }
        let changed = [Sharer::Vgpu(vgpu), Sharer::Tenant(member.tenant)];
        let is_other = |who: &Sharer| !changed.contains(who);
        self.pairs.retain(|(_, one, other), _| is_other(one) && is_other(other));
        self.forget_waits();
    }

    fn forget_waits(&mut self) {
        self.vgpus.values_mut().for_each(|member| member.waits = None);
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
                self.member(task).running += 1;
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
        self.member(task).running -= u32::from(!is_new);
        if self.member(task).is_batch {
            self.batch_waiting += 1;
            self.batch_running -= u32::from(!is_new);
        }
    }

    fn check(&mut self, now_ns: u64) -> Result<(), Violation> {
        self.check_batch(now_ns)?;
        self.check_turns()?;
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

    fn check_turns(&mut self) -> Result<(), Violation> {
        let Some(longest_ns) = self.limits.turn_longest_ns else { return Ok(()) };
        let places = self.devices_most as u64 + 1;
        self.steps += 1;
        let now = Wait { step: self.steps, from_ns: self.batch_service_ns };
        let (mut waiting, mut batch) = (Vec::new(), Vec::new());
        for (vgpu, member) in self.vgpus.iter_mut().filter(|(_, member)| member.is_batch) {
            if member.waiting + member.running > 0 {
                member.active = now.step;
            }
            if member.waiting > 0 && member.running == 0 {
                waiting.push((*vgpu, member.weight, *member.waits.get_or_insert(now)));
            } else {
                member.waits = None;
            }
            batch.push((*vgpu, member.weight, member.active));
        }
        for (vgpu, weight, wait) in waiting {
            let served_ns = self.batch_service_ns - wait.from_ns;
            let others =
                batch.iter().filter(|(other, _, active)| *other != vgpu && *active >= wait.step);
            let (count, weights) =
                others.fold((0, 0), |(count, sum), (_, weight, _)| (count + 1, sum + weight));
            let turns = weights.div_ceil(weight) + count;
            let bound_ns = places.saturating_mul(longest_ns).saturating_mul(turns);
            let share = served_ns.saturating_mul(1_000) / bound_ns.max(1);
            self.turn_share_permille = self.turn_share_permille.max(share);
            if served_ns > bound_ns {
                return Err(Violation::TurnWait { vgpu, served_ns, bound_ns });
            }
        }
        Ok(())
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

    /// Those of a class that wait, and their tenants.
    fn backlogged(&self, is_batch: bool) -> Vec<Backlogged> {
        let by_tenant = self.limits.by_tenant;
        let waiting = self.vgpus.iter().filter(|(_, member)| member.is_batch == is_batch);
        let waiting: Vec<_> = waiting.filter(|(_, member)| member.waiting > 0).collect();
        let of_vgpu = |(key, member): &(&VgpuKey, &Member)| Backlogged {
            who: Sharer::Vgpu(**key),
            among: by_tenant.then_some(member.tenant),
            weight: member.weight,
            service_ns: member.service_ns,
        };
        let services = &self.tenant_service_ns[usize::from(is_batch)];
        let of_tenant = |tenant: &TenantKey| Backlogged {
            who: Sharer::Tenant(*tenant),
            among: None,
            weight: self.tenants.get(tenant).copied().unwrap_or(1),
            service_ns: services.get(tenant).copied().unwrap_or(0),
        };
        let tenants: BTreeSet<TenantKey> =
            waiting.iter().map(|(_, member)| member.tenant).filter(|_| by_tenant).collect();
        waiting.iter().map(of_vgpu).chain(tenants.iter().map(of_tenant)).collect()
    }

    fn check_class(
        &mut self,
        is_batch: bool,
        allowance_ns: u64,
        kept: &mut BTreeMap<(bool, Sharer, Sharer), (i128, i128)>,
    ) -> Result<(), Violation> {
        let active = self.backlogged(is_batch);
        let largest = &mut self.lag_share_permille[usize::from(is_batch)];
        for (place, one) in active.iter().enumerate() {
            for other in active[place + 1..].iter().filter(|other| other.among == one.among) {
                let weighted = |of: &Backlogged| i128::from(of.service_ns / of.weight);
                let now = weighted(one) - weighted(other);
                let key = (is_batch, one.who, other.who);
                let (low, high) = self.pairs.get(&key).copied().unwrap_or((now, now));
                let (low, high) = (low.min(now), high.max(now));
                kept.insert(key, (low, high));
                let bound_ns = allowance_ns / one.weight + allowance_ns / other.weight;
                let lag_ns = u64::try_from(high - low).unwrap_or(u64::MAX);
                let share = lag_ns.saturating_mul(1_000) / bound_ns.max(1);
                *largest = share.max(*largest);
                if lag_ns > bound_ns {
                    let is_ahead = now == high;
                    let (ahead, behind) =
                        if is_ahead { (one.who, other.who) } else { (other.who, one.who) };
                    return Err(Violation::Lag { ahead, behind, lag_ns, bound_ns });
                }
            }
        }
        Ok(())
    }
}

impl Member {
    fn new(tenant: TenantKey, class: Class, weight: Weight) -> Self {
        Self {
            tenant,
            is_batch: class == Class::Batch,
            weight: weight.get().into(),
            waiting: 0,
            running: 0,
            service_ns: 0,
            waits: None,
            active: 0,
        }
    }
}
