//! Pools: what a tenant may say and do to have more than its share, and that it has not.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weft_sched::pool::{Class, Pool, PoolAction, PoolConfig, PoolEvent};
use weft_sched::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

const MS: u64 = 1_000_000;
const USER: Class = Class::UserFacing { sla_ns: 200 * MS };

/// A task on a device.
#[derive(Clone, Copy, Debug)]
struct Run {
    task: TaskKey,
    since_ns: u64,
    stop_ns: u64,
}

/// A task, and what is left of it.
#[derive(Clone, Copy, Debug)]
struct Task {
    vgpu: u32,
    left_ns: u64,
}

/// Devices that do what a pool says, at once.
struct Bench {
    pool: Pool,
    slice_ns: u64,
    now_ns: u64,
    running: BTreeMap<DeviceKey, Run>,
    tasks: BTreeMap<TaskKey, Task>,
    /// Device time of each vGPU's key, in ns, and tasks that ended.
    had_ns: BTreeMap<u32, u64>,
    done: BTreeMap<u32, u32>,
    next: u32,
}

impl Bench {
    fn new(config: PoolConfig, devices: u32) -> Self {
        let mut bench = Self {
            pool: Pool::new(config),
            slice_ns: config.slice_ns,
            now_ns: 0,
            running: BTreeMap::new(),
            tasks: BTreeMap::new(),
            had_ns: BTreeMap::new(),
            done: BTreeMap::new(),
            next: 0,
        };
        (0..devices).for_each(|key| bench.feed(PoolEvent::DeviceUp { device: DeviceKey(key) }));
        bench
    }

    fn add(&mut self, key: u32, tenant: u32, class: Class, weight: u32) {
        let (vgpu, tenant) = (VgpuKey(key), TenantKey(tenant));
        let weight = Weight::new(weight).unwrap();
        self.feed(PoolEvent::AddVgpu { vgpu, tenant, class, weight });
    }

    fn feed(&mut self, event: PoolEvent) {
        let mut actions = Vec::new();
        self.pool.handle(self.now_ns, event, &mut actions).unwrap();
        for action in actions {
            match action {
                PoolAction::Run { device, task } => {
                    let run = Run { task, since_ns: self.now_ns, stop_ns: u64::MAX };
                    assert!(self.running.insert(device, run).is_none());
                }
                PoolAction::Yield { device, at_ns } => {
                    let run = self.running.get_mut(&device).unwrap();
                    let past_ns = at_ns.max(self.now_ns) - run.since_ns;
                    run.stop_ns = run.since_ns + past_ns.next_multiple_of(self.slice_ns);
                }
                PoolAction::Reset { device } => panic!("{device} is reset"),
            }
        }
    }

    fn submit(&mut self, vgpu: u32, length_ns: u64, estimate_ns: u64) -> TaskKey {
        let task = TaskKey(self.next);
        self.next += 1;
        self.tasks.insert(task, Task { vgpu, left_ns: length_ns });
        self.feed(PoolEvent::Submit { task, vgpu: VgpuKey(vgpu), estimate_ns });
        task
    }

    fn outstanding(&self, vgpu: u32) -> usize {
        self.tasks.values().filter(|task| task.vgpu == vgpu).count()
    }

    /// The next end or stop of a run, if it is not after `until_ns`.
    fn step(&mut self, until_ns: u64) -> bool {
        let of = |(device, run): (&DeviceKey, &Run)| {
            let end_ns = run.since_ns.saturating_add(self.tasks[&run.task].left_ns);
            (end_ns.min(run.stop_ns), *device, end_ns <= run.stop_ns)
        };
        let next = self.running.iter().map(of).min().filter(|(at_ns, ..)| *at_ns <= until_ns);
        let Some((at_ns, device, is_done)) = next else {
            self.now_ns = until_ns;
            return false;
        };
        self.now_ns = at_ns;
        let run = self.running.remove(&device).unwrap();
        let (task, used_ns) = (run.task, at_ns - run.since_ns);
        let of = self.tasks.get_mut(&task).unwrap();
        of.left_ns -= used_ns;
        *self.had_ns.entry(of.vgpu).or_default() += used_ns;
        if is_done {
            *self.done.entry(of.vgpu).or_default() += 1;
            self.tasks.remove(&task);
            self.feed(PoolEvent::Finished { device, task });
        } else {
            self.feed(PoolEvent::Stopped { device, task });
        }
        true
    }

    fn pass(&mut self, until_ns: u64) {
        while self.step(until_ns) {}
    }

    fn had_ms(&self, vgpu: u32) -> u64 {
        self.had_ns.get(&vgpu).copied().unwrap_or(0) / MS
    }
}

/// A few tasks with one estimate, then tasks with another: vGPU 0 lies, vGPU 1 says nothing. What
/// each had in 6 s of a device.
fn lies(class: Class, first_ns: u64, later_ns: u64) -> (u64, u64) {
    let mut bench = Bench::new(PoolConfig::default(), 1);
    bench.add(0, 0, class, 1);
    bench.add(1, 1, class, 1);
    for _ in 0..4 {
        bench.submit(0, 10 * MS, first_ns);
    }
    bench.pass(5 * MS);
    loop {
        while bench.outstanding(0) < 4 {
            bench.submit(0, 10 * MS, later_ns);
        }
        while bench.outstanding(1) < 4 {
            bench.submit(1, 10 * MS, 0);
        }
        if !bench.step(6_000 * MS) {
            return (bench.had_ms(0), bench.had_ms(1));
        }
    }
}

#[test]
fn who_says_that_tasks_last_for_36_years_starves_nobody() {
    for class in [Class::Batch, USER] {
        let (liar, other) = lies(class, 1 << 60, 1);
        assert!(other >= 2_800, "{class:?}: {liar} ms, {other} ms");
        let control = lies(class, 0, 0);
        assert!(control.0.abs_diff(control.1) <= 100, "{class:?}: {control:?}");
    }
}

proptest! {
    /// Whatever it says, the other one has its half but for the bound, two quanta of each.
    #[test]
    fn no_estimate_takes_the_other_ones_half(
        first in 0u32..=60,
        later in 0u32..=60,
    ) {
        let (liar, other) = lies(Class::Batch, 1 << first, 1 << later);
        prop_assert!(other >= 2_600, "{liar} ms, {other} ms");
    }
}

#[test]
fn a_long_batch_task_gives_way_to_who_is_owed_more() {
    let mut bench = Bench::new(PoolConfig::default(), 1);
    bench.add(0, 0, Class::Batch, 1);
    bench.add(1, 1, Class::Batch, 100);
    let long = bench.submit(0, 8_000 * MS, 0);
    bench.pass(300 * MS);
    let short = bench.submit(1, 4 * MS, 0);
    // Its quantum is over: the next slice boundary, and the task.
    bench.pass(310 * MS);
    assert!(!bench.tasks.contains_key(&short), "it waits");
    bench.pass(8_004 * MS);
    assert!(!bench.tasks.contains_key(&long), "it does not go on");
}

/// The control: who has had its share is not stopped for another one.
#[test]
fn a_batch_task_does_not_give_way_before_its_quantum_nor_to_who_had_more() {
    let mut bench = Bench::new(PoolConfig::default(), 1);
    bench.add(0, 0, Class::Batch, 1);
    bench.add(1, 1, Class::Batch, 1);
    bench.submit(0, 1_000 * MS, 0);
    let other = bench.submit(1, 10 * MS, 0);
    bench.pass(99 * MS);
    assert!(bench.tasks.contains_key(&other), "a quantum was cut");
    bench.pass(111 * MS);
    assert!(!bench.tasks.contains_key(&other), "it waits for longer than a quantum");
    let again = bench.submit(1, 500 * MS, 0);
    bench.pass(190 * MS);
    // It began level with the long task, which has a quantum again first.
    assert!(bench.tasks[&again].left_ns == 500 * MS, "it had two turns in a row");
}

/// Nothing happens but what the pool said beforehand: who is next is the one that runs.
#[test]
fn an_endless_task_stops_though_its_own_vgpu_is_next() {
    let mut bench = Bench::new(PoolConfig::default(), 1);
    bench.add(0, 0, Class::Batch, 1);
    bench.add(1, 1, Class::Batch, 1);
    let first = bench.submit(1, 250 * MS, 0);
    bench.pass(240 * MS);
    for _ in 0..2 {
        bench.submit(0, u64::MAX / 4, 1);
    }
    let second = bench.submit(1, 20 * MS, 0);
    bench.pass(500 * MS);
    assert!(!bench.tasks.contains_key(&first) && !bench.tasks.contains_key(&second));
}

#[test]
fn an_endless_batch_task_leaves_the_others_their_shares() {
    let mut bench = Bench::new(PoolConfig::default(), 2);
    (0..3).for_each(|key| bench.add(key, key, Class::Batch, 1));
    for _ in 0..4 {
        bench.submit(0, u64::MAX / 4, 0);
    }
    loop {
        for vgpu in 1..3 {
            while bench.outstanding(vgpu) < 2 {
                bench.submit(vgpu, 30 * MS, 0);
            }
        }
        if !bench.step(9_000 * MS) {
            break;
        }
    }
    let had = [1, 2].map(|vgpu| bench.had_ms(vgpu));
    assert!(had.iter().all(|had| *had >= 5_600), "{had:?} of 6,000 each");
}

/// As many endless user-facing tasks as there are devices.
#[test]
fn endless_user_facing_tasks_leave_devices_to_batch_and_to_others_in_time() {
    let config = PoolConfig::default();
    let mut bench = Bench::new(config, 2);
    bench.add(0, 0, USER, 1);
    bench.add(1, 1, Class::Batch, 1);
    bench.add(2, 2, USER, 1);
    for _ in 0..2 {
        bench.submit(0, u64::MAX / 4, MS);
    }
    let batch = bench.submit(1, 50 * MS, 0);
    let bound_ns = config.batch_patience_ns + config.user_quantum_ns + config.slice_ns;
    bench.pass(bound_ns + 50 * MS);
    assert!(!bench.tasks.contains_key(&batch), "batch starves");
    let user = bench.submit(2, 10 * MS, 0);
    bench.pass(bench.now_ns + config.user_quantum_ns + config.slice_ns + 10 * MS);
    assert!(!bench.tasks.contains_key(&user), "another user starves");
}

/// Service of a tenant with three vGPUs and of one with one, in ms.
fn split(by_tenant: bool, class: Class) -> (u64, u64) {
    let slack_ns = 100 * MS;
    let mut bench = Bench::new(PoolConfig { by_tenant, slack_ns, ..PoolConfig::default() }, 1);
    (0..3).for_each(|key| bench.add(key, 1, class, 1));
    bench.add(3, 2, class, 1);
    loop {
        for vgpu in 0..4 {
            while bench.outstanding(vgpu) < 4 {
                bench.submit(vgpu, 10 * MS, 0);
            }
        }
        if !bench.step(10_000 * MS) {
            return ((0..3).map(|vgpu| bench.had_ms(vgpu)).sum(), bench.had_ms(3));
        }
    }
}

#[test]
fn a_tenant_gains_nothing_by_more_vgpus() {
    for class in [Class::Batch, USER] {
        let (three, one) = split(true, class);
        assert!(three.abs_diff(one) <= 300, "{class:?}: {three} ms, {one} ms");
        let (three, one) = split(false, class);
        assert!(three >= 28 * one / 10, "the control: {class:?}: {three} ms, {one} ms");
    }
}

#[test]
fn tenants_share_by_their_weights_from_when_they_are_set() {
    let mut bench = Bench::new(PoolConfig { by_tenant: true, ..PoolConfig::default() }, 1);
    bench.add(0, 7, Class::Batch, 1);
    bench.add(1, 8, Class::Batch, 100);
    bench.feed(PoolEvent::SetTenant { tenant: TenantKey(7), weight: Weight::new(3).unwrap() });
    for vgpu in 0..2 {
        bench.submit(vgpu, u64::MAX / 4, 0);
    }
    bench.pass(20_000 * MS);
    let (heavy, light) = (bench.had_ms(0), bench.had_ms(1));
    assert!((29 * light..=31 * light).contains(&(heavy * 10)), "{heavy} ms, {light} ms");
}

/// What a vGPU does after each of its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    /// It is removed and made anew.
    MadeAnew,
    /// The same, and it is of the other class when it goes.
    LeavesItsClass,
    /// It is of the other class for a moment.
    ChangesItsClass,
}

/// What vGPU 0 of weight 1 has beside one of weight 10, by tenant or not.
fn made_anew(by_tenant: bool, after: After) -> (u64, u64) {
    let mut bench = Bench::new(PoolConfig { by_tenant, ..PoolConfig::default() }, 1);
    bench.add(0, 1, Class::Batch, 1);
    bench.add(1, 2, Class::Batch, 10);
    if by_tenant {
        bench.feed(PoolEvent::SetTenant { tenant: TenantKey(2), weight: Weight::new(10).unwrap() });
    }
    let mut ended = 0;
    loop {
        while bench.outstanding(1) < 4 {
            bench.submit(1, 50 * MS, 0);
        }
        let done = bench.done.get(&0).copied().unwrap_or(0);
        if done > ended {
            ended = done;
            let weight = Weight::ONE;
            let class = |class| PoolEvent::SetVgpu { vgpu: VgpuKey(0), class, weight };
            if matches!(after, After::LeavesItsClass | After::ChangesItsClass) {
                bench.feed(class(USER));
            }
            if matches!(after, After::MadeAnew | After::LeavesItsClass) {
                bench.feed(PoolEvent::RemoveVgpu { vgpu: VgpuKey(0) });
                bench.add(0, 1, Class::Batch, 1);
            }
            if after == After::ChangesItsClass {
                bench.feed(class(Class::Batch));
            }
        }
        while bench.outstanding(0) < 1 {
            bench.submit(0, 50 * MS, 0);
        }
        if !bench.step(22_000 * MS) {
            return (bench.had_ms(0), bench.had_ms(1));
        }
    }
}

#[test]
fn a_vgpu_that_is_made_anew_owes_what_the_one_before_owed() {
    for by_tenant in [false, true] {
        let (stays, _) = made_anew(by_tenant, After::Nothing);
        assert!(stays.abs_diff(2_000) <= 150, "{stays} ms of 2,000");
        for after in [After::MadeAnew, After::LeavesItsClass, After::ChangesItsClass] {
            let (anew, other) = made_anew(by_tenant, after);
            let what = format!("{after:?}, by tenant {by_tenant}");
            assert!(anew <= stays + 100, "{what}: {anew} ms, {other} ms; {stays} ms");
        }
    }
}

/// A debt is not for ever: the others have had as much meanwhile.
#[test]
fn a_debt_ends_when_the_others_have_had_as_much() {
    let mut bench = Bench::new(PoolConfig::default(), 1);
    bench.add(0, 1, Class::Batch, 1);
    bench.add(1, 2, Class::Batch, 1);
    let endless = bench.submit(1, u64::MAX / 4, 0);
    bench.submit(0, 90 * MS, 0);
    while bench.done.is_empty() {
        bench.step(u64::MAX);
    }
    bench.feed(PoolEvent::RemoveVgpu { vgpu: VgpuKey(0) });
    bench.pass(bench.now_ns + 2_000 * MS);
    bench.add(0, 1, Class::Batch, 1);
    let task = bench.submit(0, 20 * MS, 0);
    bench.pass(bench.now_ns + 30 * MS);
    assert!(!bench.tasks.contains_key(&task), "an old debt counts");
    assert!(bench.tasks.contains_key(&endless));
}
