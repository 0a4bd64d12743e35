//! The cost of a decision against the number of vGPUs:
//! `cargo run --release -p weft-sched --example decision`
#![expect(clippy::print_stdout, reason = "the table is this program's purpose")]

use std::hint::black_box;
use std::time::Instant;

use weft_sched::bench_support::Saturated;
use weft_sched::policy;

const BATCHES: u32 = 501;
const BATCH: u32 = 200;
/// vGPUs, and how many tenants they belong to.
const SIZES: [(u32, u32); 8] = [
    (2, 1),
    (64, 2),
    (1_024, 1),
    (1_024, 32),
    (1_024, 1_024),
    (65_536, 1),
    (65_536, 2_048),
    (65_536, 65_536),
];

fn main() {
    println!("{:>12} {:>8} {:>8} {:>8} {:>8}", "policy", "vgpus", "tenants", "p50 ns", "p99 ns");
    for name in policy::NAMES.iter().filter(|name| **name != "unmanaged") {
        let policy = policy::by_name(name).unwrap_or_default();
        for (vgpus, tenants) in SIZES {
            let mut device = Saturated::with_tenants(policy, vgpus, tenants);
            for _ in 0..2 * vgpus {
                black_box(device.decide());
            }
            let mut costs: Vec<u128> = (0..BATCHES)
                .map(|_| {
                    let begin = Instant::now();
                    for _ in 0..BATCH {
                        black_box(device.decide());
                    }
                    begin.elapsed().as_nanos() / u128::from(BATCH)
                })
                .collect();
            costs.sort_unstable();
            let (p50, p99) = (costs[costs.len() / 2], costs[costs.len() * 99 / 100]);
            println!("{name:>12} {vgpus:>8} {tenants:>8} {p50:>8} {p99:>8}");
        }
    }
}
