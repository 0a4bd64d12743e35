//! Which task runs where: the pools' state machines, and what their keys mean. Pure.
//!
//! [`weft_sched::pool::Pool`] decides, on dense keys. This module translates: a runner's numbers
//! into the pool's, the pool's actions into orders for runners, and late reports into nothing.

use std::collections::BTreeMap;

use weft_sched::pool::{Pool, PoolAction, PoolConfig, PoolError, PoolEvent};
use weft_sched::{Class, DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

use crate::admin::TaskCounts;
use crate::runner::messages::{Outcome, Run};

/// What is to be done for an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Its runner runs a task, by pieces if its kernel is longer than `whole_ns_max`.
    Run { run: Run, whole_ns_max: u64 },
    /// Its runner stops one at the first slice boundary not before `at_ns`.
    Yield { run: Run, at_ns: u64 },
    /// Its session on the device is killed; then [`Dispatch::reset_done`].
    Reset { device: DeviceKey },
    /// A task that waited is gone.
    Cancelled { task: u32 },
}

/// Actions, each for the accelerator of that key.
pub(super) type Actions = Vec<(u32, Action)>;

/// Why a runner's report is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Impossible {
    /// It has more tasks than it may.
    #[error("more tasks than it may have")]
    TooMany,
    /// It has a task of that number.
    #[error("task {0} is there already")]
    Twice(u32),
    /// There is no such accelerator.
    #[error("no accelerator of that key")]
    Unknown,
    /// The pool refuses.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A task.
#[derive(Debug, Clone, Copy)]
struct Task {
    accelerator: u32,
    /// The runner's number.
    number: u32,
    submitted_ns: u64,
    run: Option<Run>,
}

/// What an accelerator is owed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Who pays for it.
    pub(super) tenant: TenantKey,
    pub(super) tenant_weight: Weight,
    pub(super) class: Class,
    /// Of its class, or of its tenant's part of that.
    pub(super) weight: Weight,
}

/// A virtual accelerator.
#[derive(Debug)]
struct Accelerator {
    pool: String,
    class: Class,
    tasks_max: usize,
    /// Its tasks by the runner's numbers.
    tasks: BTreeMap<u32, TaskKey>,
    counts: TaskCounts,
}

#[derive(Debug)]
struct PoolState {
    pool: Pool,
    tasks: BTreeMap<TaskKey, Task>,
    /// What a device runs.
    running: BTreeMap<DeviceKey, TaskKey>,
    /// Keys that tasks had before.
    spare: Vec<TaskKey>,
}

impl PoolState {
    /// A key that no task has. All below the number of tasks that were ever there at once are
    /// tasks' or spare.
    fn unused(&mut self) -> TaskKey {
        let next = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
        self.spare.pop().unwrap_or(TaskKey(next))
    }

    fn forget(&mut self, task: TaskKey) -> Option<Task> {
        let forgotten = self.tasks.remove(&task)?;
        self.spare.push(task);
        Some(forgotten)
    }
}

/// What a pool was told, and what it answered.
#[derive(Debug)]
pub(super) struct PoolDecision<'a> {
    /// The pool's name.
    pub(super) name: &'a str,
    /// The pool, after the event.
    pub(super) pool: &'a Pool,
    pub(super) now_ns: u64,
    pub(super) event: PoolEvent,
    pub(super) result: Result<(), &'a PoolError>,
    pub(super) actions: &'a [PoolAction],
}

/// Who sees every decision of every pool.
pub(super) trait Witness: std::fmt::Debug + Send {
    /// A pool decided.
    fn decided(&mut self, decision: &PoolDecision<'_>);
}

/// All pools and accelerators of a node.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    witness: Option<Box<dyn Witness>>,
    pools: BTreeMap<String, PoolState>,
    accelerators: BTreeMap<u32, Accelerator>,
    next_run: u64,
}

impl Dispatch {
    /// A pool without devices.
    pub(super) fn add_pool(&mut self, name: &str, config: PoolConfig) {
        let (tasks, running, spare) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let state = PoolState { pool: Pool::new(config), tasks, running, spare };
        self.pools.insert(name.to_owned(), state);
    }

    /// The pools, by name.
    pub(super) fn pools(&self) -> impl Iterator<Item = (&str, &Pool)> {
        self.pools.iter().map(|(name, state)| (name.as_str(), &state.pool))
    }

    /// From now on `witness` sees all decisions, or nobody; who did before.
    pub(super) fn watch(&mut self, witness: Option<Box<dyn Witness>>) -> Option<Box<dyn Witness>> {
        std::mem::replace(&mut self.witness, witness)
    }

    /// An accelerator on a pool that is there.
    pub(super) fn add(
        &mut self,
        now_ns: u64,
        key: u32,
        pool: &str,
        share: Share,
        tasks_max: u32,
    ) -> Result<(), Impossible> {
        let Share { tenant, tenant_weight, class, weight } = share;
        let accelerator = Accelerator {
            pool: pool.to_owned(),
            class,
            tasks_max: tasks_max as usize,
            tasks: BTreeMap::new(),
            counts: TaskCounts::default(),
        };
        let vgpu = VgpuKey(key);
        self.feed(now_ns, pool, PoolEvent::SetTenant { tenant, weight: tenant_weight })?;
        self.feed(now_ns, pool, PoolEvent::AddVgpu { vgpu, tenant, class, weight })?;
        self.accelerators.insert(key, accelerator);
        Ok(())
    }

    /// A tenant has another share of all pools from now on.
    pub(super) fn set_tenant(&mut self, now_ns: u64, tenant: TenantKey, weight: Weight) -> Actions {
        let pools: Vec<String> = self.pools.keys().cloned().collect();
        let set = |pool: &String| self.fed(now_ns, pool, PoolEvent::SetTenant { tenant, weight });
        pools.iter().flat_map(set).collect()
    }

    /// An accelerator is owed something else from now on, also for the tasks that it has.
    pub(super) fn set(&mut self, now_ns: u64, key: u32, class: Class, weight: Weight) -> Actions {
        let Some(accelerator) = self.accelerators.get_mut(&key) else { return Vec::new() };
        accelerator.class = class;
        let pool = accelerator.pool.clone();
        self.fed(now_ns, &pool, PoolEvent::SetVgpu { vgpu: VgpuKey(key), class, weight })
    }

    /// An accelerator goes, and its tasks with it.
    pub(super) fn remove(&mut self, now_ns: u64, key: u32) -> Actions {
        let actions = self.runner_gone(now_ns, key);
        if let Some(accelerator) = self.accelerators.remove(&key) {
            let removed = PoolEvent::RemoveVgpu { vgpu: VgpuKey(key) };
            let fed = self.feed(now_ns, &accelerator.pool, removed);
            debug_assert!(fed.is_ok(), "it has no task any more: {fed:?}");
        }
        actions
    }

    /// What an accelerator's tasks are doing, and did.
    pub(super) fn counts(&self, key: u32) -> TaskCounts {
        let Some(accelerator) = self.accelerators.get(&key) else { return TaskCounts::default() };
        let Some(state) = self.pools.get(&accelerator.pool) else { return accelerator.counts };
        let is_own =
            |task: &&TaskKey| state.tasks.get(task).is_some_and(|task| task.accelerator == key);
        let running = state.running.values().filter(is_own).count() as u64;
        let waiting = (accelerator.tasks.len() as u64).saturating_sub(running);
        TaskCounts { waiting, running, ..accelerator.counts }
    }

    /// Devices that user-facing tasks may use now, and those that run batch ones.
    pub(super) fn devices_by_class(&self, pool: &str) -> (u32, u32) {
        let state = self.pools.get(pool);
        state.map_or((0, 0), |state| (state.pool.user_devices(), state.pool.batch_devices()))
    }

    /// A runner has a task for the pool.
    pub(super) fn submit(
        &mut self,
        now_ns: u64,
        key: u32,
        number: u32,
        estimate_ns: u64,
    ) -> Result<Actions, Impossible> {
        let accelerator = self.accelerators.get(&key).ok_or(Impossible::Unknown)?;
        if accelerator.tasks.contains_key(&number) {
            return Err(Impossible::Twice(number));
        }
        if accelerator.tasks.len() >= accelerator.tasks_max {
            return Err(Impossible::TooMany);
        }
        let pool = accelerator.pool.clone();
        let state = self.pools.get_mut(&pool).ok_or(Impossible::Unknown)?;
        let task = state.unused();
        let submitted_ns = now_ns;
        state.tasks.insert(task, Task { accelerator: key, number, submitted_ns, run: None });
        if let Some(accelerator) = self.accelerators.get_mut(&key) {
            accelerator.tasks.insert(number, task);
        }
        let vgpu = VgpuKey(key);
        let fed = self.feed(now_ns, &pool, PoolEvent::Submit { task, vgpu, estimate_ns });
        if fed.is_err() {
            self.forget(key, &pool, task);
        }
        fed
    }

    /// A task is over. A report about a run that does not count any more says nothing.
    pub(super) fn finished(
        &mut self,
        now_ns: u64,
        key: u32,
        run: Run,
        outcome: Outcome,
    ) -> Actions {
        let Some((pool, task, of)) = self.current(key, run) else { return Vec::new() };
        self.count_end(now_ns, key, &of, outcome);
        let device = DeviceKey(run.device);
        let event = PoolEvent::Finished { device, task };
        self.free(&pool, device);
        self.forget(key, &pool, task);
        self.fed(now_ns, &pool, event)
    }

    fn count_end(&mut self, now_ns: u64, key: u32, task: &Task, outcome: Outcome) {
        let Some(accelerator) = self.accelerators.get_mut(&key) else { return };
        let counts = &mut accelerator.counts;
        match outcome {
            Outcome::Done => counts.done += 1,
            Outcome::Failed => {
                counts.failed += 1;
                return;
            }
            Outcome::Dropped => {
                counts.dropped += 1;
                return;
            }
        }
        let latency_ns = now_ns.saturating_sub(task.submitted_ns);
        counts.longest_ns = counts.longest_ns.max(latency_ns);
        let sla_ns = accelerator.class.sla_ns();
        counts.in_time += u64::from(sla_ns.is_some_and(|sla_ns| latency_ns <= sla_ns));
    }

    /// A task stopped as it was told to.
    pub(super) fn stopped(&mut self, now_ns: u64, key: u32, run: Run) -> Actions {
        let Some((pool, task, _)) = self.current(key, run) else { return Vec::new() };
        if let Some(accelerator) = self.accelerators.get_mut(&key) {
            accelerator.counts.stops += 1;
        }
        let device = DeviceKey(run.device);
        self.wait(&pool, device, task);
        self.fed(now_ns, &pool, PoolEvent::Stopped { device, task })
    }

    /// A task lost its session; the device is well.
    pub(super) fn lost(&mut self, now_ns: u64, key: u32, run: Run) -> Actions {
        let Some((pool, task, _)) = self.current(key, run) else { return Vec::new() };
        if let Some(accelerator) = self.accelerators.get_mut(&key) {
            accelerator.counts.losses += 1;
        }
        let device = DeviceKey(run.device);
        self.wait(&pool, device, task);
        self.fed(now_ns, &pool, PoolEvent::Lost { device, task })
    }

    /// A task is no longer wanted: one that waits goes. One that runs is for its runner to stop,
    /// which then reports it [`Outcome::Dropped`].
    pub(super) fn cancel(&mut self, now_ns: u64, key: u32, number: u32) -> Actions {
        let Some(accelerator) = self.accelerators.get(&key) else { return Vec::new() };
        let Some(task) = accelerator.tasks.get(&number).copied() else { return Vec::new() };
        let pool = accelerator.pool.clone();
        let runs = |state: &PoolState| state.running.values().any(|running| *running == task);
        if self.pools.get(&pool).is_none_or(runs) {
            return Vec::new();
        }
        self.forget(key, &pool, task);
        if let Some(accelerator) = self.accelerators.get_mut(&key) {
            accelerator.counts.dropped += 1;
        }
        let mut actions = self.fed(now_ns, &pool, PoolEvent::Cancel { task });
        actions.push((key, Action::Cancelled { task: number }));
        actions
    }

    /// A runner is gone: its tasks are, too. Whoever submitted them submits them again. What ran
    /// is paid for until now.
    pub(super) fn runner_gone(&mut self, now_ns: u64, key: u32) -> Actions {
        let Some(accelerator) = self.accelerators.get(&key) else { return Vec::new() };
        let pool = accelerator.pool.clone();
        let tasks: Vec<TaskKey> = accelerator.tasks.values().copied().collect();
        let Some(state) = self.pools.get(&pool) else { return Vec::new() };
        let running: BTreeMap<TaskKey, DeviceKey> =
            state.running.iter().map(|(device, task)| (*task, *device)).collect();
        let mut actions = Vec::new();
        // Those that wait first, or one of them would be begun.
        for task in tasks.iter().filter(|task| !running.contains_key(task)) {
            self.forget(key, &pool, *task);
            actions.extend(self.fed(now_ns, &pool, PoolEvent::Cancel { task: *task }));
        }
        for task in &tasks {
            if let Some(device) = running.get(task).copied() {
                self.free(&pool, device);
                self.forget(key, &pool, *task);
                let event = PoolEvent::Finished { device, task: *task };
                actions.extend(self.fed(now_ns, &pool, event));
            }
        }
        actions
    }

    /// A device of the pool can be used.
    pub(super) fn device_up(&mut self, now_ns: u64, pool: &str, device: DeviceKey) -> Actions {
        // One that is there already stays.
        self.feed(now_ns, pool, PoolEvent::DeviceUp { device }).unwrap_or_default()
    }

    /// A device of the pool is gone; what it ran begins anew elsewhere.
    pub(super) fn device_down(&mut self, now_ns: u64, pool: &str, device: DeviceKey) -> Actions {
        self.unrun(pool, device);
        self.feed(now_ns, pool, PoolEvent::DeviceDown { device }).unwrap_or_default()
    }

    /// A device that was reset is back.
    pub(super) fn reset_done(&mut self, now_ns: u64, pool: &str, device: DeviceKey) -> Actions {
        // One that went meanwhile is not.
        self.feed(now_ns, pool, PoolEvent::ResetDone { device }).unwrap_or_default()
    }

    /// The task of a run that counts.
    fn current(&self, key: u32, run: Run) -> Option<(String, TaskKey, Task)> {
        let accelerator = self.accelerators.get(&key)?;
        let task = *accelerator.tasks.get(&run.task)?;
        let state = self.pools.get(&accelerator.pool)?;
        let of = state.tasks.get(&task).filter(|of| of.run == Some(run))?;
        let is_there = state.running.get(&DeviceKey(run.device)) == Some(&task);
        is_there.then(|| (accelerator.pool.clone(), task, *of))
    }

    /// A device runs nothing any more.
    fn free(&mut self, pool: &str, device: DeviceKey) {
        if let Some(state) = self.pools.get_mut(pool) {
            state.running.remove(&device);
        }
    }

    /// A task that ran on a device waits again.
    fn wait(&mut self, pool: &str, device: DeviceKey, task: TaskKey) {
        self.free(pool, device);
        if let Some(task) = self.pools.get_mut(pool).and_then(|state| state.tasks.get_mut(&task)) {
            task.run = None;
        }
    }

    /// What a device ran, if anything, waits again; whose it was.
    fn unrun(&mut self, pool: &str, device: DeviceKey) -> Option<u32> {
        let state = self.pools.get_mut(pool)?;
        let task = state.running.remove(&device)?;
        let of = state.tasks.get_mut(&task)?;
        of.run = None;
        let key = of.accelerator;
        if let Some(accelerator) = self.accelerators.get_mut(&key) {
            accelerator.counts.losses += 1;
        }
        Some(key)
    }

    fn forget(&mut self, key: u32, pool: &str, task: TaskKey) {
        let number = self.pools.get_mut(pool).and_then(|state| state.forget(task));
        if let (Some(of), Some(accelerator)) = (number, self.accelerators.get_mut(&key)) {
            accelerator.tasks.remove(&of.number);
        }
    }

    /// Feeds what cannot be refused: it was checked before.
    fn fed(&mut self, now_ns: u64, pool: &str, event: PoolEvent) -> Actions {
        self.feed(now_ns, pool, event).unwrap_or_else(|error| {
            tracing::error!(pool, ?event, %error, "the pool refuses what happened");
            Vec::new()
        })
    }

    fn feed(&mut self, now_ns: u64, pool: &str, event: PoolEvent) -> Result<Actions, Impossible> {
        let state = self.pools.get_mut(pool).ok_or(Impossible::Unknown)?;
        let mut wanted = Vec::new();
        let result = state.pool.handle(now_ns, event, &mut wanted);
        if let Some(witness) = &mut self.witness {
            let (pool_state, result, actions) =
                (&state.pool, result.as_ref().copied(), &wanted[..]);
            let decision =
                PoolDecision { name: pool, pool: pool_state, now_ns, event, result, actions };
            witness.decided(&decision);
        }
        result?;
        Ok(wanted.into_iter().filter_map(|action| self.translate(pool, action)).collect())
    }

    fn translate(&mut self, pool: &str, action: PoolAction) -> Option<(u32, Action)> {
        let state = self.pools.get_mut(pool)?;
        match action {
            PoolAction::Run { device, task } => {
                self.next_run += 1;
                let of = state.tasks.get_mut(&task)?;
                let run = Run { device: device.0, task: of.number, number: self.next_run };
                of.run = Some(run);
                state.running.insert(device, task);
                let whole_ns_max = state.pool.whole_ns_max(device);
                Some((of.accelerator, Action::Run { run, whole_ns_max }))
            }
            PoolAction::Yield { device, at_ns } => {
                let of = state.tasks.get(state.running.get(&device)?)?;
                Some((of.accelerator, Action::Yield { run: of.run?, at_ns }))
            }
            PoolAction::Reset { device } => {
                let key = self.unrun(pool, device)?;
                if let Some(accelerator) = self.accelerators.get_mut(&key) {
                    accelerator.counts.resets += 1;
                }
                Some((key, Action::Reset { device }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
