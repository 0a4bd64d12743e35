//! Shares against weights in simulated nodes, with their controls.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use weft_sim::{
    Accounting, Hog, Kernel, Loop, MS, Preemption, SECOND, Setup, Source, Transport, US, World,
};

fn mmr(policy: &'static str, weights: &[u32], sizes_us: &[u64]) -> f64 {
    let mut world = World::new(Setup::new(policy, 1)).unwrap();
    for (weight, us) in weights.iter().zip(sizes_us) {
        let vgpu = world.vgpu(*weight);
        let kernels = vec![Kernel::new(0, us * US)];
        world.session(vgpu, Source::Endless { kernels, jitter_permille: 20 });
    }
    world.run_for(SECOND);
    let before = world.work_ns();
    world.run_for(10 * SECOND);
    let shares: Vec<f64> = world
        .work_ns()
        .iter()
        .zip(&before)
        .zip(weights)
        .map(|((now, before), weight)| (now - before) as f64 / f64::from(*weight))
        .collect();
    let verdict = world.finish();
    assert_eq!((verdict.lag_violations, verdict.other_violations), (0, 0), "{:?}", verdict.first);
    let high = shares.iter().copied().fold(0.0, f64::max);
    shares.iter().copied().fold(f64::INFINITY, f64::min) / high
}

#[test]
fn shares_follow_weights() {
    for (weights, sizes) in [
        (&[1, 2, 3][..], &[285, 285, 285][..]),
        (&[1, 2, 2, 3, 3, 4], &[21, 1605, 102, 803, 51, 391]),
    ] {
        let (fair, unmanaged) = (mmr("fair", weights, sizes), mmr("unmanaged", weights, sizes));
        assert!(fair > 0.99, "{fair}");
        assert!(unmanaged < 0.5, "{unmanaged}");
    }
}

/// Three interactive tenants on a core with two processor hogs: from wake-up to running, 99th of
/// 100.
fn wake_p99_ns(coscheduling: bool) -> u64 {
    let transport = Transport { submit_ns: 130, round_trip_ns: 430, lock_step: false };
    let mut world = World::new(Setup { coscheduling, ..Setup::new("fair", 1) }).unwrap();
    let mut delays = Vec::new();
    let sessions: Vec<usize> = [1, 2, 3]
        .into_iter()
        .map(|weight| {
            let vgpu = world.vgpu(weight);
            world.program(vgpu, Box::new(Loop::simple(200, true)), transport, Some(0), 1_024)
        })
        .collect();
    for _ in 0..2 {
        world.vcpu(None, Box::new(Hog), transport, Some(0), 1_024);
    }
    world.run_for(10 * SECOND);
    for session in sessions {
        delays.extend_from_slice(world.wake_delays_ns(session));
    }
    delays.sort_unstable();
    delays[delays.len() * 99 / 100]
}

#[test]
fn coscheduled_vcpus_run_beside_hogs() {
    let (plain_ns, boosted_ns) = (wake_p99_ns(false), wake_p99_ns(true));
    assert!(plain_ns > 500_000, "{plain_ns}: without it they wait for the hogs' slices");
    assert!(5 * boosted_ns < plain_ns, "{boosted_ns} against {plain_ns}");
}

/// The longest that a vGPU waits, in ns, while another one of the same weight has kernels of half a
/// second that cannot be sliced, and whether the bills close.
fn gap_beside_long_kernels(preemption: Option<Preemption>, accounting: Accounting) -> u64 {
    let setup = Setup { preemption, accounting, ..Setup::new("fair", 1) };
    let mut world = World::new(setup).unwrap();
    for ns in [500 * MS, 207 * US] {
        let vgpu = world.vgpu(1);
        let source = Source::Endless { kernels: vec![Kernel::new(0, ns)], jitter_permille: 0 };
        world.session(vgpu, source);
    }
    world.run_for(3 * SECOND);
    world.take_gap_max_ns(1);
    world.run_for(5 * SECOND);
    let gap_ns = world.take_gap_max_ns(1);
    let verdict = world.finish();
    assert_eq!(verdict.first, None);
    assert!(verdict.closure <= 0.001 + verdict.closure_slack, "{verdict:?}");
    gap_ns
}

#[test]
fn a_kernel_that_is_stopped_keeps_nobody_waiting_and_is_billed_exactly() {
    let stopped = Some(Preemption::by_worker(200 * US, 50 * US));
    for accounting in [Accounting::Every, Accounting::Sampled] {
        // A quantum of 6 ms, a save, a restore and two changes of hands.
        assert!(gap_beside_long_kernels(stopped, accounting) < 8 * MS);
    }
    assert!(gap_beside_long_kernels(None, Accounting::Every) > 400 * MS);
}

#[test]
fn a_drivers_time_slices_are_equal_whatever_the_weights() {
    let preemption = Some(Preemption::by_driver(100 * US, 2 * MS));
    let mut world = World::new(Setup { preemption, ..Setup::new("unmanaged", 1) }).unwrap();
    for (weight, ns) in [(1, 500 * MS), (4, 207 * US)] {
        let vgpu = world.vgpu(weight);
        let source = Source::Endless { kernels: vec![Kernel::new(0, ns)], jitter_permille: 0 };
        world.session(vgpu, source);
    }
    world.run_for(5 * SECOND);
    let work_ns = world.work_ns();
    assert!(work_ns[0].abs_diff(work_ns[1]) < 20 * MS, "{work_ns:?}");
    // Each slice of 2 ms ends with a save, and begins with a restore where a kernel was stopped.
    assert!(world.preempting_ns() > 5 * SECOND / 50, "{}", world.preempting_ns());
    let verdict = world.finish();
    assert!(verdict.closure <= verdict.closure_slack + 1e-6, "{verdict:?}");
}
