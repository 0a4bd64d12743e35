//! How many devices `flexy` and `adaptive` keep for user-facing tasks.

use weft_sched::pool::{Class, Pool, PoolConfig, PoolEvent};
use weft_sched::{DeviceKey, TaskKey, VgpuKey, Weight};

use crate::pool::{MS, config, feed, finished, pool, runs, submit};

/// `flexy` on eight devices that all run batch tasks, after user-facing tasks of 100 and 178 ms.
fn busy(recent: u32) -> Pool {
    let mut pool = pool(PoolConfig { recent, ..config("flexy", 0, false) }, 8);
    assert_eq!(feed(&mut pool, 0, submit(0, 0)), [runs(0)]);
    feed(&mut pool, 100 * MS, finished(0));
    assert_eq!(feed(&mut pool, 100 * MS, submit(1, 0)), [runs(1)]);
    feed(&mut pool, 278 * MS, finished(1));
    (2..10).for_each(|task| assert_eq!(feed(&mut pool, 300 * MS, submit(task, 1)).len(), 1));
    assert_eq!((pool.user_devices(), pool.batch_devices()), (0, 8));
    pool
}

/// With `l` the mean of the last execution times and `q` tasks in the queue, `⌈l·q / SLA⌉`.
#[test]
fn flexy_sizes_its_part_by_littles_law() {
    for (recent, latency_ms, at_four) in [(16, 139, 3), (2, 139, 3), (1, 178, 4)] {
        let mut pool = busy(recent);
        let sizes: Vec<u64> = (1..=14)
            .map(|queued| {
                assert_eq!(feed(&mut pool, 300 * MS, submit(9 + queued, 0)), []);
                u64::from(pool.user_devices())
            })
            .collect();
        let expected = (1..=14).map(|queued: u64| (latency_ms * queued).div_ceil(200).min(8));
        assert_eq!(sizes, expected.collect::<Vec<_>>(), "of the last {recent}");
        assert_eq!((sizes[3], sizes[13]), (at_four, 8), "of the last {recent}");
    }
}

/// Something that changes nothing, so that the pool learns what time it is.
fn tick(pool: &mut Pool, now_ns: u64) {
    let (vgpu, class, weight) = (VgpuKey(1), Class::Batch, Weight::ONE);
    feed(pool, now_ns, PoolEvent::SetVgpu { vgpu, class, weight });
}

/// Whatever Little's law says: nothing is outstanding where it is looked at.
#[test]
fn late_ends_raise_adaptives_part_and_ends_on_time_lower_it() {
    let mut pool = pool(config("adaptive", 0, false), 4);
    for task in 0..2 {
        assert_eq!(feed(&mut pool, 0, submit(task, 0)).len(), 1);
    }
    feed(&mut pool, 245 * MS, finished(0));
    tick(&mut pool, 250 * MS);
    feed(&mut pool, 490 * MS, PoolEvent::Finished { device: DeviceKey(1), task: TaskKey(1) });
    assert_eq!(pool.user_devices(), 1, "of the first period's latency of 1.2 SLAs");
    tick(&mut pool, 500 * MS);
    assert_eq!(pool.user_devices(), 3, "2.5 SLAs");
    assert_eq!(feed(&mut pool, 510 * MS, submit(2, 0)), [runs(2)]);
    feed(&mut pool, 540 * MS, finished(2));
    assert_eq!(pool.user_devices(), 3, "a period is not over");
    tick(&mut pool, 750 * MS);
    assert_eq!(pool.user_devices(), 0, "30 ms");
}

#[test]
fn ends_on_time_keep_no_device_under_adaptive() {
    let mut pool = pool(config("adaptive", 0, false), 4);
    for period in 0..8 {
        let begin_ns = 250 * MS * u64::from(period);
        assert_eq!(feed(&mut pool, begin_ns, submit(period, 0)), [runs(period)]);
        feed(&mut pool, begin_ns + 100 * MS, finished(period));
        assert_eq!(pool.user_devices(), 0);
    }
}
