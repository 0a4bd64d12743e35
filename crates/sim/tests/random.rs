//! Random nodes: whatever tenants do, the invariants hold.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use proptest::prelude::*;
use weft_sim::{Accounting, Kernel, Loop, MS, Random, SECOND, Setup, Source, Transport, US, World};

const RINGS: Transport = Transport { submit_ns: 130, round_trip_ns: 430, lock_step: false };

fn node(seed: u64) -> World {
    let mut random = Random::new(seed);
    let quantum_ns = [200 * US, MS, 6 * MS, 30 * MS][usize::try_from(random.below(4)).unwrap()];
    let mut setup = Setup::new("fair", seed).quantum(quantum_ns);
    setup.accounting = if random.chance(500) { Accounting::Every } else { Accounting::Sampled };
    setup.costs.device_switch.ns = random.below(20_000);
    setup.costs.launch.ns = random.below(3_000);
    let mut world = World::new(setup).unwrap();
    for _ in 0..random.between(2, 8) {
        let vgpu = world.vgpu(u32::try_from(random.between(1, 10)).unwrap());
        // Below a millisecond a worker's error about what is left of its work, up to its lead, is
        // no smaller than the quantum, and several sessions of a vGPU can add theirs up.
        let sessions = if quantum_ns < MS { 1 } else { random.between(1, 3) };
        for _ in 0..sessions {
            let ns = random.between(10 * US, 3 * MS);
            if random.chance(400) {
                let program = Box::new(Loop::simple(ns / US, random.chance(500)));
                world.program(vgpu, program, RINGS, None, 1_024);
            } else {
                let long = random.chance(150);
                let ns = if long { random.between(20 * MS, 500 * MS) } else { ns };
                let kernel = Kernel { sliceable: random.chance(700), ..Kernel::new(0, ns) };
                let source =
                    Source::Endless { kernels: vec![kernel], jitter_permille: random.below(100) };
                world.session(vgpu, source);
            }
        }
    }
    world
}

proptest! {


    #[test]
    fn invariants_hold(seed: u64) {
        let mut world = node(seed);
        world.run_for(2 * SECOND);
        world.reweight(0, 7);
        world.run_for(2 * SECOND);
        let verdict = world.finish();
        prop_assert_eq!(verdict.first, None, "seed {}", seed);
        // Sampling owes each session the error of its last turn, some milliseconds of these.
        prop_assert!(verdict.closure <= verdict.closure_slack + 0.01, "{}", verdict.closure);
    }
}

/// The check of the checks: charges that are wrong break the bound.
#[test]
fn wrong_charges_are_found_out() {
    let mut setup = Setup::new("fair", 1);
    setup.accounting = Accounting::HostTimed { sync_ns: 20 * US };
    let mut world = World::new(setup).unwrap();
    for us in [21, 1_605] {
        let vgpu = world.vgpu(1);
        let kernels = vec![Kernel::new(0, us * US)];
        world.session(vgpu, Source::Endless { kernels, jitter_permille: 0 });
    }
    world.run_for(2 * SECOND);
    let verdict = world.finish();
    assert!(verdict.lag_violations > 0 && verdict.first.is_some(), "{verdict:?}");
}
