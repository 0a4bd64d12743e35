//! Clients of a pool that wait for each result before they submit again, beside ones that do not.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use weft_sched::pool::PoolConfig;
use weft_sim::flexy::{Job, Options, run};
use weft_sim::{MS, SECOND};

/// Service of a client that waits for each result over that of one that has eight tasks
/// outstanding, of equal weights.
fn in_order(devices: u32, user_facing: bool, slack_ns: u64) -> f64 {
    let job = |outstanding, number| Job {
        arrival_ns: number,
        user_facing,
        weight: 1,
        outstanding,
        tasks: (0..2_000).map(|task| (0, 10 * MS + task * 7_919 % (5 * MS))).collect(),
    };
    // The last arrival ends the time that is counted.
    let end = Job { arrival_ns: 10 * SECOND, tasks: vec![(0, MS)], ..job(1, 0) };
    let options =
        Options { devices, ..Options::new(PoolConfig { slack_ns, ..PoolConfig::default() }) };
    let found = run(&[job(1, 0), job(8, 1), end], &options, 1).unwrap();
    assert_eq!(found.violation, None);
    found.service_ns[0] as f64 / found.service_ns[1] as f64
}

/// One that waits for each result has one device at a time, and not the instant in which a task of
/// the other one begins. Beyond that it loses nothing by waiting, whoever may run ahead.
#[test]
fn who_waits_for_each_result_gets_its_share_of_a_device() {
    let shown = |user_facing, slack_ns| {
        let parts = [1, 2, 4].map(|devices| in_order(devices, user_facing, slack_ns));
        println!("user-facing {user_facing}, slack {slack_ns}: on 1, 2 and 4 devices {parts:.3?}");
        parts
    };
    let without = shown(true, 0);
    for parts in [shown(true, SECOND), shown(false, SECOND)] {
        // Who runs ahead is ahead by the slack, a tenth of the time that is counted.
        assert!(parts[0] > 0.7, "{parts:?}");
        for (part, without) in parts.into_iter().zip(without) {
            assert!(part > 0.75 * without, "{parts:?} beside {without}");
        }
    }
}
