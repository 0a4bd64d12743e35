//! Any events in any order against a pool, with its invariants checked.
#![no_main]

#[path = "../../crates/sched/tests/pool_events/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    harness::attack(data);
});
