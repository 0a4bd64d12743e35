//! Pools whose policy resets: a batch task in the way is killed with its session and begins anew.

use std::collections::BTreeSet;

use weft_node::admin::{AcceleratorReport, TaskCounts, VgpuState};
use weft_tasks::{Accelerator, Module, Pending};

use crate::support::eventually;
use crate::tasks::{Pool, count, expect_once};

/// Blocks of a batch task: 2 s.
const LONG: u32 = 10_000;

/// A pool with an accelerator of each class.
struct Contest {
    pool: Pool,
    batch: (Accelerator, Module),
    user: (Accelerator, Module),
}

impl Contest {
    fn start(devices: usize, settings: &[&str]) -> Self {
        let pool = Pool::start(devices, settings);
        let (batch, user) = (pool.loaded("batch", &[]), pool.loaded("user", &["--sla", "200ms"]));
        Self { pool, batch, user }
    }

    fn report(&self, name: &str) -> AcceleratorReport {
        self.pool.report(name)
    }

    /// What the daemon counts when it has heard of the end of that many tasks: whoever submitted
    /// them may hear of it first.
    fn ended(&self, name: &str, done: u64) -> TaskCounts {
        let what = format!("{done} tasks of `{name}` to be counted as done");
        self.pool.wait_for(name, &what, |report| report.tasks.done >= done);
        self.report(name).tasks
    }

    /// Long batch tasks on both devices, and one that waits. Their time is said beforehand: what
    /// would soon end is not reset.
    fn occupy(&self) -> Vec<Pending> {
        let long = || submit(&self.batch, LONG, 2_000_000_000);
        let pending = (0..3).map(|_| long()).collect();
        // What is on a device and has not begun there would not be a run more.
        eventually("two batch tasks to have the devices", || {
            let stats = self.pool.node.admin().stats().unwrap();
            let own = stats.vgpus.iter().filter(|vgpu| vgpu.name.starts_with("batch@"));
            own.filter(|vgpu| vgpu.state == VgpuState::Running).count() == 2
        });
        pending
    }
}

fn submit((accelerator, module): &(Accelerator, Module), blocks: u32, estimate_ns: u64) -> Pending {
    accelerator.submit(&count(module, blocks).estimate_ns(estimate_ns)).unwrap()
}

/// Under a policy that resets: the user-facing task does not wait for a batch task, whose session
/// dies, and which is right all the same.
#[track_caller]
fn expect_reset(policy: &str) {
    let policy = format!("pool.p.policy={policy}");
    let contest = Contest::start(2, &[&policy, "pool.p.reset=true", "pool.p.reset_ms=20"]);
    let long = contest.occupy();
    let workers: BTreeSet<u32> = contest.pool.node.workers().into_iter().collect();
    expect_once(&submit(&contest.user, 5, 1_000_000));
    assert!(long.iter().all(|pending| pending.poll().is_none()), "it waited for a batch task");
    eventually("the killed session's worker to be gone", || {
        let now: BTreeSet<u32> = contest.pool.node.workers().into_iter().collect();
        !workers.is_subset(&now)
    });
    let runs: u64 = long.iter().map(|pending| u64::from(expect_once(pending).runs())).sum();
    let tasks = contest.ended("batch", 3);
    assert!(tasks.resets >= 1, "{tasks:?}");
    assert_eq!((tasks.stops, tasks.losses, tasks.failed), (0, tasks.resets, 0), "{tasks:?}");
    assert_eq!((tasks.done, runs), (3, 3 + tasks.resets), "each reset is one run more: {tasks:?}");
    assert_eq!(contest.report("user").tasks.resets, 0, "user-facing tasks are not reset");
}

#[test]
fn priority_with_resets_kills_what_is_in_the_way_and_it_begins_again() {
    expect_reset("priority");
}

#[test]
fn flexy_with_resets_kills_what_is_in_the_way_and_it_begins_again() {
    expect_reset("flexy");
}

/// A task that is reset again and again is not taken for one that kills its sessions.
#[test]
fn a_task_may_be_reset_any_number_of_times() {
    const TIMES: u64 = 6;
    let settings = ["pool.p.policy=priority", "pool.p.reset=true", "pool.p.reset_ms=20"];
    let contest = Contest::start(1, &settings);
    let long = submit(&contest.batch, LONG, 2_000_000_000);
    for time in 0..TIMES {
        eventually("the batch task to run", || contest.report("batch").tasks.running == 1);
        expect_once(&submit(&contest.user, 5, 1_000_000));
        assert_eq!(contest.report("batch").tasks.resets, time + 1);
    }
    // A run that was reset while its runner attached has not begun.
    let runs = u64::from(expect_once(&long).runs());
    assert!((2..=TIMES + 1).contains(&runs), "{runs}");
    assert_eq!(contest.report("batch").tasks.failed, 0);
}

/// The control, and the rule that what would end before a reset does is left to end.
#[test]
fn without_resets_or_where_they_would_not_pay_a_user_facing_task_waits() {
    for settings in [
        &["pool.p.policy=priority"][..],
        &["pool.p.policy=priority", "pool.p.reset=true", "pool.p.reset_ms=60000"],
    ] {
        let contest = Contest::start(2, settings);
        let long = contest.occupy();
        expect_once(&submit(&contest.user, 5, 1_000_000));
        let ended = long.iter().filter(|pending| pending.poll().is_some()).count();
        assert!(ended >= 1, "it did not wait: {settings:?}");
        long.iter().for_each(|pending| drop(expect_once(pending)));
        let tasks = contest.ended("batch", 3);
        assert_eq!((tasks.resets, tasks.losses, tasks.done), (0, 0, 3), "{settings:?}");
    }
}

/// A task that cannot meet its SLA has what is left over, and stops within a slice for one that
/// can, although it is user-facing and no longer than what may otherwise run whole.
#[test]
fn a_task_that_is_late_anyhow_makes_way_for_one_that_can_be_in_time() {
    const BLOCKS: u32 = 2_500;
    let pool = Pool::start(1, &[]);
    let late = pool.loaded("late", &["--sla", "1ms"]);
    let user = pool.loaded("user", &["--sla", "60s"]);
    // From then on it is known what they take.
    expect_once(&submit(&late, BLOCKS, 0));
    expect_once(&submit(&user, 5, 0));
    let long = submit(&late, BLOCKS, 0);
    eventually("the late task to run", || pool.report("late").tasks.running == 1);
    expect_once(&submit(&user, 5, 0));
    assert!(long.poll().is_none(), "the user-facing task waited for one that was late");
    assert_eq!(expect_once(&long).runs(), 2, "it goes on where it stopped");
}
