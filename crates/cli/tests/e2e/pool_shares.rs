//! Shares of a pool: what tenants say, how long their tasks are and how many accelerators they have
//! wins them nothing.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::set_thread_uid;
use weft_tasks::Pending;

use crate::support::is_root;
use crate::tasks::{Pool, count, expect_once};

/// Tasks that an accelerator has outstanding.
const OUTSTANDING: usize = 8;

/// Thread blocks of a task: 10 ms.
const BLOCKS: u32 = 50;

/// Who takes part in a race.
#[derive(Clone, Copy)]
struct Racer<'a> {
    /// None is the tests' own.
    user: Option<u32>,
    accelerators: &'a [&'a str],
    /// Said of the first tasks, before the others begin, and of all later ones; 0 is nothing.
    estimates_ns: (u64, u64),
}

/// All keep tasks outstanding until so many are done together; how many each had.
fn race<const N: usize>(pool: &Pool, racers: [Racer<'_>; N], enough: usize) -> [usize; N] {
    let (start, total) = (Barrier::new(N), AtomicUsize::new(0));
    thread::scope(|scope| {
        let run = |racer: Racer<'_>| run(pool, racer, &start, &total, enough);
        racers.map(|racer| scope.spawn(move || run(racer))).map(|racer| racer.join().unwrap())
    })
}

fn run(
    pool: &Pool,
    racer: Racer<'_>,
    start: &Barrier,
    total: &AtomicUsize,
    enough: usize,
) -> usize {
    if let Some(user) = racer.user {
        // This thread alone.
        set_thread_uid(rustix::process::Uid::from_raw(user)).unwrap();
    }
    let (first_ns, later_ns) = racer.estimates_ns;
    let loaded: Vec<_> = racer.accelerators.iter().map(|name| pool.join(name)).collect();
    let mut outstanding: Vec<VecDeque<Pending>> = loaded.iter().map(|_| VecDeque::new()).collect();
    let fill = |outstanding: &mut Vec<VecDeque<Pending>>, estimate_ns| {
        for ((accelerator, module), pending) in loaded.iter().zip(outstanding) {
            while pending.len() < OUTSTANDING {
                let task = count(module, BLOCKS).estimate_ns(estimate_ns);
                pending.push_back(accelerator.submit(&task).unwrap());
            }
        }
    };
    if first_ns > 0 {
        fill(&mut outstanding, first_ns);
    }
    start.wait();
    let mut done = 0;
    while total.load(Ordering::Relaxed) < enough {
        fill(&mut outstanding, later_ns);
        // The end of one of them, or a look at the others.
        let _ = outstanding[0][0].wait_timeout(Duration::from_millis(2));
        for pending in &mut outstanding {
            while pending.front().is_some_and(|first| first.poll().is_some()) {
                pending.pop_front().unwrap().wait().unwrap();
                total.fetch_add(1, Ordering::Relaxed);
                done += 1;
            }
        }
    }
    done
}

#[track_caller]
fn expect_halves([one, other]: [usize; 2]) {
    let (least, most) = (one.min(other), one.max(other));
    assert!(least * 3 >= most * 2, "{one} tasks and {other}");
}

/// The first tasks are said to take 36 years, all others 1 ns.
#[test]
fn who_lies_about_its_tasks_has_its_half() {
    let pool = Pool::start(1, &[]);
    pool.create("liar", &[]);
    pool.create("other", &[]);
    let racer = |accelerators, estimates_ns| Racer { user: None, accelerators, estimates_ns };
    let racers = [racer(&["liar"], (1 << 60, 1)), racer(&["other"], (0, 0))];
    expect_halves(race(&pool, racers, 240));
}

#[test]
fn a_user_with_three_accelerators_has_a_users_half() {
    if !is_root() {
        return;
    }
    let pool = Pool::start(1, &["scheduling.share=user"]);
    let names = ["x1", "x2", "x3"];
    names.iter().for_each(|name| pool.create(name, &["--owner", "1001"]));
    pool.create("y", &["--owner", "1002"]);
    let racer = |user, accelerators| Racer { user: Some(user), accelerators, estimates_ns: (0, 0) };
    expect_halves(race(&pool, [racer(1001, &names), racer(1002, &["y"])], 240));
}

/// The control: every accelerator by itself.
#[test]
fn where_vgpus_share_a_user_with_three_accelerators_has_three_parts() {
    if !is_root() {
        return;
    }
    let pool = Pool::start(1, &["scheduling.share=vgpu"]);
    let names = ["x1", "x2", "x3"];
    names.iter().for_each(|name| pool.create(name, &["--owner", "1001"]));
    pool.create("y", &["--owner", "1002"]);
    let racer = |user, accelerators| Racer { user: Some(user), accelerators, estimates_ns: (0, 0) };
    let [three, one] = race(&pool, [racer(1001, &names), racer(1002, &["y"])], 240);
    assert!(three >= 2 * one, "{three} tasks and {one}");
}

/// A task of 2 s, and one of 4 ms whose accelerator is owed more.
#[test]
fn a_long_batch_task_gives_way_to_another_accelerators() {
    let pool = Pool::start(1, &[]);
    let (long, short) = (pool.loaded("long", &[]), pool.loaded("short", &["--weight", "100"]));
    let first = long.0.submit(&count(&long.1, 10_000)).unwrap();
    pool.wait_for("long", "the long task to run", |report| report.tasks.running == 1);
    expect_once(&short.0.submit(&count(&short.1, 20)).unwrap());
    assert!(first.poll().is_none(), "the short task waited for the long one's end");
    expect_once(&first);
    assert!(pool.report("long").tasks.stops >= 1);
}

/// A user-facing task of 3 s, whose kernel nobody knows, on the only device.
#[test]
fn a_long_user_facing_task_gives_way_to_batch_work() {
    let pool = Pool::start(1, &["pool.p.batch_patience_ms=100", "pool.p.user_quantum_ms=100"]);
    let (user, batch) = (pool.loaded("user", &["--sla", "200ms"]), pool.loaded("batch", &[]));
    let first = user.0.submit(&count(&user.1, 15_000)).unwrap();
    pool.wait_for("user", "the user-facing task to run", |report| report.tasks.running == 1);
    expect_once(&batch.0.submit(&count(&batch.1, 20)).unwrap());
    assert!(first.poll().is_none(), "the batch task waited for the user-facing one's end");
    expect_once(&first);
}
