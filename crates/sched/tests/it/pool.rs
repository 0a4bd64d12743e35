//! Pools: invariants of random histories under every policy, and that a broken one is seen.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weft_sched::journal::{PoolReplay, PoolWriter, ReplayError};
use weft_sched::pool::invariants::{Limits, Sharer, Trace, Violation};
use weft_sched::pool::{Class, Pool, PoolAction, PoolConfig, PoolError, PoolEvent, policy};
use weft_sched::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

pub(super) const MS: u64 = 1_000_000;
const LONGEST_BATCH_NS: u64 = 900 * MS;
const LONGEST_USER_NS: u64 = 180 * MS;

/// What a tenant says of a task's length.
#[derive(Clone, Copy, Debug)]
enum Estimate {
    Exact,
    None,
    Lie(u64),
}

impl Estimate {
    fn ns(self, length_ns: u64) -> u64 {
        match self {
            Self::Exact => length_ns,
            Self::None => 0,
            Self::Lie(ns) => ns,
        }
    }
}

/// What a random history does next.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        vgpu: u32,
        permille: u64,
        estimate: Estimate,
    },
    Pass {
        ms: u64,
    },
    Down {
        device: u32,
    },
    Up {
        device: u32,
    },
    Lose {
        device: u32,
    },
    Cancel {
        place: usize,
    },
    Reweight {
        vgpu: u32,
        weight: u32,
    },
    /// User-facing becomes batch and the other way round.
    Reclass {
        vgpu: u32,
    },
    Restart,
}

fn honest() -> BoxedStrategy<Estimate> {
    prop_oneof![Just(Estimate::Exact), Just(Estimate::None)].boxed()
}

/// 1 ns to 36 years.
fn any_estimate() -> BoxedStrategy<Estimate> {
    let lie = (0u32..=60).prop_map(|bits| Estimate::Lie(1 << bits));
    prop_oneof![1 => honest(), 2 => lie].boxed()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    steps_with(honest())
}

fn steps_with(estimate: BoxedStrategy<Estimate>) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u32..6, 1u64..=1_000, estimate)
            .prop_map(|(vgpu, permille, estimate)| Step::Submit { vgpu, permille, estimate }),
        6 => (1u64..400).prop_map(|ms| Step::Pass { ms }),
        1 => (0u32..4).prop_map(|device| Step::Down { device }),
        2 => (0u32..4).prop_map(|device| Step::Up { device }),
        1 => (0u32..4).prop_map(|device| Step::Lose { device }),
        2 => (0usize..40).prop_map(|place| Step::Cancel { place }),
        1 => (0u32..6, 1u32..=4)
            .prop_map(|(vgpu, weight)| Step::Reweight { vgpu, weight }),
        1 => (0u32..6).prop_map(|vgpu| Step::Reclass { vgpu }),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..120)
}

/// When a device's task ends; told to yield, when it stops; or when a reset is over.
#[derive(Clone, Copy, Debug)]
enum Busy {
    Runs { task: TaskKey, since_ns: u64, end_ns: u64, stop_ns: Option<u64> },
    Resets { end_ns: u64 },
}

impl Busy {
    fn next_ns(&self) -> u64 {
        match *self {
            Self::Runs { end_ns, stop_ns, .. } => stop_ns.map_or(end_ns, |stop| stop.min(end_ns)),
            Self::Resets { end_ns } => end_ns,
        }
    }
}

/// Devices that do what the pool says.
struct Driver {
    pool: Pool,
    config: PoolConfig,
    trace: Trace,
    now_ns: u64,
    busy: BTreeMap<DeviceKey, Busy>,
    up: Vec<bool>,
    /// What is left of each task, and its whole length.
    tasks: BTreeMap<TaskKey, (u64, u64)>,
    /// What each vGPU is owed.
    vgpus: Vec<(Class, Weight)>,
    next: u32,
    done: u32,
    journal: Vec<u8>,
    writer: PoolWriter,
}

const USER: Class = Class::UserFacing { sla_ns: 200 * MS };

impl Driver {
    fn new(config: PoolConfig, limits: Limits) -> Self {
        let (pool, mut journal) = (Pool::new(config), Vec::new());
        let mut driver = Self {
            writer: PoolWriter::begin(&pool, &mut journal),
            journal,
            pool,
            config,
            trace: Trace::new(limits),
            now_ns: 0,
            busy: BTreeMap::new(),
            up: vec![true; 4],
            tasks: BTreeMap::new(),
            vgpus: Vec::new(),
            next: 0,
            done: 0,
        };
        for key in 0..6 {
            let class = if key < 3 { USER } else { Class::Batch };
            let weight = Weight::new(key % 3 + 1).unwrap();
            driver.vgpus.push((class, weight));
            let (vgpu, tenant) = (VgpuKey(key), TenantKey(key % 2));
            driver.feed(PoolEvent::AddVgpu { vgpu, tenant, class, weight });
        }
        (0..4).for_each(|key| driver.feed(PoolEvent::DeviceUp { device: DeviceKey(key) }));
        driver
    }

    fn feed(&mut self, event: PoolEvent) {
        let mut actions = Vec::new();
        self.pool.handle(self.now_ns, event, &mut actions).unwrap();
        self.writer.record(self.now_ns, &event, Ok(()), &actions, &mut self.journal);
        if let Err(broken) = self.trace.step(self.now_ns, &event, &actions) {
            panic!("{broken} after {event:?} and {actions:?}");
        }
        for action in actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: PoolAction) {
        match action {
            PoolAction::Run { device, task } => {
                let end_ns = self.now_ns + self.tasks[&task].0;
                let runs = Busy::Runs { task, since_ns: self.now_ns, end_ns, stop_ns: None };
                assert!(self.busy.insert(device, runs).is_none());
            }
            PoolAction::Yield { device, at_ns } => {
                let slice_ns = self.config.slice_ns;
                let Some(Busy::Runs { since_ns, stop_ns, .. }) = self.busy.get_mut(&device) else {
                    panic!("{device} yields and runs nothing");
                };
                let past_ns = at_ns.max(self.now_ns) - *since_ns;
                *stop_ns = Some(*since_ns + past_ns.next_multiple_of(slice_ns));
            }
            PoolAction::Reset { device } => {
                let Some(Busy::Runs { task, .. }) = self.busy.get(&device).copied() else {
                    panic!("{device} is reset and runs nothing");
                };
                self.begin_anew(task);
                let end_ns = self.now_ns + self.config.reset_ns;
                self.busy.insert(device, Busy::Resets { end_ns });
            }
        }
    }

    fn begin_anew(&mut self, task: TaskKey) {
        let of = self.tasks.get_mut(&task).unwrap();
        of.0 = of.1;
    }

    fn pass(&mut self, until_ns: u64) {
        while let Some((device, busy)) = self
            .busy
            .iter()
            .map(|(device, busy)| (*device, *busy))
            .min_by_key(|(_, busy)| busy.next_ns())
            .filter(|(_, busy)| busy.next_ns() <= until_ns)
        {
            self.now_ns = busy.next_ns();
            self.busy.remove(&device);
            match busy {
                Busy::Resets { .. } => self.feed(PoolEvent::ResetDone { device }),
                Busy::Runs { task, end_ns, .. } if self.now_ns == end_ns => {
                    self.tasks.remove(&task);
                    self.done += 1;
                    self.feed(PoolEvent::Finished { device, task });
                }
                Busy::Runs { task, since_ns, .. } => {
                    let used_ns = self.now_ns - since_ns;
                    self.tasks.get_mut(&task).unwrap().0 -= used_ns;
                    self.feed(PoolEvent::Stopped { device, task });
                }
            }
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Submit { vgpu, permille, estimate } => {
                let longest_ns = if vgpu < 3 { LONGEST_USER_NS } else { LONGEST_BATCH_NS };
                self.submit(vgpu, longest_ns / 1_000 * permille, estimate);
            }
            Step::Pass { ms } => self.pass(self.now_ns + ms * MS),
            Step::Down { device } => self.down(device),
            Step::Up { device } => {
                if !std::mem::replace(&mut self.up[device as usize], true) {
                    self.feed(PoolEvent::DeviceUp { device: DeviceKey(device) });
                }
            }
            Step::Lose { device } => self.lose(DeviceKey(device)),
            Step::Cancel { place } => self.cancel(place),
            Step::Reweight { vgpu, weight } => {
                self.vgpus[vgpu as usize].1 = Weight::new(weight).unwrap();
                self.set(vgpu);
            }
            Step::Reclass { vgpu } => {
                let class = &mut self.vgpus[vgpu as usize].0;
                *class = if *class == Class::Batch { USER } else { Class::Batch };
                self.set(vgpu);
            }
            Step::Restart => {
                let bytes = self.pool.snapshot();
                self.pool = Pool::restore(&bytes).unwrap();
                assert_eq!(self.pool.snapshot(), bytes);
            }
        }
    }

    fn submit(&mut self, vgpu: u32, length_ns: u64, estimate: Estimate) -> TaskKey {
        let task = TaskKey(self.next);
        self.next += 1;
        self.tasks.insert(task, (length_ns, length_ns));
        let estimate_ns = estimate.ns(length_ns);
        self.feed(PoolEvent::Submit { task, vgpu: VgpuKey(vgpu), estimate_ns });
        task
    }

    fn set(&mut self, vgpu: u32) {
        let (class, weight) = self.vgpus[vgpu as usize];
        self.feed(PoolEvent::SetVgpu { vgpu: VgpuKey(vgpu), class, weight });
    }

    fn down(&mut self, device: u32) {
        if !std::mem::replace(&mut self.up[device as usize], false) {
            return;
        }
        if let Some(Busy::Runs { task, .. }) = self.busy.remove(&DeviceKey(device)) {
            self.begin_anew(task);
        }
        self.feed(PoolEvent::DeviceDown { device: DeviceKey(device) });
    }

    /// The worker dies; the device is well.
    fn lose(&mut self, device: DeviceKey) {
        if let Some(Busy::Runs { task, .. }) = self.busy.get(&device).copied() {
            self.busy.remove(&device);
            self.begin_anew(task);
            self.feed(PoolEvent::Lost { device, task });
        }
    }

    /// One of those that wait is taken back.
    fn cancel(&mut self, place: usize) {
        let runs = |task: &TaskKey| {
            self.busy.values().any(|busy| matches!(busy, Busy::Runs { task: of, .. } if of == task))
        };
        let waiting: Vec<TaskKey> = self.tasks.keys().copied().filter(|task| !runs(task)).collect();
        if let Some(task) = waiting.get(place % waiting.len().max(1)).copied() {
            self.tasks.remove(&task);
            self.done += 1;
            self.feed(PoolEvent::Cancel { task });
        }
    }

    /// Every device is there; everything is done in time.
    fn end(mut self) {
        for device in 0..4 {
            self.step(&Step::Up { device });
        }
        self.pass(self.now_ns + 3_600_000 * MS);
        assert_eq!(self.done, self.next, "tasks are left");
        self.trace.end().unwrap();
    }
}

pub(super) fn config(name: &str, reserved: u32, reset: bool) -> PoolConfig {
    let policy = policy::by_name(name).unwrap();
    PoolConfig { policy, reserved, reset, ..PoolConfig::default() }
}

/// What `deadline` promises; the lag of user-facing vGPUs is allowed so many times.
fn bounds(by_tenant: bool, lags: u64) -> Limits {
    let config = config("deadline", 0, false);
    // A slice beyond its quantum a batch run goes on, and no longer while others are owed more.
    let longest_ns = config.batch_turn_ns();
    let user_ns = if lags == 1 { LONGEST_USER_NS } else { config.user_quantum_ns };
    Limits {
        batch_wait_ns: Some(config.batch_patience_ns + LONGEST_USER_NS),
        is_work_conserving: true,
        lag_longest_ns: Some(longest_ns),
        turn_longest_ns: (!by_tenant).then_some(longest_ns),
        user_lag_ns: Some((lags * user_ns, config.slack_ns)),
        by_tenant,
    }
}

fn keep(config: PoolConfig, limits: Limits, steps: &[Step]) {
    let mut driver = Driver::new(config, limits);
    let stays =
        |step: &&Step| !matches!(step, Step::Down { .. } | Step::Up { .. } | Step::Reclass { .. });
    steps.iter().filter(stays).for_each(|step| driver.step(step));
    driver.end();
}

proptest! {
    #[test]
    fn every_task_runs_once_under_every_policy(
        steps in steps(),
        place in 0..policy::NAMES.len(),
        reserved in 0u32..4,
        reset in any::<bool>(),
    ) {
        let name = policy::NAMES[place];
        // Flexy keeps devices free; K of all devices would leave batch none.
        let is_work_conserving =
            !matches!(name, "flexy" | "adaptive") && (name != "priority" || reserved == 0);
        let limits = Limits { is_work_conserving, ..Limits::default() };
        let mut driver = Driver::new(config(name, reserved, reset), limits);
        for step in &steps {
            driver.step(step);
        }
        driver.end();
    }

    /// With devices and classes that stay, and so with a bound.
    #[test]
    fn deadline_keeps_its_bounds(steps in steps(), by_tenant in any::<bool>()) {
        let limits = bounds(by_tenant, 1);
        keep(PoolConfig { by_tenant, ..config("deadline", 0, false) }, limits, &steps);
    }

    /// A user-facing lie may cost who says it as much again, and others nothing.
    #[test]
    fn no_estimate_breaks_the_bounds(
        steps in steps_with(any_estimate()),
        by_tenant in any::<bool>(),
    ) {
        let limits = bounds(by_tenant, 2);
        keep(PoolConfig { by_tenant, ..config("deadline", 0, false) }, limits, &steps);
    }

    /// A pool that was restored from bytes answers as the one that they are of.
    #[test]
    fn the_same_events_give_the_same_actions(steps in steps(), place in 0..policy::NAMES.len()) {
        let name = policy::NAMES[place];
        let run = |restarts: bool| {
            let mut driver = Driver::new(config(name, 1, false), Limits::default());
            for step in &steps {
                if restarts || !matches!(step, Step::Restart) {
                    driver.step(step);
                }
            }
            driver.pool.snapshot()
        };
        prop_assert_eq!(run(true), run(false));
    }

    /// A journal of what a pool did replays, and where a pool does something else it is named.
    #[test]
    fn a_pool_replays(steps in steps(), place in 0..policy::NAMES.len(), reset in any::<bool>()) {
        let mut driver = Driver::new(config(policy::NAMES[place], 1, reset), Limits::default());
        for step in &steps {
            driver.step(step);
        }
        let mut replay = PoolReplay::new(&driver.journal).unwrap();
        let summary = replay.run().unwrap();
        prop_assert!(!summary.cut && summary.records >= 10);
        prop_assert_eq!(replay.pool().snapshot(), driver.pool.snapshot());

        let task = TaskKey(driver.next);
        let event = PoolEvent::Submit { task, vgpu: VgpuKey(0), estimate_ns: 0 };
        let invented = PoolAction::Reset { device: DeviceKey(77) };
        driver.writer.record(driver.now_ns, &event, Ok(()), &[invented], &mut driver.journal);
        let error = PoolReplay::new(&driver.journal).unwrap().run().unwrap_err();
        let ReplayError::PoolDiffers(difference) = error else { panic!("{error}") };
        prop_assert_eq!(difference.record.number, summary.records);
        prop_assert_eq!(difference.record.actions, Some(vec![invented]));
    }

    /// Damage is an error or another journal, never a crash.
    #[test]
    fn a_damaged_pool_journal_never_crashes(
        steps in steps(), at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let mut driver = Driver::new(config("deadline", 0, false), Limits::default());
        for step in &steps {
            driver.step(step);
        }
        let at = at.index(driver.journal.len());
        let cut = PoolReplay::new(&driver.journal[..at]).map(|mut replay| replay.run());
        prop_assert!(!matches!(cut, Ok(Err(_))), "{cut:?}");
        driver.journal[at] ^= 1 << bit;
        if let Ok(mut replay) = PoolReplay::new(&driver.journal) {
            let _ = replay.run();
        }
    }

    #[test]
    fn bytes_that_are_no_snapshot_are_refused_or_a_pool(
        bytes in prop::collection::vec(any::<u8>(), 0..200)
    ) {
        if let Ok(pool) = Pool::restore(&bytes) {
            prop_assert!(!pool.snapshot().is_empty());
        }
    }
}

/// A pool with a device, a user-facing vGPU 0 and a batch vGPU 1, and its trace.
fn small(limits: Limits) -> Trace {
    let mut trace = Trace::new(limits);
    let class = Class::UserFacing { sla_ns: 200 * MS };
    let events = [
        PoolEvent::DeviceUp { device: DeviceKey(0) },
        add(0, class, 1),
        add(1, Class::Batch, 1),
        add(2, Class::Batch, 1),
    ];
    events.iter().for_each(|event| trace.step(0, event, &[]).unwrap());
    trace
}

/// A vGPU of a tenant of its own.
fn add(key: u32, class: Class, weight: u32) -> PoolEvent {
    let (vgpu, tenant) = (VgpuKey(key), TenantKey(key));
    PoolEvent::AddVgpu { vgpu, tenant, class, weight: Weight::new(weight).unwrap() }
}

pub(super) fn submit(task: u32, vgpu: u32) -> PoolEvent {
    PoolEvent::Submit { task: TaskKey(task), vgpu: VgpuKey(vgpu), estimate_ns: 0 }
}

pub(super) fn runs(task: u32) -> PoolAction {
    PoolAction::Run { device: DeviceKey(0), task: TaskKey(task) }
}

pub(super) fn finished(task: u32) -> PoolEvent {
    PoolEvent::Finished { device: DeviceKey(0), task: TaskKey(task) }
}

#[test]
fn a_task_that_runs_twice_is_seen() {
    let mut trace = small(Limits::default());
    trace.step(0, &submit(0, 0), &[runs(0)]).unwrap();
    trace.step(MS, &submit(1, 0), &[]).unwrap();
    let broken = trace.step(2 * MS, &finished(0), &[runs(0)]);
    assert_eq!(broken, Err(Violation::Runs { task: TaskKey(0) }));
}

#[test]
fn a_busy_device_that_is_given_a_task_is_seen() {
    let mut trace = small(Limits::default());
    trace.step(0, &submit(0, 0), &[runs(0)]).unwrap();
    let broken = trace.step(MS, &submit(1, 0), &[runs(1)]);
    assert_eq!(broken, Err(Violation::Device { device: DeviceKey(0) }));
}

#[test]
fn a_task_that_is_lost_with_its_device_is_seen() {
    let mut trace = small(Limits::default());
    trace.step(0, &submit(0, 0), &[runs(0)]).unwrap();
    trace.step(MS, &PoolEvent::DeviceDown { device: DeviceKey(0) }, &[]).unwrap();
    assert_eq!(trace.end(), Err(Violation::Lost { task: TaskKey(0) }));
}

#[test]
fn a_free_device_beside_a_task_is_seen() {
    let mut trace = small(Limits { is_work_conserving: true, ..Limits::default() });
    let broken = trace.step(0, &submit(0, 0), &[]);
    assert_eq!(broken, Err(Violation::Idle { device: DeviceKey(0), task: TaskKey(0) }));
}

#[test]
fn a_starving_batch_task_is_seen() {
    let mut trace = small(Limits { batch_wait_ns: Some(5 * MS), ..Limits::default() });
    trace.step(0, &submit(0, 0), &[runs(0)]).unwrap();
    trace.step(0, &submit(1, 1), &[]).unwrap();
    trace.step(5 * MS, &submit(2, 0), &[]).unwrap();
    let broken = trace.step(6 * MS, &submit(3, 0), &[]);
    assert_eq!(broken, Err(Violation::BatchWait { waited_ns: 6 * MS }));
}

#[test]
fn a_vgpu_that_has_all_the_service_is_seen() {
    let mut trace = small(Limits { lag_longest_ns: Some(MS), ..Limits::default() });
    trace.step(0, &submit(0, 1), &[runs(0)]).unwrap();
    trace.step(0, &submit(1, 1), &[]).unwrap();
    trace.step(0, &submit(2, 2), &[]).unwrap();
    // Each may be two tasks of 1 ms ahead.
    trace.step(4 * MS, &submit(3, 1), &[]).unwrap();
    let broken = trace.step(5 * MS, &submit(4, 1), &[]);
    let (ahead, behind) = (Sharer::Vgpu(VgpuKey(1)), Sharer::Vgpu(VgpuKey(2)));
    let lag = Violation::Lag { ahead, behind, lag_ns: 5 * MS, bound_ns: 4 * MS };
    assert_eq!(broken, Err(lag));
}

/// Who comes meanwhile counts, who went before does not.
#[test]
fn a_batch_vgpu_that_waits_while_another_has_all_is_seen() {
    let mut trace = small(Limits { turn_longest_ns: Some(MS), ..Limits::default() });
    trace.step(0, &submit(0, 1), &[runs(0)]).unwrap();
    trace.step(0, &submit(1, 2), &[]).unwrap();
    // One other of the same weight on one device: two turns, twice.
    trace.step(4 * MS, &submit(2, 1), &[]).unwrap();
    assert_eq!(trace.turn_share_permille(), 1_000);
    let broken = trace.step(5 * MS, &submit(3, 1), &[]);
    let (served_ns, bound_ns) = (5 * MS, 4 * MS);
    assert_eq!(broken, Err(Violation::TurnWait { vgpu: VgpuKey(2), served_ns, bound_ns }));
    trace.step(5 * MS, &add(3, Class::Batch, 1), &[]).unwrap_err();
    trace.step(5 * MS, &submit(4, 3), &[]).unwrap();
    assert_eq!(trace.turn_share_permille(), 1_250);
}

/// The checker is of use: plain priority starves batch tasks and it says so.
#[test]
fn priority_starves_batch_tasks_and_is_caught() {
    let limits = Limits { batch_wait_ns: Some(1_200 * MS), ..Limits::default() };
    let caught = std::panic::catch_unwind(move || {
        let mut driver = Driver::new(config("priority", 0, false), limits);
        for _ in 0..100 {
            driver.step(&Step::Submit { vgpu: 0, permille: 1_000, estimate: Estimate::Exact });
        }
        driver.step(&Step::Submit { vgpu: 3, permille: 1_000, estimate: Estimate::Exact });
        driver.end();
    });
    let panic = caught.expect_err("nothing was seen");
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.starts_with("batch tasks waited"), "{said}");
}

/// Three user-facing vGPUs of weights 1, 2 and 3 that keep 16 tasks of `length_ns` outstanding for
/// two minutes on four devices: the service of each per weight.
fn overload(config: PoolConfig, length_ns: u64) -> Vec<u64> {
    let limits = Limits {
        is_work_conserving: true,
        user_lag_ns: Some((LONGEST_USER_NS, config.slack_ns)),
        ..Limits::default()
    };
    let mut driver = Driver::new(config, limits);
    let permille = length_ns * 1_000 / LONGEST_USER_NS;
    let mut outstanding: Vec<(TaskKey, u32)> = Vec::new();
    let mut served = [0; 3];
    for _ in 0..6_000 {
        outstanding.retain(|(task, vgpu)| {
            let is_there = driver.tasks.contains_key(task);
            served[*vgpu as usize] += if is_there { 0 } else { length_ns };
            is_there
        });
        for vgpu in 0..3 {
            let have = outstanding.iter().filter(|(_, of)| *of == vgpu).count();
            for _ in have..16 {
                outstanding.push((TaskKey(driver.next), vgpu));
                driver.step(&Step::Submit { vgpu, permille, estimate: Estimate::Exact });
            }
        }
        driver.step(&Step::Pass { ms: 20 });
    }
    served.iter().zip(1..).map(|(ns, weight)| ns / weight).collect()
}

/// Most tasks are late here. A policy that forgets whose tasks are late gives every vGPU alike.
#[test]
fn weights_hold_among_user_facing_vgpus_when_most_tasks_are_late() {
    let served = overload(config("deadline", 0, false), 54 * MS);
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(least * 100 >= most * 95, "{served:?}");
}

/// Service of two batch vGPUs of weight 2 that keep 8 tasks outstanding for two minutes, of which
/// the first has its weights set at every look.
fn flipped(weights: &[u32]) -> (u64, u64) {
    let mut driver = Driver::new(config("deadline", 0, false), Limits::default());
    let set = |driver: &mut Driver, vgpu, weight| driver.step(&Step::Reweight { vgpu, weight });
    set(&mut driver, 3, 2);
    set(&mut driver, 4, 2);
    let mut outstanding: Vec<(TaskKey, u32)> = Vec::new();
    let mut served = [0; 2];
    for _ in 0..1_200 {
        outstanding.retain(|(task, vgpu)| {
            let is_there = driver.tasks.contains_key(task);
            served[*vgpu as usize - 3] += u64::from(!is_there);
            is_there
        });
        for vgpu in 3..5 {
            let have = outstanding.iter().filter(|(_, of)| *of == vgpu).count();
            for _ in have..8 {
                outstanding.push((TaskKey(driver.next), vgpu));
                driver.step(&Step::Submit { vgpu, permille: 200, estimate: Estimate::Exact });
            }
        }
        weights.iter().for_each(|weight| set(&mut driver, 3, *weight));
        driver.step(&Step::Pass { ms: 100 });
    }
    (served[0], served[1])
}

#[test]
fn a_weight_that_is_flipped_and_put_back_wins_nothing() {
    for weights in [&[2][..], &[1, 2], &[4, 2], &[4, 1, 3, 2]] {
        let (one, other) = flipped(weights);
        assert!(one * 100 <= other * 102, "{weights:?}: {one} {other}");
        assert!(one * 100 >= other * 90, "{weights:?}: {one} {other}");
    }
}

/// The control: a weight that stays is worth something.
#[test]
fn a_weight_that_is_raised_counts() {
    let (one, other) = flipped(&[4]);
    assert!(one * 100 >= other * 190 && one * 100 <= other * 210, "{one} {other}");
}

/// The control: with a slack that nothing reaches weights do not hold.
#[test]
fn without_a_slack_weights_do_not_hold() {
    let endless = PoolConfig { slack_ns: 1 << 60, ..config("deadline", 0, false) };
    let served = overload(endless, 54 * MS);
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(least * 100 < most * 80, "{served:?}");
}

#[test]
fn the_first_devices_that_are_up_are_reserved_and_never_all() {
    let batch = |reserved, keys: std::ops::Range<u32>| {
        let mut pool = pool(config("priority", reserved, false), 0);
        for key in keys {
            feed(&mut pool, 0, PoolEvent::DeviceUp { device: DeviceKey(key) });
        }
        (0..8).map(|task| feed(&mut pool, 0, submit(task, 1)).len()).sum::<usize>()
    };
    assert_eq!(batch(0, 4..8), 4);
    assert_eq!(batch(1, 4..8), 3, "a device with a key above K is not reserved");
    assert_eq!(batch(4, 4..8), 1, "batch tasks have no device");
    assert_eq!(batch(1, 4..5), 1);
}

#[test]
fn flexy_leaves_batch_tasks_a_device_when_k_is_too_large() {
    let mut pool = pool(config("flexy", 4, false), 4);
    assert_eq!(feed(&mut pool, 0, submit(0, 1)).len(), 1);
}

/// Nothing ends while a user-facing task waits behind batch ones: K must grow all the same.
#[test]
fn adaptive_takes_an_outage_for_late() {
    let mut pool = pool(config("adaptive", 0, false), 4);
    (0..4).for_each(|task| assert_eq!(feed(&mut pool, 0, submit(task, 1)).len(), 1));
    assert_eq!(feed(&mut pool, MS, submit(4, 0)), []);
    feed(&mut pool, 3_000 * MS, submit(5, 1));
    assert_eq!(pool.user_devices(), 3);
}

#[test]
fn a_user_facing_vgpu_that_has_all_the_service_is_seen() {
    let limits = Limits { user_lag_ns: Some((MS, 2 * MS)), ..Limits::default() };
    let mut trace = small(limits);
    let class = Class::UserFacing { sla_ns: 200 * MS };
    trace.step(0, &add(3, class, 1), &[]).unwrap();
    trace.step(0, &submit(0, 0), &[runs(0)]).unwrap();
    trace.step(0, &submit(1, 0), &[]).unwrap();
    trace.step(0, &submit(2, 3), &[]).unwrap();
    // Two tasks of 1 ms and the slack of each.
    trace.step(8 * MS, &submit(3, 0), &[]).unwrap();
    let broken = trace.step(9 * MS, &submit(4, 0), &[]);
    let (ahead, behind) = (Sharer::Vgpu(VgpuKey(0)), Sharer::Vgpu(VgpuKey(3)));
    let lag = Violation::Lag { ahead, behind, lag_ns: 9 * MS, bound_ns: 8 * MS };
    assert_eq!(broken, Err(lag));
}

pub(super) fn feed(pool: &mut Pool, now_ns: u64, event: PoolEvent) -> Vec<PoolAction> {
    let mut actions = Vec::new();
    pool.handle(now_ns, event, &mut actions).unwrap();
    actions
}

pub(super) fn pool(config: PoolConfig, devices: u32) -> Pool {
    let mut pool = Pool::new(config);
    feed(&mut pool, 0, add(0, USER, 1));
    feed(&mut pool, 0, add(1, Class::Batch, 1));
    for key in 0..devices {
        feed(&mut pool, 0, PoolEvent::DeviceUp { device: DeviceKey(key) });
    }
    pool
}

#[test]
fn deadline_stops_a_batch_task_at_its_next_slice_and_goes_on_with_it() {
    let mut pool = pool(config("deadline", 0, false), 1);
    assert_eq!(feed(&mut pool, 0, submit(0, 1)), [runs(0)]);
    let yields = PoolAction::Yield { device: DeviceKey(0), at_ns: 10 * MS };
    assert_eq!(feed(&mut pool, 7 * MS, submit(1, 0)), [yields]);
    let (device, task) = (DeviceKey(0), TaskKey(0));
    let stopped = PoolEvent::Stopped { device, task };
    // A user-facing task that is longer than its quantum does not keep batch tasks waiting.
    let yields = PoolAction::Yield { device, at_ns: 1_010 * MS };
    assert_eq!(feed(&mut pool, 10 * MS, stopped), [runs(1), yields]);
    assert_eq!(feed(&mut pool, 30 * MS, finished(1)), [runs(0)]);
}

#[test]
fn flexy_keeps_the_devices_that_algorithm_1_says() {
    let mut pool = pool(PoolConfig { recent: 4, ..config("flexy", 1, false) }, 3);
    // K = 1: one free device is kept from batch tasks.
    assert_eq!(feed(&mut pool, 0, submit(0, 1)).len(), 1);
    assert_eq!(feed(&mut pool, 0, submit(1, 1)).len(), 1);
    assert_eq!(feed(&mut pool, 0, submit(2, 1)), []);
    assert_eq!(feed(&mut pool, 0, submit(3, 0)), [runs(3)]);
}

#[test]
fn a_reset_spares_what_ends_before_it() {
    let mut reset = pool(config("priority", 0, true), 1);
    let long = |estimate_ns| PoolEvent::Submit { task: TaskKey(0), vgpu: VgpuKey(1), estimate_ns };
    feed(&mut reset, 0, long(2_000 * MS));
    let device = DeviceKey(0);
    assert_eq!(feed(&mut reset, 0, submit(1, 0)), [PoolAction::Reset { device }]);
    assert_eq!(feed(&mut reset, 1_000 * MS, PoolEvent::ResetDone { device }), [runs(1)]);
    assert_eq!(reset.resets(), 1);
    let mut spared = pool(config("priority", 0, true), 1);
    feed(&mut spared, 0, long(900 * MS));
    assert_eq!(feed(&mut spared, 0, submit(1, 0)), []);
}

#[test]
fn an_event_that_cannot_be_is_refused_and_changes_nothing() {
    let mut pool = pool(config("deadline", 0, false), 1);
    feed(&mut pool, 0, submit(0, 1));
    let before = pool.snapshot();
    let device = DeviceKey(0);
    let refused = [
        (PoolEvent::DeviceUp { device }, PoolError::Taken("d0".into())),
        (submit(0, 1), PoolError::Taken("k0".into())),
        (submit(1, 9), PoolError::Unknown("v9".into())),
        (finished(7), PoolError::NotThere { device }),
        (PoolEvent::ResetDone { device }, PoolError::NotThere { device }),
        (PoolEvent::RemoveVgpu { vgpu: VgpuKey(1) }, PoolError::Busy { vgpu: VgpuKey(1) }),
        (
            PoolEvent::SetVgpu { vgpu: VgpuKey(9), class: Class::Batch, weight: Weight::ONE },
            PoolError::Unknown("v9".into()),
        ),
        (PoolEvent::DeviceDown { device: DeviceKey(5) }, PoolError::Unknown("d5".into())),
    ];
    for (event, error) in refused {
        assert_eq!(pool.handle(9, event, &mut Vec::new()), Err(error));
    }
    assert_eq!(pool.snapshot(), before);
}
