//! A decision allocates nothing, with the hierarchy in place.

use weft_sched::bench_support::Saturated;
use weft_sched::policy;

#[test]
fn decisions_do_not_allocate() {
    for name in policy::NAMES.iter().filter(|name| **name != "unmanaged") {
        let policy = policy::by_name(name).unwrap_or_default();
        for (vgpus, tenants) in [(64, 1), (1_024, 1), (1_024, 32), (1_024, 1_024)] {
            let mut device = Saturated::with_tenants(policy, vgpus, tenants);
            for _ in 0..2 * vgpus {
                device.decide();
            }
            let made = allocation_counter::measure(|| {
                for _ in 0..10_000 {
                    device.decide();
                }
            });
            assert_eq!(made.count_total, 0, "{name}, {vgpus} vGPUs of {tenants} tenants");
        }
    }
}

/// The counter counts: a new vGPU takes memory.
#[test]
fn adding_does_allocate() {
    let policy = policy::PolicyId::default();
    let made = allocation_counter::measure(|| drop(Saturated::new(policy, 2)));
    assert!(made.count_total > 0);
}
