//! Shares against weights in simulated nodes, with their controls.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use weft_sim::{Kernel, SECOND, Setup, Source, US, World};

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
