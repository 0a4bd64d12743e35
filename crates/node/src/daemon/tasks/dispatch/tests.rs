use weft_sched::pool::policy::by_name;

use super::*;

const MS: u64 = 1_000_000;

/// Two devices, a user-facing accelerator (0) and a batch one (1).
fn dispatch(policy: &str) -> Dispatch {
    let mut dispatch = Dispatch::default();
    let policy = by_name(policy).unwrap();
    dispatch.add_pool("p", PoolConfig { policy, ..PoolConfig::default() });
    let class = Class::UserFacing { sla_ns: 200 * MS };
    dispatch.add(0, 0, "p", share(0, class), 8).unwrap();
    dispatch.add(0, 1, "p", share(1, Class::Batch), 8).unwrap();
    for device in 0..2 {
        assert!(dispatch.device_up(0, "p", DeviceKey(device)).is_empty());
    }
    dispatch
}

fn share(tenant: u32, class: Class) -> Share {
    let tenant = TenantKey(tenant);
    Share { tenant, tenant_weight: Weight::ONE, class, weight: Weight::ONE }
}

fn runs(actions: &Actions) -> Vec<(u32, Run)> {
    let run = |(key, action): &(u32, Action)| match action {
        Action::Run { run, .. } => Some((*key, *run)),
        Action::Yield { .. } | Action::Reset { .. } | Action::Cancelled { .. } => None,
    };
    actions.iter().filter_map(run).collect()
}

#[test]
fn a_task_runs_and_is_counted_once() {
    let mut dispatch = dispatch("deadline");
    let begun = runs(&dispatch.submit(0, 0, 7, 0).unwrap());
    let (key, run) = begun[0];
    assert_eq!((key, run.task), (0, 7));
    assert_eq!(dispatch.counts(0).running, 1);
    assert!(dispatch.finished(5 * MS, 0, run, Outcome::Done).is_empty());
    assert!(dispatch.finished(6 * MS, 0, run, Outcome::Done).is_empty(), "said twice");
    let counts = dispatch.counts(0);
    assert_eq!((counts.done, counts.in_time, counts.longest_ns), (1, 1, 5 * MS));
    assert_eq!((counts.running, counts.waiting), (0, 0));
}

/// Whoever may be told to stop at any time is to be cut: batch tasks, and user-facing ones that
/// begin when they are late anyhow.
#[test]
fn a_runner_is_told_what_may_run_whole() {
    let mut dispatch = dispatch("deadline");
    let settings = PoolConfig::default();
    let mut whole_ns_max = |key, number, estimate_ns| {
        let actions = dispatch.submit(0, key, number, estimate_ns).unwrap();
        let [(_, Action::Run { run, whole_ns_max })] = actions[..] else { panic!("{actions:?}") };
        assert!(dispatch.finished(0, key, run, Outcome::Done).is_empty());
        whole_ns_max
    };
    assert_eq!(whole_ns_max(0, 1, 150 * MS), settings.user_quantum_ns);
    assert_eq!(whole_ns_max(0, 2, 250 * MS), settings.slice_ns, "its SLA is 200 ms");
    assert_eq!(whole_ns_max(1, 3, 150 * MS), settings.slice_ns);
}

#[test]
fn a_task_that_ran_for_nobody_is_dropped_for_good() {
    let mut dispatch = dispatch("deadline");
    let (_, run) = runs(&dispatch.submit(0, 1, 1, 0).unwrap())[0];
    assert!(dispatch.cancel(0, 1, 1).is_empty(), "its runner stops it");
    assert!(dispatch.finished(MS, 1, run, Outcome::Dropped).is_empty(), "it does not run again");
    let counts = dispatch.counts(1);
    assert_eq!((counts.dropped, counts.done, counts.failed), (1, 0, 0));
    assert_eq!((counts.running, counts.waiting, counts.stops), (0, 0, 0));
}

#[test]
fn what_an_earlier_run_reports_says_nothing() {
    let mut dispatch = dispatch("deadline");
    let (_, first) = runs(&dispatch.submit(0, 1, 1, 0).unwrap())[0];
    let device = DeviceKey(first.device);
    let again = runs(&dispatch.device_down(MS, "p", device));
    let (_, second) = again[0];
    assert_ne!(second.device, first.device);
    assert!(dispatch.finished(2 * MS, 1, first, Outcome::Done).is_empty());
    assert!(dispatch.lost(2 * MS, 1, first).is_empty());
    assert_eq!(dispatch.counts(1).running, 1, "the second run goes on");
    dispatch.finished(3 * MS, 1, second, Outcome::Done);
    let counts = dispatch.counts(1);
    assert_eq!((counts.done, counts.losses, counts.running), (1, 1, 0));
}

#[test]
fn a_runner_that_is_gone_leaves_nothing_behind() {
    for policy in weft_sched::pool::policy::NAMES {
        let mut dispatch = dispatch(policy);
        for task in 0..6 {
            dispatch.submit(0, 1, task, 0).unwrap();
        }
        dispatch.submit(0, 0, 0, 0).unwrap();
        let actions = dispatch.runner_gone(MS, 1);
        assert!(runs(&actions).iter().all(|(key, _)| *key == 0), "{policy}: {actions:?}");
        let counts = dispatch.counts(1);
        assert_eq!((counts.waiting, counts.running), (0, 0), "{policy}");
        dispatch.remove(MS, 1);
        assert_eq!(dispatch.submit(MS, 1, 0, 0), Err(Impossible::Unknown), "{policy}");
    }
}

#[test]
fn too_many_tasks_and_doubles_are_refused() {
    let mut dispatch = dispatch("fifo");
    for task in 0..8 {
        dispatch.submit(0, 1, task, 0).unwrap();
    }
    assert_eq!(dispatch.submit(0, 1, 8, 0), Err(Impossible::TooMany));
    assert_eq!(dispatch.submit(0, 1, 3, 0), Err(Impossible::Twice(3)));
    let cancelled = dispatch.cancel(0, 1, 7);
    assert_eq!(cancelled, [(1, Action::Cancelled { task: 7 })]);
    assert!(dispatch.cancel(0, 1, 0).is_empty(), "it runs");
    dispatch.submit(0, 1, 8, 0).unwrap();
}

#[test]
fn a_user_facing_task_has_batch_work_stopped_and_fifo_does_not() {
    let fill = |dispatch: &mut Dispatch| {
        for task in 0..4 {
            dispatch.submit(0, 1, task, 1_000 * MS).unwrap();
        }
        dispatch.submit(MS, 0, 0, MS).unwrap()
    };
    let stops = |actions: &Actions| {
        actions.iter().any(|(_, action)| matches!(action, Action::Yield { .. }))
    };
    assert!(stops(&fill(&mut dispatch("deadline"))));
    assert!(!stops(&fill(&mut dispatch("fifo"))));
}

/// Two batch accelerators of two tenants on one device, of which the first one's runner dies
/// whenever its task has run for 50 ms.
#[test]
fn a_runner_that_dies_does_not_spare_its_tenant_what_ran() {
    let mut dispatch = Dispatch::default();
    dispatch.add_pool("p", PoolConfig::default());
    for key in 0..2 {
        dispatch.add(0, key, "p", share(key, Class::Batch), 8).unwrap();
    }
    let mut begun = dispatch.device_up(0, "p", DeviceKey(0));
    let (mut now_ns, mut had, mut number) = (0, [0u64; 2], 0);
    for _ in 0..400 {
        for key in 0..2 {
            while dispatch.counts(key).waiting + dispatch.counts(key).running < 2 {
                number += 1;
                begun.extend(dispatch.submit(now_ns, key, number, 0).unwrap());
            }
        }
        let (key, run) = *runs(&begun).last().unwrap();
        begun.clear();
        now_ns += 50 * MS;
        had[key as usize] += 1;
        begun.extend(match key {
            0 => dispatch.runner_gone(now_ns, key),
            _ => dispatch.finished(now_ns, key, run, Outcome::Done),
        });
    }
    assert!(had[0].abs_diff(had[1]) <= 4, "{had:?}");
}

#[test]
fn keys_of_tasks_are_used_again_and_by_one_task_each() {
    let mut dispatch = dispatch("fifo");
    for round in 0..50 {
        let of_round = |task: u32| round * 8 + task;
        (0..8).for_each(|task| drop(dispatch.submit(0, 1, of_round(task), 0).unwrap()));
        let state = &dispatch.pools["p"];
        assert!(state.tasks.keys().all(|key| key.0 < 8), "{:?}", state.tasks.keys());
        assert_eq!(state.tasks.len(), 8);
        dispatch.runner_gone(0, 1);
    }
}
