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

#[test]
fn who_waits_for_each_result_gets_less_than_who_does_not() {
    let shown = |user_facing, slack_ns| {
        let parts = [1, 2, 4].map(|devices| in_order(devices, user_facing, slack_ns));
        println!("user-facing {user_facing}, slack {slack_ns}: on 1, 2 and 4 devices {parts:.3?}");
        parts
    };
    // On one device both have the same, whatever they submit; where the earliest deadline may run
    // ahead, who submits ahead has it.
    for parts in [shown(true, 0), shown(false, SECOND)] {
        assert!((0.9..1.1).contains(&parts[0]) && parts[1] < 0.8, "{parts:?}");
    }
    assert!(shown(true, SECOND)[0] < 0.9, "docs/scheduling.md says otherwise");
}
